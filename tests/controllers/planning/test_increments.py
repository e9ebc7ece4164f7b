"""From plans to increments: which pods go where, and which nodes must come together."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.state import PodRef
from cagrpc.controllers.planning import increments as planner_increments
from cagrpc.controllers.planning.increments import NewNode, assign_pods, increment, parts, still_wanted
from cagrpc.controllers.planning.problem import ClassKey, Question
from solver.model import Certificate, PlacedOnNode, Plan, PlannedNodes, PodClass, Problem, Status, Unplaced
from tests.support.solver.problems import group, spec


def _pod(number: int) -> PodRef:
    return PodRef(f"uid-{number}", "ns", f"pod-{number}", created_at_seconds=number)


def _node(group_id: str, *numbers: int, gangs: dict[str, tuple[int, ...]] | None = None) -> NewNode:
    members = {gang: tuple(map(_pod, pods)) for gang, pods in (gangs or {}).items()}
    return NewNode(group_id, tuple(map(_pod, numbers)), members)


def _groups_of(found: list[tuple[NewNode, ...]]) -> list[dict[str, int]]:
    return sorted((dict(Counter(node.node_group for node in part)) for part in found), key=str)


def test_the_oldest_pods_go_to_standing_nodes_then_coming_then_new_ones_and_the_youngest_wait() -> None:
    key: ClassKey = (spec(), 0, None, False)
    asked = Question(Problem(()), {key: tuple(map(_pod, range(6)))}, frozenset({"coming"}), ())
    plan = Plan(
        pod_classes=(PodClass(0, key[0], 6, "ns/pod-0"),),
        increments=(),
        nodes=(PlannedNodes("a", 1, {0: 2}),),
        existing=(PlacedOnNode("coming", {0: 1}), PlacedOnNode("standing", {0: 2})),
        unplaced=(Unplaced(0, 1, ()),),
        certificate=Certificate(Status.OPTIMAL, 0, 0, 0, (), 0),
        elapsed_seconds=0,
    )
    handed = assign_pods(plan, asked)
    numbers = {name: [pod.created_at_seconds for pod in pods] for name, pods in handed.existing.items()}
    assert numbers == {"standing": [0, 1], "coming": [2]}
    assert [[pod.created_at_seconds for pod in node.pods] for node in handed.new] == [[3, 4]]
    assert [pod.created_at_seconds for pod in handed.unplaced[0]] == [5]


def test_nodes_of_groups_without_a_common_gang_are_increments_of_their_own() -> None:
    found = list(parts([_node("a", 1), _node("b", 2), _node("a", 3)]))
    assert _groups_of(found) == [{"a": 2}, {"b": 1}]


def test_a_gang_over_several_groups_ties_its_nodes_together_and_no_others() -> None:
    nodes = [
        _node("a", 1, gangs={"g": (1,)}),
        _node("b", 2, gangs={"g": (2,)}),
        _node("a", 3),
        _node("b", 4),
        _node("c", 5, gangs={"h": (5,)}),
    ]
    assert _groups_of(list(parts(nodes))) == [{"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {"c": 1}]


def test_gangs_that_share_a_node_are_tied_together() -> None:
    nodes = [
        _node("a", 1, gangs={"g": (1,)}),
        _node("b", 2, 3, gangs={"g": (2,), "h": (3,)}),
        _node("c", 4, gangs={"h": (4,)}),
    ]
    assert _groups_of(list(parts(nodes))) == [{"a": 1, "b": 1, "c": 1}]


def test_a_very_large_group_is_asked_for_in_parts_that_tear_no_gang_apart(monkeypatch: object) -> None:
    nodes = [_node("a", n, gangs={f"g{n // 4}": (n,)}) for n in range(100)]
    random.Random(1).shuffle(nodes)
    found = list(parts_of_at_most(10, nodes, monkeypatch))
    assert max(map(len, found)) <= 10
    gangs = [{gang for node in part for gang in node.gangs} for part in found]
    assert sum(map(len, gangs)) == len(set().union(*gangs)) == 25


def test_very_many_pods_are_served_in_parts_that_the_journal_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_increments, "MOST_PODS", 10)
    nodes = [_node("a", *range(4 * n, 4 * n + 4)) for n in range(7)]
    assert [len(part) for part in parts(nodes)] == [2, 2, 2, 1]
    gang = [_node("a", *range(4 * n, 4 * n + 4), gangs={"g": (4 * n,)}) for n in range(7)]
    assert [len(part) for part in parts(gang)] == [7]


def parts_of_at_most(size: int, nodes: list[NewNode], monkeypatch: object) -> list[tuple[NewNode, ...]]:
    monkeypatch.setattr(planner_increments, "MOST_NODES", size)  # type: ignore[attr-defined]
    return list(parts(nodes))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from("ghijk"), max_size=2)), max_size=12))
def test_parts_are_a_partition_and_every_gang_is_in_one_part(shape: list[tuple[str, set[str]]]) -> None:
    nodes = [_node(name, number, gangs=dict.fromkeys(gangs, (number,))) for number, (name, gangs) in enumerate(shape)]
    found = list(parts(nodes))
    assert sorted(node.pods[0].uid for part in found for node in part) == sorted(node.pods[0].uid for node in nodes)
    for gang in "ghijk":
        assert sum(any(gang in node.gangs for node in part) for part in found) <= 1
    for part in found:
        if len({node.node_group for node in part}) > 1:
            assert all(node.gangs for node in part)


def test_an_increment_says_what_each_node_is_for() -> None:
    groups = {"a": group("a", price=0.5), "b": group("b", price=2.0)}
    made = increment([_node("a", 1, 2), _node("b", 3), _node("a", 4)], groups, "plan-1", 0.25)
    assert made.deltas == {"a": 2, "b": 1}
    assert made.pods == {"uid-1", "uid-2", "uid-3", "uid-4"}
    assert [(each.node_group, each.pods) for each in made.placements] == [
        ("a", ("uid-1", "uid-2")),
        ("b", ("uid-3",)),
        ("a", ("uid-4",)),
    ]
    assert (made.plan, made.cost_usd_per_hour, made.gap) == ("plan-1", 3.0, 0.25)


def test_nodes_whose_pods_have_all_gone_are_not_wanted_any_more() -> None:
    part = (_node("a", 1, 2), _node("a", 3))
    assert still_wanted(part, lambda pod: pod.uid != "uid-3") == part[:1]
    assert still_wanted(part, lambda pod: pod.uid != "uid-1") == part
    assert still_wanted(part, lambda _: False) == ()


def test_a_gang_that_has_lost_a_pod_is_planned_anew() -> None:
    part = (_node("a", 1, 2, gangs={"g": (2,)}), _node("b", 3, gangs={"g": (3,)}))
    assert still_wanted(part, lambda pod: pod.uid != "uid-3") is None
    assert still_wanted(part, lambda pod: pod.uid != "uid-1") == part


def test_a_node_for_placeholders_is_wanted_whoever_is_bound_meanwhile() -> None:
    part = (_node("a", 1), NewNode("a", (), placeholders=3))
    assert still_wanted(part, lambda _: False) == part[1:2]
    assert still_wanted(part, lambda _: True) == part


def test_an_increment_tells_whom_it_is_for() -> None:
    groups = {"a": group("a")}
    for_both = (_node("a", 1), NewNode("a", (), placeholders=3))
    assert increment(for_both, groups, "plan", 0.0).reason == "1 pod, ns/pod-1 among them; 3 placeholders of the slack"
    assert increment(for_both[1:], groups, "plan", 0.0).reason == "3 placeholders of the slack"
