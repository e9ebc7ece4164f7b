"""The backend's lists at its pace and without flicker: an instance that a list lacks is kept until it counts as gone.
What follows from a list is in `lifecycle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cagrpc.fleet.backend import BackendInstance, Listing
from cagrpc.fleet.model import InstanceState
from cagrpc.fleet.serial_backend import SerialBackend
from cagrpc.runtime.clock import EpochClock


class SteadyListing:
    """The last list, with the instances that lists have lacked for less than `Pace.absent_after_seconds`. Callers hold
    the backend's `turn`.

    Absence counts from the first list that lacks an instance to the last: between lists, however far apart, nothing is
    known.
    """

    def __init__(self, backend: SerialBackend, clock: EpochClock) -> None:
        self._backend = backend
        self._clock = clock
        self._last: Listing | None = None
        self._seen: dict[str, tuple[BackendInstance, float | None]] = {}
        """By token: the instance as it was listed last, and the time of the first list since then that lacked it."""
        self._listed_at_seconds: deque[float] = deque()
        """The times of lists, of those that are at least `absent_after_seconds` old the newest only."""
        self._outdated = False

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
        gone_from = self._absent_from(pace.absent_after_seconds)
        lacking: dict[str, tuple[BackendInstance, float | None]] = {}
        listed = {each.token for each in found.instances}
        for token, (instance, lacking_since) in self._seen.items():
            since = found.as_of_seconds if lacking_since is None else min(lacking_since, found.as_of_seconds)
            if token not in listed and instance.state is not InstanceState.DELETING and since > gone_from:
                lacking[token] = instance, since
        self._seen = {**{each.token: (each, None) for each in found.instances}, **lacking}
        self._last = Listing((*found.instances, *(each for each, _ in lacking.values())), found.as_of_seconds)
        return self._last

    def changed(self, deleted: Iterable[BackendInstance] = ()) -> None:
        """Note that the backend was asked to create or delete something: it is listed again at once, and nothing that
        it was asked to delete is kept."""
        self._outdated = True
        for each in deleted:
            self._seen.pop(each.token, None)

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
