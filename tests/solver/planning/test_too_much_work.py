"""Whatever pods ask of one another and of nodes: planning takes steps in proportion to what it is asked, those whose
constraints are too much work are left out, and nobody else is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given

from solver import Budget, Plan, PodSet, Problem, ScaleUpCandidate, Status, rank, solve
from solver.columns.patterns import enumerate_maximal
from solver.model import (
    HOSTNAME,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredPods,
    Requirement,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.reduction import work
from solver.reduction.reduce import reduce
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.hostile import HONEST, HOSTILE, MADE, Asked, hostile, hostile_problem, left_out
from tests.support.solver.problems import group, node, spec, wants
from tests.support.steps import steps

AT_ONCE = Budget(0.0)
"""Time for a first plan and its bound."""
FEW_STEPS = 20_000
PER_STEP, PER_CONSTRAINT = 50, 600
"""Calls for each step that is allowed, and for each constraint that is read."""


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small problems, too, have too much."""
    monkeypatch.setattr(work, "MOST_STEPS", FEW_STEPS)


def told_steps(work_to_do: Callable[[], Plan]) -> tuple[int, Plan]:
    plans: list[Plan] = []
    taken = steps(lambda: plans.append(work_to_do()))
    return taken, plans[0]


@given(hostile)
@example(Asked(["ports", "rather with"], 9, 2, 0))
@example(Asked(["rather with", "soft spread"], 12, 3, 20))
@example(Asked(["rather nodes", "spread", "tolerations"], 16, 38, 0))
@example(Asked(["spread of most", "apart from one", "with most"], 14, 1, 0))
@example(Asked(["tolerations", "spread of most", "rather apart"], 12, 3, 0))
@example(Asked(["with most", "apart from one"], 36, 2, 0))
@example(Asked(["rather nodes", "with one"], 5, 8, 20))
@examples(60)
def test_steps_are_in_proportion_and_honest_pods_are_served(asked: Asked) -> None:
    problem = hostile_problem(*asked)
    taken, plan = told_steps(lambda: solve(problem, AT_ONCE))
    assert taken <= PER_STEP * FEW_STEPS + PER_CONSTRAINT * asked.constraints
    assert left_out(plan, HONEST) == 0
    assert {each.spec for each in plan.pod_classes} == {each.spec for each in problem.pod_sets}


@pytest.mark.parametrize("kind", sorted(MADE))
def test_twice_the_pods_take_little_more_than_twice_the_steps(kind: str) -> None:
    problems = [hostile_problem([kind], pods, 20) for pods in (20, 40)]
    once, twice = (steps(partial(solve, problem, AT_ONCE)) for problem in problems)
    assert twice <= 2.3 * once + PER_STEP * FEW_STEPS / 2


@pytest.mark.parametrize("kind", sorted(MADE))
def test_comparing_options_takes_no_more_steps(kind: str) -> None:
    problem = hostile_problem([kind], 40, 40)
    scores: list[object] = []
    taken = steps(lambda: scores.extend(rank(problem, [ScaleUpCandidate("g0", 1, {40: 5})], Budget(60.0))))
    assert len(scores) == 1
    assert taken <= PER_STEP * FEW_STEPS + PER_CONSTRAINT * 40 * 40


def apart_from_all(number: int, namespace: str = HOSTILE) -> PodSet:
    """Of a class of its own, apart from all pods but those of a label of its own."""
    others = PodSelector((Requirement("k", Operator.NOT_IN, (f"{namespace}{number}",)),))
    term = PodAffinityTerm(HOSTNAME, others)
    return PodSet(
        f"{namespace}{number}",
        spec(100 + number, namespace=namespace, labels=(("k", f"{namespace}{number}"),), pod_anti_affinity=(term,)),
        1,
    )


def planned(sets: Sequence[PodSet]) -> Plan:
    problem = Problem(tuple(sets), (group("g", 16_000, max_size=1000),))
    plan = solve(problem, Budget(deterministic_seconds=0.02))
    assert list(faults_of(problem, plan)) == []
    return plan


