"""Scale-ups that failed: stock that a cloud does not have, a quota, nodes that never join. The autoscaler backs off
from such a group for some minutes, then offers it again, and nothing else remembers (kubernetes/autoscaler#4731,
#2075). Here other groups come first meanwhile, longer each time.

A failure is seen by the pods: the autoscaler counts nodes that are coming, so for pods that it offers again none are.
Where the cluster can be read, it is none if the nodes came: the scheduler has given their room to other pods. Where
its status ConfigMap can be read, a back-off is seen there at once. Where one instance type is short in a zone, others
may be short there, and the type may be short elsewhere: such kin comes later too, for a quarter of the time.

What is remembered is kept beyond the process. Replicas share the ConfigMap: it is read once a minute and before each
write, and of each group the later word counts."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from cagrpc.controllers.kept import Keeping
from cagrpc.fleet.prices import NodePlace
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.metrics import AtScrape, gauge
from cagrpc.services.decisions import LONGEST_KEY

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.controllers.autoscaler import GroupSize


SETTLED_SECONDS = 60.0
"""How soon pods may be offered again although their nodes are coming: the autoscaler has not seen the increase yet, or
decides several times in one loop."""
REMEMBERED_SECONDS = 1200.0
"""How long pods may take to be offered again: the autoscaler's --max-node-provision-time (15 minutes), and some loops.
Those that were not are taken to have their nodes."""
FIRST_SECONDS, LONGEST_SECONDS = 600.0, 7200.0
"""How long others come first: twice the autoscaler's own first back-off, doubled each time, at most so long."""
_BACK_OFF = BackOff(FIRST_SECONDS, LONGEST_SECONDS)
FORGOTTEN_SECONDS = 2 * LONGEST_SECONDS
"""After so long a failure is the first one again."""
OF_KIN = 0.25
"""Which part of the time a group comes later when one of its kin failed."""
_OFFERED_AGAIN = "its pods were offered again"
_MOST_CHOICES, _MOST_PODS, _MOST_GROUPS = 256, 200, 500
_LONGEST_TEXT, _LONGEST_LABEL = 300, 63
_NOWHERE = NodePlace()


@dataclass(frozen=True, slots=True)
class Failures:
    """How often scale-ups of one group have failed, and when."""

    times: int
    """In a row; 0 once its nodes have come."""
    at_seconds: float
    """The last time, since the epoch."""
    why: str = _OFFERED_AGAIN
    place: NodePlace = _NOWHERE
    """Of its nodes, as far as it is known."""

    @property
    def until_seconds(self) -> float:
        """Until when others come first."""
        return self.at_seconds + (_BACK_OFF.seconds(self.times) if self.times else 0.0)

    @property
    def kin_until_seconds(self) -> float:
        """Until when others come before its kin."""
        return self.at_seconds + OF_KIN * (self.until_seconds - self.at_seconds)


@dataclass(frozen=True, slots=True)
class SetBack:
    """Why and until when other groups come before one."""

    group: str
    """The group whose scale-up failed: itself, or one of its kin."""
    failures: Failures
    until_seconds: float


@dataclass(frozen=True, slots=True)
class SetBacks:
    """The groups that others come before, at one moment."""

    failed: Mapping[str, Failures]
    until_of_kin: Mapping[tuple[str, str, str], SetBack]
    """By capacity type and instance type, and by capacity type and zone (`_kinds`)."""

    def of(self, group: str, place: NodePlace) -> SetBack | None:
        """Return why other groups come before one; None where they do not. Its kin has the same capacity type, and the
        same instance type or zone."""
        if group in self.failed:
            return SetBack(group, self.failed[group], self.failed[group].until_seconds)
        kin = (self.until_of_kin[each] for each in _kinds(place) if each in self.until_of_kin)
        return max(kin, key=lambda each: each.until_seconds, default=None)


def _kinds(place: NodePlace) -> Iterator[tuple[str, str, str]]:
    if place.instance_type:
        yield place.capacity_type, "type", place.instance_type
    if place.zone:
        yield place.capacity_type, "zone", place.zone


NodesSince = Callable[[str, float], int]
"""How many ready nodes of a group the cluster shows that were created since then."""


def _none_seen(group: str, since_seconds: float) -> int:  # noqa: ARG001 - it is one of `NodesSince`
    return 0


@dataclass(slots=True)
class _ChosenGroup:
    group: str
    place: NodePlace
    pods: AbstractSet[str]
    nodes: float
    at_seconds: float
    again: AbstractSet[str] = frozenset()
    """Those of the pods that were offered again once their nodes were due. The autoscaler may offer some in one loop
    and others in the next."""

    def is_mostly_in(self, pods: AbstractSet[str]) -> bool:
        return 2 * len(self.pods & pods) > len(self.pods)


