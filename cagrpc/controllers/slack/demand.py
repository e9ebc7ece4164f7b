"""The input of `solver.slack` from the state of a cluster: the targets in force now with their mirrors, and the shapes
of existing and possible nodes. Pure, except for a cache of nodes. The amounts are `solver.slack`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.api.core.nodes import group_labels
from cagrpc.api.core.volume_binding import without_attachments, without_volumes
from cagrpc.cluster.state import ClusterState, SlackSeen
from cagrpc.controllers.slack.model import MIRRORS, SlackSettings, TargetSettings
from solver.model import Labels, Node, NodeGroup, PodSpec, Resources, Taint
from solver.model.capacity import new_node
from solver.model.eligibility import node_label_keys
from solver.slack.model import Copies, NodeShape, SlackTarget

_Signature = tuple[tuple[str | None, ...], tuple[Taint, ...], tuple[tuple[str, int], ...]]
"""What distinguishes nodes: the values of the labels that any pod selects by, taints, allocatable."""


def targets(settings: SlackSettings, seen: SlackSeen, now_seconds: float) -> tuple[SlackTarget, ...]:
    """Return the targets in force at a time (since the epoch)."""
    mirrors: dict[str, list[Copies]] = {each.name: [] for each in settings.targets}
    for each in _within_shares(settings, seen):
        target = _target_of(each, settings.targets)
        mirrors.setdefault(target, []).append(each)
    found = [each.at(now_seconds, tuple(mirrors[each.name])) for each in settings.targets]
    if MIRRORS in mirrors:
        found.append(SlackTarget(MIRRORS, mirrors=tuple(mirrors[MIRRORS])))
    return tuple(found)


def over_share(settings: SlackSettings, seen: SlackSeen) -> tuple[str, ...]:
    """Return a sentence for each namespace with more mirrored pods than `mirrors_per_namespace`."""
    most = settings.mirrors_per_namespace
    asked: Counter[str] = Counter()
    for each in seen.mirrors:
        asked[each.namespace] += each.count
    mirrored = {each.name: each.count for each in _within_shares(settings, seen)}
    short = {each.namespace: each for each in reversed(seen.mirrors) if mirrored.get(each.name, 0) < each.count}
    return tuple(
        f"namespace {namespace}: capacity is reserved for {most} of the {asked[namespace]} more pods that its workloads"
        f" ask for (slack.mirrors_per_namespace); {first.name} is the first of which it is not for all"
        for namespace, first in sorted(short.items())
    )


def _within_shares(settings: SlackSettings, seen: SlackSeen) -> Iterator[Copies]:
    """Yield mirrors in the order of names, with at most `mirrors_per_namespace` pods of each namespace."""
    left: dict[str, int] = {}
    for each in seen.mirrors:
        quota = left.get(each.namespace, settings.mirrors_per_namespace)
        count = min(each.count, quota)
        left[each.namespace] = quota - count
        if count:
            yield each if count == each.count else replace(each, count=count)


def _target_of(mirror: Copies, of: Sequence[TargetSettings]) -> str:
    """Return the target that a mirror counts for: the narrowest that covers it. One of a provisioner covers only pods
    that select its nodes; others may start on any node."""
    asks = set(mirror.spec.node_selector)
    covering = [
        each for each in of if each.namespace in (None, mirror.namespace) and asks.issuperset(each.node_selector)
    ]
    if not covering:
        return MIRRORS
    return max(covering, key=lambda each: (len(each.node_selector), bool(each.namespace))).name


class ShapesOfNodes:
    """Nodes by shape, with a cache of each node's signature for as long as the node does not change."""

    def __init__(self) -> None:
        self._asked: tuple[tuple[str, ...], tuple[PodSpec, ...]] = ((), ())
        self._cached: dict[int, tuple[Labels, tuple[Taint, ...], Resources, _Signature]] = {}
        self._rooms: dict[_Signature, Mapping[str, int]] = {}

    def of(
        self, nodes: Iterable[Node], groups: Iterable[NodeGroup], state: ClusterState, targets: Iterable[SlackTarget]
    ) -> tuple[NodeShape, ...]:
        """Return the shapes of existing nodes and, with count 0, of groups that may grow."""
        asked = tuple(sorted(_keys_asked(state, targets))), state.daemon_sets
        if asked != self._asked:
            self._asked, self._cached, self._rooms = asked, {}, {}
        before, self._cached = self._cached, {}
        counts: Counter[_Signature] = Counter()
        for node in nodes:
            counts[self._signature(before, node.labels, node.taints, node.allocatable)] += 1
        for group in groups:
            counts[self._signature(before, group.labels, group.taints, group.allocatable, group)] += 0
        self._rooms = {each: self._rooms.get(each) or self._room(each) for each in counts}
        return tuple(
            NodeShape(dict(each[2]), count, self._labels(each), each[1], self._rooms[each])
            for each, count in counts.items()
        )

    def _signature(
        self,
        before: Mapping[int, tuple[Labels, tuple[Taint, ...], Resources, _Signature]],
        labels: Labels,
        taints: tuple[Taint, ...],
        allocatable: Resources,
        group: NodeGroup | None = None,
    ) -> _Signature:
        known = before.get(id(labels))
        if known is None or known[0] is not labels or known[1] is not taints or known[2] is not allocatable:
            whole = labels if group is None else group_labels(group)
            values = tuple(whole.get(key) for key in self._asked[0])
            offered = tuple(sorted(without_attachments(allocatable).items()))  # placeholders attach nothing
            known = labels, taints, allocatable, (values, taints, offered)
        self._cached[id(labels)] = known
        return known[3]

    def _labels(self, signature: _Signature) -> dict[str, str]:
        return {key: value for key, value in zip(self._asked[0], signature[0], strict=True) if value is not None}

    def _room(self, signature: _Signature) -> Resources:
        """Return the free room of an empty node, after its DaemonSets' pods."""
        group = NodeGroup("", dict(signature[2]), 0.0, labels=self._labels(signature), taints=signature[1])
        return new_node(group, map(without_volumes, self._asked[1])).free


def _keys_asked(state: ClusterState, targets: Iterable[SlackTarget]) -> set[str]:
    """Return the keys of node labels that any pod, placeholder or DaemonSet selects by."""
    found: set[str] = set()
    for target in targets:
        found.update(key for key, _ in target.node_selector)
    specs = (
        *(each.spec for each in state.slack.pods),
        *(each.spec for each in state.slack.mirrors),
        *state.daemon_sets,
    )
    return found | node_label_keys(specs)
