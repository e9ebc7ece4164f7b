"""Send the orders and deletes that are due to the backend, each after the journal has taken it, and wake the callers
that wait for the first answer to an order. What is due is decided in `lifecycle`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cagrpc import errors
from cagrpc.fleet import lifecycle
from cagrpc.fleet.backend import BackendInstance, Order, OrderedInstance
from cagrpc.fleet.ledger import Ledger
from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import Changes, MemberState
from cagrpc.fleet.serial_backend import DebouncedListing, SerialBackend
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.log_once import LogOnce
from solver.model import NodeGroup
from solver.model.quantities import pluralize

_log = logging.getLogger(__name__)

_TOGETHER_SECONDS = 1.0
"""Answers of so long share one journal write, and the write that precedes an order is at most so old."""
_MOST_ORDERS = 20_000
"""Orders that share one journal write: a journal of size-limited objects has to take them (`cagrpc.kube.journal`)."""
_ORDER = "order of increment "
_MOST_DELETES = 100
"""Instances of one delete call: leadership is checked between two calls. An order has no such parts, since it is
accepted whole or not at all."""


@dataclass(slots=True)
class Waiter:
    """A caller that waits for the backend's first answer."""

    answered: threading.Event = field(default_factory=threading.Event)
    refusal: errors.CagrpcError | None = None


