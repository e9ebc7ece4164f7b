"""Which requests that wait for room could use what has become free since they were decided: a node freed or come, a
group or a limit with more room, a shortage that is over, a reservation that is gone. They are tried again then, and not
only when their next attempt is due. Whether they are served is `deciding`'s; an early try counts as no attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cagrpc.cluster.node_info import NodeInfo
from cagrpc.cluster.shortages import could_hold
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import ManagedRequest, Pods, RequestPhase
from cagrpc.runtime.clock import MonotonicClock
from solver.model import PODS, Node, NodeGroup, PodSpec
from solver.model.capacity import remaining

REQUEUE_SECONDS = 10.0
"""The least time between two requeues: in a cluster whose pods come and go all the time, something is freed every
second."""

_DEVICES = "devices of claims"


@dataclass(frozen=True, slots=True)
class _Capacity:
    """What room there was at one observation."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Those that pods may be bound to."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Node group -> nodes that it may have more."""
    limits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(limit, resource) -> what is left of it."""
    short: frozenset[str] = frozenset()
    """Offerings left out."""
    booked: frozenset[str] = frozenset()
    """UIDs of requests with reservations."""


class CapacityRequeue:
    """The requests to be tried before their next attempt is due. For one thread; lost with the process, at no cost."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._known: _Capacity | None = None
        self._requeue: frozenset[str] = frozenset()
        self._tried_at = float("-inf")

    def learn(self, observed: RequestsObservation, booked: Iterable[str]) -> None:
        """Compare the room there is with that of the last observation. `booked` are the UIDs of requests with
        reservations."""
        before, now = self._known, _capacity(observed, frozenset(booked))
        self._known = now
        waiting = {uid: each for uid, each in observed.ours.items() if _waits_for_room(each)}
        woken = set(self._requeue & waiting.keys())
        if before is not None and waiting.keys() - woken:
            for_all = bool(before.short - now.short or before.booked - now.booked) or _grown(before.limits, now.limits)
            groups = [observed.fleet.groups[name].group for name in _more(before.groups, now.groups)]
            freed = list(_freed(before.nodes, now.nodes))
            woken.update(uid for uid, each in waiting.items() if for_all or _can_use(each, groups, freed))
        self._requeue = frozenset(woken)

    def due(self) -> frozenset[str]:
        """Return the UIDs of the requests to be tried now."""
        return self._requeue if self._clock() >= self._tried_at + REQUEUE_SECONDS else frozenset()

    def tried(self, uids: Iterable[str]) -> None:
        """Note that these requests are decided now."""
        uids = frozenset(uids)
        if uids & self._requeue:
            self._tried_at = self._clock()
            self._requeue -= uids


def _waits_for_room(each: ManagedRequest) -> bool:
    return (
        each.phase is RequestPhase.WAITING
        and isinstance(each.pods, Pods)
        and conditions.BYPASSED in each.request.details
    )


def _capacity(observed: RequestsObservation, booked: frozenset[str]) -> _Capacity:
    held = observed.fleet.held_instances
    return _Capacity(
        {
            each.node.name: each.node
            for each in observed.state.nodes
            if each.ready and not each.held and each.provider_id not in held
        },
        {name: each.group.max_size - each.target_size for name, each in observed.fleet.groups.items()},
        {(each.name, name): left for each in observed.fleet.limits for name, left in remaining(each).items()},
        observed.snapshot.short,
        booked,
    )


def _more(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    return (name for name, amount in now.items() if amount > before.get(name, 0))


def _grown(before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> bool:
    return any(amount > before.get(key, amount) for key, amount in now.items()) or bool(before.keys() - now.keys())


def _freed(before: Mapping[str, Node], now: Mapping[str, Node]) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield the nodes with more room than before, and of which resources; `_DEVICES` among them where more devices can
    be claimed: a claim is deallocated only some time after its pod has ended."""
    for name, node in now.items():
        old = before.get(name)
        if old is None:
            yield node, frozenset((*node.free, _DEVICES))
        elif old is not node and (old.free, old.devices) != (node.free, node.devices):
            more = {resource for resource, free in node.free.items() if free > old.free.get(resource, 0)}
            if sum(each.count for each in node.devices) > sum(each.count for each in old.devices):
                more.add(_DEVICES)
            if more:
                yield node, frozenset(more)


def _can_use(each: ManagedRequest, groups: Iterable[NodeGroup], freed: Iterable[tuple[Node, frozenset[str]]]) -> bool:
    assert isinstance(each.pods, Pods)
    specs = list(dict.fromkeys(spec for spec, _ in each.pods.sets))
    if any(could_hold(group, spec) for group in groups for spec in specs):
        return True
    return any(_fits(spec, node, more) for node, more in freed for spec in specs)


def _fits(spec: PodSpec, node: Node, more: frozenset[str]) -> bool:
    uses = any(name in more for name, _ in (*spec.requests, (PODS, 1))) or (bool(spec.claims) and _DEVICES in more)
    return uses and NodeInfo(node).fits(spec)
