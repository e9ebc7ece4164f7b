"""The least that consolidation could cost: bounds from the problem of packing anew everything that may move. And what a
pod is worth there, by which a node costs more than its pods are worth.

Each consolidation, however long, leaves a solution of that problem: pods are on nodes that stand, with the room that
these have, or on new ones. What a cluster may be in and new pods may not (constraints between pods broken since,
devices that nobody counts, sizes and limits exceeded) is left out, which only lowers the bound.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from solver.columns.pool import weighting
from solver.consolidation.cluster import Cluster
from solver.consolidation.model import StandingNode
from solver.integral.wide import WideModel, dominant_shares
from solver.model import Budget, Limit, Node, NodeGroup, PodSet, PodSpec, Problem, Resources, Taint
from solver.model.budget import RunningBudget
from solver.model.capacity import new_node, taken, with_nodes
from solver.model.eligibility import node_label_keys
from solver.model.objective import Goal, ObjectiveStage
from solver.planning.bounds import weights_of
from solver.planning.solve import solve
from solver.reduction.dominance import needed_kinds
from solver.reduction.node_columns import NodeColumns
from solver.reduction.objective import stages
from solver.reduction.reduce import reduce
from solver.reduction.reduced import MICROS, Floats
from solver.reduction.shared_volumes import in_parts, scarce_attachments


@dataclass(frozen=True)
class Repacking:
    """The problem of packing anew, and the nodes that stay in every case."""

    problem: Problem
    sunk: tuple[int, ...]
    """Nodes that are paid for whatever moves."""


def stripped(spec: PodSpec) -> PodSpec:
    """Return what of a spec holds for pods that run, too: resources, selectors, tolerations, volumes."""
    return PodSpec(
        spec.requests,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        node_terms=spec.node_terms,
        shared_volumes=spec.shared_volumes,
    )


def repacking(cluster: Cluster, *, everything: bool = False) -> Repacking:
    """Return the problem for the cluster as it is; with `everything` for one in which nothing is kept, but nodes of
    nobody's."""
    return _Packing(cluster, everything=everything).made()


