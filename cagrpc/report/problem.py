"""What stands as a question to the planner: the pods of the nodes that could be others, and the node groups that these
could be of. The question is asked in `ladder`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cagrpc.cluster.documents import Described
from cagrpc.cluster.quotas import quota_limits
from cagrpc.cluster.state import PodRef
from cagrpc.fleet.model import PodKey
from cagrpc.fleet.prices import NodePlace
from cagrpc.offline.inputs import ReadInputs, problem_of, with_nodes
from cagrpc.report.model import KeptBecause
from cagrpc.report.standing import ReportedNode, StandingShape, as_they_stand, shapes, standing_nodes, texts_of
from solver import Plan, Problem
from solver.model import Limit, NodeGroup, PodSet


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

    def workload_of(self, pod_set: str) -> str:
        """Return the namespace and name that people know a pod set by: its controller's, or its own."""
        pods = self.pods.get(pod_set, ())
        return name_of(pods[0]) if pods else pod_set

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
class ReadCluster:
    """A cluster that was read, and the shapes of its nodes."""

    read: ReadInputs
    nodes: tuple[ReportedNode, ...]
    shapes: tuple[StandingShape, ...]
    packed: bool
    """Whether it is known which pods are on which nodes."""

    @classmethod
    def of(cls, read: ReadInputs, *, packed: bool = True) -> Self:
        """Return the cluster that was read."""
        nodes = standing_nodes(read.found, read.prices)
        return cls(read, nodes, shapes(nodes, texts_of(read.reader)), packed)

    def groups(self) -> tuple[NodeGroup, ...]:
        """Return the node groups that may be used, at the prices of the table."""
        if self.read.expanded is None:
            return tuple(each.group for each in self.shapes)
        groups = self.read.expanded.groups
        prices = (self.read.prices.overrides(NodePlace.of_group(of)) for of in groups)
        priced = zip(groups, prices, strict=True)
        return tuple(each if price is None else replace(each, price_usd_per_hour=price) for each, price in priced)

    def limits(self, kept: AbstractSet[str]) -> tuple[Limit, ...]:
        """Return the limits, CapacityQuotas too, with what kept nodes take of them."""
        expanded = self.read.expanded
        standing = [each.seen for each in self.nodes if each.name in kept]
        own = () if expanded is None else with_nodes(expanded.limits, expanded.groups, standing)
        return own + quota_limits(self.read.found.state.capacity_quotas, self.groups(), standing)

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


def name_of(pod: PodRef) -> str:
    """Return the namespace and name that people know a pod by: its controller's, or its own."""
    return f"{pod.namespace}/{pod.workload.rpartition('/')[2] or pod.name}"


def question(cluster: ReadCluster, kept: Mapping[str, KeptBecause]) -> RepackingQuestion:
    """Return the problem of all pods of nodes that are not kept."""
    found, tables = cluster.read.reader.drained(kept.keys()), cluster.read.tables
    problem = _problem(found, cluster.groups(), cluster.limits(kept.keys()), tables)
    empty = {each.name for each in cluster.nodes if cluster.packed and not each.movable}
    standing = _problem(found, as_they_stand(cluster.shapes, kept.keys() | empty), (), tables)
    pods = {each.pod_set.name: each.pods for each in found.state.waiting}
    return RepackingQuestion(problem, standing, kept, found.warnings, pods, cluster.read.reader.node_of())


def _problem(
    found: Described, groups: Sequence[NodeGroup], limits: Sequence[Limit], tables: Sequence[PodSet]
) -> Problem:
    """Return the problem of pods without their age, which decides nothing where all are served, beside kept nodes:
    other pods see those on them, and nothing comes to them."""
    problem = problem_of(found, groups, limits, tables)
    return replace(
        problem,
        pod_sets=tuple(replace(each, waiting_seconds=0) for each in problem.pod_sets),
        nodes=tuple(replace(each, free=dict.fromkeys(each.free, 0), devices=()) for each in problem.nodes),
    )