def test_who_exceeds_the_share_leaves_out_as_many_pods_as_it_takes() -> None:
    plan = planned([apart_from_all(number) for number in range(200)])
    out = left_out(plan, HOSTILE, why=work.TOO_MUCH)
    # Each of the others counts some 200 classes.
    assert 200 - FEW_STEPS // 200 <= out < 200 - FEW_STEPS // 200 + 10
    assert left_out(plan, HOSTILE) == out
    assert plan.certificate.status is not Status.INFEASIBLE


def test_within_the_share_nobody_is_left_out() -> None:
    plan = planned([apart_from_all(number) for number in range(100)])
    assert not plan.unplaced


def test_one_namespaces_work_leaves_out_no_pods_of_another() -> None:
    """Of which those together have no more than an equal part."""
    mine = [apart_from_all(number) for number in range(200)]
    others = [apart_from_all(number, namespace) for namespace in ("x", "y") for number in range(15)]
    plan = planned([*mine, *others])
    assert left_out(plan, "x") == left_out(plan, "y") == 0
    assert left_out(plan, HOSTILE, why=work.TOO_MUCH) > 100


def test_the_heaviest_are_left_out() -> None:
    light = [PodSet(f"l{n}", spec(200 + n, namespace=HOSTILE), 1) for n in range(50)]
    heavy = [apart_from_all(number) for number in range(200)]
    plan = planned([*light, *heavy])
    assert {plan.pod_classes[each.pod_class].example[0] for each in plan.unplaced} == {HOSTILE[0]}


def preferring(number: int, namespace: str = HOSTILE, *, required: bool = False) -> PodSet:
    """Of a class of its own, and would rather be apart from all pods but those of a label of its own."""
    strict = apart_from_all(number, namespace)
    (term,) = strict.spec.pod_anti_affinity
    wishes = (PreferredPods(1, term, anti=True), PreferredPods(1, replace(term, topology_key="zone"), anti=True))
    spread = TopologySpread("zone", 1, PodSelector(()), WhenUnsatisfiable.SCHEDULE_ANYWAY)
    asked = replace(
        strict.spec, pod_anti_affinity=(term,) if required else (), preferred_pods=wishes, topology_spread=(spread,)
    )
    return replace(strict, spec=asked)


def test_pods_whose_preferences_alone_are_too_much_are_planned_without_them_and_the_plan_says_why() -> None:
    honest = replace(preferring(1, HONEST), count=3)
    plan = planned([*(preferring(number) for number in range(200)), honest])
    assert not plan.unplaced
    classes = plan.pod_classes
    without = [each for each in plan.relaxed if each.reason]
    assert {each.reason for each in without} == {work.TOO_MUCH_PREFERRED}
    assert {classes[each.pod_class].spec.namespace for each in without} == {HOSTILE}
    assert {each.preferences for each in without} == {
        (f"preferred pod anti-affinity over {HOSTNAME}", "preferred pod anti-affinity over zone", "spread over zone")
    }
    assert 100 < sum(each.count for each in without) < 200, "no more than it takes"
    assert {each.spec for each in classes} == {preferring(number).spec for number in range(200)} | {honest.spec}
    assert plan.certificate.status is Status.FEASIBLE


def test_preferences_go_before_pods_and_pods_only_where_that_is_not_enough() -> None:
    plan = planned([preferring(number, required=True) for number in range(200)])
    served = 200 - left_out(plan, HOSTILE, why=work.TOO_MUCH)
    assert served == 200 - left_out(planned([apart_from_all(number) for number in range(200)]), HOSTILE)
    assert sum(each.count for each in plan.relaxed if each.reason) == served


def test_a_term_that_many_pods_have_is_counted_once() -> None:
    """As that of all deployments of a team that want to be apart from one another's pods."""
    term = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("team", Operator.IN, ("a",)),)))
    sets = [
        PodSet(f"p{n}", spec(100 + n, namespace="a", labels=(("team", "a"),), pod_anti_affinity=(term,)), 1)
        for n in range(150)
    ]
    assert not planned(sets).unplaced


