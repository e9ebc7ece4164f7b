"""What the kube-scheduler makes of plans: pods it would leave pending, what repairs cost, and how long that takes.

    python -m bench.realise [--budget SECONDS] [--case NAME] [--markdown FILE]

Pods are those of Deployments that are made one after the other, in random order, fifty pods a second. `left` is the
share of pods that stay pending on the planned nodes, all let go at once; `realised` what the repaired plan costs, in
waves with a reserve and, in a row of its own, all at once; `unplaced` pods that even that does not serve; `unseen`
the most pods that stay pending in simulations that the repair has not seen. Plans are those of 5 s, by two workers.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.table import machine, machine_line
from bench.workloads import openb, with_tainted_gpus
from solver import Budget, Plan, Problem, solve
from solver.pricing import warm_up
from solver.realise import WAVES, Realised, realise
from solver.rehearsal import group_numbers
from solver.scheduler import Profile, Scenario, Scheduler, Scoring
from tests.recordings import node_groups

_START, _END = "<!-- realisation: begin -->", "<!-- realisation: end -->"
_HEADS = (
    "case",
    "pods",
    "profile",
    "waves",
    "left %",
    "planned $/h",
    "realised $/h",
    "more %",
    "reserve %",
    "unplaced",
    "unseen",
    "s",
)
_PODS_PER_SECOND = 50
_FIRST_UNSEEN, _UNSEEN = 10_000, 8
CASES: dict[str, tuple[Callable[[], Problem], float]] = {
    "openb-1165-pods-12-groups": (lambda: with_tainted_gpus(openb("every_7th", node_groups("openb"))), 10.0),
    "openb-default": (lambda: with_tainted_gpus(openb()), 40.0),
}
"""The problem, and the budget in seconds."""


@dataclass(frozen=True)
class Row:
    case: str
    pods: int
    profile: Profile
    realised: Realised
    unseen: int
    seconds: float

    def cells(self) -> tuple[str, ...]:
        told = self.realised
        planned, cost = told.planned_cost_usd_per_hour, told.realised_cost_usd_per_hour
        return (
            self.case,
            f"{self.pods:,}",
            self.profile.scoring.value,
            str(len(told.waves)),
            f"{100 * told.stranded / self.pods:.1f}",
            f"{planned:,.2f}",
            f"{cost:,.2f}",
            f"{100 * (cost / planned - 1):.1f}",
            f"{100 * told.reserve_cost_usd_per_hour / planned:.1f}",
            str(sum(left.count for left in told.plan.unplaced)),
            str(self.unseen),
            f"{self.seconds:.1f}",
        )


def as_deployments(problem: Problem, seed: int = 1) -> Problem:
    """The same pods, made class after class in random order."""
    sets = list(problem.pod_sets)
    random.Random(seed).shuffle(sets)
    aged, made = [], 0
    for pods in sets:
        aged.append(replace(pods, waiting_seconds=600 - made // _PODS_PER_SECOND))
        made += pods.count
    return replace(problem, pod_sets=tuple(aged))


def measure(name: str, budget_seconds: float | None) -> Iterator[Row]:
    """Both profiles, in waves and at once."""
    build, own_budget = CASES[name]
    problem = as_deployments(build())
    plan = solve(problem, Budget(5.0, workers=2))
    pods = sum(each.count for each in problem.pod_sets)
    for scoring in Scoring:
        profile = Profile(scoring)
        for waves in (WAVES, 1):
            started = time.perf_counter()
            realised = realise(problem, plan, Budget(budget_seconds or own_budget, workers=2), profile, waves=waves)
            seconds = time.perf_counter() - started
            yield Row(name, pods, profile, realised, _unseen(problem, plan, profile, realised), seconds)


def _unseen(problem: Problem, plan: Plan, profile: Profile, realised: Realised) -> int:
    """The most pods pending that the realised plan claims to serve, in scenarios of our own."""
    number = group_numbers(problem)
    scheduler = Scheduler(problem, plan.pod_classes, profile)
    new = np.array([number[each.node_group] for each in realised.placements], dtype=np.int64)
    waves = np.array([each.wave for each in realised.placements], dtype=np.int64)
    none = np.zeros((0, 3), dtype=np.int64)
    scenarios = [
        Scenario(_FIRST_UNSEEN + n, n % 8 // 4, in_blocks=n % 2 > 0, attempts_a_node=4 * (n % 4 // 2))
        for n in range(_UNSEEN)
    ]
    pending = max(int((scheduler.run(new, waves, none, each).placed < 0).sum()) for each in scenarios)
    return max(0, pending - sum(left.count for left in realised.plan.unplaced))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, help="seconds for realising each plan, instead of the case's own")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--markdown", type=Path, help="write the table between its marks of this file as well")
    arguments = parser.parse_args()
    warm_up()
    lines = [f"Machine: {machine_line(machine())}.", "", _line(_HEADS), _line(["---"] + ["---:"] * (len(_HEADS) - 1))]
    print(lines[0], *lines[2:], sep="\n", flush=True)
    for name in arguments.case or CASES:
        for row in measure(name, arguments.budget):
            lines.append(_line(row.cells()))
            print(lines[-1], flush=True)
    if arguments.markdown:
        text = arguments.markdown.read_text()
        head, rest = text.split(_START)
        tail = rest.split(_END)[1]
        arguments.markdown.write_text("\n".join([head + _START, *lines, _END + tail]))


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
