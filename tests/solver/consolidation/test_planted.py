"""Clusters whose best consolidation is known: nodes that are full, spread out or left by their pods since."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from solver import (
    Budget,
    ConsolidationProblem,
    DisruptionReason,
    Limit,
    NodeGroup,
    PodSet,
    PodSpec,
    StandingNode,
    Taint,
    TopologySpread,
    consolidate,
)
from solver.model import PodSelector, TaintEffect
from tests.support.solver.consolidation_check import check_consolidation
from tests.support.solver.standing import standing_node

BUDGET = Budget(deterministic_seconds=2)
LARGE = NodeGroup("large", {"cpu": 16000, "pods": 110}, 0.64)
MIDDLE = NodeGroup("middle", {"cpu": 8000, "pods": 110}, 0.36)
SIZES = (500, 1000, 1500, 2000, 4000)


def spec(cpu: int) -> PodSpec:
    return PodSpec((("cpu", cpu),), namespace="shop")


def full(rng: random.Random) -> list[int]:
    """Return pods that fill a large node."""
    found: list[int] = []
    while sum(found) < 16000:
        found.append(min(rng.choice(SIZES), 16000 - sum(found)))
    return found


def problem(nodes: list[tuple[NodeGroup, list[int]]], groups: tuple[NodeGroup, ...]) -> ConsolidationProblem:
    standing = []
    for number, (group, held) in enumerate(nodes):
        sets = tuple(PodSet(f"shop/{cpu}", spec(cpu), count) for cpu, count in sorted(Counter(held).items()))
        standing.append(standing_node(f"n{number:03}", group, sets))
    return sized(tuple(standing), groups)


def sized(nodes: tuple[StandingNode, ...], groups: tuple[NodeGroup, ...]) -> ConsolidationProblem:
    sizes = Counter(node.node_group for node in nodes)
    return ConsolidationProblem(nodes, tuple(replace(group, target_size=sizes[group.id]) for group in groups))


@pytest.mark.parametrize("seed", range(3))
def test_pods_on_twice_the_nodes_come_back_to_the_nodes_that_they_fill(seed: int) -> None:
    rng = random.Random(seed)
    packed = [full(rng) for _ in range(10)]
    spread: list[tuple[NodeGroup, list[int]]] = []
    for held in packed:
        rng.shuffle(held)
        spread += [(LARGE, held[::2]), (LARGE, held[1::2])]
    asked = problem(spread, (LARGE, MIDDLE))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert plan.least_usd_per_hour == pytest.approx(6.4)
    assert plan.cost_after_usd_per_hour <= 6.4 + 0.64  # one node more than a perfect packing


def test_a_wrong_shape_is_replaced() -> None:
    rng = random.Random(4)
    wrong = replace(LARGE, id="wrong", price_usd_per_hour=1.0)
    asked = problem([(wrong, full(rng)) for _ in range(8)], (LARGE, wrong))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert plan.cost_after_usd_per_hour == plan.least_usd_per_hour == pytest.approx(8 * 0.64)


LEAN = NodeGroup("lean", {"cpu": 16000, "memory": 16, "pods": 110}, 0.6)
FAT = NodeGroup("fat", {"cpu": 16000, "memory": 96, "pods": 110}, 0.8)
EVEN = NodeGroup("even", {"cpu": 16000, "memory": 56, "pods": 110}, 0.64)


def one_sided(rng: random.Random, count: int) -> tuple[StandingNode, ...]:
    """Return nodes full of pods that need little memory, and as many full of pods that need much: two of them fill two
    even ones."""
    found = []
    for number in range(count):
        for group, per_core in ((LEAN, 1), (FAT, 6)):
            cores: list[int] = []
            while sum(cores) < 16:
                cores.append(min(rng.choice((1, 1, 2, 4)), 16 - sum(cores)))
            sets = (
                PodSet(f"shop/{each}-{group.id}", PodSpec((("cpu", each * 1000), ("memory", each * per_core))), pods)
                for each, pods in sorted(Counter(cores).items())
            )
            found.append(standing_node(f"{group.id}-{number:03}", group, tuple(sets)))
    return tuple(found)


def test_full_nodes_of_two_shapes_become_nodes_of_a_third() -> None:
    """No node can be replaced alone for less, nor can those of one shape."""
    asked = sized(one_sided(random.Random(7), 60), (LEAN, FAT, EVEN))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert plan.least_usd_per_hour == pytest.approx(120 * 0.64)
    assert plan.saving_usd_per_hour >= 0.9 * plan.proven_saving_usd_per_hour


def test_sizes_and_limits_hold_where_all_is_packed_anew() -> None:
    """A third of the nodes of one shape have to stay, and there may be 30 new nodes beside those that go, no more."""
    asked = sized(one_sided(random.Random(8), 60), (replace(LEAN, min_size=20), FAT, EVEN))
    limit = Limit("cpu", {"cpu": 16000 * 150}, {"cpu": 16000 * 120})
    asked = replace(asked, limits=(limit,))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    gone = {name for step in plan.steps for name in step.nodes}
    left = Counter(each.node_group for each in asked.nodes if each.node.name not in gone)
    assert left["lean"] >= 20
    assert plan.saving_usd_per_hour >= 0.9 * plan.proven_saving_usd_per_hour > 4


def test_pods_packed_anew_stay_where_they_may_run_and_in_their_zones() -> None:
    """There are as many pods in one zone as in the other, and none tolerates the cheapest nodes' taint."""
    spread = (TopologySpread("zone", 1, PodSelector((), ("shop",))),)
    zones = tuple(replace(each, id=f"{each.id}-{z}", labels={"zone": z}) for each in (LEAN, FAT, EVEN) for z in "ab")
    groups = {group.id: group for group in zones}
    nodes = []
    for number, each in enumerate((*one_sided(random.Random(9), 30), *one_sided(random.Random(9), 30))):
        zone = "ab"[number // 60]
        pods = (replace(p, spec=replace(p.spec, namespace="shop", topology_spread=spread)) for p in each.pods)
        nodes.append(standing_node(f"{each.node.name}-{zone}", groups[f"{each.node_group}-{zone}"], tuple(pods)))
    tainted = replace(EVEN, id="tainted", price_usd_per_hour=0.1, taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),))
    asked = sized(tuple(nodes), (*zones, tainted))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert plan.saving_usd_per_hour >= 0.8 * plan.proven_saving_usd_per_hour


