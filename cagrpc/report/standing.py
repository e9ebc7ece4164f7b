"""What stands: nodes with their price and what runs on them, and the shapes that they have. A shape is a node group of
equal nodes, by what planning reads of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.api.core.movability import DO_NOT_DISRUPT
from cagrpc.api.core.nodes import ARCH, INSTANCE_TYPE, OS, READY, UNSCHEDULABLE, ZONE, facts_of_document
from cagrpc.api.core.resources import mapping, members
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US
from cagrpc.cluster.state import NodeCondition
from cagrpc.controllers.consolidation.question import DISRUPTED_BY_KARPENTER
from cagrpc.controllers.scale_down.known import TO_BE_DELETED
from cagrpc.controllers.settings import DEFAULT_INTERRUPTION_TAINTS
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import CAPACITY_TYPE
from cagrpc.offline.reduced import PodTemplate
from cagrpc.report.prices import PriceList
from cagrpc.report.sources import Objects
from solver.model import HOSTNAME, PODS, UNLIMITED_SIZE, NodeGroup, Resources, Taint

_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_ZONES = (ZONE, "failure-domain.beta.kubernetes.io/zone")
_TYPES = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")
_POOLS = (
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "kops.k8s.io/instancegroup",
    "cluster.x-k8s.io/deployment-name",
)
"""Labels with the provisioner, NodePool or node pool of a node."""
_CAPACITY_TYPES: Mapping[str, Mapping[str, str]] = {
    "eks.amazonaws.com/capacityType": {"SPOT": "spot", "ON_DEMAND": "on-demand", "CAPACITY_BLOCK": "reserved"},
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-preemptible": {"true": "spot"},
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on-demand"},
    "node.kubernetes.io/lifecycle": {"spot": "spot", "on-demand": "on-demand"},
}
"""How clouds say what Karpenter's label does."""
_PASSING = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupt",
    *DEFAULT_INTERRUPTION_TAINTS,
)
"""How taints begin that a node has for a while."""
_GOING = frozenset({TO_BE_DELETED, DISRUPTED_BY_KARPENTER})
"""Keys of taints of a node that is being taken away."""


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """A node, and the pods on it by template."""

    name: str
    pool: str
    """The provisioner, NodePool or node pool; empty where it has none."""
    instance_type: str
    zone: str
    capacity_type: str
    price_usd_per_hour: float | None
    allocatable: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    pods: Mapping[PodTemplate, int]
    control_plane: bool = False
    ready: bool = True
    """As far as is known."""
    do_not_disrupt: bool = False
    """Whether an annotation of CA's or Karpenter's keeps it."""
    conditions: tuple[NodeCondition, ...] = ()
    created_at_seconds: int = 0
    """Since the epoch; 0 where it is unknown."""

    @property
    def going(self) -> bool:
        """Whether somebody is taking it away, CA or Karpenter."""
        return any(each.key in _GOING for each in self.taints)

    @property
    def takes_pods(self) -> bool:
        """Whether the scheduler binds pods there that tolerate its taints for good."""
        return self.ready and not self.going and UNSCHEDULABLE not in self.taints

    @property
    def movable(self) -> int:
        """How many pods it has that did not come with it."""
        return sum(count for template, count in self.pods.items() if not template.overhead)

    def requested(self, *, overhead: bool) -> Resources:
        """Return what its pods ask for, those that came with it or the others."""
        found: Counter[str] = Counter()
        for template, count in self.pods.items():
            if template.overhead is overhead:
                found.update({name: count * amount for name, amount in template.requests.items()})
        return found


@dataclass(frozen=True, slots=True)
class StandingShape:
    """Nodes that planning cannot tell apart, as a node group without limit."""

    group: NodeGroup
    nodes: tuple[ReportedNode, ...]


def standing_nodes(objects: Objects, prices: PriceList) -> tuple[ReportedNode, ...]:
    """Return the nodes by name. Raises InvalidInput with every node that cannot be read."""
    pods: defaultdict[str, Counter[PodTemplate]] = defaultdict(Counter)
    for each in objects.pods:
        pods[each.node][each.template] += 1
    found, problems = {}, list[str]()
    for document in objects.nodes:
        here: list[str] = []
        facts = facts_of_document(document.body, "", here)
        if not facts.allocatable and not here:
            here.append("status.allocatable: missing; planning needs what pods may use of the node")
        problems.extend(f"{document.place}: {problem}" for problem in here)
        labels = dict(facts.labels)
        kind, zone, capacity = _first(labels, _TYPES), _first(labels, _ZONES), _capacity_type(labels)
        conditions = tuple(_conditions(document.body))
        roles = labels.keys() | {taint.key for taint in facts.taints}
        found[facts.name] = ReportedNode(
            facts.name,
            _first(labels, _POOLS),
            kind,
            zone,
            capacity,
            prices.of(kind, zone, capacity),
            facts.allocatable,
            labels,
            facts.taints,
            dict(pods.get(facts.name, {})),
            any(role in roles for role in _CONTROL_PLANE),
            all(each.status == "True" for each in conditions if each.type == READY),
            _is_kept(document.metadata),
            conditions,
            epoch_seconds(document.metadata.get("creationTimestamp")),
        )
    if problems:
        raise InvalidInput("\n".join(problems))
    return tuple(found[name] for name in sorted(found))


