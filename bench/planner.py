"""How good the planner's plans are, how well proven, and how fast: real and synthetic workloads beside a first-fit
baseline in the same run.

    python -m bench.planner [--case NAME] [--budget SECONDS] [--json FILE]

Prints one table: cost and proven gap after each budget, seconds taken, the baseline's cost as a ratio. Times are of
this machine; costs, bounds and ratios hold anywhere.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.baselines.first_fit import first_fit_decreasing
from cagrpc.fleet.catalogue import embedded_catalogue
from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.pricing import warm_up

GIB = 2**30
GPU = "nvidia.com/gpu"


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


def catalogue_groups(most: int | None = None) -> tuple[NodeGroup, ...]:
    """The amd64 types of the embedded catalogue, unbounded."""
    groups = [
        NodeGroup(o.instance_type.name, o.instance_type.allocatable, o.price_usd_per_hour, max_size=10**6)
        for o in embedded_catalogue().offerings
        if o.instance_type.arch == "amd64"
    ]
    return tuple(groups[:most])


def openb() -> Problem:
    """8,152 real pods over the amd64 half of the catalogue."""
    with (Path(__file__).parent / "data" / "openb-classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    return Problem(tuple(_row(row) for row in rows), catalogue_groups())


def _row(row: dict[str, str]) -> PodSet:
    amounts = {"cpu": int(row["cpu_milli"]), "memory": int(row["memory_mib"]) * 2**20, GPU: int(row["num_gpu"])}
    spec = PodSpec(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))
    return PodSet(row["name"], spec, int(row["count"]))


def pod_sets(classes: int, pods: int, seed: int) -> tuple[PodSet, ...]:
    """`pods` pods in `classes` sets of common shapes: 1 to 8 GiB per core, a tenth with GPUs."""
    rng = random.Random(seed)
    sets: dict[PodSpec, None] = {}
    while len(sets) < classes:
        cpu = rng.choice((100, 250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)) + 10 * rng.randrange(20)
        memory = cpu * rng.choice((1, 2, 3, 4, 6, 8)) * GIB // 1000 // 2**20 * 2**20
        gpu = rng.choice((1, 1, 2, 4)) if rng.random() < 0.1 else 0
        amounts = {"cpu": cpu, "memory": memory, GPU: gpu}
        sets[PodSpec(tuple(sorted((k, v) for k, v in amounts.items() if v)))] = None
    cuts = sorted(rng.randrange(pods) for _ in range(classes - 1))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, pods], strict=True)]
    return tuple(PodSet(f"set-{i:04}", spec, n) for i, (spec, n) in enumerate(zip(sets, counts, strict=True)) if n)


CASES: dict[str, tuple[Callable[[], Problem], tuple[float, ...]]] = {
    "openb-default": (openb, (1.0, 5.0, 20.0)),
    "32-sets-16384-pods": (lambda: Problem(pod_sets(32, 16_384, 1), catalogue_groups(700)), (1.0,)),
    "one-class-51000-pods": (lambda: Problem(pod_sets(1, 51_000, 3), catalogue_groups(100)), (0.1,)),
}


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
        make, budgets = CASES[name]
        problem = make()
        for budget_seconds in arguments.budget or budgets:
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
