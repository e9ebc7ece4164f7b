"""Published instances of bin and vector packing: how near the planner comes to their optima, and what is proven.

    python -m bench.public_instances [--budget SECONDS] PATH ...

A path is a file, or a folder with files: `.txt` as BPPLIB has them (the number of item types, the capacity, then the
weight and the demand of each), `.vbp` and `.mvp` as VPSolver reads them (vectors; several types of bins, with costs; of
items in several incarnations none). BPPLIB's (https://site.unibo.it/operations-research/en/research/bpplib) are
Falkenauer's, Scholl's, Wäscher's, Schwerin's, Hard28 and others; of Falkenauer's triplets the optimum is a third of the
items. Prints a Markdown row for each folder, and on standard error each instance that is not solved to optimality.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.model import PODS
from solver.planning.warm_up import warm_up

SUFFIXES = (".txt", ".vbp", ".mvp")
_MOST_ITEMS = 10**6


@dataclass(frozen=True)
class Solved:
    """One instance: costs of bins, or their number."""

    name: str
    items: int
    cost: float
    lower_bound: float
    seconds: float

    @property
    def is_optimal(self) -> bool:
        return self.cost <= self.lower_bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for each (default 5)")
    options = parser.parse_args()
    folders: defaultdict[Path, list[Path]] = defaultdict(list)
    for file in _files(parser, options.paths):
        folders[file.parent].append(file)
    warm_up()
    print("| instances | | proven optimal | worst gap | mean s |\n| --- | ---: | ---: | ---: | ---: |")
    for folder, files in sorted(folders.items()):
        try:
            solved = [solve_instance(file, options.budget) for file in files]
        except ValueError as error:
            parser.error(str(error))
        for each in (each for each in solved if not each.is_optimal):
            print(f"{each.name}: {each.items} items: {each.cost:g}, bound {each.lower_bound:g}", file=sys.stderr)
        optimal = sum(each.is_optimal for each in solved)
        worst = max((each.cost - each.lower_bound) / each.cost for each in solved)
        mean = sum(each.seconds for each in solved) / len(solved)
        print(f"| {folder.name} | {len(solved)} | {optimal} | {100 * worst:.2f} % | {mean:.1f} |", flush=True)


def _files(parser: argparse.ArgumentParser, paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES) if path.is_dir() else [path]
        if not found or not path.exists():
            parser.error(f"{path}: there are no instances; wanted are files that end with {', '.join(SUFFIXES)}")
        yield from found


def solve_instance(file: Path, budget_seconds: float) -> Solved:
    problem = read(file)
    began = time.perf_counter()
    plan = solve(problem, Budget(budget_seconds, workers=2))
    assert not plan.unplaced, f"{file}: {plan.unplaced}"
    items = sum(each.count for each in problem.pod_sets)
    certificate = plan.certificate
    costs = certificate.cost_usd_per_hour, certificate.lower_bound_usd_per_hour
    return Solved(file.stem, items, *costs, time.perf_counter() - began)


def read(file: Path) -> Problem:
    """Return the instance: bins are nodes, items pods. Raises ValueError for anything else."""
    words = file.read_text().split()
    if odd := next((word for word in words if not word.removeprefix("-").isdecimal()), None):
        raise ValueError(f"{file}: {odd!r} is no whole number")
    try:
        return _problem(file, map(int, words))
    except StopIteration:
        raise ValueError(f"{file}: it ends after {len(words)} numbers, too early") from None


def _problem(file: Path, numbers: Iterator[int]) -> Problem:
    dimensions = 1 if file.suffix == ".txt" else next(numbers)
    if file.suffix == ".mvp":
        bins = [
            ([next(numbers) for _ in range(dimensions)], next(numbers), next(numbers)) for _ in range(next(numbers))
        ]
        types = next(numbers)
    elif file.suffix == ".vbp":
        bins, types = [([next(numbers) for _ in range(dimensions)], 1, -1)], next(numbers)
    else:
        types, capacity = next(numbers), next(numbers)
        bins = [([capacity], 1, -1)]
    sets = []
    for number in range(types):
        incarnations, demand = (next(numbers), next(numbers)) if file.suffix == ".mvp" else (1, 0)
        if incarnations != 1:
            raise ValueError(f"{file}: item {number} has {incarnations} incarnations; a pod has one size")
        weights = [next(numbers) for _ in range(dimensions)]
        demand = demand or next(numbers)
        sets.append(PodSet(f"item-{number:04}", PodSpec(tuple(_amounts(weights).items())), demand))
    groups = [
        NodeGroup(
            f"bin-{n}", {**_amounts(size), PODS: _MOST_ITEMS}, float(cost), max_size=_MOST_ITEMS if at < 0 else at
        )
        for n, (size, cost, at) in enumerate(bins)
    ]
    return Problem(tuple(sets), tuple(groups))


def _amounts(of: list[int]) -> dict[str, int]:
    return {f"example.com/dimension-{number:02}": amount for number, amount in enumerate(of) if amount}


if __name__ == "__main__":
    main()
