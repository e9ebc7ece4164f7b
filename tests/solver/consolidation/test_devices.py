"""Consolidation of pods with claims on devices: each finds its devices where it goes while the one before it still has
its own, whatever the steps are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from solver import (
    Budget,
    ConsolidationPlan,
    ConsolidationProblem,
    DisruptionReason,
    NodeGroup,
    PodSet,
    PodSpec,
    StandingNode,
    consolidate,
)
from solver.consolidation.cluster import step_node_name
from solver.consolidation.model import ConsolidationStep
from solver.model import PodClass
from tests.support.solver.consolidation_check import consolidation_faults
from tests.support.solver.device_examples import claim, devices
from tests.support.solver.standing import Draw, random_cluster, standing_node

BUDGET = Budget(deterministic_seconds=1)
WITH_TWO = NodeGroup("two", {"cpu": 8000, "pods": 50}, 1.0, max_size=9, devices=(devices("gpu", count=2),))


def asked(pods: PodSet | PodClass) -> int:
    """Return how many devices one of these pods claims."""
    return sum(way.count for each in pods.spec.claims for request in each.requests for way in request.alternatives)


def claimed(node: StandingNode) -> int:
    return sum(asked(each) * each.count for each in node.pods)


def with_devices(node: StandingNode, count: int) -> StandingNode:
    """Return the node with so many devices, of which its pods have theirs."""
    taken = claimed(node)
    return replace(node, node=replace(node.node, devices=(devices("gpu", count=count - taken, taken=taken),)))


def equipped(seed: int) -> ConsolidationProblem:
    """Return a random cluster in which some pods claim devices, and some nodes and groups have some to spare."""
    problem, rng = random_cluster(seed, Draw()), random.Random(seed)
    claims: dict[PodSpec, PodSpec] = {}

    def claiming(pods: PodSet) -> PodSet:
        if pods.spec not in claims:
            count = rng.choice([0, 1, 1, 2])
            claims[pods.spec] = replace(pods.spec, claims=claim(count=count) if count else ())
        return replace(pods, spec=claims[pods.spec])

    nodes = [replace(each, pods=tuple(map(claiming, each.pods))) for each in problem.nodes]
    groups = [
        replace(each, devices=(devices("gpu", count=count),)) if (count := rng.randint(0, 4)) else each
        for each in problem.node_groups
    ]
    return replace(
        problem,
        nodes=tuple(with_devices(each, claimed(each) + rng.choice([0, 0, 1, 3])) for each in nodes),
        node_groups=tuple(groups),
    )


Kinds = Counter[tuple[int, str | None]]
"""Pods by how many devices they claim, and their gang."""


def arrivals(step: ConsolidationStep, number: int) -> dict[str, tuple[str, Kinds]]:
    """Return the pods that come to each node; of a new one with its node group."""
    kinds = {each.index: (asked(each), each.gang) for each in step.plan.pod_classes}

    def of(pods: Mapping[int, int]) -> Kinds:
        found: Kinds = Counter()
        for index, count in pods.items():
            found[kinds[index]] += count
        return found

    came = {each.node: ("", of(each.pods)) for each in step.plan.existing}
    opened: Counter[str] = Counter()
    for batch in step.plan.nodes:
        for _ in range(batch.count):
            came[step_node_name(batch.node_group, number, opened[batch.node_group])] = batch.node_group, of(batch.pods)
            opened[batch.node_group] += 1
    return came


def had(pods: Kinds) -> int:
    return sum(devices * count for (devices, _), count in pods.items())


def replayed(problem: ConsolidationProblem, plan: ConsolidationPlan) -> int:
    """Carry the steps out, device by device. Return how many devices were claimed anew."""
    total = {each.node.name: sum(one.count + one.taken for one in each.node.devices) for each in problem.nodes}
    of_group = {each.id: sum(one.count for one in each.devices) for each in problem.node_groups}
    on: dict[str, Kinds] = {each.node.name: Counter() for each in problem.nodes}
    for each in problem.nodes:
        for here in each.pods:
            on[each.node.name][asked(here), here.gang] += here.count
    anew = 0
    for number, step in enumerate(plan.steps):
        came = arrivals(step, number)
        for name, (group, pods) in came.items():  # before anything leaves
            assert had(on.get(name, Counter())) + had(pods) <= total.setdefault(name, of_group.get(group, 0)), name
            anew += had(pods)
        gangs = {gang for name in step.nodes for _, gang in on.pop(name)} - {None}
        for name, there in on.items():
            on[name] = Counter({kind: count for kind, count in there.items() if kind[1] not in gangs})
        for name, (_, pods) in came.items():
            on[name] = on.get(name, Counter()) + pods
    return anew


@pytest.mark.parametrize(
    "start", [0, 10, *(pytest.param(start, marks=pytest.mark.long("other seeds")) for start in range(20, 60, 10))]
)
def test_nobody_has_a_device_twice_and_the_checker_passes_every_plan(start: int) -> None:
    anew = 0
    for seed in range(start, start + 10):
        problem = equipped(seed)
        plan = consolidate(problem, BUDGET)
        assert list(consolidation_faults(problem, plan)) == [], seed
        assert plan.least_usd_per_hour <= plan.cost_after_usd_per_hour + 1e-6, seed
        anew += replayed(problem, plan)
    assert anew


def on(name: str, *pods: int, spare: int = 0) -> StandingNode:
    """Return a node with a pod for each number, which claims so many devices."""
    sets = tuple(
        PodSet(f"{name}-{number}", PodSpec((("cpu", 1000),), claims=claim(count=count)), 1)
        for number, count in enumerate(pods)
    )
    return with_devices(standing_node(name, WITH_TWO, sets), sum(pods) + spare)


def planned(*nodes: StandingNode, most: int = 9) -> ConsolidationPlan:
    group = replace(WITH_TWO, target_size=len(nodes), max_size=most)
    return consolidate(ConsolidationProblem(nodes, (group,)), BUDGET)


def test_pods_move_to_free_devices_and_stay_where_there_are_none() -> None:
    (step,) = planned(on("a", 1, spare=1), on("b", 1, spare=1)).steps
    assert (step.reason, step.pods_moved, step.saving_usd_per_hour) == (DisruptionReason.UNDERUTILIZED, 1, 1.0)
    plan = planned(on("a", 1), on("b", 1), most=2)
    assert plan.steps == ()
    assert plan.stays.keys() == {"a", "b"}


def test_a_node_that_must_go_is_replaced_by_one_with_the_devices() -> None:
    going = replace(on("a", 2), must_go=DisruptionReason.INTERRUPTED, takes_pods=False)
    (step,) = planned(going, on("b", 1, spare=1)).steps
    assert (step.reason, step.nodes) == (DisruptionReason.INTERRUPTED, ("a",))
    assert [(each.node_group, each.delta) for each in step.plan.increments] == [("two", 1)]
