"""What deciding many ProvisioningRequests at once takes of a core: the controller of requests, and the steps of the
fleet beside it.

    python -m bench.requests_steps [--requests 1000] [--groups 700] [--top 0]

The controller, the fleet and its journal are the real ones; the API server is in memory, and time is played, a second a
step, until every request is decided. Planning has a deterministic budget: what is decided is the same in every run, and
CPU seconds of different versions compare, however busy the machine is. `--top` prints so many of the costliest
functions. The whole server with a real API server is `bench.requests_live`'s.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from contextlib import nullcontext

from bench.provisioning_requests import small_requests
from bench.requests_live import quantities
from bench.workloads import catalogue_groups
from cagrpc.controllers.provisioning.progress import RequestPhase
from cagrpc.controllers.settings import NamespaceSettings, RequestSettings
from solver.planning.warm_up import warm_up
from tests.support.controllers.provisioning import ProvisioningHarness

_OPEN = frozenset({RequestPhase.WAITING.value, ""})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=700)
    parser.add_argument("--top", type=int, default=0)
    arguments = parser.parse_args()
    warm_up()
    share = RequestSettings(per_namespace=NamespaceSettings(requests=1_000_000, pods=1_000_000))
    harness = ProvisioningHarness(catalogue_groups(arguments.groups), requests=share)
    profile = cProfile.Profile()
    profiled = profile if arguments.top else nullcontext()
    try:
        _create(harness, arguments.requests)
        requests = fleet = 0.0
        steps = 0
        while not steps or harness.requests.due() or not harness.requests.records():
            harness.clock.advance(1.0)
            with profiled:
                fleet += _cpu(harness.fleet.reconcile)
            harness.place()
            harness.sync()
            with profiled:
                requests += _cpu(harness.provisioning.take)
            steps += 1
        phases = harness.requests.status()["provisioning_requests"]
        ordered = [each.increment for each in harness.fleet.snapshot.increments]
        nodes = sum(sum(each.deltas.values()) for each in ordered)
        cost = sum(each.cost_usd_per_hour or 0.0 for each in ordered)
    finally:
        harness.close()
    print("| requests | steps | new nodes | $/h | CPU s of requests | of the fleet |\n|" + 6 * " ---: |")
    cells = f"{arguments.requests:,}", f"{steps}", f"{nodes:,}", f"{cost:,.2f}", f"{requests:.2f}", f"{fleet:.2f}"
    print(f"| {' | '.join(cells)} |")
    print(phases)
    if arguments.top:
        pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.top)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(arguments.top)


def _create(harness: ProvisioningHarness, number: int) -> None:
    for each in small_requests(number):
        wanted: dict[str, int] = {}
        for pods in each.pod_sets:
            name = "-".join(f"{resource.rpartition('/')[2]}-{amount}" for resource, amount in pods.spec.requests)
            container = {"name": "main", "resources": {"requests": quantities(pods.spec)}}
            harness.template(name.lower(), containers=[container])
            wanted[name.lower()] = pods.count
        harness.request(f"small-{each.uid}", *wanted.items())


def _cpu(work: Callable[[], object]) -> float:
    """Seconds of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
