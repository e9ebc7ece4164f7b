"""Attacks by objects: what the view has to read, keep and match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.hostile.cluster import REPLICA_SETS, FedCluster, pod, replica_set
from bench.hostile.meter import Meter
from cagrpc.api.gen import kubernetes_pb2 as k8s
from cagrpc.cluster.state import ClusterState

_TERMS = 80
_REPLICAS = 2
_NAMESPACES, _QUOTAS = "/api/v1/namespaces", "/api/v1/resourcequotas"
_DRA = "/apis/resource.k8s.io/v1"
CLAIMS, _TEMPLATES = f"{_DRA}/resourceclaims", f"{_DRA}/resourceclaimtemplates"
_CLASSES, SLICES = f"{_DRA}/deviceclasses", f"{_DRA}/resourceslices"
DRIVER = "gpu.example.com"
_MOST_IN_REQUEST, _MOST_IN_CLAIM = 32, 140
"""Selectors: Kubernetes' limit, and as many of 10 KiB as etcd takes in one object."""


def anti_affinity(terms: Iterator[k8s.PodAffinityTerm]) -> k8s.Affinity:
    return k8s.Affinity(podAntiAffinity=k8s.PodAntiAffinity(requiredDuringSchedulingIgnoredDuringExecution=terms))


def terms(meter: Meter, pods: int) -> None:
    """Pods with 80 anti-affinity terms each, no two alike."""

    def with_terms(number: int) -> k8s.Pod:
        chosen = (f"v{number}-{term}" for term in range(_TERMS))
        affinity = anti_affinity(
            k8s.PodAffinityTerm(topologyKey="a", labelSelector=_selector("k", "NotIn", value)) for value in chosen
        )
        return pod(f"b{number}", labels={"k": f"{number}"}, affinity=affinity)

    cluster = FedCluster(nodes=20)
    meter.measure(f"{pods} pods come", lambda: cluster.put(*(with_terms(number) for number in range(pods))))
    meter.note(f"{cluster.written_bytes:,} bytes were written")
    meter.measure("a state", cluster.state)
    cluster.put(with_terms(pods))
    meter.measure("a state with one more such pod", cluster.state)


def _selector(key: str, operator: str, *values: str) -> k8s.LabelSelector:
    return k8s.LabelSelector(matchExpressions=[k8s.LabelSelectorRequirement(key=key, operator=operator, values=values)])


def namespaces(meter: Meter, count: int) -> None:
    """So many namespaces, and one pod with as many terms, each with a namespaceSelector."""

    def namespace(number: int, **labels: str) -> k8s.Namespace:
        found = k8s.Namespace()
        found.metadata.name = f"ns{number}"
        found.metadata.labels.update({"kubernetes.io/metadata.name": f"ns{number}", **labels})
        return found

    affinity = anti_affinity(
        k8s.PodAffinityTerm(
            topologyKey="a",
            namespaceSelector=_selector(f"k{term}", "DoesNotExist"),
            labelSelector=k8s.LabelSelector(matchLabels={"a": "b"}),
        )
        for term in range(count)
    )
    cluster = FedCluster()
    cluster.relist([namespace(number) for number in range(count)], _NAMESPACES)
    meter.measure("the pod comes", lambda: cluster.put(pod("b", affinity=affinity)))
    meter.note(f"{cluster.written_bytes:,} bytes were written")
    meter.measure("a state", cluster.state)

    def change() -> None:
        cluster.put(namespace(0, x="1"), path=_NAMESPACES)
        cluster.state()

    meter.measure("a label of one namespace changes, and a state", change)


def quota(meter: Meter, workloads: int) -> None:
    """ReplicaSets below one quota, none of which has its two pods yet."""

    def used(pods: int) -> None:
        hard = {"pods": "100000"}
        found = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
        cluster.put({**found, "status": {"hard": hard, "used": {"pods": str(pods)}}}, path=_QUOTAS)

    def come() -> None:
        cluster.put(*(replica_set(f"r{number}", _REPLICAS) for number in range(workloads)), path=REPLICA_SETS)

    cluster = FedCluster()
    used(0)
    meter.measure(f"{workloads} ReplicaSets come", come)
    meter.note(f"{cluster.written_bytes:,} bytes were written; {cluster.arrivals()}")
    meter.measure("the quota's status changes", lambda: used(1))
    meter.measure("a pod comes", lambda: cluster.put(pod("x1", replica_set="r1")))
    meter.measure("pods are counted", cluster.arrivals)
    cluster.seconds += 10_000
    meter.measure("pods are counted, when those to come are too late", cluster.arrivals)
    meter.measure("the quota's status changes once more", lambda: used(2))


