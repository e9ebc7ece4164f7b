"""The world that tests of requests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleet import group
from tests.support.requests import RequestWorld

Make = Callable[..., RequestWorld]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes a world with the template `web`, of one core."""
    with ExitStack() as worlds:

        def made(*groups: Any, **more: Any) -> RequestWorld:
            world = worlds.enter_context(RequestWorld(*(groups or [group("a")]), **more))
            world.template("web", cpu=1000)
            return world

        yield made
