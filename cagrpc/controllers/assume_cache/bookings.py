"""Capacity that is reserved for requests: on which nodes, how much of it their pods have consumed, and labels of
bookings that were written and are not seen yet. Which requests have a booking is `progress`'s.

A booking is placed on the nodes with its label, first come first served; only one without nodes of its own goes
wherever there is room. Room is found by first fit, the largest pods first: quick, and the same each time as long as
nothing changes. Where constraints between pods are required, the planner finds it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cagrpc.api.core.pods import ADDED_BY_ADMISSION
from cagrpc.api.devices.claims import without_claims
from cagrpc.cluster.connected import connected
from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.cluster.markers import booking_label
from cagrpc.cluster.node_info import ClusterCapacity, NodeInfo, RequestOwner, Reservations, requested
from cagrpc.cluster.state import ClusterNode, ClusterState, Consumer, ConsumerStage, PendingPod
from cagrpc.runtime.clock import MonotonicClock
from solver.model import PODS, Budget, Node, PodSet, PodSpec, Problem

_BUDGET = Budget(deterministic_seconds=0.1)
"""For a booking whose pods have required constraints between pods."""

_Key = TypeVar("_Key")


_UNSEEN_SECONDS = 60.0
"""How long after a label was written it is assumed on the node though it is not observed there."""


@dataclass(frozen=True, slots=True)
class Booking:
    """Capacity to be reserved for a request."""

    uid: str
    key: str
    pods: tuple[tuple[PodSpec, int], ...]
    """The spec of each pod set, and how many of its pods have not been counted as consumers yet."""
    anywhere: bool = False
    """Whether it goes wherever there is room rather than on the nodes with its label: nothing was ordered for it."""
    coming: bool = False
    """Whether nodes of it are in flight: what has no room yet is planned there."""


@dataclass(frozen=True, slots=True)
class Booked:
    """The reservations of bookings."""

    reservations: Reservations = field(default_factory=dict)
    """Each is owned by a request. Fragments reserved for pods that first fit does not place are like pods."""
    short: Mapping[str, int] = field(default_factory=dict)
    """By booking (UID), how many of its pods find no room; only where there are some."""
    places: Mapping[str, Mapping[str, Mapping[PodSpec, int]]] = field(default_factory=dict)
    """By booking (UID) and node, for how many pods of which spec there is room; without fragments."""

    @property
    def uids(self) -> dict[str, tuple[str, ...]]:
        """The UIDs of requests with reservations, by node; sorted."""
        return {
            name: tuple(sorted({each.owner.uid for each in reserved if isinstance(each.owner, RequestOwner)}))
            for name, reserved in self.reservations.items()
        }


def book(bookings: Sequence[Booking], state: ClusterState, others: Reservations | None = None) -> Booked:
    """Find room for bookings, given oldest first. A node that is not Ready keeps its reservations as long as it is in
    the cluster. Room that is reserved for `others` is left to them where there is enough for both; else it is the
    bookings'."""
    others = others or {}
    labels = {booking_label(booking.uid) for booking in bookings}
    anywhere = any(booking.anywhere for booking in bookings)
    nodes = (each.node for each in state.nodes if anywhere or not labels.isdisjoint(each.node.labels))
    capacity = ClusterCapacity(map(_as_ready, nodes), others)
    labelled: defaultdict[str, list[NodeInfo]] = defaultdict(list)
    for info in capacity:
        for label in labels.intersection(info.labels):
            labelled[label].append(info)
    missing: dict[str, Counter[PodSpec]] = {}
    for booking in bookings:
        infos = list(capacity) if booking.anywhere else labelled[booking_label(booking.uid)]
        left = _place(booking, infos)
        if left and others and not booking.coming:
            _forget(others, capacity)
            left = _place(replace(booking, pods=tuple(left.items())), infos)
            capacity.assume(others)
        if left:
            missing[booking.uid] = left
    places: defaultdict[str, dict[str, Mapping[PodSpec, int]]] = defaultdict(dict)
    for name, reserved in capacity.reservations.items():
        for owner in {each.owner for each in reserved}:
            if isinstance(owner, RequestOwner):
                places[owner.uid][name] = capacity[name].assumed(owner)
    for uid, left in missing.items():
        _reserve_fragments(left, labelled[booking_label(uid)], uid)
    _forget(others, capacity)
    return Booked(capacity.reservations, {uid: left.total() for uid, left in missing.items()}, places)


def _as_ready(node: Node) -> Node:
    """Return the node without its not-ready taints: it may be back in a moment."""
    taints = tuple(taint for taint in node.taints if taint.key not in ADDED_BY_ADMISSION)
    return node if taints == node.taints else replace(node, taints=taints)


