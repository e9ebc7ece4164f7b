"""Pods for which rounds find no room. Those that a long round has left out back off, as kube-scheduler's unschedulable
pods do: the next rounds go without them for a while, longer each time, so that pods that are hard to plan do not hold
up all others. When that is over new pods still come first; those left out are then planned in a round of their own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.cluster.state import PodRef, WaitingPods
from cagrpc.controllers.planning.records import Rounds
from cagrpc.fleet.model import PodKey
from cagrpc.runtime.back_off import LONGEST_REST_SECONDS, BackOff, rest_seconds
from cagrpc.runtime.clock import MonotonicClock
from solver.explanation.model import WhyWaiting

_CHEAP_SECONDS = 1.0
"""Pods that a round of this length left out are planned again in each of the next ones."""


class UnschedulablePods:
    """The pods that the latest rounds left out, and until when they back off. For one thread."""

    def __init__(self, rounds: Rounds, clock: MonotonicClock) -> None:
        self._rounds, self._clock = rounds, clock
        self._position: Mapping[PodKey, int] = {}
        """Of the pod's class among what the latest record has left out."""
        self._until = float("-inf")
        self._offered: Hashable = None
        """What could be ordered when they were left out: anything else is a reason to plan them again."""
        self._any = False
        """Whether the latest round went without such pods."""
        self._in_vain = 0
        """Long rounds in a row that left pods out, with what could be ordered unchanged."""

    @property
    def keys(self) -> frozenset[PodKey]:
        """The pods that the latest rounds left out."""
        return frozenset(self._position)

    def still_waiting(self, waits: Callable[[PodKey], bool]) -> Counter[int]:
        """Return how many pods of each class that the latest record has left out wait still. For any thread."""
        position = self._position  # replaced as a whole
        return Counter(number for key, number in position.items() if waits(key))

    @property
    def due(self) -> bool:
        """Whether pods have backed off for long enough."""
        return self._any and self._clock() >= self._until

    def backing_off(
        self, waiting: Iterable[WaitingPods], served: AbstractSet[PodKey], offered: Hashable
    ) -> tuple[PodRef, ...]:
        """Return the pods that this round goes without. None of them has a higher priority than one that it plans,
        or belongs to the same gang. `served` are pods that have a place already."""
        found: tuple[PodRef, ...] = ()
        now = self._clock()
        if self._position and now < self._until + LONGEST_REST_SECONDS and offered == self._offered:
            sets = [(each, [pod for pod in each.pods if pod.key not in served]) for each in waiting]
            new = [each.pod_set for each, pods in sets if any(pod.key not in self._position for pod in pods)]
            least = min((each.priority for each in new), default=float("inf"))
            gangs = {each.gang for each in new} - {None}
            found = tuple(
                pod
                for each, pods in (sets if new or now < self._until else ())
                if each.pod_set.priority <= least and each.pod_set.gang not in gangs
                for pod in pods
                if pod.key in self._position
            )
        self._any = bool(found)
        return found

    def record(
        self,
        unplaced: Mapping[int, WhyWaiting],
        pods: Mapping[int, Iterable[PodRef]],
        backing_off: Iterable[PodRef],
    ) -> tuple[WhyWaiting, ...]:
        """Return all that the record of a round is to say of unplaced pods: first of those that it planned, which both
        mappings have by class, then what the latest record said of those that it went without."""
        before = self._rounds.unplaced()
        position = {pod.key: number for number, index in enumerate(unplaced) for pod in pods.get(index, ())}
        still: defaultdict[int, list[PodRef]] = defaultdict(list)
        for pod in backing_off:
            still[self._position[pod.key]].append(pod)
        said = list(unplaced.values())
        for index, mine in still.items():
            position.update((pod.key, len(said)) for pod in mine)
            example = f"{mine[0].namespace}/{mine[0].name}"
            said.append(replace(before[index], count=len(mine), example=example))
        self._position = position
        return tuple(said)

    def planned(self, seconds: float, offered: Hashable) -> None:
        """Let the pods that a round has left out back off if it took long, twice as long as the time before."""
        vain = seconds > _CHEAP_SECONDS and bool(self._position)
        self._in_vain = (self._in_vain if offered == self._offered else 0) + 1 if vain else 0
        rests = BackOff(rest_seconds(seconds), LONGEST_REST_SECONDS).seconds(self._in_vain)
        self._until = self._clock() + rests if vain else float("-inf")
        self._offered = offered
