"""Affinity terms of claims that pods share: they bind beside the pods' own terms and do not narrow them."""

from __future__ import annotations

from dataclasses import replace

from solver import Budget, PlannedNodes, Problem, solve
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, Requirement, RunningPods
from solver.model.eligibility import required_affinity
from solver.verify.check import faults_of
from tests.support.solver.problems import group, node, pods, spec

BUDGET = Budget(deterministic_seconds=5)
ZONE = "zone"


def _of(key: str) -> PodSelector:
    return PodSelector((Requirement(key, Operator.EXISTS),), ("ns",))


SHARED = PodAffinityTerm(HOSTNAME, _of("claim"), alone=True)
BESIDE = PodAffinityTerm(ZONE, _of("cache"))
A, B = group("a", labels={ZONE: "a"}), group("b", price=2.0, labels={ZONE: "b"})
CACHE = node("n", 0, labels={ZONE: "b"}, running=(RunningPods(spec(namespace="ns", labels=(("cache", ""),))),))


def test_own_terms_count_what_they_count_without_the_claim() -> None:
    assert required_affinity(spec(pod_affinity=(BESIDE, SHARED))) == (BESIDE, SHARED)
    both = required_affinity(spec(pod_affinity=(BESIDE, replace(BESIDE, topology_key=HOSTNAME), SHARED)))
    assert both[2] == SHARED
    assert {term.selector.match_expressions for term in both[:2]} == {BESIDE.selector.match_expressions}


def test_pods_of_a_claim_are_on_one_node_beside_their_own_affinity() -> None:
    """Were the claim's term merged with the other, no cache would match both and nothing could be served."""
    sharing = spec(1500, namespace="ns", labels=(("claim", ""),), pod_affinity=(BESIDE, SHARED))
    problem = Problem((pods("ns/x", 2, sharing),), (A, B), (CACHE,))
    plan = solve(problem, BUDGET)
    assert [(each.node_group, each.count) for each in plan.nodes] == [("b", 1)]
    apart = replace(plan, nodes=(PlannedNodes("b", 2, {0: 1}),), increments=(replace(plan.increments[0], delta=2),))
    assert any("affinity" in fault for fault in faults_of(problem, apart))


def test_more_than_one_node_holds_is_not_served() -> None:
    sharing = spec(1500, namespace="ns", labels=(("claim", ""),), pod_affinity=(SHARED,))
    plan = solve(Problem((pods("ns/x", 3, sharing),), (A, B)), BUDGET)
    assert (plan.unplaced[0].count, plan.nodes[0].count) == (1, 1)


def test_pods_that_differ_in_ties_over_keys_that_no_node_has_stay_apart() -> None:
    """They are planned without these ties, as if they were alike."""
    ties = (PodAffinityTerm(key, _of("claim"), alone=True) for key in ("rack", "block"))
    asked = [spec(pod_affinity=(tie,)) for tie in ties] + [spec()]
    plan = solve(Problem(tuple(pods(f"ns/{n}", 1 + n, each) for n, each in enumerate(asked)), (A,)), BUDGET)
    assert [(each.spec, each.count) for each in plan.pod_classes] == [(asked[0], 1), (asked[1], 2), (asked[2], 3)]
    assert not plan.unplaced
