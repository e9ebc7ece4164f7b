"""Nodes that must go under gangs that ask for one topology domain: alone, with their gang, or with their whole domain;
and spares."""

from __future__ import annotations

from dataclasses import replace

from solver import Budget, ConsolidationProblem, DisruptionReason, NodeGroup, PodSet, PodSpec, StandingNode, consolidate
from solver.consolidation.model import ConsolidationPlan
from tests.support.solver.consolidation_check import check_consolidation
from tests.support.solver.gangs import in_one_domain
from tests.support.solver.standing import standing_node

BUDGET = Budget(deterministic_seconds=1.0)
RACK = "rack"


def rack(name: str, most: int, target: int = 0, *, fate: str = "", spares: int = 0) -> NodeGroup:
    return NodeGroup(
        name,
        {"cpu": 4000, "pods": 110},
        1.0,
        labels={RACK: name},
        max_size=most,
        target_size=target,
        shared_fate=fate,
        spares=spares,
    )


def gang(name: str, count: int) -> PodSet:
    return in_one_domain(name, PodSpec((("cpu", 2000),), namespace="ns"), count, RACK)


def single(count: int = 1) -> PodSet:
    return PodSet("ns/single", PodSpec((("cpu", 1000),)), count)


def must_go(node: StandingNode) -> StandingNode:
    return replace(node, must_go=DisruptionReason.INTERRUPTED, takes_pods=False)


def spare(name: str, group: NodeGroup) -> StandingNode:
    return replace(standing_node(name, group), spare=True)


def planned(nodes: list[StandingNode], *groups: NodeGroup) -> ConsolidationPlan:
    problem = ConsolidationProblem(tuple(nodes), groups)
    plan = consolidate(problem, BUDGET)
    check_consolidation(problem, plan)
    return plan


def steps(plan: ConsolidationPlan) -> list[tuple[tuple[str, ...], dict[str, int]]]:
    """Return which nodes go and which come, by step."""
    return [(each.nodes, {i.node_group: i.delta for i in each.plan.increments}) for each in plan.steps]


def a_gang_on_two(group: NodeGroup) -> list[StandingNode]:
    """Of which the first must go."""
    return [must_go(standing_node("a", group, (gang("g", 2),))), standing_node("b", group, (gang("g", 2),))]


def test_only_the_node_that_must_go_is_replaced_where_its_domain_has_room() -> None:
    r1 = rack("r1", 3, 2)
    assert steps(planned(a_gang_on_two(r1), r1, rack("r2", 9))) == [(("a",), {"r1": 1})]


def test_its_gang_moves_whole_where_its_domain_has_none() -> None:
    r1 = rack("r1", 2, 2)
    assert steps(planned(a_gang_on_two(r1), r1, rack("r2", 9))) == [(("a", "b"), {"r2": 2})]


def test_a_gang_with_a_pod_on_a_node_that_is_kept_does_not_keep_the_other() -> None:
    r1 = rack("r1", 3, 2)
    nodes = a_gang_on_two(r1)
    plan = planned([nodes[0], replace(nodes[1], kept="its pod has no controller")], r1)
    assert steps(plan) == [(("a",), {"r1": 1})]


def test_a_gang_that_asks_for_no_domain_loses_no_more_than_the_node() -> None:
    r1 = rack("r1", 3, 2, fate=RACK)
    apart = replace(single(2), gang="g")
    nodes = [must_go(standing_node("a", r1, (apart,))), standing_node("b", r1, (apart, apart))]
    assert steps(planned(nodes, r1)) == [(("a",), {"r1": 1})]


def test_the_whole_domain_is_replaced_at_once_where_its_nodes_share_their_fate() -> None:
    r1 = rack("r1", 9, 3, fate=RACK)
    nodes = [*a_gang_on_two(r1), standing_node("c", r1, (single(3),))]
    plan = planned(nodes, r1, rack("r2", 9, fate=RACK, spares=1))
    ((first, came), *_) = steps(plan)
    assert first == ("a", "b", "c")
    assert sum(came.values()) >= 3


def test_a_node_of_it_that_no_gang_needs_goes_alone() -> None:
    r1 = rack("r1", 9, 3, fate=RACK)
    nodes = a_gang_on_two(r1)
    nodes = [replace(nodes[0], must_go=None), nodes[1], must_go(standing_node("c", r1, (single(4),)))]
    assert steps(planned(nodes, r1)) == [(("c",), {"r1": 1})]


def test_where_the_domain_cannot_be_replaced_its_gang_is_and_then_the_node() -> None:
    r1 = rack("r1", 3, 3, fate=RACK)
    nodes = [*a_gang_on_two(r1), standing_node("c", r1, (single(4),))]
    assert steps(planned(nodes, r1, rack("r2", 2))) == [(("a", "b"), {"r2": 2})]
    grown = replace(r1, max_size=4)
    assert steps(planned(nodes, grown)) == [(("a",), {"r1": 1})]


def test_a_spare_takes_the_pods_of_its_domain_first() -> None:
    for fate in ("", RACK):
        r1 = rack("r1", 9, 3, fate=fate, spares=1)
        ((gone, came),) = steps(planned([*a_gang_on_two(r1), spare("s", r1)], r1, rack("r2", 9)))
        assert (gone, came) == (("a",), {})


def test_a_spare_is_neither_taken_away_nor_filled_otherwise() -> None:
    r1 = rack("r1", 9, 3, spares=1)
    nodes = [
        standing_node("a", r1, (gang("g", 2),)),
        must_go(standing_node("b", r1, (single(2),))),
        spare("s", r1),
    ]
    plan = planned(nodes, r1)
    assert steps(plan) == [(("b",), {"r1": 1})]
    assert plan.stays["s"] == "it is a spare of its topology domain"


def test_the_spares_of_a_domain_go_with_it_and_come_with_the_next() -> None:
    r1, r2 = rack("r1", 4, 4, fate=RACK, spares=1), rack("r2", 9, fate=RACK, spares=1)
    nodes = a_gang_on_two(r1)
    small = replace(spare("s", r1), node=replace(spare("s", r1).node, free={"cpu": 1000, "pods": 10}))
    plan = planned([*nodes, small, standing_node("c", r1, (gang("g", 2),))], r1, r2)
    ((gone, came), *_) = steps(plan)
    assert (sorted(gone), came) == (["a", "b", "c", "s"], {"r2": 4})