def test_three_nodes_become_two_of_other_shapes() -> None:
    """A combination that no search over single nodes finds: none of them is replaced for less."""
    nodes = [(MIDDLE, [4000, 4000])] * 3
    two = replace(LARGE, id="two", allocatable={"cpu": 24000, "pods": 110}, price_usd_per_hour=0.9)
    plan = consolidate(problem(nodes, (MIDDLE, two)), BUDGET)
    (step,) = plan.steps
    assert (len(step.nodes), step.plan.increments[0].node_group) == (3, "two")
    assert plan.proven_saving_usd_per_hour == pytest.approx(plan.saving_usd_per_hour)


def test_a_perfect_packing_stays_as_it_is() -> None:
    rng = random.Random(5)
    plan = consolidate(problem([(LARGE, full(rng)) for _ in range(10)], (LARGE, MIDDLE)), BUDGET)
    assert plan.steps == ()
    assert plan.proven_saving_usd_per_hour == 0


def test_a_consolidated_cluster_is_left_alone() -> None:
    """What is left of a plan's steps is not worth a step of the next one that opens nodes."""
    rng = random.Random(6)
    nodes = [(LARGE, [cpu for cpu in full(rng) if rng.random() < 0.5]) for _ in range(12)]
    asked = problem(nodes, (LARGE, MIDDLE))
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert plan.saving_usd_per_hour >= 0.85 * plan.proven_saving_usd_per_hour


def test_pods_spread_over_zones_stay_in_them() -> None:
    zones = tuple(replace(LARGE, id=f"zone-{z}", labels={"zone": z}) for z in "ab")
    spreading = replace(spec(1000), topology_spread=(TopologySpread("zone", 1, PodSelector((), ("shop",))),))
    pods = (PodSet("shop/web", spreading, 2),)
    nodes = tuple(standing_node(f"{g.id}-{n}", g, pods) for g in zones for n in range(4))
    asked = sized(nodes, zones)
    plan = consolidate(asked, BUDGET)
    check_consolidation(asked, plan)
    assert {step.reason for step in plan.steps} == {DisruptionReason.UNDERUTILIZED}
    assert plan.cost_after_usd_per_hour == pytest.approx(2 * 0.64)


def test_nodes_of_a_lower_weight_go_first_where_a_higher_one_has_room() -> None:
    better = replace(LARGE, id="better", weight=50)
    nodes = (
        standing_node("high", better, (PodSet("shop/web", spec(1000), 4),)),
        *(standing_node(f"low-{n}", LARGE, (PodSet("shop/web", spec(1000), 6),)) for n in range(2)),
    )
    plan = consolidate(sized(nodes, (LARGE, better)), BUDGET)
    assert [step.nodes for step in plan.steps] == [("low-0", "low-1")]
    assert [(tier.weight, tier.cost_usd_per_hour) for tier in plan.tiers] == [(50, 0.64), (0, 0.0)]