class FailedScaleUps:
    """Remembers choices, and which of them failed. Thread-safe, and bounded whatever is asked."""

    def __init__(self, clock: EpochClock) -> None:
        self._clock = clock
        self._choices: deque[_ChosenGroup] = deque(maxlen=_MOST_CHOICES)
        self._failed: dict[str, Failures] = {}
        self._backed_off: AbstractSet[str] | None = None
        self._sizes: Mapping[str, GroupSize] | None = None
        self._lock = Lock()
        self.version = 0
        """Grows with each change of what `as_json` returns."""

    def chosen(self, group: str, pods: Iterable[str], place: NodePlace = _NOWHERE, nodes: int = 1) -> None:
        """Note that so many nodes of a group were chosen for these pods."""
        found = frozenset(sorted(pod for pod in pods if len(pod) <= LONGEST_KEY)[:_MOST_PODS])
        with self._lock:
            # What was chosen for these pods before was not carried out, whatever the reason. The same choice made again
            # is as old as the first one: the autoscaler may ask every second, each time for others of the pods.
            kept = [each for each in self._choices if each.group == group or not each.is_mostly_in(found)]
            new = found.difference(*(each.pods for each in kept if each.group == group))
            self._choices = deque(kept, _MOST_CHOICES)
            if new:
                part = nodes * len(new) / len(found)
                self._choices.append(_ChosenGroup(group, place, new, part, self._clock()))

    def offered(self, pods: AbstractSet[str], nodes_since: NodesSince = _none_seen) -> None:
        """Note which pods the autoscaler offers: of choices for most of these, no node is coming. Those of which most
        nodes came did not fail: others have the room."""
        now = self._clock()
        with self._lock:
            stale = [name for name, each in self._failed.items() if now >= each.at_seconds + FORGOTTEN_SECONDS]
            for name in stale:
                self._forget(name)
            failed: set[str] = set()
            came: list[_ChosenGroup] = []
            left: list[_ChosenGroup] = []
            for choice in self._choices:
                has_come = now >= choice.at_seconds + REMEMBERED_SECONDS
                if now >= choice.at_seconds + SETTLED_SECONDS:
                    choice.again |= choice.pods & pods
                    if choice.is_mostly_in(choice.again) and choice.group not in failed:
                        has_come = 2 * nodes_since(choice.group, choice.at_seconds) > choice.nodes
                        if not has_come:
                            failed.add(choice.group)
                            self._fail(choice.group, now, _OFFERED_AGAIN, choice.place)
                (came if has_come else left).append(choice)
            # What else was chosen of a group meanwhile is part of the same failure.
            for choice in came:
                if choice.group not in failed:
                    self._succeed(choice)
            self._choices = deque((each for each in left if each.group not in failed), _MOST_CHOICES)

    def _succeed(self, choice: _ChosenGroup) -> None:
        failed = self._failed.get(choice.group)
        if failed is not None and failed.times and failed.at_seconds <= choice.at_seconds:
            # It stays as one that has not failed, lest another replica's word of the failure comes back.
            self._failed[choice.group] = replace(failed, times=0, at_seconds=self._clock())
            self.version += 1

    def _forget(self, group: str) -> None:
        del self._failed[group]
        self.version += 1

    def _fail(self, group: str, now: float, why: str, place: NodePlace) -> None:
        before = self._failed.pop(group, None)
        if before is not None and place == _NOWHERE:
            place = before.place
        place = NodePlace(*(each[:_LONGEST_LABEL] for each in place))
        self._failed[group] = Failures(1 if before is None else before.times + 1, now, why[:_LONGEST_TEXT], place)
        if len(self._failed) > _MOST_GROUPS:
            del self._failed[next(iter(self._failed))]
        self.version += 1

    def backed_off(self, sizes: Mapping[str, GroupSize], places: Mapping[str, NodePlace]) -> None:
        """Note what the autoscaler's status says: a group that it has backed off from failed, once for each time that
        it begins to. `places` are those of groups, as far as they are known."""
        now = self._clock()
        with self._lock:
            if sizes is self._sizes or not sizes:
                return
            self._sizes = sizes
            backed_off = {name: size.back_off for name, size in sizes.items() if size.back_off}
            begun = backed_off.keys() - (self._backed_off or frozenset())
            if self._backed_off is None:  # since before this process: what was kept counts it already
                begun = {name for name in begun if name not in self._failed}
            known = {**{each.group: each.place for each in self._choices}, **places}
            self._choices = deque((each for each in self._choices if each.group not in begun), _MOST_CHOICES)
            for name in sorted(begun):
                before = self._failed.get(name)
                if before is None or now - before.at_seconds >= FIRST_SECONDS / 2:  # else it was seen by its pods
                    self._fail(name, now, backed_off[name], known.get(name, _NOWHERE))
            self._backed_off = frozenset(backed_off)

    def not_noted(self, sizes: Mapping[str, GroupSize]) -> Sequence[str]:
        """Return the groups that the status says are backed off from, and that were not when it was noted last."""
        with self._lock:
            if sizes is self._sizes:
                return ()
            noted = self._backed_off or frozenset()
            return [name for name, size in sizes.items() if size.back_off and name not in noted]

    def set_backs(self) -> SetBacks:
        """Return the groups that others come before, and which kin."""
        now = self._clock()
        with self._lock:
            failed = dict(self._failed)
        of_kin: dict[tuple[str, str, str], SetBack] = {}
        for name, each in failed.items():
            found = SetBack(name, each, each.kin_until_seconds)
            for kind in _kinds(each.place) if now < found.until_seconds else ():
                if kind not in of_kin or of_kin[kind].until_seconds < found.until_seconds:
                    of_kin[kind] = found
        return SetBacks({name: each for name, each in failed.items() if now < each.until_seconds}, of_kin)

    def as_json(self) -> dict[str, Any]:
        """Return what has to outlive the process."""
        with self._lock:
            return {
                name: {"times": each.times, "at": each.at_seconds, "why": each.why, "place": [*each.place]}
                for name, each in self._failed.items()
            }

    def restore(self, kept: Any) -> None:
        """Take up what `as_json` returned in another process; what is malformed is left out. Of one group the later
        failure counts, in a row with all that came before."""
        now = self._clock()
        with self._lock:
            for name, each in list(kept.items())[:_MOST_GROUPS] if isinstance(kept, dict) else ():
                found = _failures(each)
                if found is None or not now - FORGOTTEN_SECONDS < found.at_seconds <= now:
                    continue
                own = self._failed.get(name)
                if own is None and len(self._failed) >= _MOST_GROUPS:
                    continue
                self._failed[name] = found if own is None else _merged(own, found)


