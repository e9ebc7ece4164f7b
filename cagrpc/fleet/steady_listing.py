"""The backend's lists at its pace and without flicker: an instance that a list lacks is kept until it counts as gone.
What follows from a list is in `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        """By token: the instance as it was listed last, and when."""
        self._outdated = False
        self.absent_after_seconds = 0.0
        """Of the backend's pace, as of the last list."""

    def current(self) -> Listing:
        """Return the list of now, or the last one where it is recent enough for the backend's pace. Raises
        `Unavailable`."""
        pace = self._backend.pace
        last = self._last
        recent = last is not None and 0 <= self._clock() - last.as_of_seconds < pace.list_every_seconds
        if last is not None and recent and not self._outdated:
            return last
        self.absent_after_seconds = pace.absent_after_seconds
        found = self._backend.list_instances()
        self._outdated = False
        missing = {token: each for token, each in self._seen.items() if self._is_kept(*each, found.as_of_seconds)}
        listed = {each.token: (each, found.as_of_seconds) for each in found.instances}
        self._seen = {**{token: each for token, each in missing.items() if token not in listed}, **listed}
        if len(self._seen) > len(listed):
            kept = [each for token, (each, _) in self._seen.items() if token not in listed]
            found = Listing((*found.instances, *kept), found.as_of_seconds)
        self._last = found
        return found

    def changed(self, deleted: Iterable[BackendInstance] = ()) -> None:
        """Note that the backend was asked to create or delete something: it is listed again at once, and nothing that
        it was asked to delete is kept."""
        self._outdated = True
        for each in deleted:
            self._seen.pop(each.token, None)

    def _is_kept(self, instance: BackendInstance, listed_at: float, now: float) -> bool:
        if instance.state is InstanceState.DELETING:
            return False
        return now - listed_at < self.absent_after_seconds
