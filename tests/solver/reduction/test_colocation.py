"""What may share a node, asked row by row, against the definition of an exclusion."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from solver import Problem
from solver.reduction.colocation import CoLocation
from solver.reduction.inter_row import NodeExclusion
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Reduced
from tests.support.examples import examples
from tests.support.solver.problems import group, pods, spec

ROWS = 6


@st.composite
def excluded(draw: st.DrawFn) -> tuple[Reduced, dict[int, int]]:
    """A problem of one kind in which rows exclude each other, and units to put on a node."""
    some = st.sets(st.integers(0, ROWS - 1), min_size=1)
    exclusions = tuple(
        NodeExclusion(frozenset(draw(some)), tuple((row, draw(st.integers(1, 3))) for row in sorted(draw(some))), 9, {})
        for _ in range(draw(st.integers(1, 4)))
    )
    reduced = reduce(Problem(tuple(pods(f"p{i}", 5, spec(100 + i)) for i in range(ROWS)), (group("g"),)))
    (kind,) = reduced.kinds
    spare = tuple(draw(st.integers(-1, 6)) for _ in exclusions)
    order = draw(st.permutations(range(ROWS)))
    units = {row: draw(st.integers(0, 5)) for row in order}
    return replace(reduced, exclusions=exclusions, kinds=(replace(kind, spare=spare),)), units


def may_share(reduced: Reduced, units: dict[int, int]) -> bool:
    (kind,) = reduced.kinds
    return all(
        sum(count * dict(each.counted).get(row, 0) for row, count in units.items()) <= spare
        for each, spare in zip(reduced.exclusions, kind.spare, strict=True)
        if any(units.get(row) for row in each.carriers)
    )


@given(excluded())
@examples(300)
def test_as_many_units_are_kept_as_may_share_the_node(case: tuple[Reduced, dict[int, int]]) -> None:
    reduced, units = case
    colocation, (kind,) = CoLocation(reduced), reduced.kinds
    assert colocation.admits(kind, units) == may_share(reduced, units)
    kept: dict[int, int] = {}
    for row, wanted in units.items():
        most = next((n for n in range(wanted, 0, -1) if may_share(reduced, {**kept, row: n})), 0)
        if most:
            kept[row] = most
    assert colocation.trimmed(kind, units) == kept
