"""Room for pods that wait: as much as the planner finds for them on all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down import relocation as relocation_module
from cagrpc.controllers.scale_down import reserving as module
from cagrpc.controllers.scale_down.constraints import required
from cagrpc.controllers.scale_down.reserving import reserve
from cagrpc.controllers.scale_down.room import Room
from solver import solve
from solver.model import Budget, Node, PodSet, PodSpec, Problem
from tests.support.controllers.scale_down import relocation_in, room_of, whole
from tests.support.examples import examples
from tests.support.solver.problems import node, pods, spec
from tests.support.solver.strategies import constrained_specs, nodes_with_constrained_pods

BUDGET = Budget(deterministic_seconds=0.5)
INVALID = PodSpec((("cpu", -1),))


def _reserve(room: Room, sets: Sequence[PodSet]) -> Counter[PodSpec]:
    return whole(reserve(room, relocation_in(room), sets, BUDGET))


def _no_planner(*_: object) -> None:
    raise AssertionError("the planner is asked")


def test_an_invalid_pod_finds_no_place_and_stops_nobody() -> None:
    room = room_of(node("x", 4000))
    placed = _reserve(room, [pods("invalid", 1, INVALID), pods("valid", 2, spec(cpu=1000))])
    assert placed == {spec(cpu=1000): 2}
    assert room.info(0).free["cpu"] == 2000


def test_pods_that_have_room_and_pods_that_have_none_anywhere_take_no_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation_module, "solve_valid", _no_planner)
    room = room_of(*(node(f"n{each}", 4000) for each in range(300)))
    placed = _reserve(room, [pods("small", 900, spec(cpu=1000)), pods("large", 5, spec(cpu=5000))])
    assert placed == {spec(cpu=1000): 900}


def test_pods_with_few_nodes_come_before_those_that_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation_module, "solve_valid", _no_planner)
    room = room_of(node("gpu", 2000, labels={"kind": "gpu"}), *(node(f"n{each}", 2000) for each in range(300)))
    bound = spec(cpu=1000, node_selector={"kind": "gpu"})
    assert _reserve(room, [pods("any", 300, spec(cpu=2000)), pods("gpu", 2, bound)]) == {spec(cpu=2000): 300, bound: 2}


def test_where_pods_are_left_the_planner_finds_more_for_all_together() -> None:
    """The largest pod takes the node on which the others fit, and there is another one for it."""
    room = room_of(node("x", 4000), node("y", 3000))
    assert _reserve(room, [pods("l", 1, spec(cpu=3000)), pods("s", 2, spec(cpu=2000))]).total() == 3
    assert (room.info(0).free["cpu"], room.info(1).free["cpu"]) == (0, 0)


def test_where_too_many_nodes_are_in_question_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NODES", 1)
    monkeypatch.setattr(relocation_module, "solve_valid", _no_planner)
    room = room_of(node("x", 4000), node("y", 3000))
    assert _reserve(room, [pods("l", 1, spec(cpu=3000)), pods("s", 2, spec(cpu=2000))]).total() == 2
    assert (room.info(0).free["cpu"], room.info(1).free["cpu"]) == (1000, 1000)


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
