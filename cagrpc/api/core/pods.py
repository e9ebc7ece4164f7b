"""Pods, from Kubernetes' JSON shape or from v1.Pod bytes, to what planning reads of them, with what they say of their
resource claims and of a resize in place.

Bytes are converted to the JSON shape first, so there is one converter. Files are read in `cagrpc.cluster.documents`,
the expander's messages, and all pods of a call together, in `cagrpc.api.autoscaler.expander`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from cagrpc.api.core.caps import (
    MOST_CLAIMS,
    MOST_HOST_PORTS,
    MOST_LABELS,
    MOST_NAMESPACES,
    MOST_RESOURCES,
    MOST_VOLUMES,
    beyond,
    beyond_caps,
    coarse_anti_affinity,
)
from cagrpc.api.core.constraints import (
    Surroundings,
    host_ports,
    namespace_selectors,
    own_label_keys,
    preferred_nodes,
    preferred_pods,
    required_nodes,
    required_pods,
    toleration_order,
    tolerations,
    topology_spread,
)
from cagrpc.api.core.consumption import Consumption, consumption
from cagrpc.api.core.gangs import (
    DEFAULT_GANG_LABEL,
    MIN_COUNT,
    TOTAL_COUNT,
    GangKind,
    GangMembership,
    annotated,
    gang_name,
    gang_of_pod,
)
from cagrpc.api.core.resources import effective_requests
from cagrpc.api.core.selectors import (
    DEFAULT_NAMESPACE,
    Conditions,
    KnownNamespaces,
    NoNamespaces,
    PodIdentity,
    selectors_of,
)
from cagrpc.api.core.slack import PLACEHOLDER
from cagrpc.api.core.topology import POD_SET, WORKLOAD, as_requested, topology_request
from cagrpc.api.core.volumes import IN_TREE, NO_VOLUMES, UNSHARED, PodVolumes, pod_volumes
from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings
from cagrpc.api.encoding.messages import discard_unknown_fields, message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput, in_one_line
from solver.model import Labels, PodSpec, TaintEffect, Toleration


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A member of spec.resourceClaims."""

    name: str
    claim: str = ""
    """The claim's name (resourceClaimName); empty where it is made of a template."""
    template: str = ""
    """The template's name (resourceClaimTemplateName); empty where the claim is named."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    claims: tuple[PodClaim, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    """(name, ResourceClaim; empty where none was needed): status.resourceClaimStatuses, sorted."""


NO_CLAIMS = PodClaims()


def pod_claims(pod: Mapping[str, Any], problems: Problems) -> PodClaims:
    """Read the claims of a v1.Pod, or of a template, in JSON shape."""
    spec, status = mapping(pod, "spec", "", problems), mapping(pod, "status", "", problems)
    claims = tuple(
        PodClaim(
            str(each.get("name") or ""),
            str(each.get("resourceClaimName") or ""),
            str(each.get("resourceClaimTemplateName") or ""),
        )
        for each, _ in members(spec, "resourceClaims", "spec", problems)
    )
    made = (
        (str(each.get("name") or ""), str(each.get("resourceClaimName") or ""))
        for each, _ in members(status, "resourceClaimStatuses", "status", problems)
    )
    return PodClaims(claims, tuple(sorted(made))) if claims else NO_CLAIMS


def settled_statuses(spec: kubernetes_pb2.PodSpec) -> AbstractSet[bytes]:
    """Return the serialised statuses of containers of which nothing is resized: comparing bytes is much faster than
    comparing maps."""
    found = set()
    for each in (*spec.containers, *spec.initContainers):
        status = kubernetes_pb2.ContainerStatus(name=each.name, allocatedResources=each.resources.requests)
        status.resources.CopyFrom(each.resources)
        discard_unknown_fields(status)
        found.add(status.SerializeToString(deterministic=True))
    return found


def resize_of(
    message: kubernetes_pb2.Pod, settled: Callable[[], AbstractSet[bytes]]
) -> kubernetes_pb2.PodStatus | None:
    """Return what the status says of a resize in place; None where spec and status agree, as they mostly do. `settled`
    returns the `settled_statuses` of the spec."""
    spec, status = message.spec, message.status
    of_containers = [
        each
        for each in (*status.containerStatuses, *status.initContainerStatuses)
        if each.HasField("resources") and not _is_settled(each, settled())
    ]
    if not of_containers and not status.HasField("resources"):
        return None
    asked = {each.name: each.resources for each in (*spec.containers, *spec.initContainers)}
    if all(_agree(asked.get(each.name), each) for each in of_containers) and _agree(spec.resources, status):
        return None
    found = kubernetes_pb2.PodStatus(
        containerStatuses=status.containerStatuses,
        initContainerStatuses=status.initContainerStatuses,
        conditions=[each for each in status.conditions if each.type == "PodResizePending"],
        allocatedResources=status.allocatedResources,
    )
    for each in found.conditions:
        each.ClearField("message")
        for name in ("lastProbeTime", "lastTransitionTime"):
            each.ClearField(name)
    if status.HasField("resources"):
        found.resources.CopyFrom(status.resources)
    discard_unknown_fields(found)
    return found


def _is_settled(status: kubernetes_pb2.ContainerStatus, settled: AbstractSet[bytes]) -> bool:
    discard_unknown_fields(status)
    return status.SerializeToString(deterministic=True) in settled


def _agree(
    asked: kubernetes_pb2.ResourceRequirements | None,
    observed: kubernetes_pb2.ContainerStatus | kubernetes_pb2.PodStatus,
) -> bool:
    """Return whether what was allocated and set is what the spec requests, or nothing is said of it."""
    if asked is None or not observed.HasField("resources"):
        return True
    requests = asked.requests
    return bool(observed.resources.requests == requests and observed.allocatedResources == requests)


_NOTHING_OF_PLACES = (
    "volumes",
    "restartPolicy",
    "nodeName",
    "schedulerName",
    "runtimeClassName",
    "priorityClassName",
    "priority",
    "schedulingGates",
    "resourceClaims",
    "schedulingGroup",
)
"""Fields of v1.PodSpec that are no part of `PodSpec`, or are read apart."""

_MOST_SPECS, _MOST_SPEC_BYTES = 20_000, 16 * 1024 * 1024
"""Limits of a decoder's cache, which is cleared at either: it lives as long as the process, a spec may have a megabyte,
and users may create and delete many. A cleared entry costs one conversion."""
_BYTES_OF_REFERENCE = 8

ADDED_BY_ADMISSION = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Transient taints of a node: the API server makes every pod tolerate them (NoExecute) for a while (upstream:
plugin/pkg/admission/defaulttolerationseconds)."""

