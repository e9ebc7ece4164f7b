"""The simulated scheduler beside the real one: where single pods go, and how many pods of a tight plan stay pending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from cagrpc.controllers.settings import Scoring
from solver import Budget, Node, NodeGroup, PodClass, PodSet, PodSpec, Problem, Taint, TaintEffect, Toleration, solve
from solver.model import (
    HOSTNAME,
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    Requirement,
    RunningPods,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.quantities import format_quantity
from solver.rehearsal import group_numbers
from solver.scheduler import Profile, Scenario, Scheduler
from solver.scheduler import Scoring as Simulated
from tests.controlplane.cluster import NODES, Cluster
from tests.controlplane.processes import wait_for

GIB = 2**30
ZONE = "topology.kubernetes.io/zone"
NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Kind:
    """A kind of pod, as the planner and as the API server read it."""

    spec: PodSpec
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def requests(self) -> dict[str, str]:
        return {name: format_quantity(name, amount) for name, amount in self.spec.requests}


def asks(cpu: int, memory_gib: float, **more: Any) -> PodSpec:
    requests = {"cpu": cpu, "memory": int(memory_gib * GIB)}
    return PodSpec(tuple((name, amount) for name, amount in requests.items() if amount), **more)


def counted(app: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (app,)),))


def spread(key: str, when: WhenUnsatisfiable, app: str) -> tuple[TopologySpread, dict[str, Any]]:
    selector = {"matchLabels": {"app": app}}
    manifest = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when.value, "labelSelector": selector}
    return TopologySpread(key, 1, counted(app), when), manifest


def labelled(app: str) -> dict[str, Any]:
    return {"labels": {"app": app}}


def kinds() -> dict[str, Kind]:
    """Every filter and score that is simulated, in one kind or another."""
    of_web, of_db = {"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "db"}}
    hard, hard_manifest = spread(ZONE, WhenUnsatisfiable.DO_NOT_SCHEDULE, "web")
    soft, soft_manifest = spread(HOSTNAME, WhenUnsatisfiable.SCHEDULE_ANYWAY, "web")
    ssd = Requirement("disk", Operator.IN, ("ssd",))
    ssd_manifest = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    apart = PodAffinityTerm(HOSTNAME, counted("db"))
    near = PodAffinityTerm(ZONE, counted("db"))
    tolerates_gpu = [{"key": "gpu", "operator": "Exists"}]
    namespace = {"namespace": "x"}
    return {
        "plain": Kind(asks(700, 3)),
        "cpu": Kind(asks(1900, 1)),
        "memory": Kind(asks(300, 9)),
        "tolerant": Kind(asks(900, 4, tolerations=(Toleration("gpu", "Exists"),)), {"tolerations": tolerates_gpu}),
        "picky": Kind(
            asks(500, 2, preferred_nodes=(PreferredNodes(40, NodeSelectorTerm((ssd,))),)),
            {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 40, "preference": ssd_manifest}]
                    }
                }
            },
        ),
        "port": Kind(
            asks(400, 1, host_ports=(HostPort(8080),)),
            {"ports": [{"containerPort": 8080, "hostPort": 8080}]},
        ),
        "db": Kind(
            asks(600, 5, labels=(("app", "db"),), pod_anti_affinity=(apart,), **namespace),
            {
                "metadata": labelled("db"),
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": HOSTNAME, "labelSelector": of_db}
                        ]
                    }
                },
            },
        ),
        "near-db": Kind(
            asks(500, 2, preferred_pods=(PreferredPods(60, near),), **namespace),
            {
                "affinity": {
                    "podAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 60, "podAffinityTerm": {"topologyKey": ZONE, "labelSelector": of_db}}
                        ]
                    }
                }
            },
        ),
        "web": Kind(
            asks(400, 2, labels=(("app", "web"),), topology_spread=(hard, soft), **namespace),
            {"metadata": labelled("web"), "topologySpreadConstraints": [hard_manifest, soft_manifest]},
        ),
        "beside-web": Kind(
            asks(300, 1, pod_affinity=(PodAffinityTerm(HOSTNAME, counted("web")),), **namespace),
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": HOSTNAME, "labelSelector": of_web}
                        ]
                    }
                }
            },
        ),
    }


def standing() -> list[Node]:
    """No two alike, so that few scores are equal."""
    nodes = []
    for number in range(12):
        labels = {ZONE: "abc"[number % 3], HOSTNAME: f"node-{number}", "disk": "ssd" if number % 4 == 1 else "hdd"}
        taints = [Taint("gpu", TaintEffect.NO_SCHEDULE)] if number % 6 == 2 else []
        taints += [Taint("busy", TaintEffect.PREFER_NO_SCHEDULE)] if number % 5 == 3 else []
        allocatable = {"cpu": 4000 + 530 * number, "memory": (16 + 7 * (number * 5 % 12)) * GIB, "pods": 20}
        nodes.append(Node(f"node-{number}", allocatable, labels, tuple(taints), (), allocatable))
    return nodes


def create(cluster: Cluster, node: Node) -> None:
    amounts = {name: format_quantity(name, amount) for name, amount in node.allocatable.items()}
    cluster.create_node(node.name, amounts, labels=node.labels)
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect.value} for taint in node.taints]
    if taints:
        cluster.admin.merge(f"{NODES}/{node.name}", {"spec": {"taints": taints}})


def filled(node: Node, held: Counter[PodSpec]) -> Node:
    """The node with these pods."""
    free = dict(node.allocatable)
    for spec, count in held.items():
        for name, amount in (*spec.requests, ("pods", 1)):
            free[name] -= amount * count
    running = tuple(RunningPods(spec, count) for spec, count in held.items())
    return Node(node.name, free, node.labels, node.taints, running, node.allocatable)


def choices(spec: PodSpec, nodes: list[Node], profile: Profile) -> set[str]:
    """The nodes that the simulated scheduler takes for the pod, by chance where scores are equal."""
    problem = Problem((PodSet("pod", spec, 1),), nodes=tuple(nodes))
    scheduler = Scheduler(problem, [PodClass(0, spec, 1, "pod")], profile)
    outcomes = (scheduler.run(NONE, NONE, NONE.reshape(0, 3), Scenario(seed)) for seed in range(16))
    return {"" if outcome.placed[0] < 0 else nodes[int(outcome.placed[0])].name for outcome in outcomes}


@pytest.mark.parametrize("scoring", Scoring)
def test_a_pod_goes_where_the_simulation_says(cluster: Cluster, scoring: Scoring) -> None:
    nodes = standing()
    for node in nodes:
        create(cluster, node)
    held: dict[str, Counter[PodSpec]] = {node.name: Counter() for node in nodes}
    # Bare pods: the scheduler's own spread is for those of controllers.
    profile = Profile(Simulated(scoring.value), default_spread=False)
    certain = 0
    with cluster.plane.scheduler(scoring):
        for number, (name, kind) in enumerate(list(kinds().items()) * 4):
            may = choices(kind.spec, [filled(node, held[node.name]) for node in nodes], profile)
            certain += len(may) == 1
            found = placed(cluster, f"{name}-{number}", kind)
            assert found in may, f"pod {number}, {name}"
            if found:
                held[found][kind.spec] += 1
    assert certain > 30


def placed(cluster: Cluster, name: str, kind: Kind) -> str:
    """The node that a new pod is bound to, empty where the scheduler finds none."""
    manifest = dict(kind.manifest)
    ports = manifest.pop("ports", None)
    if ports:
        container = {"name": "main", "image": "example.com/none", "resources": {"requests": kind.requests}}
        manifest["containers"] = [{**container, "ports": ports}]
    path = cluster.path("pods", cluster.create_pod(name, kind.requests, **manifest)["metadata"]["name"])
    wait_for(lambda: is_settled(cluster.admin.get(path)), f"{name} is bound or turned away")
    found = cluster.admin.get(path)["spec"].get("nodeName", "")
    if not found:
        cluster.admin.delete(path, gracePeriodSeconds=0)
    return str(found)


def is_settled(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    turned_away = any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)
    return bool(pod["spec"].get("nodeName")) or turned_away


def tight() -> Problem:
    """300 pods in eight Deployments, which fill four kinds of nodes well if they are placed right."""
    amounts = ((500, 1), (700, 5), (900, 2), (1300, 9), (1900, 3), (2300, 12), (3100, 6), (3900, 22))
    counts = (70, 60, 50, 40, 30, 24, 16, 10)
    # The scheduler is stopped while pods are made; started, it reads them in the order of their names.
    sets = tuple(
        PodSet(f"app-{number}", asks(cpu, memory), count, waiting_seconds=100 - 10 * number)
        for number, ((cpu, memory), count) in enumerate(zip(amounts, counts, strict=True))
    )
    shapes = (("small", 4, 15, 0.2), ("large", 8, 30, 0.38), ("compute", 16, 30, 0.62), ("memory", 8, 62, 0.5))
    groups = tuple(
        NodeGroup(name, {"cpu": cores * 1000 - 90, "memory": gib * GIB, "pods": 58}, price)
        for name, cores, gib, price in shapes
    )
    return Problem(sets, groups)


def pending_after(cluster: Cluster, problem: Problem, new: Sequence[str], scoring: Scoring) -> int:
    """Pods of the problem, as Deployments, that are left once the real scheduler has had new nodes of these groups."""
    cluster.plane.stop_scheduler()
    for pods in problem.pod_sets:
        requests = {name: format_quantity(name, amount) for name, amount in pods.spec.requests}
        cluster.create_deployment(pods.name, pods.count, requests)
    groups = {group.id: group for group in problem.node_groups}
    for number, group in enumerate(new):
        create(cluster, Node(f"node-{number}", {}, {}, (), allocatable=groups[group].allocatable))
    total = sum(pods.count for pods in problem.pod_sets)
    wait_for(lambda: len(cluster.pods()) == total, "all pods are made")
    with cluster.plane.scheduler(scoring):
        wait_for(lambda: all(map(is_settled, cluster.pods())), "every pod is bound or turned away")
        return sum(not pod["spec"].get("nodeName") for pod in cluster.pods())


@pytest.mark.parametrize("scoring", Scoring)
def test_as_many_pods_of_a_tight_plan_are_left_as_the_simulation_says(cluster: Cluster, scoring: Scoring) -> None:
    problem = tight()
    plan = solve(problem, Budget(deterministic_seconds=5))
    deltas = {increment.node_group: increment.delta for increment in plan.increments}
    scheduler = Scheduler(problem, plan.pod_classes, Profile(Simulated(scoring.value)))
    number = group_numbers(problem)
    new = np.repeat(np.array([number[name] for name in deltas], dtype=np.int64), list(deltas.values()))
    waves = np.zeros_like(new)
    outcomes = [scheduler.run(new, waves, NONE.reshape(0, 3), Scenario(s, in_blocks=s % 2 == 1)) for s in range(24)]
    left = [int((outcome.placed < 0).sum()) for outcome in outcomes]
    assert min(left) > 0
    at_once = [name for name, count in deltas.items() for _ in range(count)]
    assert min(left) - 3 <= pending_after(cluster, problem, at_once, scoring) <= max(left) + 3
