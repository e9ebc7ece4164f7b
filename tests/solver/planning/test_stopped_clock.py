"""What holds of a plan whenever its time is up: the clock is stopped at every point at which it is read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given

from solver import Budget, Limit, Plan, PlanProgress, Problem, Status, solve
from solver.model import Goal
from solver.model.budget import Interruption, RunningBudget
from solver.planning.settling import settled
from solver.planning.warm_up import warm_up
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.problems import GIB, group, node, pods, spec
from tests.support.solver.reference import as_micros, best_objective, bounds_as_micros
from tests.support.solver.strategies import constrained_problems, problems

SECONDS = 1.0
READS = 50
"""After which time is up in any case."""
FEW = examples(10)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """What interpreted kernels take is none of the budget's, so that one of two plans would not see its time end."""
    warm_up()


@dataclass
class ToldClock:
    """Time that passes each time somebody asks for it, and is up from one question on."""

    up_from: int = 1_000_000
    asked: int = 0

    def __call__(self) -> float:
        self.asked += 1
        return SECONDS * (1000.0 if self.asked > self.up_from else self.asked / READS)


def hard() -> Problem:
    """Return a problem whose best plan nobody proves: 240 sizes of pods."""
    chance = random.Random(7)
    sets = tuple(pods(f"p{index}", 5, spec(chance.randint(3, 77) * 100, chance.randint(1, 29))) for index in range(240))
    sizes = ((8_000, 32, 0.4), (16_000, 64, 0.77), (32_000, 64, 1.2))
    groups = (group(f"g{cpu}", cpu=cpu, extra={"memory": memory * GIB}, price=price) for cpu, memory, price in sizes)
    return Problem(sets, tuple(groups))


def plans_at_every_end(problem: Problem) -> Iterator[tuple[int, Plan, Plan]]:
    """Yield what the search found and the plan made of it, for every question at which time may be up, the first
    one first: that which says when planning begins is no such question."""
    whole = ToldClock()
    solve(problem, Budget(SECONDS, clock=whole))
    for up_from in range(1, whole.asked + 1):
        found: list[Plan] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("solver.planning.solve.settled", partial(settled_after, found))
            plan = solve(problem, Budget(SECONDS, clock=ToldClock(up_from)))
        yield up_from, found[-1], plan


def settled_after(found: list[Plan], problem: Problem, plan: Plan) -> Plan:
    found.append(plan)
    return settled(problem, plan)


def check_all(problem: Problem) -> None:
    exact = best_objective(problem)
    # Columns know nothing of the pods that others need beside them: of two selections the better one may lack more.
    has_helpers = any(each.spec.pod_affinity for each in problem.pod_sets)
    first: tuple[int, ...] | None = None
    for up_from, searched, plan in plans_at_every_end(problem):
        assert list(faults_of(problem, plan)) == [], up_from
        found = as_micros(plan, problem)
        # What settling adds to the first one is luck, which a search that stands in its midst need not have.
        first = as_micros(searched, problem) if first is None else first
        assert exact <= found, up_from
        assert found <= first or has_helpers, up_from
        check_bounds(problem, plan, found, exact)
        check_certificate(problem, plan, found, exact)


def check_bounds(problem: Problem, plan: Plan, found: tuple[int, ...], exact: tuple[int, ...]) -> None:
    bounds = bounds_as_micros(plan, problem)
    for stage, (bound, value, best) in enumerate(zip(bounds, found, exact, strict=True)):
        assert bound <= value
        if found[:stage] != exact[:stage]:
            break  # from here on the bound is of plans that are worse before it
        assert bound <= best


def check_certificate(problem: Problem, plan: Plan, found: tuple[int, ...], exact: tuple[int, ...]) -> None:
    certificate = plan.certificate
    if certificate.status is Status.OPTIMAL:
        ties = 1 if problem.previous is None else 2
        assert found[:-ties] == exact[:-ties]
    unserved = [each for each in plan.objective if each.stage.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS)]
    assert certificate.unserved_unproven == sum(each.value - each.lower_bound for each in unserved)
    if certificate.unserved_unproven:
        assert certificate.status is Status.FEASIBLE
        assert certificate.gap is None
    if not problem.nodes and len(certificate.tiers) == 1 and certificate.cost_usd_per_hour:
        assert certificate.lower_bound_usd_per_hour > 0


