"""How near to the proven least cost consolidation comes on a live cluster, and how soon: `cagrpc serve` beside a real
control plane, with simulated machines, after half of the pods have gone at random.

    python -m bench.consolidation_live [--pods 2000] [--faults] [--verbose]

`--faults` kills the server at each phase of a step, and stops the API server for 30 s in the middle of one. Whatever
must not be is named at the end, and makes the exit code 1: a violated PodDisruptionBudget, a step begun while a moved
pod does not run again, a node that was made and went within its minimum age.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench.real_cluster import measured
from tests.support.controlplane.consolidating import LEAST_AGE_SECONDS, ON, consolidated, rotten
from tests.support.controlplane.live import Live
from tests.support.controlplane.observer import Observer
from tests.support.controlplane.rotting import workloads

STEPS = (
    "after commit disruption creating",
    "after order",
    "after cordon#3",
    "after commit disruption moving",
    "after evict#5",
    "before commit disruption done",
    "after commit disruption done",
    "after delete",
)
AWAY_SECONDS = 30.0
CONSOLIDATION = {**ON, "every": "10s", "budget": "10s"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2_000, help="before half of them go")
    parser.add_argument("--faults", action="store_true", help="kill the server, and stop the API server")
    parser.add_argument("--verbose", action="store_true", help="the cost over time, and the server's log")
    arguments = parser.parse_args()
    return measured(lambda live: run(live, arguments.pods, faults=arguments.faults, verbose=arguments.verbose))


def run(live: Live, pods: int, *, faults: bool, verbose: bool) -> int:
    """Return the exit code."""
    found = workloads(pods)
    began = time.monotonic()
    with rotten(live, found, CONSOLIDATION) as observer:
        before = observer.history()
        seconds = time.monotonic() - began
        print(f"{pods} pods on {len(before.places)} nodes, half of them gone: after {seconds:.0f} s", flush=True)
        if faults:
            go_wrong(live, observer)
        else:
            live.start()
        outcome = consolidated(live, observer, before, found)
    print(outcome, flush=True)
    if verbose:
        print(*(f"{seconds:6.1f} s  {cost:8.2f} $/h" for seconds, cost in outcome.history.costs), sep="\n")
        print(live.serving.log())
    wrong = [*outcome.history.violations, *outcome.history.short_lived(LEAST_AGE_SECONDS)]
    print(*(wrong or ["nothing that must not be"]), sep="\n")
    return 1 if wrong else 0


def go_wrong(live: Live, observer: Observer) -> None:
    for step in STEPS:
        live.serve_until(step, seconds=600)
        print(f"killed {step}, {observer.now():.0f} s in", flush=True)
    live.start()
    moved = len(observer.history().evictions)
    live.wait_for(lambda: len(observer.history().evictions) > moved, "the next pods are evicted", seconds=600)
    live.cluster.plane.stop_apiserver()
    time.sleep(AWAY_SECONDS)
    live.cluster.plane.start_apiserver()
    print(f"the API server was away for {AWAY_SECONDS:.0f} s, until {observer.now():.0f} s in", flush=True)


if __name__ == "__main__":
    sys.exit(main())
