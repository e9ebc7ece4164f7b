"""What is asked of the backend: orders and deletes that the records say are due, each after the journal has taken it,
and the callers who wait for an order's first answer. What is due is `increments`' business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cagrpc import errors
from cagrpc.fleet import increments
from cagrpc.fleet.backend import Order
from cagrpc.fleet.conversation import Conversation
from cagrpc.fleet.ledger import Ledger
from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import Changes, MemberState
from cagrpc.fleet.sight import Sight
from solver.model import NodeGroup

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Waiter:
    """Somebody who waits for the backend's first answer."""

    answered: threading.Event = field(default_factory=threading.Event)
    refusal: errors.CagrpcError | None = None


class Errands:
    """`group` finds a node group by its id, `publish` is called where what is to be seen has changed."""

    def __init__(
        self,
        backend: Conversation,
        ledger: Ledger,
        group: Callable[[str], NodeGroup],
        publish: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        self._group = group
        self._publish = publish
        self._clock = clock
        self._waiters: dict[str, Waiter] = {}
        self._told: dict[str, str] = {}

    def expect(self, increment_id: str) -> Waiter:
        """One who will wait for the answer to this increment's order; call it before it can be ordered."""
        waiter = self._waiters[increment_id] = Waiter()
        return waiter

    def wait(self, increment_id: str, waiter: Waiter, seconds: float) -> None:
        """Waits at most so long, then for nothing more. Raises the refusal that came in time."""
        waiter.answered.wait(seconds)
        with self._ledger.changing():  # From here on a refusal is a failure like any later one.
            self._waiters.pop(increment_id, None)
        if waiter.refusal is not None:
            raise waiter.refusal

    def order_now(self, increment_id: str) -> None:
        """What `wait` waits for. Whatever goes wrong here is tried again by the next step."""
        try:
            with self._backend.turn:
                reason = self._order(increment_id)
            if reason is not None:
                _log.warning("increment %s: not ordered yet: %s", increment_id, reason)
            with self._ledger.changing():
                self._publish()
        except errors.Unavailable as error:
            _log.warning("increment %s: not ordered yet: %s", increment_id, error)
        finally:
            self._answer(increment_id)

    def run(self, sight: Sight, unreached: dict[str, str]) -> bool:
        """Asks for all that is due, each on its own; call it with the backend's `turn`. Whether there was anything.
        What the backend was not reached for is put into `unreached`, with why, and what is there already is passed
        over. Raises `Unavailable` where the journal is out of reach; then nothing more is asked."""
        contents = self._ledger.contents
        doomed = increments.to_delete(contents, sight)
        due = [record.id for record in contents.increments.values() if increments.to_order(record)]
        calls: dict[str, Callable[[], str | None]] = {
            **{f"deletes in node group {key}": partial(self._delete, ids) for key, ids in doomed.items()},
            **{f"order of increment {key}": partial(self._order, key) for key in due},
        }
        asked = [what for what in calls if what not in unreached]
        for what in asked:
            self._ledger.check()  # A journal that was lost may be another's by now.
            reason = calls[what]()
            if reason is not None:
                unreached[what] = reason
        return bool(asked)

    def tell(self, unreached: dict[str, str]) -> None:
        """Logs what a step could not reach the backend for: once, not every second."""
        for what, reason in unreached.items():
            if self._told.get(what) != reason:
                _log.warning("%s: asked for again, the backend was not reached: %s", what, reason)
        self._told = unreached

    def _delete(self, instance_ids: Sequence[str]) -> str | None:
        """Why the backend was not reached, where it was not."""
        _log.info("deleting %d instances: %s", len(instance_ids), ", ".join(instance_ids))
        try:
            self._backend.delete(instance_ids)
        except errors.Unavailable as error:
            return str(error)
        return None

    def _order(self, increment_id: str) -> str | None:
        """Journals that the increment is being created, orders all of it in one call, and journals the answer. Why the
        backend was not reached, where it was not. Whoever calls publishes: a taken order changes no target. An order
        that is repeated is preceded by a write, too: the journal may be another's by now."""
        with self._ledger.changing():
            record = self._ledger.contents.increments.get(increment_id)
            tokens = () if record is None else increments.to_order(record)
            if record is None or not tokens:
                return None
            if record.phase is Phase.PLANNED:
                record = replace(record, phase=Phase.CREATING)
                self._ledger.commit(Changes(increments=(record,)))
            else:
                self._ledger.probe()
            wanted = set(tokens)
            orders = [Order(m.token, self._group(m.node_group)) for m in record.members if m.token in wanted]
        try:
            self._backend.order(orders)
        except errors.Unavailable as error:
            return str(error)
        except errors.CagrpcError as refusal:
            self._refuse(increment_id, refusal)
        else:
            with self._ledger.changing():
                # CA may have deleted members, and even have closed the increment, while the order was under way.
                record = self._ledger.contents.increments[increment_id]
                still_planned = {m.token for m in record.members if m.state is MemberState.PLANNED} & wanted
                changed = record.with_members(dict.fromkeys(still_planned, MemberState.ORDERED))
                self._ledger.commit(Changes(increments=(changed,)))
        self._answer(increment_id)
        return None

    def _refuse(self, increment_id: str, refusal: errors.CagrpcError) -> None:
        with self._ledger.changing():
            waiter = self._waiters.get(increment_id)
            record = self._ledger.contents.increments[increment_id]
            changed = increments.refused(record, refusal, self._clock(), answered=waiter is not None)
            self._ledger.commit(Changes(increments=(changed,)))
            self._publish()
            if waiter is not None:
                waiter.refusal = refusal

    def _answer(self, increment_id: str) -> None:
        waiter = self._waiters.get(increment_id)
        if waiter is not None:
            waiter.answered.set()
