"""How good the planner's plans are, how well proven, and how fast: real and synthetic workloads beside a first-fit
baseline in the same run.

    python -m bench.planner [--case NAME] [--budget SECONDS] [--json FILE]

Prints one table: cost and proven gap after each budget, seconds taken, the baseline's cost as a ratio. Times are of
this machine; costs, bounds and ratios hold anywhere.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.baselines.first_fit import first_fit_decreasing
from bench.cases import CASES
from solver import Budget, Problem, solve
from solver.pricing import warm_up


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    case: str
    pods: int
    classes: int
    groups: int
    budget_seconds: float
    seconds: float
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    gap: float
    unplaced: int
    first_fit_ratio: float
    """The baseline's cost over ours."""
    first_fit_seconds: float
    peak_mib: int
    """Of the whole process so far."""


def measure(case: str, problem: Problem, budget_seconds: float) -> Result:
    start = time.perf_counter()
    baseline = first_fit_decreasing(problem)
    middle = time.perf_counter()
    plan = solve(problem, Budget(budget_seconds, workers=2))
    end = time.perf_counter()
    certificate = plan.certificate
    return Result(
        case,
        sum(p.count for p in problem.pod_sets),
        len(plan.pod_classes),
        len(problem.node_groups),
        budget_seconds,
        end - middle,
        certificate.cost_usd_per_hour,
        certificate.lower_bound_usd_per_hour,
        certificate.gap,
        sum(u.count for u in plan.unplaced),
        baseline / certificate.cost_usd_per_hour if certificate.cost_usd_per_hour else 1.0,
        middle - start,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--budget", type=float, action="append", help="seconds, instead of the case's own")
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    arguments = parser.parse_args()
    warm_up()
    heads = ("budget", "took", "$/h", "gap %", "left", "FFD x", "FFD s", "MiB")
    widths = (7, 7, 10, 7, 6, 6, 6, 6)
    print(f"{'case':<26}", *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    results = []
    for name in arguments.case or CASES:
        case = CASES[name]
        problem = case.build()
        for budget_seconds in arguments.budget or [run.budget_seconds for run in case.runs]:
            result = measure(name, problem, budget_seconds)
            results.append(result)
            print(
                f"{name:<26} {budget_seconds:>6.1f}s {result.seconds:>6.2f}s {result.cost_usd_per_hour:>10.2f} "
                f"{100 * result.gap:>7.2f} {result.unplaced:>6} {result.first_fit_ratio:>6.3f} "
                f"{result.first_fit_seconds:>6.2f} {result.peak_mib:>6}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
