"""For every way in which pods may find no devices a plan that breaks it, which the checker must reject for that reason,
and a neighbour that keeps it, which it must accept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from solver import (
    Certificate,
    DeviceClaim,
    Devices,
    NodeGroupIncrease,
    Plan,
    PlannedNodes,
    PodSpec,
    Problem,
    Status,
    TierCost,
)
from solver.model import Goal, Node, ObjectiveStage, PlacedOnNode, PodClass, StageValue
from solver.model.devices import Claims
from solver.verify.check import faults_of
from tests.support.solver.device_examples import (
    GPUS,
    MIXED,
    NUMA,
    PAIR,
    PAIRS,
    SOCKETS,
    asks,
    claim,
    devices,
    first_of,
    together,
)
from tests.support.solver.problems import group, pods, spec

Held = dict[int, int]


def faults(there: tuple[Devices, ...], claims: list[Claims], held: Held, daemon: Claims = ()) -> list[str]:
    """Faults of a plan with one node that has these devices and holds so many pods with each of the claims; with a
    daemon, a new node that runs one as well."""
    specs = [spec(10, claims=each) for each in claims]
    counts = Counter(held)
    new = bool(daemon)
    groups = (group("g", devices=there),) if new else ()
    nodes = () if new else (Node("n", {"cpu": 4000, "pods": 110}, devices=there),)
    cost = float(new)
    stages = [Goal.UNSERVED, Goal.WAITING, *([Goal.COST] if new else []), Goal.NODES]
    plan = Plan(
        tuple(PodClass(index, each, counts[index], f"p{index}") for index, each in enumerate(specs)),
        (NodeGroupIncrease("g", 1),) if new else (),
        (PlannedNodes("g", 1, held),) if new else (),
        () if new else (PlacedOnNode("n", held),),
        (),
        Certificate(Status.FEASIBLE, cost, 0.0, (TierCost(0, cost, 0.0),) if new else (), 0.0),
        0.0,
        tuple(
            StageValue(ObjectiveStage(goal), cost if goal in (Goal.COST, Goal.NODES) else 0.0, 0.0) for goal in stages
        ),
    )
    problem = Problem(
        tuple(pods(f"p{index}", counts[index], each) for index, each in enumerate(specs)),
        groups,
        nodes,
        daemon_sets=(PodSpec(claims=daemon),) if new else (),
    )
    return list(faults_of(problem, plan))


MORE = replace(asks(count=4), name="more")
UNKNOWN = (devices("gpu", "big", count=2), devices("gpu", count=6), Devices(0, frozenset({"big"}), uncertain=True))
WHOLE = (devices("gpu", count=2, numa="0"), devices("gpu", "nic", numa="1"))
NAMED = (devices("gpu", "big", count=2, numa="0"), devices("gpu", count=2))

CASES = [
    ("count", GPUS, [claim(count=3)], {0: 3}, {0: 2}),
    ("no-such-device", GPUS, [claim("fpga"), claim()], {0: 1}, {1: 1}),
    ("two-claims-of-a-pod", GPUS, [claim(count=5) * 2, claim(count=4) * 2], {0: 1}, {1: 1}),
    ("two-requests", GPUS, [(DeviceClaim((asks(count=5), MORE)),), claim(count=8)], {0: 1}, {1: 1}),
    ("more-than-a-claim-can-have", (devices("gpu", count=40),), [claim(count=33), claim(count=32)], {0: 1}, {1: 1}),
    ("all", GPUS, [claim(all=True), claim()], {0: 1, 1: 1}, {0: 1}),
    ("all-of-none", GPUS, [claim("fpga", all=True), claim(all=True)], {0: 1}, {1: 1}),
    (
        "all-while-some-are-taken",
        (devices("gpu", count=7, taken=1),),
        [claim(all=True), claim(count=7)],
        {0: 1},
        {1: 1},
    ),
    ("admin-access-takes-none", GPUS, [claim(count=8), claim(admin_access=True)], {0: 2, 1: 1}, {0: 1, 1: 9}),
    (
        "admin-access-shares-what-is-taken",
        (devices("gpu", count=0, taken=2),),
        [claim(), claim(all=True, admin_access=True)],
        {0: 1},
        {1: 3},
    ),
    ("another-may-take-what-one-needs", MIXED, [claim("big"), claim("gpu")], {0: 1, 1: 4}, {0: 1, 1: 3}),
    ("nobody-needs-what-another-takes", MIXED, [claim("big"), claim("gpu")], {0: 2, 1: 3}, {1: 8}),
    ("one-block", SOCKETS, [together(NUMA, asks(count=5)), together(NUMA, asks(count=4))], {0: 1}, {1: 2}),
    ("without-constraint-over-blocks", SOCKETS, [together(NUMA, asks(count=5)), claim(count=5)], {0: 1}, {1: 1}),
    ("blocks-in-pieces", SOCKETS, [together(NUMA, asks(count=4)), claim()], {0: 1, 1: 2}, {0: 1, 1: 1}),
    ("pairs", PAIRS, [PAIR], {0: 5}, {0: 4}),
    ("a-pair-that-is-parted", PAIRS, [PAIR, claim("gpu"), claim("nic")], {0: 2, 1: 2, 2: 1}, {0: 2, 1: 1, 2: 1}),
    ("without-the-attribute", NAMED, [together(NUMA, asks(count=3)), together(NUMA, asks(count=2))], {0: 1}, {1: 1}),
    ("second-choice-while-more-than-is-known-may-be-had", UNKNOWN, [first_of(("big", 1), ("gpu", 1))], {0: 3}, {0: 2}),
    ("all-of-what-is-not-known", UNKNOWN, [claim("big", all=True), claim("gpu", all=True)], {0: 1}, {1: 1}),
    (
        "all-with-one-value-ends-the-search",
        WHOLE,
        [together(NUMA, asks(), asks("nic", all=True)), together(NUMA, asks("nic", all=True))],
        {0: 1},
        {1: 1},
    ),
    ("second-choice-too-late", MIXED, [first_of(("big", 3), ("gpu", 1)), claim("gpu", 2)], {0: 1, 1: 3}, {0: 1, 1: 2}),
]


@pytest.mark.parametrize(("there", "claims", "bad", "good"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_what_breaks_a_claim_and_what_keeps_it(
    there: tuple[Devices, ...], claims: list[Claims], bad: Held, good: Held
) -> None:
    assert faults(there, claims, good) == []
    found = faults(there, claims, bad)
    assert found
    assert all("may find no devices" in fault for fault in found), found


def test_what_a_daemon_has_is_not_there_for_others() -> None:
    assert faults(GPUS, [claim()], {0: 7}, daemon=claim()) == []
    assert faults(GPUS, [claim()], {0: 8}, daemon=claim()) == [
        "a node of g: a pod with the claims of class 0 may find no devices"
    ]
    assert faults(GPUS, [claim()], {0: 8}, daemon=claim(all=True, admin_access=True)) == []


def test_devices_that_can_be_given_in_too_many_ways_are_not_passed() -> None:
    many = tuple(devices("any", f"only-{n}", count=7) for n in range(9))
    assert faults(many, [claim("any", 2), claim("only-0", 2)], {0: 9, 1: 1})
    assert faults(many, [claim("any", 2), claim("only-0", 2)], {0: 2, 1: 1}) == []


def test_devices_of_one_block_are_not_looked_for_in_several() -> None:
    """There are some ten thousands of ways to take four of these, and eight of which all are in one block."""
    many = tuple(devices("any", f"only-{n % 4}", numa=f"{n // 4}") for n in range(32))
    claims = [together(NUMA, asks("any", 4)), claim("only-0"), claim("only-1"), claim("only-2")]
    assert faults(many, claims, {0: 1, 1: 1, 2: 1, 3: 1}) == []
