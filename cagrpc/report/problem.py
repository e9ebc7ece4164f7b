"""What stands as a question to the planner: the pods of the nodes that could be others, and the node groups that these
could be of. The cluster is read as that of `cagrpc plan` is, so that all means the same. The question is asked in
`ladder`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.objects import Device
from cagrpc.api.encoding.json_documents import mapping, members
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.cluster.state import PodRef
from cagrpc.config.groups import Expanded
from cagrpc.errors import InvalidInput
from cagrpc.fleet.model import PodKey
from cagrpc.fleet.prices import NodePlace, PriceList
from cagrpc.offline.inputs import problem_of, with_nodes
from cagrpc.report.model import KeptBecause
from cagrpc.report.sources import Objects
from cagrpc.report.standing import ReportedNode, StandingShape, as_they_stand, shapes, standing_nodes, texts_of
from solver import Plan, Problem
from solver.model import Limit, Node, NodeGroup, PodSet

_NOT_PLANNED = (
    "Pod", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job", "CronJob", "JobSet",
    "PodTemplate", "PodGroup", "ProvisioningRequest", "ResourceQuota",
)  # fmt: skip
"""Kinds that say which pods should be, where it is known which are."""


@dataclass(frozen=True, slots=True)
class RepackingQuestion:
    """The pods of nodes that are not kept, and the node groups for them."""

    problem: Problem
    """With the node groups that may be used, their weights and limits."""
    standing: Problem
    """The same pods on nodes of the shapes that exist, at most as many as there are with pods."""
    kept: Mapping[str, KeptBecause]
    warnings: tuple[str, ...]
    pods: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict, repr=False)
    """The pods of a pod set, by its name."""
    node_of: Mapping[PodKey, str] = field(default_factory=dict, repr=False)
    """The node of each pod."""

    def nodes_of_unserved(self, plan: Plan) -> frozenset[str]:
        """Return nodes that hold the pods which the plan does not serve."""
        missing: Counter[Any] = Counter()
        for each in plan.unplaced:
            of = plan.pod_classes[each.pod_class]
            missing[of.spec, of.priority] += each.count
        nodes: set[str] = set()
        for pod_set in self.problem.pod_sets:
            key = pod_set.spec, pod_set.priority
            found = self.pods.get(pod_set.name, ())[: missing[key]]
            missing[key] -= len(found)
            nodes.update(self.node_of[pod.key] for pod in found if pod.key in self.node_of)
        return frozenset(nodes)


@dataclass(frozen=True, slots=True)
class Offered:
    """Which node groups may be used, and what is known of new nodes."""

    expanded: Expanded | None
    """Of provisioners; None for the shapes of existing nodes."""
    prices: PriceList
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    """By node group, as configured."""
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS
    gang_label: str = ""
    now_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """A cluster that was read, beside what it is offered."""

    objects: Objects
    reader: DocumentReader
    found: Described
    nodes: tuple[ReportedNode, ...]
    shapes: tuple[StandingShape, ...]
    offered: Offered

    @classmethod
    def read(cls, objects: Objects, offered: Offered) -> Self:
        """Return the cluster of these objects. Raises InvalidInput with everything that is wrong with them."""
        reader = _reader_of(objects, offered)
        found = reader.read(offered.devices)
        if reader.problems:
            raise InvalidInput("\n".join(dict.fromkeys(reader.problems)))
        nodes = standing_nodes(found, offered.prices)
        return cls(objects, reader, found, nodes, shapes(nodes, texts_of(objects)), offered)

    def groups(self) -> tuple[NodeGroup, ...]:
        """Return the node groups that may be used, at the prices of the table."""
        if self.offered.expanded is None:
            return tuple(each.group for each in self.shapes)
        found = ((each, self._table_price(each)) for each in self.offered.expanded.groups)
        return tuple(each if price is None else replace(each, price_usd_per_hour=price) for each, price in found)

    def _table_price(self, group: NodeGroup) -> float | None:
        return self.offered.prices.overrides(NodePlace(group.instance_type, group.zone, group.capacity_type))

    def limits(self, kept: AbstractSet[str]) -> tuple[Limit, ...]:
        """Return the limits, with what kept nodes take of them."""
        if self.offered.expanded is None:
            return ()
        standing = (each.seen.node for each in self.nodes if each.name in kept)
        return with_nodes(self.offered.expanded.limits, self.offered.expanded.groups, standing)

    def first_kept(self) -> dict[str, KeptBecause]:
        """Return the nodes that are left out before anything is planned."""
        found = {}
        for node in self.nodes:
            if node.price_usd_per_hour is None:
                found[node.name] = KeptBecause.NO_PRICE
            elif node.control_plane:
                found[node.name] = KeptBecause.CONTROL_PLANE
            elif node.other_scheduler:
                found[node.name] = KeptBecause.OTHER_SCHEDULER
        return found


def _reader_of(objects: Objects, offered: Offered) -> DocumentReader:
    """Return the reader of all objects. Where it is known which pods run, others that should are no part of it."""
    runs = objects.packed and bool(objects.bound)
    label, schedulers = offered.gang_label, offered.schedulers
    reader = DocumentReader(offered.now_seconds, label, schedulers, MovingRules(), objects.bound)
    reader.listed = objects.listed
    reader.documents += (each for each in objects.documents if not runs or each.kind not in _NOT_PLANNED)
    if runs:
        reader.documents += _daemon_sets(objects)
    return reader


def question(cluster: ReadCluster, kept: Mapping[str, KeptBecause]) -> RepackingQuestion:
    """Return the problem of all pods of nodes that are not kept."""
    found, tables = cluster.reader.drained(kept.keys()), cluster.objects.pod_sets
    problem = _problem(found, cluster.groups(), cluster.limits(kept.keys()), tables)
    empty = {each.name for each in cluster.nodes if cluster.objects.packed and not each.movable}
    standing = _problem(found, as_they_stand(cluster.shapes, kept.keys() | empty), (), tables)
    pods = {each.pod_set.name: each.pods for each in found.state.waiting}
    return RepackingQuestion(problem, standing, kept, found.warnings, pods, cluster.reader.node_of())


def _problem(
    found: Described, groups: Sequence[NodeGroup], limits: Sequence[Limit], tables: Sequence[PodSet]
) -> Problem:
    problem = problem_of(found, groups, limits, tables)
    return replace(problem, pod_sets=_with_counts(problem.pod_sets), nodes=tuple(map(_full, problem.nodes)))


def _with_counts(pod_sets: Sequence[PodSet]) -> tuple[PodSet, ...]:
    """Return the pod sets without their age, which decides nothing where all are served."""
    return tuple(replace(each, waiting_seconds=0) for each in pod_sets)


def _full(node: Node) -> Node:
    """Return a kept node: other pods see those on it, and nothing comes to it."""
    return replace(node, free=dict.fromkeys(node.free, 0), devices=())


def _daemon_sets(objects: Objects) -> Iterator[ManifestDocument]:
    """Yield the DaemonSets that are known by their pods alone."""
    known = {each.identity for each in objects.documents if each.kind == "DaemonSet"}
    for each in objects.bound.alike:
        pod = each.like
        owners = [of for of, _ in members(pod.metadata, "ownerReferences")]
        name = next((str(of.get("name")) for of in owners if of.get("kind") == "DaemonSet"), "")
        identity = ("DaemonSet", pod.namespace, name)
        if name and identity not in known:
            known.add(identity)
            metadata = {"namespace": pod.namespace, "name": name}
            labels = {"labels": pod.metadata.get("labels") or {}}
            spec = {"template": {"metadata": labels, "spec": _on_any_node(pod.spec)}}
            body = {"kind": "DaemonSet", "metadata": metadata, "spec": spec}
            yield ManifestDocument(f"DaemonSet {'/'.join(identity[1:])}", body)


def _on_any_node(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DaemonSet's pod without the name of its node, which the DaemonSet controller requires of it."""
    required_at = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = mapping(mapping(spec, "affinity"), "nodeAffinity")
    terms = [
        {"matchExpressions": each["matchExpressions"]}
        for each, _ in members(mapping(nodes, required_at), "nodeSelectorTerms")
        if each.get("matchExpressions")
    ]
    rest = {key: value for key, value in spec.items() if key not in ("affinity", "nodeName")}
    return {**rest, "affinity": {"nodeAffinity": {required_at: {"nodeSelectorTerms": terms}}}} if terms else rest
