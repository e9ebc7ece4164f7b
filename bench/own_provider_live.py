"""Behind an unmodified cluster-autoscaler that keeps a cloud provider of its own, its `kwok` provider: how much dearer
than the optimum its nodes are, with `least-waste` alone and with cagrpc as the expander before it.

    python -m bench.own_provider_live --autoscaler PROGRAM [--salvo] [--batch 30s] [--pods-a-second 20] [--verbose]

PROGRAM is built from its repository (`go build -tags kwok`). Pods of openb-1000 come as Deployments created together,
by controllers at their own pace, over the 12 groups of openb. `optimum` is that of all pods planned together, and what
is above its bound is in brackets; `served` are the pods that run once nothing has changed for a minute. Rows are
Markdown.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from bench.live import HINDSIGHT, Case, Seen, create, groups_of, trace, watching
from bench.real_cluster import control_plane, served
from bench.table import machine, machine_line
from bench.workloads import GPU, with_tainted_gpus
from solver import NodeGroup, Plan, Problem, solve
from solver.model.quantities import format_quantity
from solver.planning.warm_up import warm_up
from tests.support.controlplane.kubelets import kubelets
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane, Scoring

_QUIET_SECONDS = 60.0
_HEADS = ("expander", "pods", "served", "optimum $/h", "$/h", "above %", "nodes", "all run s")
_numbers = count(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autoscaler", type=Path, required=True, help="the program, with the provider kwok")
    parser.add_argument("--expander", action="append", help="least-waste and grpc,least-waste by default")
    parser.add_argument("--salvo", action="store_true", help="with --salvo-scale-up")
    parser.add_argument("--batch", help="expander.batch.window, where the expander waits for more pods")
    parser.add_argument("--pods-a-second", type=float, default=20.0, help="the controllers' kube-api-qps")
    parser.add_argument("--verbose", action="store_true", help="the server's log as well")
    options = parser.parse_args()
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    case = Case("openb-1000", "paced", "openb", Scoring.LEAST_ALLOCATED, 0.0, 0.0, 10.0)
    problem = with_tainted_gpus(Problem(trace(case), groups_of("openb")))
    optimum = solve(problem, HINDSIGHT)
    print(f"| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}", flush=True)
    with control_plane() as (plane, directory):
        for expanders in options.expander or ("least-waste", "grpc,least-waste"):
            print(run(plane, directory, case, problem, optimum, expanders, options), flush=True)
    return 0


def run(
    plane: ControlPlane,
    directory: Path,
    case: Case,
    problem: Problem,
    optimum: Plan,
    expanders: str,
    options: argparse.Namespace,
) -> str:
    """Return one row."""
    pace = (f"--kube-api-qps={options.pods_a_second:g}", f"--kube-api-burst={round(1.5 * options.pods_a_second)}")
    wanted = sum(each.count for each in problem.pod_sets)
    with (
        plane.scheduler(case.scoring),
        plane.controller_manager(*pace),
        watching(plane) as seen,
        served(plane, directory, f"own-{next(_numbers)}") as live,
        kubelets(plane, "own=true"),
    ):
        prices = live.directory / "prices.csv"
        with prices.open("w") as file:
            rows = csv.writer(file)
            rows.writerow(("instance_type", "usd_per_hour"))
            rows.writerows((each.id, each.price_usd_per_hour) for each in problem.node_groups)
        batch = {"batch": {"window": options.batch}} if options.batch else {}
        live.configure([{"name": "own", "groups": ["."]}], drive="assist", expander={"prices": str(prices), **batch})
        live.start()
        with autoscaler(live, problem, expanders, options):
            began = time.monotonic()
            create(live.cluster, problem.pod_sets, case)
            changed, state = time.monotonic(), (0, 0)
            while time.monotonic() < changed + _QUIET_SECONDS and len(seen.running) < wanted:
                time.sleep(0.5)
                if (now := (len(seen.running), len(seen.groups))) != state:
                    changed, state = time.monotonic(), now
            if options.verbose:
                print(live.serving.log())
            return row(expanders, problem, optimum, seen, began)


def row(expanders: str, problem: Problem, optimum: Plan, seen: Seen, began: float) -> str:
    prices = {each.id: each.price_usd_per_hour for each in problem.node_groups}
    cost = sum(prices[pool] for pool in seen.groups.values())
    best, bound = optimum.certificate.cost_usd_per_hour, optimum.certificate.lower_bound_usd_per_hour
    cells = (
        expanders,
        f"{sum(each.count for each in problem.pod_sets):,}",
        f"{len(seen.running):,}",
        f"{best:,.2f}",
        f"{cost:,.2f}",
        f"{100 * (cost / best - 1):.1f} ({100 * (cost / bound - 1):.1f})",
        str(len(seen.groups)),
        f"{max(seen.running.values(), default=began) - began:.0f}",
    )
    return f"| {' | '.join(cells)} |"


@contextmanager
def autoscaler(live: Live, problem: Problem, expanders: str, options: argparse.Namespace) -> Iterator[None]:
    """Run the autoscaler with the problem's node groups as those of its provider."""
    namespace, admin = live.cluster.namespace, live.cluster.admin
    nodes = {"apiVersion": "v1", "kind": "List", "items": [template(each) for each in problem.node_groups]}
    config: Mapping[str, Any] = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": "pool"},
        "nodes": {"skipTaint": True, "gpuConfig": {"gpuLabelKey": "none", "availableGPUTypes": {}}},
        "configmap": {"name": "templates", "key": "templates"},
    }
    for name, data in (
        ("kwok-provider-config", {"config": yaml.safe_dump(dict(config))}),
        ("templates", {"templates": yaml.safe_dump(nodes)}),
    ):
        admin.create(live.cluster.path("configmaps"), {"metadata": {"name": name}, "data": data})
    log = live.directory / "cluster-autoscaler.log"
    command = [
        str(options.autoscaler),
        f"--kubeconfig={live.cluster.plane.kubeconfig()}",
        "--cloud-provider=kwok",
        f"--namespace={namespace}",
        f"--expander={expanders}",
        f"--grpc-expander-url={live.serving.endpoints['expander']}",
        f"--grpc-expander-cert={live.serving.certificates / 'ca.crt'}",
        "--leader-elect=false",
        "--write-status-configmap=false",
        "--scale-down-enabled=false",
        "--scan-interval=10s",
        "--address=127.0.0.1:0",
        "--v=2",
        *(["--salvo-scale-up"] if options.salvo else []),
    ]
    of_provider = {"KUBECONFIG": str(live.cluster.plane.kubeconfig()), "KWOK_PROVIDER_MODE": "local"}
    environment = {**os.environ, **of_provider, "POD_NAMESPACE": namespace}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield
        assert process.poll() is None, f"the cluster-autoscaler has ended:\n{log.read_text()[-4000:]}"
    finally:
        process.terminate()
        process.wait(30)
        admin.delete("/api/v1/nodes", labelSelector="own=true")


def template(group: NodeGroup) -> dict[str, Any]:
    amounts = {name: format_quantity(name, amount) for name, amount in group.allocatable.items()}
    labels = {
        "pool": group.id,
        "own": "true",
        "node.kubernetes.io/instance-type": group.id,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}] if group.allocatable.get(GPU) else []
    annotations = {
        "cluster-autoscaler.kwok.nodegroup/min-count": "0",
        "cluster-autoscaler.kwok.nodegroup/max-count": str(min(group.max_size, 1000)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": group.id, "labels": labels, "annotations": annotations},
        "spec": {"taints": taints},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


if __name__ == "__main__":
    sys.exit(main())
