"""What simulated Nodes cost: the process that plays them, against a real API server, etcd and controllers.

    python -m bench.node_life [--nodes 5000] [--pods 5000] [--seconds 60] [--kubeconfig FILE]

Without a kubeconfig it starts the control plane of the tests. Nodes register, then all pods are bound at once and run,
then nothing happens for a while, then every instance is gone. Told is what this process took of a core, less what
making the pods took; waiting for the API server is in the seconds only. Rows are Markdown, for
docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import logging
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from bench.table import machine, machine_line
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour
from cagrpc.backends.simulated.nodes.controller import NodeController
from cagrpc.backends.simulated.nodes.nodes import LEASES
from cagrpc.backends.simulated.nodes.pods import Stage
from cagrpc.errors import NotFound
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.kube.client.client import Client
from solver.model import NodeGroup
from tests.support.controlplane.plane import ControlPlane

STEP_SECONDS = 1.0
NAMESPACE = "bench-node-life"
GROUP = NodeGroup("bench", {"cpu": 8000, "memory": 32 * 2**30}, 0.1, max_size=100_000, instance_type="bench")
_MAKERS = 4


class Bench:
    def __init__(self, client: Client, directory: Path, nodes: int, pods: int) -> None:
        self._client = client
        self._nodes, self._pods = nodes, pods
        self._backend = SimulatedBackend(directory / "simulated.sqlite")
        self._backend.set_behaviours({EVERYWHERE: Behaviour(boot_seconds=0, delete_seconds=0)})
        snapshot = FleetSnapshot(1, {GROUP.id: GroupState(GROUP, 0)}, (), {})
        self.life = NodeController(client, self._backend, lambda: snapshot)
        self._uncounted = 0.0
        self._lock = threading.Lock()

    def measure(self, seconds: float) -> Iterator[str]:
        """One row after the other."""
        yield "| what | how many | seconds | seconds of a core | % of a core |"
        yield "| --- | ---: | ---: | ---: | ---: |"
        self.life.start()
        instances = tuple(OrderedInstance(f"bench-{number}", GROUP, number) for number in range(self._nodes))
        self._backend.order(Order("bench", instances, frozenset(each.token for each in instances)))
        yield self._row("nodes register", self._nodes, lambda: self._ready() == self._nodes)
        names = sorted(self.life.nodes.names())
        making = threading.Thread(target=self._make_pods, args=(names,), daemon=True)
        making.start()
        yield self._row("bound pods run", self._pods, lambda: self._running(names) == self._pods)
        making.join()
        end = time.monotonic() + seconds
        row = self._row("nodes stay", self._nodes, lambda: time.monotonic() > end)
        found = f"{self._ready():,} still ready, the oldest Lease {self._oldest_lease_seconds():.0f} s old"
        yield row.replace("nodes stay", f"nodes stay: {found}")
        self._backend.delete(self._backend.list_instances().instances)
        yield self._row("nodes and pods go", self._nodes, lambda: not self.life.nodes.names())
        yield f"\nPeak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB."
        self.life.stop()

    def _row(self, what: str, count: int, done: Callable[[], bool]) -> str:
        started, used = time.monotonic(), time.process_time() - self._uncounted
        while not done():
            self.life.step()
            time.sleep(STEP_SECONDS)
        took, core = time.monotonic() - started, time.process_time() - self._uncounted - used
        return f"| {what} | {count:,} | {took:.0f} | {core:.1f} | {100 * core / took:.0f} |"

    def _ready(self) -> int:
        """Nodes that could take pods but for the start-up taint."""
        nodes = (self.life.nodes.get(name) for name in self.life.nodes.names())
        return sum(node is not None and node.ready and len(node.taint_keys) == 1 for node in nodes)

    def _oldest_lease_seconds(self) -> float:
        leases = self._client.get(LEASES)["items"]
        return time.time() - min(datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp() for lease in leases)

    def _running(self, names: list[str]) -> int:
        return sum(pod.stage is Stage.STARTED for name in names for pod in self.life.pods.on(name))

    def _make_pods(self, nodes: list[str]) -> None:
        """Pods with a node from the start, so that no scheduler sets the pace."""
        numbers = iter(range(self._pods))

        def make() -> None:
            while (number := next(numbers, None)) is not None:
                container = {"name": "main", "image": "example.com/none", "resources": {"requests": {"cpu": "10m"}}}
                spec = {"nodeName": nodes[number % len(nodes)], "containers": [container]}
                body = {"metadata": {"name": f"bench-{number}"}, "spec": spec}
                self._client.create(f"/api/v1/namespaces/{NAMESPACE}/pods", body)
            with self._lock:
                self._uncounted += time.thread_time()

        makers = [threading.Thread(target=make, daemon=True) for _ in range(_MAKERS)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()


@contextmanager
def cluster(kubeconfig: Path | None, directory: Path) -> Iterator[Client]:
    """A cluster with the namespace, which is removed at the end."""
    with ExitStack() as undo:
        if kubeconfig is None:
            plane = ControlPlane(directory)
            undo.callback(plane.close)
            kubeconfig = plane.kubeconfig()
        client = Client.connect(kubeconfig, pool_size=64)
        undo.callback(client.close)
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        undo.callback(client.delete, f"/api/v1/namespaces/{NAMESPACE}")
        while not _has_account(client):
            time.sleep(0.1)
        yield client


def _has_account(client: Client) -> bool:
    try:
        client.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
    except NotFound:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long nothing happens")
    parser.add_argument("--kubeconfig", type=Path, help="of a cluster that may be filled with nodes")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    print(f"Machine: {machine_line(machine())}.\n")
    with tempfile.TemporaryDirectory() as directory, cluster(arguments.kubeconfig, Path(directory)) as client:
        for line in Bench(client, Path(directory), arguments.nodes, arguments.pods).measure(arguments.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
