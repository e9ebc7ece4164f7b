"""Rows that only rules tell apart are planned as one, and split again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solver import Problem
from solver.columns.patterns import Pattern
from solver.integral.quotas import as_one, chosen, first_alike, split
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, PodSet, Requirement, TopologySpread
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import claims
from tests.support.examples import examples
from tests.support.solver.problems import group, pods, spec
from tests.support.steps import steps

ZONE = "topology.kubernetes.io/zone"


def spread(name: str, count: int, cpu: int, memory: int) -> PodSet:
    return pods(
        name, count, spec(cpu, memory, labels=(("app", name),), topology_spread=(TopologySpread(ZONE, 1, own(name)),))
    )


def apart(name: str, count: int, cpu: int, memory: int) -> PodSet:
    term = PodAffinityTerm(HOSTNAME, own(name))
    return pods(name, count, spec(cpu, memory, labels=(("app", name),), pod_anti_affinity=(term,)))


def own(name: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (name,)),))


def rows_alike(*pod_sets: PodSet) -> tuple[Reduced, list[int]]:
    """A problem whose rows are all pinned, as once rules have chosen."""
    reduced = reduce(Problem(pod_sets, (group("a", 16000, 1.0, labels={ZONE: "a"}),)))
    demands = tuple(replace(each, rows=each.rows[:1]) for each in reduced.demands)
    pinned = replace(reduced, demands=demands, rules=())
    return pinned, first_alike(pinned).tolist()


def test_equal_requests_are_one_row_whatever_they_are_spread_with() -> None:
    reduced, first = rows_alike(spread("x", 3, 100, 1), spread("y", 5, 100, 1), spread("z", 2, 100, 2))
    x, y, z = (each.row for each in reduced.demands)
    assert (first[y], first[z]) == (first[x], z)


def test_pods_that_keep_apart_on_a_node_are_not() -> None:
    reduced, first = rows_alike(apart("x", 3, 100, 1), apart("y", 5, 100, 1))
    x, y = (each.row for each in reduced.demands)
    assert first[x] != first[y]


def test_each_pod_of_a_spread_is_compared_with_each_domain_once() -> None:
    domains = 40
    groups = tuple(group(f"g{each}", 16000, 1.0, labels={ZONE: f"z{each}"}) for each in range(domains))
    reduced = reduce(Problem((spread("x", domains, 100, 1),), groups))
    claimed = claims(reduced)
    taken = steps(lambda: chosen(reduced, claimed))
    assert taken < 12 * domains * domains


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**32))
@examples(100)
def test_a_plan_that_is_split_has_every_pod_once(counts: list[int], seed: int) -> None:
    chance = random.Random(seed)
    reduced, first = rows_alike(*(spread(f"w{i}", count, 100, 1 + i % 2) for i, count in enumerate(counts)))
    whole = as_one(reduced, np.array(first))
    left = {row: units for row, units in enumerate(whole.wanted.tolist()) if units}
    nodes: Counter[Pattern] = Counter()
    while any(left.values()):
        held = {row: chance.randint(0, min(units, 5)) for row, units in left.items()}
        taken = tuple((row, units) for row, units in held.items() if units)
        copies = chance.randint(1, min((left[row] // units for row, units in taken), default=1))
        nodes[Pattern(0, taken)] += copies
        left = {row: units - copies * held[row] for row, units in left.items()}
    found = split(reduced, np.array(first), nodes)
    assert sum(found.values()) == sum(nodes.values())
    total = Counter[int]()
    for pattern, copies in found.items():
        total.update({row: units * copies for row, units in pattern.pods})
    assert total == {row: units for row, units in enumerate(reduced.wanted.tolist()) if units}
    held_together = Counter[Pattern]()
    for pattern, copies in found.items():
        ones = Counter[int]()
        for row, units in pattern.pods:
            ones[first[row]] += units
        held_together[Pattern(0, tuple(sorted(ones.items())))] += copies
    assert held_together == Counter({Pattern(0, tuple(sorted(each.pods))): n for each, n in nodes.items()})
