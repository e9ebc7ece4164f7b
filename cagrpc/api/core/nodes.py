"""Nodes: the v1.Node of a node group, as a template for CA and as registered in a cluster; and the fields of a v1.Node
that planning reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cagrpc.api.core.resources import Amounts, amounts
from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings
from cagrpc.errors import shown
from solver.model import ATTACHABLE_VOLUMES, PODS, Node, NodeGroup, Resources, Taint, TaintEffect
from solver.model.quantities import format_quantities

HOSTNAME = "kubernetes.io/hostname"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
ZONE = "topology.kubernetes.io/zone"
ZONES_OF_DRIVERS = (
    "topology.disk.csi.azure.com/zone",
    "topology.ebs.csi.aws.com/zone",
    "topology.gke.io/zone",
)
"""Labels with the node's zone that CSI drivers set a moment after it has joined; volumes are tied to nodes by them."""
REGION = "topology.kubernetes.io/region"
DEPRECATED_LABELS = {
    "beta.kubernetes.io/arch": ARCH,
    "beta.kubernetes.io/os": OS,
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}
"""Old names that a node has beside the stable ones, with the same values: a kubelet sets those of architecture and
operating system, a cloud controller the others."""
OF_KARPENTER = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
SET_BY_KARPENTER = ("karpenter.sh/registered", "karpenter.sh/initialized")
"""Labels that a node of a NodePool has soon after it has joined."""
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", TaintEffect.NO_SCHEDULE)
"""What the node controller sets for spec.unschedulable."""

START_UP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/cagrpc-increment"
"""The key of our taint on every new node until it is released. CA knows the prefix: the node is not yet started. With a
value the node is dedicated to the pods that tolerate it."""

_OF_STARTING = ("startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/")
"""How the keys of taints begin that CA takes for those of a node that starts, without being told."""

READY = "Ready"
"""The type of the condition that states whether pods can run on a node."""

_KUBELET_DEFAULT_PODS = 110
_HEALTHY = ("NetworkUnavailable", "MemoryPressure", "DiskPressure", "PIDPressure")


def group_labels(group: NodeGroup) -> dict[str, str]:
    """Return the labels of a node of `group` as its kubelet, its cloud, the drivers of its volumes and Karpenter would
    set them; the group's own labels take precedence. The hostname is empty: it is there, and nobody knows it yet. Match
    selectors against these, or the planner and CA disagree."""
    labels = {HOSTNAME: "", OS: "linux", ARCH: "amd64"}
    if group.instance_type:
        labels[INSTANCE_TYPE] = group.instance_type
    if group.zone:
        labels[ZONE] = group.zone
    labels |= group.labels
    if zone := labels.get(ZONE):
        labels = {**dict.fromkeys(ZONES_OF_DRIVERS, zone), **labels}
    if any(key in labels for key in OF_KARPENTER):
        labels = {**dict.fromkeys(SET_BY_KARPENTER, "true"), **labels}
    return {**{old: labels[new] for old, new in DEPRECATED_LABELS.items() if new in labels}, **labels}


def is_of_starting(taint: Taint) -> bool:
    """Return whether everybody knows by its key that a taint goes by itself once a node has started."""
    return taint.key.startswith(_OF_STARTING)


def as_planned(group: NodeGroup) -> NodeGroup:
    """Return the group with the labels of its nodes. What its minimum needs is ordered whatever is planned."""
    return replace(group, labels=group_labels(group), min_size=0)


def node_document(group: NodeGroup, name: str) -> dict[str, Any]:
    """Return a complete, ready v1.Node in JSON shape, as a node of `group` called `name` registers. The caller adds
    what is specific to one machine: its providerID, addresses, versions and times.

    A kubelet offers 110 pods by default, and capacity is at least allocatable, whatever the catalogue states. How many
    volumes may be attached, a CSINode says, and no Node.
    """
    labels = {**group_labels(group), HOSTNAME: name}
    offered = {name: of for name, of in group.allocatable.items() if not name.startswith(ATTACHABLE_VOLUMES)}
    allocatable = {PODS: _KUBELET_DEFAULT_PODS, **offered}
    capacity = {r: max(allocatable.get(r, 0), group.capacity.get(r, 0)) for r in (*allocatable, *group.capacity)}
    healthy = [{"type": condition, "status": "False"} for condition in _HEALTHY]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint_document(taint) for taint in group.taints]},
        "status": {
            "capacity": format_quantities(capacity.items()),
            "allocatable": format_quantities(allocatable.items()),
            "conditions": [{"type": READY, "status": "True", "reason": "KubeletReady"}, *healthy],
            "nodeInfo": {"operatingSystem": labels[OS], "architecture": labels[ARCH]},
        },
    }


def template(group: NodeGroup) -> bytes:
    """Serialise `node_document` of the next node of `group` for CA.

    CA overwrites its name and hostname. Its providerID stays empty, because a template is not an instance. CA crashes
    on an empty response, and a node without `pods` holds none, so both are always set.
    """
    from cagrpc.api.encoding.messages import known_to_message  # noqa: PLC0415 - configuration is checked without protobuf
    from cagrpc.api.gen import kubernetes_pb2  # noqa: PLC0415

    return known_to_message(kubernetes_pb2.Node, node_document(group, f"template-{group.id}")).SerializeToString(
        deterministic=True
    )


def taint_document(taint: Taint) -> dict[str, str]:
    """Return a v1.Taint in JSON shape."""
    return {"key": taint.key, "value": taint.value, "effect": taint.effect.value}


def node_of_document(document: Mapping[str, Any], problems: Problems) -> Node:
    """Read a v1.Node in JSON shape, as if nothing ran there. A cordoned node has the unschedulable taint."""
    metadata = mapping(document, "metadata", "", problems)
    spec = mapping(document, "spec", "", problems)
    status = mapping(document, "status", "", problems)
    taints = _taints(spec, problems)
    if spec.get("unschedulable") and UNSCHEDULABLE not in taints:
        taints = (*taints, UNSCHEDULABLE)
    allocatable = amounts(status, "allocatable", "status", problems, round_up=False) or amounts(
        status, "capacity", "status", problems, round_up=False
    )
    labels = strings(metadata, "labels", "metadata", problems)
    return Node(str(metadata.get("name") or ""), allocatable, labels, taints, allocatable=allocatable)


def _taints(spec: Mapping[str, Any], problems: Problems) -> tuple[Taint, ...]:
    found = []
    for taint, at in members(spec, "taints", "spec", problems):
        try:
            effect = TaintEffect(str(taint.get("effect")))
        except ValueError:
            choices = ", ".join(TaintEffect)
            problems.append(f"{at}.effect: {shown(taint.get('effect'))} is not one of {choices}")
            continue
        found.append(Taint(str(taint.get("key") or ""), effect, str(taint.get("value") or "")))
    return tuple(found)


def left(allocatable: Resources, used: Resources) -> Amounts:
    """Return a node's allocatable resources less `used` (`pods` included), never below 0."""
    return {
        resource: max(0, allocatable.get(resource, 0) - used.get(resource, 0)) for resource in (*allocatable, *used)
    }
