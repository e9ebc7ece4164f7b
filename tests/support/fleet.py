"""A fleet for tests: a clock that tests move, a journal in memory, and a backend that tests script.

Typical use:

    harness = FleetHarness(groups=[group("a", max_size=5)])
    fleet = harness.fleet()
    fleet.apply(Increment({"a": 2}, origin=Origin.AUTOSCALER))
    fleet.reconcile()                  # orders
    harness.backend.boot_all()
    fleet.reconcile()                  # done
    fleet = harness.restart()            # same journal, same backend, new process as far as the fleet can tell
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.fleet import Fleet, FleetListeners, FleetSettings
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import FleetSnapshot, Instance, InstanceError, InstanceState
from cagrpc.fleet.records import Changes, Contents
from cagrpc.runtime.clock import EpochClock, epoch
from solver.model import Limit, NodeGroup

SHORTAGE = InstanceError(code="stockout", message="no capacity")


class FakeClock:
    """A clock of either kind, moved by hand."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.look_seconds = 0.0
        """That each look at it takes."""

    def __call__(self) -> Any:
        self.now += self.look_seconds
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def group(
    group_id: str, *, min_size: int = 0, max_size: int = 10, cpu: int = 4000, price: float = 0.1, **more: Any
) -> NodeGroup:
    """Return a node group with defaults for what a test does not name."""
    allocatable = {"cpu": cpu, "memory": 16 * 2**30, "pods": 110}
    more.setdefault("instance_type", group_id)
    return NodeGroup(group_id, allocatable, price, min_size=min_size, max_size=max_size, **more)


class MemoryJournal:
    """A `Journal` that lives as long as its `shelf`. With `broken` every call raises `Unavailable`, with `lost` only
    `check`: another process has become the writer, and no write has failed yet."""

    def __init__(self, shelf: list[Contents] | None = None) -> None:
        self.shelf = [Contents()] if shelf is None else shelf
        self.broken = False
        self.lost = False
        self.closed = False
        self.commits: list[Changes] = []

    def read(self) -> Contents:
        self._check()
        return self.shelf[0]

    def commit(self, changes: Changes) -> None:
        self._check()
        self.shelf[0] = self.shelf[0].after(changes)
        self.commits.append(changes)

    def probe(self) -> None:
        self._check()

    def check(self) -> None:
        self._check()
        if self.lost:
            raise errors.Unavailable("not the one writer")

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.broken or self.closed:
            raise errors.Unavailable("journal: out of reach")


class ScriptedBackend:
    """A backend in memory whose instances change only when the test says so.

    `unreachable`: every call raises `Unavailable`. `unreachable_groups`: orders and deletes with one of them do.
    `lose_answers`: calls are carried out, and then raise `Unavailable`. `refused_groups`: orders with one of them raise
    `refusal`. `provisional_ids`: a token is the id until its instance runs. `hidden`: tokens that are not listed yet;
    `hide_new` puts every new one there; `missing`: tokens that lists lack for a moment. `clock` dates the lists (the
    harness sets the fleet's). `executed_orders` and `executed_deletes` log the executed calls, `order_calls` the
    attempted ones.
    """

    problem: str | None = None

    def __init__(self) -> None:
        self.clock: EpochClock = epoch
        self.refusal: type[errors.OrderRefused] = errors.OutOfCapacity
        self.instances: dict[str, BackendInstance] = {}
        self.tokens: set[str] = set()
        self.unreachable = False
        self.unreachable_groups: set[str] = set()
        self.hide_new = False
        self.lose_answers = False
        self.refused_groups: set[str] = set()
        self.hidden: set[str] = set()
        self.missing: set[str] = set()
        self.list_every_seconds = self.absent_after_seconds = 0.0
        self.provisional_ids = False
        self.executed_orders: list[str] = []
        self.executed_deletes: list[str] = []
        self.order_calls: list[tuple[str, ...]] = []
        self.before_order: Callable[[], None] | None = None
        """Called in the middle of `order`, to simulate concurrent changes."""
        self.before_list: Callable[[], None] | None = None
        """The same in `list_instances`."""
        self.before_delete: Callable[[], None] | None = None

    @property
    def pace(self) -> Pace:
        """Tokens are hidden for as long as the test wants."""
        return Pace(self.list_every_seconds, 1e9 if self.hidden or self.hide_new else self.absent_after_seconds)

    def list_instances(self) -> Listing:
        self._check()
        if self.before_list is not None:
            self.before_list()
        lacking = self.hidden | self.missing
        found = (instance for instance in self.instances.values() if instance.token not in lacking)
        return Listing(tuple(found), self.clock())

    def order(self, order: Order) -> None:
        wanted = [each for each in order.instances if each.token in order.wanted]
        self._check()
        self.order_calls.append(tuple(each.token for each in wanted))
        if self.before_order is not None:
            self.before_order()
        self._check(*(each.group.id for each in wanted))
        new = [each for each in wanted if each.token not in self.tokens]
        short = {each.group.id for each in new} & self.refused_groups
        if short:
            raise self.refusal(f"no capacity for {', '.join(sorted(short))}", sorted(short))
        for each in new:
            self.tokens.add(each.token)
            self.executed_orders.append(each.token)
            if self.hide_new:
                self.hidden.add(each.token)
            self.add(each.group.id, token=each.token)
        self._answer()

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        instance_ids = [each.id for each in instances]
        if self.before_delete is not None:
            self.before_delete()
        self._check(*(self.instances[key].node_group for key in instance_ids if key in self.instances))
        for instance_id in instance_ids:
            instance = self.instances.get(instance_id)
            if instance is not None and instance.state is not InstanceState.DELETING:
                self.executed_deletes.append(instance_id)
                self.instances[instance_id] = replace(instance, state=InstanceState.DELETING, error=None)
        self._answer()

    def add(self, group_id: str, *, token: str, state: InstanceState = InstanceState.CREATING) -> str:
        """Add an instance, ordered or not, and return its id."""
        instance_id = f"scripted://{group_id}-{len(self.tokens):04d}-{len(self.instances):04d}"
        if self.provisional_ids and state is InstanceState.CREATING:
            instance_id = token
        self.instances[instance_id] = BackendInstance(instance_id, token, group_id, state)
        return instance_id

    def boot(self, instance_id: str) -> None:
        booted = replace(self.instances[instance_id], state=InstanceState.RUNNING)
        if instance_id == booted.token:
            booted = replace(booted, id=f"scripted://{booted.token}")
        self.instances = {
            each.id: each for each in (booted if key == instance_id else old for key, old in self.instances.items())
        }

    def boot_all(self) -> None:
        """Run every instance that is being created without an error."""
        for instance in tuple(self.instances.values()):
            if instance.state is InstanceState.CREATING and instance.error is None:
                self.boot(instance.id)

    def fail(self, instance_id: str, error: InstanceError = SHORTAGE) -> None:
        self.instances[instance_id] = replace(self.instances[instance_id], error=error)

    def vanish(self, instance_id: str) -> None:
        del self.instances[instance_id]

    def finish_deletes(self) -> None:
        """Remove every instance that is being deleted."""
        for instance in tuple(self.instances.values()):
            if instance.state is InstanceState.DELETING:
                self.vanish(instance.id)

    def ids(self, group_id: str | None = None) -> list[str]:
        return [i.id for i in self.instances.values() if group_id in (None, i.node_group)]

    def _check(self, *group_ids: str) -> None:
        if self.unreachable or self.unreachable_groups & set(group_ids):
            raise errors.Unavailable("backend: out of reach")

    def _answer(self) -> None:
        if self.lose_answers:
            raise errors.Unavailable("backend: the answer was lost")


