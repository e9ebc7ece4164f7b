"""Pods, from Kubernetes' JSON shape or from v1.Pod bytes, to what planning reads of them.

One converter: bytes are turned into the JSON shape and take the same way. Files are read in `manifests`, the
expander's messages in `expander`; which pods are interchangeable is decided here, by `PodSpec` and `group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from google.protobuf.message import Message

from cagrpc.errors import InvalidInput
from cagrpc.wire.gen import kubernetes_pb2
from cagrpc.wire.messages import parse, plain
from cagrpc.wire.resources import Problems, effective_requests, mapping, members, strings, texts
from solver.model import NodeSelectorTerm, Operator, PodSet, PodSpec, Requirement, Toleration

CONSUMED_REQUEST = (
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",  # older
)
"""Annotations by which a pod belongs to a ProvisioningRequest: all of its pods are one gang."""

PLACEHOLDER = ("podType", "capacityBufferFakePod")
"""How CA marks the pods that it injects for a CapacityBuffer (upstream: capacitybuffer/fakepods)."""

_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `key` is its UID, or `namespace/name` where it has none; `name` is `namespace/name`, for people."""

    key: str
    name: str
    spec: PodSpec
    priority: int = 0
    gang: str | None = None
    placeholder: bool = False
    created_at_seconds: int = 0
    """Since the epoch; 0 where unknown."""


def pod_spec(spec: Mapping[str, Any], path: str, problems: Problems) -> PodSpec:
    """A v1.PodSpec in JSON shape. What cannot be meant is added to `problems`, each with its path below `path`, and
    left out of the result."""
    return PodSpec(
        requests=effective_requests(spec, path, problems),
        node_selector=tuple(sorted(strings(spec, "nodeSelector", path, problems).items())),
        affinity=_required_node_affinity(spec, path, problems),
        tolerations=_tolerations(spec, path, problems),
    )


def gang_of(namespace: str, annotations: Mapping[str, str]) -> str | None:
    """The gang that a pod's annotations name, unique within the cluster."""
    named = (annotations.get(annotation) for annotation in CONSUMED_REQUEST)
    return next((f"{namespace}/{name}" for name in named if name), None)


def is_placeholder(annotations: Mapping[str, str]) -> bool:
    return annotations.get(PLACEHOLDER[0]) == PLACEHOLDER[1]


