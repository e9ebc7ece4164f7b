"""Worlds that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleet import group
from tests.support.world import NewWorld, World


@pytest.fixture
def new_world() -> Iterator[NewWorld]:
    """Return what makes a world, of one node group `a` if no other is named."""
    with ExitStack() as worlds:

        def new(*groups: Any, **more: Any) -> World:
            return worlds.enter_context(World(*(groups or [group("a", cpu=4000)]), **more))

        yield new
