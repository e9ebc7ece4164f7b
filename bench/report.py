"""What a report of a large cluster takes: 5,000 nodes and 150,000 pods, listed as the API server pages them.

    python -m bench.report [budget in seconds]

Prints one line for each figure, with its goal where there is one, and how many times the CPU time of one plan of the
same pods the whole report takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from cagrpc.api.core.movability import MovingRules
from cagrpc.cluster.documents import DocumentReader
from cagrpc.offline.inputs import Inputs, read_inputs
from cagrpc.report.make import make_report
from cagrpc.report.model import Consolidation
from cagrpc.report.problem import ReadCluster, question
from solver import Budget, solve

NODES, DAEMONS, WORKLOADS, PODS = 5_000, 5, 3_000, 150_000
MOST_SECONDS, MOST_MIB = 60.0, 1024.0
TYPES = (
    ("m7i.4xlarge", "15890m", "57691Mi"),
    ("c7i.8xlarge", "31850m", "57691Mi"),
    ("r7i.4xlarge", "15890m", "118312Mi"),
)
_PADDING = "x" * 1_500
"""What planning passes over: managed fields, statuses, environments."""


def items() -> Iterator[dict[str, Any]]:
    for index in range(NODES):
        kind, cpu, memory = TYPES[index % len(TYPES)]
        labels = {
            "node.kubernetes.io/instance-type": kind,
            "topology.kubernetes.io/zone": f"zone-{index % 3}",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "kubernetes.io/hostname": f"node-{index}",
        }
        status = {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}, "images": _PADDING}
        yield {"kind": "Node", "metadata": {"name": f"node-{index}", "labels": labels}, "status": status}
    for workload in range(0, WORKLOADS, 20):
        selector = {"matchLabels": {"app": f"app-{workload}"}}
        metadata = {"name": f"app-{workload}", "namespace": f"team-{workload % 40}"}
        allowed = {"disruptionsAllowed": 0 if workload % 200 == 100 else 2}
        spec = {"selector": selector, "maxUnavailable": 2}
        yield {"kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec, "status": allowed}
    for index in range(PODS):
        daemon = index < NODES * DAEMONS
        workload = index % DAEMONS if daemon else index % WORKLOADS
        node = index // DAEMONS if daemon else index % NODES
        yield _pod(index, workload, node, daemon=daemon)


def _pod(index: int, workload: int, node: int, *, daemon: bool) -> dict[str, Any]:
    app = f"{'daemon' if daemon else 'app'}-{workload}"
    asked = {"cpu": "50m", "memory": "64Mi"}
    if not daemon:
        asked = {"cpu": f"{50 * (1 + workload % 9)}m", "memory": f"{128 * (1 + workload % 7)}Mi"}
    spec: dict[str, Any] = {"nodeName": f"node-{node}", "containers": [{"name": "c", "resources": {"requests": asked}}]}
    spec["containers"][0]["env"] = _PADDING
    if not daemon and workload % 10 == 0:
        same = {"matchLabels": {"app": app}}
        zone = "topology.kubernetes.io/zone"
        spread = {"maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": same}
        spec["topologySpreadConstraints"] = [spread]
    if not daemon and workload % 100 == 7:
        spec["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    owner = {"kind": "DaemonSet" if daemon else "ReplicaSet", "name": app, "controller": True}
    metadata = {"name": f"{app}-{index}", "namespace": f"team-{workload % 40}", "labels": {"app": app}}
    managed = {**metadata, "managedFields": _PADDING, "ownerReferences": [owner]}
    return {"kind": "Pod", "metadata": managed, "spec": spec, "status": {"phase": "Running", "more": _PADDING}}


def write(path: Path) -> None:
    with path.open("w") as file:
        file.write('{"kind": "List", "items": [')
        for index, item in enumerate(items()):
            file.write(f"{',' if index else ''}{json.dumps(item)}")
        file.write("]}")


def main(budget: Budget) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cluster.json"
        write(path)
        started, cpu = time.perf_counter(), time.process_time()
        report = make_report(Inputs((path,)), budget)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        print(f"{report.nodes:,} nodes, {report.pods:,} movable pods, {path.stat().st_size / 2**20:,.0f} MiB of JSON")
        _print("report, wall", wall, "s", MOST_SECONDS)
        _print("report, CPU", cpu, "s")
        _print("peak memory", mib, "MiB", MOST_MIB)
        if report.planned.gap is not None:
            _print("gap of the best plan", 100 * report.planned.gap, "%")
        _print_consolidation(report.consolidation)
        cluster = ReadCluster.of(read_inputs(Inputs((path,)), DocumentReader(moving=MovingRules()), []))
        asked = question(cluster, cluster.first_kept())
        before = time.process_time()
        solve(asked.problem, budget)
        _print("report / one plan, CPU", cpu / (time.process_time() - before), "x")


def _print_consolidation(found: Consolidation | None) -> None:
    assert found is not None
    possible = found.cost_before_usd_per_hour - found.least_usd_per_hour
    saved = found.cost_before_usd_per_hour - found.cost_after_usd_per_hour
    _print("consolidation, steps", len(found.steps), "")
    _print("consolidation, pods moved", found.pods_moved, "")
    _print("consolidation, nodes that stay", sum(each.nodes_for_this_alone for each in found.stays), "")
    _print("consolidation, of what is proven possible", 100 * saved / possible, "%")


def _print(name: str, value: float, unit: str, goal: float | None = None) -> None:
    said = "" if goal is None else f"  goal < {goal:g}: {'met' if value < goal else 'not met'}"
    print(f"{name:<42} {value:>10.2f} {unit:<4}{said}", flush=True)


if __name__ == "__main__":
    main(Budget(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0))
