"""NodeClaims: the object that is created for an instance, what is read of one, and why one came to nothing, from what
Karpenter says of it: an Event, or the condition Launched. What follows is in `store`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cagrpc.api.core.nodes import START_UP_TAINT, taint_document
from cagrpc.api.encoding.json_documents import epoch_seconds, mapping, members, strings, whole_number
from cagrpc.backends.karpenter.plugin import NodeClass, Parameters, node_pool
from cagrpc.cluster.markers import FLEET_LABEL, INCREMENT, NODE_GROUP, TOKEN
from cagrpc.errors import ErrorKind, InvalidInput
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.fleet.catalogue import ARCH, CAPACITY_TYPE, DEFAULT_ZONE, INSTANCE_TYPE, OS, WELL_KNOWN_LABELS, ZONE
from cagrpc.fleet.model import InstanceError
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from solver.model import NodeGroup, Taint, TaintEffect

NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NAME_PREFIX = "cagrpc-"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"

_HASH_LENGTH = 32
_NOT_TRIED_YET = "AwaitingReconciliation"

EVENTS = "/api/v1/namespaces/default/events"
"""Where client-go puts Events of objects without a namespace."""
EVENTS_QUERY = {"fieldSelector": "involvedObject.kind=NodeClaim,type=Warning"}
SHORTAGE = "InsufficientCapacityError"
"""The reason of Karpenter's Event before it deletes a NodeClaim that the cloud has no capacity for (its pkg/events)."""
NOT_READY = "NodeClassNotReady"
_REASONS = (SHORTAGE, NOT_READY)
_QUOTA = re.compile(
    r"quota|VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|limit for this account", re.IGNORECASE
)
"""Codes of AWS, Azure and GCP, which the providers report as insufficient capacity."""
_MISCONFIGURED = re.compile(
    r"not authorized|unauthorized|accessdenied|forbidden|invalid|malformed|not ?found|nodeclass", re.IGNORECASE
)
_LONGEST_MESSAGE = 500


class OfferingKey(NamedTuple):
    """What Karpenter calls an offering: what may be short."""

    instance_type: str
    zone: str
    capacity_type: str

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """Why Karpenter could not launch a NodeClaim that it tries again."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A NodeClaim of this fleet."""

    name: str
    token: str
    node_group: str
    offering: OfferingKey
    node_class: NodeClass | None = None
    """None before it is created."""
    uid: str = ""
    version: int = 0
    """Its resourceVersion, an increasing number (KEP-5504)."""
    created_at_seconds: float = 0.0
    provider_id: str = ""
    """Empty until it is launched."""
    registered: bool = False
    deleting: bool = False
    failure: LaunchFailure | None = None


def name_of(token: str) -> str:
    """Return the name of a token's NodeClaim: tokens have characters that names may not have."""
    return NAME_PREFIX + hashlib.sha256(token.encode()).hexdigest()[:_HASH_LENGTH]


def path_of(name: str) -> str:
    return f"{NODE_CLAIMS}/{name}"


def offering_of(group: NodeGroup) -> OfferingKey:
    zone = "" if group.zone == DEFAULT_ZONE else group.zone
    return OfferingKey(group.instance_type, zone, group.capacity_type)


def expected(instance: OrderedInstance) -> NodeClaim:
    """Return the NodeClaim of an instance before it is created."""
    group = instance.group
    return NodeClaim(name_of(instance.token), instance.token, group.id, offering_of(group))


def body(order: Order, instance: OrderedInstance, parameters: Parameters, fleet: str) -> dict[str, Any]:
    """Return the NodeClaim to create. It has no finalizer of ours: one that lingers unlaunched would stop Karpenter's
    provisioning (its state stays unsynced). Labels of instance types are the provider's, and requirements have none of
    ours: a key that Karpenter does not know matches no type."""
    group = instance.group
    labels = {
        key: value
        for key, value in group.labels.items()
        if key not in WELL_KNOWN_LABELS | group.post_registration_labels
    }
    start_up = (Taint(START_UP_TAINT, TaintEffect.NO_SCHEDULE), *parameters.startup_taints)
    reference = parameters.node_class
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": name_of(instance.token),
            "labels": {**labels, NODEPOOL_LABEL: node_pool(group), FLEET_LABEL: fleet},
            "annotations": {
                TOKEN: instance.token,
                NODE_GROUP: group.id,
                INCREMENT: order.increment_id,
                DO_NOT_DISRUPT: "true",
            },
        },
        "spec": {
            "nodeClassRef": {"group": reference.group, "kind": reference.kind, "name": reference.name},
            "requirements": [
                {"key": key, "operator": "In", "values": [value]} for key, value in _requirements(group) if value
            ],
            "taints": [_taint(taint) for taint in group.taints],
            "startupTaints": [_taint(taint) for taint in start_up],
            "expireAfter": "Never",
            "terminationGracePeriod": f"{parameters.termination_grace_period_seconds:.0f}s",
        },
    }


def _taint(taint: Taint) -> dict[str, str]:
    """Return a v1.Taint; the schema of NodeClaims has no empty value."""
    return {key: value for key, value in taint_document(taint).items() if value}


