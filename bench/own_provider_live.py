"""Behind an unmodified cluster-autoscaler that keeps a cloud provider of its own, its `kwok` provider: what its nodes
cost above the optimum, and when all pods run, with other expanders alone and with cagrpc before them.

    python -m bench.own_provider_live --autoscaler PROGRAM [--load trickle] [--expander NAMES] [--salvo] [--batch 3m]

PROGRAM is built from its repository (`go build -tags kwok`). The loads, over openb's 12 groups but for the last two:

trickle   pods of openb-1000 as Deployments created together, by controllers at their own pace (--pods-a-second)
killed    the same; cagrpc is killed once half of the pods are there, and started again 20 s later
maximum   the same; the group that most nodes are taken of may have 60
gang      24 pods of one gang; each of the two groups whose nodes are used best takes a part of it only
no-nodes  100 pods; the group that CA's priorities prefer is scaled up, and each of its nodes goes before a pod is bound

`optimum` is that of all pods planned together, and what is above its bound is in brackets; `served` are the pods that
run once nothing has changed for a while; `load` is the machine's load average in the end. Rows are Markdown.
"""

from __future__ import annotations

import argparse
import csv
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from bench.live import HINDSIGHT, Case, Seen, create, groups_of, trace, watching
from bench.real_cluster import control_plane, real_autoscaler, served
from bench.table import machine, machine_line
from bench.workloads import GPU, MIB, spec, with_tainted_gpus
from solver import NodeGroup, Plan, PodSet, Problem, solve
from solver.model.quantities import format_quantities
from solver.planning.warm_up import warm_up
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.kubelets import kubelets
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane, Scoring
from tests.support.controlplane.processes import meanwhile

LOADS = ("trickle", "killed", "maximum", "gang", "no-nodes")
_QUIET_SECONDS = 75.0
_NO_NODES_SECONDS = 300.0
"""How long the load `no-nodes` may take: without a memory it takes forever."""
_LOOKED_SECONDS = 0.02
"""How often nodes that never come are looked for."""
_NEVER_TAKEN = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/never-comes", "effect": "NoSchedule"}
"""On nodes that never come: no pod is bound to one before it goes, and the autoscaler takes it for a start-up taint."""
_AWAY_SECONDS = 20.0
_MOST_OF_ONE, _LIMITED = 60, "g4dn.12xlarge"
_PRIORITIES = "cluster-autoscaler-priority-expander"
_PREFERRED = "preferred"
_HEADS = ("load", "expander", "pods", "served", "optimum $/h", "$/h", "above %", "nodes", "all run s", "load average")
_numbers = count(1)


@dataclass(frozen=True)
class Load:
    """What is to be served, and how CA is to be asked."""

    problem: Problem
    expanders: tuple[str, ...] = ("least-waste", "grpc,least-waste")
    kills: bool = False
    """Whether cagrpc is killed in the middle."""
    labels: Mapping[str, str] | None = None
    """Of the pods."""
    never_comes: str = ""
    """A group that CA's priorities prefer, and whose nodes go at once."""
    quiet_seconds: float = _QUIET_SECONDS


def load_of(name: str) -> Load:
    openb = with_tainted_gpus(Problem(trace(_CASE), groups_of("openb")))
    groups = {each.id: each for each in openb.node_groups}
    if name == "killed":
        return Load(openb, ("grpc,least-waste",), kills=True)
    if name == "maximum":
        limited = {**groups, _LIMITED: replace(groups[_LIMITED], max_size=_MOST_OF_ONE)}
        return Load(replace(openb, node_groups=tuple(limited.values())))
    if name == "gang":
        kinds = {"m7i.xlarge": 10, "m7i.4xlarge": 3, "m7i.16xlarge": 10}
        pods = PodSet("train", spec({"cpu": 3800, "memory": 8192 * MIB}), 24, gang="train")
        problem = Problem((pods,), tuple(replace(groups[each], max_size=most) for each, most in kinds.items()))
        return Load(problem, labels={"scheduling.x-k8s.io/pod-group": "train"})
    if name == "no-nodes":
        cheap = replace(groups["m7i.4xlarge"], id=_PREFERRED, price_usd_per_hour=0.3)
        pods = PodSet("web", spec({"cpu": 3000, "memory": 4096 * MIB}), 100)
        problem = Problem((pods,), (cheap, groups["m7i.4xlarge"], groups["m7i.16xlarge"]))
        expanders = ("priority,least-waste", "grpc,priority,least-waste")
        return Load(problem, expanders, never_comes=_PREFERRED, quiet_seconds=_NO_NODES_SECONDS)
    return Load(openb)