_OF_DAEMONS = tuple(
    Toleration(f"node.kubernetes.io/{key}", "Exists", effect=effect)
    for key, effect in (
        ("not-ready", TaintEffect.NO_EXECUTE),
        ("unreachable", TaintEffect.NO_EXECUTE),
        ("disk-pressure", TaintEffect.NO_SCHEDULE),
        ("memory-pressure", TaintEffect.NO_SCHEDULE),
        ("pid-pressure", TaintEffect.NO_SCHEDULE),
        ("unschedulable", TaintEffect.NO_SCHEDULE),
    )
)
"""The tolerations that the DaemonSet controller adds to every pod (upstream: AddOrUpdateDaemonPodTolerations)."""

FAKE_POD = ("podType", "capacityBufferFakePod")
"""The annotation of the pods that CA injects for a CapacityBuffer (upstream: capacitybuffer/fakepods)."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `key` is its UID, or `namespace/name` where it has none; `name` is `namespace/name`, for people."""

    key: str
    name: str
    spec: PodSpec
    priority: int = 0
    gang: GangMembership | None = None
    placeholder: bool = False
    consumes: Consumption | None = None
    """Its annotations of a ProvisioningRequest, one of which may be missing."""
    created_at_seconds: int = 0
    """The time of its creation since the epoch; 0 where unknown."""
    namespace_selectors: frozenset[Conditions] = field(default=frozenset(), compare=False)
    """The conditions on labels of Namespaces that its spec depends on."""
    warning: str = field(default="", compare=False)
    """Invalid fields that were ignored; empty where there are none."""
    resource_claims: PodClaims = field(default=NO_CLAIMS, compare=False)
    """Its claims on devices; what they come to is known where the claims are (`cagrpc.api.devices`)."""
    volumes: PodVolumes = field(default=NO_VOLUMES, compare=False)
    """The claims that it uses; what they come to is known where the claims are (`volume_binding`)."""
    labels: Labels = field(default_factory=dict, compare=False)
    """All labels; `spec` has those that selectors read, once all selectors are known (`with_visible_labels`)."""

    @property
    def consumer(self) -> bool:
        """Whether it consumes a ProvisioningRequest, and so is not planned itself."""
        return self.consumes is not None and not self.consumes.missing

    @property
    def identity(self) -> PodIdentity:
        return PodIdentity(self.name.partition("/")[0] or DEFAULT_NAMESPACE, self.labels)


