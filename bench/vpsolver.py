"""Small instances with several types of bins against an exact solver that shares nothing with ours: VPSolver's arc-flow
model (Brandao and Pedroso 2016, "Bin packing and related problems: general arc-flow formulation with graph
compression"; several types of bins: arXiv:1602.04876), solved by SCIP.

    python -m bench.vpsolver PROGRAMS [--instances 20] [--seed 1] [--budget 2] [--limit 60]

PROGRAMS is the folder with `vbp2afg` and `afg2mps` of VPSolver (the package `pyvpsolver`; where a new setuptools
refuses it: `pip install 'setuptools<81' wheel && pip install --no-build-isolation pyvpsolver`). Prints a Markdown row
for each family: how many VPSolver solved within the limit, of these how many of our plans are optimal and are proven to
be, how far plans are above the optimum and bounds below it. Exits with 1 where a plan is cheaper than the optimum, or a
bound is above it: one of the two solvers is wrong then.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortools.linear_solver.python import model_builder

from bench.public_instances import Solved, solve_instance
from solver.planning.warm_up import warm_up

PROGRAMS = ("vbp2afg", "afg2mps")
_PATTERNS_OF_ALL_BINS = "-3"
"""How `vbp2afg` makes the graph: its newest method, which is its default."""


@dataclass(frozen=True)
class Instance:
    """Vectors; costs are whole numbers, as VPSolver wants them."""

    bins: Sequence[tuple[Sequence[int], int]]
    """Capacity and cost of each type."""
    items: Sequence[tuple[Sequence[int], int]]
    """Weights and demand of each type."""

    def as_mvp(self) -> str:
        lines = [str(len(self.bins[0][0])), str(len(self.bins))]
        lines += [" ".join(map(str, (*capacity, cost, -1))) for capacity, cost in self.bins]
        lines.append(str(len(self.items)))
        lines += [f"1 {demand}\n{' '.join(map(str, weights))}" for weights, demand in self.items]
        return "\n".join(lines) + "\n"


def even(rng: random.Random) -> Instance:
    """Three dimensions that are alike, three to five types of bins, costs near to what they hold."""
    capacities = [[rng.choice([24, 32, 48, 64]) for _ in range(3)] for _ in range(rng.randint(3, 5))]
    bins = [(each, sum(each) + rng.randint(0, 20)) for each in capacities]
    items = [([rng.randint(1, 16) for _ in range(3)], rng.randint(1, 12)) for _ in range(rng.randint(5, 10))]
    return Instance(bins, items)


def machines(rng: random.Random) -> Instance:
    """Cores, GiB and GPUs: sizes that double, general, with much memory, and with GPUs; pods as in clusters."""
    bins = []
    for per_core, cost in ((2, 10), (4, 12), (8, 16)):
        bins += [([size, per_core * size, 0], cost * size + rng.randint(0, 4)) for size in (4, 8, 16)]
    bins += [([8 * gpus, 32 * gpus, gpus], 12 * 8 * gpus + 60 * gpus + rng.randint(0, 9)) for gpus in (1, 4)]
    items = []
    for _ in range(rng.randint(6, 12)):
        cores = rng.choice([1, 1, 2, 2, 3, 4, 6])
        gpus = rng.choice([0, 0, 0, 0, 1, 2])
        items.append(([cores, cores * rng.choice([1, 2, 3, 4, 6]) + rng.randint(0, 2), gpus], rng.randint(1, 20)))
    return Instance(bins, items)


def large_items(rng: random.Random) -> Instance:
    """Two dimensions, two to four items to a bin: what is left over decides."""
    bins = [([60, 60], 60), ([100, 100], 97), ([100, 60], 80)]
    items = [([rng.randint(15, 50), rng.randint(15, 50)], rng.randint(1, 6)) for _ in range(rng.randint(8, 16))]
    return Instance(bins, items)


FAMILIES: dict[str, Callable[[random.Random], Instance]] = {
    "three even dimensions": even,
    "cores, GiB and GPUs": machines,
    "large items": large_items,
}


@dataclass(frozen=True)
class Compared:
    ours: Solved
    optimum: float

    @property
    def above(self) -> float:
        """Our plan, as a part of the optimum."""
        return self.ours.cost / self.optimum - 1

    @property
    def below(self) -> float:
        """Our bound, as a part of the optimum."""
        return 1 - self.ours.lower_bound / self.optimum

    @property
    def is_contradiction(self) -> bool:
        return min(self.above, self.below) < -1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, metavar="PROGRAMS")
    parser.add_argument("--instances", type=int, default=20, help="of each family (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for our planner (default 2)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for SCIP (default 60)")
    options = parser.parse_args()
    if missing := [each for each in PROGRAMS if not (options.programs / each).is_file()]:
        parser.error(f"{options.programs}: {', '.join(missing)} of VPSolver not there; pyvpsolver installs them")
    warm_up()
    print("| instances | | VPSolver solved | plans optimal | proven | worst above | worst below |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    wrong = 0
    for family, draw in FAMILIES.items():
        rng = random.Random(f"{family} {options.seed}")
        drawn = [draw(rng) for _ in range(options.instances)]
        found = list(compared(drawn, options.programs, options.budget, options.limit))
        wrong += sum(each.is_contradiction for each in found)
        print(f"| {family} | {len(drawn)} | {' | '.join(row(found))} |", flush=True)
    if wrong:
        print(f"{wrong} times the solvers contradict one another", file=sys.stderr)
    return 1 if wrong else 0


def row(found: Sequence[Compared]) -> tuple[str, ...]:
    """What is printed of one family."""
    return (
        str(len(found)),
        str(sum(each.above <= 1e-6 for each in found)),
        str(sum(each.ours.is_optimal for each in found)),
        f"{100 * max((each.above for each in found), default=0):.2f} %",
        f"{100 * max((each.below for each in found), default=0):.2f} %",
    )


def compared(
    instances: Sequence[Instance], programs: Path, budget_seconds: float, limit_seconds: float
) -> Iterator[Compared]:
    """Yield those that VPSolver solved within the limit."""
    with tempfile.TemporaryDirectory() as made:
        for number, each in enumerate(instances):
            file = Path(made) / f"instance-{number:03}.mvp"
            file.write_text(each.as_mvp())
            ours = solve_instance(file, budget_seconds)
            optimum = exact(file, programs, limit_seconds)
            if optimum is not None:
                yield Compared(ours, optimum)


def exact(file: Path, programs: Path, limit_seconds: float) -> float | None:
    """Return the least cost, None where it is not proven within the limit. Raises CalledProcessError where one of
    VPSolver's programs fails."""
    graph, model = file.with_suffix(".afg"), file.with_suffix(".mps")
    for program, *arguments in (("vbp2afg", file, graph, _PATTERNS_OF_ALL_BINS), ("afg2mps", graph, model)):
        subprocess.run([programs / str(program), *map(str, arguments)], check=True, capture_output=True)
    found = model_builder.Model()  # type: ignore[no-untyped-call]
    if not found.import_from_mps_file(str(model)):
        raise ValueError(f"{model}: VPSolver's model cannot be read")
    scip = model_builder.Solver("SCIP")
    scip.set_time_limit_in_seconds(limit_seconds)
    solved = scip.solve(found) == model_builder.SolveStatus.OPTIMAL
    return round(scip.objective_value) if solved else None


if __name__ == "__main__":
    sys.exit(main())