_CASE = Case("openb-1000", "paced", "openb", Scoring.LEAST_ALLOCATED, 0.0, 0.0, 10.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autoscaler", type=Path, required=True, help="the program, with the provider kwok")
    parser.add_argument("--load", choices=LOADS, action="append", help="trickle by default")
    parser.add_argument("--expander", action="append", help="those that the load is to compare by default")
    parser.add_argument("--salvo", action="store_true", help="with --salvo-scale-up")
    parser.add_argument("--batch", help="expander.batch.window, where the expander waits for more pods")
    parser.add_argument("--pods-a-second", type=float, default=20.0, help="the controllers' kube-api-qps")
    parser.add_argument("--verbose", action="store_true", help="the server's log as well")
    options = parser.parse_args()
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n\n| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}", flush=True)
    with control_plane() as (plane, directory):
        for name in options.load or ("trickle",):
            load = load_of(name)
            groups = tuple(each for each in load.problem.node_groups if each.id != load.never_comes)
            optimum = solve(replace(load.problem, node_groups=groups), HINDSIGHT)
            for expanders in options.expander or load.expanders:
                run(plane, directory, load, (name, expanders), optimum, options)
    return 0


def run(
    plane: ControlPlane,
    directory: Path,
    load: Load,
    head: tuple[str, str],
    optimum: Plan,
    options: argparse.Namespace,
) -> None:
    """Print one row; `head` is how it begins, with the expanders at last."""
    pace = (f"--kube-api-qps={options.pods_a_second:g}", f"--kube-api-burst={round(1.5 * options.pods_a_second)}")
    wanted = sum(each.count for each in load.problem.pod_sets)
    with (
        plane.scheduler(_CASE.scoring),
        plane.controller_manager(*pace),
        watching(plane) as seen,
        served(plane, directory, f"own-{next(_numbers)}") as live,
        kubelets(plane, f"own=true,pool!={_PREFERRED}"),
        ExitStack() as beside,
    ):
        flags = configure(live, load, options)
        live.start(flags=flags)
        beside.enter_context(autoscaler(live, load, head[-1], options))
        if load.never_comes:
            beside.enter_context(meanwhile(lambda: remove(live, load.never_comes), _LOOKED_SECONDS))
        began = time.monotonic()
        demand(live, load)
        changed, state, kills = time.monotonic(), (0, 0), load.kills
        while time.monotonic() < changed + load.quiet_seconds and len(seen.running) < wanted:
            time.sleep(0.5)
            if kills and 2 * len(seen.created) >= wanted:
                kills = False
                live.kill()
                time.sleep(_AWAY_SECONDS)
                live.start(flags=flags)
            if (now := (len(seen.running), 0 if load.never_comes else len(seen.used))) != state:
                changed, state = time.monotonic(), now
        print(f"| {' | '.join((*head, *row(load, optimum, seen, began)))} |", flush=True)
        if options.verbose:
            print(live.serving.log())
            print(Counter(seen.groups.values()))


def row(load: Load, optimum: Plan, seen: Seen, began: float) -> tuple[str, ...]:
    prices = {each.id: each.price_usd_per_hour for each in load.problem.node_groups}
    cost = sum(prices[pool] for pool in seen.groups.values())
    best, bound = optimum.certificate.cost_usd_per_hour, optimum.certificate.lower_bound_usd_per_hour
    return (
        f"{sum(each.count for each in load.problem.pod_sets):,}",
        f"{len(seen.running):,}",
        f"{best:,.2f}",
        f"{cost:,.2f}",
        f"{100 * (cost / best - 1):.1f} ({100 * (cost / bound - 1):.1f})",
        str(len(seen.groups)),
        f"{max(seen.running.values(), default=began) - began:.0f}",
        f"{os.getloadavg()[0]:.1f}",
    )


