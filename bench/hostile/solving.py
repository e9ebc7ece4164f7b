"""Attacks on the planner: pods of one tenant whose problem is hard, planned with a budget of two seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.hostile.cluster import FedCluster, pod
from bench.hostile.meter import Meter
from bench.hostile.reading import CLAIMS, DRIVER, SLICES, anti_affinity, claim, with_devices
from cagrpc.api.gen import kubernetes_pb2 as k8s
from cagrpc.cluster.view.model import NODES
from solver import Budget, NodeGroup, Plan, Problem, explain, solve
from solver.planning.warm_up import warm_up
from tests.support.controllers.cluster_objects import node

_BUDGET = Budget(2.0)
_HOST, _ZONE, _MACHINE = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/machine"
_HONEST = 100
"""Deployments of others."""
_NODES, _DEVICES = 20, 32


def _others(number: int, term: int, pods: int) -> k8s.LabelSelector:
    """Select one of the other pods."""
    return k8s.LabelSelector(matchLabels={"k": f"{(7 * number + term) % pods}"})


def _ports(number: int, count: int, _pods: int) -> k8s.Pod:
    found = pod(f"b{number}")
    for port in range(count):
        found.spec.containers[0].ports.add(hostPort=1 + (number * count + port) % 60_000, containerPort=80)
    return found


def _apart_from_many(number: int, count: int, _pods: int) -> k8s.Pod:
    values = (f"v{number}-{term}" for term in range(count))
    unlike = (k8s.LabelSelectorRequirement(key="k", operator="NotIn", values=[each]) for each in values)
    affinity = anti_affinity(
        k8s.PodAffinityTerm(topologyKey=_HOST, labelSelector=k8s.LabelSelector(matchExpressions=[each]))
        for each in unlike
    )
    return pod(f"b{number}", labels={"k": f"{number}"}, affinity=affinity)


def _apart_from_some(number: int, count: int, pods: int) -> k8s.Pod:
    affinity = anti_affinity(
        k8s.PodAffinityTerm(topologyKey=_HOST, labelSelector=_others(number, term, pods)) for term in range(count)
    )
    return pod(f"b{number}", labels={"k": f"{number}"}, affinity=affinity)


def _together(number: int, count: int, pods: int) -> k8s.Pod:
    terms = [k8s.PodAffinityTerm(topologyKey=_ZONE, labelSelector=_others(number, t, pods)) for t in range(count)]
    required = k8s.PodAffinity(requiredDuringSchedulingIgnoredDuringExecution=terms)
    return pod(f"b{number}", labels={"k": f"{number}"}, affinity=k8s.Affinity(podAffinity=required))


def _spread(hard: bool, number: int, count: int, pods: int) -> k8s.Pod:
    terms = [
        k8s.TopologySpreadConstraint(
            maxSkew=1 + (term % 3 if hard else term),
            topologyKey=_HOST if term % 2 else _ZONE,
            whenUnsatisfiable="DoNotSchedule" if hard else "ScheduleAnyway",
            labelSelector=_others(number, term, pods),
        )
        for term in range(count)
    ]
    return pod(f"b{number}", labels={"k": f"{number}"}, topologySpreadConstraints=terms)


def _node_terms(number: int, count: int, _pods: int) -> k8s.Pod:
    terms = [
        k8s.NodeSelectorTerm(
            matchExpressions=[k8s.NodeSelectorRequirement(key=f"k{term}", operator="NotIn", values=[f"{number}"])]
        )
        for term in range(count)
    ]
    required = k8s.NodeSelector(nodeSelectorTerms=terms)
    node_affinity = k8s.NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=required)
    return pod(f"b{number}", affinity=k8s.Affinity(nodeAffinity=node_affinity))


def _resources(number: int, count: int, _pods: int) -> k8s.Pod:
    found = pod(f"b{number}", cpu="")
    requests = found.spec.containers.add().resources.requests
    requests["cpu"].string, requests["memory"].string = f"{100 + number}m", f"{1_000_000 + number * 977}"
    for resource in range(count):
        requests[f"example.com/r{number}-{resource}"].string = "1"
    return found


def _tolerations(number: int, count: int, _pods: int) -> k8s.Pod:
    tolerations = [k8s.Toleration(key=f"k{number}-{each}", operator="Exists") for each in range(count)]
    return pod(f"b{number}", tolerations=tolerations)


KINDS: Mapping[str, tuple[str, int, Callable[[int, int, int], k8s.Pod]]] = {
    "ports": ("host ports, no two alike", 100, _ports),
    "anti": ("anti-affinity terms that select all pods but a few", 20, _apart_from_many),
    "antisel": ("anti-affinity terms that select one pod", 20, _apart_from_some),
    "aff": ("affinity terms that select one pod", 60, _together),
    "spread": ("spreads that are required", 40, partial(_spread, True)),
    "soft": ("spreads that are preferred", 40, partial(_spread, False)),
    "sel": ("terms of node affinity", 60, _node_terms),
    "res": ("extended resources, no two alike", 100, _resources),
    "tol": ("tolerations, no two alike", 100, _tolerations),
}
"""What each pod has, how many of these, and the pod of a number among so many."""


def solving(kind: str, meter: Meter, pods: int, budget: Budget = _BUDGET) -> None:
    _, count, made = KINDS[kind]
    cluster = FedCluster(nodes=20)
    warm_up()
    meter.measure(f"{pods} pods come", lambda: cluster.put(*(made(number, count, pods) for number in range(pods))))
    meter.note(f"{cluster.written_bytes:,} bytes were written")
    meter.measure("a state", cluster.state)
    cluster.put(made(pods, count, pods))
    _plan(meter, cluster, "a state with one more such pod", budget)


def mixed(meter: Meter, pods: int, budget: Budget = _BUDGET) -> None:
    """As many pods of each kind together, and of one with more terms."""
    cluster = FedCluster(nodes=20)
    warm_up()
    kinds = {**KINDS, "terms": ("", 80, _apart_from_many)}
    for kind, (_, count, made) in kinds.items():
        number = pods // len(kinds)
        mine = [made(each, count, number) for each in range(number)]
        for each in mine:
            each.metadata.name = each.metadata.uid = f"{kind}-{each.metadata.name}"
        cluster.put(*mine)
    problem, plan = _plan(meter, cluster, "a state", budget)
    meter.measure("what would serve them, for 2 s", lambda: explain(problem, plan, budget))


def machines(meter: Meter, nodes: int, budget: Budget = _BUDGET) -> None:
    """Nodes with a label that differs on each, honest deployments spread over zones, and one pod with a term over that
    label."""
    cluster = FedCluster(nodes=0)
    warm_up()
    for number in range(nodes):
        standing = node(f"n{number}")
        standing.metadata.labels.update({_MACHINE: f"m{number}", _ZONE: "abc"[number % 3]})
        cluster.put(standing, path=NODES)
    for number in range(_HONEST):
        selector = k8s.LabelSelector(matchLabels={"app": f"a{number}"})
        even = k8s.TopologySpreadConstraint(
            maxSkew=1, topologyKey=_ZONE, whenUnsatisfiable="DoNotSchedule", labelSelector=selector
        )
        spread: dict[str, Any] = {"labels": {"app": f"a{number}"}, "topologySpreadConstraints": [even]}
        cluster.put(*(pod(f"h{number}-{each}", namespace="honest", **spread) for each in range(3)))
    _plan(meter, cluster, "a state without that pod", budget)
    term = k8s.PodAffinityTerm(topologyKey=_MACHINE, labelSelector=k8s.LabelSelector(matchLabels={"own": "t"}))
    cluster.put(pod("t", labels={"own": "t"}, affinity=anti_affinity(iter([term]))))
    _plan(meter, cluster, "a state with it", budget)


def claims(meter: Meter, pods: int, budget: Budget = _BUDGET) -> None:
    """Pods whose claims on devices all differ, half of them by what they select, and nodes whose devices all differ,
    beside an honest pod with a usual claim."""
    cluster = with_devices()
    warm_up()
    for number in range(_NODES):
        name = f"gpus{number}"
        devices = [
            {"name": f"d{each}", "attributes": {"size": {"int": each}, "numa": {"int": each % 3}}}
            for each in range(1 + number % _NODES, _DEVICES)
        ]
        spec = {"driver": DRIVER, "nodeName": name, "pool": _pool(name), "devices": devices}
        cluster.put(node(name), path=NODES)
        cluster.put({"metadata": {"name": name}, "spec": spec}, path=SLICES)
    for number in range(pods):
        size = f'device.attributes["{DRIVER}"].size'
        several = [f"{size} >= {each + number % 16}" for each in range(1, 1 + number % 3)]
        asked = claim(f"c{number}", *(several if number % 2 else []), count=1 + number // 2 % 31)
        if number % 3 == 0:
            asked["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/numa"}]
        cluster.put(asked, path=CLAIMS)
        cluster.put(pod(f"p{number}", resourceClaims=[{"name": "c", "resourceClaimName": f"c{number}"}]))
    usual = claim("usual")
    usual["metadata"]["namespace"] = "honest"
    cluster.put(usual, path=CLAIMS)
    cluster.put(pod("usual", namespace="honest", resourceClaims=[{"name": "c", "resourceClaimName": "usual"}]))
    _plan(meter, cluster, "a state", budget)


def _pool(name: str) -> dict[str, Any]:
    return {"name": name, "generation": 1, "resourceSliceCount": 1}


def _plan(meter: Meter, cluster: FedCluster, what: str, budget: Budget) -> tuple[Problem, Plan]:
    state = meter.measure(what, cluster.state)
    problem = Problem(
        pod_sets=tuple(each.pod_set for each in state.waiting),
        node_groups=_groups(),
        nodes=tuple(each.node for each in state.nodes),
    )
    plan = meter.measure("a plan, with a budget of 2 s", lambda: solve(problem, budget))
    gap = plan.certificate.gap
    said = "not known" if gap is None else f"{gap:.1%}"
    meter.note(f"{sum(each.count for each in plan.unplaced)} pods are left out, the gap is {said}")
    return problem, plan


def _groups() -> tuple[NodeGroup, ...]:
    return tuple(
        NodeGroup(
            id=f"g{zone}{cores}",
            allocatable={"cpu": 1000 * cores, "memory": 4 * cores << 30, "pods": 110},
            labels={_ZONE: zone},
            price_usd_per_hour=0.05 * cores,
            max_size=1000,
            zone=zone,
            instance_type=f"t{cores}",
        )
        for zone in "abc"
        for cores in (4, 8, 16)
    )
