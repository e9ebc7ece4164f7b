"""How much slack: a target, the nodes and the pods of a cluster -> placeholders. Pure arithmetic over shapes of nodes
and classes of pods, never over pods; docs/reference/slack.md works it through in numbers. Pods and the nodes that they
are for are counted by family, and capacity is cut into even parts that fit a node and are no bigger than the biggest
pod, of sizes that stay where they can. Where the placeholders are is `slack.placement`'s, when which rate holds is the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from solver.model import CPU, MEMORY, PODS, Node, PodSpec, Resources, Taint, TaintEffect, Toleration
from solver.model.eligibility import why_not_eligible
from solver.reduction.node_columns import NodeColumns
from solver.slack.model import Base, NodeShape, PodCount, Role, SlackDemand, SlackShape, SlackTarget, Version

Size = Mapping[str, int]
"""What one placeholder requests; without zeros and without `pods`."""
Parts = Sequence[tuple[Size, int]]
"""Sizes, each with its number."""

_NEGLIGIBLE = 50
"""Parts are rounded up where that adds at most a fiftieth to all of them."""
_MOST_OVER = 1.1
"""Sizes are kept while they hold at most so much of what is wanted."""


def fits(size: Size, room: Resources) -> bool:
    """Whether one pod of that size fits into the room, which counts `pods` too."""
    return room.get(PODS, 0) >= 1 and all(room.get(name, 0) >= amount for name, amount in size.items())


def needed(rooms: Sequence[Resources], sizes: Sequence[Size]) -> list[Resources]:
    """The rooms without those that are unnecessarily large: all pods of these sizes that fit there fit a smaller
    room. A room is smaller that has less of something and more of nothing. All rooms have the same resources."""
    if not rooms:
        return []
    names = sorted(rooms[0])
    room = np.array([[each[name] for name in names] for each in rooms], np.int64)
    size = np.array([[1 if name == PODS else each.get(name, 0) for name in names] for each in sizes], np.int64)
    size = size.reshape(len(sizes), len(names))
    within = np.ones((len(rooms), len(rooms)), np.bool_)  # [one, other]: one has more of nothing
    fitting = np.ones((len(sizes), len(rooms)), np.bool_)
    for column, amounts in enumerate(room.T):  # by resource: three dimensions at once would be large
        within &= amounts[:, None] <= amounts[None, :]
        fitting &= size[:, column][:, None] <= amounts[None, :]
    smaller = within & ~within.T
    elsewhere = fitting.astype(np.float32) @ smaller.astype(np.float32) > 0  # counted in floats: much faster
    least = ~np.any(smaller, axis=0)
    only_here = np.any(fitting & ~elsewhere, axis=0)
    return [rooms[int(row)] for row in np.flatnonzero(least | only_here)]


def capped(room: Resources, most: Size | None) -> Resources:
    """The room as far as a pod of the size `most` needs it; None for no such bound."""
    if most is None:
        return room
    return {PODS: room.get(PODS, 0), **{name: min(room.get(name, 0), amount) for name, amount in most.items()}}


def parts(total: Size, count: int, rooms: Sequence[Resources]) -> Parts:
    """`total` in `count` even parts; in more, as few as can be, where these would fit no room; in fewer, where there is
    less than one unit for each.

    Parts are alike but for what cannot be cut evenly (7 GPUs in 5 parts): there the first have one unit more. Empty
    where no room has all that `total` is made of.
    """
    total = {name: amount for name, amount in sorted(total.items()) if amount > 0}
    least = min((needed for room in rooms if (needed := _fewest(total, room)) is not None), default=None)
    if not total or least is None:
        return []
    number = max(least, min(count, *total.values()), 1)
    shares = {name: divmod(amount, number) for name, amount in total.items()}
    rounded = {name for name, (_, rest) in shares.items() if rest and (number - rest) * _NEGLIGIBLE <= total[name]}
    ends = sorted({number, *(rest for name, (_, rest) in shares.items() if rest and name not in rounded)})
    found: list[tuple[Size, int]] = []
    start = 0
    for end in ends:
        size = {name: share + (name in rounded or start < rest) for name, (share, rest) in shares.items()}
        found.append(({name: amount for name, amount in size.items() if amount}, end - start))
        start = end
    return found


def _fewest(total: Size, room: Resources) -> int | None:
    """Return in how many parts it has to be cut to fit; None where no number would do."""
    if room.get(PODS, 0) < 1 or any(room.get(name, 0) <= 0 for name in total):
        return None
    return max((-(-amount // room[name]) for name, amount in total.items()), default=1)


def keep_sizes(before: Parts, now: Parts, total: Size, rooms: Sequence[Resources]) -> Parts:
    """`now`, or the sizes before in as large a number as is needed for `total`, where these still fit a room, hold
    hardly more than is wanted, and are about as many: a size that follows every pod would move every placeholder."""
    names = {name for name, amount in total.items() if amount > 0}
    if (
        not before
        or list(before) == list(now)
        or any(not any(fits(size, room) for room in rooms) for size, _ in before)
    ):
        return now
    if len(before) == 1:
        size = before[0][0]
        if size.keys() != names:
            return now
        number = max(-(-total[name] // amount) for name, amount in size.items())
        formula = sum(count for _, count in now)
        if not formula <= 2 * number <= 4 * formula:
            return now
        before = [(size, number)]
    held = {name: sum(size.get(name, 0) * count for size, count in before) for name in names}
    known = {name for size, _ in before for name in size}
    as_wanted = known == names and all(total[name] <= held[name] <= _MOST_OVER * total[name] for name in names)
    return before if as_wanted else now


def rooms_for(spec: PodSpec, where: Sequence[NodeShape]) -> list[Resources]:
    """Return the room of each node shape on which the pod may run."""
    return [each.free for each in where if why_not_eligible(spec, each.labels, each.taints) is None]


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
        """Return the sizes of the pods that room is kept for, each once."""
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
    apart = frozenset(name for name in names if any(shape.free.get(name, 0) <= 0 for shape in where))
    by_key: dict[tuple[str, ...], list[PodCount]] = {(): []}
    for each in pods:
        key = tuple(name for name, amount in each.spec.requests if amount and name in apart)
        by_key.setdefault(key, []).append(each)
    own: dict[tuple[str, ...], list[NodeShape]] = {key: [] for key in by_key}
    offering: dict[tuple[str, ...], list[NodeShape]] = {key: [] for key in by_key}
    for shape in where:
        keys = [key for key in by_key if all(shape.free.get(name, 0) > 0 for name in key)]
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


_Extra = Mapping[str, Fraction]


def wanted(
    target: SlackTarget, nodes: Iterable[NodeShape], pods: Iterable[PodCount], before: Sequence[SlackShape] = ()
) -> SlackDemand:
    """The placeholders of a target.

    `nodes` have all shapes that stand or may be opened. With the shapes of the last loop as `before`, even parts keep
    their size as long as it is about right, and only their number changes.
    """
    there = PodSpec(node_selector=target.node_selector)
    where = [shape for shape in nodes if why_not_eligible(there, shape.labels, ()) is None]
    whose = [each for each in pods if each.count and target.namespace in ("", each.namespace)]
    if target.node_selector:
        columns = NodeColumns([Node("", {}, each.labels, each.taints) for each in where])
        whose = [each for each in whose if columns.admits(each.spec).any()]
    warnings: list[str] = []
    shapes = [*_mirrors(target, where, warnings), *_fixed(target, where, warnings)]
    if target.rate and where:
        held = list(shapes)
        for family in families(where, whose):
            shapes += _Rated(target, family, [s for s in held if family.has(s.spec)], before).shapes(warnings)
    elif target.rate:
        warnings.append(f"slack {target.name}: no node, and no node group, that its placeholders may run on")
    return SlackDemand(tuple(sorted(shapes, key=lambda shape: _HARDEST.index(shape.role))), tuple(warnings))


_HARDEST = (Role.MIRROR, Role.BIGGEST, Role.FIXED, Role.SHARE)


def _within(target: SlackTarget, spec: PodSpec) -> PodSpec:
    """The pod, kept to the target's nodes; what it selects itself it still selects."""
    return replace(
        spec, node_selector=tuple(sorted({**dict(target.node_selector), **dict(spec.node_selector)}.items()))
    )


