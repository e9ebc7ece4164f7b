"""Fairness between namespaces: whose request's turn it is, and how much one namespace may have reserved at once.
Whatever one of them asks for, the others are served beside it. No I/O; `Turns` remembers who was served last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TypeVar

from cagrpc.controllers.assume_cache.bookings import Booking
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.decisions import MOST_AT_ONCE
from cagrpc.controllers.provisioning.model import namespace_of
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import Action, ManagedRequest, Pods, RequestPhase
from cagrpc.controllers.settings import ClassBehaviour, NamespaceSettings
from cagrpc.runtime.back_off import rest_seconds
from cagrpc.runtime.clock import MonotonicClock
from solver.model.quantities import pluralize

T = TypeVar("T")

_MOST_NAMESPACES = 10_000
"""How many namespaces `Turns` remembers."""
_SECTION = "provisioning_requests.per_namespace"


def one_by_one(found: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Return the first of each namespace, then the second of each, and so on, otherwise in their order."""
    before: Counter[str] = Counter()
    turns: list[tuple[int, int, T]] = []
    for number, each in enumerate(found):
        turns.append((before[namespace(each)], number, each))
        before[namespace(each)] += 1
    return [each for *_, each in sorted(turns, key=lambda turn: turn[:2])]


class Turns:
    """The order of requests: at one priority namespaces take turns, the one that was served longest ago first, each
    with its oldest request. For one thread. Lost with the process, at no cost."""

    def __init__(self, settings: NamespaceSettings, clock: MonotonicClock) -> None:
        self._settings = settings
        self._clock = clock
        self._served: dict[str, int] = {}
        self._kept_since: dict[str, float] = {}
        self._rest_until: dict[str, float] = {}
        self._numbers = count(1)

    def in_order(self, asking: Iterable[ManagedRequest]) -> list[ManagedRequest]:
        """Return the requests in the order in which they are served, the highest priority first."""
        by_age = sorted(asking, key=_by_priority_and_age)
        before: Counter[tuple[int, str]] = Counter()
        turns = []
        for number, each in enumerate(by_age):
            priority, namespace = priority_of(each), each.request.namespace
            if namespace not in self._served:  # it comes after those that have waited already
                self.served([namespace])
            turns.append((-priority, before[priority, namespace], self._served[namespace], number, each))
            before[priority, namespace] += 1
        return [each for *_, each in sorted(turns, key=lambda turn: turn[:4])]

    def joining(self, asking: Iterable[ManagedRequest]) -> list[ManagedRequest]:
        """Return the requests that were bypassed most often first, taking turns between namespaces."""
        most = sorted(asking, key=lambda each: (-conditions.bypassed_of(each.request), *_by_priority_and_age(each)))
        return one_by_one(most, lambda each: each.request.namespace)

    def served(self, namespaces: Iterable[str]) -> None:
        """Note that these namespaces were served just now, or ask for the first time."""
        for namespace in namespaces:
            self._served.pop(namespace, None)
            self._served[namespace] = next(self._numbers)
            if len(self._served) > _MOST_NAMESPACES:
                del self._served[next(iter(self._served))]

    def refused(self, namespaces: Iterable[str], seconds: float) -> None:
        """Note what was refused in so many seconds of deciding, the namespace of each request. Nothing of such a
        namespace is decided while its part of them rests, which is its part of the requests."""
        refused, now = Counter(namespaces), self._clock()
        self._rest_until = {name: until for name, until in self._rest_until.items() if now < until}
        for namespace, requests in refused.items():
            self._rest_until[namespace] = now + rest_seconds(seconds * requests / refused.total())

    def rests(self, namespace: str) -> bool:
        """Return whether nothing of it is decided now, since deciding what was refused has used its share of time."""
        return self._clock() < self._rest_until.get(namespace, float("-inf"))

    def may_keep(self, namespace: str) -> bool:
        """Return whether capacity may be reserved for a bypassed request of it: for `bypassed_seconds`, and then not
        for as long again."""
        since, seconds = self._kept_since.get(namespace), self._settings.bypassed_seconds
        if since is not None and self._clock() >= since + 2 * seconds:
            del self._kept_since[namespace]
            return True
        return since is None or self._clock() < since + seconds

    def kept(self, namespaces: Iterable[str]) -> None:
        """Note that capacity is reserved for bypassed requests of these namespaces."""
        for namespace in namespaces:
            self._kept_since.setdefault(namespace, self._clock())


