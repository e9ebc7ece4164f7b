"""Plans in which the scheduler may leave a planned pod without a node, by the order in which it binds."""

from __future__ import annotations

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
    RunningPods,
    Status,
    TopologySpread,
)
from solver.planning.own_way import left_without_node

ZONE, CAPACITY_TYPE, HOST = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type", "kubernetes.io/hostname"
BUDGET = Budget(deterministic_seconds=1.0)
A = PodSelector((Requirement("app", Operator.IN, ("a",)),))


def _pod(*keys: str, cpu: int = 1000, app: str = "a", skew: int = 1, **more: object) -> PodSpec:
    spreads = tuple(TopologySpread(key, skew, A) for key in keys)
    return PodSpec(((CPU, cpu),), labels=(("app", app),), topology_spread=spreads, **more)  # type: ignore[arg-type]


def _group(name: str, zone: str, capacity_type: str, cpu: int, price: float) -> NodeGroup:
    labels = {ZONE: zone, CAPACITY_TYPE: capacity_type}
    return NodeGroup(name, {CPU: cpu * 1000, PODS: 20}, price, max_size=5, labels=labels)


def _node(zone: str, capacity_type: str, cpu: int, name: str = "n", **more: object) -> Node:
    labels = {ZONE: zone, CAPACITY_TYPE: capacity_type, HOST: name}
    return Node(name, {CPU: cpu * 1000, PODS: 20}, labels, **more)  # type: ignore[arg-type]


GRID = (
    _group("g0", "za", "spot", 4, 0.36),
    _group("g3", "zb", "on-demand", 3, 0.34),
    _group("g5", "zc", "on-demand", 1, 0.57),
)
STANDING = (_node("zc", "spot", 4),)
"""With room for more than may come to its zone."""


def _solved(pods: list[PodSet], groups: tuple[NodeGroup, ...] = GRID, nodes: tuple[Node, ...] = STANDING) -> Plan:
    return solve(Problem(tuple(pods), groups, nodes), BUDGET)


def test_six_pods_over_zones_and_capacity_types_of_which_one_may_get_stuck() -> None:
    """The second pods of two nodes are not nominated beside the first ones, and one of them may fill the third zone,
    where the last on-demand pod has its node."""
    plan = _solved([PodSet("ns/a", _pod(ZONE, CAPACITY_TYPE), 6)])
    assert plan.unplaced == ()
    assert plan.certificate.cost_usd_per_hour == pytest.approx(1.27)
    assert plan.certificate.status is Status.FEASIBLE
    (risk,) = plan.may_get_stuck
    assert (risk.pod_class, risk.count) == (0, 1)
    assert risk.reason == (
        f"its spread over {CAPACITY_TYPE} and spread over {ZONE} may keep it from every node if the scheduler binds"
        " others first"
    )


@pytest.mark.parametrize(
    ("keys", "cpu"),
    [
        pytest.param((ZONE,), 1000, id="one spread has no end that is worse than others"),
        pytest.param((ZONE, HOST), 1000, id="nor has one of nodes beside it"),
    ],
)
def test_nobody_gets_stuck_where_any_order_will_do(keys: tuple[str, ...], cpu: int) -> None:
    plan = _solved([PodSet("ns/a", _pod(*keys, cpu=cpu), 6)])
    assert plan.may_get_stuck == ()
    assert plan.certificate.status is Status.OPTIMAL


def _gang_beside(priority: int) -> Plan:
    """Plan two pods for the zone with fewer, of which one is nominated at a time, and a gang for all of the other."""
    gang = PodSpec(((CPU, 2000),), node_selector=((ZONE, "zb"),))
    nodes = (_node("za", "spot", 2, "na"), _node("zb", "spot", 4, "nb", running=(RunningPods(_pod(), 1),)))
    pods = [PodSet("ns/spread", _pod(ZONE), 2, priority=priority), PodSet("ns/gang", gang, 2, gang="gang")]
    plan = _solved(pods, (), nodes)
    assert plan.unplaced == ()
    return plan


def test_pods_of_a_higher_priority_that_wait_to_be_nominated_may_take_the_room_of_a_gang() -> None:
    plan = _gang_beside(10)
    (risk,) = plan.may_get_stuck
    # Each of the two is kept out by the room that the other is nominated to.
    assert (plan.pod_classes[risk.pod_class].gang, risk.count) == ("gang", 2)
    assert risk.reason == "pods that wait for their turn, or are left out, may be bound first and keep it from its node"
    assert plan.certificate.status is Status.FEASIBLE


def test_nominations_keep_the_room_of_a_gang_from_pods_of_its_own_priority() -> None:
    plan = _gang_beside(0)
    assert (plan.may_get_stuck, plan.certificate.status) == ((), Status.OPTIMAL)