def _mirrors(target: SlackTarget, where: Sequence[NodeShape], warnings: list[str]) -> Iterator[SlackShape]:
    """Yield the mirrors. A smaller one would not hold the pod's room, so one that fits no node is left out."""
    for each in (each for each in target.mirrors if each.count):
        spec = _within(target, each.spec)
        if any(fits(dict(spec.requests), room) for room in rooms_for(spec, where)):
            name = f"{target.name}/{Role.MIRROR}/{each.name}"
            yield SlackShape(name, Role.MIRROR, spec, each.count, f"room for {each.count} more of {each.name}")
        else:
            warnings.append(
                f"slack {target.name}: no node that a pod of {each.name} fits, so no capacity is reserved for it"
            )


def _fixed(target: SlackTarget, where: Sequence[NodeShape], warnings: list[str]) -> Iterator[SlackShape]:
    for each in target.fixed:
        spec = _within(target, each.spec)
        rooms = rooms_for(spec, where)
        if any(fits(dict(spec.requests), room) for room in rooms):
            cut: Parts = [(dict(spec.requests), each.count)]
            why = f"fixed size {each.name}"
        else:
            total = {name: amount * each.count for name, amount in spec.requests}
            cut = parts(total, each.count, rooms)
            why = f"fixed size {each.name}, in smaller ones since it fits no node"
        if each.count and not cut:
            warnings.append(f"slack {target.name}: no node has what fixed size {each.name} asks for")
        yield from _named(f"{target.name}/{Role.FIXED}/{each.name}", Role.FIXED, spec, cut, why)


