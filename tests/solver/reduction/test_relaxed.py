"""A problem without its rules: smaller, and never dearer."""

from __future__ import annotations

import pytest

from solver import Problem
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, PodSet, Requirement, TopologySpread
from solver.reduction.reduce import reduce
from solver.reduction.relaxed import without_rules
from tests.support.solver.problems import group, pods, spec

ZONE = "topology.kubernetes.io/zone"


def own(name: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (name,)),))


def spread(name: str, cpu: int) -> PodSet:
    constraint = TopologySpread(ZONE, 1, own(name))
    return pods(name, 3, spec(cpu, labels=(("app", name),), topology_spread=(constraint,)))


def apart(name: str, cpu: int) -> PodSet:
    return pods(name, 3, spec(cpu, labels=(("app", name),), pod_anti_affinity=(PodAffinityTerm(HOSTNAME, own(name)),)))


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (spread("x", 100), spread("y", 100), 1),
        (spread("x", 100), spread("y", 200), 2),
        (apart("x", 100), apart("y", 100), 2),
    ],
    ids=["alike", "of-two-sizes", "each-once-to-a-node"],
)
def test_classes_without_a_cap_of_their_own_become_one(first: PodSet, second: PodSet, rows: int) -> None:
    """One row for two classes that may each be on a node once would say that only one of both may."""
    zones = tuple(group(zone, 1000, 1.0, labels={ZONE: zone}) for zone in "ab")
    free = without_rules(reduce(Problem((first, second), zones)))
    assert len(free.rows) == rows
    assert (len(free.new_kinds), len(free.new_kinds[0].groups)) == (1, 2)
    assert not free.rules
