"""What stands: nodes with their price and what runs on them, and the shapes that they have. A shape is a node group of
equal nodes, by what planning reads of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc.api.core.nodes import ARCH, INSTANCE_TYPE, OS, ZONE
from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.cluster.node_info import Reservation
from cagrpc.cluster.state import ClusterNode, ClusterState, PodsOnNode
from cagrpc.controllers.settings import DEFAULT_INTERRUPTION_TAINTS
from cagrpc.fleet.prices import NodePlace, NodePrices, PriceList, place_of
from cagrpc.fleet.provisioners import pool_of
from solver.model import HOSTNAME, PODS, UNLIMITED_SIZE, Labels, NodeGroup, PodSpec, Resources, Taint

_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_PASSING = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupt",
    *DEFAULT_INTERRUPTION_TAINTS,
)
"""How taints begin that a node has for a while."""


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """A node, and the pods on it."""

    seen: ClusterNode
    here: PodsOnNode
    pool: str
    """The provisioner, NodePool or node pool; empty where it has none."""
    place: NodePlace
    price_usd_per_hour: float | None
    pause_pods: Sequence[Reservation] = ()
    mirrors: Resources = field(default_factory=dict)
    """What static pods on it ask for."""
    other_scheduler: bool = False
    """Whether it has pods that somebody else has bound than those that planning is for."""

    @property
    def name(self) -> str:
        return self.seen.node.name

    @property
    def allocatable(self) -> Resources:
        return self.seen.node.allocatable

    @property
    def control_plane(self) -> bool:
        keys = {each.key for each in self.seen.node.taints}
        return any(role in keys or role in self.seen.node.labels for role in _CONTROL_PLANE)

    @property
    def movable(self) -> int:
        """How many pods it has that did not come with it."""
        return len(self.here.reschedulable) + sum(each.count for each in self.pause_pods)

    def requested(self, *, overhead: bool) -> Resources:
        """Return what its pods ask for, those that came with it or the others."""
        counts: dict[int, tuple[PodSpec, int]] = {}  # of most pods the specs are the same object
        of = self.here.others if overhead else self.pause_pods
        for spec, count in (
            *((each.spec, each.count) for each in of),
            *((each.spec, 1) for each in self.here.reschedulable if not overhead),
        ):
            counts[id(spec)] = spec, counts.get(id(spec), (spec, 0))[1] + count
        found: Counter[str] = Counter()
        for spec, count in counts.values():
            found.update({name: count * amount for name, amount in (*spec.requests, (PODS, 1))})
        return found


@dataclass(frozen=True, slots=True)
class StandingShape:
    """Nodes that planning cannot tell apart, as a node group without limit."""

    group: NodeGroup
    nodes: tuple[ReportedNode, ...]


def standing_nodes(found: Described, prices: PriceList) -> tuple[ReportedNode, ...]:
    """Return the nodes by name, of a cluster that was read with who is bound."""
    return tuple(
        ReportedNode(
            each,
            found.state.bound.get(each.node.name, PodsOnNode()),
            pool_of(each.node.labels),
            place := place_of(each.node.labels),
            prices.of(place),
            found.pause_pods.get(each.node.name, ()),
            found.mirrors.get(each.node.name, {}),
            each.node.name in found.other_schedulers,
        )
        for each in found.state.nodes
    )


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
        kind, zone, capacity_type = first.place
        name = "/".join(filter(None, (first.pool, kind or "node", zone, capacity_type)))
        named[name] += 1
        found.append(_shape(f"{name}#{named[name]}" if named[name] > 1 else name, tuple(group), selected))
    return tuple(found)


def groups_that_stand(state: ClusterState, prices: NodePrices) -> tuple[tuple[NodeGroup, ...], frozenset[str]]:
    """Return the node groups that the nodes of a cluster show, without limit, and which of them have no price that is
    known. A label counts if all nodes of one pool, instance type, zone and capacity type have it alike."""
    nodes, estimated = [], set()
    for each in state.nodes:
        place, pool = place_of(each.node.labels), pool_of(each.node.labels)
        price = prices.of(place, each.node.allocatable)
        nodes.append(ReportedNode(each, PodsOnNode(), pool, place, price.usd_per_hour))
        if price.estimated:
            estimated.add((pool, place))
    workers = [each for each in nodes if not each.control_plane]
    found = shapes(workers, _shared_labels(workers))
    unpriced = (each.group.id for each in found if (each.nodes[0].pool, each.nodes[0].place) in estimated)
    return tuple(each.group for each in found), frozenset(unpriced)


def _shared_labels(nodes: Iterable[ReportedNode]) -> frozenset[str]:
    """Return the keys of labels that never differ between nodes of one pool and place."""
    of: defaultdict[tuple[str, NodePlace], list[Labels]] = defaultdict(list)
    for node in nodes:
        of[node.pool, node.place].append(node.seen.node.labels)
    keys = {key for some in of.values() for labels in some for key in labels}
    return frozenset(key for key in keys if all(len({each.get(key) for each in some}) == 1 for some in of.values()))


def _key(node: ReportedNode, selected: AbstractSet[str]) -> tuple[object, ...]:
    exact = () if node.place.instance_type else tuple(sorted(node.allocatable.items()))
    kinds = tuple(sorted(name for name, amount in node.allocatable.items() if amount))
    labels = tuple(sorted(_labels(node, selected).items()))
    return node.pool, node.place, node.price_usd_per_hour, exact, kinds, labels, _taints(node)


def _labels(node: ReportedNode, selected: AbstractSet[str]) -> dict[str, str]:
    always = (ARCH, OS, ZONE, INSTANCE_TYPE)
    labels = node.seen.node.labels.items()
    return {key: value for key, value in labels if key != HOSTNAME and (key in always or key in selected)}


def _taints(node: ReportedNode) -> tuple[Taint, ...]:
    return tuple(each for each in node.seen.node.taints if not each.key.startswith(_PASSING))


def _shape(name: str, nodes: tuple[ReportedNode, ...], selected: AbstractSet[str]) -> StandingShape:
    first = nodes[0]
    smallest = {resource: min(each.allocatable.get(resource, 0) for each in nodes) for resource in first.allocatable}
    always = {name: min(each.mirrors.get(name, 0) for each in nodes) for name in first.mirrors}
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
        **first.place._asdict(),
    )
    return StandingShape(group, nodes)


def as_they_stand(found: Iterable[StandingShape], out: AbstractSet[str]) -> tuple[NodeGroup, ...]:
    """Return the shapes as node groups of at most the existing nodes, but for those whose names are given."""
    free = ((each.group, sum(node.name not in out for node in each.nodes)) for each in found)
    return tuple(replace(group, max_size=count) for group, count in free if count)


def texts_of(read: DocumentReader) -> frozenset[str]:
    """Return every text in the objects that were read, but for nodes themselves, that may name a label of nodes."""
    found: set[str] = set()
    others = (each for each in read.documents if each.kind != "Node")
    for document in (*(each.like for each in read.bound.alike), *others):
        _collect(document.body, found)
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
