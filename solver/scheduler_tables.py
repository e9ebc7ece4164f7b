"""A problem laid out in arrays for the kube-scheduler's loop (`scheduler_kernel`): what classes ask, what places offer,
and, for any choice of nodes, the counts between pods. Made once for any number of simulations.

A *place* is a node group (one new node of it) or a node that stands; nodes are given as places, as often as there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from solver.check_places import Sights
from solver.eligibility import tolerates, why_not_eligible
from solver.model import (
    CPU,
    HOSTNAME,
    MEMORY,
    PODS,
    Node,
    NodeGroup,
    PodSpec,
    Problem,
    Resources,
    RunningPods,
    TaintEffect,
)
from solver.reduce import Bools, Ints
from solver.scheduler_kernel import Asked, Classes, Lists, Nodes, Terms
from solver.scheduler_terms import ZONE, Mask, between

_LEAST_REQUEST = {CPU: 100, MEMORY: 200 * 1024 * 1024}
"""What a pod that asks for nothing counts when nodes are scored by what is allocated (DefaultMilliCPURequest,
DefaultMemoryRequest). The scheduler does so per container, of which a spec knows only the sum."""
_SCORED = (CPU, MEMORY)


class Tables:
    """`specs` are the classes in the order in which queues number them."""

    def __init__(self, problem: Problem, specs: Sequence[PodSpec], *, default_spread: bool) -> None:
        self.problem, self._specs = problem, tuple(specs)
        self.places: tuple[NodeGroup | Node, ...] = (*problem.node_groups, *problem.nodes)
        self._sights = Sights(self._specs)
        self._looks = np.array([self._sights.of(place) for place in self.places], dtype=np.int64)
        self._runs = [tuple(self._running(place)) for place in self.places]
        others = dict.fromkeys(pods.spec for runs in self._runs for pods in runs)
        self._member = {spec: number for number, spec in enumerate(others, len(self._specs))}
        self._between = between(self._specs, tuple(others), default_spread=default_spread)
        self._names = (*sorted({name for spec in self._specs for name, _ in spec.requests}), PODS)
        self._offers()

    def _running(self, place: NodeGroup | Node) -> Iterator[RunningPods]:
        """Pods that are there before any other: what runs, or a new node's DaemonSets as far as they have room. Those
        that the node has no room for wait, and take nothing."""
        if isinstance(place, Node):
            yield from place.running
            return
        left = dict(place.allocatable)
        for spec in self.problem.daemon_sets:
            if why_not_eligible(spec, place.labels, place.taints) is None:
                less = {name: left.get(name, 0) - amount for name, amount in (*spec.requests, (PODS, 1))}
                if min(less.values()) >= 0:
                    left.update(less)
                    yield RunningPods(spec)

    def _offers(self) -> None:
        """Places in arrays."""
        count = len(self.places)
        self._free = np.zeros((count, len(self._names)), dtype=np.int64)
        self._allocatable = np.zeros((count, len(_SCORED)), dtype=np.int64)
        self._requested = np.zeros((count, len(_SCORED)), dtype=np.int64)
        self._at_least = np.zeros((count, len(_SCORED)), dtype=np.int64)
        for number, place in enumerate(self.places):
            if isinstance(place, Node):
                self._free[number] = [place.free.get(name, 0) for name in self._names]
                whole = place.allocatable or place.free
                self._allocatable[number] = _scored(whole)
                self._requested[number] = self._at_least[number] = self._allocatable[number] - _scored(place.free)
            else:
                self._free[number] = [place.allocatable.get(name, 0) for name in self._names]
                self._allocatable[number] = _scored(place.allocatable)
                for pods in self._runs[number]:
                    self._free[number] -= _amounts(pods.spec, self._names)
                    self._requested[number] += _scored(dict(pods.spec.requests))
                    self._at_least[number] += _scored(_LEAST_REQUEST | dict(pods.spec.requests))

    @cached_property
    def classes(self) -> Classes:
        asked = [dict(spec.requests) for spec in self._specs]
        looks = {int(look): place for look, place in zip(self._looks, self.places, strict=True)}
        shape = len(self._specs), max(looks, default=-1) + 1
        fits, soft, liked = np.zeros(shape, dtype=bool), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for look, place in looks.items():
            taints = [taint for taint in place.taints if taint.effect is TaintEffect.PREFER_NO_SCHEDULE]
            for number, spec in enumerate(self._specs):
                fits[number, look] = self._sights.why_not(number, look) is None
                soft[number, look] = sum(not any(tolerates(t, taint) for t in spec.tolerations) for taint in taints)
                liked[number, look] = sum(
                    each.weight for each in spec.preferred_nodes if self._sights.preferred(each, look)
                )
        return (
            _matrix([_amounts(spec, self._names) for spec in self._specs], len(self._names)),
            _matrix([_scored(amounts) for amounts in asked], len(_SCORED)),
            _matrix([_scored(_LEAST_REQUEST | amounts) for amounts in asked], len(_SCORED)),
            fits,
            soft,
            liked,
        )

    def nodes(self, places: Ints) -> Nodes:
        """Fresh ones, each as its place says."""
        parts = (self._looks, self._free, self._allocatable, self._requested, self._at_least)
        looks, free, allocatable, requested, at_least = (part[places] for part in parts)
        return looks, free, allocatable, requested, at_least

    @cached_property
    def asked(self) -> Asked:
        asked = self._between.asked
        return (
            _lists([each.rejects for each in asked], 1),
            _lists([each.needs for each in asked], 1),
            np.array([each.first for each in asked], dtype=bool),
            _lists([each.hard for each in asked], 4),
            _lists([each.soft for each in asked], 2),
            np.array([each.strict for each in asked], dtype=bool),
            _lists([each.likes for each in asked], 2),
        )

    @cached_property
    def waits(self) -> Bools:
        """Per class whether pods on other nodes can make room for it."""
        return np.array([bool(each.needs or each.hard) for each in self._between.asked], dtype=bool)

    @cached_property
    def _adds(self) -> Lists:
        rows: list[list[tuple[int, int]]] = [[] for _ in range(len(self._specs) + len(self._member))]
        for number, term in enumerate(self._between.terms):
            for member, amount in term.adds.items():
                rows[member].append((number, amount))
        return _lists(rows, 2)

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return HOSTNAME, *sorted({term.key for term in self._between.terms} - {HOSTNAME})

    @cached_property
    def _domains(self) -> tuple[Ints, list[int]]:
        """Keys x places: the number of the domain, -1 for none; and how many domains each key has."""
        domains = np.full((len(self._keys), len(self.places)), -1, dtype=np.int64)
        sizes = []
        for row, key in enumerate(self._keys):
            known: dict[str, int] = {}
            for number, place in enumerate(self.places) if key != HOSTNAME else ():
                value = zone_of(place) if key == ZONE else place.labels.get(key)
                if value is not None:
                    domains[row, number] = known.setdefault(value, len(known))
            sizes.append(len(known))
        return domains, sizes

    @cached_property
    def _masks(self) -> dict[Mask, tuple[int, Bools]]:
        """Number, and per place whether it is looked at."""
        masks = dict.fromkeys(term.mask for term in self._between.terms if term.mask is not None)
        return {mask: (number, self._seen(mask)) for number, mask in enumerate(masks)}

    def _seen(self, mask: Mask) -> Bools:
        seen = np.ones(len(self.places), dtype=bool)
        for number, (place, look) in enumerate(zip(self.places, self._looks.tolist(), strict=True)):
            if mask.affinity is not None:
                seen[number] &= self._sights.selected(mask.pod_class, look)
            if mask.tolerations is not None:
                seen[number] &= self._sights.tolerated(mask.pod_class, look)
            seen[number] &= all(key == HOSTNAME or key in place.labels for key in mask.keys)
        return seen

    def terms(self, places: Ints) -> Terms:
        """Terms over these nodes."""
        terms, (domains, sizes) = self._between.terms, self._domains
        keys = np.array([self._keys.index(term.key) for term in terms], dtype=np.int64)
        lengths = np.array([len(places), *sizes[1:]], dtype=np.int64)[keys]
        starts = np.cumsum(lengths) - lengths
        masked = [-1 if term.mask is None else self._masks[term.mask][0] for term in terms]
        masks = np.zeros((len(self._masks), len(places)), dtype=bool)
        for number, seen in self._masks.values():
            masks[number] = seen[places]
        here = np.ascontiguousarray(domains[:, places])
        here[0] = np.arange(len(places))  # over hostnames
        return keys, starts, lengths, np.array(masked, dtype=np.int64), masks, here, self._adds

    @cached_property
    def _counted(self) -> tuple[list[list[tuple[int, int]]], Bools]:
        """Per place the running pods that some term counts, as (member, pods); and whether there are any."""
        begin = self._adds[0]
        known = {spec: number for spec, number in self._member.items() if begin[number + 1] > begin[number]}
        rows = [[(known[pods.spec], pods.count) for pods in runs if pods.spec in known] for runs in self._runs]
        return rows, np.array([bool(row) for row in rows], dtype=bool)

    def running(self, places: Ints) -> Ints:
        """Rows (member, node, pods) of what runs on these nodes and is counted by some term."""
        rows, any_here = self._counted
        where = np.flatnonzero(any_here[places]).tolist()
        return _matrix([(who, node, pods) for node in where for who, pods in rows[places[node]]], 3)


def zone_of(place: NodeGroup | Node) -> str | None:
    """What a node of a group will have as its zone, whether or not the group's labels say it."""
    return place.labels.get(ZONE) or (place.zone or None if isinstance(place, NodeGroup) else None)


def _scored(amounts: Resources | Mapping[str, int]) -> list[int]:
    return [amounts.get(name, 0) for name in _SCORED]


def _amounts(spec: PodSpec, names: Sequence[str]) -> list[int]:
    """What a pod takes of a node."""
    asked = {**dict(spec.requests), PODS: 1}
    return [asked.get(name, 0) for name in names]


def _matrix(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)


def _lists(rows: Sequence[Sequence[Sequence[int]]], columns: int) -> Lists:
    begin = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=begin[1:])
    return begin, _matrix([each for row in rows for each in row], columns)
