"""What stands as a question to the planner: the pods of the nodes that could be others, and the node groups that these
could be of. The files' reader of `cagrpc plan` reads them, so that all means the same. The question is asked in
`ladder`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.matching import NodeMatching
from cagrpc.api.devices.objects import Device
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.cluster.state import PodRef
from cagrpc.config.groups import Expanded
from cagrpc.errors import InvalidInput
from cagrpc.offline.inputs import problem_of
from cagrpc.offline.live import BUDGET_KIND
from cagrpc.offline.reduced import PodTemplate, RunningPod
from cagrpc.report.prices import PriceList
from cagrpc.report.sources import Objects
from cagrpc.report.standing import ReportedNode, StandingShape, as_they_stand
from solver import Plan, Problem
from solver.model import NODES, Limit, Node, NodeGroup, PodSet

_NUMBER = "~"
"""Comes between a workload's name and a number of ours; no name of Kubernetes has it."""
NO_GANGS = "report.cagrpc.io/no-gang"
"""A label that no pod has: pods that run need not come together any more."""
_NOT_PLANNED = (
    "Pod", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job", "CronJob", "PodTemplate",
    "PodGroup", "ProvisioningRequest", "VolumeAttachment", BUDGET_KIND,
)  # fmt: skip
"""Kinds that say which pods should be, where it is known which are."""


class KeptBecause(StrEnum):
    """Why a node is left out of the comparison, with its pods."""

    NO_PRICE = "no price"
    CONTROL_PLANE = "control plane"
    OTHER_SCHEDULER = "pods of another scheduler"
    NO_GROUP = "pods that no node group may or can take"


@dataclass(frozen=True, slots=True)
class RepackingQuestion:
    """The pods of nodes that are not kept, and the node groups for them."""

    problem: Problem
    """With the node groups that may be used, their weights and limits."""
    standing: Problem
    """The same pods on nodes of the shapes that stand, at most as many as stand with pods."""
    kept: Mapping[str, KeptBecause]
    warnings: tuple[str, ...]
    devices: NodeMatching = field(compare=False)
    """What devices are to the pods, with those of kept nodes' pods alone taken."""
    pods: Mapping[str, tuple[RunningPod, ...]] = field(default_factory=dict, repr=False)
    """The pods of a pod set, by its name."""

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
            nodes.update(pod.node for pod in found)
        return frozenset(nodes)


@dataclass(frozen=True, slots=True)
class Offered:
    """Which node groups may be used, and what is known of new nodes."""

    expanded: Expanded | None
    """Of provisioners; None for the shapes that stand."""
    prices: PriceList
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    """By node group, as configured."""
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS
    gang_label: str = ""
    now_seconds: float = 0.0

    def groups(self, shapes: Sequence[StandingShape]) -> tuple[NodeGroup, ...]:
        if self.expanded is None:
            return tuple(each.group for each in shapes)
        found = ((each, self._table_price(each)) for each in self.expanded.groups)
        return tuple(each if price is None else replace(each, price_usd_per_hour=price) for each, price in found)

    def _table_price(self, group: NodeGroup) -> float | None:
        return self.prices.overrides(group.instance_type, group.zone, group.capacity_type)

    def limits(self, nodes: Sequence[ReportedNode], kept: AbstractSet[str]) -> tuple[Limit, ...]:
        """Return the limits, with what kept nodes take of them."""
        if self.expanded is None:
            return ()
        pools = {each.id: each.provisioner for each in self.expanded.groups}
        found = []
        for limit in self.expanded.limits:
            mine = {pools.get(each) for each in limit.node_groups} if limit.node_groups is not None else None
            used = Counter(limit.used)
            for node in nodes:
                if node.name in kept and (mine is None or node.pool in mine):
                    used.update({**node.allocatable, NODES: 1})
            found.append(replace(limit, used=dict(used)))
        return tuple(found)


def first_kept(nodes: Sequence[ReportedNode], schedulers: AbstractSet[str]) -> dict[str, KeptBecause]:
    """Return the nodes that are left out before anything is planned."""
    found = {}
    for node in nodes:
        if node.price_usd_per_hour is None:
            found[node.name] = KeptBecause.NO_PRICE
        elif node.control_plane:
            found[node.name] = KeptBecause.CONTROL_PLANE
        elif any(not each.overhead and each.scheduler not in schedulers for each in node.pods):
            found[node.name] = KeptBecause.OTHER_SCHEDULER
    return found


