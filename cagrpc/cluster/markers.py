"""Taints, labels, annotations and field managers by which our own writes are known in a cluster."""

from __future__ import annotations

from solver.model import Node

FLEET_LABEL = "cagrpc.io/fleet"
"""A label of objects that stand for instances (NodeClaims, Machines): whose they are, as several fleets may share a
cluster."""
TOKEN = "cagrpc.io/token"  # noqa: S105 - the key of an annotation
"""An annotation of the same objects with the instance's token, beside those with the ids of its node group and
increment, which follow."""
NODE_GROUP = "cagrpc.io/node-group"
INCREMENT = "cagrpc.io/increment"

PLACEMENT_FIELD_MANAGER = "cagrpc-placement"
"""Who sets `status.nominatedNodeName` by the managed fields of a pod: so ours differ from the scheduler's."""

SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
"""CA leaves a node alone while this annotation is `true` (upstream: core/scaledown/eligibility)."""
SCALE_DOWN_DISABLED_BY_US = "cagrpc.io/scale-down-disabled"
"""Marks the one above as ours; its value is the reason."""

DISRUPTION = "cagrpc.io/disruption"
"""An annotation of nodes that we have cordoned: the id of the disruption. Those that others have cordoned do not have
it."""

BOOKING_LABELS = "booking.cagrpc.io/"
"""The prefix of a label with a request's UID: of nodes that hold capacity of the request."""
BOOKED = "true"
"""The value of that label."""


def booking_label(uid: str) -> str:
    return BOOKING_LABELS + uid


def booking_labels(node: Node) -> list[str]:
    """Return the UIDs of the requests whose labels a node has."""
    return [label.removeprefix(BOOKING_LABELS) for label in node.labels if label.startswith(BOOKING_LABELS)]


NAMESPACE = "cagrpc"
"""Where our own objects are, if the configuration names no other."""
