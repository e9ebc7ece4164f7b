"""The fleet: the one way to change instances. It writes the journal, calls the backend and publishes snapshots.

Decisions are pure functions elsewhere: `admission` (is a request allowed), `lifecycle` (the next phase), `groups`
(which are served, and their minimum sizes). `observation` has the observed state, `ledger` the records in force,
`index` what both come to and what readers see of it, `orders` sends what is due to the backend. Here requests and steps
are put together from these.

Two locks. `_ledger.changing` is held by whoever changes records, for a journal write at most, never while the backend
is called; so requests do not wait for a slow cloud. `_backend.lock` lets one thread at a time talk to the backend.
Where both are held, `_backend.lock` was taken first. Snapshots, and single increments, are read without either.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from operator import is_

from cagrpc import errors
from cagrpc.errors import shown
from cagrpc.fleet import admission, lifecycle
from cagrpc.fleet.backend import Backend, BackendInstance, ReadyNodes
from cagrpc.fleet.disruptions import Disruptions
from cagrpc.fleet.groups import below_minimum, check, served, to_journal
from cagrpc.fleet.index import FleetIndex, Shown, View, snapshot, status
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.ledger import Ledger, Moved
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, InstanceState, Origin
from cagrpc.fleet.observation import ClusterObserver, Observation
from cagrpc.fleet.orders import BackendOrders, Waiter
from cagrpc.fleet.orphans import Orphans
from cagrpc.fleet.provisioners import Widen, as_it_is
from cagrpc.fleet.records import Changes, Contents, IncrementRecord
from cagrpc.fleet.serial_backend import DebouncedListing, SerialBackend, SingleFlight, Submit
from cagrpc.runtime.clock import EpochClock, SteadyClock
from solver.model import Limit, NodeGroup

_log = logging.getLogger(__name__)

_FIRST_LISTING_SECONDS = 2.0
"""How long a start waits for the backend's first listing, which then goes on in the background."""

_LOCK_SECONDS = 2.0
"""How long a request waits for the lock while others write to a slow journal."""

_PASSES_PER_STEP = 3
"""A step observes, acts, and observes the result; what is still due then is left to the next step."""