def pod_spec(
    spec: Mapping[str, Any],
    path: str,
    problems: Problems,
    around: Surroundings | None = None,
    status: Mapping[str, Any] | None = None,
) -> PodSpec:
    """Return the planner's spec of a v1.PodSpec in JSON shape, without namespace and labels, which
    `LabelProjection.identified` adds. Invalid parts are left out and added to `problems` by their path below `path`.
    `status` is the pod's, which counts while it is resized in place."""
    around = around or Surroundings()
    requests = effective_requests(spec, path, problems, status)
    excess = beyond_caps(spec)
    if excess:
        return _left_out(spec, path, requests, around, excess)
    found = PodSpec(
        requests=requests,
        node_selector=tuple(sorted(strings(spec, "nodeSelector", path, problems).items())),
        affinity=required_nodes(spec, path, problems),
        tolerations=tolerations(spec, path, problems),
        host_ports=host_ports(spec, path, problems),
        pod_affinity=required_pods(spec, "podAffinity", path, problems, around),
        pod_anti_affinity=required_pods(spec, "podAntiAffinity", path, problems, around),
        topology_spread=topology_spread(spec, path, problems, around),
        preferred_nodes=preferred_nodes(spec, path, problems),
        preferred_pods=preferred_pods(spec, path, problems, around),
    )
    excess = beyond("namespaces in its terms", _namespaces_in(found), MOST_NAMESPACES)
    return _left_out(spec, path, requests, around, excess) if excess else found


def _namespaces_in(spec: PodSpec) -> int:
    running = (each.running for each in spec.pod_anti_affinity if each.running is not None)
    return sum(len(each.namespaces or ()) for each in (*selectors_of(spec), *running))


def _left_out(
    spec: Mapping[str, Any],
    path: str,
    requests: tuple[tuple[str, int], ...],
    around: Surroundings,
    why: str,
) -> PodSpec:
    """Return the spec of a pod that is not planned; where it runs, it takes what it requests, and keeps away whom it
    keeps away."""
    ports = host_ports(spec, path, [])
    first = sorted(requests, key=lambda each: (each[0] not in ("cpu", "memory"), each[0]))[:MOST_RESOURCES]
    return PodSpec(
        requests=tuple(sorted(first)),
        host_ports=ports if len(ports) <= MOST_HOST_PORTS else (),
        pod_anti_affinity=coarse_anti_affinity(spec, around.identity.namespace),
        unschedulable=f"it {why}",
    )


def daemon(template: PodSpec) -> PodSpec:
    """Return the spec of a DaemonSet's pod on a new node. Of its constraints only host ports, claims and those on nodes
    count; other pods' constraints count it."""
    return PodSpec(
        template.requests,
        template.node_selector,
        template.affinity,
        tuple(sorted({*template.tolerations, *_OF_DAEMONS}, key=toleration_order)),
        template.namespace,
        template.labels,
        template.host_ports,
        node_terms=template.node_terms,
        claims=template.claims,
    )


def is_placeholder(annotations: Mapping[str, str]) -> bool:
    return annotations.get(FAKE_POD[0]) == FAKE_POD[1]