def _named(name: str, role: Role, spec: PodSpec, cut: Parts, why: str) -> Iterator[SlackShape]:
    for number, (size, count) in enumerate(cut):
        if count:
            requests = tuple(sorted(size.items()))
            yield SlackShape(
                f"{name}/{number + 1}" if number else name, role, replace(spec, requests=requests), count, why
            )


class _Rated:
    """The rate's placeholders of one family."""

    def __init__(
        self, target: SlackTarget, family: Family, held: Sequence[SlackShape], before: Sequence[SlackShape]
    ) -> None:
        self._target = target
        self._family = family
        self._held = held
        self._before = before
        self._spec = PodSpec(node_selector=target.node_selector, tolerations=family.tolerations())
        self._sizes = family.sizes()
        self._rooms = family.rooms(self._spec)
        self._most = family.most

    def shapes(self, warnings: list[str]) -> Iterator[SlackShape]:
        extra = self._extra()
        if not any(extra.values()):
            return
        if not self._rooms:
            lacking = " and ".join(self._family.key)
            warnings.append(f"slack {self._target.name}: no node offers {lacking}, so none is held for pods with it")
            return
        percent = f"{float(100 * _exact(self._target.rate)):g} % of what is {self._target.base}"
        held: list[tuple[Size, int]] = [(dict(shape.spec.requests), shape.count) for shape in self._held]
        if self._target.version is Version.EVEN:
            total, count = self._even(_less(extra, held))
        else:
            for name, size, why in self._biggest():
                cut = parts(size, 1, self._rooms)
                held += cut
                yield from _named(self._name(Role.BIGGEST, name), Role.BIGGEST, self._spec, cut, why)
            total = {name: ceil(amount) for name, amount in _less(extra, held).items()}
            count = self._cluster_size() * self._target.granularity
        rooms = [capped(room, self._most) for room in self._rooms]
        cut = self._keep(parts(total, count, rooms), total, rooms)
        yield from _named(self._name(Role.SHARE), Role.SHARE, self._spec, cut, f"an even part of {percent}")

    def _extra(self) -> dict[str, Fraction]:
        """What is to be held of each resource."""
        rate = _exact(self._target.rate)
        names = self._family.names if self._most is None else tuple(self._most)
        if self._target.base is Base.ALLOCATABLE:
            base = {name: sum(s.count * s.allocatable.get(name, 0) for s in self._family.nodes) for name in names}
        else:
            base = dict.fromkeys(names, 0)
            for each in self._family.pods:
                for name, amount in each.spec.requests:
                    if name in base:
                        base[name] += each.count * amount
        return {name: rate * amount for name, amount in base.items()}

    def _average(self, name: str) -> Fraction:
        """Return what one node has; where there is none yet, one of each shape."""
        nodes = self._family.nodes or self._family.homes
        number = sum(shape.count for shape in nodes)
        if not number:
            return Fraction(sum(shape.allocatable.get(name, 0) for shape in nodes), max(len(nodes), 1))
        return Fraction(sum(shape.count * shape.allocatable.get(name, 0) for shape in nodes), number)

    def _cluster_size(self) -> int:
        """Return the nodes; of a namespace, and where there is none yet, those that the pods would fill."""
        number = sum(shape.count for shape in self._family.nodes)
        if number and not self._target.namespace:
            return number
        filled = [
            sum(each.count * dict(each.spec.requests).get(name, 0) for each in self._family.pods) / average
            for name in self._family.names
            if (average := self._average(name))
        ]
        return max(1, ceil(max(filled, default=Fraction(1))))

    def _even(self, extra: _Extra) -> tuple[dict[str, int], int]:
        """Version 1, mended: parts of `granularity` to an average node, as many as the rate asks for (of base
        allocatable: rate x nodes x granularity), where the specification has nodes x granularity, which is 100 %."""
        sizes = {name: self._average(name) / self._target.granularity for name in extra}
        count = ceil(max((extra[name] / size for name, size in sizes.items() if size), default=Fraction(0)))
        return {name: ceil(count * size) for name, size in sizes.items()}, count

    def _biggest(self) -> Iterator[tuple[str, Size, str]]:
        """Name, size and reason of placeholders for the biggest pod, or pods."""
        if not self._sizes or not self._most:
            return
        if self._target.version is Version.BIGGEST and any(fits(self._most, room) for room in self._rooms):
            yield "", self._most, "room for a pod with the most of every resource"
            return
        chosen: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name in self._most:
            top = max(self._sizes, key=lambda size: (size.get(name, 0), sum(size.values()), sorted(size.items())))
            chosen.setdefault(tuple(sorted(top.items())), []).append(name)
        for size, names in chosen.items():
            yield names[0], dict(size), f"room for the pod with the most {' and '.join(names)}"

    def _keep(self, now: Parts, total: Size, rooms: Sequence[Resources]) -> Parts:
        name = self._name(Role.SHARE)
        mine = [
            shape
            for shape in self._before
            if shape.role is Role.SHARE and (shape.name == name or shape.name.removeprefix(f"{name}/").isdigit())
        ]
        if not now or any(replace(shape.spec, requests=()) != self._spec for shape in mine):
            return now
        return keep_sizes([(dict(shape.spec.requests), shape.count) for shape in mine], now, total, rooms)

    def _name(self, role: Role, of: str = "") -> str:
        return "/".join(part for part in (self._target.name, role, *self._family.key, of) if part)


def _exact(rate: float) -> Fraction:
    """Return a rate as it is written: a tenth where it is 0.1."""
    return Fraction(repr(float(rate)))


def _less(extra: _Extra, held: Parts) -> dict[str, Fraction]:
    """What is still to be held; never less than nothing."""
    return {
        name: max(Fraction(0), amount - sum(size.get(name, 0) * count for size, count in held))
        for name, amount in extra.items()
    }
