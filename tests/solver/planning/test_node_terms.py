"""Where the volumes and allocated claims of pods let them run: `PodSpec.node_terms` and `PodSpec.unschedulable`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import Budget, PlanRejectedError, Problem, ProblemError, explain, solve
from solver.explanation.kinds import reason
from solver.explanation.model import ConstraintChange
from solver.explanation.waiting import ways_of
from solver.model import Node, Operator, PodSelector, PodSpec, Requirement, TopologySpread
from solver.model.objects import NodeSelectorTerm
from solver.verify.check import check
from tests.support.solver.problems import group, node, pods, spec, wants

BUDGET = Budget(deterministic_seconds=5)
ZONE = "topology.kubernetes.io/zone"
IN_B = (wants(ZONE, "In", "b"),)
A, B = group("a", price=1.0, labels={ZONE: "a"}), group("b", price=3.0, labels={ZONE: "b"})
WAITS = "its claim default/data is not bound"


def _groups_of(problem: Problem) -> dict[str, int]:
    return {each.node_group: each.delta for each in solve(problem, BUDGET).increments}


def test_a_pod_goes_where_its_volume_is_though_it_costs_more() -> None:
    there = pods("ns/db", 2, spec(3000, node_terms=IN_B))
    assert _groups_of(Problem((there,), (A, B))) == {"b": 2}


def test_every_member_holds_and_of_each_one_term() -> None:
    either = (*wants(ZONE, "In", "a"), *wants(ZONE, "In", "b"))
    assert _groups_of(Problem((pods("ns/db", 1, spec(node_terms=(either,))),), (A, B))) == {"a": 1}
    assert _groups_of(Problem((pods("ns/db", 1, spec(node_terms=(either, *IN_B))),), (A, B))) == {"b": 1}
    apart = pods("ns/db", 1, spec(node_terms=(wants(ZONE, "In", "a"), *IN_B)))
    plan = solve(Problem((apart,), (A, B)), BUDGET)
    assert plan.unplaced[0].count == 1


def test_a_volume_of_one_node_is_served_there_alone() -> None:
    named = (NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, ("n2",)),)),)
    nodes = (node("n1", 4000, labels={ZONE: "a"}), node("n2", 2000, labels={ZONE: "a"}))
    plan = solve(Problem((pods("ns/db", 3, spec(node_terms=(named,))),), (A,), nodes), BUDGET)
    assert [(each.node, sum(each.pods.values())) for each in plan.existing] == [("n2", 2)]
    assert plan.unplaced[0].count == 1
    assert "out of reach of its volumes or devices, which need metadata.name in (n2)" in " ".join(
        plan.unplaced[0].reasons
    )


def test_an_unschedulable_pod_is_unserved_with_its_own_reason_alone() -> None:
    problem = Problem((pods("ns/db", 2, spec(unschedulable=WAITS)), pods("ns/web", 1)), (A,), (node("n", 500),))
    plan = solve(problem, BUDGET)
    assert [(each.count, each.reasons) for each in plan.unplaced] == [(2, (WAITS,))]
    empty = solve(replace(problem, node_groups=(), nodes=()), BUDGET)
    assert (WAITS,) in [each.reasons for each in empty.unplaced]


def test_a_gang_with_an_unschedulable_pod_is_not_served() -> None:
    problem = Problem((pods("ns/a", 1, spec(unschedulable=WAITS), gang="g"), pods("ns/b", 3, gang="g")), (A,))
    plan = solve(problem, BUDGET)
    assert plan.increments == ()
    reasons = {plan.pod_classes[each.pod_class].example: each.reasons for each in plan.unplaced}
    assert reasons["ns/a"] == (WAITS,)
    assert "its pod ns/a fits nowhere" in reasons["ns/b"]


def test_a_spread_counts_domains_that_the_volume_cannot_reach() -> None:
    """As upstream: nodeAffinityPolicy looks at the pod's own selector and affinity, not at its volumes."""
    of_app = PodSelector((Requirement("app", Operator.IN, ("db",)),))
    spread = TopologySpread(ZONE, 1, of_app)
    bound = spec(topology_spread=(spread,), labels=(("app", "db"),), node_terms=IN_B)
    in_a = node("in-a", 0, labels={ZONE: "a"})
    plan = solve(Problem((pods("ns/db", 2, bound),), (A, B), (in_a,)), BUDGET)
    assert plan.unplaced[0].count == 1
    assert not solve(Problem((pods("ns/db", 2, bound),), (A, B)), BUDGET).unplaced, "no node is in zone a"
    free = replace(bound, topology_spread=())
    assert not solve(Problem((pods("ns/db", 2, free),), (A, B)), BUDGET).unplaced


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (spec(node_terms=IN_B), "1 of its volumes and claims cannot be reached there"),
        (spec(node_terms=(wants(ZONE, "In", "a", "b"), *IN_B)), "1 of its volumes and claims"),
        (spec(unschedulable=WAITS), f"no node can take it: {WAITS}"),
    ],
)
@pytest.mark.parametrize("standing", [True, False])
def test_the_checker_rejects_a_place_that_volumes_do_not_reach(broken: PodSpec, sentence: str, standing: bool) -> None:
    nodes = (Node("n", {"cpu": 1000, "pods": 9}, labels={ZONE: "a"}),) if standing else ()
    problem = Problem((pods("ns/db", 1, spec()),), (A,), nodes)
    plan = solve(problem, BUDGET)
    bad = replace(problem, pod_sets=(pods("ns/db", 1, broken),))
    with pytest.raises(PlanRejectedError, match=sentence):
        check(bad, replace(plan, pod_classes=(replace(plan.pod_classes[0], spec=broken),)))


def test_nobody_is_told_to_move_volumes() -> None:
    problem = Problem((pods("ns/db", 1, spec(node_terms=IN_B)), pods("ns/x", 1, spec(unschedulable=WAITS))), (A,))
    told = {each.name: each for each in explain(problem, solve(problem, BUDGET), BUDGET).unserved}
    core = [reason(each) for each in told["ns/db"].core if isinstance(each, ConstraintChange)]
    assert core == [f"pods like ns/db use volumes or devices that need {ZONE} in (b)"]
    assert ways_of(told["ns/db"]) == (f"add a node group whose nodes have 1 cpu and the label {ZONE}=b",)
    core = [reason(each) for each in told["ns/x"].core if isinstance(each, ConstraintChange)]
    assert core == [f"pods like ns/x cannot be scheduled for now: {WAITS}"]
    assert ways_of(told["ns/x"]) == (f"resolve what keeps pods like ns/x waiting: {WAITS}",)


def test_advice_is_about_the_groups_in_reach() -> None:
    full = replace(B, max_size=0)
    problem = Problem((pods("ns/db", 1, spec(node_terms=IN_B)),), (A, full))
    (told,) = explain(problem, solve(problem, BUDGET), BUDGET).unserved
    assert [(c.kind, c.subject, c.after) for way in told.ways for c in way.changes] == [("max_size", "b", 1)]


def test_a_member_without_terms_is_invalid() -> None:
    with pytest.raises(ProblemError, match="say why in unschedulable"):
        solve(Problem((pods("ns/db", 1, spec(node_terms=((),))),), (A,)), BUDGET)