class PodDecoder:
    """Decodes v1.Pod bytes. Specs that differ only in what planning does not read are converted once, so thousands of
    replicas cost little more than their workload. Not thread-safe."""

    def __init__(
        self,
        gang_label: str = DEFAULT_GANG_LABEL,
        *,
        consuming: bool = True,
        placeholders: bool = True,
        namespaces: Callable[[], KnownNamespaces] = NoNamespaces,
    ) -> None:
        """`gang_label` is the key of the label that names a pod's gang. Without support for ProvisioningRequests
        (`consuming` is false) the pods of one are a gang. With `placeholders`, a pod's own annotation or label marks it
        a placeholder, as in CA's requests, which contain pods that CA injects. `namespaces` returns those that are
        known now; the same value as long as nothing has changed."""
        self._gang_label = gang_label
        self._consuming = consuming
        self._placeholders = placeholders
        self._namespaces = namespaces
        # Specs that depend on the labels of Namespaces, and those that they were read with.
        self._by_namespaces: dict[bytes, frozenset[Conditions]] = {}
        self._read_with = namespaces()
        self._specs: dict[bytes, PodSpec] = {}
        # Specs that depend on the pod's own labels: the keys that each reads, and the result by their values.
        self._own_keys: dict[bytes, tuple[str, ...]] = {}
        self._specs_by_own_labels: dict[tuple[bytes, str, tuple[str | None, ...]], PodSpec] = {}
        self._cached_bytes = 0
        # Statuses of pods that are not being resized, by spec.
        self._settled: dict[bytes, AbstractSet[bytes]] = {}

    def decode(self, data: bytes) -> Pod:
        """Decode a v1.Pod. Raises InvalidInput for malformed bytes, UnreadablePod for an invalid pod."""
        return self.read(parse(kubernetes_pb2.Pod, data))

    def read(self, message: kubernetes_pb2.Pod) -> Pod:
        """Decode a message. Its spec is changed: only the fields that affect scheduling remain."""
        spec, labels = message.spec, message.metadata.labels
        own = {key: labels[key] for key in (labels if len(labels) <= MOST_LABELS else sorted(labels)[:MOST_LABELS])}
        excess = _beyond_caps(message)
        who = _pod(message, own, self._gang_label, self._consuming, self._placeholders)
        volumes, claims = (NO_VOLUMES, NO_CLAIMS) if excess else (_volumes(message), _resource_claims(message))
        for name in _NOTHING_OF_PLACES:
            spec.ClearField(name)
        discard_unknown_fields(spec)
        spec_bytes = spec.SerializeToString(deterministic=True)
        resize = resize_of(message, lambda: self._settled_statuses(spec_bytes, spec))
        if resize is not None:
            spec_bytes += b"\0" + resize.SerializeToString(deterministic=True)
        self._forget_by_namespaces()
        converted = self._specs.get(spec_bytes)
        if converted is None:
            identity = PodIdentity(message.metadata.namespace or DEFAULT_NAMESPACE, own)
            converted = self._cached_by_own_labels(spec_bytes, identity) or self._convert(
                message, resize, spec_bytes, identity
            )
        converted = replace(converted, unschedulable=f"it {excess}") if excess else converted
        converted, marked = _close_together(message, who, converted, own)
        return replace(
            who,
            spec=converted,
            labels=marked,
            volumes=volumes,
            resource_claims=claims,
            namespace_selectors=self._by_namespaces.get(spec_bytes, frozenset()),
        )

    def _settled_statuses(self, spec_bytes: bytes, spec: kubernetes_pb2.PodSpec) -> AbstractSet[bytes]:
        found = self._settled.get(spec_bytes)
        if found is None:
            if len(self._settled) >= _MOST_SPECS:
                self._settled.clear()
            found = self._settled[spec_bytes] = settled_statuses(spec)
        return found

    def _forget_by_namespaces(self) -> None:
        """Forget what was read with Namespaces that have changed."""
        current = self._namespaces()
        if current is self._read_with:
            return
        self._read_with = current
        for spec_bytes in self._by_namespaces:
            self._own_keys.pop(spec_bytes, None)
        for key in [key for key in self._specs_by_own_labels if key[0] in self._by_namespaces]:
            del self._specs_by_own_labels[key]
        self._by_namespaces.clear()

    def _cached_by_own_labels(self, spec_bytes: bytes, identity: PodIdentity) -> PodSpec | None:
        own_keys = self._own_keys.get(spec_bytes)
        return (
            None if own_keys is None else self._specs_by_own_labels.get(_seen_by_itself(spec_bytes, identity, own_keys))
        )

    def _convert(
        self,
        message: kubernetes_pb2.Pod,
        resize: kubernetes_pb2.PodStatus | None,
        spec_bytes: bytes,
        identity: PodIdentity,
    ) -> PodSpec:
        document = message_to_dict(message.spec)
        status = None if resize is None else message_to_dict(resize)
        problems: Problems = []
        converted = pod_spec(document, "spec", problems, Surroundings(identity, self._read_with), status)
        if problems:
            raise UnreadablePod(f"pod {_name(message)}: {in_one_line(problems)}", converted.requests)
        size = len(spec_bytes) + _BYTES_OF_REFERENCE * _namespaces_in(converted)
        self._cached_bytes += size
        if len(self._specs) + len(self._specs_by_own_labels) >= _MOST_SPECS or self._cached_bytes > _MOST_SPEC_BYTES:
            self._specs.clear()
            self._own_keys.clear()
            self._settled.clear()
            self._by_namespaces.clear()
            self._specs_by_own_labels.clear()
            self._cached_bytes = size
        own_keys = own_label_keys(document)
        if own_keys is None:
            self._specs[spec_bytes] = converted
        else:
            self._own_keys[spec_bytes] = own_keys
            by_namespaces = namespace_selectors(document)
            if by_namespaces and not beyond_caps(document):
                self._by_namespaces[spec_bytes] = by_namespaces
            self._specs_by_own_labels[_seen_by_itself(spec_bytes, identity, own_keys)] = converted
        return converted


