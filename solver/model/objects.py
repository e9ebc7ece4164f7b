"""Pods, node groups, nodes and limits: what problems are made of.

Everything here is an immutable value in plain units, so that a problem can be built by hand, hashed, compared and
written to a test. No protobuf, no Kubernetes client, no I/O: `cagrpc.api` translates, `solver.solve` plans.

Units: a resource is an integer amount: `cpu` in millicores, every other resource in its base unit (bytes, pieces).
Prices are US dollars per hour. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter

from solver.model.devices import DeviceClaim, Devices

Resources = Mapping[str, int]
Labels = Mapping[str, str]

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
HOSTNAME = "kubernetes.io/hostname"
"""The topology key of which every node is a domain of its own, whatever its labels are."""
ATTACHABLE_VOLUMES = "attachable-volumes-csi-"
"""How the resource is called that a CSI driver's attachments take of a node (upstream: GetCSIAttachLimitKey); the
driver's name follows."""
SharedVolume = tuple[str, str]
"""A volume that several pods use: the resource that it takes one of, and what tells it from others."""
NODES = "nodes"
"""Not a resource of a pod: the name under which a limit counts whole nodes."""


class Operator(StrEnum):
    """How a `Requirement` compares a label: Kubernetes' node selector operators, and Karpenter's Gte and Lte."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"
    GTE = "Gte"
    LTE = "Lte"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a node's labels (v1.NodeSelectorRequirement). `values` is empty for Exists and DoesNotExist."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Conditions that hold together (v1.NodeSelectorTerm). A term without conditions matches no node, as upstream."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()
    """Conditions on the node object; Kubernetes knows only `metadata.name`."""


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: TaintEffect
    value: str = ""

    def __str__(self) -> str:
        """As kubectl takes it: key=value:effect."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """v1.Toleration. `operator` is `Equal`, `Exists`, `Gt` or `Lt`, of which the last two compare the taint's value, an
    integer, with that of the toleration. An empty `key` with Exists tolerates every taint, an empty `effect` every
    effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Which pods a constraint between pods counts: a label selector and the namespaces that it covers."""

    match_expressions: tuple[Requirement, ...] | None = ()
    """Conditions on pod labels that hold together (matchLabels are given as In). None matches no pod, as a missing
    selector does upstream; an empty tuple matches every pod. An empty selector of a topology spread, which counts
    nominated pods alone, is None over all namespaces."""
    namespaces: tuple[str, ...] | None = None
    """Sorted; None for all namespaces."""
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)
    """Selectors are looked up again and again, and may have thousands of conditions."""

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.match_expressions, self.namespaces)))
        return self._hash or 0

    def __reduce__(self) -> tuple[object, ...]:
        """Without the hash, which is another one in another process."""
        return PodSelector, (self.match_expressions, self.namespaces)


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods that must share (or, as anti-affinity, must not share) a domain of `topology_key` (v1.PodAffinityTerm)."""

    topology_key: str
    selector: PodSelector
    alone: bool = False
    """Whether the term is not the pod's own but of its gang, of a claim that pods share, or of a disk that they must
    not share. The other terms of required affinity count only pods that the selectors of all of them match; this one
    neither narrows them nor is narrowed."""
    running: PodSelector | None = None
    """What it selects once its pod runs, where the scheduler compares that otherwise than while it waits."""

    def of_running(self) -> PodAffinityTerm:
        """Return the term of a pod that runs."""
        return self if self.running is None else PodAffinityTerm(self.topology_key, self.running, self.alone)


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """v1.TopologySpreadConstraint. ScheduleAnyway is a preference, relaxed as in `docs/reference/constraints.md`."""

    topology_key: str
    max_skew: int
    selector: PodSelector
    when_unsatisfiable: WhenUnsatisfiable = WhenUnsatisfiable.DO_NOT_SCHEDULE
    min_domains: int = 1
    honor_node_affinity: bool = True
    """nodeAffinityPolicy: whether domains that the pod may not run in by selector and affinity are left out."""
    honor_node_taints: bool = False
    """nodeTaintsPolicy: whether domains of which the pod tolerates no node are left out."""

    @property
    def is_required(self) -> bool:
        """Return whether it is no preference."""
        return self.when_unsatisfiable is WhenUnsatisfiable.DO_NOT_SCHEDULE


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that a pod takes for itself. `ip` is empty (or 0.0.0.0) for all addresses."""

    port: int
    protocol: str = "TCP"
    ip: str = ""


@dataclass(frozen=True, slots=True)
class PreferredNodes:
    """Preferred node affinity (v1.PreferredSchedulingTerm)."""

    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class PreferredPods:
    """Preferred pod affinity or anti-affinity (v1.WeightedPodAffinityTerm)."""

    weight: int
    term: PodAffinityTerm
    anti: bool = False


@dataclass(frozen=True, slots=True)
class PreferredDomain:
    """A wish of pods to be in as few topology domains as can be, together with all that the term counts, themselves
    among them."""

    term: PodAffinityTerm
    after_cost: bool = False
    """Whether only plans that cost the same are compared by it; else fewer domains may cost more."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What planning reads of a pod. Two pods with equal specs are interchangeable: this is the equivalence class.

    `requests` are the effective ones (init containers, sidecars and overhead counted in), sorted by name, zeros left
    out, *without* `pods`: every pod takes one of the node's pods, which the solver adds itself.
    """

    requests: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[NodeSelectorTerm, ...] | None = None
    """Required node affinity: terms of which one must match; None where the pod has none."""
    tolerations: tuple[Toleration, ...] = ()
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by key; read by the selectors of constraints between pods and by nothing else."""
    host_ports: tuple[HostPort, ...] = ()
    pod_affinity: tuple[PodAffinityTerm, ...] = ()
    """Required; every term must be met."""
    pod_anti_affinity: tuple[PodAffinityTerm, ...] = ()
    """Required, and kept by other pods too: none that a term selects joins this pod's domain."""
    topology_spread: tuple[TopologySpread, ...] = ()
    node_terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    """Further required conditions on nodes, of the pod's volumes and allocated claims: of each member one term must
    match. They bound where the pod may run but, as upstream, not the domains that its topology spread counts."""
    unschedulable: str = ""
    """Why no node can take the pod for now, for people; such a pod is served by no plan, with this reason."""
    preferred_nodes: tuple[PreferredNodes, ...] = ()
    preferred_pods: tuple[PreferredPods, ...] = ()
    preferred_domains: tuple[PreferredDomain, ...] = ()
    preferences_left_out: str = ""
    """Why its preferences are not planned with, as if it had given them up, for people; empty where they are."""
    claims: tuple[DeviceClaim, ...] = ()
    """Devices that the pod needs of its node; claims that are allocated already take nothing more."""
    shared_volumes: tuple[SharedVolume, ...] = ()
    """Sorted. Volumes that other pods use, too: `requests` counts each, and its node attaches it once for all of
    them."""
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)
    """Specs are looked up some dozens of times in a plan, and may have hundreds of terms."""

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(_parts_of(self)))
        return self._hash or 0

    def __reduce__(self) -> tuple[object, ...]:
        """Without the hash, which is another one in another process."""
        return PodSpec, _parts_of(self)


