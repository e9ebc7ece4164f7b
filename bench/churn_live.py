"""Pods that come and go all the time while consolidation is on: `cagrpc serve` beside a real control plane and a
cluster-autoscaler, with simulated machines.

    python -m bench.churn_live [--minutes 10] [--pods 300] [--drive plan|assist] [--autoscaler PROGRAM] [--verbose]

Half of the Deployments stay as they are, some of them with a PodDisruptionBudget; the others are scaled to another
random size, one every two seconds. `--autoscaler` is an unmodified cluster-autoscaler built with the provider
externalgrpc; without it `drive: assist` is asked by a stand-in. Whatever must not be is named at the end, and makes the
exit code 1: a node that was made and went within its minimum age, a violated PodDisruptionBudget, a pod that does not
run in the end, a node that the cluster-autoscaler takes.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.real_cluster import measured, real_autoscaler
from tests.support.controlplane.autoscaler import Autoscaler
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.consolidating import KIND, ON, Outcome, at_its_end, provisioners
from tests.support.controlplane.live import Live
from tests.support.controlplane.observer import observing
from tests.support.controlplane.rotting import PRICES, SHAPES, Workload, create, least_usd_per_hour, scale, workloads

LEAST_AGE_SECONDS = 60.0
CONSOLIDATION = {**ON, "every": "10s", "budget": "5s", "minimum_node_age": "60s", "pause_after_failure": "10s"}
CHANGE_SECONDS = 2.0
QUIET_SECONDS = 2 * LEAST_AGE_SECONDS
PATIENCE_SECONDS = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of churn")
    parser.add_argument("--pods", type=int, default=300, help="at the beginning")
    parser.add_argument("--drive", choices=("plan", "assist"), default="plan")
    parser.add_argument("--autoscaler", type=Path, help="the program of an unmodified cluster-autoscaler")
    parser.add_argument("--verbose", action="store_true", help="the server's log")
    options = parser.parse_args()
    return measured(lambda live: run(live, options), verbose=options.verbose)


def run(live: Live, options: Any) -> int:
    """Return the exit code."""
    found = [replace(each, left=each.replicas) for each in workloads(options.pods, left=1.0)]
    steady, changing = found[::2], [replace(each, max_unavailable=None) for each in found[1::2]]
    live.configure(
        provisioners(),
        drive=options.drive,
        planner={"idle": "3s", "budget": "5s"},
        consolidation=CONSOLIDATION,
    )
    live.start()
    with autoscaler(live, options.drive, options.autoscaler) as log:
        create(live.cluster, [*steady, *changing])
        live.wait_for_running(sum(each.replicas for each in found), seconds=PATIENCE_SECONDS)
        with observing(live.cluster.plane, steady, PRICES, KIND) as observer:
            sizes = churn(live.cluster, changing, 60.0 * options.minutes)
            print(f"{len(observer.history().evictions)} evictions in {options.minutes:g} minutes of churn", flush=True)
            left = sum(each.replicas for each in steady) + sum(sizes.values())

            def quiet() -> bool:
                seen = observer.history()
                still = observer.now() - seen.last_change_seconds > QUIET_SECONDS
                return still and live.running() == left and at_its_end(live)

            live.wait_for(quiet, "nothing changes any more", seconds=PATIENCE_SECONDS)
            seen = observer.history()
        ended = [*steady, *(replace(each, left=sizes[each.name]) for each in changing)]
        print(Outcome(seen, least_usd_per_hour(ended, seen.kinds, seen.places)))
        said = log.read_text() if log is not None else ""
    steps = live.serving.get("/consolidation")
    print(f"on average {average(seen.costs):.2f} $/h; the last step: {steps['last']}")
    wrong = [*seen.violations, *seen.short_lived(LEAST_AGE_SECONDS), *faults(said)]
    if said:
        print(f"the cluster-autoscaler scaled up {said.count('Final scale-up plan')} times")
    print(*(wrong or ["nothing that must not be"]), sep="\n")
    return 1 if wrong else 0


def churn(cluster: Cluster, changing: Sequence[Workload], seconds: float) -> dict[str, int]:
    """Scale Deployments to random sizes, on average as large as they were. Return how large they are."""
    rng, sizes = random.Random(20), {each.name: each.replicas for each in changing}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began, each = time.monotonic(), rng.choice(changing)
        sizes[each.name] = rng.randint(0, 2 * each.replicas)
        scale(cluster, each.name, sizes[each.name])
        time.sleep(max(0.0, began + CHANGE_SECONDS - time.monotonic()))
    return sizes


def average(costs: Sequence[tuple[float, float]]) -> float:
    """Of US dollars per hour, over time."""
    weighed = [(later - at, cost) for (at, cost), (later, _) in pairwise(costs)]
    seconds = sum(each for each, _ in weighed)
    return sum(each * cost for each, cost in weighed) / seconds if seconds else costs[-1][1]


def faults(log: str) -> Iterator[str]:
    """Yield what a cluster-autoscaler did that it must leave to cagrpc, and its errors."""
    for line in log.splitlines():
        if line.startswith(("E", "F")) or "Scale-down: removing" in line:
            yield f"cluster-autoscaler: {line}"


@contextmanager
def autoscaler(live: Live, drive: str, program: Path | None) -> Iterator[Path | None]:
    """Run a cluster-autoscaler, or a stand-in for it; the path is its log's."""
    if program is not None:
        with real_autoscaler(live, program) as log:
            yield log
    elif drive == "assist":
        stopping = threading.Event()
        with Autoscaler(live, {name: cpus for name, (cpus, _, _) in SHAPES.items()}) as stand_in:
            thread = threading.Thread(target=_loop, args=(stand_in, stopping))
            thread.start()
            try:
                yield None
            finally:
                stopping.set()
                thread.join()
    else:
        yield None


def _loop(stand_in: Autoscaler, stopping: threading.Event) -> None:
    while not stopping.wait(5.0):
        stand_in.step()


if __name__ == "__main__":
    sys.exit(main())