def _conditions(node: Mapping[str, Any]) -> Iterator[NodeCondition]:
    status = mapping(node, "status", "", [])
    for each, _ in members(status, "conditions", "", []):
        since = epoch_seconds(each.get("lastTransitionTime"))
        yield NodeCondition(str(each.get("type")), str(each.get("status")), since)


def _is_kept(metadata: Mapping[str, Any]) -> bool:
    """Return whether somebody has said that the node stays; what cagrpc says itself it takes back."""
    annotations = mapping(metadata, "annotations", "", [])
    by_others = annotations.get(SCALE_DOWN_DISABLED) == "true" and SCALE_DOWN_DISABLED_BY_US not in annotations
    return by_others or annotations.get(DO_NOT_DISRUPT) == "true"


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _capacity_type(labels: Mapping[str, str]) -> str:
    if labels.get(CAPACITY_TYPE):
        return labels[CAPACITY_TYPE]
    said = (values.get(labels.get(key, ""), "") for key, values in _CAPACITY_TYPES.items())
    return next(filter(None, said), "on-demand")


def shapes(nodes: Iterable[ReportedNode], selected: AbstractSet[str]) -> tuple[StandingShape, ...]:
    """Return the shapes of nodes that have a price. `selected` are texts of all objects: a label counts if its key is
    among them. Nodes of one instance type differ by a few mebibytes, so a shape has what the smallest of them has, less
    the pods that come with each of them without a DaemonSet."""
    alike: defaultdict[tuple[object, ...], list[ReportedNode]] = defaultdict(list)
    for node in nodes:
        if node.price_usd_per_hour is not None:
            alike[_key(node, selected)].append(node)
    named: Counter[str] = Counter()
    found = []
    for group in sorted(alike.values(), key=lambda each: each[0].name):
        first = group[0]
        name = "/".join(filter(None, (first.pool, first.instance_type or "node", first.zone, first.capacity_type)))
        named[name] += 1
        found.append(_shape(f"{name}#{named[name]}" if named[name] > 1 else name, tuple(group), selected))
    return tuple(found)


def _key(node: ReportedNode, selected: AbstractSet[str]) -> tuple[object, ...]:
    exact = () if node.instance_type else tuple(sorted(node.allocatable.items()))
    kinds = tuple(sorted(name for name, amount in node.allocatable.items() if amount))
    labels = tuple(sorted(_labels(node, selected).items()))
    return (
        node.pool, node.instance_type, node.zone, node.capacity_type, node.price_usd_per_hour, exact, kinds, labels,
        _taints(node),
    )  # fmt: skip


def _labels(node: ReportedNode, selected: AbstractSet[str]) -> dict[str, str]:
    always = (ARCH, OS, ZONE, INSTANCE_TYPE)
    return {key: value for key, value in node.labels.items() if key != HOSTNAME and (key in always or key in selected)}


def _taints(node: ReportedNode) -> tuple[Taint, ...]:
    return tuple(each for each in node.taints if not each.key.startswith(_PASSING))


def _shape(name: str, nodes: tuple[ReportedNode, ...], selected: AbstractSet[str]) -> StandingShape:
    first = nodes[0]
    smallest = {resource: min(each.allocatable.get(resource, 0) for each in nodes) for resource in first.allocatable}
    mirrors = [_mirrors(each) for each in nodes]
    always = {name: min(each.get(name, 0) for each in mirrors) for name in mirrors[0]}
    allocatable = {resource: max(0, amount - always.get(resource, 0)) for resource, amount in smallest.items()}
    assert first.price_usd_per_hour is not None
    group = NodeGroup(
        name,
        {PODS: 110, **allocatable},
        first.price_usd_per_hour,
        _labels(first, selected),
        _taints(first),
        smallest,
        max_size=UNLIMITED_SIZE,
        provisioner=first.pool,
        instance_type=first.instance_type,
        zone=first.zone,
        capacity_type=first.capacity_type,
    )
    return StandingShape(group, nodes)


def _mirrors(node: ReportedNode) -> Counter[str]:
    found: Counter[str] = Counter()
    for template, count in node.pods.items():
        if template.mirror:
            found.update({name: count * amount for name, amount in template.requests.items()})
    return found


def as_they_stand(found: Iterable[StandingShape], out: AbstractSet[str]) -> tuple[NodeGroup, ...]:
    """Return the shapes as node groups of at most the nodes that stand, but for those whose names are given."""
    free = ((each.group, sum(node.name not in out for node in each.nodes)) for each in found)
    return tuple(replace(group, max_size=count) for group, count in free if count)


def texts_of(objects: Objects) -> frozenset[str]:
    """Return every text in the objects that may name a label of nodes."""
    found: set[str] = set()
    templates = {each.template for each in objects.pods}
    for body in (*(each.body for each in templates), *(each.body for each in objects.others)):
        _collect(body, found)
    return frozenset(found)


def _collect(value: Any, into: set[str]) -> None:
    if isinstance(value, str):
        into.add(value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            into.add(str(key))
            _collect(each, into)
    elif isinstance(value, list):
        for each in value:
            _collect(each, into)
