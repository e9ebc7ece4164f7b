"""The cluster of `bench.scale_live`: Nodes that stand for instances of a simulated backend, and bound pods of
workloads, as an API server stores them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour
from cagrpc.backends.simulated.nodes.controller import node_name
from cagrpc.backends.simulated.nodes.nodes import registration
from cagrpc.fleet.backend import Order, OrderedInstance
from solver.model import NodeGroup
from tests.support.controlplane.api import Api
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.live import group

WORKLOADS = 3_000
PODS_OF_A_NODE = 10
NAMESPACES = 10
TOPOLOGY = "topology.kubernetes.io/"
"""Labels of a Node that pods have from when they are bound (Kubernetes 1.35: PodTopologyLabels)."""
IMAGES = 40
"""That a Node says it has: they are most of what an API server sends of one."""
SHAPES = 16
ZONES = ("a", "b", "c")
CPUS, MEMORY_GIB = 16, 64
LARGE_CPUS = 14
"""Of a pod for which no node has room that has others."""


def node_groups() -> list[dict[str, Any]]:
    """As many as a cluster-autoscaler is usually shown: 16 instance types in three zones."""
    return [
        group(
            f"type-{shape:02}-{zone}",
            str(CPUS),
            f"{MEMORY_GIB}Gi",
            round(1.0 + shape / 100, 3),
            instance_type=f"type-{shape:02}",
            zone=zone,
            max_size=5_000,
        )
        for shape in range(SHAPES)
        for zone in ZONES
    ]


def instances(file: Path, groups: Sequence[NodeGroup], nodes: int) -> dict[str, str]:
    """Order so many of the simulated cloud whose file this is, which nobody serves yet. Return the group of each."""
    backend = SimulatedBackend(file)
    backend.set_behaviours({EVERYWHERE: Behaviour(boot_seconds=0)})
    each, more = divmod(nodes, len(groups))
    for number, of in enumerate(groups):
        increment = f"{number:012x}"
        ordered = tuple(
            OrderedInstance(f"{increment}-{of.id}-{ordinal + 1}", of, ordinal)
            for ordinal in range(each + (number < more))
        )
        backend.order(Order(increment, ordered, frozenset(each.token for each in ordered)))
    found = {each.id: each.node_group for each in backend.list_instances().instances}
    backend.close()
    return found


def namespace_of(workload: int) -> str:
    return f"team-{workload % NAMESPACES}"


def pod_spec(workload: int) -> dict[str, Any]:
    """Every tenth workload would rather be spread over zones, every fiftieth keeps apart on hosts."""
    requests = {"cpu": f"{250 * (1 + workload % 8)}m", "memory": f"{1 + workload % 5}Gi"}
    same = {"matchLabels": {"app": f"app-{workload}"}}
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "example.com/none", "resources": {"requests": requests}}],
        "terminationGracePeriodSeconds": 1,
    }
    if workload % 10 == 0:
        zones = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [{**zones, "labelSelector": same}]
    if workload % 50 == 1:
        apart = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": same}]
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    return spec


def pod(workload: int, name: str, node: str = "") -> dict[str, Any]:
    """To be created through the API."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"workload-{workload}", "uid": _uid(workload)}
    metadata = {
        "name": name,
        "namespace": namespace_of(workload),
        "labels": {"app": f"app-{workload}", "pod-template-hash": f"{workload:010}"},
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    return {"metadata": metadata, "spec": {**pod_spec(workload), **({"nodeName": node} if node else {})}}


def large_pod(name: str) -> dict[str, Any]:
    requests = {"cpu": str(LARGE_CPUS), "memory": "4Gi"}
    container = {"name": "main", "image": "example.com/none", "resources": {"requests": requests}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name, "namespace": namespace_of(0), "labels": {"large": "yes"}}, "spec": spec}


def running(name: str) -> dict[str, Any]:
    """A patch of a pod's status; `name` is in it, so that each changes it."""
    ready = [{"type": kind, "status": "True", "message": name} for kind in ("PodScheduled", "Ready", "ContainersReady")]
    return {"status": {"phase": "Running", "conditions": ready}}


