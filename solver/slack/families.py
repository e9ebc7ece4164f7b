"""Who is counted together: pods, and the nodes that they are for. A part of `slack`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solver.model import CPU, MEMORY, PODS, PodSpec, Resources, Taint, TaintEffect, Toleration
from solver.model.eligibility import why_not_eligible
from solver.slack.model import NodeShape, PodCount
from solver.slack.sizes import Size, needed


def room_of(shape: NodeShape) -> Resources:
    """What an empty one has for pods."""
    return shape.room or shape.allocatable


def rooms_for(spec: PodSpec, where: Sequence[NodeShape]) -> list[Resources]:
    """Of the nodes on which the pod may run."""
    return [room_of(each) for each in where if why_not_eligible(spec, each.labels, each.taints) is None]


@dataclass(frozen=True, slots=True)
class Family:
    """Pods that ask for the same of the resources that not every node has (GPUs, mostly), and the nodes for them.

    Families are counted apart, as if they were clusters of their own: so the same rules hold for every resource, and no
    placeholder without a GPU asks for a node with one.
    """

    key: tuple[str, ...]
    apart: frozenset[str]
    """All resources that not every node has."""
    names: tuple[str, ...]
    """Resources that count: those that pods ask for."""
    pods: Sequence[PodCount]
    nodes: Sequence[NodeShape]
    """Those that are counted with these pods: each node with one family, so that there may be none."""
    homes: Sequence[NodeShape]
    """Those on which these pods may run, nodes that offer more among them."""
    most: Size | None
    """The largest that a part may be: the size of the biggest of these pods, or of all where there are none; None where
    there are none at all. Only resources that count."""

    def has(self, spec: PodSpec) -> bool:
        return tuple(name for name, amount in spec.requests if amount and name in self.apart) == self.key

    def tolerations(self) -> tuple[Toleration, ...]:
        """What placeholders have to tolerate to be anywhere: the taints of the nodes with the fewest, then of the most
        nodes."""
        numbers: dict[tuple[Taint, ...], int] = {}
        for shape in self.nodes or self.homes:
            hard = [taint for taint in shape.taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE]
            taints = tuple(sorted(hard, key=lambda taint: (taint.key, taint.value, taint.effect)))
            numbers[taints] = numbers.get(taints, 0) + shape.count
        taints = min(numbers, key=lambda taints: (len(taints), -numbers[taints], str(taints)), default=())
        return tuple(Toleration(taint.key, "Equal", taint.value, taint.effect) for taint in taints)

    def sizes(self) -> list[Size]:
        """Of the pods that room is kept for, each size once."""
        return _sizes(self.pods)

    def rooms(self, spec: PodSpec) -> list[Resources]:
        """What nodes have for such a pod, each room once, without those that are unnecessarily large."""
        names = sorted({*self.names, *self.apart, PODS})
        found = {tuple(room.get(name, 0) for name in names) for room in rooms_for(spec, self.homes)}
        distinct = [dict(zip(names, amounts, strict=True)) for amounts in sorted(found, reverse=True)]
        return needed(distinct, self.sizes())


def families(where: Sequence[NodeShape], pods: Sequence[PodCount]) -> list[Family]:
    """Every pod is in one, every node is counted in one."""
    names = sorted({name for each in pods for name, amount in each.spec.requests if amount}) or [CPU, MEMORY]
    apart = frozenset(name for name in names if any(room_of(shape).get(name, 0) <= 0 for shape in where))
    by_key: dict[tuple[str, ...], list[PodCount]] = {(): []}
    for each in pods:
        key = tuple(name for name, amount in each.spec.requests if amount and name in apart)
        by_key.setdefault(key, []).append(each)
    own: dict[tuple[str, ...], list[NodeShape]] = {key: [] for key in by_key}
    offering: dict[tuple[str, ...], list[NodeShape]] = {key: [] for key in by_key}
    for shape in where:
        keys = [key for key in by_key if all(room_of(shape).get(name, 0) > 0 for name in key)]
        own[max(keys, key=lambda key: (len(key), key))].append(shape)
        for key in keys:
            offering[key].append(shape)
    found = []
    for key, members in sorted(by_key.items()):
        asked = {name for each in members for name, amount in each.spec.requests if amount}
        counted = tuple(name for name in names if name in asked or (not members and name not in apart))
        most = _most(_sizes(members) or _sizes(pods), counted)
        found.append(Family(key, apart, counted, members, own[key], offering[key], most))
    return found


def _sizes(pods: Iterable[PodCount]) -> list[Size]:
    found = {each.spec.requests for each in pods if not each.excluded}
    return [dict(requests) for requests in sorted(found, reverse=True)]


def _most(sizes: Sequence[Size], names: Iterable[str]) -> Size | None:
    if not sizes:
        return None
    tops = {name: max(size.get(name, 0) for size in sizes) for name in names}
    return {name: amount for name, amount in tops.items() if amount}