def _in_thread(work: Callable[[], None]) -> object:
    thread = threading.Thread(target=work, name="cagrpc-backend", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """Node groups that the backend has found, and the limits over them."""

    groups: Sequence[NodeGroup]
    limits: Sequence[Limit]


def show_all(groups: Sequence[NodeGroup], targets: Mapping[str, int]) -> Sequence[str]:
    """Show every group to CA."""
    del targets
    return [group.id for group in groups]


Quotas = Callable[[Mapping[str, NodeGroup], Callable[[], AbstractSet[str]]], Sequence[Limit]]
"""Returns the limits that a cluster sets over these node groups, by id; nodes count in `used` whose instances are not
among those that the second returns."""


def no_quotas(groups: Mapping[str, NodeGroup], counted: Callable[[], AbstractSet[str]]) -> Sequence[Limit]:
    """Return no limits."""
    del groups, counted
    return ()


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What a fleet is made of."""

    groups: Sequence[NodeGroup]
    limits: Sequence[Limit] = ()
    shown: Shown = show_all
    """Which groups CA sees."""
    found: Callable[[], FoundGroups] | None = None
    """Where the backend finds the groups: returns those of its last list, the same object until something changes. They
    take the place of `groups` and `limits`."""
    quotas: Quotas = no_quotas
    """Looked at in each step."""
    autoscaler_may_grow: bool = True
    """Where it may not (`drive: plan`), CA gets no more than minimum sizes."""
    increment_deadline_seconds: float = 600.0
    failed_listing_seconds: float = 600.0
    widen: Widen = as_it_is
    """Adds the node groups that would be there if provisioners allowed more."""


@dataclass(frozen=True, slots=True)
class FleetListeners:
    """Who is told of what a fleet does. What is called must be quick."""

    beat: Callable[[str], None] = lambda _: None
    """Called before each call of the backend, as a step's sign of progress."""
    wake: Callable[[], None] = lambda: None
    """Called where the next step has something to do."""
    moved: Moved = lambda *_: None
    """Called for each increment that reaches another phase."""
    published: Callable[[int], None] = lambda _: None
    """Called with the version of each new snapshot, once it is there and before the change that made it returns."""


class Fleet:
    """Node groups, increments and instances. Thread-safe.

    `reconcile` has to be called about once a second; without it increments do not move. With `nodes` (a cluster) an
    instance is ready when its Node is Ready, too, and an increment stays ready, its nodes held, until `release`.
    `clock` gives seconds since the epoch that only grow (`SteadyClock`); deadlines survive restarts as far as two
    processes' clocks agree (`lifecycle.taken_over`). `submit` runs work that callers wait for with a timeout (the
    ordering of `apply`, the step of `refresh`), by default in a thread of its own. Raises `errors.InvalidConfiguration`
    for invalid groups or times, and `errors.Unavailable` where the journal is out of reach. A backend out of reach is
    no error here, but until its first listing every change is refused with `errors.Unavailable`, since existing
    instances are unknown."""

    def __init__(
        self,
        settings: FleetSettings,
        backend: Backend,
        journal: Journal,
        *,
        nodes: ReadyNodes | None = None,
        clock: EpochClock | None = None,
        submit: Submit = _in_thread,
        listeners: FleetListeners | None = None,
    ) -> None:
        groups, limits, deadline = settings.groups, settings.limits, settings.increment_deadline_seconds
        check(groups, deadline, settings.failed_listing_seconds)
        listeners = listeners or FleetListeners()
        clock = clock or SteadyClock()
        self._backend = SerialBackend(backend, clock, listeners.beat)
        self._listing = DebouncedListing(self._backend, clock)
        self._step = SingleFlight(self.reconcile, submit)
        self._cluster = ClusterObserver(nodes, clock, groups)
        self._orphans = Orphans(nodes, deadline)
        self._autoscaler_may_grow = settings.autoscaler_may_grow
        self._shown = settings.shown
        self._find = settings.found
        self._found: FoundGroups | None = None
        self._quotas = settings.quotas
        self._quota_limits: tuple[Limit, ...] = ()
        self.widen = settings.widen
        self._clock = clock
        self._times = lifecycle.Times(deadline=deadline, failed_listing=settings.failed_listing_seconds)
        self._submit = submit
        self._wake = listeners.wake
        self._published = listeners.published
        self._observed: Observation | None = None
        self._backend_problem: str | None = None
        self._minimum_problems: dict[str, str] = {}
        self._logged_groups: set[str] = set()
        self._index = FleetIndex()
        self._snapshot = FleetSnapshot(version=0, groups={}, shown=(), group_of_instance={})
        self._shows: tuple[object, ...] = ()
        """What the snapshot was made of."""
        self._ledger = Ledger(journal, clock, listeners.moved)
        before = self._ledger.contents
        news = lifecycle.taken_over(before, clock(), self._times)
        self._ledger.commit(replace(news, groups=to_journal(groups, limits, before.groups).groups))
        self._served = served({group.id: group for group in groups}, limits, self._ledger.contents.groups)
        self._orders = BackendOrders(
            self._backend, self._listing, self._ledger, self._served_group, self._publish, clock
        )
        self.disruptions = Disruptions(self._ledger, self._state, self._publish, listeners.wake, clock, self._times)
        self._publish()
        try:
            self.refresh(wait_seconds=_FIRST_LISTING_SECONDS)
        except errors.Unavailable as error:
            _log.warning("starting before the backend has answered: %s", error)

    @property
    def snapshot(self) -> FleetSnapshot:
        """The newest snapshot. Never blocks; its `version` grows only when something in it changed."""
        return self._snapshot

    @property
    def contents(self) -> Contents:
        """What was found in the journal, with what the fleet has written since."""
        return self._ledger.contents

    @property
    def problem(self) -> str | None:
        """Why steps fail (journal or backend out of reach or silent) or increments cannot become ready (cluster
        unreachable); None if neither."""
        return next(filter(None, self.problems.values()), None)

    @property
    def problems(self) -> Mapping[str, str | None]:
        """`problem` by what is out of reach: `journal`, `backend`, and `cluster` where there is one."""
        unseen = "the backend has not answered yet; existing instances are unknown" if self._observed is None else None
        backend = self._backend.pending.problem or self._backend_problem or unseen
        return {"journal": self._ledger.problem, "backend": backend, **self._cluster.problems}

    @property
    def backend_problem(self) -> str | None:
        """Why the backend creates nothing though it answers (`Backend.problem`); None where it would."""
        return self._backend.problem

    def apply(
        self,
        increment: IncrementSpec,
        *,
        refusal_wait_seconds: float = 0.0,
        answer_within_seconds: float = float("inf"),
    ) -> IncrementStatus:
        """Journal the increment and return; it is then ordered whole, or rolled back whole.

        With `refusal_wait_seconds` it is ordered at once, and the call waits at most so long for the backend's first
        answer: a refusal raises `errors.OrderRefused`, with nothing left behind. With 0 the next `reconcile` orders
        it. Raises `NotFound`, `InvalidInput`, `FailedPrecondition` (CA may not grow the group), `OutOfRange`,
        `LimitExceeded` or `Unavailable` with nothing changed; and `DeadlineExpired` where the journal took longer than
        `answer_within_seconds`, after which nobody waits for the answer: nothing is ordered.
        """
        asked_at = self._clock()
        waiter: Waiter | None = None
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            record = self._plan(increment)
            seconds = self._clock() - asked_at
            if seconds > answer_within_seconds:
                late = f"the journal took {seconds:.3g} s, the answer was due after {answer_within_seconds:.3g} s"
                self._ledger.commit(Changes(increments=(lifecycle.withdrawn(record, late, self._clock()),)))
                self._publish()
                raise errors.DeadlineExpired(f"{late}; nothing was ordered")
            self._publish()
            if refusal_wait_seconds > 0:
                waiter = self._orders.add_waiter(record.id)
        if waiter is not None:
            self._submit(partial(self._orders.order_now, record.id))
            self._orders.wait(record.id, waiter, refusal_wait_seconds)
        else:
            self._wake()
        return self.increment(record.id)

    def apply_all(self, asked: Sequence[IncrementSpec]) -> list[IncrementStatus | errors.CagrpcError]:
        """Journal many increments with one write, each whole or not at all; return for each its status, or the error
        that `apply` would raise. The next `reconcile` orders them. Raises `Unavailable`; what was journalled until then
        is in the snapshot."""
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            try:
                found = self._plan_all(asked)
            except errors.InvalidInput:  # one of them is larger than the journal takes; nothing was written
                found = [self._plan_or_why(each) for each in asked]
            finally:
                self._publish()
                self._wake()
        return [each if isinstance(each, errors.CagrpcError) else self.increment(each.id) for each in found]

    def delete_instances(
        self, node_group_id: str, instance_ids: Sequence[str], *, unregistered: AbstractSet[str] = frozenset()
    ) -> None:
        """Delete all of these instances of this group, or none: journalled and out of the target at once, deleted by
        the next `reconcile`. An instance that is being deleted, or is gone, is skipped and lowers nothing. Those that
        are `unregistered` never became Nodes; they may go at the group's minimum, and others are ordered for them.

        Raises `NotFound`, `InvalidInput` (an instance of another group), `FailedPrecondition` (below the group's
        minimum) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            self._ledger.commit(lifecycle.learnt(self._state().contents, self._seen))
            state, now = self._state(), self._clock()
            self._ledger.commit(admission.admit_deletion(state, node_group_id, instance_ids, now, unregistered))
            self._publish()
        self._wake()

    def decrease_target(self, node_group_id: str, delta: int) -> None:
        """Lower the target by up to `-delta` failed instances that are still listed. Never removes an existing instance
        or a part of an increment in flight; lowering it by less than asked is no error.

        Raises `NotFound`, `InvalidInput` (a delta that is not negative) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            self._ledger.commit(admission.admit_decrease(self._state(), node_group_id, delta))
            self._publish()

    def release(self, increment_id: str) -> None:
        """Release a ready increment: it is done, and its nodes are no longer held. A done one stays as it is.

        Raises `NotFound`, `FailedPrecondition` (it is not ready) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            self._state()
            record = self._known(increment_id)
            changed = lifecycle.released(record, self._clock())
            if changed is not record:
                self._ledger.commit(Changes(increments=(changed,)))
                self._publish()

    def withdraw(self, increment_id: str, message: str) -> None:
        """Withdraw an increment of our own that is not released: out of the targets at once, rolled back whole, also
        where all of its nodes are ready, and not counted as a shortage. `message` is the reason. An increment that is
        done, failing or no longer known stays as it is.

        Raises `FailedPrecondition` (it is CA's, which would ask again) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            record = self._ledger.contents.increments.get(increment_id)
            if record is None:
                return
            if record.increment.origin is Origin.AUTOSCALER:
                raise errors.FailedPrecondition(f"increment {record.id} is the autoscaler's; only it can withdraw it")
            changed = lifecycle.withdrawn(record, message, self._clock())
            if changed is not record:
                self._ledger.commit(Changes(increments=(changed,)))
                self._publish()
                self._wake()

    def refresh(self, *, wait_seconds: float | None = None) -> None:
        """Run one step now (CA's Refresh). With `wait_seconds` wait at most so long for it, and join a step that
        another `refresh` waits for. Raises `Unavailable` where the journal or the backend is out of reach, or has not
        answered by then; the step goes on in the background."""
        if wait_seconds is None:
            self.reconcile()
            return
        try:
            self._step.wait(wait_seconds)
        except TimeoutError:
            slow = self._ledger.pending if self._ledger.pending.under_way else self._backend.pending
            raise errors.Unavailable(slow.describe(wait_seconds)) from None

    def reconcile(self) -> None:
        """Run one step: observe, advance increments, order and delete what is due, publish a snapshot.

        Raises `Unavailable` where the journal or the backend's listing is out of reach; the next step continues. An
        order or a delete that does not reach the backend is no error: a part of the cloud may be out of reach and the
        rest not, so it is logged and retried by the next step.
        """
        with self._backend.lock:
            self._ledger.check_open()
            unreached: dict[str, str] = {}
            for _ in range(_PASSES_PER_STEP):
                self._observe()
                if not self._orders.run_due(self._to_delete(), unreached):
                    break
            self._orders.log_unreached(unreached)

    def increment(self, increment_id: str) -> IncrementStatus:
        """Return an increment's status. Raises `NotFound` for an unknown id, or one that finished over a day ago."""
        return status(self._known(increment_id), self._seen)

    def close(self) -> None:
        """Close the journal: every later change is `Unavailable`, also one of a step under way, which the next start
        finds as after a crash; no further call of the backend is made. Idempotent."""
        self._ledger.close()

    def _observe(self) -> None:
        """Observe the backend and the cluster, and journal what follows, one phase at a time."""
        try:
            observed = self._cluster.observe(self._listing)
        except errors.Unavailable as error:
            self._backend_problem = str(error)
            raise
        self._backend_problem = None
        with self._ledger.changing():
            self._observed = observed
            try:
                self._follow_groups()
                now = self._clock()
                while changes := lifecycle.advance(
                    self._ledger.contents, observed, self._served.configured, now, self._times
                ):
                    self._ledger.commit(changes)
                self._ledger.commit(lifecycle.expired(self._ledger.contents, observed, now, self._times))
                self._ledger.commit(self._orphans.observe(self._ledger.contents, observed, self._served.groups, now))
                seen = self._view()
                self._follow_quotas(seen)
                self._restore_minimum_sizes(seen.targets, now)
                self._drop_retired_groups(seen)
                self._ledger.probe(only_when_due=True)
            finally:
                self._publish()

    def _follow_groups(self) -> None:
        """Serve the groups that the backend has found; those that went are served until their nodes are gone."""
        found = self._find() if self._find is not None else None
        if found is None or found is self._found:
            return
        self._ledger.commit(to_journal(found.groups, found.limits, self._ledger.contents.groups))
        configured = {group.id: group for group in found.groups}
        self._served, self._found = served(configured, found.limits, self._ledger.contents.groups), found

    def _follow_quotas(self, seen: View) -> None:
        found = tuple(self._quotas(self._served.groups, lambda: _counted(seen)))
        if found != self._quota_limits:
            self._quota_limits = found

    @property
    def _seen(self) -> Observation:
        """The last observation."""
        return self._observed or self._cluster.unobserved()

    def _view(self) -> View:
        self._index.update(self._ledger.contents, self._seen, self._served.groups)
        return self._index.view

    def _to_delete(self) -> Mapping[str, Sequence[BackendInstance]]:
        with self._ledger.changing():
            self._view()
            return self._index.to_delete()

    def _served_group(self, group_id: str) -> NodeGroup | None:
        return self._served.groups.get(group_id)

    def _plan(self, increment: IncrementSpec) -> IncrementRecord:
        (found,) = self._plan_all([increment])
        if isinstance(found, errors.CagrpcError):
            raise found
        return found

    def _plan_all(self, asked: Sequence[IncrementSpec]) -> list[IncrementRecord | errors.CagrpcError]:
        found = admission.admit_all(
            self._state(),
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

    def _restore_minimum_sizes(self, targets: Mapping[str, int], now: float) -> None:
        problems: dict[str, str] = {}
        for increment in below_minimum(self._served.configured, targets, self._ledger.contents, now):
            (group_id,) = increment.deltas
            try:
                self._plan(increment)
            except (errors.LimitExceeded, errors.OutOfRange) as error:
                problems[group_id] = str(error)
                if self._minimum_problems.get(group_id) != str(error):
                    _log.warning("node group %s stays below its minimum size: %s", group_id, error)
        self._minimum_problems = problems

    def _drop_retired_groups(self, seen: View) -> None:
        """Forget groups that are configured no longer and have no instances left."""
        standing = {key for key in self._served.retired if key in seen.instances or key in seen.targets}
        emptied = self._served.retired - standing
        if emptied:
            self._ledger.commit(Changes(forgotten_groups=tuple(sorted(emptied))))
            self._served = served(self._served.configured, self._served.limits, self._ledger.contents.groups)
        for group_id in sorted(standing - self._logged_groups):
            _log.warning("node group %s is no longer configured; it is served until its nodes are gone", group_id)
        self._logged_groups = standing

    def _known(self, increment_id: str) -> IncrementRecord:
        record = self._ledger.contents.increments.get(increment_id)
        if record is None:
            raise errors.NotFound(f"increment {shown(increment_id)} not found")
        return record

    def _state(self) -> admission.FleetState:
        if self._observed is None:
            raise errors.Unavailable(
                f"the backend was not reached yet ({self.problem}); existing instances are unknown"
            )
        return admission.FleetState(
            contents=self._ledger.contents,
            view=self._view(),
            groups=self._served.groups,
            limits=(*self._served.limits, *self._quota_limits),
            autoscaler_may_grow=self._autoscaler_may_grow,
        )

    def _publish(self) -> None:
        self._view()
        before, served = self._snapshot, self._served
        shows = self._index.version, self._ledger.contents.disruptions, served, self._orphans.found, self._quota_limits
        if len(shows) == len(self._shows) and all(map(is_, shows, self._shows)):
            return
        same_groups = bool(self._shows) and self._shows[2] is served
        self._shows = shows
        self._snapshot = snapshot(
            before,
            self._ledger.contents,
            self._index,
            served.groups,
            (*served.limits, *self._quota_limits),
            self._shown,
            self._orphans.found,
            same_groups=same_groups,
        )
        if self._snapshot is not before:
            self._published(self._snapshot.version)


def _counted(seen: View) -> AbstractSet[str]:
    """Return the ids of the instances that are in targets."""
    listed = (each for found in seen.instances.values() for each in found)
    return {each.id for each in listed if each.state is not InstanceState.DELETING}