def _merged(own: Failures, other: Failures) -> Failures:
    later, earlier = (own, other) if own.at_seconds >= other.at_seconds else (other, own)
    times = max(later.times, earlier.times) if later.times else 0
    return replace(later, times=times, place=later.place if later.place != _NOWHERE else earlier.place)


def _failures(kept: Any) -> Failures | None:
    try:
        times, at, why = int(kept["times"]), float(kept["at"]), str(kept["why"])[:_LONGEST_TEXT]
        place = NodePlace(*(str(each)[:_LONGEST_LABEL] for each in kept["place"]))
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    return Failures(times, at, why, place) if times >= 0 and math.isfinite(at) else None


CONFIG_MAP = "cagrpc-failed-scale-ups"
FILE = "failed-scale-ups.json"
KEY = "failures"
"""Of the ConfigMap."""
_MOST_SHOWN = 20
_STEPS_PER_READ = 12
"""What other replicas have learned is read once a minute."""


class KeptFailures(Controller):
    """Reads and writes it, and shows which groups are set back."""

    name = "keeping failed scale-ups"
    every_seconds = 5.0

    def __init__(self, failed: FailedScaleUps, kept: Keeping) -> None:
        self._failed = failed
        self._kept = kept
        self._written: int | None = None
        """Its version; None as long as what was kept is not read."""
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._failed.version == self._written and self._steps % _STEPS_PER_READ:
            return
        # Others keep theirs in the same place: what they wrote is taken up before it is written over.
        version, kept = self._failed.version, _parsed(self._kept.read())
        self._failed.restore(kept)
        found = self._failed.as_json()
        if found != kept:
            self._kept.write(json.dumps(found, separators=(",", ":")))
        self._written = version

    def status(self) -> Json:
        found = self._failed.set_backs().failed
        shown: dict[str, Any] = {
            name: {
                "times": each.times,
                "why": each.why,
                "until": datetime.fromtimestamp(each.until_seconds, UTC).isoformat(timespec="seconds"),
            }
            for name, each in list(found.items())[:_MOST_SHOWN]
        }
        return {"failed_scale_ups": shown} if shown else {}

    def collectors(self) -> tuple[Collector, ...]:
        meaning = "Node groups of another cloud provider that other groups come before, as their last scale-up failed."
        groups = "cagrpc_expander_groups_set_back"
        return (AtScrape(lambda: [gauge(groups, meaning, len(self._failed.set_backs().failed))]),)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # nothing yet, or what somebody else wrote
        return {}
