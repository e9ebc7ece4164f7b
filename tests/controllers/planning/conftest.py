"""The harness that tests of the controller share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.controllers.planner import Make, PlannerHarness
from tests.support.fleet import group


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[PlannerHarness] = []

    def made(*groups: Any, **more: Any) -> PlannerHarness:
        worlds.append(PlannerHarness(groups or [group("a")], **more))
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()
