"""Consolidation of small clusters: whatever they are, the independent checker passes the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import (
    Budget,
    ConsolidationProblem,
    DisruptionReason,
    Limit,
    Node,
    NodeGroup,
    PodSet,
    PodSpec,
    ProblemError,
    StandingNode,
    Taint,
    TaintEffect,
    consolidate,
)
from tests.support.solver.consolidation_check import check_consolidation, consolidation_faults
from tests.support.solver.standing import Draw, random_cluster, standing_node

BUDGET = Budget(deterministic_seconds=1)
LARGE = NodeGroup("large", {"cpu": 8000, "pods": 50}, 0.4)
SMALL = NodeGroup("small", {"cpu": 2000, "pods": 50}, 0.12)


def pods(cpu: int, count: int, **more: object) -> PodSet:
    return PodSet("shop/web", PodSpec((("cpu", cpu),), namespace="shop"), count, **more)  # type: ignore[arg-type]


def cluster(
    *nodes: StandingNode, groups: tuple[NodeGroup, ...] = (LARGE, SMALL), **more: object
) -> ConsolidationProblem:
    sized = tuple(replace(g, target_size=sum(n.node_group == g.id for n in nodes)) for g in groups)
    return ConsolidationProblem(nodes, sized, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [False, True], ids=["plain", "rules"])
@pytest.mark.parametrize(
    "start", [0, 10, *(pytest.param(start, marks=pytest.mark.long("other seeds")) for start in range(20, 60, 10))]
)
def test_the_checker_passes_every_plan(start: int, *, rules: bool) -> None:
    for seed in range(start, start + 10):
        problem = random_cluster(seed, Draw(rules=rules))
        plan = consolidate(problem, BUDGET)
        assert list(consolidation_faults(problem, plan)) == [], seed
        assert plan.least_usd_per_hour <= plan.cost_after_usd_per_hour + 1e-6, seed


@pytest.mark.parametrize("rules", [False, True], ids=["plain", "rules"])
@pytest.mark.parametrize("start", [100, pytest.param(104, marks=pytest.mark.long("other seeds"))])
def test_the_checker_passes_plans_of_many_small_steps(start: int, *, rules: bool) -> None:
    for seed in range(start, 104 if start == 100 else 112):
        problem = replace(random_cluster(seed, Draw(nodes=60, rules=rules)), most_nodes_per_step=4)
        plan = consolidate(problem, BUDGET)
        assert list(consolidation_faults(problem, plan)) == [], seed


def test_equal_problems_get_equal_plans() -> None:
    problem = replace(random_cluster(7, Draw(nodes=40, obstacles=False)), most_nodes_per_step=5)
    first, second = consolidate(problem, BUDGET), consolidate(problem, BUDGET)
    assert first.steps
    assert [step.nodes for step in first.steps] == [step.nodes for step in second.steps]
    assert replace(first, elapsed_seconds=0, steps=()) == replace(second, elapsed_seconds=0, steps=())


def test_an_empty_node_goes_and_its_group_stays_at_its_minimum() -> None:
    groups = (replace(LARGE, min_size=1), SMALL)
    problem = cluster(standing_node("a", LARGE), standing_node("b", LARGE), groups=groups)
    plan = consolidate(problem, BUDGET)
    assert [(step.reason, step.nodes) for step in plan.steps] == [(DisruptionReason.EMPTY, ("a",))]
    assert (plan.cost_after_usd_per_hour, plan.least_usd_per_hour) == (0.4, 0.4)
    assert plan.stays == {"b": "node group large is at its minimum size"}


def test_three_nodes_are_replaced_by_one_larger() -> None:
    nodes = [standing_node(name, SMALL, (pods(1900, 1),)) for name in "abcd"]
    plan = consolidate(cluster(*nodes), BUDGET)
    (step,) = plan.steps
    assert (step.reason, step.nodes) == (DisruptionReason.UNDERUTILIZED, ("a", "b", "c", "d"))
    assert step.plan.increments[0].node_group == "large"
    assert step.saving_usd_per_hour == pytest.approx(0.08)
    assert plan.proven_saving_usd_per_hour == pytest.approx(0.08)


def test_a_volume_that_pods_share_takes_one_attachment_of_their_node() -> None:
    disk = "attachable-volumes-csi-d"
    group = NodeGroup("g", {"cpu": 4000, "pods": 50, disk: 1}, 0.4)
    spec = PodSpec((("attachable-volumes-csi-d", 1), ("cpu", 1000)), shared_volumes=((disk, "v"),))

    def standing(name: str, count: int) -> StandingNode:
        free = {"cpu": 4000 - 1000 * count, "pods": 50 - count, disk: 0}
        node = Node(name, free, volumes=frozenset({(disk, "v")}))
        return StandingNode(node, "g", (PodSet(f"shop/{name}", spec, count),))

    plan = consolidate(cluster(standing("a", 1), standing("b", 3), groups=(group,)), BUDGET)
    assert plan.least_usd_per_hour == plan.least_if_all_moved_usd_per_hour == 0.4
    (step,) = plan.steps
    assert (step.nodes, step.plan.increments) == (("a",), ())
    assert plan.cost_after_usd_per_hour == 0.4


def test_fewer_nodes_at_the_same_price_are_no_saving() -> None:
    same = replace(LARGE, price_usd_per_hour=0.48)
    nodes = [standing_node(name, SMALL, (pods(1900, 1),)) for name in "abcd"]
    assert consolidate(cluster(*nodes, groups=(same, SMALL)), BUDGET).steps == ()


def test_a_better_weight_that_has_room_gets_its_pods_back() -> None:
    better = replace(LARGE, weight=50, price_usd_per_hour=0.9)
    nodes = [standing_node(name, SMALL, (pods(1900, 1),)) for name in "abcd"]
    limit = Limit("no more", {"nodes": 0}, {}, frozenset({"large"}))
    assert consolidate(cluster(*nodes, groups=(better, SMALL), limits=(limit,)), BUDGET).steps == ()
    plan = consolidate(cluster(*nodes, groups=(better, SMALL)), BUDGET)
    (step,) = plan.steps
    assert step.reason is DisruptionReason.BETTER_WEIGHT
    assert step.saving_usd_per_hour == pytest.approx(-0.42)


@pytest.mark.parametrize("marked", ["a", "b", "ab"])
def test_a_taint_that_is_no_more_than_a_wish_prevents_no_move(marked: str) -> None:
    wish = (Taint("DeletionCandidateOfClusterAutoscaler", TaintEffect.PREFER_NO_SCHEDULE),)
    nodes = [standing_node(name, LARGE, (pods(1300, 3),)) for name in "ab"]
    tainted = [replace(n, node=replace(n.node, taints=wish)) if n.node.name in marked else n for n in nodes]
    problem = cluster(*tainted, replace(standing_node("kept", SMALL), kept="an annotation"))
    plan = consolidate(problem, BUDGET)
    assert [len(step.nodes) for step in plan.steps] == [1]
    assert plan.cost_after_usd_per_hour == pytest.approx(0.52)
    assert list(consolidation_faults(problem, plan)) == []


def test_a_least_saving_for_each_pod() -> None:
    nodes = [standing_node(name, SMALL, (pods(190, 10),)) for name in "abcd"]
    assert consolidate(cluster(*nodes, least_saving_usd_per_hour_per_pod=0.001), BUDGET).steps
    plan = consolidate(cluster(*nodes, least_saving_usd_per_hour_per_pod=0.1), BUDGET)
    assert plan.steps == ()


def test_kept_nodes_and_their_gangs_stay() -> None:
    kept = replace(standing_node("kept", LARGE, (pods(1000, 1, gang="red"),)), kept="its pod has no controller")
    other = standing_node("other", LARGE, (pods(1000, 1, gang="red"),))
    free = standing_node("free", LARGE, (pods(1000, 1),))
    plan = consolidate(cluster(kept, other, free), BUDGET)
    assert [step.nodes for step in plan.steps] == [("free",)]
    assert plan.stays == {
        "kept": "its pod has no controller",
        "other": "its pods are of gang red with pods on a node that stays",
    }
    assert plan.least_usd_per_hour == pytest.approx(0.8)
    assert plan.least_if_all_moved_usd_per_hour == pytest.approx(0.24)


def test_a_gang_moves_whole() -> None:
    nodes = [standing_node(name, LARGE, (pods(1000, 1, gang="red"),)) for name in "ab"]
    plan = consolidate(cluster(*nodes), BUDGET)
    (step,) = plan.steps
    assert step.nodes == ("a", "b")
    assert step.pods_moved == 2


def test_what_must_go_is_replaced_at_any_price() -> None:
    going = replace(
        standing_node("going", SMALL, (pods(1900, 1),)), must_go=DisruptionReason.INTERRUPTED, takes_pods=False
    )
    plan = consolidate(cluster(going, groups=(LARGE, replace(SMALL, max_size=1))), BUDGET)
    (step,) = plan.steps
    assert step.reason is DisruptionReason.INTERRUPTED
    assert step.saving_usd_per_hour == pytest.approx(-0.28)
    stuck = consolidate(cluster(going, groups=(replace(SMALL, max_size=1),)), BUDGET)
    assert stuck.steps == ()
    assert "do not all fit elsewhere" in stuck.stays["going"]


def test_new_nodes_come_before_old_ones_go() -> None:
    nodes = [standing_node(name, SMALL, (pods(1900, 1),)) for name in "abcd"]
    limit = Limit("all", {"cpu": 12000}, {"cpu": 8000})
    assert consolidate(cluster(*nodes, limits=(limit,)), BUDGET).steps == ()
    assert consolidate(cluster(*nodes, limits=(replace(limit, maxima={"cpu": 16000}),)), BUDGET).steps


def test_the_checker_finds_what_is_wrong() -> None:
    nodes = [standing_node(name, SMALL, (pods(1900, 1),)) for name in "abcd"]
    problem = cluster(*nodes)
    plan = consolidate(problem, BUDGET)
    check_consolidation(problem, plan)
    (step,) = plan.steps
    dearer = replace(plan, steps=(replace(step, saving_usd_per_hour=0.2),))
    assert any("its saving" in fault for fault in consolidation_faults(problem, dearer))
    kept = replace(problem, nodes=(replace(nodes[0], kept="so"), *nodes[1:]))
    assert any("is kept" in fault for fault in consolidation_faults(kept, plan))
    minimum = replace(problem, node_groups=(LARGE, replace(SMALL, target_size=4, min_size=2)))
    assert any("fewer than 2" in fault for fault in consolidation_faults(minimum, plan))
    fewer = replace(plan, steps=(replace(step, nodes=step.nodes[1:]),))
    assert any("moves 4 pods, not the 3" in fault for fault in consolidation_faults(problem, fewer))
    limited = replace(problem, limits=(Limit("all", {"cpu": 12000}, {"cpu": 8000}),))
    assert any("at most 12000 allowed" in fault for fault in consolidation_faults(limited, plan))
    least = replace(problem, least_saving_usd_per_hour_per_pod=0.1)
    assert any("at least 0.1 each" in fault for fault in consolidation_faults(least, plan))


def test_every_fault_is_named_at_once() -> None:
    wrong = replace(standing_node("a", SMALL), node_group="gone", must_go=DisruptionReason.EMPTY)
    problem = ConsolidationProblem(
        (wrong, standing_node("a", LARGE)), (LARGE,), most_nodes_per_step=0, least_saving_usd_per_hour_per_pod=-1.0
    )
    with pytest.raises(ProblemError) as raised:
        consolidate(problem, BUDGET)
    assert len(raised.value.problems) == 5