def configure(live: Live, load: Load, options: argparse.Namespace, mode: str = "decide") -> tuple[str, ...]:
    """Write the configuration of an expander alone, and return the flags that it is started with: a server that is
    started again has the same address."""
    prices = live.directory / "prices.csv"
    with prices.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(("instance_type", "usd_per_hour"))
        rows.writerows((each.id, each.price_usd_per_hour) for each in load.problem.node_groups)
    batch = {"batch": {"window": options.batch}} if options.batch else {}
    gangs = {"veto_partial_gangs": True} if load.labels else {}
    namespace = live.cluster.namespace
    live.write(
        {
            "provider": {"enabled": False},
            "provisioners": [] if load.never_comes else [{"name": "own", "groups": ["."]}],
            "kubernetes": {"kubeconfig": str(live.cluster.plane.kubeconfig()), "namespace": namespace},
            "expander": {
                "mode": mode,
                "prices": str(prices),
                "config_maps": {"namespace": namespace},
                **batch,
                **gangs,
            },
        }
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "--expander-address", f"127.0.0.1:{free.getsockname()[1]}"


def demand(live: Live, load: Load) -> None:
    """Create the pods."""
    if load.labels is None:
        create(live.cluster, load.problem.pod_sets, _CASE)
        return
    for pods in load.problem.pod_sets:
        requests = format_quantities(pods.spec.requests)
        least = {"cagrpc.io/gang-min-count": str(pods.count)}
        metadata = {"labels": dict(load.labels), "annotations": least}
        live.cluster.create_deployment(pods.name, pods.count, requests, metadata=metadata)


def remove(live: Live, group: str) -> None:
    """Take the group's nodes away."""
    for node in live.cluster.admin.items(NODES, labelSelector=f"pool={group}"):
        live.cluster.admin.delete(f"{NODES}/{node['metadata']['name']}")


@contextmanager
def autoscaler(live: Live, load: Load, expanders: str, options: argparse.Namespace, *more_flags: str) -> Iterator[None]:
    """Run the autoscaler with the problem's node groups as those of its provider."""
    namespace, admin = live.cluster.namespace, live.cluster.admin
    nodes = {"apiVersion": "v1", "kind": "List", "items": templates(load)}
    config: Mapping[str, Any] = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": "pool"},
        "nodes": {"skipTaint": True, "gpuConfig": {"gpuLabelKey": "none", "availableGPUTypes": {}}},
        "configmap": {"name": "templates", "key": "templates"},
    }
    priorities = {50: [load.never_comes], 10: [".*"]}
    for name, data in (
        ("kwok-provider-config", {"config": yaml.safe_dump(dict(config))}),
        ("templates", {"templates": yaml.safe_dump(nodes)}),
        *([(_PRIORITIES, {"priorities": yaml.safe_dump(priorities)})] if load.never_comes else []),
    ):
        admin.create(live.cluster.path("configmaps"), {"metadata": {"name": name}, "data": data})
    flags = (
        "--cloud-provider=kwok",
        f"--namespace={namespace}",
        f"--expander={expanders}",
        "--scale-down-enabled=false",
        "--scan-interval=10s",
        *(["--salvo-scale-up"] if options.salvo else []),
        *more_flags,
    )
    kubeconfig = str(live.cluster.plane.kubeconfig())
    environment = {"KUBECONFIG": kubeconfig, "KWOK_PROVIDER_MODE": "local", "POD_NAMESPACE": namespace}
    try:
        with real_autoscaler(live, options.autoscaler, flags, environment):
            yield
    finally:
        admin.delete(NODES)


def templates(load: Load) -> list[dict[str, Any]]:
    """Return a template Node of each group."""
    return [
        template(each, *([_NEVER_TAKEN] if each.id == load.never_comes else [])) for each in load.problem.node_groups
    ]


def template(group: NodeGroup, *more_taints: Mapping[str, str]) -> dict[str, Any]:
    amounts = format_quantities(group.allocatable.items())
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
        "spec": {"taints": [*taints, *map(dict, more_taints)]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


if __name__ == "__main__":
    sys.exit(main())