def _beyond_caps(message: kubernetes_pb2.Pod) -> str:
    """Return of what the pod has more than is planned with, beside its constraints; empty for nothing."""
    found = (
        beyond("volumes", len(message.spec.volumes), MOST_VOLUMES),
        beyond("claims on devices", len(message.spec.resourceClaims), MOST_CLAIMS),
        beyond("labels", len(message.metadata.labels), MOST_LABELS),
    )
    return "; ".join(filter(None, found))


_SOURCES = ("persistentVolumeClaim", "ephemeral", *IN_TREE, *UNSHARED)


def _resource_claims(message: kubernetes_pb2.Pod) -> PodClaims:
    if not message.spec.resourceClaims:
        return NO_CLAIMS
    said = kubernetes_pb2.Pod()
    said.spec.resourceClaims.extend(message.spec.resourceClaims)
    said.status.resourceClaimStatuses.extend(message.status.resourceClaimStatuses)
    return pod_claims(message_to_dict(said), [])


def _volumes(message: kubernetes_pb2.Pod) -> PodVolumes:
    """Return the pod's volumes; almost every pod has some, and most of them are everywhere."""
    found = message.spec.volumes
    if not any(volume.volumeSource.HasField(source) for volume in found for source in _SOURCES):
        return NO_VOLUMES
    problems: Problems = []
    volumes = pod_volumes(
        {"volumes": [message_to_dict(each) for each in found]}, message.metadata.name, "spec", problems
    )
    if problems:
        raise UnreadablePod(f"pod {_name(message)}: {in_one_line(problems)}")
    return volumes


def _seen_by_itself(
    spec_bytes: bytes, identity: PodIdentity, own_keys: tuple[str, ...]
) -> tuple[bytes, str, tuple[str | None, ...]]:
    return spec_bytes, identity.namespace, tuple(map(identity.labels.get, own_keys))


NOWHERE = PodSpec(affinity=())
"""A spec that fits no node: node affinity is required and has no term."""


def is_nowhere(spec: PodSpec) -> bool:
    """Return whether the spec is `NOWHERE`, with any requests."""
    return spec.affinity == ()


