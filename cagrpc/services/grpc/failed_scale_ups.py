"""Scale-ups that failed: stock that a cloud does not have, a quota, nodes that never join. The autoscaler backs off
from such a group for some minutes, then offers it again, and nothing else remembers (kubernetes/autoscaler#4731,
#2075). Here other groups come first meanwhile, longer each time.

A failure is seen by the pods: the autoscaler counts nodes that are coming, so for pods that it offers again none are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from threading import Lock

from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import EpochClock
from cagrpc.services.decisions import LONGEST_KEY

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
_MOST_CHOICES, _MOST_PODS, _MOST_GROUPS = 256, 200, 1_000


@dataclass(frozen=True, slots=True)
class Failures:
    """Of the scale-ups of one group."""

    times: int
    """In a row."""
    at_seconds: float
    """The last time, since the epoch."""

    @property
    def until_seconds(self) -> float:
        """Until when others come first."""
        return self.at_seconds + _BACK_OFF.seconds(self.times)


@dataclass(frozen=True, slots=True)
class _ChosenGroup:
    group: str
    pods: frozenset[str]
    at_seconds: float

    def is_mostly_in(self, pods: AbstractSet[str]) -> bool:
        return 2 * len(self.pods & pods) > len(self.pods)


class FailedScaleUps:
    """Remembers choices, and which of them failed. Thread-safe, and bounded whatever is asked."""

    def __init__(self, clock: EpochClock) -> None:
        self._clock = clock
        self._choices: deque[_ChosenGroup] = deque(maxlen=_MOST_CHOICES)
        self._failed: dict[str, Failures] = {}
        self._lock = Lock()

    def chosen(self, group: str, pods: Iterable[str]) -> None:
        """Note that a group was chosen for these pods."""
        found = frozenset(sorted(pod for pod in pods if len(pod) <= LONGEST_KEY)[:_MOST_PODS])
        with self._lock:
            # What was chosen for these pods before was not carried out, whatever the reason.
            kept = (each for each in self._choices if not each.is_mostly_in(found))
            self._choices = deque(kept, _MOST_CHOICES)
            if found:
                self._choices.append(_ChosenGroup(group, found, self._clock()))

    def offered(self, pods: AbstractSet[str]) -> None:
        """Note which pods the autoscaler offers: of choices for most of these, no node is coming."""
        now = self._clock()
        with self._lock:
            stale = [name for name, each in self._failed.items() if now >= each.at_seconds + FORGOTTEN_SECONDS]
            for name in stale:
                del self._failed[name]
            kept = []
            for choice in self._choices:
                age = now - choice.at_seconds
                if age >= SETTLED_SECONDS and choice.is_mostly_in(pods):
                    self._fail(choice.group, now)
                elif age >= REMEMBERED_SECONDS:
                    self._succeed(choice)
                else:
                    kept.append(choice)
            self._choices = deque(kept, _MOST_CHOICES)

    def _succeed(self, choice: _ChosenGroup) -> None:
        failed = self._failed.get(choice.group)
        if failed is not None and failed.at_seconds <= choice.at_seconds:
            del self._failed[choice.group]

    def _fail(self, group: str, now: float) -> None:
        before = self._failed.pop(group, None)
        self._failed[group] = Failures(1 if before is None else before.times + 1, now)
        if len(self._failed) > _MOST_GROUPS:
            del self._failed[next(iter(self._failed))]

    def of(self, group: str) -> Failures | None:
        """Return when and how often scale-ups of a group failed; None where others do not come first."""
        with self._lock:
            found = self._failed.get(group)
        return found if found is not None and self._clock() < found.until_seconds else None
