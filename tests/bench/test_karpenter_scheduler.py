"""What Karpenter's scheduler found is read as a plan of ours, which the independent checker judges."""

from __future__ import annotations

from typing import Any

from bench.karpenter_mix import hostname_affinity
from bench.karpenter_scheduler import broken_constraints, openb_1000, plan_of, tainted_types
from solver import Problem

TOGETHER = hostname_affinity(5, hosts=1, types=20)


def names(problem: Problem) -> list[str]:
    return [f"{index}-{number}" for index, pods in enumerate(problem.pod_sets) for number in range(pods.count)]


def node(group: str, *pods: str) -> dict[str, Any]:
    name, zone, capacity_type = group.split("/")
    price = next(each.price_usd_per_hour for each in TOGETHER.node_groups if each.id == group)
    return {
        "instanceType": name,
        "offering": {"zone": zone, "capacityType": capacity_type, "price": price},
        "pods": pods,
    }


def test_nodes_with_pods_are_a_plan() -> None:
    plan = plan_of(TOGETHER, [node("fake-it-9/test-zone-1/spot", *names(TOGETHER))])
    assert [each.node_group for each in plan.nodes] == ["fake-it-9/test-zone-1/spot"]
    assert sum(plan.nodes[0].pods.values()) == 5
    assert plan.unplaced == ()
    assert broken_constraints(TOGETHER, plan) == 0


def test_broken_constraints_are_counted_and_what_was_left_is_told() -> None:
    first, second, third, *_ = names(TOGETHER)
    plan = plan_of(
        TOGETHER, [node("fake-it-9/test-zone-1/spot", first, second), node("fake-it-9/test-zone-2/spot", third)]
    )
    assert sum(each.count for each in plan.unplaced) == 2
    assert broken_constraints(TOGETHER, plan) > 0


def test_pods_that_tolerate_no_taint_are_kept_off_its_types() -> None:
    """The program has one NodePool, and so no taint of some of its types."""
    problem = openb_1000(tainted=True)
    gpus = {each.id.split("/")[0] for each in problem.node_groups if "nvidia.com/gpu" in each.allocatable}
    for pods in problem.pod_sets:
        asks = "nvidia.com/gpu" in dict(pods.spec.requests)
        assert tainted_types(problem, pods.spec) == ([] if asks else sorted(gpus))
    assert not any(tainted_types(openb_1000(), each.spec) for each in problem.pod_sets)