def unread(
    data: bytes, gang_label: str = DEFAULT_GANG_LABEL, *, consuming: bool = True, placeholders: bool = True
) -> Pod:
    """Return a pod's identity with the spec `NOWHERE`, for one whose spec cannot be read, or not in time. Malformed
    bytes are a pod too, identified by their digest."""
    try:
        message = parse(kubernetes_pb2.Pod, data)
        return _pod(message, message.metadata.labels, gang_label, consuming, placeholders)
    except InvalidInput:
        return malformed(data)


def malformed(data: bytes) -> Pod:
    """Return a pod identified only by the digest of its bytes."""
    name = f"malformed/{sha256(data).hexdigest()[:16]}"
    return Pod(name, name, NOWHERE)


def _pod(message: kubernetes_pb2.Pod, labels: Labels, gang_label: str, consuming: bool, placeholders: bool) -> Pod:
    """Return a pod's identity with the spec `NOWHERE`."""
    metadata, scheduling_group = message.metadata, message.spec.schedulingGroup.podGroupName
    name, annotations = _name(message), metadata.annotations
    problems: Problems = []
    namespace = metadata.namespace or DEFAULT_NAMESPACE
    placeholder = placeholders and (is_placeholder(annotations) or labels.get(PLACEHOLDER) == "true")
    # For requests that CA serves itself it makes up pods, with their names as UIDs
    # (upstream: provisioningrequest/pods): those are to be planned.
    consuming = consuming and metadata.uid != name
    consumes = consumption(annotations) if consuming and not placeholder else None
    alone = placeholder or (consumes is not None and not consumes.missing)
    gang = gang_of_pod(namespace, labels, annotations, scheduling_group, gang_label, problems, by_request=not consuming)
    asked = None if alone else topology_request(annotations, "", problems)
    if gang is None and asked is not None and asked.is_whole:
        gang = _gang_of_workload(message, namespace, problems)
    return Pod(
        key=metadata.uid or name,
        name=name,
        spec=NOWHERE,
        priority=message.spec.priority,
        # A placeholder has a workload's template but is useful alone; a consumer is served by its request.
        gang=None if alone else gang,
        placeholder=placeholder,
        consumes=consumes,
        created_at_seconds=metadata.creationTimestamp.seconds,
        warning=f"pod {name}: {in_one_line(problems)}" if problems else "",
    )


def _gang_of_workload(message: kubernetes_pb2.Pod, namespace: str, problems: Problems) -> GangMembership | None:
    """Return the gang of a pod by its Workload of Kueue, or by its controller where it says none."""
    metadata = message.metadata
    name = gang_name(GangKind.WORKLOAD, namespace, workload) if (workload := metadata.annotations.get(WORKLOAD)) else ""
    if not name:
        owner = next((each for each in metadata.ownerReferences if each.controller), None)
        if owner is None:
            return None
        name = f"{owner.kind.lower()} {namespace}/{owner.name}"
    counts = (annotated(metadata.annotations, key, "", problems) for key in (MIN_COUNT, TOTAL_COUNT))
    return GangMembership(name, next((each for each in counts if each is not None), None))


def _close_together(message: kubernetes_pb2.Pod, who: Pod, spec: PodSpec, labels: Labels) -> tuple[PodSpec, Labels]:
    """Return spec and labels with what the pod's annotations ask of topology domains."""
    asked = topology_request(message.metadata.annotations, "", [])
    if asked is None or who.placeholder or who.consumes is not None:
        return spec, labels
    gang = who.gang or _gang_of_workload(message, message.metadata.namespace or DEFAULT_NAMESPACE, [])
    if gang is None:
        return spec, labels  # a pod is in one domain by itself
    return as_requested(spec, labels, f"{gang.name} {labels.get(POD_SET, '')}".strip(), asked)


def _name(message: kubernetes_pb2.Pod) -> str:
    return f"{message.metadata.namespace}/{message.metadata.name}"


class UnreadablePod(InvalidInput):
    """A well-formed pod with a field that planning cannot interpret, perhaps of a newer Kubernetes."""

    def __init__(self, message: str, requests: tuple[tuple[str, int], ...] = ()) -> None:
        """`requests` are the pod's requests, as far as they can be read."""
        super().__init__(message)
        self.requests = requests
