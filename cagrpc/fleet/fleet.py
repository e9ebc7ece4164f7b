"""The fleet: the one way to change the world. It keeps the journal, talks to the backend and publishes snapshots.

What follows from what is decided by pure functions elsewhere: `admission` (may a request be done), `increments` (what
comes next), `view` (what is to be seen), `minimum` (groups below their minimum). `sight` is what a look finds, `ledger`
the records in force, `errands` what is asked of the backend. Here is what requests and steps are made of.

Two locks. `_ledger.changing` is held by whoever changes records, for a journal write at most, never while the backend
is called; so requests do not wait for a slow cloud. `_backend.turn` lets one thread at a time talk to the backend.
Where both are held, `_backend.turn` was taken first. Snapshots, and single increments, are read without either.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from cagrpc import errors
from cagrpc.fleet import admission, lifecycle, minimum_size
from cagrpc.fleet.backend import Backend, ReadyNodes
from cagrpc.fleet.groups import check, served, to_journal
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.ledger import Ledger
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, Origin
from cagrpc.fleet.observation import ClusterObserver, Observation
from cagrpc.fleet.orders import BackendOrders, Waiter
from cagrpc.fleet.records import Changes, IncrementRecord
from cagrpc.fleet.serial_backend import SerialBackend, SingleFlight, Submit
from cagrpc.fleet.snapshot import Shown, View, snapshot, status, view
from cagrpc.runtime.clock import SteadyClock
from solver.model import Limit, NodeGroup

_log = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS = 2.0
"""How long a start waits for the first look at the backend, which then goes on in the background."""

_TURN_SECONDS = 2.0
"""How long a request waits for its turn while others write to a slow journal."""

_LOOKS_PER_STEP = 3
"""A step looks, acts on what it saw, and looks again for the result; what is left then is the next step's."""


def _in_thread(work: Callable[[], None]) -> object:
    thread = threading.Thread(target=work, name="cagrpc-backend", daemon=True)
    thread.start()
    return thread


def _show_all(groups: Sequence[NodeGroup], targets: Mapping[str, int]) -> Sequence[str]:
    del targets
    return [group.id for group in groups]


