"""One case measured in this process: what the plan costs, what is proven, and what it took. `bench.planner` starts a
process for each, so that the peak of memory is the case's own; starting it and compiling is not counted.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from bench.baselines.first_fit import first_fit_decreasing
from bench.cases import Case, Run
from cagrpc.cli.main import COLLECT_AFTER
from solver import Budget, Certificate, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.planning.warm_up import warm_up

WORKERS = 2
"""The cores that goals are set for."""
BUDGET_TOLERANCE = 1.1
MOST_MIB = 1024
WARM_SHARE = 0.18
"""Of the cold budget: five times faster even where a budget is missed by the tenth that it may be."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    case: str
    section: str
    pods: int
    classes: int
    groups: int
    nodes: int
    """That stand already."""
    budget_seconds: float
    seconds: float
    cpu_seconds: float
    """User and system time of all threads: what `seconds` would hardly be below on a loaded machine."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    gap: float
    goal: float | None
    unplaced: int
    optimum_usd_per_hour: float | None
    first_fit_ratio: float | None
    """The baseline's cost over ours; None where it does not serve the same number of pods."""
    first_fit_seconds: float
    peak_mib: int

    @property
    def met(self) -> bool | None:
        """Whether the gap was proven within the budget and a gibibyte; None where there is no goal."""
        if self.goal is None:
            return None
        in_time = self.seconds <= self.budget_seconds * BUDGET_TOLERANCE
        return self.gap <= self.goal and in_time and self.peak_mib < MOST_MIB

    @property
    def over_optimum(self) -> float | None:
        """What the plan costs above the optimum, a fraction, where the optimum is known."""
        optimum = self.optimum_usd_per_hour
        return None if optimum is None else self.cost_usd_per_hour / optimum - 1


def measure(case: Case, run: Run) -> Iterator[Result]:
    """The rows of one run: one, or, of a warm start, the cold one and the warm one."""
    get_ready()
    problem = case.build()
    if case.changed is None:
        yield _finish(case, problem, _solved(case, problem, run))
        return
    before = solve(problem, _budget(run))
    changed = case.changed(problem)
    cold = _solved(case, changed, run)
    again = Run(run.budget_seconds * WARM_SHARE, cold.gap)
    warm = _solved(case, replace(changed, previous=before), again)
    yield _finish(case, changed, replace(cold, case=f"{case.name}: cold"))
    yield _finish(case, changed, replace(warm, case=f"{case.name}: warm"))


def get_ready() -> None:
    """What a server has behind it when the first plan is asked for: everything compiled and loaded, and garbage sought
    as rarely as there."""
    gc.set_threshold(COLLECT_AFTER)
    warm_up()
    shape = PodSpec((("cpu", 700),))
    solve(Problem((PodSet("pod", shape, 5),), (NodeGroup("group", {"cpu": 1000, "pods": 10}, 1.0),)), Budget(0.1))


def _budget(run: Run) -> Budget:
    return Budget(run.budget_seconds, workers=WORKERS)


def _solved(case: Case, problem: Problem, run: Run) -> Result:
    plan, seconds, cpu_seconds = timed(lambda: solve(problem, _budget(run)))
    certificate = plan.certificate
    return Result(
        case.name,
        case.section,
        sum(pods.count for pods in problem.pod_sets),
        len(plan.pod_classes),
        len(problem.node_groups),
        len(problem.nodes),
        run.budget_seconds,
        seconds,
        cpu_seconds,
        certificate.cost_usd_per_hour,
        certificate.lower_bound_usd_per_hour,
        cost_gap(certificate),
        run.goal,
        sum(left.count for left in plan.unplaced),
        None,
        None,
        0.0,
        _peak_mib(),
    )


def cost_gap(certificate: Certificate) -> float:
    """Return the gap of what is served, as a number in any case: all of the cost where nothing is proven."""
    cost = certificate.cost_usd_per_hour
    return (cost - certificate.lower_bound_usd_per_hour) / cost if cost else 0.0


def _finish(case: Case, problem: Problem, result: Result) -> Result:
    """With the baseline, which is run last: its memory is not the planner's."""
    packing, seconds, _ = timed(lambda: first_fit_decreasing(problem))
    comparable = packing.unplaced == result.unplaced and result.cost_usd_per_hour > 0
    return replace(
        result,
        first_fit_ratio=packing.cost_usd_per_hour / result.cost_usd_per_hour if comparable else None,
        first_fit_seconds=seconds,
        optimum_usd_per_hour=case.optimum_usd_per_hour() if case.optimum_usd_per_hour else None,
    )


def timed(work: Callable[[], _T]) -> tuple[_T, float, float]:
    """Return what the work returns, its wall time and its CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, time.perf_counter() - wall, time.process_time() - cpu


def _peak_mib() -> int:
    """Of this process and of the largest it has started."""
    kibibytes = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kibibytes // 1024
