"""The harness that tests of the controller share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.controllers.planner import Make, PlannerHarness
from tests.support.fleet import group


@pytest.fixture
def make() -> Iterator[Make]:
    harnesses: list[PlannerHarness] = []

    def made(*groups: Any, **more: Any) -> PlannerHarness:
        harnesses.append(PlannerHarness(groups or [group("a")], **more))
        return harnesses[-1]

    yield made
    for harness in harnesses:
        harness.close()
