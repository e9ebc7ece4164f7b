"""Worlds that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.controllers.scale_down.standing import Standing


@pytest.fixture
def standing() -> Iterator[Callable[..., Standing]]:
    """Return what makes a `Standing`."""
    with ExitStack() as made:
        yield lambda *groups, **more: made.enter_context(Standing(*groups, **more))