def node_document(of: NodeGroup, instance_id: str, *, held: bool) -> dict[str, Any]:
    document = registration(of, node_name(instance_id), instance_id, time.time())
    document["status"]["images"] = [
        {"names": [f"registry.example.com/team/image-{number}@sha256:{number:064x}"], "sizeBytes": 10_000_000 + number}
        for number in range(IMAGES)
    ]
    if not held:
        taints = document["spec"]["taints"]
        document["spec"]["taints"] = [each for each in taints if each["key"] != START_UP_TAINT]
    return document


@dataclass(frozen=True)
class Standing:
    """A pod that is bound."""

    workload: int
    name: str
    node: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{namespace_of(self.workload)}/pods/{self.name}"


def pods(names: Sequence[str], number: int) -> Iterator[Standing]:
    """Each node has pods of different workloads."""
    for index in range(number):
        round_, place = divmod(index, len(names))
        workload = (place + 307 * round_) % WORKLOADS
        yield Standing(workload, f"workload-{workload}-{index:06}", names[place])


def stored(
    admin: Api, groups: Mapping[str, NodeGroup], instances_: Mapping[str, str], standing: Sequence[Standing]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield Nodes, workloads and pods by their keys in etcd, each as the API server has made one of its kind."""
    numbers = count(1)
    like = _made(admin, NODES, node_document(next(iter(groups.values())), "simulated://like", held=False))
    topology: dict[str, dict[str, str]] = {}
    for instance_id, group_id in instances_.items():
        document = node_document(groups[group_id], instance_id, held=False)
        name, labels = document["metadata"]["name"], document["metadata"]["labels"]
        topology[name] = {key: value for key, value in labels.items() if key.startswith(TOPOLOGY)}
        yield (
            f"minions/{name}",
            _as_made(like, document, next(numbers), {"spec": {**document["spec"], "taints": None}}),
        )
    sizes: dict[int, int] = {}
    for each in standing:
        sizes[each.workload] = sizes.get(each.workload, 0) + 1
    template = {"metadata": {"labels": {"app": "app-0"}}, "spec": pod_spec(0)}
    replicas = {"replicas": 1, "selector": {"matchLabels": {"app": "app-0"}}, "template": template}
    path = f"/apis/apps/v1/namespaces/{namespace_of(0)}/replicasets"
    like = _made(admin, path, {"metadata": {"name": "like"}, "spec": replicas})
    for workload, size in sizes.items():
        labels = {"app": f"app-{workload}"}
        document = copy.deepcopy(like)
        document["metadata"].update(name=f"workload-{workload}", namespace=namespace_of(workload), uid=_uid(workload))
        document["spec"]["replicas"] = size
        document["spec"]["selector"] = {"matchLabels": labels}
        document["spec"]["template"] = {"metadata": {"labels": labels}, "spec": pod_spec(workload)}
        document["status"] = {"replicas": size, "readyReplicas": size, "availableReplicas": size}
        yield f"replicasets/{namespace_of(workload)}/workload-{workload}", document
    likes: dict[int, dict[str, Any]] = {}
    for each in standing:
        kind = each.workload % 50
        if kind not in likes:
            path = f"/api/v1/namespaces/{namespace_of(each.workload)}/pods"
            likes[kind] = _made(admin, path, pod(each.workload, "like", each.node))
        document = pod(each.workload, each.name, each.node)
        document["metadata"]["labels"].update(topology[each.node])
        status = {**likes[kind]["status"], **running(each.name)["status"]}
        spec = {**likes[kind]["spec"], **document["spec"]}
        requests = document["spec"]["containers"][0]["resources"]
        spec["containers"] = [{**likes[kind]["spec"]["containers"][0], "resources": requests}]
        yield (
            f"pods/{namespace_of(each.workload)}/{each.name}",
            _as_made(likes[kind], document, next(numbers), {"spec": spec, "status": status}),
        )


def _made(admin: Api, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """As the API server has it with all defaults; it is gone again."""
    found: dict[str, Any] = admin.create(path, document)
    admin.delete(f"{path}/{found['metadata']['name']}", gracePeriodSeconds=0)
    found["metadata"].pop("resourceVersion")
    return found


def _as_made(
    like: Mapping[str, Any], document: Mapping[str, Any], number: int, more: Mapping[str, Any]
) -> dict[str, Any]:
    metadata = {**like["metadata"], **document["metadata"], "uid": f"00000000-0000-4000-8000-{number:012}"}
    return {**like, **document, "metadata": metadata, **more}


def _uid(workload: int) -> str:
    return f"00000000-0000-4000-9000-{workload:012}"
