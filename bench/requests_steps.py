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
from cagrpc.controllers.provisioning.controller import ProvisioningController
from cagrpc.controllers.settings import NamespaceSettings, RequestSettings
from solver.planning.warm_up import warm_up
from tests.support.requests import RequestWorld


class Measured:
    """A function, with what its calls took of a core."""

    def __init__(self, call: Callable[[], object], profile: cProfile.Profile | None) -> None:
        self.call, self.profile, self.cpu_seconds = call, profile or nullcontext(), 0.0

    def __call__(self) -> object:
        began = time.process_time()
        try:
            with self.profile:
                return self.call()
        finally:
            self.cpu_seconds += time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=700)
    parser.add_argument("--top", type=int, default=0)
    arguments = parser.parse_args()
    warm_up()
    share = RequestSettings(per_namespace=NamespaceSettings(requests=1_000_000, pods=1_000_000))
    profile = cProfile.Profile() if arguments.top else None
    with RequestWorld(*catalogue_groups(arguments.groups), requests=share) as world:
        _create(world, arguments.requests)
        decider = world.controller("ProvisioningRequests")
        assert isinstance(decider, ProvisioningController)
        requests, fleet = Measured(decider.step, profile), Measured(world.fleet.reconcile, profile)
        vars(decider)["step"], vars(world.fleet)["reconcile"] = requests, fleet
        steps = 0
        while not steps or world.assumed.requests.waiting or not decider.records():
            world.step()
            world.clock.advance(1.0)
            steps += 1
        phases = world.shown
        ordered = [each.increment for each in world.increments()]
        nodes = sum(sum(each.deltas.values()) for each in ordered)
        cost = sum(each.cost_usd_per_hour or 0.0 for each in ordered)
    print("| requests | steps | new nodes | $/h | CPU s of requests | of the fleet |\n|" + 6 * " ---: |")
    cells = (
        f"{arguments.requests:,}",
        f"{steps}",
        f"{nodes:,}",
        f"{cost:,.2f}",
        f"{requests.cpu_seconds:.2f}",
        f"{fleet.cpu_seconds:.2f}",
    )
    print(f"| {' | '.join(cells)} |")
    print(phases)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.top)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(arguments.top)


def _create(world: RequestWorld, number: int) -> None:
    for each in small_requests(number):
        wanted: dict[str, int] = {}
        for pods in each.pod_sets:
            name = "-".join(f"{resource.rpartition('/')[2]}-{amount}" for resource, amount in pods.spec.requests)
            container = {"name": "main", "resources": {"requests": quantities(pods.spec)}}
            world.template(name.lower(), containers=[container])
            wanted[name.lower()] = pods.count
        world.request(f"small-{each.uid}", *wanted.items())


if __name__ == "__main__":
    main()
