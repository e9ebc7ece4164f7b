"""How fast ProvisioningRequests are decided by the whole of `cagrpc serve`, over a real API server and etcd.

    python -m bench.requests_live [--requests 1000] [--drive plan|assist] [--journal cluster|sqlite] [--boot 60]

It starts the control plane of the tests. One request of 32 pod sets of 16,384 pods each comes to a server that has been
running for a moment: told is the time from before it is created until its increment is in the journal. Then, with a
server of their own, many small ones are created at once: told is the time from before the first is created until the
last has been decided. Where instances boot faster than all is decided, the server plays the first thousands of nodes,
which a cloud would not ask of it, while it decides on the rest. CPU seconds are the server's. `--requests 0` and
`--drive none` leave one of the two out. Rows are Markdown, for docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.provisioning_requests import MOST_PODS, SETS, small_requests, small_sets
from bench.real_cluster import control_plane, served
from bench.table import machine, machine_line
from solver.model import PodSpec
from solver.model.quantities import format_quantity
from tests.support.controlplane.cluster import pod_spec
from tests.support.controlplane.deployed import install_crds
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.provisioning import PlaneRequests

PATIENCE_SECONDS = 600.0
_MAKERS = 8
_SETTLE_SECONDS = 5.0
_SHARE = 4
"""Pods of so small a part of the usual ones, on nodes that are not the smallest, that half a million fit the nodes that
one increment may have."""
_LARGE = {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["15"]}
_DECIDED = frozenset({"Accepted", "Provisioned", "Failed"})
_numbers = count(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="small ones")
    parser.add_argument("--drive", choices=["plan", "assist", "none"], action="append", help="of the large one")
    parser.add_argument("--journal", choices=["cluster", "sqlite"], default="cluster")
    parser.add_argument("--boot", type=float, default=60.0, help="seconds that an instance for small ones takes")
    arguments = parser.parse_args()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory):
        print("| what | `drive` | in s | CPU s | node groups | new nodes |")
        print("| --- | --- | ---: | ---: | ---: | ---: |", flush=True)
        bench = Bench(plane, directory, arguments.journal)
        for drive in arguments.drive or ["plan", "assist"]:
            if drive != "none":
                print(big(bench, drive), flush=True)
        if arguments.requests:
            print(many(bench, arguments.requests, arguments.boot), flush=True)


@dataclass(frozen=True)
class Bench:
    plane: ControlPlane
    directory: Path
    journal: str


def big(bench: Bench, drive: str) -> str:
    """Its instances take long to start: what becomes of them is not measured."""
    with serving(bench, drive, 3600.0, [_LARGE]) as requests:
        sets = {}
        for pods in small_sets():
            requests.template(pods.name, quantities(pods.spec, _SHARE))
            sets[pods.name] = MOST_PODS
        _settle(requests.live)
        began, used = time.time(), _cpu_seconds(requests.live)
        requests.create("big", sets)
        requests.live.wait_for(requests.live.increments, "it is decided", PATIENCE_SECONDS)
        seconds, used = time.time() - began, _cpu_seconds(requests.live) - used
        what = f"{SETS} pod sets of {MOST_PODS:,} pods"
        return _row(what, drive, seconds, used, _groups(requests), _nodes(requests.live))


def many(bench: Bench, number: int, boot_seconds: float) -> str:
    with serving(bench, "plan", boot_seconds) as requests:
        wanted = [
            {_template(requests, pods.spec): pods.count for pods in each.pod_sets} for each in small_requests(number)
        ]
        _settle(requests.live)
        began, used = time.time(), _cpu_seconds(requests.live)
        with ThreadPoolExecutor(_MAKERS) as pool:
            list(pool.map(lambda each: requests.create(f"small-{each[0]}", each[1]), enumerate(wanted)))
        found = partial(requests.admin.items, requests.path())
        requests.live.wait_for(lambda: all(map(_decided, found())), "all are decided", PATIENCE_SECONDS)
        seconds, used = time.time() - began, _cpu_seconds(requests.live) - used
        return _row(f"{number:,} small requests", "plan", seconds, used, _groups(requests), _nodes(requests.live))


@contextmanager
def serving(bench: Bench, drive: str, boot_seconds: float, requirements: Sequence[Any] = ()) -> Iterator[PlaneRequests]:
    """A namespace and a server over the catalogue, as far as the requirements go."""
    with served(bench.plane, bench.directory, f"bench-{next(_numbers)}") as live:
        requests = PlaneRequests(live)
        install_crds(live.cluster.admin)
        try:
            live.configure(
                [{"name": "any", "requirements": list(requirements)}],
                {"*": {"boot": f"{boot_seconds}s"}},
                drive=drive,
                provisioning={"per_namespace": {"requests": 1_000_000, "pods": 1_000_000}},
                journal=bench.journal,
                namespace=live.cluster.namespace,
            )
            live.start()
            yield requests
        finally:
            live.close()
            requests.close()


def quantities(spec: PodSpec, share: int = 1) -> dict[str, str]:
    return {name: format_quantity(name, amount // share) for name, amount in spec.requests}


def _template(requests: PlaneRequests, spec: PodSpec) -> str:
    """Its PodTemplate, which is made where there is none; with what is scheduled by of the pod's resources alone."""
    asked = quantities(spec)
    name = "-".join(f"{resource.rpartition('/')[2]}-{amount}" for resource, amount in asked.items()).lower()
    body = {"metadata": {"name": name}, "template": {"spec": pod_spec(asked)}}
    requests.admin.ensure(requests.cluster.path("podtemplates"), body)
    return name


def _decided(document: Mapping[str, Any]) -> bool:
    return any(each["type"] in _DECIDED for each in document.get("status", {}).get("conditions", ()))


def _settle(live: Live) -> None:
    """The server is warm: what it compiles first is compiled, and it has seen the templates."""
    live.wait_for(
        lambda: live.serving.get("/status").get("provisioning_requests", {}).get("waits_for") == "",
        "it decides",
        PATIENCE_SECONDS,
    )
    time.sleep(_SETTLE_SECONDS)


def _cpu_seconds(live: Live) -> float:
    """Of the server's process, so far (`proc(5)`: utime and stime)."""
    fields = Path(f"/proc/{live.serving.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _groups(requests: PlaneRequests) -> int:
    with urllib.request.urlopen(f"http://{requests.live.serving.endpoints['http']}/metrics", timeout=5) as answer:
        return sum(line.startswith(b"cagrpc_node_group_target_size{") for line in answer)


def _nodes(live: Live) -> int:
    """New ones, of all increments."""
    return sum(sum(increment["deltas"].values()) for increment in live.increments())


def _row(what: str, drive: str, seconds: float, cpu: float, groups: int, nodes: int) -> str:
    return f"| {what} | {drive} | {seconds:.2f} | {cpu:.1f} | {groups:,} | {nodes:,} |"


if __name__ == "__main__":
    main()
