"""How much slack: a target, the nodes and the pods of a cluster -> placeholders. Pure arithmetic over shapes of nodes
and classes of pods, never over pods; docs/reference/slack.md works it through in numbers. Where the placeholders are is
`slack_placement`'s, when which rate holds is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

from solver.model import PodSpec, Resources
from solver.model.eligibility import on_nodes, why_not_eligible
from solver.slack.families import Family, families, rooms_for
from solver.slack.model import Base, NodeShape, PodCount, Role, SlackDemand, SlackShape, SlackTarget, Version
from solver.slack.sizes import Parts, Size, capped, fits, keep_sizes, parts

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
    may_run = _may_run(where) if target.node_selector else lambda _: True
    whose = [each for each in pods if each.count and target.namespace in ("", each.namespace) and may_run(each.spec)]
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


def _may_run(where: Sequence[NodeShape]) -> Callable[[PodSpec], bool]:
    """Whether a pod may run on one of these; most pods ask for the same."""
    known: dict[PodSpec, bool] = {}

    def may_run(spec: PodSpec) -> bool:
        asks = on_nodes(spec)
        if asks not in known:
            known[asks] = any(why_not_eligible(asks, each.labels, each.taints) is None for each in where)
        return known[asks]

    return may_run


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
        """Of one node; where none stands yet, of one of each shape."""
        nodes = self._family.nodes or self._family.homes
        number = sum(shape.count for shape in nodes)
        if not number:
            return Fraction(sum(shape.allocatable.get(name, 0) for shape in nodes), max(len(nodes), 1))
        return Fraction(sum(shape.count * shape.allocatable.get(name, 0) for shape in nodes), number)

    def _cluster_size(self) -> int:
        """In nodes. Of a namespace, and where no node stands yet: what the pods would fill."""
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
    """A tenth where 0.1 is written."""
    return Fraction(repr(float(rate)))


def _less(extra: _Extra, held: Parts) -> dict[str, Fraction]:
    """What is still to be held; never less than nothing."""
    return {
        name: max(Fraction(0), amount - sum(size.get(name, 0) * count for size, count in held))
        for name, amount in extra.items()
    }