class Fleet:
    """Node groups, increments and instances behind one door. Safe for many threads.

    `reconcile` has to be called about once a second; without it increments do not move. `nodes` is what a cluster says
    of instances: with it one counts as come when its Node is Ready, too, and a whole increment stays ready, its nodes
    held, until `release`. With `autoscaler_may_grow` false (`drive: plan`) CA gets no more than minimum sizes. `clock`
    gives seconds since the epoch that only grow (`SteadyClock`); deadlines survive restarts as far as two processes'
    clocks agree (`lifecycle.taken_over`). `submit` runs what callers wait for only for a limited
    time (the ordering of `apply`, the step of `refresh`), by default in a thread of its own. `beat` is told of
    each call of the backend, which only one thread makes at a time: that is a step's progress. Raises
    `errors.InvalidConfiguration` for groups or times that cannot be, `errors.Unavailable` when the journal is out of
    reach; a backend out of reach is no error here, but until it was reached once every change is refused with
    `errors.Unavailable`, since what stands is not known.
    """

    def __init__(
        self,
        groups: Sequence[NodeGroup],
        limits: Sequence[Limit],
        backend: Backend,
        journal: Journal,
        *,
        shown: Shown | None = None,
        nodes: ReadyNodes | None = None,
        autoscaler_may_grow: bool = True,
        clock: Callable[[], float] | None = None,
        increment_deadline_seconds: float = 600.0,
        failed_listing_seconds: float = 600.0,
        submit: Submit = _in_thread,
        beat: Callable[[str], None] = lambda _: None,
    ) -> None:
        check(groups, increment_deadline_seconds, failed_listing_seconds)
        clock = clock or SteadyClock()
        self._backend = SerialBackend(backend, clock, beat)
        self._step = SingleFlight(self.reconcile, submit)
        self._cluster = ClusterObserver(nodes, clock)
        self._autoscaler_may_grow = autoscaler_may_grow
        self._shown = shown or _show_all
        self._clock = clock
        self._times = lifecycle.Times(deadline=increment_deadline_seconds, failed_listing=failed_listing_seconds)
        self._submit = submit
        self._sight: Observation | None = None
        self._backend_problem: str | None = None
        self._minimum_problems: dict[str, str] = {}
        self._told_of: set[str] = set()
        self._snapshot = FleetSnapshot(version=0, groups={}, shown=(), group_of_instance={})
        self._ledger = Ledger(journal, clock)
        before = self._ledger.contents
        news = lifecycle.taken_over(before, clock(), self._times)
        self._ledger.commit(replace(news, groups=to_journal(groups, limits, before.groups).groups))
        self._served = served({group.id: group for group in groups}, limits, self._ledger.contents.groups)
        self._errands = BackendOrders(
            self._backend, self._ledger, lambda group_id: self._served.groups[group_id], self._publish, clock
        )
        self._publish()
        try:
            self.refresh(wait_seconds=_FIRST_LOOK_SECONDS)
        except errors.Unavailable as error:
            _log.warning("starting before the backend has answered: %s", error)

    @property
    def snapshot(self) -> FleetSnapshot:
        """The newest snapshot. Never waits; its `version` grows only when something in it changed."""
        return self._snapshot

    @property
    def problem(self) -> str | None:
        """Why steps cannot be done (journal or backend out of reach or silent) or increments not become ready (cluster
        not known); None where all is well."""
        unseen = "the backend has not answered yet; what stands is not known" if self._sight is None else None
        silence = self._backend.silence.problem
        return self._ledger.problem or silence or self._backend_problem or unseen or self._cluster.problem

    def apply(
        self,
        increment: IncrementSpec,
        *,
        refusal_wait_seconds: float = 0.0,
        answer_within_seconds: float = float("inf"),
    ) -> IncrementStatus:
        """Journals the increment and returns; it is then ordered whole, and rolled back whole if it cannot be had.

        With `refusal_wait_seconds` it is ordered at once, and the call waits at most so long for the backend's first
        answer: where that is a refusal, `errors.OutOfCapacity` is raised and nothing is left. With 0 the next
        `reconcile` orders it. Raises `NotFound`, `InvalidInput`, `FailedPrecondition` (CA asks, and may not),
        `OutOfRange`, `LimitExceeded` or `Unavailable` with nothing changed; and `DeadlineExpired` where the journal
        took longer than `answer_within_seconds`, after which nobody waits for the answer: nothing of it is ordered.
        """
        asked_at = self._clock()
        waiter: Waiter | None = None
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            record = self._plan(increment)
            seconds = self._clock() - asked_at
            if seconds > answer_within_seconds:
                late = f"the journal took {seconds:.3g} s, the answer was due after {answer_within_seconds:.3g} s"
                self._ledger.commit(Changes(increments=(lifecycle.withdrawn(record, late, self._clock()),)))
                self._publish()
                raise errors.DeadlineExpired(f"{late}; nothing was ordered")
            self._publish()
            if refusal_wait_seconds > 0:
                waiter = self._errands.expect(record.id)
        if waiter is not None:
            self._submit(partial(self._errands.order_now, record.id))
            self._errands.wait(record.id, waiter, refusal_wait_seconds)
        return self.increment(record.id)

    def apply_all(self, asked: Sequence[IncrementSpec]) -> list[IncrementStatus | errors.CagrpcError]:
        """Many increments with one write to the journal, each whole or not at all: its status, or why it is refused, as
        `apply` would raise it, which hinders no other. The next `reconcile` orders them. Raises `Unavailable`; what was
        journalled until then is in the snapshot."""
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            try:
                found = self._plan_all(asked)
            except errors.InvalidInput:  # one of them is more than the journal takes, and nothing was written
                found = [self._plan_or_why(each) for each in asked]
            finally:
                self._publish()
        return [each if isinstance(each, errors.CagrpcError) else self.increment(each.id) for each in found]

    def delete_instances(self, node_group_id: str, instance_ids: Sequence[str]) -> None:
        """All of these instances of this group, or none: journalled at once, out of the target at once, deleted by the
        next `reconcile`. One that is being deleted, or is gone already, is passed over and lowers nothing.

        Raises `NotFound`, `InvalidInput` (an instance of another group), `FailedPrecondition` (below the group's
        minimum) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            self._ledger.commit(admission.admit_deletion(self._standing(), node_group_id, instance_ids, self._clock()))
            self._publish()

    def decrease_target(self, node_group_id: str, delta: int) -> None:
        """Gives back up to `-delta` of what the target counts and does not exist: failed instances still listed.
        Never an existing instance, and never a part of an increment in flight; less than asked is no error.

        Raises `NotFound`, `InvalidInput` (a delta that is not negative) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            self._ledger.commit(admission.admit_decrease(self._standing(), node_group_id, delta))
            self._publish()

    def release(self, increment_id: str) -> None:
        """Lets a ready increment go: it is done, and its nodes are held no longer. One that is done is passed over.

        Raises `NotFound`, `FailedPrecondition` (it is not ready) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            self._standing()
            record = self._known(increment_id)
            changed = lifecycle.released(record, self._clock())
            if changed is not record:
                self._ledger.commit(Changes(increments=(changed,)))
                self._publish()

    def withdraw(self, increment_id: str, message: str) -> None:
        """Takes back an increment of our own that is not let go yet: out of the targets at once, rolled back whole,
        also where all of its nodes are ready, and no shortage. `message` says why. One that is done, or failing, or not
        known any more is passed over.

        Raises `FailedPrecondition` (CA asked for it, and would ask again) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_TURN_SECONDS):
            record = self._ledger.contents.increments.get(increment_id)
            if record is None:
                return
            if record.increment.origin is Origin.AUTOSCALER:
                raise errors.FailedPrecondition(f"increment {record.id} is the autoscaler's; only it can take it back")
            changed = lifecycle.withdrawn(record, message, self._clock())
            if changed is not record:
                self._ledger.commit(Changes(increments=(changed,)))
                self._publish()

    def refresh(self, *, wait_seconds: float | None = None) -> None:
        """CA's Refresh: one step now. With `wait_seconds` it waits at most so long for it, and joins a step that
        another `refresh` waits for. Raises `Unavailable` when the journal or the backend is out of reach, or the
        backend has not answered by then; the step goes on behind it."""
        if wait_seconds is None:
            self.reconcile()
            return
        try:
            self._step.wait(wait_seconds)
        except TimeoutError:
            slow = self._ledger.silence if self._ledger.silence.under_way else self._backend.silence
            raise errors.Unavailable(slow.told(wait_seconds)) from None

    def reconcile(self) -> None:
        """One step: look at the backend, move increments on, order and delete what is due, publish a snapshot.

        Raises `Unavailable` when the journal or the backend's list is out of reach; nothing is lost by it, and the next
        step continues. An order or a delete that does not reach the backend is no error: a part of it may be out of
        reach and the rest not, so it is logged, and asked for again by the next step.
        """
        with self._backend.turn:
            self._ledger.check_open()
            unreached: dict[str, str] = {}
            for _ in range(_LOOKS_PER_STEP):
                if not self._errands.run(self._look(), unreached):
                    break
            self._errands.tell(unreached)

    def increment(self, increment_id: str) -> IncrementStatus:
        """Raises `NotFound` for one that never was, or that finished more than a day ago."""
        return status(self._known(increment_id), self._sight or self._cluster.nothing_seen())

    def close(self) -> None:
        """Closes the journal: every later change is `Unavailable`, also one of a step under way, which the next start
        finds as after a crash; the backend is asked for nothing more. May be repeated."""
        self._ledger.close()

    def _look(self) -> Observation:
        """Reads the backend's list, and what the cluster says of it, and stores what follows, one phase at a time."""
        try:
            listing = self._backend.list_instances()
        except errors.Unavailable as error:
            self._backend_problem = str(error)
            raise
        self._backend_problem = None
        sight = self._cluster.look(listing)
        with self._ledger.changing():
            self._sight = sight
            try:
                now = self._clock()
                while changes := lifecycle.advance(
                    self._ledger.contents, sight, self._served.configured, now, self._times
                ):
                    self._ledger.commit(changes)
                self._ledger.commit(lifecycle.expired(self._ledger.contents, sight, now, self._times))
                seen = view(self._ledger.contents, sight, self._served.groups)
                self._keep_minimum_sizes(seen.targets, now)
                self._let_go_of_groups(seen, {machine.node_group for machine in listing})
                self._ledger.probe(only_when_due=True)
            finally:
                self._publish()
        return sight

    def _plan(self, increment: IncrementSpec) -> IncrementRecord:
        (found,) = self._plan_all([increment])
        if isinstance(found, errors.CagrpcError):
            raise found
        return found

    def _plan_all(self, asked: Sequence[IncrementSpec]) -> list[IncrementRecord | errors.CagrpcError]:
        found = admission.admit_all(
            self._standing(),
            asked,
            new_id=lambda: secrets.token_hex(6),
            now=self._clock(),
            deadline_seconds=self._times.deadline,
        )
        self._ledger.commit(Changes(increments=tuple(each for each in found if isinstance(each, IncrementRecord))))
        return found

    def _plan_or_why(self, increment: IncrementSpec) -> IncrementRecord | errors.CagrpcError:
        try:
            return self._plan(increment)
        except errors.Unavailable:
            raise
        except errors.CagrpcError as error:
            return error

    def _keep_minimum_sizes(self, targets: Mapping[str, int], now: float) -> None:
        problems: dict[str, str] = {}
        for increment in minimum_size.missing(self._served.configured, targets, self._ledger.contents, now):
            (group_id,) = increment.deltas
            try:
                self._plan(increment)
            except (errors.LimitExceeded, errors.OutOfRange) as error:
                problems[group_id] = str(error)
                if self._minimum_problems.get(group_id) != str(error):
                    _log.warning("node group %s stays below its minimum size: %s", group_id, error)
        self._minimum_problems = problems

    def _let_go_of_groups(self, seen: View, listed: AbstractSet[str]) -> None:
        """Groups that are configured no longer are served until nothing of them is left. `listed` are those of the
        backend's instances."""
        standing = {key for key in self._served.retired if key in seen.instances or key in seen.targets}
        emptied = self._served.retired - standing
        if emptied:
            self._ledger.commit(Changes(forgotten_groups=tuple(sorted(emptied))))
            self._served = served(self._served.configured, self._served.limits, self._ledger.contents.groups)
        for group_id in sorted(standing - self._told_of):
            _log.warning("node group %s is configured no longer; it is served until its nodes are gone", group_id)
        for group_id in sorted(listed - self._served.groups.keys() - self._told_of):
            _log.warning("node group %s is not known; its instances are left alone and not counted", group_id)
        self._told_of = standing | listed

    def _known(self, increment_id: str) -> IncrementRecord:
        record = self._ledger.contents.increments.get(increment_id)
        if record is None:
            raise errors.NotFound(f"increment {increment_id[:100]!r} is not known")
        return record

    def _standing(self) -> admission.FleetState:
        if self._sight is None:
            raise errors.Unavailable(f"the backend was not reached yet ({self.problem}); what stands is not known")
        return admission.FleetState(
            contents=self._ledger.contents,
            view=view(self._ledger.contents, self._sight, self._served.groups),
            groups=self._served.groups,
            limits=self._served.limits,
            autoscaler_may_grow=self._autoscaler_may_grow,
        )

    def _publish(self) -> None:
        self._snapshot = snapshot(
            self._snapshot,
            self._ledger.contents,
            self._sight or self._cluster.nothing_seen(),
            self._served.groups,
            self._served.limits,
            self._shown,
        )
