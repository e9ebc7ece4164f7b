"""Where not all patterns are at hand, preferences are given up as far as limits ask for it, and no pod is left out for
their sake."""

from __future__ import annotations

import pytest

from solver import Budget, Limit, NodeGroup, PodSet, PodSpec, Problem, Status, Taint, TaintEffect, solve
from solver.model import (
    HOSTNAME,
    Node,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    Requirement,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.planning import search

_SOFT = Taint("soft", TaintEffect.PREFER_NO_SCHEDULE)
_NODE = {"cpu": 4000, "pods": 110}


def test_pods_that_a_limit_keeps_from_what_they_prefer_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENUMERATE", 0)
    problem = Problem(
        (PodSet("x/a", PodSpec((("cpu", 100),)), 1000),),
        (NodeGroup("main", _NODE, 0.1, weight=50), NodeGroup("soft", _NODE, 0.1, taints=(_SOFT,), weight=10)),
        limits=(Limit("main", {"cpu": 8000}, node_groups=frozenset({"main"})),),
    )
    plan = solve(problem, Budget(deterministic_seconds=2))
    assert plan.unplaced == ()
    assert [relaxed.count for relaxed in plan.relaxed] == [1000 - 80]
    assert plan.certificate.status is Status.OPTIMAL


def test_only_what_a_group_has_no_room_for_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENUMERATE", 0)
    sizes = {f"x/{cpu}": cpu for cpu in (300, 700, 900)}
    problem = Problem(
        tuple(PodSet(name, PodSpec((("cpu", cpu),)), 40) for name, cpu in sizes.items()),
        (NodeGroup("main", _NODE, 0.1, max_size=5), NodeGroup("soft", _NODE, 0.1, taints=(_SOFT,))),
    )
    plan = solve(problem, Budget(deterministic_seconds=2))
    assert plan.unplaced == ()
    assert sum(i.delta for i in plan.increments if i.node_group == "main") == 5


def test_an_empty_preference_asks_for_nothing() -> None:
    """And is none that is given up before others, for the checker either."""
    zone = NodeSelectorTerm((Requirement("zone", Operator.IN, ("a",)),))
    spec = PodSpec((("cpu", 1),), preferred_nodes=(PreferredNodes(1, NodeSelectorTerm()), PreferredNodes(1, zone)))
    node = Node("n", {"cpu": 1, "pods": 1}, {"zone": "b"})
    plan = solve(Problem((PodSet("x/a", spec, 1),), (), (node,)), Budget(deterministic_seconds=1))
    assert plan.unplaced == ()
    assert [(each.count, each.preferences) for each in plan.relaxed] == [(1, ("preferred node affinity on zone",))]


@pytest.mark.parametrize(("limit_milli_cpu", "given_up"), [(8000, 0), (16000, 2)])
def test_a_preferred_spread_counts_no_domain_that_a_limit_closes(limit_milli_cpu: int, given_up: int) -> None:
    selector = PodSelector((Requirement("app", Operator.IN, ("x",)),), ("",))
    spread = TopologySpread("zone", 1, selector, when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY)
    problem = Problem(
        (PodSet("x/a", PodSpec((("cpu", 3000),), labels=(("app", "x"),), topology_spread=(spread,)), 2),),
        (
            NodeGroup("large", {"cpu": 16000, "pods": 110}, 9.0, {"zone": "a"}),
            NodeGroup("small", {"cpu": 8000, "pods": 110}, 0.1, {"zone": "b"}),
        ),
        limits=(Limit("both", {"cpu": limit_milli_cpu}),),
    )
    plan = solve(problem, Budget(deterministic_seconds=1))
    assert plan.unplaced == ()
    assert [each.delta for each in plan.increments] == [1]
    assert sum(each.count for each in plan.relaxed) == given_up


def test_a_pod_is_planned_that_would_rather_be_with_one_of_a_gang_that_cannot_be_whole() -> None:
    """What a class shares with one that no plan serves is no way of serving it."""
    fond = PodSpec(preferred_pods=(PreferredPods(10, PodAffinityTerm(HOSTNAME, PodSelector(())), anti=False),))
    nowhere = PodSpec(pod_affinity=(PodAffinityTerm(HOSTNAME, PodSelector(None)),))
    sets = (PodSet("x/a", fond, 1, gang="x/g"), PodSet("x/b", nowhere, 1, gang="x/g"), PodSet("x/c", fond, 1))
    plan = solve(Problem(sets, (NodeGroup("g", _NODE, 0.1),)), Budget(deterministic_seconds=2))
    assert sum(each.count for each in plan.unplaced) == 2
    assert [plan.pod_classes[index].gang for node in plan.nodes for index in node.pods] == [None]
