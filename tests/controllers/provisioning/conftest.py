"""The harness that tests of the controller share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.controllers.provisioning import Make, ProvisioningHarness
from tests.support.fleet import group


@pytest.fixture
def make() -> Iterator[Make]:
    harnesses: list[ProvisioningHarness] = []

    def made(*groups: Any, **more: Any) -> ProvisioningHarness:
        harnesses.append(ProvisioningHarness(groups or [group("a")], **more))
        harnesses[-1].template("web", cpu=1000)
        return harnesses[-1]

    yield made
    for harness in harnesses:
        harness.close()
