"""From a cluster to the question that `solver.slack` answers: what targets ask for now, mirrors in their places, and
the shapes of nodes that stand or may be opened. Pure, but for what it remembers of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.api.core.nodes import group_labels
from cagrpc.cluster.state import ClusterState, Mirror, SlackSeen
from cagrpc.controllers.slack.model import MIRRORS, SlackSettings, TargetSettings
from solver.model import Labels, Node, NodeGroup, PodSpec, Resources, Taint
from solver.model.capacity import after_daemons
from solver.slack.model import Copies, NodeShape, SlackTarget

_Likeness = tuple[tuple[str | None, ...], tuple[Taint, ...], tuple[tuple[str, int], ...]]
"""What tells nodes apart: values of the labels that anybody asks for, taints, allocatable."""


def targets(settings: SlackSettings, seen: SlackSeen, now_seconds: float) -> tuple[SlackTarget, ...]:
    """What is asked for at a time (since the epoch)."""
    mirrors: dict[str, list[Copies]] = {each.name: [] for each in settings.targets}
    for each in _within_shares(settings, seen):
        home = _home(each, settings.targets)
        mirrors.setdefault(home, []).append(Copies(each.name, each.spec, each.count))
    found = [each.at(now_seconds, tuple(mirrors[each.name])) for each in settings.targets]
    if MIRRORS in mirrors:
        found.append(SlackTarget(MIRRORS, mirrors=tuple(mirrors[MIRRORS])))
    return tuple(found)


def over_share(settings: SlackSettings, seen: SlackSeen) -> tuple[str, ...]:
    """Namespaces with more mirrored pods than one may have, each in a sentence."""
    most = settings.mirrors_per_namespace
    asked: Counter[str] = Counter()
    for each in seen.mirrors:
        asked[each.namespace] += each.count
    kept = {each.name: each.count for each in _within_shares(settings, seen)}
    short = {each.namespace: each for each in reversed(seen.mirrors) if kept.get(each.name, 0) < each.count}
    return tuple(
        f"namespace {namespace}: capacity is reserved for {most} of the {asked[namespace]} more pods that its workloads"
        f" ask for (slack.mirrors_per_namespace); {first.name} is the first of which it is not for all"
        for namespace, first in sorted(short.items())
    )


def _within_shares(settings: SlackSettings, seen: SlackSeen) -> Iterator[Mirror]:
    """Of each namespace no more pods than one may have, in the order of names."""
    left: dict[str, int] = {}
    for each in seen.mirrors:
        room = left.get(each.namespace, settings.mirrors_per_namespace)
        count = min(each.count, room)
        left[each.namespace] = room - count
        if count:
            yield each if count == each.count else replace(each, count=count)


def _home(mirror: Mirror, of: Sequence[TargetSettings]) -> str:
    """The target that a mirror counts for: the narrowest that covers it. One of a provisioner covers pods that ask for
    its nodes themselves: others are to start wherever they can."""
    asks = set(mirror.spec.node_selector)
    covering = [each for each in of if each.namespace in ("", mirror.namespace) and asks.issuperset(each.node_selector)]
    if not covering:
        return MIRRORS
    return max(covering, key=lambda each: (len(each.node_selector), bool(each.namespace))).name


class ShapesOfNodes:
    """Nodes by shape. What was found out of a node is kept for as long as it looks the same."""

    def __init__(self) -> None:
        self._asked: tuple[tuple[str, ...], tuple[PodSpec, ...]] = ((), ())
        self._looks: dict[int, tuple[Labels, tuple[Taint, ...], Resources, _Likeness]] = {}
        self._rooms: dict[_Likeness, Mapping[str, int]] = {}

    def of(
        self, nodes: Iterable[Node], groups: Iterable[NodeGroup], state: ClusterState, targets: Iterable[SlackTarget]
    ) -> tuple[NodeShape, ...]:
        """Of nodes that stand, and (with count 0) of groups that may grow."""
        asked = tuple(sorted(_keys_asked(state, targets))), state.daemon_sets
        if asked != self._asked:
            self._asked, self._looks, self._rooms = asked, {}, {}
        before, self._looks = self._looks, {}
        counts: Counter[_Likeness] = Counter()
        for node in nodes:
            counts[self._look(before, node.labels, node.taints, node.allocatable)] += 1
        for group in groups:
            counts[self._look(before, group.labels, group.taints, group.allocatable, group)] += 0
        self._rooms = {look: self._rooms.get(look) or self._room(look) for look in counts}
        return tuple(
            NodeShape(dict(look[2]), count, self._labels(look), look[1], self._rooms[look])
            for look, count in counts.items()
        )

    def _look(
        self,
        before: Mapping[int, tuple[Labels, tuple[Taint, ...], Resources, _Likeness]],
        labels: Labels,
        taints: tuple[Taint, ...],
        allocatable: Resources,
        group: NodeGroup | None = None,
    ) -> _Likeness:
        known = before.get(id(labels))
        if known is None or known[0] is not labels or known[1] is not taints or known[2] is not allocatable:
            whole = labels if group is None else group_labels(group)
            values = tuple(whole.get(key) for key in self._asked[0])
            known = labels, taints, allocatable, (values, taints, tuple(sorted(allocatable.items())))
        self._looks[id(labels)] = known
        return known[3]

    def _labels(self, look: _Likeness) -> dict[str, str]:
        return {key: value for key, value in zip(self._asked[0], look[0], strict=True) if value is not None}

    def _room(self, look: _Likeness) -> dict[str, int]:
        """Of an empty node, beside its DaemonSets' pods."""
        node = NodeGroup("", dict(look[2]), 0.0, labels=self._labels(look), taints=look[1])
        return after_daemons(node, self._asked[1])


def _keys_asked(state: ClusterState, targets: Iterable[SlackTarget]) -> set[str]:
    """Labels of nodes that any pod, placeholder or DaemonSet asks for."""
    found: set[str] = set()
    for target in targets:
        found.update(key for key, _ in target.node_selector)
    specs = (
        *(each.spec for each in state.slack.pods),
        *(each.spec for each in state.slack.mirrors),
        *state.daemon_sets,
    )
    for spec in specs:
        found.update(_keys_of(spec))
    return found


def _keys_of(spec: PodSpec) -> Iterator[str]:
    yield from (key for key, _ in spec.node_selector)
    for term in spec.affinity or ():
        yield from (each.key for each in term.match_expressions)
