"""Who keeps consolidation from beginning, and for how long at most: pods that wait, pods that are to be created,
ProvisioningRequests and what increments in flight are for may need the room that it would take away. Each namespace has
a share of time for that, so that no tenant can stop consolidation for the others. What an increment in flight counts on
is never touched, however long it takes. Times are in seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.shortages import would_take
from cagrpc.cluster.state import ClusterState, PodRef, oldest_first
from cagrpc.controllers.events import Note, pod_object
from cagrpc.fleet.model import FleetSnapshot, PodKey
from solver.model import PodSpec

SHARE_SECONDS = 60.0
"""So long pods, requests and increments of one namespace hold consolidation: who plans decides on them within seconds,
and the room that they are given is assumed from then on."""
REGAINED = 1 / 3
"""How much of that a namespace gets back for each second in which nothing of it needs room: it holds consolidation for
a quarter of the time at most."""
_MOST_SPECS = 20
"""Of one namespace, looked at for one that a node could serve. More differ only where somebody wants them to."""
_MOST_NAMED = 3
_TOLD_AFTER_SECONDS = 30.0
"""Of holding: most pods have been planned by then."""


@dataclass(frozen=True, slots=True)
class Needs:
    """How many pods and requests of one namespace need room."""

    waiting: int = 0
    expected: int = 0
    """To be created by their workloads."""
    requests: int = 0
    increments: int = 0
    """In flight for pods or requests of it."""
    first: PodRef | None = None
    """The oldest of those that wait."""


def needs(
    state: ClusterState,
    snapshot: FleetSnapshot,
    requests: Mapping[str, Sequence[tuple[PodSpec, ...]]],
    left_out: AbstractSet[PodKey] = frozenset(),
    in_flight: Mapping[str, int] | None = None,
) -> Mapping[str, Needs]:
    """Return who needs room, by namespace: of the pods only where a node of the cluster or of the fleet could serve one
    of the namespace's. `requests` are the pods of ProvisioningRequests that wait, by namespace. Those count all of
    whose pods a node could serve, also before their next attempt is due, since they are tried when room is made.
    `left_out` are pods for which the latest planning round found no room: they need none of what is there. `in_flight`
    counts increments by namespace."""
    increments = in_flight or {}
    waiting: defaultdict[str, list[PodRef]] = defaultdict(list)
    specs: defaultdict[str, dict[PodSpec, None]] = defaultdict(dict)
    for each in state.waiting:
        for pod in each.pods:
            if pod.key in left_out:
                continue
            waiting[pod.namespace].append(pod)
            specs[pod.namespace][each.pod_set.spec] = None
    served = {
        name for name, of in specs.items() if any(_is_served(each, state, snapshot) for each in islice(of, _MOST_SPECS))
    }
    asking = {name: count for name, of in requests.items() if (count := _servable(of, state, snapshot))}
    found = {}
    for name in sorted({*served, *asking, *increments}):
        pods = waiting[name] if name in served else []
        expected = sum(pod.is_expected for pod in pods)
        first = min((pod for pod in pods if not pod.is_expected), key=oldest_first, default=None)
        found[name] = Needs(len(pods) - expected, expected, asking.get(name, 0), increments.get(name, 0), first)
    return found


def increments_in_flight(state: ClusterState, snapshot: FleetSnapshot, requests: Mapping[str, str]) -> Counter[str]:
    """Return how many increments are in flight for pods or requests of each namespace; empty is the namespace of those
    of which nobody is known any more. `requests` are the namespaces of ProvisioningRequests by UID."""
    going = [each.increment for each in snapshot.increments if each.phase.in_flight]
    pods = {pod.key: pod.namespace for each in state.waiting for pod in each.pods} if going else {}
    found: Counter[str] = Counter()
    for each in going:
        known = {requests.get(uid, "") for uid in each.requests} | {pods.get(key, "") for key in each.pods}
        found.update(known - {""} or {""})
    return found


def _servable(requests: Sequence[tuple[PodSpec, ...]], state: ClusterState, snapshot: FleetSnapshot) -> int:
    """Return how many of a namespace's requests could be served."""
    specs = dict.fromkeys(spec for of in requests for spec in of)
    served = {each for each in islice(specs, _MOST_SPECS) if _is_served(each, state, snapshot)}
    return sum(served.issuperset(of) for of in requests)


