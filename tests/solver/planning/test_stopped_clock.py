"""What holds of a plan whenever its time is up: the clock is stopped at every point at which it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, note

from solver import Budget, Plan, Problem, Status, solve
from solver.model import Goal
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.reference import as_micros, best_objective
from tests.support.solver.strategies import constrained_problems, problems

SECONDS = 1.0
READS = 50
"""After which time is up in any case."""
FEW = examples(5)


@dataclass
class ToldClock:
    """Time that passes each time somebody asks for it, and is up from one question on."""

    up_from: int = 1_000_000
    asked: int = 0

    def __call__(self) -> float:
        self.asked += 1
        return SECONDS * (1000.0 if self.asked > self.up_from else self.asked / READS)


def plans_at_every_end(problem: Problem) -> Iterator[tuple[int, Plan]]:
    """Yield the plan for every question at which time may be up, the first one first: that which says when planning
    begins is no such question."""
    whole = ToldClock()
    solve(problem, Budget(SECONDS, clock=whole))
    for up_from in range(1, whole.asked + 1):
        yield up_from, solve(problem, Budget(SECONDS, clock=ToldClock(up_from)))


def check_all(problem: Problem) -> None:
    exact = best_objective(problem)
    first: tuple[int, ...] | None = None
    for up_from, plan in plans_at_every_end(problem):
        note(f"up from {up_from}: {plan}")
        assert list(faults_of(problem, plan)) == []
        found = as_micros(plan.vector, problem)
        first = found if first is None else first
        assert exact <= found <= first, up_from
        check_bounds(problem, plan, found, exact)
        check_certificate(problem, plan, found, exact)


def check_bounds(problem: Problem, plan: Plan, found: tuple[int, ...], exact: tuple[int, ...]) -> None:
    bounds = [each.lower_bound for each in plan.objective]
    for stage, (bound, value, best) in enumerate(zip(as_micros(bounds, problem), found, exact, strict=True)):
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


@given(problems())
@FEW
def test_a_plan_is_as_good_as_the_first_one_and_its_bounds_hold(problem: Problem) -> None:
    check_all(problem)


@given(problems())
@FEW
def test_so_where_columns_are_generated(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.incumbent.ENUMERATE", 0)
        check_all(problem)


@given(constrained_problems())
@FEW
def test_so_with_constraints_between_pods(problem: Problem) -> None:
    check_all(problem)


@given(constrained_problems())
@FEW
def test_so_with_constraints_where_columns_are_generated(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.incumbent.ENUMERATE", 0)
        check_all(problem)
