"""What holds of every plan where pods constrain each other, on random small problems of every kind. The checker has
passed each plan already: `solve` lets none out that it has not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import Budget, NodeGroup, Plan, Problem, Status, solve
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, Requirement, TopologySpread
from tests.support.examples import examples
from tests.support.solver.problems import group, node, pods, spec
from tests.support.solver.reference import as_micros, best_objective, bounds_as_micros
from tests.support.solver.reference_terms import order_matters
from tests.support.solver.strategies import constrained_problems

BUDGET = Budget(deterministic_seconds=10.0)
MODEST = examples(60, derandomize=True)


@given(constrained_problems())
@examples(500, derandomize=True)
def test_the_same_optimum_as_an_exact_assignment_model(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    note(str(plan))
    is_optimal_where_order_does_not_matter(problem, plan)


def is_optimal_where_order_does_not_matter(problem: Problem, plan: Plan) -> None:
    found, best = as_micros(plan, problem), best_objective(problem)
    # Some of what the model forbids the scheduler takes, and it is planned then.
    assert bounds_as_micros(plan, problem) <= min(found, best)
    if not order_matters(problem) or plan.certificate.status is not Status.FEASIBLE:
        assert found <= best
        assert plan.may_get_stuck or plan.certificate.status is not Status.FEASIBLE


@pytest.mark.parametrize("placeholder", [False, True])
def test_less_important_pods_make_way_where_a_constraint_counts_them(placeholder: bool) -> None:
    """One with affinity to its like begins alone in its zone; what is there before it in another zone keeps it out."""
    plain = spec(cpu=3000, labels=(("app", "a"),))
    selector = PodSelector((Requirement("app", Operator.IN, ("a",)),), ("",))
    beside = replace(plain, node_selector=(("zone", "a"),), pod_affinity=(PodAffinityTerm("zone", selector),))
    problem = Problem(
        (
            pods("important", 1, beside, priority=1000),
            pods("plain", 1, replace(plain, node_selector=(("zone", "a"),))),
            pods("elsewhere", 1, replace(plain, node_selector=(("zone", "b"),)), placeholder=placeholder),
        ),
        (group("g", labels={"zone": "a"}),),
        (node("n", 4000, labels={"zone": "b"}),),
    )
    plan = solve(problem, BUDGET)
    assert [plan.pod_classes[each.pod_class].example for each in plan.unplaced] == ["elsewhere"]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 0), (0, 5)])
def test_what_an_order_could_reach_is_planned_where_priorities_make_it_and_else_not_called_optimal(
    first: int, last: int
) -> None:
    """With one that a spread binds in a zone, others that it counts may come there after it, and not before it."""
    selector = PodSelector((Requirement("app", Operator.IN, ("a",)),))
    plain = spec(cpu=3000, labels=(("app", "a"),))
    zones = replace(plain, topology_spread=(TopologySpread("zone", 1, selector, min_domains=3),))
    problem = Problem(
        (pods("plain", 2, plain, priority=first), pods("spread", 1, zones, priority=last)),
        (group("cheap", price=1.0, labels={"zone": "a"}), group("dear", price=4.0, labels={"zone": "b"})),
    )
    plan = solve(problem, BUDGET)
    named = last > first
    assert not plan.unplaced
    assert plan.certificate.cost_usd_per_hour == (3.0 if named else 6.0)
    assert plan.certificate.lower_bound_usd_per_hour == 3.0
    assert plan.certificate.status is (Status.OPTIMAL if named else Status.FEASIBLE)


@given(constrained_problems())
@MODEST
def test_the_same_optimum_where_counters_are_too_many_to_be_resources(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.reduction.reduce._MOST_COUNTERS", 0)
        plan = solve(problem, BUDGET)
    is_optimal_where_order_does_not_matter(problem, plan)


@given(constrained_problems())
@MODEST
def test_rows_that_are_chosen_first_never_claim_too_much(problem: Problem) -> None:
    """The way that large problems go: rows are chosen, and places annealed."""
    claims_no_more_than_it_may(problem)


@given(constrained_problems())
@MODEST
def test_rows_that_are_planned_as_one_never_claim_too_much(problem: Problem) -> None:
    """The way of those with too many pods to anneal: rows that nodes do not tell apart are planned as one, and
    split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.search.MOST_UNITS", 0)
        claims_no_more_than_it_may(problem)