def owners(meter: Meter, workloads: int) -> None:
    """ReplicaSets that own each other in a chain."""
    chain = [replica_set(f"r{number}", _REPLICAS, owner=f"r{number + 1}") for number in range(workloads)]
    cluster = FedCluster()
    meter.measure(f"{workloads} ReplicaSets come", lambda: cluster.put(*chain, path=REPLICA_SETS))
    meter.note(f"{cluster.written_bytes:,} bytes were written; {cluster.arrivals()}")
    pods = [pod(f"p{number}", replica_set=f"r{number}") for number in range(workloads)]
    meter.measure("a pod of each comes", lambda: cluster.put(*pods))
    meter.measure("a state", cluster.state)


def with_devices() -> FedCluster:
    """Return a cluster of one node with four GPUs that are published as devices."""
    driver = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(4)]
    gpus = {"driver": DRIVER, "nodeName": "n0", "pool": pool, "devices": devices}
    cluster = FedCluster()
    cluster.relist([{"metadata": {"name": "gpu"}, "spec": {"selectors": [driver]}}], _CLASSES)
    cluster.relist([{"metadata": {"name": "n0-gpus"}, "spec": gpus}], SLICES)
    for each in (CLAIMS, _TEMPLATES):
        cluster.relist([], each)
    return cluster


def claim(name: str, *expressions: str, count: int = 1) -> dict[str, Any]:
    """Return a ResourceClaim of so many devices for which all of these hold."""
    selectors = [{"cel": {"expression": each}} for each in expressions]
    parts = [selectors[at : at + _MOST_IN_REQUEST] for at in range(0, max(1, len(selectors)), _MOST_IN_REQUEST)]
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": "gpu", "selectors": part, "count": count}}
        for number, part in enumerate(parts)
    ]
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}, "status": {}}


def claimed(cluster: FedCluster, *expressions: str, meter: Meter, what: str) -> ClusterState:
    """Have a pod whose claims select devices by these expressions, then drop all of that; return the state between."""
    parts = [expressions[at : at + _MOST_IN_CLAIM] for at in range(0, len(expressions), _MOST_IN_CLAIM)]
    claims = [claim(f"claim-{number}", *part) for number, part in enumerate(parts)]
    named = [{"name": f"c{number}", "resourceClaimName": f"claim-{number}"} for number in range(len(claims))]
    waits = pod("p", resourceClaims=named)
    cluster.put(waits)
    cluster.state()
    cluster.written_bytes = 0
    cluster.put(*claims, path=CLAIMS)
    with meter.measuring(f"a state with {what}"):
        found = cluster.state()
    meter.note(f"{cluster.written_bytes:,} bytes were written; {unschedulable(found) or 'planned with'}")
    cluster.drop(*claims, path=CLAIMS)
    cluster.drop(waits)
    cluster.state()
    return found


def unschedulable(state: ClusterState) -> str:
    """Return why the first pod that waits cannot be planned; empty where it can."""
    return repr(state.waiting[0].pod_set.spec.unschedulable)[1:-1]


def expressions(meter: Meter, count: int) -> None:
    """CEL expressions of 10 KiB in ResourceClaims of one pod."""
    ones = ",".join(["1"] * 5_100)
    cluster = with_devices()
    cluster.state()
    found = (f"{number} > 0 && size([{ones}]) > 0" for number in range(count))
    claimed(cluster, *found, meter=meter, what=f"{count} expressions")
    meter.note_memory("after pod and claims are gone")


def patterns(meter: Meter, count: int) -> None:
    """One expression with so many regular expressions, each costly to compile; then fewer that cost more."""
    cluster = with_devices()
    cluster.state()
    few = max(1, count // 6)
    for number, pattern in ((few, r"\\pL{0,300}"), (count, r"\\pL{0,300}"), (few, r"\\pL{0,600}"),
                            (few, r"(?i)\\pL{0,500}")):  # fmt: skip
        expression = "||".join(f'"".matches("{pattern}{each}x")' for each in range(number))
        claimed(cluster, expression, meter=meter, what=f"{number} patterns like {pattern}")
