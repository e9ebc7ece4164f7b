"""The harness that tests of the controller share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.controllers.provisioning import Make, ProvisioningHarness
from tests.support.fleet import group


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[ProvisioningHarness] = []

    def made(*groups: Any, **more: Any) -> ProvisioningHarness:
        worlds.append(ProvisioningHarness(groups or [group("a")], **more))
        worlds[-1].template("web", cpu=1000)
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()