def claims_no_more_than_it_may(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.search.ENUMERATE", 0)
        plan = solve(problem, Budget(deterministic_seconds=2.0))
    note(str(plan))
    assert bounds_as_micros(plan, problem) <= min(as_micros(plan, problem), best_objective(problem))


@given(constrained_problems(), st.randoms(use_true_random=False))
@MODEST
def test_the_order_of_the_input_changes_nothing(problem: Problem, rng: random.Random) -> None:
    other = replace(
        problem,
        pod_sets=tuple(rng.sample(problem.pod_sets, len(problem.pod_sets))),
        node_groups=tuple(rng.sample(problem.node_groups, len(problem.node_groups))),
        nodes=tuple(rng.sample(problem.nodes, len(problem.nodes))),
    )
    assert replace(solve(other, BUDGET), elapsed_seconds=0) == replace(solve(problem, BUDGET), elapsed_seconds=0)


@given(constrained_problems(), st.integers(0, 2), st.integers(1, 3))
@MODEST
def test_more_capacity_in_a_known_domain_never_worsens_the_objective(problem: Problem, of: int, more: int) -> None:
    """A new domain may: a spread then counts it as empty. So may a group that could not grow and now can."""
    group = problem.node_groups[of % len(problem.node_groups)]
    problem = replace(problem, previous=None)
    twin = NodeGroup(
        "twin", group.allocatable, group.price_usd_per_hour, group.labels, max_size=more, weight=group.weight
    )
    if group.max_size == 0:
        return
    larger = replace(problem, node_groups=(*problem.node_groups, twin))
    before = as_micros(solve(problem, BUDGET), problem)
    assert as_micros(solve(larger, BUDGET), larger) <= before


@given(constrained_problems())
@MODEST
def test_gangs_are_whole_or_absent(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    left = {unplaced.pod_class: unplaced.count for unplaced in plan.unplaced}
    shares = {left.get(cls.index, 0) / cls.count for cls in plan.pod_classes if cls.gang == "red"}
    assert len(shares) <= 1
    assert shares <= {0.0, 1.0}


@given(constrained_problems())
@MODEST
def test_deterministic_limits_give_the_same_plan_twice(problem: Problem) -> None:
    assert replace(solve(problem, BUDGET), elapsed_seconds=0) == replace(solve(problem, BUDGET), elapsed_seconds=0)


@given(constrained_problems())
@MODEST
def test_a_tier_is_used_only_for_what_higher_ones_cannot_serve(problem: Problem) -> None:
    lowest = {g.id for g in problem.node_groups if g.weight == min(each.weight for each in problem.node_groups)}
    plan = solve(problem, BUDGET)
    if len(lowest) == len(problem.node_groups) or lowest.isdisjoint(i.node_group for i in plan.increments):
        return
    without = replace(problem, node_groups=tuple(g for g in problem.node_groups if g.id not in lowest), previous=None)
    spared = best_objective(without)
    served = len(spared) - len({g.weight for g in without.node_groups}) - 1
    assert spared[:served] > as_micros(plan, problem)[:served]


@pytest.mark.parametrize(
    ("counts", "cpu", "best"),
    [((100,), 98, 2), ((20, 20), 40, 10), ((10,), 6, 4)],
    ids=["too-many-to-try-all", "mixes-left-out", "all-tried"],
)
def test_what_is_proven_of_pods_that_must_share_a_node(counts: tuple[int, ...], cpu: int, best: int) -> None:
    """Where not every number of every class is tried, a better plan may exist and the bound says so."""
    together = (PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("a",)),))),)
    labels = (("app", "a"),)
    sizes = range(len(counts), 0, -1)
    sets = tuple(
        pods(f"class-{size}", count, spec(1000 * size, labels=labels, pod_affinity=together))
        for size, count in zip(sizes, counts, strict=True)
    )
    plan = solve(Problem(sets, (group("g", 1000 * cpu),)), Budget(deterministic_seconds=3))
    assert plan.objective[0].lower_bound <= best <= plan.objective[0].value
    assert plan.certificate.status is not Status.OPTIMAL or plan.objective[0].value == best
