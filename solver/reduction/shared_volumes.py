"""Volumes that several pods use: a node attaches each once for all of its pods, however many these are.

Rows, patterns and relaxations know only sums over pods. Here are problems of which these say the truth: one of which
every plan of the problem is a plan, and one whose plans are all plans of the problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from solver.model import PODS, Node, NodeGroup, PodSpec, Problem, Resources, SharedVolume
from solver.model.capacity import unshared

PARTS = 2520
"""Of one attachment: up to ten pods of a volume take equal parts of it."""
_TAKES_SHARED = " for volumes that pods share"


def scarce_attachments(problem: Problem) -> frozenset[str]:
    """Return the resources of volumes that pods share of which a place may have less than they would take, each by
    itself."""
    asked: Counter[str] = Counter()
    most: dict[str, int] = {}
    shared: set[str] = set()
    for pods in problem.pod_sets:
        if pods.spec.shared_volumes and not pods.spec.unschedulable:
            shared.update(resource for resource, _ in pods.spec.shared_volumes)
    for pods in problem.pod_sets if shared else ():
        for name, amount in pods.spec.requests if not pods.spec.unschedulable else ():
            if name in shared:
                asked[name] += pods.count * amount
                most[name] = max(most.get(name, 0), amount)
    rooms = [*(group.allocatable for group in problem.node_groups), *(node.free for node in problem.nodes)]
    return frozenset(
        name
        for name in shared
        if any(room.get(name, 0) < min(asked[name], most[name] * room.get(PODS, 0)) for room in rooms)
    )


def in_parts(problem: Problem, scarce: AbstractSet[str]) -> Problem:
    """Return the problem in which each pod of a volume takes its part of one attachment, and none where the volume is
    attached somewhere already: every plan of the problem is one of it."""
    if not scarce:
        return problem
    users: Counter[SharedVolume] = Counter()
    for pods in problem.pod_sets:
        for volume in pods.spec.shared_volumes:
            users[volume] += pods.count
    attached = frozenset[SharedVolume]().union(*(node.volumes for node in problem.nodes))

    def of_spec(spec: PodSpec) -> PodSpec:
        requests = dict(unshared(spec) if spec.shared_volumes else spec.requests)
        requests.pop(PODS, None)
        whole = {name: amount * PARTS if name in scarce else amount for name, amount in requests.items()}
        for volume in spec.shared_volumes:
            if volume[0] not in scarce:
                whole[volume[0]] += 1
            elif volume not in attached:
                whole[volume[0]] += PARTS // max(1, users[volume])
        return replace(spec, requests=_requests(whole))

    def of_room(room: Resources) -> Resources:
        return {name: amount * PARTS if name in scarce else amount for name, amount in room.items()}

    return _changed(problem, of_spec, of_room, lambda node: of_room(node.free))


def with_kept_attachments(problem: Problem, scarce: AbstractSet[str]) -> Problem:
    """Return the problem in which each node keeps an attachment for each of the volumes that pods share, and these take
    none: all its plans are plans of the problem."""
    volumes = {volume for pods in problem.pod_sets for volume in pods.spec.shared_volumes if volume[0] in scarce}

    def of_spec(spec: PodSpec) -> PodSpec:
        whole = dict(spec.requests)
        for resource, _ in spec.shared_volumes:
            if resource in scarce:
                whole[resource] -= 1
                whole[f"{resource}{_TAKES_SHARED}"] = 1
        return replace(spec, requests=_requests(whole))

    def less(room: Resources, there: AbstractSet[SharedVolume]) -> Resources:
        kept = Counter(resource for resource, _ in volumes - there)
        left = {name: max(0, amount - kept[name]) for name, amount in room.items()}
        taking = {f"{name}{_TAKES_SHARED}": room.get(PODS, 0) for name in scarce if room.get(name, 0) >= kept[name]}
        return {**left, **taking}

    return _changed(problem, of_spec, lambda room: less(room, frozenset()), lambda node: less(node.free, node.volumes))


def _requests(amounts: Resources) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _changed(
    problem: Problem,
    of_spec: Callable[[PodSpec], PodSpec],
    of_room: Callable[[Resources], Resources],
    of_node: Callable[[Node], Resources],
) -> Problem:
    known: dict[PodSpec, PodSpec] = {}

    def changed(spec: PodSpec) -> PodSpec:
        if spec not in known:
            known[spec] = of_spec(spec)
        return known[spec]

    def group_of(group: NodeGroup) -> NodeGroup:
        return replace(group, allocatable=of_room(group.allocatable), capacity=group.capacity or group.allocatable)

    return replace(
        problem,
        pod_sets=tuple(replace(each, spec=changed(each.spec)) for each in problem.pod_sets),
        node_groups=tuple(map(group_of, problem.node_groups)),
        nodes=tuple(replace(node, free=of_node(node)) for node in problem.nodes),
        daemon_sets=tuple(map(changed, problem.daemon_sets)),
    )