class _Packing:
    def __init__(self, cluster: Cluster, *, everything: bool) -> None:
        self._cluster, self._everything = cluster, everything
        self._specs = [stripped(each.spec) for each in cluster.classes]
        self._keys = node_label_keys(self._specs)
        self._templates = {
            group.id: new_node(group, cluster.problem.daemon_sets).free for group in cluster.groups.values()
        }
        self._wanted: Counter[int] = Counter()
        self._nodes: list[Node] = []
        self._sunk: list[int] = []
        self._lost: Counter[str] = Counter()
        self._unlike: dict[object, tuple[NodeGroup, dict[str, int], int]] = {}
        """Nodes that are not like new ones of their group: as a group that can have so many."""
        self._columns = NodeColumns([self._as_asked(each) for each in cluster.problem.nodes])

    def made(self) -> Repacking:
        for number, standing in enumerate(self._cluster.problem.nodes):
            self._add(number, standing)
        wanted: Counter[PodSpec] = Counter()
        for k, count in self._wanted.items():
            wanted[self._specs[k]] += count
        sets = tuple(PodSet(f"class {n}", spec, count) for n, (spec, count) in enumerate(wanted.items()))
        unlike = tuple(
            self._group(group, f"{group.id}/standing-{number}", room, 0, count, 0)
            for number, (group, room, count) in enumerate(self._unlike.values())
        )
        varied: dict[str, list[str]] = defaultdict(list)
        for each, (group, _, _) in zip(unlike, self._unlike.values(), strict=True):
            varied[group.id].append(each.id)
        cluster, groups = self._cluster, []
        for group in cluster.groups.values():
            target = cluster.target[group.id]
            least = 0 if group.id in varied else cluster.least[group.id]
            most, stays = max(group.max_size, target), max(0, target - self._lost[group.id])
            groups.append(self._group(group, group.id, self._templates[group.id], least, most, stays))
        limits = tuple(_limit(cluster, limit, self._lost, varied) for limit in cluster.limits())
        return Repacking(Problem(sets, (*groups, *unlike), tuple(self._nodes), limits), tuple(self._sunk))

    def _add(self, number: int, standing: StandingNode) -> None:
        cluster, node = self._cluster, standing.node
        group = cluster.groups.get(standing.node_group)
        if group is None:
            moving: Mapping[int, int] = {}
        elif self._everything:
            moving = cluster.pods[number]
        elif standing.kept:
            moving = {}
        else:
            moving = {k: n for k, n in cluster.pods[number].items() if cluster.classes[k].gang not in cluster.frozen}
        labels, taints = self._columns.nodes[number].labels, self._columns.nodes[number].taints
        for k, count in moving.items():
            if self._columns.why_not(self._specs[k], number) is None:
                self._wanted[k] += count
        room = _room(cluster, number, moving)
        if group is not None and (self._everything or cluster.may_go(number)):
            self._lost[group.id] += 1
            if not self._like_new(group, room, labels, taints):
                self._collect(group, room, labels, taints)
            return
        if group is not None:
            self._sunk.append(number)
        if moving or standing.takes_pods:
            # A volume that pods share and that stays may be there for nothing, and counts so.
            there = node.volumes
            self._nodes.append(Node(node.name, room, labels, taints if moving else node.taints, volumes=there))

    def _as_asked(self, standing: StandingNode) -> Node:
        """Return the node with the labels that pods read and the taints that new nodes of its group have, too."""
        node, group = standing.node, self._cluster.groups.get(standing.node_group)
        labels = {key: node.labels[key] for key in sorted(self._keys) if key in node.labels}
        return Node(
            node.name, {}, labels, tuple(taint for taint in node.taints if group is None or taint in group.taints)
        )

    def _like_new(
        self, group: NodeGroup, room: Resources, labels: Mapping[str, str], taints: tuple[Taint, ...]
    ) -> bool:
        """Return whether the node has nothing that a new one of its group has not."""
        template = self._templates[group.id]
        return (
            all(amount <= template.get(name, 0) for name, amount in room.items())
            and all(group.labels.get(key) == labels.get(key) for key in self._keys)
            and taints == group.taints
        )

    def _collect(self, group: NodeGroup, room: Resources, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> None:
        """Count the node among those of its group with the same labels and taints, of which each is given the most
        that one of them has."""
        key = group.id, tuple(labels.items()), taints
        _, most, count = self._unlike.get(key, (group, {}, 0))
        most = {name: max(most.get(name, 0), room.get(name, 0)) for name in {*most, *room}}
        self._unlike[key] = replace(group, labels=labels, taints=taints), most, count + 1

    def _group(self, group: NodeGroup, name: str, room: Resources, least: int, most: int, target: int) -> NodeGroup:
        return replace(
            group,
            id=name,
            allocatable=room,
            capacity=group.capacity or group.allocatable,
            min_size=least,
            max_size=most,
            target_size=target,
            devices=(),
        )


def worth_micros(cluster: Cluster, packing: Repacking, budget: Budget) -> Floats:
    """Return what a pod of each class is worth, in millionths of $/h: what one more costs, weights being equal."""
    problem = packing.problem
    equal = replace(problem, node_groups=tuple(replace(group, weight=0, min_size=0) for group in problem.node_groups))
    values: dict[PodSpec, float] = {}
    if problem.pod_sets and problem.node_groups:
        running = RunningBudget(budget)
        in_part = in_parts(equal, scarce_attachments(equal))
        asked = {part.spec: pods.spec for pods, part in zip(equal.pod_sets, in_part.pod_sets, strict=True)}
        reduced = reduce(in_part)
        model = WideModel(reduced, needed_kinds(reduced), running)
        weights = weighting(reduced)
        fluid = model.weighed(weights_of(reduced, stages(reduced), weights), 1.0)
        # Where programs have many duals, that may be a price of leaving pods out: no pod is worth more than its share
        # of a node alone.
        new = np.flatnonzero(~reduced.existing)
        capped = np.minimum(fluid.pod_values, dominant_shares(reduced, new, weights.node_cost))
        values = {asked[demand.spec]: float(capped[demand.row]) for demand in reduced.demands}
    return np.array([values.get(stripped(each.spec), 0.0) for each in cluster.classes])


@dataclass(frozen=True)
class Least:
    """Proven bounds, in millionths of $/h."""

    total: int
    """On what all nodes of groups cost together."""
    by_weight: Mapping[int, int]
    """On what those of a weight cost where those of lower weights cost no more than they do."""


def least(cluster: Cluster, packing: Repacking, reached: Mapping[int, int], budget: Budget) -> Least:
    """Return bounds for a plan that leaves nodes that cost what is `reached`, by weight."""
    problem = packing.problem
    sunk: Counter[int] = Counter({group.weight: 0 for group in problem.node_groups})
    for number in packing.sunk:
        sunk[cluster.weight_of(number)] += cluster.micros_of(number)
    if not problem.pod_sets and not any(group.min_size for group in problem.node_groups):
        return Least(sunk.total(), sunk)
    by_weight = _by_weight(problem, sunk, reached, budget.part(0.5))
    equal = replace(problem, node_groups=tuple(replace(group, weight=0) for group in problem.node_groups))
    found = solve(equal, budget.part(0.5))
    # With pods left out there would be no bound on what serving them costs; the relaxation never leaves any out.
    certified = round(found.certificate.lower_bound_usd_per_hour * MICROS) if not found.unplaced else 0
    total = max(sunk.total() + certified, sum(by_weight.values()))
    if len(sunk) == 1:
        by_weight = dict.fromkeys(sunk, total)
    return Least(total, by_weight)


def _by_weight(problem: Problem, sunk: Mapping[int, int], reached: Mapping[int, int], budget: Budget) -> dict[int, int]:
    running = RunningBudget(budget)
    reduced = reduce(in_parts(problem, scarce_attachments(problem)))
    model = WideModel(reduced, needed_kinds(reduced), running)
    fixed: dict[ObjectiveStage, int] = {}
    found: dict[int, int] = {}
    for stage in stages(reduced):
        if stage.goal is Goal.COST:
            bound = model.minimise(stage, fixed, 1.0)
            fixed[stage] = max(0, reached.get(stage.key, 0) - sunk[stage.key])
            found[stage.key] = sunk[stage.key] + min(fixed[stage], math.ceil(bound * (1 - 1e-9) - 1e-3))
        elif stage.goal is Goal.UNSERVED:
            fixed[stage] = 0
    return found


def _room(cluster: Cluster, number: int, moving: Mapping[int, int]) -> dict[str, int]:
    """Return what is free on a node when these pods are gone, of what pods ask for."""
    gone = taken((cluster.classes[k].spec, count) for k, count in moving.items())
    room = zip(cluster.resources, cluster.free[number].tolist(), strict=True)
    return {name: amount for name, free in room if (amount := free + gone.get(name, 0)) > 0}


def _limit(cluster: Cluster, limit: Limit, lost: Mapping[str, int], members: Mapping[str, list[str]]) -> Limit:
    """Return the limit for what is opened anew. What exceeds it may stay."""
    bounded = limit.node_groups
    maxima = {name: max(most, limit.used.get(name, 0)) for name, most in limit.maxima.items()}
    names = None if bounded is None else frozenset({*bounded, *(n for g in bounded for n in members.get(g, ()))})
    less = with_nodes(limit, cluster.groups, {group_id: -count for group_id, count in lost.items()})
    return replace(less, maxima=maxima, node_groups=names)