def question(
    objects: Objects,
    nodes: Sequence[ReportedNode],
    shapes: Sequence[StandingShape],
    offered: Offered,
    kept: Mapping[str, KeptBecause],
) -> RepackingQuestion:
    """Return the problem of all pods of nodes that are not kept. Raises InvalidInput with every object that cannot be
    read."""
    reader = DocumentReader(offered.now_seconds, NO_GANGS if objects.packed else offered.gang_label, offered.schedulers)
    workloads: dict[str, tuple[RunningPod, ...]] = {}
    reader.documents += objects.nodes
    if objects.packed and objects.pods:
        reader.documents += _documents(objects, kept, workloads)
    else:
        reader.documents += (each for each in objects.others if each.kind != BUDGET_KIND)
    found = reader.read(offered.devices, gone={each.name for each in nodes} - kept.keys())
    if reader.problems:
        raise InvalidInput("\n".join(dict.fromkeys(reader.problems)))
    limits = offered.limits(nodes, kept.keys())
    problem = _problem(found, offered.groups(shapes), limits, objects.pod_sets)
    empty = {each.name for each in nodes if objects.packed and not each.movable}
    standing = _problem(found, as_they_stand(shapes, kept.keys() | empty), (), objects.pod_sets)
    pods = {each.pod_set.name: tuple(_running(each.pods, workloads)) for each in found.state.waiting}
    return RepackingQuestion(problem, standing, kept, found.warnings, found.state.devices, pods)


def _running(pods: Iterable[PodRef], workloads: Mapping[str, tuple[RunningPod, ...]]) -> Iterator[RunningPod]:
    for name in dict.fromkeys(f"{each.namespace}/{each.name}" for each in pods):
        yield from workloads.get(name, ())


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


def _documents(
    objects: Objects, kept: Mapping[str, KeptBecause], repacked: dict[str, tuple[RunningPod, ...]]
) -> Iterator[ManifestDocument]:
    """Yield what the reader of files is given beside nodes: pods of kept nodes, all other pods as if they had no node,
    and what these refer to. `repacked` gets the latter, by the name of their workload."""
    stays = {(each.template.namespace, each.name) for each in objects.pods if each.node in kept}
    for document in objects.others:
        if document.kind == "ResourceClaim":
            yield _free_again(document, stays)
        elif document.kind not in _NOT_PLANNED:
            yield document
    alike: defaultdict[PodTemplate, list[RunningPod]] = defaultdict(list)
    for pod in objects.pods:
        if pod.node in kept:
            yield pod_document(pod, pod.node)
        elif not pod.template.overhead:
            alike[pod.template].append(pod)
    for number, (template, pods) in enumerate(alike.items()):
        if template.claiming:
            for pod in pods:
                repacked[f"{template.namespace}/{pod.name}"] = (pod,)
                yield pod_document(pod, "")
            continue
        name = f"{template.owner[1] or pods[0].name}{_NUMBER}{number}"
        repacked[f"{template.namespace}/{name}"] = tuple(pods)
        metadata = {"namespace": template.namespace, "name": name}
        spec = {"replicas": len(pods), "template": template.body}
        yield ManifestDocument(name, {"kind": "ReplicaSet", "metadata": metadata, "spec": spec})
    yield from _daemon_sets(objects)


def pod_document(pod: RunningPod, node: str) -> ManifestDocument:
    """Return the pod, on a node or on none."""
    body = pod.template.body
    metadata = {**body["metadata"], "name": pod.name, "uid": pod.uid or f"{pod.template.namespace}/{pod.name}"}
    spec = {**body["spec"], "nodeName": node} if node else body["spec"]
    place = f"Pod {pod.template.namespace}/{pod.name}"
    return ManifestDocument(place, {"kind": "Pod", "metadata": metadata, "spec": spec, "status": pod.status})


def _daemon_sets(objects: Objects) -> Iterator[ManifestDocument]:
    """Yield the DaemonSets that are known by their pods alone."""
    known = {each.identity for each in objects.others if each.kind == "DaemonSet"}
    for pod in objects.pods:
        template = pod.template
        identity = ("DaemonSet", template.namespace, template.owner[1])
        if template.daemon and identity not in known:
            known.add(identity)
            metadata = {"namespace": template.namespace, "name": template.owner[1]}
            body = {"kind": "DaemonSet", "metadata": metadata, "spec": {"template": template.body}}
            yield ManifestDocument(f"DaemonSet {'/'.join(identity[1:])}", body)


def _free_again(claim: ManifestDocument, stays: AbstractSet[tuple[str, str]]) -> ManifestDocument:
    """Return a ResourceClaim without its devices, unless a pod of a kept node has it."""
    status = claim.body.get("status")
    if not isinstance(status, Mapping) or not status.get("allocation"):
        return claim
    holders = status.get("reservedFor") or ()
    if any(isinstance(each, Mapping) and (claim.namespace, str(each.get("name"))) in stays for each in holders):
        return claim
    return ManifestDocument(claim.place, {key: value for key, value in claim.body.items() if key != "status"})