def test_a_pod_that_tells_all_nodes_apart_has_only_itself_compared_with_all() -> None:
    nodes = tuple(node(f"n{n}", 4000, labels={"machine": f"m{n}", "zone": f"z{n % 3}"}) for n in range(400))
    sets = [PodSet(f"p{n}", spec(100 + n, node_selector={"zone": f"z{n % 4}"}), 1) for n in range(100)]
    telling = PodSet("t", spec(affinity=wants("machine", "NotIn", "m1")), 1)
    without, with_it = (
        steps(partial(solve, Problem(tuple(each), nodes=nodes), AT_ONCE)) for each in (sets, [*sets, telling])
    )
    assert with_it <= without + 60 * len(nodes)


def test_a_gang_is_left_out_whole() -> None:
    heavy = [replace(apart_from_all(number), gang="g" if number < 2 else None) for number in range(200)]
    light = PodSet("light", spec(150, namespace=HOSTILE), 3, gang="g")
    plan = planned([*heavy, light])
    gang = [each for each in plan.unplaced if plan.pod_classes[each.pod_class].gang == "g"]
    assert sum(each.count for each in gang) in (0, 5)


# ---- topology keys of many values


def beside_a_fine_key(nodes: int, own: Sequence[PodSet] = (), honest: int = 20) -> Problem:
    """Nodes of three zones, each with a value of its own of `machine`, and honest pods that are spread over zones."""
    stand = tuple(node(f"n{n}", 4000, labels={"machine": f"m{n}", "zone": f"z{n % 3}"}) for n in range(nodes))
    sets = []
    for number in range(honest):
        mine = PodSelector((Requirement("app", Operator.IN, (f"a{number}",)),))
        even = (TopologySpread("zone", 1, mine),)
        asked = spec(100 + number, namespace=HONEST, labels=(("app", f"a{number}"),), topology_spread=even)
        sets.append(PodSet(f"{HONEST}{number}", asked, 3))
    return Problem((*sets, *own), (group("g", 16_000, max_size=1000, labels={"zone": "z0"}),), stand)


def over_machines(number: int, **more: object) -> PodSet:
    term = PodAffinityTerm("machine", PodSelector((Requirement("own", Operator.IN, ("t",)),)))
    found = spec(50 + number, namespace=HOSTILE, labels=(("own", "t"),), pod_anti_affinity=(term,))
    return PodSet(f"t{number}", replace(found, **more), 1)  # type: ignore[arg-type]


def test_another_namespaces_key_of_many_values_costs_honest_pods_nothing() -> None:
    alone, beside = (
        steps(partial(solve, beside_a_fine_key(200, own), AT_ONCE))
        for own in ([], [over_machines(n) for n in range(3)])
    )
    assert beside <= 1.5 * alone + 100 * 200
    plan = solve(beside_a_fine_key(200, [over_machines(1)]), AT_ONCE)
    assert left_out(plan, HONEST) == 0
    (out,) = plan.unplaced
    assert "nodes have so many values of machine" in out.reasons[0]


def test_preferences_over_a_key_of_many_values_are_given_up() -> None:
    (term,) = over_machines(1).spec.pod_anti_affinity
    soft = over_machines(1, pod_anti_affinity=(), preferred_pods=(PreferredPods(1, term, anti=True),))
    plan = solve(beside_a_fine_key(200, [soft]), AT_ONCE)
    assert not plan.unplaced
    (relaxed,) = plan.relaxed
    assert "nodes have so many values of machine" in relaxed.reason
    assert list(faults_of(beside_a_fine_key(200, [soft]), plan)) == []


def test_a_key_of_many_values_is_planned_where_it_multiplies_nobody_elses_rows() -> None:
    for problem in (beside_a_fine_key(40, [over_machines(n) for n in range(3)], honest=2),
                    beside_a_fine_key(100, [over_machines(n) for n in range(3)], honest=0)):  # fmt: skip
        assert not solve(problem, AT_ONCE).unplaced