def due(
    observed: RequestsObservation,
    actions: Mapping[str, Action],
    behaviour: ClassBehaviour,
    turns: Turns,
    shares: Shares,
) -> list[ManagedRequest]:
    """Return the requests to be decided together now, in their order. Those that only join, before their next attempt
    is due, get half of the places at most where more are due: they would otherwise crowd out the others each time."""
    known = [
        (each, actions[uid])
        for uid, each in observed.ours.items()
        if isinstance(each.pods, Pods)
        and each.phase is RequestPhase.WAITING
        and each.service.behaviour is behaviour
        and uid in actions
    ]
    wanting = shares.taken(turns.in_order(each for each, comes in known if comes.wants), MOST_AT_ONCE)
    if not wanting:
        return []
    places = max(MOST_AT_ONCE // 2, MOST_AT_ONCE - len(wanting))
    joining = shares.taken(turns.joining(each for each, comes in known if comes.joins), places)
    return turns.in_order(wanting[: MOST_AT_ONCE - len(joining)] + joining)


class Shares:
    """What namespaces have reserved, and what may be added."""

    def __init__(self, bookings: Iterable[Booking], most: NamespaceSettings) -> None:
        self._most = most
        self._requests: Counter[str] = Counter()
        self._pods: Counter[str] = Counter()
        for each in bookings:
            self._add(namespace_of(each.key), sum(pods for _, pods in each.pods))

    def why_not(self, each: ManagedRequest) -> str:
        """Return why the request has to wait for others of its namespace to finish; empty where it has not. The text is
        the same for as long as it waits."""
        if not each.service.books or not isinstance(each.pods, Pods):
            return ""
        namespace, pods, most = each.request.namespace, each.pods.count, self._most
        if pods > most.pods:
            return (
                f"it asks for {pluralize(pods, 'pod')}, and a namespace may have capacity reserved for {most.pods}"
                f" ({_SECTION}.pods)"
            )
        if self._requests[namespace] >= most.requests:
            return (
                f"capacity is reserved for {pluralize(most.requests, 'request')} of namespace {namespace}, the most"
                f" at once ({_SECTION}.requests); its turn comes when all pods of one have come, or it is deleted"
            )
        if self._pods[namespace] + pods > most.pods:
            return (
                f"with its {pluralize(pods, 'pod')}, capacity would be reserved for more than {most.pods} of namespace"
                f" {namespace} ({_SECTION}.pods); its turn comes when enough of those have come, or their requests"
                " are deleted"
            )
        return ""

    def taken(self, ordered: Iterable[ManagedRequest], most: int) -> list[ManagedRequest]:
        """Return the first `most` that may be served, and count them as reserved from now on."""
        found: list[ManagedRequest] = []
        for each in ordered:
            if len(found) == most:
                break
            if not self.why_not(each):
                found.append(each)
                if each.service.books and isinstance(each.pods, Pods):
                    self._add(each.request.namespace, each.pods.count)
        return found

    def _add(self, namespace: str, pods: int) -> None:
        self._requests[namespace] += 1
        self._pods[namespace] += pods


def priority_of(each: ManagedRequest) -> int:
    """Return the priority of the request's pods."""
    return each.pods.priority if isinstance(each.pods, Pods) else 0


def _by_priority_and_age(each: ManagedRequest) -> tuple[int, float, str]:
    return -priority_of(each), each.request.created_at_seconds, each.request.uid