_parts_of = attrgetter(*(each.name for each in fields(PodSpec) if each.compare))
"""All that is compared of a spec, in one call."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """`count` pods of one spec that share priority, age and gang."""

    name: str
    """An example for people, `namespace/name`."""
    spec: PodSpec
    count: int
    priority: int = 0
    waiting_seconds: int = 0
    """How long these pods have been pending; of two equal claims the longer wait is served first."""
    gang: str | None = None
    """Pod sets of one gang are served together: all pods of all of them, or none."""
    placeholder: bool = False
    """A pod of the resource slack: placed only after every real pod, and counted apart."""


UNLIMITED_SIZE = 10**9
"""The maximum size of a node group that has none; the largest count that planning takes."""


@dataclass(frozen=True, slots=True)
class NewDomains:
    """Nodes of a group that are ordered together come in a topology domain of their own, such as a placement group; or
    are hoped to come in one, which is known once they have booted."""

    keys: tuple[str, ...]
    """Topology keys of which these nodes share a value that no other node has. They are no labels of the group."""
    most_nodes: int = UNLIMITED_SIZE
    """What a domain has room for."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A set of identical nodes that can grow from `target_size` to `max_size`."""

    id: str
    allocatable: Resources
    """What pods may use of one node, `pods` included."""
    price_usd_per_hour: float
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    capacity: Resources = field(default_factory=dict)
    """What one node counts against limits; where empty, `allocatable` is taken."""
    min_size: int = 0
    max_size: int = UNLIMITED_SIZE
    target_size: int = 0
    weight: int = 0
    """The provisioner's: 1-100, 0 where it has none. Higher is preferred strictly; equal weights are one tier."""
    provisioner: str = ""
    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""
    devices: tuple[Devices, ...] = ()
    """Of a new node."""
    post_registration_labels: frozenset[str] = frozenset()
    """Keys of those of `labels` that a node gets only after it has joined the cluster. To a plan they are as good as
    there."""
    new_domains: NewDomains | None = None
    """What nodes that are ordered together share; None where nothing is known of it."""
    shared_fate: str = ""
    """The topology key of which all nodes with one value are replaced together, where one of them must go that a gang
    needs which asks for one domain; empty where only that one is."""
    spares: int = 0
    """Nodes without pods that come with those that a plan opens in a topology domain for a gang which asks for one, as
    far as there is room for them."""

    def labels_in(self, domain: str) -> Labels:
        """Return the labels of nodes that begin this domain, of its name or of what stands for it; those of the group
        where it is empty, or the group begins none."""
        keys = self.new_domains.keys if domain and self.new_domains is not None else ()
        return {**self.labels, **dict.fromkeys(keys, domain)}

    @property
    def counted_capacity(self) -> Resources:
        """What one node counts against limits: its capacity and itself, under `nodes`."""
        return {**(self.capacity or self.allocatable), NODES: 1}


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper bound on what some node groups may have together: a provisioner's limits, or the cluster's.

    `maxima` and `used` are in the resources' units, `nodes` among them. `used` is what stands already, target sizes
    of the groups included.
    """

    name: str
    maxima: Resources
    used: Resources = field(default_factory=dict)
    node_groups: frozenset[str] | None = None
    """The groups it bounds, None for all. Ids that a problem does not have are passed over, so that a part of a fleet
    can be planned under the limits of the whole."""
    selector: tuple[Requirement, ...] = ()
    """Conditions on a node's labels: of groups that a problem does not have yet, those that meet them all are bounded,
    too, once it has them."""

    def counted(self, group: NodeGroup) -> Resources:
        """Return what one node of the group counts against the limit; nothing where the limit does not bound it."""
        return group.counted_capacity if self.node_groups is None or group.id in self.node_groups else {}


@dataclass(frozen=True, slots=True)
class PossibleGroups:
    """Node groups that a problem does not have, and what it takes to have them: nothing is planned on them. Reasons
    name them, and what would serve pods is tried with them."""

    subject: str
    """What would have to change: the offering, the provisioner."""
    reason: str
    """Why they are not there, for people: "backed off after a shortage until 2026-11-29T01:00:00Z"."""
    advice: str
    """The change that it takes, in the imperative."""
    node_groups: tuple[NodeGroup, ...] = field(hash=False)
    limits: tuple[str, ...] = ()
    """The limits that would count them, by name; others count them where they name their ids, select their labels, or
    count all."""


@dataclass(frozen=True, slots=True)
class RunningPods:
    """Pods on a node that stands: what constraints between pods see of them. Their requests are in `Node.free`."""

    spec: PodSpec
    count: int = 1
    ending: bool = False
    """Whether they are being deleted: affinity and anti-affinity see them as long as they are there, topology spread
    does not."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that stands or is coming, with what is still free on it (`pods` included)."""

    name: str
    free: Resources
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    running: tuple[RunningPods, ...] = ()
    allocatable: Resources = field(default_factory=dict)
    """What it has in all, by which the kube-scheduler scores it; where empty, what is free is taken. A plan does not
    depend on it, its realisation does."""
    devices: tuple[Devices, ...] = ()
    """Those that no pod has."""
    volumes: frozenset[SharedVolume] = frozenset()
    """Those that its pods use: another pod that uses one takes no further attachment for it."""
    ready: bool = True
    """Of one that is not Ready `free` has no `pods`: its domains are there, and what runs on it counts."""
