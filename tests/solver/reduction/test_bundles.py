"""Pods that must all share one node: which of them are tried together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python.cp_model import OPTIMAL, CpModel, CpSolver

from bench.karpenter_mix import hostname_affinity
from solver import Budget, Problem, Requirement, solve
from solver.model import (
    HOSTNAME,
    PODS,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Taint,
    TaintEffect,
    TopologySpread,
)
from solver.reduction.rows import RowPart, bundles_of
from solver.reduction.terms import Variant
from tests.support.examples import examples
from tests.support.solver.problems import group, node, pods, spec

KEPT = Variant(PodSpec(()), (), avoids_soft_taints=False, given_up=())
GIVEN_UP = Variant(PodSpec(()), (), avoids_soft_taints=False, given_up=("one",))
MANY = 300


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40),
    st.booleans(),
)
@examples(100)
def test_bundles_are_of_the_pods_there_are(classes: Sequence[tuple[int, int, int]], preferences: bool) -> None:
    members = [(i, RowPart(i, each)) for i in range(len(classes)) for each in (KEPT, GIVEN_UP)[: 1 + preferences]]
    counts = [count for count, _, _ in classes]
    bundles, complete = bundles_of(members, counts, [{"cpu": cpu, "memory": memory} for _, cpu, memory in classes])
    assert len(set(bundles)) == len(bundles)
    for bundle in bundles:
        assert [demand for demand, _ in bundle] == sorted({demand for demand, _ in bundle})
        assert all(0 < part.pods <= counts[demand] for demand, part in bundle)
    tried = {tuple((demand, part.pods) for demand, part in bundle) for bundle in bundles}
    assert tuple(enumerate(counts)) in tried
    assert {((demand, count),) for demand, count in enumerate(counts)} <= tried
    if not complete:
        assert len(bundles) <= 2 * (MANY + len(classes))


def test_as_many_share_a_node_as_can() -> None:
    problem = hostname_affinity(300, hosts=3, types=60)
    plan = solve(problem, Budget(deterministic_seconds=0.3))
    served = sum(pods.count for pods in problem.pod_sets) - sum(each.count for each in plan.unplaced)
    assert served == _most_together(problem)


def _most_together(problem: Problem) -> int:
    """The pods that fit on one of the largest nodes for each label."""
    of_label: defaultdict[object, list[tuple[dict[str, int], int]]] = defaultdict(list)
    for each in problem.pod_sets:
        of_label[each.spec.labels].append((dict(each.spec.requests), each.count))
    largest = max(problem.node_groups, key=lambda group: group.allocatable["cpu"]).allocatable
    total = 0
    for classes in of_label.values():
        model = CpModel()
        here = [model.new_int_var(0, count, "") for _, count in classes]
        for resource in ("cpu", "memory"):
            model.add(
                sum(n * asked[resource] for n, (asked, _) in zip(here, classes, strict=True)) <= largest[resource]
            )
        model.add(sum(here) <= largest[PODS])
        model.maximize(sum(here))
        solver = CpSolver()
        assert solver.solve(model) == OPTIMAL
        total += round(solver.objective_value)
    return total


def test_pods_that_share_a_node_which_none_can_be() -> None:
    together = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("claim", Operator.EXISTS),), ("",)), alone=True)
    over_zones = TopologySpread("zone", 1, PodSelector(None, ()))
    wanted = tuple(
        pods(name, 2, spec(0, labels=(("claim", name),), pod_affinity=(together,), topology_spread=(over_zones,)))
        for name in "abc"
    )
    soft = Taint("dedicated", TaintEffect.PREFER_NO_SCHEDULE)
    without_a_zone = node("without-a-zone", 4000, taints=(soft,))
    plan = solve(Problem(wanted, (group("full", max_size=0, labels={"zone": "a"}),), nodes=(without_a_zone,)))
    assert sum(each.count for each in plan.unplaced) == 6
