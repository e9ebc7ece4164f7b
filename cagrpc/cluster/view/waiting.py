"""The pods that wait, from classes to what planning takes: gangs divided, and classes together that no plan can tell
apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from cagrpc.api.core.gangs import GangCount, divide
from cagrpc.api.core.selectors import PodProjection
from cagrpc.cluster.state import IncompleteGang, PodRef, WaitingPods, oldest_first
from cagrpc.cluster.view.classes import Classes, EquivalenceClass
from cagrpc.cluster.view.workloads import Priorities
from cagrpc.fleet.model import PodKey
from solver.model import PodSet, PodSpec

_Alike = tuple[PodSpec, int, str | None]
"""Spec, priority, gang."""


class Waiting:
    """The pods to plan at `now_seconds` (since the epoch), without those whose keys are in `without`, which count as
    served, and those of a priority below `expendable_below`."""

    def __init__(
        self,
        classes: Classes,
        seen: PodProjection,
        priorities: Priorities,
        gang: Callable[[str], GangCount],
        *,
        now_seconds: float,
        without: AbstractSet[PodKey],
        expendable_below: int,
    ) -> None:
        self.incomplete: tuple[IncompleteGang, ...] = ()
        self._classes = classes
        self._seen = seen
        self._priorities = priorities
        self._now = int(now_seconds)
        self._expendable_below = expendable_below
        self._alike: defaultdict[_Alike, list[Sequence[PodRef]]] = defaultdict(list)
        self._add_all(gang, without)

    def pods(self) -> tuple[WaitingPods, ...]:
        """Return the waiting pods, oldest first."""
        found = [self._waiting(alike, lists) for alike, lists in self._alike.items()]
        return tuple(sorted(found, key=lambda each: oldest_first(each.pods[0])))

    def _add_all(self, gang: Callable[[str], GangCount], without: AbstractSet[PodKey]) -> None:
        of_gangs: defaultdict[str, list[tuple[EquivalenceClass, PodRef]]] = defaultdict(list)
        left_out: defaultdict[str, int] = defaultdict(int)
        for of in self._classes.with_waiting:
            refs: Sequence[PodRef] = of.ordered()
            if without:
                refs = [ref for ref in refs if ref.key not in without]
            membership = of.key.gang
            if membership is None:
                self._add(of, None, refs)
            else:
                of_gangs[membership.name] += ((of, ref) for ref in refs)
                left_out[membership.name] += len(of.waiting) - len(refs)
        incomplete = []
        for name in sorted(of_gangs):
            missing = self._add_gang(name, gang(name), of_gangs[name], left_out[name])
            if missing:
                incomplete.append(missing)
        self.incomplete = tuple(incomplete)

    def _add_gang(
        self,
        name: str,
        gang: GangCount,
        members: list[tuple[EquivalenceClass, PodRef]],
        left_out: int,
    ) -> IncompleteGang | None:
        members.sort(key=lambda each: oldest_first(each[1]))
        division = divide(
            ((member, 1) for member in members),
            min_count=gang.min_count,
            bound=gang.bound + left_out,
            held_back=gang.held_back,
        )
        if division.missing:
            needed = division.there + division.missing
            return IncompleteGang(name, division.there, needed, tuple(ref for _, ref in members))
        for of_gang, pods in ((name, division.whole), (None, division.others)):
            for of, refs in _by_class(member for member, _ in pods).items():
                self._add(of, of_gang, refs)
        return None

    def _add(self, of: EquivalenceClass, gang: str | None, refs: Sequence[PodRef]) -> None:
        priority = self._priority(of)
        if refs and priority is not None and priority >= self._expendable_below:
            self._alike[of.planned(self._seen), priority, gang].append(refs)

    def _priority(self, of: EquivalenceClass) -> int | None:
        """Return the pods' priority; None where admission would reject them."""
        if not of.key.admitted:
            return self._priorities.of_template(of.key.priority_class)
        found = self._priorities.of.get(of.key.priority_class)
        return found.value if found else of.key.priority

    def _waiting(self, alike: _Alike, lists: Sequence[Sequence[PodRef]]) -> WaitingPods:
        spec, priority, gang = alike
        pods = lists[0] if len(lists) == 1 else sorted((ref for refs in lists for ref in refs), key=oldest_first)
        first = pods[0]
        since = first.created_at_seconds
        pod_set = PodSet(
            name=f"{first.namespace}/{first.name}",
            spec=spec,
            count=len(pods),
            priority=priority,
            waiting_seconds=max(0, self._now - since) if since else 0,
            gang=gang,
        )
        return WaitingPods(pod_set, tuple(pods))


def _by_class(members: Iterable[tuple[EquivalenceClass, PodRef]]) -> Mapping[EquivalenceClass, list[PodRef]]:
    found: defaultdict[EquivalenceClass, list[PodRef]] = defaultdict(list)
    for of, ref in members:
        found[of].append(ref)
    return found