def overfull(bookings: Sequence[Booking], state: ClusterState) -> frozenset[str]:
    """Return the UIDs of bookings on whose nodes, together with those of all bookings that share nodes with them, less
    is free than is reserved.

    Where there is enough in total, first fit may still not place every pod that the planner had placed: what is short
    by first fit alone is not lost."""
    asked = {booking.uid: Counter(requested(booking.pods)) for booking in bookings if not booking.anywhere}
    labels = {booking_label(uid): uid for uid in asked}
    shared = [(tuple(labels[name] for name in each.node.labels if name in labels), each.node) for each in state.nodes]
    shared = [each for each in shared if each[0]]
    found = asked.keys() - {uid for uids, _ in shared for uid in uids}
    for part in connected([uids for uids, _ in shared]):
        there = {uid for position in part for uid in shared[position][0]}
        reserved = sum((asked[uid] for uid in there), Counter[str]())
        free = [shared[position][1].free for position in part]
        if any(sum(each.get(name, 0) for each in free) < amount for name, amount in reserved.items()):
            found |= there
    return frozenset(found)


def _forget(reservations: Reservations, capacity: ClusterCapacity) -> None:
    for name, kept in reservations.items():
        info = capacity.get(name)
        if info is not None:
            for each in kept:
                info.forget(each.owner)


def _place(booking: Booking, infos: Sequence[NodeInfo]) -> Counter[PodSpec]:
    """Assume the booking on nodes. Return those of its pods that find no room."""
    pods = [(spec, count) for spec, count in booking.pods if count > 0]
    if any(has_required_constraints(spec) for spec, _ in pods):
        return _planned(booking, pods, infos)
    missing: Counter[PodSpec] = Counter()
    for spec, count in _largest_first(pods):
        left = count
        for info in infos:
            if not left:
                break
            here = min(left, info.most(spec))
            if here and info.admits(spec):
                info.assume(RequestOwner(booking.uid), spec, here)
                left -= here
        if left:
            missing[spec] += left
    return missing


def _reserve_fragments(missing: Mapping[PodSpec, int], infos: Sequence[NodeInfo], uid: str) -> None:
    """Reserve what is free on a booking's own nodes, up to what these pods request in total: first fit does not place
    them, but the planner had, so their room is not to go to others."""
    by_size = {
        spec: count for spec, count in missing.items() if not (spec.host_ports or has_required_constraints(spec))
    }
    left = requested(by_size.items())
    left.pop(PODS, None)
    for info in infos:
        piece = {name: min(amount, info.free.get(name, 0)) for name, amount in left.items()}
        here = tuple(sorted((name, amount) for name, amount in piece.items() if amount > 0))
        if here and any(map(info.admits, by_size)):
            info.assume(RequestOwner(uid), PodSpec(here))
            for name, amount in here:
                left[name] -= amount


def has_required_constraints(spec: PodSpec) -> bool:
    """Return whether it has required constraints between pods. Unlike scale-down's `is_constrained_by_others`, a
    `ScheduleAnyway` spread alone does not count: first fit is good enough for a preference."""
    strict = any(each.is_required for each in spec.topology_spread)
    return bool(spec.pod_affinity or spec.pod_anti_affinity or strict)


def _planned(booking: Booking, pods: Iterable[tuple[PodSpec, int]], infos: Sequence[NodeInfo]) -> Counter[PodSpec]:
    """Assume the booking where the planner places it. Return those of its pods that find no room."""
    pod_sets = tuple(PodSet(booking.key, spec, count) for spec, count in pods)
    planned = solve_valid(Problem(pod_sets, nodes=tuple(info.node() for info in infos)), _BUDGET)
    by_name, plan = {info.name: info for info in infos}, planned.plan
    for placed in plan.existing:
        for index, count in placed.pods.items():
            by_name[placed.node].assume(RequestOwner(booking.uid), plan.pod_classes[index].spec, count)
    missing = Counter({plan.pod_classes[each.pod_class].spec: each.count for each in plan.unplaced})
    missing.update({each.spec: each.count for each in planned.dropped})
    return missing


def _largest_first(pods: Sequence[tuple[PodSpec, int]]) -> list[tuple[PodSpec, int]]:
    """Return the pods by the largest share that one has of what all of them request together."""
    total = requested(pods)
    return sorted(pods, key=lambda each: -max(amount / total[name] for name, amount in (*each[0].requests, (PODS, 1))))


def consumed(
    pods: Sequence[tuple[PodSpec, int]], consumers: Iterable[Consumer], before: Mapping[int, int]
) -> dict[int, int]:
    """Return how many pods of each of a request's pod sets (spec and count) have been bound or are done. None counts
    twice, and one that is gone still counts: `before` is the latest result.

    A consumer belongs to the pod set that has its spec, except for tolerations that admission adds; otherwise to one
    with its requests; otherwise to any that still lacks pods.
    """
    now: Counter[int] = Counter()

    def count(there: Counter[_Key], keys: Sequence[_Key]) -> None:
        """Count consumers with a pod set's key as its own, up to what it lacks, and subtract them."""
        for number, (key, (_, most)) in enumerate(zip(keys, pods, strict=True)):
            mine = min(most - now[number], there[key])
            now[number] += mine
            there[key] -= mine

    there = Counter(each.spec for each in consumers if each.stage is not ConsumerStage.PENDING)
    alike: Counter[PodSpec] = Counter()
    for spec, number in there.items():
        alike[_as_written(spec)] += number
    count(alike, [_as_written(spec) for spec, _ in pods])
    as_large: Counter[tuple[tuple[str, int], ...]] = Counter()
    for spec, left in alike.items():
        as_large[spec.requests] += left
    count(as_large, [_as_written(spec).requests for spec, _ in pods])
    count(Counter({None: as_large.total()}), [None] * len(pods))
    return {number: min(most, max(now[number], before.get(number, 0))) for number, (_, most) in enumerate(pods)}


