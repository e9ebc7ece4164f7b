"""How fast ProvisioningRequests are decided, and how well: many small ones at once, and ones as large as can be.

    python -m bench.provisioning_requests [--requests 1000] [--budget 1.0] [--big-budget 2.0]

Only deciding is measured, in the loop's own batches; watching, ordering and writing come on top. The baseline, in the
same run, is first fit: of the small ones one after the other, as the cluster-autoscaler takes one a loop; of a
large one all pods at once. Prints one Markdown table; times are of this machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.baselines.first_fit import first_fit_decreasing
from bench.measure import WORKERS
from bench.table import machine, machine_line
from bench.workloads import MIB, catalogue_groups, openb, pod_sets, spec
from cagrpc.controllers.provisioning.decisions import Decisions, decide
from cagrpc.controllers.provisioning.model import Candidate
from cagrpc.controllers.provisioning.scenario import Scenario
from solver import Budget, NodeGroup, PodSet, Problem
from solver.planning.warm_up import warm_up as compile_planner

GROUPS = 700
SETS = 32
MOST_PODS = 16_384
"""Of one pod set, by the proposal."""

_HEADS = ("what", "pods", "in s", "served", "parts", "new nodes", "$/h", "gap %", "first fit: in s", "$/h")


@dataclass
class Row:
    """One line of the table."""

    what: str
    requests: int
    pods: int
    seconds: float = 0.0
    served: int = 0
    parts: int = 0
    nodes: int = 0
    cost_usd_per_hour: float = 0.0
    gap: float | None = None
    """Where there is one part."""
    first_fit_seconds: float = 0.0
    first_fit_usd_per_hour: float = 0.0
    left: str = ""
    """An example of why not."""

    def add(self, decided: Decisions, seconds: float) -> None:
        self.seconds += seconds
        self.served += len(decided.served)
        self.parts += len(decided.parts)
        self.nodes += sum(len(part.placements) for part in decided.parts)
        self.cost_usd_per_hour += sum(part.cost_usd_per_hour for part in decided.parts)
        self.gap = decided.parts[0].gap if self.parts == 1 else None
        self.left = next((each.why for each in decided.refused.values()), self.left)

    def line(self) -> str:
        cells = (
            self.what,
            f"{self.pods:,}",
            f"{self.seconds:.2f}",
            f"{self.served:,} of {self.requests:,}",
            f"{self.parts:,}",
            f"{self.nodes:,}",
            f"{self.cost_usd_per_hour:,.2f}",
            "" if self.gap is None else f"{100 * self.gap:.2f}",
            f"{self.first_fit_seconds:.2f}",
            f"{self.first_fit_usd_per_hour:,.2f}",
        )
        return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="small ones")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each batch of small ones")
    parser.add_argument("--big-budget", type=float, default=2.0, help="seconds for a large one")
    arguments = parser.parse_args()
    compile_planner()
    decide([_large("warm-up", pod_sets(1, 10, 1))], Scenario(groups=catalogue_groups(10)), Budget(0.1))
    print(machine_line(machine()))
    print(f"| {' | '.join(_HEADS)} |\n| --- |{' ---: |' * (len(_HEADS) - 1)}", flush=True)
    rows = [_many(arguments.requests, arguments.budget)]
    print(rows[-1].line(), flush=True)
    for what, candidate in _large_ones():
        rows.append(_one(what, candidate, arguments.big_budget))
        print(rows[-1].line(), flush=True)
    for row in rows:
        if row.left:
            print(f"{row.what}: {row.left}")


def _large_ones() -> Iterator[tuple[str, Candidate]]:
    total = SETS * MOST_PODS
    yield f"{SETS} pod sets, {MOST_PODS:,} pods in all", _large("all", pod_sets(SETS, MOST_PODS, 1))
    yield f"{SETS} pod sets of {MOST_PODS:,} small pods", _large("small", small_sets())
    yield f"the same shapes as the first, {total:,} pods", _large("most", pod_sets(SETS, total, 1))


def _large(uid: str, sets: Sequence[PodSet]) -> Candidate:
    return Candidate(uid, f"bench/{uid}", tuple(sets))


def small_sets() -> tuple[PodSet, ...]:
    """As many pods as a request can have, small enough for one increment."""
    rng = random.Random(7)
    shapes: dict[tuple[int, int], None] = {}
    while len(shapes) < SETS:
        cpu = rng.choice((50, 100, 150, 200, 250, 300, 400, 500)) + 5 * rng.randrange(10)
        shapes[cpu, cpu * rng.choice((1, 2, 3, 4)) * 1024 // 1000] = None
    return tuple(
        PodSet(f"small-{number:02}", spec({"cpu": cpu, "memory": memory * MIB}), MOST_PODS)
        for number, (cpu, memory) in enumerate(shapes)
    )


def small_requests(number: int, seed: int = 1) -> list[Candidate]:
    """One to three pod sets of one to eight pods each, of the shapes that real pods have, as often as they have them;
    every eighth of a higher priority."""
    rng = random.Random(seed)
    known = openb().pod_sets
    weights = [pods.count for pods in known]
    found = []
    for age in range(number):
        shapes = rng.choices(known, weights, k=rng.randint(1, 3))
        sets = tuple(replace(shape, name=f"bench/small-{age}", count=rng.randint(1, 8)) for shape in shapes)
        found.append(
            Candidate(f"small-{age:05}", f"bench/small-{age}", sets, priority=int(age % 8 == 0), created_at_seconds=age)
        )
    return found


def _many(number: int, budget_seconds: float) -> Row:
    """Batch after batch, each beside what is on its way for those before."""
    waiting = small_requests(number)
    row = Row(f"{number:,} small requests", number, sum(pods.count for each in waiting for pods in each.pod_sets))
    groups = catalogue_groups(GROUPS)
    _first_fit(row, (Problem(each.pod_sets, groups) for each in waiting))
    while waiting:
        _decide(row, waiting, groups, budget_seconds)
    return row


def _one(what: str, candidate: Candidate, budget_seconds: float) -> Row:
    row = Row(what, 1, sum(pods.count for pods in candidate.pod_sets))
    groups = catalogue_groups(GROUPS)
    _decide(row, [candidate], groups, budget_seconds)
    _first_fit(row, [Problem(candidate.pod_sets, groups)])
    return row


def _decide(row: Row, waiting: list[Candidate], groups: tuple[NodeGroup, ...], budget_seconds: float) -> None:
    """A batch; those that are decided wait no longer. Nodes that were ordered before have no room left."""
    began = time.perf_counter()
    decided = decide(waiting, Scenario(groups=groups), Budget(budget_seconds, workers=WORKERS))
    row.add(decided, time.perf_counter() - began)
    done = {*decided.served, *decided.refused}
    waiting[:] = [each for each in waiting if each.uid not in done]


def _first_fit(row: Row, problems: Iterable[Problem]) -> None:
    for problem in problems:
        began = time.perf_counter()
        row.first_fit_usd_per_hour += first_fit_decreasing(problem).cost_usd_per_hour
        row.first_fit_seconds += time.perf_counter() - began


if __name__ == "__main__":
    main()
