"""Small random clusters as an API server has them, and the three ways in which they come to planning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import DO_NOT_DISRUPT, SAFE_TO_EVICT
from cagrpc.api.encoding.messages import message_to_dict
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.documents import followed_kinds
from cagrpc.cluster.view.bound import POD_DISRUPTION_BUDGETS
from cagrpc.cluster.view.context import NAMESPACES
from cagrpc.cluster.view.model import NODES, PODS
from tests.support import storage
from tests.support.api_server import ApiServer
from tests.support.controllers.cluster_objects import (
    DAEMON_SETS,
    NOW,
    POD_GROUPS,
    PRIORITIES,
    Fed,
    apart,
    node,
    pod,
    spread,
    spread_over_all_but,
)
from tests.support.devices import CLAIMS, CLASSES, SLICES, TEMPLATES, claim, claim_template, device_class, gpus

Objects = list[tuple[str, Any]]
"""Objects with the paths of their collections: messages where informers ask for protobuf, else JSON."""

_NODES = ("n1", "n2", "n3")
_KINDS = ("m7i.xlarge", "m7i.4xlarge")
_NAMESPACES = ("default", "default", "kube-system")
_HOST_PORT = kubernetes_pb2.Container(ports=[kubernetes_pb2.ContainerPort(hostPort=80, containerPort=80)])
_EMPTY = kubernetes_pb2.Volume(name="scratch", volumeSource={"emptyDir": {}})
_CLAIMING = kubernetes_pb2.Volume(name="data", volumeSource={"persistentVolumeClaim": {"claimName": "disk"}})
_SPECS: tuple[dict[str, Any], ...] = (
    {},
    {},
    spread("web"),
    apart("db"),
    apart("web"),
    spread_over_all_but("db"),
    {"containers": [_HOST_PORT]},
    {"volumes": [_EMPTY]},
    {"volumes": [_CLAIMING]},
    {"resourceClaims": [kubernetes_pb2.PodResourceClaim(name="gpu", resourceClaimName="one")]},
    {"resourceClaims": [kubernetes_pb2.PodResourceClaim(name="gpu", resourceClaimTemplateName="t")]},
    {"restartPolicy": "OnFailure"},
    {"schedulerName": "theirs"},
)
_ANNOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {SAFE_TO_EVICT: "false"},
    {DO_NOT_DISRUPT: "true"},
    {CONSUME_KEYS[0]: "train", CLASS_KEYS[0]: "c"},
    {CONSUME_KEYS[0]: "train"},
    {"kubernetes.io/config.mirror": "x"},
)


def _daemon_set(namespace: str) -> kubernetes_pb2.DaemonSet:
    found = kubernetes_pb2.DaemonSet(metadata={"name": "owner", "namespace": namespace})
    found.spec.template.spec.containers.add().resources.requests["cpu"].string = "1"
    return found


@st.composite
def _node(draw: st.DrawFn, name: str) -> kubernetes_pb2.Node:
    spec: dict[str, Any] = {"unschedulable": True} if draw(st.integers(0, 5)) == 0 else {}
    found = node(name, "4", ready=draw(st.integers(0, 4)) > 0, **spec)
    kind = draw(st.sampled_from(_KINDS))
    zone = draw(st.sampled_from(("zone-1", "zone-2")))
    found.metadata.labels.update({"node.kubernetes.io/instance-type": kind, "karpenter.sh/nodepool": "general"})
    found.metadata.labels["topology.kubernetes.io/zone"] = zone
    found.metadata.annotations.update(draw(st.sampled_from(({}, {}, {}, {DO_NOT_DISRUPT: "true"}))))
    found.status.conditions[0].lastTransitionTime.seconds = draw(st.sampled_from((1, int(NOW) - 60)))
    for key in draw(st.sampled_from(((), (), (), ("ToBeDeletedByClusterAutoscaler",), ("theirs",)))):
        found.spec.taints.add(key=key, effect="NoSchedule")
    return found


_LABELS = st.builds(
    lambda app, gang: {"app": app, **({DEFAULT_GANG_LABEL: gang} if gang else {})},
    st.sampled_from(("web", "db")),
    st.sampled_from(("", "", "", "g", "h")),
)
_TEMPLATE: dict[str, st.SearchStrategy[Any]] = {
    "cpu": st.sampled_from(("100m", "500m")),
    "labels": _LABELS,
    "annotations": st.sampled_from(_ANNOTATIONS),
    "namespace": st.sampled_from(_NAMESPACES),
    "priority": st.sampled_from((0, 0, 5)),
    "owner": st.sampled_from(("ReplicaSet", "ReplicaSet", "ReplicaSet", "Job", "DaemonSet", "")),
    "deleting": st.integers(0, 9).map(lambda number: number == 0),
    "spec": st.sampled_from(_SPECS),
}


@st.composite
def _pods(draw: st.DrawFn, on: tuple[str, ...]) -> list[kubernetes_pb2.Pod]:
    """Draw pods of a few templates, which may differ in little."""
    templates = [{key: draw(each) for key, each in _TEMPLATE.items()}]
    for _ in range(draw(st.integers(0, 3))):
        changed = draw(st.sampled_from(("labels", *sorted(_TEMPLATE))))
        templates.append({**draw(st.sampled_from(templates)), changed: draw(_TEMPLATE[changed])})
    found = []
    for number in range(draw(st.integers(1, 9))):
        said = dict(draw(st.sampled_from(templates)))
        spec, created = said.pop("spec"), draw(st.sampled_from((1, 2, int(NOW) - 60)))
        found.append(pod(f"p{number}", node=draw(st.sampled_from(on)), created=created, **said, **spec))
    return found


@st.composite
def _budget(draw: st.DrawFn, name: str) -> kubernetes_pb2.PodDisruptionBudget:
    found = kubernetes_pb2.PodDisruptionBudget(metadata={"name": name, "namespace": "default"})
    found.spec.selector.matchLabels["app"] = draw(st.sampled_from(("web", "db")))
    found.status.disruptionsAllowed = draw(st.sampled_from((0, 1)))
    return found


def _others(draw: st.DrawFn) -> Iterator[tuple[str, Any]]:
    """Yield what pods refer to; some of it may be missing."""
    yield from ((NAMESPACES, kubernetes_pb2.Namespace(metadata={"name": name})) for name in sorted(set(_NAMESPACES)))
    yield from ((DAEMON_SETS, _daemon_set(name)) for name in sorted(set(_NAMESPACES)))
    yield PRIORITIES, kubernetes_pb2.PriorityClass(metadata={"name": "high"}, value=1000)
    there = draw(st.sets(st.sampled_from(("claim", "volume", "device", "template", "class", "slices", "group"))))
    yield "/apis/storage.k8s.io/v1/storageclasses", storage.storage_class()
    if "claim" in there:
        yield "/api/v1/persistentvolumeclaims", storage.claim("disk", "disk" if "volume" in there else "")
    if "volume" in there:
        yield "/api/v1/persistentvolumes", storage.volume("disk", "zone-1", of="disk", driver=storage.EBS)
    if "device" in there:
        yield CLAIMS, claim("one", *draw(st.sampled_from(((), ("gpu-0",)))))
    if "template" in there:
        yield TEMPLATES, claim_template()
    if "class" in there:
        yield CLASSES, device_class()
    if "slices" in there:
        yield from ((SLICES, gpus(2, name)) for name in _NODES)
    if "group" in there:
        yield POD_GROUPS, {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}}


@st.composite
def clusters(draw: st.DrawFn, *, waiting: bool = False) -> Objects:
    """Draw a cluster; the pods of one without `waiting` ones all run."""
    on = (*_NODES, "", "") if waiting else _NODES
    found: Objects = [(NODES, draw(_node(name))) for name in _NODES]
    found += _others(draw)
    found += ((POD_DISRUPTION_BUDGETS, draw(_budget(f"b{number}"))) for number in range(draw(st.integers(0, 2))))
    found += ((PODS, each) for each in draw(_pods(on)))
    return found


def watched(objects: Objects, **more: Any) -> Fed:
    """Return the model that watches have filled."""
    fed = Fed(**more)
    by_path = _by_path(objects)
    for path in fed.paths():
        fed.relist(by_path.get(path, ()), path=path)
    return fed


def printed(objects: Objects) -> list[ManifestDocument]:
    """Return the objects as kubectl prints them."""
    kinds = dict(followed_kinds())
    numbered = enumerate(objects)
    return [ManifestDocument(f"{path} {number}", _json(path, each, kinds)) for number, (path, each) in numbered]


def served(objects: Objects) -> ApiServer:
    """Return an API server that has the objects."""
    api, kinds = ApiServer(*(path for path, _ in objects)), dict(followed_kinds())
    for number, (path, each) in enumerate(objects):
        body = _json(path, each, kinds)
        api.objects[f"{path}/{number}"] = {key: of for key, of in body.items() if key not in ("kind", "apiVersion")}
    return api


def _by_path(objects: Objects) -> Mapping[str, Iterable[Any]]:
    found: dict[str, list[Any]] = {}
    for path, each in objects:
        found.setdefault(path, []).append(each)
    return found


def _json(path: str, found: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    version = path.rpartition("/")[0].removeprefix("/apis/").removeprefix("/api/")
    body = dict(message_to_dict(found)) if isinstance(found, Message) else dict(found)
    for each in body.get("spec", {}).get("volumes", ()) if kinds[path] == "Pod" else ():
        each.update(each.pop("volumeSource"))  # which JSON has inline
    return {**body, "apiVersion": version, "kind": kinds[path]}