def test_keys_of_few_values_are_planned_whatever_others_have() -> None:
    plan = solve(beside_a_fine_key(60, [over_machines(1)], honest=200), AT_ONCE)
    assert left_out(plan, HONEST) == 0


def test_the_same_pods_are_left_out_whatever_the_budget_is() -> None:
    """Decision 43."""
    sets = [*(apart_from_all(number) for number in range(150)), *(preferring(number, "soft") for number in range(100))]
    problem = Problem(tuple(sets), (group("g", 16_000, max_size=1000),))
    plans = [solve(problem, budget) for budget in (AT_ONCE, Budget(deterministic_seconds=0.1))]
    out = [
        [(each.pod_class, each.count) for each in plan.unplaced if each.reasons == (work.TOO_MUCH,)] for plan in plans
    ]
    given_up = [[(each.pod_class, each.count) for each in plan.relaxed if each.reason] for plan in plans]
    assert out[0] == out[1] != []
    assert given_up[0] == given_up[1] != []


def spread_over_hostnames(number: int, terms: int) -> PodSet:
    """A pod of spreads that all count all pods, and keep nobody out."""
    values = (("b", f"{number}-{each}") for each in range(terms))
    spreads = (TopologySpread(HOSTNAME, 1000, PodSelector((Requirement("a", Operator.IN, each),))) for each in values)
    return PodSet(f"p{number}", spec(10 + number, labels=(("a", "b"),), topology_spread=tuple(spreads)), 1)


def test_listing_patterns_takes_no_longer_where_more_constraints_are_looked_at_for_each() -> None:
    taken = []
    for terms in (5, 40):
        reduced = reduce(Problem(tuple(spread_over_hostnames(each, terms) for each in range(20)), (group("g", 100),)))
        assert enumerate_maximal(reduced, 0, range(len(reduced.kinds))) is None, "for what is made once"
        taken.append(steps(partial(enumerate_maximal, reduced, 1500, range(len(reduced.kinds)))))
    assert taken[1] <= 1.1 * taken[0]


def with_itself(number: int) -> PodSet:
    """A pod that is to be in one rack with all others, by a term of its own."""
    term = PodAffinityTerm("rack", PodSelector((Requirement("a", Operator.IN, ("b", f"{number}")),)))
    return PodSet(f"p{number}", spec(10 + number, labels=(("a", "b"),), pod_affinity=(term,)), 1)


def test_rules_of_pods_that_are_to_be_together_grow_with_the_domains() -> None:
    """And not with their square: for each domain with what is there, and not with all that is elsewhere."""
    entries = []
    for racks in (10, 20):
        groups = tuple(group(f"g{each}", labels={"rack": f"r{each}"}) for each in range(racks))
        rules = reduce(Problem(tuple(with_itself(each) for each in range(10)), groups)).rules
        entries.append(sum(len(part) for rule in rules for part in rule.parts()))
    assert 0 < entries[1] <= 2.3 * entries[0]


def beside_any_other(number: int) -> PodSet:
    """A pod that is to be in a rack with any other one, all of which wait for one another."""
    term = PodAffinityTerm("rack", PodSelector((Requirement("a", Operator.NOT_IN, (f"{number}",)),)))
    return PodSet(f"p{number}", spec(10 + number, labels=(("a", f"{number}"),), pod_affinity=(term,)), 1)


def test_who_waits_for_whom_takes_steps_for_each_pair_of_pods() -> None:
    """And not for each pair once more for each pod."""
    groups = tuple(group(f"g{each}", labels={"rack": f"r{each}"}) for each in range(5))
    problems = [Problem(tuple(map(beside_any_other, range(pods))), groups) for pods in (15, 30)]
    once, twice = (steps(partial(reduce, problem)) for problem in problems)
    assert twice <= 4.6 * once
