"""The backend's lists at its pace and without flicker: an instance that a list lacks is kept until it counts as gone.
What follows from a list is in `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from cagrpc.fleet.backend import BackendInstance, Listing
from cagrpc.fleet.model import InstanceState
from cagrpc.fleet.serial_backend import SerialBackend
from cagrpc.runtime.clock import EpochClock


class SteadyListing:
    """The last list, with the instances that it lacks for less than `Pace.absent_after_seconds`. Callers hold the
    backend's `turn`."""

    def __init__(self, backend: SerialBackend, clock: EpochClock) -> None:
        self._backend = backend
        self._clock = clock
        self._last: Listing | None = None
        self._seen: dict[str, tuple[BackendInstance, float]] = {}
        """By token: the instance as it was listed last, and since when it may be absent."""
        self._listed: AbstractSet[str] = frozenset()
        """The tokens of the last list."""
        self._was_silent = False
        self._outdated = False
        self.absent_after_seconds = 0.0
        """Of the backend's pace, as of the last list."""
        self.since_seconds = float("inf")
        """When the series of lists began of which the last is a part: with the first of this process, or after a time
        without any in which an instance might have become absent. Nothing is absent by one list after a silence."""

    def current(self) -> Listing:
        """Return the list of now, or the last one where it is recent enough for the backend's pace. Raises
        `Unavailable`."""
        pace, last = self._backend.pace, self._last
        recent = last is not None and 0 <= self._clock() - last.as_of_seconds < pace.list_every_seconds
        if last is not None and recent and not self._outdated:
            return last
        found = self._backend.list_instances()
        self._outdated = False
        self.absent_after_seconds = pace.absent_after_seconds
        self._note_silence(last, found, pace.absent_after_seconds + pace.list_every_seconds)
        listed = {each.token: (each, found.as_of_seconds) for each in found.instances}
        kept = {
            token: seen
            for token, seen in self._seen.items()
            if token not in listed and not self._is_gone(*seen, found.as_of_seconds)
        }
        self._seen, self._listed = {**listed, **kept}, listed.keys()
        self._last = Listing((*found.instances, *(each for each, _ in kept.values())), found.as_of_seconds)
        return self._last

    def changed(self, deleted: Iterable[BackendInstance] = ()) -> None:
        """Note that the backend was asked to create or delete something: it is listed again at once, and nothing that
        it was asked to delete is kept."""
        self._outdated = True
        for each in deleted:
            self._seen.pop(each.token, None)

    def _note_silence(self, last: Listing | None, found: Listing, longest: float) -> None:
        """Where there were no lists for long, let no instance of the last one be absent before the next. One that the
        last one lacked already may be: where lists are always that far apart, absence would never be noticed."""
        now = found.as_of_seconds
        silent = last is not None and now - last.as_of_seconds > longest
        if last is None or now < last.as_of_seconds or (silent and not self._was_silent):
            self.since_seconds = now
        if silent:
            self._seen = {key: (each, now if key in self._listed else at) for key, (each, at) in self._seen.items()}
        self._was_silent = silent

    def _is_gone(self, instance: BackendInstance, listed_at: float, now: float) -> bool:
        if instance.state is InstanceState.DELETING:
            return True
        return now - listed_at >= self.absent_after_seconds
