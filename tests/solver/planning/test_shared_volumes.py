"""Volumes that several pods use: a node attaches each once for all of its pods."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import Budget, NodeGroup, Problem, Status, rank, solve
from solver.model import ATTACHABLE_VOLUMES, HOSTNAME, PodAffinityTerm, PodSelector, PodSet, PodSpec
from solver.model.capacity import after_plan
from solver.model.plan import PlacedOnNode, ScaleUpCandidate
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.problems import group, node, pods, spec
from tests.support.solver.reference import as_micros, best_objective, bounds_as_micros
from tests.support.solver.strategies import constrained_problems, problems, with_shared_volumes

BUDGET = Budget(deterministic_seconds=5)
DISK = f"{ATTACHABLE_VOLUMES}disk.example.com"
TIE = PodAffinityTerm(HOSTNAME, PodSelector(()), alone=True)


def using(*shared: str, own: int = 0, cpu: int = 1000, **other: object) -> PodSpec:
    """Return a spec with these volumes, which others use as well, and with so many of its own."""
    requests = tuple(sorted({"cpu": cpu, DISK: len(shared) + own}.items()))
    return PodSpec(requests, shared_volumes=tuple((DISK, name) for name in sorted(shared)), **other)  # type: ignore[arg-type]


def attaching(most: int, name: str = "g", cpu: int = 8000, price: float = 1.0) -> NodeGroup:
    return group(name, cpu, price, extra={DISK: most})


@given(st.data())
@examples(120, derandomize=True)
def test_the_same_optimum_as_an_exact_assignment_model(data: st.DataObject) -> None:
    """But for a few, of which no more is claimed than is so."""
    claims_no_more_than_it_may(data.draw(with_shared_volumes(data.draw(problems()))))


@given(st.data())
@examples(120, derandomize=True)
def test_what_is_claimed_holds_where_pods_constrain_each_other(data: st.DataObject) -> None:
    drawn = data.draw(constrained_problems())
    alone = replace(drawn, pod_sets=tuple(replace(each, gang=None) for each in drawn.pod_sets))
    claims_no_more_than_it_may(data.draw(with_shared_volumes(alone)))


def claims_no_more_than_it_may(problem: Problem) -> None:
    plan = solve(problem, Budget(deterministic_seconds=2.0))
    note(str(plan))
    found, exact = as_micros(plan, problem), best_objective(problem)
    # Some of what the model forbids the scheduler takes, and it is planned then.
    assert bounds_as_micros(plan, problem) <= min(found, exact)
    if plan.certificate.status is not Status.FEASIBLE:
        unserved = 2 * len({each.priority for each in problem.pod_sets if not each.placeholder})
        assert found[:unserved] <= exact[:unserved]


@pytest.mark.parametrize(
    ("most", "sets", "nodes"),
    [
        pytest.param(1, [pods("ns/a", 8, using("v"))], 1, id="one volume"),
        pytest.param(2, [pods("ns/a", 4, using("v")), pods("ns/b", 4, using("w"))], 1, id="two"),
        pytest.param(2, [pods("ns/a", 4, using("v", "w")), pods("ns/b", 4, using("w"))], 1, id="one of two in common"),
        pytest.param(1, [pods("ns/a", 4, using("v")), pods("ns/b", 4, using("w"))], 2, id="two on nodes for one"),
        pytest.param(2, [pods("ns/a", 6, using("v")), pods("ns/b", 2, using(own=1))], 2, id="beside others' own"),
        pytest.param(3, [pods("ns/a", 6, using("v")), pods("ns/b", 2, using(own=1))], 1, id="with room for these"),
        pytest.param(1, [pods("ns/a", 4, using("v", labels=(("a", "b"),), pod_affinity=(TIE,)))], 1, id="of one node"),
    ],
)
def test_a_node_attaches_a_volume_once(most: int, sets: list[PodSet], nodes: int) -> None:
    plan = solve(Problem(tuple(sets), (attaching(most),)), BUDGET)
    assert plan.unplaced == ()
    assert [each.delta for each in plan.increments] == [nodes]
    assert plan.certificate.status is Status.OPTIMAL


def test_many_pods_of_a_few_volumes_fill_nodes_that_attach_few() -> None:
    """With an attachment for each pod it would take five times as many nodes."""
    sets = [pods(f"ns/{name}", 100, using(name, cpu=400 + 10 * n)) for n, name in enumerate("abc")]
    plan = solve(Problem((*sets, pods("ns/other", 100)), (attaching(4, cpu=32000),)), BUDGET)
    assert plan.unplaced == ()
    assert sum(each.delta for each in plan.increments) <= 8


def test_what_is_attached_already_takes_nothing_more() -> None:
    there = node("full", 4000)
    there = replace(there, free={**there.free, DISK: 0}, volumes=frozenset({(DISK, "v")}))
    bare = replace(there, name="other", volumes=frozenset())
    plan = solve(Problem((pods("ns/a", 4, using("v")), pods("ns/b", 1, using("w"))), (), (bare, there)), BUDGET)
    assert plan.existing == (PlacedOnNode("full", {0: 4}),)
    assert [each.count for each in plan.unplaced] == [1]
    assert plan.certificate.status is Status.OPTIMAL


def test_reasons_tell_what_a_node_would_attach_beside_what_it_has() -> None:
    """The pod asks for two attachments, of which one is that of a volume which a node has."""
    full = node("full", 4000)
    there = replace(full, free={**full.free, DISK: 0}, volumes=frozenset({(DISK, "v")}))
    bare = replace(full, name="bare", free={**full.free, DISK: 1})
    plan = solve(Problem((pods("ns/a", 1, using("v", own=1)),), (), (bare, there)), BUDGET)
    (left,) = plan.unplaced
    of = "volume attachments of disk.example.com"
    assert left.reasons == (
        f"needs 1 {of} beside volumes that are attached there, none is free (node full)",
        f"needs 2 {of}, at most 1 is free (node bare)",
    )


def test_reasons_count_a_volume_of_planned_pods_once() -> None:
    """Four pods take one attachment, and the last one finds its own on the node: only CPU is taken."""
    there = node("n", 4000)
    there = replace(there, free={**there.free, DISK: 1})
    plan = solve(Problem((pods("ns/a", 5, using("v")),), (), (there,)), BUDGET)
    (left,) = plan.unplaced
    assert (left.count, left.reasons) == (1, ("the free room of 1 existing node that it fits is taken by other pods",))


def test_the_checker_counts_a_volume_once_and_no_node_attaches_too_many() -> None:
    problem = Problem((pods("ns/a", 2, using("v")), pods("ns/b", 1, using("w"))), (attaching(2),))
    plan = solve(problem, BUDGET)
    assert not list(faults_of(problem, plan))
    (tight,) = (replace(each, allocatable={**each.allocatable, DISK: 1}) for each in problem.node_groups)
    (fault,) = faults_of(replace(problem, node_groups=(tight,)), plan)
    assert f"over-full: {DISK} by 1" in fault
    (after,) = after_plan(problem, plan, [0, 1]).nodes
    assert (after.free[DISK], after.volumes) == (0, frozenset({(DISK, "v"), (DISK, "w")}))


def test_options_are_compared_by_what_nodes_attach() -> None:
    """All pods fit a node, and the dear group with more attachments is worth nothing."""
    groups = attaching(1, "cheap", price=1.0), attaching(8, "dear", price=4.0)
    problem = Problem((pods("ns/a", 8, using("v")),), groups)
    options = [ScaleUpCandidate(name, 1, {0: 8}) for name in ("dear", "cheap")]
    first, second = rank(problem, options, BUDGET)
    assert (first.candidate.node_group, second.candidate.node_group) == ("cheap", "dear")
    half = rank(problem, [ScaleUpCandidate("dear", 1, {0: 4}), ScaleUpCandidate("cheap", 1, {0: 4})], BUDGET)
    assert half[0].candidate.node_group == "cheap"


@pytest.mark.parametrize(
    ("shared", "fault"),
    [
        (((DISK, "b"), (DISK, "a")), "sorted"),
        (((DISK, "a"), (DISK, "b")), "2 of"),
    ],
)
def test_what_is_invalid(shared: tuple[tuple[str, str], ...], fault: str) -> None:
    wrong = replace(spec(), requests=(("cpu", 1), (DISK, 1))[::-1], shared_volumes=shared)
    with pytest.raises(ValueError, match=fault):
        solve(Problem((pods("ns/a", 1, wrong),), ()), BUDGET)
