"""What the solver's tests have in common: kernels are compiled, or loaded, before the first."""

from __future__ import annotations

import pytest

from solver.planning.warm_up import warm_up


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    """Interpreted ones, to the same answers, would take hundreds of times as long."""
    warm_up()
