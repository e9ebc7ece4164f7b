"""What volumes and resource claims cost planning: 150,000 pods over 5,000 nodes in three zones, with and without.

    python -m bench.volumes_and_claims [GAP]

Every tenth pod set claims its GPUs as devices instead of asking for them by number or, where it asks for none, has
volumes, two thirds of them bound to a zone. Prints what planning takes until GAP (0.01 where none is named) is proven,
and its ratio to the same pods without volumes and claims: where nobody cares about zones, so that the groups of three
zones are planned as one, and where some pods name theirs. CPU seconds are of all threads: what wall time would hardly
be below on a loaded machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from bench.workloads import with_volumes_and_claims, with_zones, zonal_cluster
from solver import Budget, Problem, solve
from solver.planning.warm_up import warm_up

_FIRST_BUDGET_SECONDS, _LONGEST_BUDGET_SECONDS, _GROWTH = 0.5, 60.0, 1.15
_WORKERS = 2
GOAL = 1.2


def main() -> None:
    gap = float(sys.argv[1]) if len(sys.argv) > 1 else 0.01
    warm_up()
    without = zonal_cluster()
    problems = {"without": without, "zones": with_zones(without), "with": with_volumes_and_claims(without)}
    print(f"{'':8} {f'gap {gap:.1%}':>12} {'CPU':>8} {'proven':>8} {'left':>6}")
    seconds = {name: _measured(name, problem, gap) for name, problem in problems.items()}
    for base in ("without", "zones"):
        wall, cpu = (a / b for a, b in zip(seconds["with"], seconds[base], strict=True))
        print(f"with, to {base:8} {wall:.2f}x, CPU {cpu:.2f}x; goal {GOAL}x")


def _measured(name: str, problem: Problem, gap: float) -> tuple[float, float]:
    """Print a line; return the wall and CPU seconds until the gap is proven."""
    for budget in _budgets():
        started, cpu_started = time.perf_counter(), time.process_time()
        plan = solve(problem, Budget(budget, workers=_WORKERS))
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        found = plan.certificate.gap
        if found <= gap:
            break
    left = sum(each.count for each in plan.unplaced)
    print(f"{name:8} {seconds:10.2f} s {cpu_seconds:6.1f} s {found:8.2%} {left:6}", flush=True)
    return seconds, cpu_seconds


def _budgets() -> Iterator[float]:
    budget = _FIRST_BUDGET_SECONDS
    while budget <= _LONGEST_BUDGET_SECONDS:
        yield budget
        budget *= _GROWTH


if __name__ == "__main__":
    main()