def unread_features(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """What the pod demands (v1.PodSpec in JSON shape) and planning does not read yet, by the names of its fields."""
    ignored: Problems = []  # `pod_spec` reports what is malformed
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = mapping(spec, "affinity", "", ignored)
    found = [kind for kind in ("podAffinity", "podAntiAffinity") if mapping(affinity, kind, "", ignored).get(required)]
    spread = members(spec, "topologySpreadConstraints", "", ignored)
    if any(constraint.get("whenUnsatisfiable") != "ScheduleAnyway" for constraint, _ in spread):
        found.append("topologySpreadConstraints")
    containers = (c for field in ("containers", "initContainers") for c, _ in members(spec, field, "", ignored))
    host = "containerPort" if spec.get("hostNetwork") else "hostPort"  # on the host's network every port is the host's
    if any(port.get(host) for container in containers for port, _ in members(container, "ports", "", ignored)):
        found.append("hostPorts")
    if spec.get("resourceClaims"):
        found.append("resourceClaims")
    claims = ("persistentVolumeClaim", "ephemeral")  # the latter makes a claim of its own for each pod
    if any(volume.get(claim) for volume, _ in members(spec, "volumes", "", ignored) for claim in claims):
        found.append("persistentVolumeClaim")
    return tuple(found)


class PodDecoder:
    """v1.Pod bytes to pods. Specs that differ only in what planning does not read are converted once: thousands of
    replicas cost little more than their workload. Not for several threads."""

    def __init__(self) -> None:
        self._specs: dict[bytes, PodSpec] = {}

    def decode(self, data: bytes) -> Pod:
        """Raises InvalidInput for bytes that are no v1.Pod, UnreadablePod for one that cannot be meant."""
        message = parse(kubernetes_pb2.Pod, data)
        spec = message.spec
        _discard_unknown_fields(spec)
        spec_bytes = spec.SerializeToString(deterministic=True)
        converted = self._specs.get(spec_bytes)
        if converted is None:
            problems: Problems = []
            converted = pod_spec(plain(spec), "spec", problems)
            if problems:
                raise UnreadablePod(f"pod {_name(message)}: {'; '.join(problems)}")
            self._specs[spec_bytes] = converted
        return _pod(message, converted)


NOWHERE = PodSpec(affinity=())
"""A spec that no node can serve: node affinity is required, and there is no term that a node could match."""


def unread(data: bytes) -> Pod:
    """Who a pod is, with the spec `NOWHERE`: for one whose own cannot be read, or not in time. Bytes that are no v1.Pod
    are a pod too, known by their digest."""
    try:
        return _pod(parse(kubernetes_pb2.Pod, data), NOWHERE)
    except InvalidInput:
        name = f"malformed/{sha256(data).hexdigest()[:16]}"
        return Pod(name, name, NOWHERE)


def _pod(message: kubernetes_pb2.Pod, spec: PodSpec) -> Pod:
    metadata = message.metadata
    name, annotations = _name(message), metadata.annotations
    return Pod(
        key=metadata.uid or name,
        name=name,
        spec=spec,
        priority=message.spec.priority,
        gang=gang_of(metadata.namespace, annotations),
        placeholder=is_placeholder(annotations),
        created_at_seconds=metadata.creationTimestamp.seconds,
    )


def _name(message: kubernetes_pb2.Pod) -> str:
    return f"{message.metadata.namespace}/{message.metadata.name}"


def _discard_unknown_fields(message: Message) -> None:
    message.DiscardUnknownFields()  # type: ignore[attr-defined] # protobuf's stubs do not know it


class UnreadablePod(InvalidInput):
    """A well-formed pod with something in it that planning cannot understand, perhaps of a newer Kubernetes."""


def group(pods: Iterable[Pod], now_seconds: float = 0.0) -> tuple[tuple[PodSet, ...], dict[str, int]]:
    """Pods as pod sets of equal spec, priority, gang and kind, in order of first appearance, and pod key -> index of
    its set. A set has waited as long as its oldest pod (0 where `now_seconds` or the pods' age is unknown). A key that
    comes twice counts once."""
    indices: dict[tuple[PodSpec, int, str | None, bool], int] = {}
    members_of: list[list[Pod]] = []
    set_of_pod: dict[str, int] = {}
    for pod in pods:
        if pod.key in set_of_pod:
            continue
        index = indices.setdefault((pod.spec, pod.priority, pod.gang, pod.placeholder), len(members_of))
        if index == len(members_of):
            members_of.append([])
        members_of[index].append(pod)
        set_of_pod[pod.key] = index
    return tuple(_pod_set(alike, now_seconds) for alike in members_of), set_of_pod


def _pod_set(alike: Sequence[Pod], now_seconds: float) -> PodSet:
    first = alike[0]
    oldest = min((pod.created_at_seconds for pod in alike if pod.created_at_seconds), default=0)
    return PodSet(
        name=first.name,
        spec=first.spec,
        count=len(alike),
        priority=first.priority,
        waiting_seconds=max(0, int(now_seconds) - oldest) if oldest else 0,
        gang=first.gang,
        placeholder=first.placeholder,
    )


def _required_node_affinity(
    spec: Mapping[str, Any], path: str, problems: Problems
) -> tuple[NodeSelectorTerm, ...] | None:
    affinity = mapping(mapping(spec, "affinity", path, problems), "nodeAffinity", f"{path}.affinity", problems)
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    path = f"{path}.affinity.nodeAffinity"
    if affinity.get(field) is None:
        return None
    required = mapping(affinity, field, path, problems)
    return tuple(
        NodeSelectorTerm(
            match_expressions=_requirements(term, "matchExpressions", at, problems),
            match_fields=_requirements(term, "matchFields", at, problems),
        )
        for term, at in members(required, "nodeSelectorTerms", f"{path}.{field}", problems)
    )


def _requirements(term: Mapping[str, Any], field: str, path: str, problems: Problems) -> tuple[Requirement, ...]:
    found = []
    for expression, at in members(term, field, path, problems):
        key, operator = expression.get("key"), expression.get("operator")
        values = tuple(sorted(texts(expression, "values", at, problems)))
        if not key:
            problems.append(f"{at}.key: missing; write the label's key")
        elif operator not in _NODE_OPERATORS:
            problems.append(f"{at}.operator: {operator!r} is not one of {', '.join(_NODE_OPERATORS)}")
        elif operator in ("In", "NotIn") and not values:
            problems.append(f"{at}.values: {operator} needs at least one value")
        elif operator in ("Exists", "DoesNotExist") and values:
            problems.append(f"{at}.values: {operator} takes none, found {', '.join(values)}")
        elif operator in ("Gt", "Lt") and not (len(values) == 1 and _is_integer(values[0])):
            problems.append(f"{at}.values: {operator} takes one integer, found {', '.join(values) or 'none'}")
        else:
            found.append(Requirement(str(key), Operator(operator), values))
    return tuple(found)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _tolerations(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[Toleration, ...]:
    found = set()
    for toleration, at in members(spec, "tolerations", path, problems):
        operator = toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists"):
            problems.append(f"{at}.operator: {operator!r} is not one of Equal, Exists")
            continue
        found.add(
            Toleration(
                key=str(toleration.get("key") or ""),
                operator=operator,
                value=str(toleration.get("value") or ""),
                effect=str(toleration.get("effect") or ""),
            )
        )
    return tuple(sorted(found, key=lambda t: (t.key, t.operator, t.value, t.effect)))