def _requirements(group: NodeGroup) -> Iterator[tuple[str, str]]:
    offering = offering_of(group)
    yield INSTANCE_TYPE, offering.instance_type
    yield ZONE, offering.zone
    yield CAPACITY_TYPE, offering.capacity_type
    yield ARCH, group.labels.get(ARCH, "")
    yield OS, group.labels.get(OS, "")


def claim(document: Mapping[str, Any]) -> NodeClaim:
    """Decode a NodeClaim. Raises InvalidInput for one that this fleet has not made, whatever its labels say."""
    metadata = mapping(document, "metadata")
    annotations = strings(metadata, "annotations")
    name, token = str(metadata.get("name") or ""), annotations.get(TOKEN, "")
    if not token or name != name_of(token):
        raise InvalidInput(f"metadata.annotations: {TOKEN} is not the token of a NodeClaim {name}; it is not ours")
    conditions = {str(found.get("type")): found for found, _ in members(_status(document), "conditions")}
    launched = conditions.get("Launched", {})
    reason = str(launched.get("reason") or "")
    failed = launched.get("status") == "Unknown" and reason not in ("", _NOT_TRIED_YET)
    return NodeClaim(
        name=name,
        token=token,
        node_group=annotations.get(NODE_GROUP, ""),
        offering=_offering(document),
        node_class=_node_class(document),
        uid=str(metadata.get("uid") or ""),
        version=whole_number(metadata.get("resourceVersion")) or 0,
        created_at_seconds=epoch_seconds(metadata.get("creationTimestamp")),
        provider_id=str(_status(document).get("providerID") or ""),
        registered=conditions.get("Registered", {}).get("status") == "True",
        deleting=metadata.get("deletionTimestamp") is not None,
        failure=LaunchFailure(reason, str(launched.get("message") or "")) if failed else None,
    )


def _status(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(document, "status")


def _node_class(document: Mapping[str, Any]) -> NodeClass:
    reference = mapping(mapping(document, "spec"), "nodeClassRef")
    return NodeClass(*(str(reference.get(key) or "") for key in ("group", "kind", "name")))


def _offering(document: Mapping[str, Any]) -> OfferingKey:
    found: dict[str, str] = {}
    for requirement, _ in members(mapping(document, "spec"), "requirements"):
        values = requirement.get("values")
        if isinstance(values, list) and len(values) == 1:
            found[str(requirement.get("key"))] = str(values[0])
    return OfferingKey(found.get(INSTANCE_TYPE, ""), found.get(ZONE, ""), found.get(CAPACITY_TYPE, ""))


@dataclass(frozen=True, slots=True)
class Reason:
    """A warning about a NodeClaim."""

    event: str
    """The Event's name."""
    claim: str
    reason: str
    message: str

    @property
    def is_final(self) -> bool:
        """Whether Karpenter gives the NodeClaim up for it."""
        return self.reason in _REASONS and self.claim.startswith(NAME_PREFIX)


def reason(document: Mapping[str, Any]) -> Reason:
    """Decode an Event."""
    about = str(mapping(document, "involvedObject").get("name") or "")
    message = str(document.get("message") or "").removeprefix(f"NodeClaim {about} event: ")
    name = str(mapping(document, "metadata").get("name") or "")
    return Reason(name, about, str(document.get("reason") or ""), message[:_LONGEST_MESSAGE])


def error_of_event(found: Reason, retry_after_seconds: float) -> InstanceError:
    """Return the error of a NodeClaim that is gone. `retry_after_seconds` is what is left of the time in which
    Karpenter launches nothing of that offering."""
    if found.reason == NOT_READY:
        return InstanceError(NOT_READY, found.message, ErrorKind.CONFIGURATION)
    kind = ErrorKind.QUOTA if _QUOTA.search(found.message) else ErrorKind.CAPACITY
    return InstanceError(SHORTAGE, found.message, kind, retry_after_seconds)


def unexplained_error(not_ready: str | None, offering: str, retry_after_seconds: float) -> InstanceError:
    """Return the error of a NodeClaim that went before it was launched, without an Event. Karpenter 1.14 sends none
    where the NodeClass is not ready; where it is, the Event is late or lost, as after many at once."""
    if not_ready is not None:
        return InstanceError(NOT_READY, not_ready, ErrorKind.CONFIGURATION)
    message = f"{offering}: Karpenter deleted the NodeClaim before it was launched; no Event says why"
    return InstanceError(SHORTAGE, message, ErrorKind.CAPACITY, retry_after_seconds)


def error_of_condition(found: LaunchFailure) -> InstanceError:
    """Return the error of a NodeClaim that Karpenter tries to launch again and again."""
    text = f"{found.reason} {found.message}"
    if _QUOTA.search(text):
        kind = ErrorKind.QUOTA
    elif _MISCONFIGURED.search(text):
        kind = ErrorKind.CONFIGURATION
    else:
        kind = ErrorKind.OTHER
    return InstanceError(found.reason, found.message[:_LONGEST_MESSAGE], kind)