def test_pods_that_nominations_of_others_keep_out_may_take_a_node_that_one_pod_is_to_have_alone() -> None:
    """By an empty selector a spread counts nominated pods alone, so that one of the two is nominated at a time where
    nodes have different capacity types. And while no pod with anti-affinity is bound, the scheduler does not look at
    that of nominated pods."""
    alone = PodSpec(((CPU, 1000),), pod_anti_affinity=(PodAffinityTerm(HOST, PodSelector(())),))
    spread = PodSpec(((CPU, 1000),), topology_spread=(TopologySpread(CAPACITY_TYPE, 1, PodSelector(None, None)),))
    group, full = _group("g", "za", "spot", 4, 1.0), _node("za", "on-demand", 0)
    plan = _solved([PodSet("ns/alone", alone, 1), PodSet("ns/spread", spread, 2)], (group,), (full,))
    (risk,) = plan.may_get_stuck
    assert plan.pod_classes[risk.pod_class].example == "ns/alone"
    missing = replace(spread, topology_spread=(TopologySpread(CAPACITY_TYPE, 1, PodSelector(None, ())),))
    assert not _solved([PodSet("ns/alone", alone, 1), PodSet("ns/spread", missing, 2)], (group,), (full,)).may_get_stuck
    assert not _solved([PodSet("ns/alone", alone, 1), PodSet("ns/spread", spread, 2)], (group,), ()).may_get_stuck


def test_a_pod_may_wait_for_one_that_its_spread_kept_from_the_node_of_both() -> None:
    """The second of two with a spread is bound where the first was to be, and nobody comes to the node of the pod with
    affinity."""
    beside = PodSpec(
        ((CPU, 1000),),
        node_selector=((ZONE, "za"),),
        pod_affinity=(PodAffinityTerm(HOST, A),),
    )
    groups = (_group("ga", "za", "spot", 2, 1.0), _group("gb", "zb", "spot", 2, 1.0))
    plain = _pod(node_selector=((HOST, "n"),))
    pods = [PodSet("ns/plain", plain, 1), PodSet("ns/spread", _pod(ZONE), 2), PodSet("ns/beside", beside, 1)]
    plan = _solved(pods, groups, (_node("za", "spot", 1),))
    assert plan.unplaced == ()
    assert "ns/beside" in [plan.pod_classes[each.pod_class].example for each in plan.may_get_stuck]


def test_what_takes_too_much_work_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem((PodSet("ns/a", _pod(ZONE, CAPACITY_TYPE), 6),), GRID, STANDING)
    plan = solve(problem, BUDGET)
    assert left_without_node(problem, plan)
    terms = tuple(
        PodAffinityTerm(ZONE, PodSelector((Requirement("app", Operator.IN, (str(each),)),))) for each in range(50)
    )
    specs = (_pod(app=f"b{each}", pod_anti_affinity=terms) for each in range(1_000))
    running = tuple(RunningPods(each, 1) for each in specs)
    monkeypatch.setattr("solver.planning.own_way._OwnWay", None)
    assert left_without_node(replace(problem, nodes=(_node("zc", "spot", 4, running=running),)), plan) == {}


@pytest.mark.parametrize("selected", [True, False])
def test_a_daemon_set_s_pod_of_a_new_node_may_come_before_affinity_begins_a_domain(selected: bool) -> None:
    """Where a pod that the term selects runs, the others have to come to its domain."""
    term = PodAffinityTerm(ZONE, PodSelector((Requirement("app", Operator.IN, ("a", "agent")),)))
    together = _pod(pod_affinity=(term,), node_selector=((HOST, "n"),))
    elsewhere = PodSpec(((CPU, 1000),), labels=(("app", "b"),), node_selector=((ZONE, "za"),))
    agent = PodSpec(((CPU, 100),), labels=(("app", "agent" if selected else "other"),))
    pods = (PodSet("ns/together", together, 2), PodSet("ns/elsewhere", elsewhere, 1))
    plan = solve(Problem(pods, GRID[:1], STANDING, daemon_sets=(agent,)), BUDGET)
    assert plan.unplaced == ()
    risks = [(plan.pod_classes[each.pod_class].example, each.count, each.reason) for each in plan.may_get_stuck]
    reason = f"the pods that its pod affinity over {ZONE} needs may come to other nodes first"
    assert risks == ([("ns/together", 2, reason)] if selected else [])
    assert plan.certificate.status is (Status.FEASIBLE if selected else Status.OPTIMAL)


def test_a_pod_that_is_left_out_may_be_bound_first_and_keep_others_out() -> None:
    """One pod whose anti-affinity selects three others; as many as can be are served."""
    alone = _pod(app="b", pod_anti_affinity=(PodAffinityTerm(ZONE, replace(A, namespaces=("",))),))
    nodes = (_node("za", "spot", 3, "n0"), _node("za", "spot", 1, "n1"))
    here = _pod(node_selector=((HOST, "n0"),))
    plan = _solved([PodSet("ns/alone", alone, 1), PodSet("ns/a", here, 3)], (), nodes)
    assert [plan.pod_classes[each.pod_class].example for each in plan.unplaced] == ["ns/alone"]
    risks = [(plan.pod_classes[each.pod_class].example, each.count) for each in plan.may_get_stuck]
    assert risks == [("ns/a", 3)]
    assert plan.may_get_stuck[0].reason == (
        "pods that wait for their turn, or are left out, may be bound first and keep it from its node"
    )
    assert plan.certificate.status is Status.FEASIBLE
    first = PodSet("ns/a", here, 3, priority=1)
    assert not _solved([PodSet("ns/alone", alone, 1), first], (), nodes).may_get_stuck
