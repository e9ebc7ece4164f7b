"""The simulated backend passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.testing import BackendConformance, Cloud
from tests.support.simulated_cloud import LateSimulatedCloud, SimulatedCloud


class TestSimulated(BackendConformance):
    @pytest.fixture(params=[SimulatedCloud, LateSimulatedCloud])
    def cloud(self, request: pytest.FixtureRequest, tmp_path: Path) -> Cloud:
        made: Cloud = request.param(tmp_path)
        return made
