"""ProvisioningRequests decided: whole or not at all, in their order, over any number of node groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.controllers.requests.planning import World, decide
from solver import Limit
from tests.controllers.requests_world import BUDGET, judge, opened, request
from tests.solver.build import GPU, TAINT, TOLERATION, group, node, spec

GPUS = group("gpu-b", cpu=8000, price=3.0, extra={GPU: 1}, max_size=9, taints=(TAINT,))
CPUS = group("cpu-a", cpu=4000, price=0.2, max_size=20)
WORKER = spec(cpu=4000, gpu=1, tolerations=(TOLERATION,))
HEAD = spec(cpu=2000)


def test_a_gang_of_gpu_workers_and_cpu_heads_is_one_part_over_two_groups() -> None:
    gang = request("a1", (WORKER, 8), (HEAD, 2))
    world = World(groups=(GPUS, CPUS))
    decided = decide([gang], world, BUDGET)
    judge([gang], world, decided)
    (part,) = decided.parts
    assert part.deltas == {"cpu-a": 1, "gpu-b": 8}
    assert part.cost_usd_per_hour == pytest.approx(24.2)
    assert part.gap == 0.0


def test_requests_that_share_no_node_are_parts_of_their_own() -> None:
    requests = [
        request("a1", (WORKER, 2)),
        request("a2", (WORKER, 3)),
        request("a3", (HEAD, 1)),
        request("a4", (HEAD, 1)),
    ]
    world = World(groups=(GPUS, CPUS))
    decided = decide(requests, world, BUDGET)
    judge(requests, world, decided)
    assert sorted(part.uids for part in decided.parts) == [("a1",), ("a2",), ("a3", "a4")]


def test_what_stands_is_used_first_and_a_request_that_needs_nothing_else_has_no_part() -> None:
    requests = [request("a1", (HEAD, 2)), request("a2", (HEAD, 3))]
    world = World((node("n1", 4000), node("n2", 4000)), (CPUS,))
    decided = decide(requests, world, BUDGET)
    judge(requests, world, decided)
    assert opened(decided.parts) == {"cpu-a": 1}
    assert [part.uids for part in decided.parts] == [("a2",)]
    assert decided.served == {"a1", "a2"}


def test_the_higher_priority_is_served_then_the_older() -> None:
    world = World(groups=(replace(CPUS, max_size=1),))
    low, old, young = (
        request("a1", (HEAD, 2)),
        request("a2", (HEAD, 2), priority=5),
        request("a3", (HEAD, 2), priority=5),
    )
    decided = decide([young, low, old], world, BUDGET)
    judge([young, low, old], world, decided)
    assert decided.served == {"a2"}
    assert decided.left.keys() == {"a1", "a3"}
    assert not decided.overtaken  # nobody was served who came after them


def test_a_request_that_does_not_fit_does_not_keep_others_from_being_served() -> None:
    big = request("a1", (WORKER, 8), (HEAD, 5))
    small = [request(f"b{number}", (HEAD, 1)) for number in range(2, 8)]
    world = World(groups=(replace(GPUS, target_size=2), CPUS))
    decided = decide([big, *small], world, BUDGET)
    judge([big, *small], world, decided)
    assert decided.served == {each.uid for each in small}
    assert decided.overtaken == {"a1"}
    assert decided.left["a1"] == (
        "12 of 13 pods fit now (7 of 8 of ns/a1-0): node group gpu-b is at its maximum size 9;"
        " not enough cpu free on existing nodes (3 nodes or node groups). What would serve all of them:"
        " raise maxSize of gpu-b from 9 to 10"
    )


def test_what_can_never_be_is_told_at_once() -> None:
    large, many, costly = (
        request("a1", (spec(cpu=9000), 1)),
        request("a2", (WORKER, 10)),
        request("a3", (HEAD, 20)),
    )
    limit = Limit("cpus", {"nodes": 8}, {"nodes": 8}, frozenset({"cpu-a"}))
    world = World(groups=(replace(GPUS, target_size=9), replace(CPUS, target_size=8)), limits=(limit,))
    decided = decide([large, many, costly], world, BUDGET)
    judge([large, many, costly], world, decided)
    assert decided.hopeless.keys() == {"a1", "a2", "a3"}
    assert "needs 9 cpu, the largest eligible node has" in decided.hopeless["a1"]
    assert decided.hopeless["a2"].startswith("9 of 10 pods fit with all node groups empty and no limit used")
    assert "raise maxSize of gpu-b from 9 to 10" in decided.hopeless["a2"]
    assert "raise the nodes of limit cpus from 8 to 10" in decided.hopeless["a3"]
