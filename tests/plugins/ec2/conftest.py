"""The emulator, once for all tests of a worker; the fault proxy and a clock, anew for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ec2.emulator import CREDENTIALS, Emulator, running
from tests.support.ec2.world import Ec2World


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    with running() as found:
        yield found


@pytest.fixture
def ec2(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2World]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    emulator.reset()
    with Ec2World(emulator, tmp_path).running() as world:
        yield world