class ScriptedNodes:
    """A cluster in memory: `ready` are ids of instances whose Node is Ready; with `unknown` it is unreachable."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.not_ready: set[str] = set()
        self.labels_of: dict[str, Mapping[str, str]] = {}
        self.unknown = False

    def labels(self, wanted: Mapping[str, AbstractSet[str]]) -> Mapping[str, Mapping[str, str]]:
        there = {each: self.labels_of.get(each, {}) for each in wanted}
        return {each: {key: of[key] for key in wanted[each] & of.keys()} for each, of in there.items()}

    def ready_instances(self) -> AbstractSet[str]:
        if self.unknown:
            raise errors.Unavailable("API server: out of reach")
        return frozenset(self.ready)

    def node_names(self) -> Mapping[str, str]:
        return {each: each for each in (*self.ready_instances(), *self.not_ready)}


def run_inline(work: Callable[[], None]) -> None:
    """Run the work at once: as `Fleet(submit=...)`, `apply` orders without a thread."""
    work()


@dataclass
class FleetHarness:
    """A fleet with its backend, journal and clock; `restart` makes a new fleet over the same ones."""

    groups: Sequence[NodeGroup] = ()
    limits: Sequence[Limit] = ()
    backend: ScriptedBackend = field(default_factory=ScriptedBackend)
    clock: FakeClock = field(default_factory=FakeClock)
    journal: Journal = field(default_factory=MemoryJournal)
    open_journal: Callable[[Journal], Journal] | None = None
    """Makes the journal of the next start from the last one, which is closed; a `MemoryJournal` needs none."""
    options: dict[str, Any] = field(default_factory=dict)
    """More keyword arguments for `Fleet`, its settings and its listeners."""

    def fleet(self) -> Fleet:
        options: dict[str, Any] = {"submit": run_inline, "clock": self.clock, **self.options}
        self.backend.clock = options["clock"]
        of = {name: options.pop(name) for name in FleetSettings.__slots__ if name in options}
        to = {name: options.pop(name) for name in FleetListeners.__slots__ if name in options}
        settings, listeners = FleetSettings(self.groups, self.limits, **of), FleetListeners(**to)
        self.current = Fleet(settings, self.backend, self.journal, listeners=listeners, **options)
        return self.current

    def threaded(self) -> Fleet:
        """Return another one, which orders in a thread of its own."""
        return Fleet(FleetSettings(self.groups, self.limits), self.backend, self.journal, clock=self.clock)

    def restart(self) -> Fleet:
        self.current.close()
        if self.open_journal is not None:
            self.journal = self.open_journal(self.journal)
        else:
            assert isinstance(self.journal, MemoryJournal)
            self.journal = MemoryJournal(self.journal.shelf)
        return self.fleet()


def targets(snapshot: FleetSnapshot) -> dict[str, int]:
    """Return target sizes above 0."""
    return {key: state.target_size for key, state in snapshot.groups.items() if state.target_size}


def listed(snapshot: FleetSnapshot, group_id: str) -> list[Instance]:
    return list(snapshot.groups[group_id].instances)


def states(snapshot: FleetSnapshot, group_id: str) -> list[str]:
    """Return states for short assertions: `running`, `creating`, `deleting`, or `failed` for a failed creation."""
    return ["failed" if i.error is not None else i.state.value for i in listed(snapshot, group_id)]