def _is_served(spec: PodSpec, state: ClusterState, snapshot: FleetSnapshot) -> bool:
    """Return whether a node of a group, or one that stands, would take the pod if it were empty."""
    groups = (each.group for each in snapshot.groups.values())
    nodes = (each.node for each in state.nodes)
    return any(would_take(spec, each.labels, each.taints, each.allocatable) for each in groups) or any(
        would_take(spec, each.labels, each.taints, each.allocatable, each.name) for each in nodes
    )


@dataclass(frozen=True, slots=True)
class Hold:
    """A namespace that holds consolidation."""

    namespace: str
    since_seconds: float
    """Since the epoch."""
    until_seconds: float
    """At the latest."""
    needs: Needs


@dataclass(slots=True)
class _Share:
    left_seconds: float
    at_seconds: float
    """When that was counted."""
    needs_room: bool
    since_seconds: float
    """When that began, or ended."""


class Holds:
    """What is left of the share of each namespace. For one thread."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    def holding(self, needing: Mapping[str, Needs], now_seconds: float) -> tuple[Hold, ...]:
        """Return which of the namespaces that need room hold consolidation now: who may do so longest comes first."""
        wanted = needing.keys()
        for name in [*self._shares, *(name for name in wanted if name not in self._shares)]:
            known = self._shares.get(name)
            share = known or _Share(SHARE_SECONDS, now_seconds, needs_room=False, since_seconds=now_seconds)
            self._shares[name] = share
            if share.needs_room is not (name in wanted):
                share.since_seconds = now_seconds
            passed = max(0.0, now_seconds - share.at_seconds)
            gained = -passed if share.needs_room else passed * REGAINED
            share.left_seconds = min(SHARE_SECONDS, max(0.0, share.left_seconds + gained))
            share.at_seconds, share.needs_room = now_seconds, name in wanted
        whole = [name for name, share in self._shares.items() if share.left_seconds >= SHARE_SECONDS]
        for name in set(whole) - wanted:
            del self._shares[name]
        found = (
            Hold(name, self._shares[name].since_seconds, now_seconds + self._shares[name].left_seconds, needing[name])
            for name in wanted
            if self._shares[name].left_seconds > 0
        )
        return tuple(sorted(found, key=lambda each: (-each.until_seconds, each.namespace)))


def in_words(holding: Sequence[Hold]) -> tuple[str, ...]:
    """Return who holds consolidation, and until when at most, for people; empty where nobody does."""
    what = {
        "pods wait": sum(each.needs.waiting for each in holding),
        "pods are to be created by their workloads": sum(each.needs.expected for each in holding),
        "ProvisioningRequests need room": sum(each.needs.requests for each in holding),
        "increments are in flight": sum(each.needs.increments for each in holding),
    }
    who = [f"{each.namespace or 'not known'} until {timestamp(each.until_seconds)}" for each in holding]
    if len(who) > _MOST_NAMED:
        who[_MOST_NAMED:] = [f"{len(who) - _MOST_NAMED} more"]
    whose = f" (namespace {', '.join(who)} at the latest)"
    return tuple(f"{said}: {count}{whose}" for said, count in what.items() if count)


def notes(holding: Iterable[Hold], now_seconds: float) -> Iterator[Note]:
    """Yield an Event on the oldest pod of each namespace that has held consolidation for some time."""
    for each in holding:
        pod, at = each.needs.first, each.until_seconds
        if pod is not None and at <= now_seconds + SHARE_SECONDS - _TOLD_AFTER_SECONDS:
            text = f"consolidation waits for this pod and others in its namespace until {timestamp(at)} at the latest"
            yield Note(pod_object(pod), "ConsolidationWaits", text)


def as_json(hold: Hold) -> Mapping[str, Any]:
    return {
        "namespace": hold.namespace,
        "since_seconds": hold.since_seconds,
        "until_seconds": hold.until_seconds,
        "pods_waiting": hold.needs.waiting,
        "expected_pods": hold.needs.expected,
        "requests": hold.needs.requests,
        "increments": hold.needs.increments,
    }