SEVEN = tuple(pods(f"p{size}", 1, spec(size * 1000, 2)) for size in range(1, 8))
GROUPS = (
    group("small", cpu=4000, price=0.2),
    group("medium", cpu=8000, price=0.38),
    group("large", cpu=16_000, price=0.8),
)
SMALL = (
    Problem(SEVEN, GROUPS),
    Problem(SEVEN, tuple(replace(each, max_size=1) for each in GROUPS)),
    Problem(SEVEN, GROUPS, limits=(Limit("all", {"cpu": 20_000}),)),
    Problem(SEVEN, (GROUPS[0], replace(GROUPS[1], weight=9, max_size=2), GROUPS[2])),
    Problem(SEVEN, GROUPS, (node("standing", 3000), node("full", 0))),
    Problem(SEVEN[:1], (replace(GROUPS[0], price_usd_per_hour=0.1), replace(GROUPS[1], min_size=2))),
    Problem((), (replace(GROUPS[0], min_size=1),)),
)


@pytest.mark.parametrize("enumerated", [True, False], ids=["all patterns", "some patterns"])
@pytest.mark.parametrize(
    "problem", SMALL, ids=["plain", "few nodes", "limit", "two tiers", "standing", "minimum", "nothing but a minimum"]
)
def test_seven_pods(problem: Problem, enumerated: bool) -> None:
    """Of which a plan once said that it could cost nothing, because the clock was up before its first bound."""
    with pytest.MonkeyPatch.context() as patch:
        if not enumerated:
            patch.setattr("solver.planning.search.ENUMERATE", 0)
        check_all(problem)


@given(problems())
@FEW
def test_a_plan_is_as_good_as_the_first_one_and_its_bounds_hold(problem: Problem) -> None:
    check_all(problem)


@given(problems())
@FEW
def test_so_where_columns_are_generated(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.search.ENUMERATE", 0)
        check_all(problem)


@given(constrained_problems())
@FEW
def test_so_with_constraints_between_pods(problem: Problem) -> None:
    check_all(problem)


@given(constrained_problems())
@FEW
def test_so_with_constraints_where_columns_are_generated(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.search.ENUMERATE", 0)
        check_all(problem)


@pytest.mark.parametrize(
    "budget", [Budget(3600.0), Budget(deterministic_seconds=3600.0)], ids=["wall", "deterministic"]
)
def test_an_interruption_ends_a_search_that_would_take_an_hour(budget: Budget) -> None:
    """It comes with the first thing that is told, from a thread of the planner's."""
    by = Interruption()
    told: list[PlanProgress] = []

    def tell(found: PlanProgress) -> None:
        told.append(found)
        by.interrupt()

    plan = solve(hard(), replace(budget, interruption=by), tell)
    assert plan.certificate.status is Status.FEASIBLE
    assert not plan.unplaced
    assert plan.certificate.cost_usd_per_hour <= told[0].cost_usd_per_hour + 1e-6
    assert 0 < plan.certificate.lower_bound_usd_per_hour < plan.certificate.cost_usd_per_hour


def test_an_interruption_stops_what_runs_and_what_begins_later() -> None:
    by, stopped = Interruption(), list[str]()
    with by.stopping(lambda: stopped.append("ran before and is over")):
        pass
    with by.stopping(lambda: stopped.append("runs")):
        by.interrupt()
    with by.stopping(lambda: stopped.append("begins later")):
        pass
    assert stopped == ["runs", "begins later"]
    budget = RunningBudget(Budget(10.0, interruption=by))
    assert (budget.left_seconds(), budget.wall_limit(), budget.exhausted) == (0.0, 0.0, True)
