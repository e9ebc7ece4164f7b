"""What it costs that gangs are close together: GPU pods of openb as gangs of 8 to 64, each in one rack of 16 nodes,
beside the same gangs anywhere.

    python -m bench.gang_domains [--budget SECONDS] [--gangs N ...]

Prints one table. `domains` are the racks that are begun and how many of them are proven; `x apart` is the cost as a
multiple of that of gangs that need not be together, which bounds it from below.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from bench.workloads import GPU, catalogue_groups, openb
from solver import Budget, NodeGroup, Plan, Problem, solve
from solver.model import NODES, Limit, NewDomains
from solver.model.objective import Goal
from tests.support.solver.gangs import RACK, in_one_domain

NODES_OF_A_RACK = 16
_SIZES = (8, 16, 16, 32, 64)
_TYPES = 4


def gpu_groups() -> list[NodeGroup]:
    """Return the cheapest types with GPUs, by GPU, that hold a pod of eight, and the cheapest of all."""
    with_gpus = sorted((g for g in catalogue_groups() if g.allocatable.get(GPU)), key=_price_of_gpu)
    large = [group for group in with_gpus if group.allocatable[GPU] >= 8]
    return [*with_gpus[:_TYPES], *large[:_TYPES]]


def _price_of_gpu(group: NodeGroup) -> float:
    return group.price_usd_per_hour / group.allocatable[GPU]


def problem(gangs: int, *, new: bool = False) -> Problem:
    """Return gangs of GPU pods over as many racks as gangs, known ones or such that come with their nodes."""
    rng = random.Random(gangs)
    shapes = [each.spec for each in openb().pod_sets if dict(each.spec.requests).get(GPU)]
    sets = []
    for number in range(gangs):
        spec, count = rng.choice(shapes), rng.choice(_SIZES)
        gpus = dict(spec.requests)[GPU]
        sets.append(in_one_domain(f"g{number}", spec, min(count, NODES_OF_A_RACK * 8 // gpus)))
    if new:
        of = NewDomains((RACK,), NODES_OF_A_RACK)
        return Problem(tuple(sets), tuple(replace(each, new_domains=of) for each in gpu_groups()))
    groups, limits = [], []
    for number in range(gangs):
        mine = [
            replace(
                each, id=f"{each.id}/r{number}", labels={**each.labels, RACK: f"r{number}"}, max_size=NODES_OF_A_RACK
            )
            for each in gpu_groups()
        ]
        groups += mine
        ids = frozenset(each.id for each in mine)
        limits.append(Limit(f"rack r{number}", {NODES: NODES_OF_A_RACK}, node_groups=ids))
    return Problem(tuple(sets), tuple(groups), limits=tuple(limits))


def apart(of: Problem) -> Problem:
    """Return the same gangs, which need not be together."""
    sets = (replace(each, spec=replace(each.spec, pod_affinity=())) for each in of.pod_sets)
    return replace(of, pod_sets=tuple(sets))


def rows(gangs: int, budget: Budget) -> Iterator[str]:
    for new in (False, True):
        asked = problem(gangs, new=new)
        began = time.perf_counter()
        found = solve(asked, budget)
        took = time.perf_counter() - began
        yield line(f"{gangs} gangs, {'new' if new else 'known'} racks", asked, found, solve(apart(asked), budget), took)


def line(what: str, asked: Problem, found: Plan, other: Plan, seconds: float) -> str:
    certificate = found.certificate
    domains = next(each for each in found.objective if each.stage.goal is Goal.DOMAINS)
    return (
        f"| {what} | {sum(each.count for each in asked.pod_sets)} | {sum(each.count for each in found.unplaced)} "
        f"| {certificate.cost_usd_per_hour:.2f} | {certificate.lower_bound_usd_per_hour:.2f} "
        f"| {certificate.cost_usd_per_hour / (other.certificate.cost_usd_per_hour or 1):.4f} "
        f"| {domains.value:.0f} of at least {domains.lower_bound:.0f} | {seconds:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of each plan")
    parser.add_argument("--gangs", type=int, nargs="+", default=[4, 16, 32, 64])
    arguments = parser.parse_args()
    print("| what | pods | left | $/h | at least | x apart | domains | s |\n|---|---|---|---|---|---|---|---|")
    for gangs in arguments.gangs:
        for row in rows(gangs, Budget(arguments.budget)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