def _as_written(spec: PodSpec) -> PodSpec:
    """Return what a pod and its template have in common: no identity, nothing that admission adds, and not what volumes
    and claims come to, which others decide."""
    tolerations = tuple(each for each in spec.tolerations if each.key not in ADDED_BY_ADMISSION)
    return replace(without_claims(spec), tolerations=tolerations, namespace="", labels=())


@dataclass(frozen=True, slots=True)
class AssumedRequests:
    """What ProvisioningRequests hold, as their controller found it last."""

    bookings: tuple[Booking, ...] = ()
    """The oldest request's first."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Nodes that have to stay for requests, and for which (namespace/name)."""
    places: Mapping[str, Mapping[str, Mapping[PodSpec, int]]] = field(default_factory=dict)
    """`Booked.places` of the bookings."""
    consumers: Mapping[str, Sequence[Consumer]] = field(default_factory=dict)
    """By UID of a request that has places: the pods that consume it."""
    waiting: Mapping[str, Sequence[tuple[PodSpec, ...]]] = field(default_factory=dict)
    """Of each namespace, the pods of requests that wait for room, whenever these are to be tried next."""
    unknown: str = ""
    """Why it is not known yet what they hold, so that nobody plans; empty where it is known, or cannot be."""

    @property
    def pending_consumers(self) -> tuple[str, ...]:
        """The UIDs of pods that consume a request and are not bound."""
        pods = (each for consumers in self.consumers.values() for each in consumers)
        return tuple(each.pod.uid for each in pods if each.stage is ConsumerStage.PENDING)

    def consumer_nodes(self, pending: Mapping[str, PendingPod]) -> dict[str, str]:
        """Return the node of its booking to nominate each of these pods to, by UID: as many as there is room for, and
        each stays where it is nominated already if it can. `pending` are the `pending_consumers` as they are now."""
        nominated = {uid: pod.nominated_node for uid, pod in pending.items()}
        found: dict[str, str] = {}
        for uid, pods in self.consumers.items():
            left: defaultdict[PodSpec, Counter[str]] = defaultdict(Counter)
            for node, places in self.places.get(uid, {}).items():
                for spec, count in places.items():
                    left[_as_written(spec)][node] += count
            waiting = [each for each in pods if each.stage is ConsumerStage.PENDING]
            # False comes first.
            waiting.sort(key=lambda each: not left[_as_written(each.spec)][nominated.get(each.pod.uid, "")])
            for each in waiting:
                nodes = left[_as_written(each.spec)]
                node = nominated.get(each.pod.uid, "")
                if not nodes[node]:
                    node = next((name for name, count in nodes.items() if count), "")
                if node:
                    nodes[node] -= 1
                    found[each.pod.uid] = node
        return {uid: node for uid, node in found.items() if uid in pending}


class AssumedLabels:
    """Booking labels that we have written and the view may not show yet. Lost with the process, at no cost: a new
    process lists everything first. Thread-safe."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, tuple[bool, float]]] = {}
        """By node and label: whether it was set rather than removed, and when."""

    def wrote(self, name: str, labels: Iterable[str], *, there: bool) -> None:
        """Remember labels that were set on a node, or removed."""
        now = self._clock()
        with self._lock:
            self._written.setdefault(name, {}).update((label, (there, now)) for label in labels)

    def seen(self, state: ClusterState) -> ClusterState:
        """Return the cluster with the labels that were written."""
        now = self._clock()
        with self._lock:
            if not self._written:
                return state
            nodes = tuple(self._overlaid(each, now) for each in state.nodes)
            names = {each.node.name for each in nodes}
            for name in [name for name in self._written if name not in names]:
                if all(now - at >= _UNSEEN_SECONDS for _, at in self._written[name].values()):
                    del self._written[name]
        return replace(state, nodes=nodes)

    def _overlaid(self, each: ClusterNode, now: float) -> ClusterNode:
        written = self._written.get(each.node.name)
        if written is None:
            return each
        left = {
            label: (there, at)
            for label, (there, at) in written.items()
            if (label in each.node.labels) is not there and now - at < _UNSEEN_SECONDS
        }
        if not left:
            # Another thread may still bring an older observation; remembering longer for that is not worth it.
            del self._written[each.node.name]
            return each
        self._written[each.node.name] = left
        labels = {name: value for name, value in each.node.labels.items() if left.get(name, (True, 0.0))[0]}
        labels.update((label, "true") for label, (there, _) in left.items() if there)
        return replace(each, node=replace(each.node, labels=labels))
