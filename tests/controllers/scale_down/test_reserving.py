"""Room for pods that wait: as much as the planner finds for them on all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down.constraints import required
from cagrpc.controllers.scale_down.reserving import reserve
from cagrpc.controllers.scale_down.room import Room
from solver import solve
from solver.model import Budget, Node, PodSet, PodSpec, Problem
from tests.support.controllers.scale_down import relocation_in, room_of, whole
from tests.support.examples import examples
from tests.support.solver.strategies import constrained_specs, nodes_with_constrained_pods

BUDGET = Budget(deterministic_seconds=0.5)


def _reserve(room: Room, sets: Sequence[PodSet]) -> Counter[PodSpec]:
    return whole(reserve(room, relocation_in(room), sets, BUDGET))


@examples(120)
@given(
    nodes_with_constrained_pods(),
    st.lists(st.tuples(constrained_specs(), st.integers(1, 4)), min_size=1, max_size=5),
)
def test_as_many_pods_have_room_as_the_planner_places(nodes: list[Node], waiting: list[tuple[PodSpec, int]]) -> None:
    sets = [PodSet(f"w{number}", required(each), count) for number, (each, count) in enumerate(waiting)]
    room = room_of(*nodes)
    placed = _reserve(room, sets)
    planned = solve(Problem(tuple(sets), nodes=tuple(nodes)), BUDGET)
    assert placed.total() >= sum(each.count for each in sets) - sum(each.count for each in planned.unplaced)
    assumed: Counter[PodSpec] = Counter()
    for _, each, count in room.all_assumed():
        assumed[each] += count
    assert assumed == placed
