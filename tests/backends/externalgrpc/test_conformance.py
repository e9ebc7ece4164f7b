"""The backend over externalgrpc providers passes the conformance suite with each of their habits."""

from __future__ import annotations

import pytest

from cagrpc.testing import BackendConformance, Cloud
from tests.support.played_provider import Habits, PlayedCloud

HABITS = {
    "plain": Habits(late=False),
    "late": Habits(go_seconds=15.0),
    "aws": Habits(placeholders=True, states=False, cache_seconds=60.0, go_seconds=30.0, shortage="error"),
    "cluster-api": Habits(pending_ids=True, states=False, go_seconds=45.0),
    "hetzner": Habits(partial=True, late=False),
}


class TestExternalGrpc(BackendConformance):
    @pytest.fixture(params=HABITS)
    def cloud(self, request: pytest.FixtureRequest) -> Cloud:
        return PlayedCloud(HABITS[request.param])
