"""Plans with a node or two more: without them some orders leave a pod without a node, or no place is found for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from solver import Budget, solve
from solver.model import (
    CPU,
    PODS,
    Node,
    NodeGroup,
    Operator,
    Plan,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Status,
    TopologySpread,
)
from solver.model.budget import Interruption
from solver.planning.own_way import left_without_node

ZONE, CAPACITY_TYPE, HOST = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type", "kubernetes.io/hostname"
BUDGET = Budget(deterministic_seconds=1.0)


def _apps(*names: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, names),))


def _pod(*keys: str, cpu: int = 1000, app: str = "a", **more: object) -> PodSpec:
    spreads = tuple(TopologySpread(key, 1, _apps("a", "b")) for key in keys)
    return PodSpec(((CPU, cpu),), labels=(("app", app),), topology_spread=spreads, **more)  # type: ignore[arg-type]


def _groups(*cells: tuple[str, str, int, float]) -> tuple[NodeGroup, ...]:
    """Return a group of at most five nodes for each: zone, capacity type, CPUs, price."""
    return tuple(
        NodeGroup(f"g{i}", {CPU: cpu * 1000, PODS: 20}, price, max_size=5, labels={ZONE: zone, CAPACITY_TYPE: kind})
        for i, (zone, kind, cpu, price) in enumerate(cells)
    )


def _node(zone: str, capacity_type: str, cpu: int) -> Node:
    return Node("n", {CPU: cpu * 1000, PODS: 20}, {ZONE: zone, CAPACITY_TYPE: capacity_type, HOST: "n"})


def _apart(app: str) -> PodAffinityTerm:
    return PodAffinityTerm(HOST, replace(_apps(app), namespaces=("",)))


OVER_BOTH = PodSet("ns/a", _pod(ZONE, CAPACITY_TYPE), 3)
THREE = Problem(
    (OVER_BOTH,),
    _groups(("zc", "on-demand", 2, 0.3), ("zc", "spot", 1, 0.4), ("za", "spot", 2, 0.2)),
    (_node("za", "on-demand", 1),),
)
"""Two pods on one node of zc and one on a spot node of za cost 0.5; of which some may get stuck."""


def _with_at_most(problem: Problem, sizes: Sequence[int]) -> Problem:
    groups = zip(problem.node_groups, sizes, strict=True)
    return replace(problem, node_groups=tuple(replace(group, max_size=size) for group, size in groups))


def _holds(problem: Problem, plan: Plan) -> bool:
    return not plan.may_get_stuck and not left_without_node(problem, plan)


def test_serving_for_sure_comes_before_cost() -> None:
    plan = solve(THREE, BUDGET)
    assert _holds(THREE, plan)
    assert plan.unplaced == ()
    certificate = plan.certificate
    assert certificate.cost_usd_per_hour == pytest.approx(0.8)
    assert certificate.lower_bound_usd_per_hour == pytest.approx(0.5), "plans that may get stuck cost as little"
    assert certificate.status is Status.FEASIBLE


def test_another_plan_may_cost_the_same() -> None:
    groups = _groups(("za", "on-demand", 2, 0.7), ("za", "spot", 2, 0.6), ("zb", "spot", 2, 0.6))
    problem = Problem((replace(OVER_BOTH, count=5),), groups)
    plan = solve(problem, BUDGET)
    assert _holds(problem, plan)
    assert plan.certificate.cost_usd_per_hour == plan.certificate.lower_bound_usd_per_hour == pytest.approx(1.9)


def test_who_may_get_stuck_is_named_where_there_can_be_no_node_more() -> None:
    problem = _with_at_most(THREE, (1, 0, 1))
    plan = solve(problem, BUDGET)
    assert plan.certificate.cost_usd_per_hour == pytest.approx(0.5)
    assert {each.pod_class: each.count for each in plan.may_get_stuck} == left_without_node(problem, plan) != {}


def test_no_other_plan_is_made_once_time_is_up() -> None:
    """The plan is as good as what is found at once, whatever that is, and says whether its pods may get stuck."""
    stop = Interruption()
    stop.interrupt()
    plan = solve(THREE, replace(BUDGET, interruption=stop))
    assert bool(plan.may_get_stuck) is bool(left_without_node(THREE, plan))


SERVED_LATER = (
    pytest.param(
        (
            PodSet("ns/a", _pod(CAPACITY_TYPE, cpu=2000, pod_anti_affinity=(_apart("a"),)), 3),
            PodSet("ns/b", _pod(app="b", node_selector=((ZONE, "za"),)), 1),
        ),
        _groups(("za", "spot", 2, 0.7), ("za", "on-demand", 1, 0.3)),
        _node("zb", "spot", 2),
        id="no node of another capacity type is opened",
    ),
    pytest.param(
        (
            PodSet("ns/a", _pod(ZONE, cpu=2000), 2),
            PodSet("ns/b", _pod(app="b", pod_anti_affinity=(_apart("b"),)), 4),
        ),
        _groups(("za", "spot", 1, 0.5), ("zb", "spot", 1, 0.9), ("zb", "on-demand", 3, 0.6)),
        _node("zb", "on-demand", 2),
        id="no node of another zone is opened",
    ),
)


@pytest.mark.parametrize(("pods", "groups", "node"), SERVED_LATER)
def test_pods_are_served_that_no_place_was_found_for(
    pods: tuple[PodSet, ...], groups: tuple[NodeGroup, ...], node: Node
) -> None:
    problem = Problem(pods, groups, (node,))
    plan = solve(problem, BUDGET)
    assert plan.unplaced == ()
    assert _holds(problem, plan)
