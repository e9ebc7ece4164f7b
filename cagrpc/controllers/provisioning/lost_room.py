"""Requests whose capacity is lost: with a node of theirs, or to other pods. What is written then is `progress`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cagrpc.controllers.assume_cache.bookings import Booked, Booking, overfull
from cagrpc.controllers.provisioning.observation import RequestsObservation, lacks_nodes
from cagrpc.controllers.provisioning.progress import Action, RequestPhase
from cagrpc.runtime.clock import MonotonicClock
from solver.model.quantities import pluralize

REVOKE_SECONDS = 30.0
"""How long capacity is missing before it counts as lost; until then its node may be back."""


class LostRoom:
    """Since when each request is short of capacity. For one thread."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def why(
        self, observed: RequestsObservation, actions: Mapping[str, Action], bookings: Sequence[Booking], booked: Booked
    ) -> dict[str, str]:
        """Return the message for each request (UID) whose capacity is lost."""
        short = {
            uid: count
            for uid, count in booked.short.items()
            if observed.ours[uid].phase is RequestPhase.PROVISIONED and actions[uid].holds
        }
        if short:
            taken = overfull(bookings, observed.state)
            short = {uid: count for uid, count in short.items() if uid in taken or lacks_nodes(observed, uid)}
        now = self._clock()
        self._since = {uid: self._since.get(uid, now) for uid in short}
        lost = {}
        for uid, count in short.items():
            if now >= self._since[uid] + REVOKE_SECONDS:
                missing = sum(count for _, count in actions[uid].holds)
                lost[uid] = f"no room is left for {count} of its {pluralize(missing, 'pod')} still to come"
        return lost


class GoneNodes:
    """Nodes that were booked beside those that were coming, and went before these were there. For one thread."""

    def __init__(self) -> None:
        self._booked: dict[str, frozenset[str]] = {}

    def of(self, observed: RequestsObservation) -> dict[str, frozenset[str]]:
        """Return the names by request (UID). A node that only lost its label, or that the view has not seen with it, is
        not gone."""
        now = {
            uid: observed.booked.get(uid, frozenset())
            for uid, each in observed.ours.items()
            if each.phase is RequestPhase.COMING
        }
        self._booked = {uid: self._booked.get(uid, frozenset()) | names for uid, names in now.items()}
        missing = {uid: self._booked[uid] - names for uid, names in now.items() if self._booked[uid] != names}
        there = {each.node.name for each in observed.state.nodes} if missing else frozenset[str]()
        return {uid: gone for uid, names in missing.items() if (gone := names - there)}
