"""What must be true of every list and of each list after another, whatever a test is about. The suite passes each list
that it gets through `Listings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceState


@dataclass(slots=True)
class _Known:
    """An instance by its lists so far."""

    node_group: str
    accepted_at: float | None = None
    """When an order of it was answered."""
    last: BackendInstance | None = None
    last_at: float = 0.0
    gone: str | None = None
    """Since when it counts as gone, for people."""
    deleting_at: float | None = None
    """The time of the first list that had it as being deleted."""
    ran: bool = False


class Listings:
    """The lists of one cloud, across processes. Raises AssertionError for the first broken promise."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._latest = float("-inf")
        self.series_since = float("inf")
        """When the series of lists began of which the last is a part: as the fleet counts absence
        (`cagrpc.fleet.serial_backend`)."""
        self._was_silent = False
        self._last_tokens: Sequence[str] = ()

    def new_process(self) -> None:
        """Note that the next list is another process's first."""
        self.series_since = float("inf")

    def ordered(self, order: Order) -> None:
        """Note an order before it is sent: from now on its instances may be listed."""
        for each in order.instances:
            self._known.setdefault(each.token, _Known(each.group.id))

    def accepted(self, tokens: Iterable[str], at_seconds: float) -> None:
        """Note the answer to an order."""
        for token in tokens:
            self._known[token].accepted_at = at_seconds

    def check(self, listing: Listing, now: float, pace: Pace) -> None:
        """Check a list that was answered now."""
        as_of, absent_after = listing.as_of_seconds, pace.absent_after_seconds
        _must(as_of <= now, f"as_of_seconds {as_of} is {as_of - now:g} s after the list was answered")
        _must(as_of >= self._latest, f"as_of_seconds went back, from {self._latest} to {as_of}")
        silent = as_of - self._latest > absent_after + pace.list_every_seconds
        if self.series_since == float("inf") or (silent and not self._was_silent):
            self.series_since = as_of
        for token in self._last_tokens if silent else ():
            self._known[token].last_at = as_of
        self._latest, self._was_silent = as_of, silent
        _unique([each.token for each in listing.instances], "token")
        _unique([each.id for each in listing.instances], "id")
        for instance in listing.instances:
            self._check_instance(instance, as_of, absent_after)
        self._check_order([each.token for each in listing.instances])
        listed = {each.token for each in listing.instances}
        for token, known in self._known.items():
            if token not in listed:
                self._note_absence(known, as_of, absent_after)

    def _check_instance(self, instance: BackendInstance, as_of: float, absent_after: float) -> None:
        known = self._known.get(instance.token)
        _must(known is not None, f"listed, but nobody ordered it: {instance}")
        assert known is not None
        found, before = f"listed as {instance}", known.last
        _must(instance.node_group == known.node_group, f"{found}, but ordered for node group {known.node_group}")
        _must(instance.id != "", f"{found}; before it has an id, its token stands for it")
        creating = instance.state is InstanceState.CREATING
        _must(instance.error is None or creating, f"{found}; only one that is being created has an error")
        if before is not None and before.id != instance.id:
            _must(before.id == instance.token, f"{found}, after it had the id {before.id}; an id never changes again")
            _must(not known.ran, f"{found}, after it was running with a provisional id")
        _must(known.gone is None, f"{found}, after {known.gone}")
        if instance.state is InstanceState.DELETING:
            known.deleting_at = as_of if known.deleting_at is None else known.deleting_at
        elif known.deleting_at is not None:
            stale = as_of - known.deleting_at < absent_after
            _must(stale, f"{found}, {as_of - known.deleting_at:g} s after it was being deleted")
        known.ran = known.ran or instance.state is InstanceState.RUNNING
        known.last, known.last_at = instance, as_of

    def _note_absence(self, known: _Known, as_of: float, absent_after: float) -> None:
        """Note that one counts as gone, by the rule of `Pace.absent_after_seconds`."""
        times = [known.accepted_at] if known.last is None else [known.accepted_at, known.last_at]
        seen = [time for time in times if time is not None]
        if not seen or known.gone is not None:
            return
        absent = as_of - max(*seen, self.series_since)
        if absent >= absent_after:
            known.gone = (
                f"the list of {as_of} lacked it for {absent:g} s, and it counts as gone after {absent_after:g} s"
            )

    def _check_order(self, tokens: Sequence[str]) -> None:
        """Instances keep their places among one another."""
        before = [token for token in self._last_tokens if token in set(tokens)]
        now = [token for token in tokens if token in set(before)]
        _must(before == now, f"the order of the list has changed from {', '.join(before)} to {', '.join(now)}")
        self._last_tokens = tokens


def _unique(names: Sequence[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    _must(not twice, f"listed twice with one {what}: {', '.join(twice)}")


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