class BackendOrders:
    """Sends what is due. `group` finds a node group by its id; `publish` is called where the snapshot has changed."""

    def __init__(
        self,
        backend: SerialBackend,
        listing: DebouncedListing,
        ledger: Ledger,
        group: Callable[[str], NodeGroup | None],
        publish: Callable[[], None],
        clock: EpochClock,
    ) -> None:
        self._backend = backend
        self._listing = listing
        self._ledger = ledger
        self._group = group
        self._publish = publish
        self._clock = clock
        self._waiters: dict[str, Waiter] = {}
        self._reported = LogOnce()

    def add_waiter(self, increment_id: str) -> Waiter:
        """Register a caller that waits for the answer to this increment's order, before it can be ordered."""
        waiter = self._waiters[increment_id] = Waiter()
        return waiter

    def wait(self, increment_id: str, waiter: Waiter, seconds: float) -> None:
        """Wait at most so long. Raise the refusal that came in time; a later one is a failure like any other."""
        waiter.answered.wait(seconds)
        with self._ledger.changing():
            self._waiters.pop(increment_id, None)
        if waiter.refusal is not None:
            raise waiter.refusal

    def order_now(self, increment_id: str) -> None:
        """Order the increment and wake its waiter. Errors are logged; the next step orders again."""
        about = {"increment": increment_id}
        try:
            with self._backend.lock:
                unreached = self._order([increment_id])
            for reason in unreached.values():
                _log.warning("increment %s: not ordered yet: %s", increment_id, reason, extra=about)
            with self._ledger.changing():
                self._publish()
        except errors.Unavailable as error:
            _log.warning("increment %s: not ordered yet: %s", increment_id, error, extra=about)
        except Exception:  # noqa: BLE001 - logged, and retried
            _log.exception("increment %s: not ordered yet: unexpected error", increment_id, extra=about)
        finally:
            self._answer(increment_id)

    def run_due(self, to_delete: Mapping[str, Sequence[BackendInstance]], unreached: dict[str, str]) -> bool:
        """Send every delete (by node group) and order that is due, each on its own, while holding the backend's `lock`;
        return whether there was any. What did not reach the backend is added to `unreached` with the reason; what is in
        it already is skipped. Raises `Unavailable` where the journal is out of reach; nothing further is sent then."""
        contents = self._ledger.contents
        doomed = {f"deletes in node group {key}": instances for key, instances in to_delete.items()}
        due = {f"{_ORDER}{key}": key for key, r in contents.increments.items() if lifecycle.to_order(r)}
        asked = [what for what in (*doomed, *due) if what not in unreached]
        for what in asked:
            if what in doomed:
                reason = self._delete(doomed[what])
                if reason is not None:
                    unreached[what] = reason
        reasons = self._order([due[what] for what in asked if what in due])
        unreached.update((what, reasons[key]) for what, key in due.items() if key in reasons)
        return bool(asked)

    def log_unreached(self, unreached: dict[str, str]) -> None:
        """Log what a step could not reach the backend for: once, not every second."""
        for what, reason in unreached.items():
            if self._reported.is_new(reason, about=what):
                about = {"increment": what.removeprefix(_ORDER)} if what.startswith(_ORDER) else {}
                _log.warning("%s: the backend was not reached, retrying: %s", what, reason, extra=about)
        self._reported.only(unreached)

    def _delete(self, instances: Sequence[BackendInstance]) -> str | None:
        """Delete the instances; return why the backend was not reached, None where it was."""
        _log.info("deleting %s: %s", pluralize(len(instances), "instance"), ", ".join(each.id for each in instances))
        for start in range(0, len(instances), _MOST_DELETES):
            self._ledger.check()  # another process may be the leader by now
            part = instances[start : start + _MOST_DELETES]
            try:
                self._backend.delete(part)
            except errors.Unavailable as error:
                self._listing.changed()
                return str(error)
            self._listing.changed(part)
        return None

    def _order(self, increment_ids: Iterable[str]) -> dict[str, str]:
        """Order each increment, whole and in a call of its own; return why the backend was not reached, by increment.
        The caller publishes: an accepted order changes no target.

        Many increments share a journal write: before their orders that they are creating, afterwards the answers, or in
        between where calls take long. So a write of the last second precedes every order, also a repeated one, which
        proves that no other process leads."""
        unreached: dict[str, str] = {}
        left = list(increment_ids)
        while left := [key for key in left if self._tokens(key)]:
            asked = self._send(self._journal_creating(left), unreached)
            left = [key for key in left if key not in asked]
        return unreached

    def _tokens(self, increment_id: str) -> tuple[str, ...]:
        """Return the tokens to order now."""
        record = self._ledger.contents.increments.get(increment_id)
        return () if record is None else lifecycle.to_order(record)

    def _journal_creating(self, increment_ids: Sequence[str]) -> list[str]:
        """Journal that increments are creating, as many as one write takes; return their ids."""
        with self._ledger.changing():
            begun: list[str] = []
            orders = 0
            for key in increment_ids:
                orders += len(self._tokens(key))
                if begun and orders > _MOST_ORDERS:
                    break
                begun.append(key)
            records = [self._ledger.contents.increments[key] for key in begun if self._tokens(key)]
            planned = [replace(record, phase=Phase.CREATING) for record in records if record.phase is Phase.PLANNED]
            if planned:
                self._ledger.commit(Changes(increments=tuple(planned)))
            elif records:
                self._ledger.probe()
        return begun

    def _send(self, increment_ids: Sequence[str], unreached: dict[str, str]) -> set[str]:
        """Order these and journal the answers; return those that were sent before the journal write grew too old."""
        began_at = self._clock()
        asked: set[str] = set()
        taken: dict[str, tuple[str, ...]] = {}
        for key in increment_ids:
            if asked and not 0 <= self._clock() - began_at < _TOGETHER_SECONDS:
                break
            asked.add(key)
            tokens = self._tokens(key)  # none where it was withdrawn while others were ordered
            if not tokens:
                continue
            self._ledger.check()  # another process may be the leader by now
            self._listing.changed()
            try:
                self._backend.order(self._whole_order(key, tokens))
            except errors.Unavailable as error:
                unreached[key] = str(error)
            except errors.CagrpcError as refusal:
                self._refuse(key, refusal)
                self._answer(key)
            else:
                taken[key] = tokens
        self._journal_ordered(taken)
        return asked

    def _whole_order(self, increment_id: str, tokens: Collection[str]) -> Order:
        ordinals = Counter[str]()
        instances: list[OrderedInstance] = []
        for member in self._ledger.contents.increments[increment_id].members:
            group = self._group(member.node_group)
            if group is not None:  # a group that is not served has no wanted instance
                instances.append(OrderedInstance(member.token, group, ordinals[member.node_group]))
                ordinals[member.node_group] += 1
        return Order(increment_id, tuple(instances), frozenset(tokens))

    def _journal_ordered(self, taken: Mapping[str, Collection[str]]) -> None:
        """Journal that the backend has accepted the orders of these tokens, by increment."""
        with self._ledger.changing():
            changed = []
            for key, tokens in taken.items():
                # CA may have deleted members, and even have closed the increment, while the order was under way.
                record = self._ledger.contents.increments[key]
                still_planned = {m.token for m in record.members if m.state is MemberState.PLANNED}.intersection(tokens)
                accepted = record.with_members(dict.fromkeys(still_planned, MemberState.ORDERED))
                changed.append(replace(accepted, ordered_at_seconds=self._clock()))
            self._ledger.commit(Changes(increments=tuple(changed)))
        for key in taken:
            self._answer(key)

    def _refuse(self, increment_id: str, refusal: errors.CagrpcError) -> None:
        with self._ledger.changing():
            waiter = self._waiters.get(increment_id)
            record = self._ledger.contents.increments[increment_id]
            changed = lifecycle.refused(record, refusal, self._clock(), answered=waiter is not None)
            self._ledger.commit(Changes(increments=(changed,)))
            self._publish()
            if waiter is not None:
                waiter.refusal = refusal

    def _answer(self, increment_id: str) -> None:
        waiter = self._waiters.get(increment_id)
        if waiter is not None:
            waiter.answered.set()
