"""A simulated backend in a file of the test's own, by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.backends.simulated.backend import SimulatedBackend
from tests.support.fleet import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(tmp_path: Path, clock: FakeClock) -> SimulatedBackend:
    return SimulatedBackend(tmp_path / "cloud.db", clock=clock)
