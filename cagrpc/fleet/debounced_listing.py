"""The backend's lists at its pace and without flicker: an instance that a list lacks is kept until it counts as gone.
What follows from a list is in `lifecycle` and `index`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from cagrpc.fleet.backend import BackendInstance, Listing
from cagrpc.fleet.model import InstanceState
from cagrpc.fleet.serial_backend import SerialBackend
from cagrpc.runtime.clock import EpochClock


class DebouncedListing:
    """The last list, with the instances that lists have lacked for less than `Pace.absent_after_seconds`. Callers hold
    the backend's `turn`.

    Absence counts from the first list that lacks an instance to the last: between lists, however far apart, nothing is
    known.
    """

    def __init__(self, backend: SerialBackend, clock: EpochClock) -> None:
        self._backend = backend
        self._clock = clock
        self._last: Listing | None = None
        self.machines: Mapping[str, BackendInstance] = {}
        """Those of the last list by token, or by id where somebody else has made them and they have none. Unchanged
        ones are the same objects as before, and where all are, so is this: readers need to look at the others only."""
        self._lacking: dict[str, float] = {}
        """By token, of instances that are kept: the time of the first list that lacked it."""
        self._listed_at_seconds: deque[float] = deque()
        """The times of lists, of those that are at least `absent_after_seconds` old the newest only."""
        self._outdated = False
        self._found: tuple[BackendInstance, ...] = ()
        """As the backend listed them last."""
        self._deleted: set[str] = set()
        """Tokens of those that it was asked to delete since."""

    @property
    def absent_from_seconds(self) -> float:
        """Return the time of the newest list that is at least `Pace.absent_after_seconds` older than the last: what
        none has had since is gone. -inf where this process has none."""
        return self._absent_from(self._backend.pace.absent_after_seconds)

    def current(self) -> Listing:
        """Return the list of now, or the last one where it is recent enough for the backend's pace. Raises
        `Unavailable`."""
        pace, last = self._backend.pace, self._last
        recent = last is not None and 0 <= self._clock() - last.as_of_seconds < pace.list_every_seconds
        if last is not None and recent and not self._outdated:
            return last
        found = self._backend.list_instances()
        self._outdated = False
        self._note_time(found.as_of_seconds)
        if last is None or found.instances is not self._found or self._lacking or self._deleted:
            machines = self._machines_of(found, gone_from=self._absent_from(pace.absent_after_seconds))
            if machines != self.machines or last is None:
                self.machines, last = machines, Listing(tuple(machines.values()), found.as_of_seconds)
        self._found = found.instances
        self._last = Listing(last.instances, found.as_of_seconds)
        return self._last

    def changed(self, deleted: Iterable[BackendInstance] = ()) -> None:
        """Note that the backend was asked to create or delete something: it is listed again at once, and nothing that
        it was asked to delete is kept."""
        self._outdated = True
        self._deleted.update(each.token or each.id for each in deleted)

    def _machines_of(self, found: Listing, *, gone_from: float) -> dict[str, BackendInstance]:
        """Return what is listed, and what is kept, which comes last."""
        before = self.machines
        machines: dict[str, BackendInstance] = {}
        for each in found.instances:
            key = each.token or each.id
            known = before.get(key)
            machines[key] = each if known is None or (known is not each and known != each) else known
        lacking: dict[str, float] = {}
        for token in before.keys() - machines.keys() - self._deleted:
            since = min(self._lacking.get(token, found.as_of_seconds), found.as_of_seconds)
            if before[token].state is not InstanceState.DELETING and since > gone_from:
                lacking[token] = since
        machines.update((token, before[token]) for token in before if token in lacking)
        self._lacking, self._deleted = lacking, set()
        return machines

    def _note_time(self, now: float) -> None:
        times = self._listed_at_seconds
        while times and times[-1] > now:  # the clock was set back
            times.pop()
        times.append(now)
        while len(times) > 1 and now - times[1] >= self._backend.pace.absent_after_seconds:
            times.popleft()

    def _absent_from(self, absent_after_seconds: float) -> float:
        times = self._listed_at_seconds
        old_enough = (at for at in reversed(times) if times[-1] - at >= absent_after_seconds)
        return next(old_enough, float("-inf"))
