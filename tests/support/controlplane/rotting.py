"""A cluster that has rotted: Deployments of many sizes filled its nodes, and then half of their pods went, at random.
Nodes come from elsewhere: of `cagrpc serve`, or of Karpenter."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.model import Node
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.processes import wait_for

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
SHAPES: Mapping[str, tuple[int, int, float]] = {
    "small": (2, 8, 0.10),
    "medium": (4, 16, 0.19),
    "large": (8, 32, 0.36),
    "compute": (8, 16, 0.31),
    "memory": (8, 64, 0.47),
}
"""What instance types there are: cpus, GiB and US dollars per hour."""
PRICES: Mapping[str, float] = {name: price for name, (_, _, price) in SHAPES.items()}
_CPU_MILLI = (250, 500, 1000, 1500, 2000, 3500)
_MIB_PER_MILLI = (1, 2, 4, 6)
_LEAST_BUDGET = Budget(20.0, workers=2)
_MIB = 2**20
_ANNOTATING = 8
"""Requests at a time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment."""

    name: str
    replicas: int
    """How many pods it begins with."""
    left: int
    """How many of them are left when the cluster has rotted."""
    requests: Mapping[str, str]
    max_unavailable: int | None = None
    """That of its PodDisruptionBudget; None where it has none."""
    annotations: Mapping[str, str] | None = None


def allocatable(shape: str) -> dict[str, str]:
    """What pods may use of a node: less 100m and 10 MiB, as with kwok."""
    cpus, gib, _ = SHAPES[shape]
    return {"cpu": f"{1000 * cpus - 100}m", "memory": f"{1024 * gib - 10}Mi", "pods": "110"}


def workloads(pods: int, *, seed: int = 20, left: float = 0.5) -> list[Workload]:
    """So many pods in about one Deployment for 20 of them; a third of these have a PodDisruptionBudget, and one in 25
    asks not to be disrupted."""
    rng = random.Random(seed)
    count = max(4, pods // 20)
    shares = [rng.uniform(0.3, 1.7) for _ in range(count)]
    sizes = [max(2, round(pods * each / sum(shares))) for each in shares]
    sizes[0] += pods - sum(sizes)
    staying = _staying(sizes, round(pods * left), rng)
    found = []
    for number, (size, stay) in enumerate(zip(sizes, staying, strict=True)):
        cpu = rng.choice(_CPU_MILLI)
        kept = number % 25 == 1
        found.append(
            Workload(
                f"app-{number:03}",
                size,
                stay,
                {"cpu": f"{cpu}m", "memory": f"{cpu * rng.choice(_MIB_PER_MILLI)}Mi"},
                max_unavailable=rng.randint(1, max(1, stay // 4)) if number % 3 == 0 else None,
                annotations={DO_NOT_DISRUPT: "true"} if kept else None,
            )
        )
    return found


def _staying(sizes: Sequence[int], left: int, rng: random.Random) -> list[int]:
    """Of each, when only so many are left of all, drawn at random; at least one."""
    drawn = rng.sample([number for number, size in enumerate(sizes) for _ in range(size)], left)
    return [max(1, drawn.count(number)) for number in range(len(sizes))]


def create(cluster: Cluster, found: Sequence[Workload]) -> None:
    """Deployments and their budgets."""
    for each in found:
        metadata = {"annotations": dict(each.annotations)} if each.annotations else {}
        cluster.create_deployment(each.name, each.replicas, each.requests, metadata=metadata)
        if each.max_unavailable is not None:
            spec = {"maxUnavailable": each.max_unavailable, "selector": {"matchLabels": {"app": each.name}}}
            path = cluster.path("poddisruptionbudgets", api="apis/policy/v1")
            cluster.admin.create(path, {"metadata": {"name": each.name}, "spec": spec})


def rot(cluster: Cluster, found: Sequence[Workload], *, seed: int = 20) -> None:
    """Let pods go at random, all at once: those that the controllers of ReplicaSets are told to delete first. Nothing
    is on its way when this returns."""
    rng = random.Random(seed)
    by_app: dict[str, list[Any]] = {}
    for pod in sorted(cluster.pods(), key=lambda pod: str(pod["metadata"]["name"])):
        by_app.setdefault(pod["metadata"]["labels"]["app"], []).append(pod)
    going = [
        pod["metadata"]["name"] for each in found for pod in rng.sample(by_app[each.name], each.replicas - each.left)
    ]
    with ThreadPoolExecutor(_ANNOTATING) as pool:
        patch = {"metadata": {"annotations": {DELETION_COST: "-1"}}}
        list(pool.map(lambda name: cluster.admin.merge(cluster.path("pods", name), patch), going))
    for each in found:
        scale(cluster, each.name, each.left)
    left = sum(each.left for each in found)
    wait_for(lambda: len(cluster.pods()) == left, f"{left} pods are left", seconds=300)
    assert not {pod["metadata"]["name"] for pod in cluster.pods()} & set(going), "others went than were drawn"
    wait_for_budgets(cluster, found)


def scale(cluster: Cluster, deployment: str, replicas: int) -> None:
    cluster.admin.merge(cluster.path("deployments", deployment, api="apis/apps/v1"), {"spec": {"replicas": replicas}})


def wait_for_budgets(cluster: Cluster, found: Sequence[Workload]) -> None:
    """Wait until each budget allows what it should with as many pods as there are."""
    expected = {each.name: each.max_unavailable for each in found if each.max_unavailable is not None}

    def allowed() -> dict[str, Any]:
        path = cluster.path("poddisruptionbudgets", api="apis/policy/v1")
        return {each["metadata"]["name"]: each["status"]["disruptionsAllowed"] for each in cluster.admin.items(path)}

    wait_for(lambda: allowed() == expected, "the PodDisruptionBudgets know how many pods are left")


def place(cluster: Cluster, found: Sequence[Workload], places: Mapping[str, Sequence[str]]) -> None:
    """Create what is left of them, each pod on a node of its own choice: the apps of each node. Nobody else binds them
    meanwhile."""
    cluster.plane.stop_scheduler()
    create(cluster, [replace(each, replicas=each.left) for each in found])
    left = sum(each.left for each in found)
    wait_for(lambda: len(cluster.pods()) == left, f"{left} pods are there", seconds=300)
    by_app: dict[str, list[str]] = {}
    for pod in cluster.pods():
        by_app.setdefault(pod["metadata"]["labels"]["app"], []).append(pod["metadata"]["name"])
    for node, apps in places.items():
        for app in apps:
            name = by_app[app].pop()
            binding = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
            cluster.admin.create(cluster.path("pods", name) + "/binding", binding)
    assert not any(by_app.values()), f"pods without a place: {by_app}"
    cluster.plane.start_scheduler()
    wait_for_budgets(cluster, found)


def clear(cluster: Cluster, found: Sequence[Workload]) -> None:
    """Take Deployments and budgets away. No pod is left when this returns."""
    for each in found:
        cluster.admin.delete(cluster.path("deployments", each.name, api="apis/apps/v1"), propagationPolicy="Background")
        cluster.admin.delete(cluster.path("poddisruptionbudgets", each.name, api="apis/policy/v1"))
    wait_for(lambda: not cluster.pods(), "all pods are gone", seconds=300)


def running(cluster: Cluster) -> int:
    """Return how many pods run and go on running."""
    stay = (pod for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"])
    return sum(pod["status"]["phase"] == "Running" for pod in stay)


def least_usd_per_hour(
    found: Sequence[Workload], kinds: Mapping[str, str], places: Mapping[str, Sequence[str]]
) -> float:
    """What no consolidation can get below: nodes with pods that may not be disrupted stay, all other pods are planned
    anew, on what these leave and new nodes; the bound is proven. `kinds` and `places` are by node."""
    kept_apps = {each.name for each in found if each.annotations}
    kept = {node: apps for node, apps in places.items() if kept_apps & set(apps)}
    specs = {each.name: _spec(each) for each in found}
    moving = Counter(app for node, apps in places.items() if node not in kept for app in apps)
    nodes = [Node(node, _less(_capacity(kinds[node]), [specs[app] for app in apps])) for node, apps in kept.items()]
    groups = [NodeGroup(name, _capacity(name), price, max_size=1000) for name, price in PRICES.items()]
    pods = [PodSet(app, specs[app], count) for app, count in moving.items()]
    plan = solve(Problem(tuple(pods), tuple(groups), tuple(nodes)), _LEAST_BUDGET)
    assert not plan.unplaced, "pods that no node group takes"
    return plan.certificate.lower_bound_usd_per_hour + sum(PRICES[kinds[node]] for node in kept)


def _spec(each: Workload) -> PodSpec:
    cpu, memory = each.requests["cpu"].removesuffix("m"), each.requests["memory"].removesuffix("Mi")
    return PodSpec((("cpu", int(cpu)), ("memory", int(memory) * _MIB)))


def _capacity(shape: str) -> dict[str, int]:
    cpus, gib, _ = SHAPES[shape]
    return {"cpu": 1000 * cpus - 100, "memory": (1024 * gib - 10) * _MIB, "pods": 110}


def _less(capacity: Mapping[str, int], pods: Sequence[PodSpec]) -> dict[str, int]:
    free = dict(capacity)
    for each in pods:
        for resource, amount in (*each.requests, ("pods", 1)):
            free[resource] -= amount
    return free
