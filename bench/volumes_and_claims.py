"""What volumes and resource claims cost planning: 150,000 pods over 5,000 nodes in three zones, with and without.

    python -m bench.volumes_and_claims [TIMES]

Every tenth pod set claims its GPUs as devices instead of asking for them by number or, where it asks for none, has
volumes, two thirds of them bound to a zone. The same pods without volumes and claims are planned in turn with them,
TIMES times each (7 where none is named), once where nobody cares about zones, so that the groups of three zones are
planned as one, and once where some pods name theirs. Prints the least CPU seconds of each, and the ratios of these: of
all threads, and the least, as wall times and means say more of what else the machine does. With as long a budget as
none of them needs, all end with the first plan that is proven well.
"""

from __future__ import annotations

import gc
import sys
import time
from math import inf

from bench.measure import cost_gap
from bench.workloads import with_volumes_and_claims, with_zones, zonal_cluster
from solver import Budget, Problem, solve
from solver.planning.warm_up import warm_up

_BUDGET = Budget(3.0, workers=2)
GOAL = 1.2


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    warm_up()
    without = zonal_cluster()
    problems = {"without": without, "zones": with_zones(without), "with": with_volumes_and_claims(without)}
    least = dict.fromkeys(problems, inf)
    gaps, left = dict.fromkeys(problems, inf), dict.fromkeys(problems, 0)
    for _ in range(times):
        for name, problem in problems.items():
            seconds, gaps[name], left[name] = _solved(problem)
            least[name] = min(least[name], seconds)
    print(f"{'':8} {'CPU':>8} {'gap':>8} {'left':>6}   the least of {times}")
    for name, seconds in least.items():
        print(f"{name:8} {seconds:6.2f} s {gaps[name]:8.2%} {left[name]:6}")
    for base in ("without", "zones"):
        print(f"with, to {base:8} CPU {least['with'] / least[base]:.2f}x; goal {GOAL}x")


def _solved(problem: Problem) -> tuple[float, float, int]:
    """Return the CPU seconds of a plan, its gap, and the pods that it leaves out."""
    gc.collect()  # what one plan leaves behind is not the next one's
    started = time.process_time()
    plan = solve(problem, _BUDGET)
    seconds = time.process_time() - started
    return seconds, cost_gap(plan.certificate), sum(each.count for each in plan.unplaced)


if __name__ == "__main__":
    main()
