"""What is to be seen of instances and increments, kept up to date with the journal's records and the backend's list: a
change costs what it touches, however large the fleet is; and the snapshot made of it, which readers see. The only place
that says what counts.

A target is what is listed and not being deleted, plus what is asked for and not listed yet. It is never stored, so it
cannot disagree with the instances behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import count

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.lifecycle import must_go, nodes, progress
from cagrpc.fleet.model import FleetSnapshot, GroupState, IncrementStatus, Instance, InstanceState, Phase, PodKey
from cagrpc.fleet.observation import Observation
from cagrpc.fleet.records import Contents, IncrementRecord, MemberState
from solver.model import Limit, NodeGroup
from solver.model.quantities import pluralize

_WAITING = (Phase.PLANNED, Phase.CREATING)

Shown = Callable[[Sequence[NodeGroup], Mapping[str, int]], Sequence[str]]
"""Picks the ids of the groups that CA is told of; targets by id, absent ones 0."""
_FINISHED_KEPT = 100
_LATELY_SECONDS = 60.0
"""Besides, all are kept that ended so long before the last: readers that follow finished increments for a while
(shortages, settling pods) find them, however many end together. This counts from the last, so that time alone changes
no snapshot."""


@dataclass(frozen=True, slots=True)
class View:
    """Instances by group in order of creation, targets above 0 by group, and the group of every listed instance."""

    instances: Mapping[str, tuple[Instance, ...]] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    group_of_instance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
    """What increments come to, all together."""

    held_instances: frozenset[str] = frozenset()
    requested_instances: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pods: frozenset[PodKey] = frozenset()


@dataclass(frozen=True, slots=True)
class _ListedInstance:
    """An instance to list, and its position in the order of creation; those of unknown origin come first."""

    order: tuple[int, int]
    instance: Instance


@dataclass(frozen=True, slots=True)
class _IncrementView:
    """What one increment comes to."""

    status: IncrementStatus
    coming: Mapping[str, int]
    """Nodes by group that are requested and not listed yet."""
    held: tuple[str, ...]
    requested: Mapping[str, frozenset[str]]
    pods: frozenset[PodKey]


class FleetIndex:
    """Counts the instances of each group that was ever configured. For one thread at a time."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change of what is to be seen."""
        self.view = View()
        self.flight = Flight()
        self._contents = Contents()
        self._observed = Observation(listed=False)
        self._forget()

    def _forget(self) -> None:
        self._known = False
        self._groups: Mapping[str, NodeGroup] = {}
        self._numbers = count()
        self._first_seen: dict[str, int] = {}
        """A number by token, which grows with the order in which instances were listed first."""
        self._tokens: dict[str, str] = {}
        """The tokens of what the backend lists, by id."""
        self._listed: dict[str, _ListedInstance] = {}
        """What is listed by token, failed members that the backend does not list among them."""
        self._of_group: dict[str, dict[str, _ListedInstance]] = {}
        self._doomed: dict[str, BackendInstance] = {}
        self._parts: dict[str, _IncrementView] = {}
        self._telling: dict[str, _IncrementView] = {}
        """Parts that hold, request or serve anything."""
        self._targets: Counter[str] = Counter()
        self._dirty: set[str] = set()
        """Groups whose instances have changed."""

    def status(self, increment_id: str) -> IncrementStatus:
        """Return an increment's status. Raises KeyError for one that is not among the records."""
        return self._parts[increment_id].status

    def to_delete(self) -> Mapping[str, Sequence[BackendInstance]]:
        """Return the instances to delete that are not being deleted, by node group, in order of creation: deleted by
        CA, members of failed increments (also late ones), and members that CA released."""
        found: dict[str, list[BackendInstance]] = {}
        for token in sorted(self._doomed, key=lambda each: (self._order(each), each)):
            machine = self._doomed[token]
            found.setdefault(machine.node_group, []).append(machine)
        return found

    def update(self, contents: Contents, observed: Observation, groups: Mapping[str, NodeGroup]) -> None:
        """Bring it up to date. `groups` are those that are served."""
        if self._known and contents is self._contents and observed is self._observed and groups is self._groups:
            return
        try:
            self._update(contents, observed, groups)
        except BaseException:
            self._known = False  # half of it may be done: the next time begins anew
            raise

    def _update(self, contents: Contents, observed: Observation, groups: Mapping[str, NodeGroup]) -> None:
        before, seen = self._contents, self._observed
        same_view = (observed.listed, observed.asks_cluster) == (seen.listed, seen.asks_cluster)
        anew = not self._known or groups is not self._groups or not same_view
        if anew:
            numbers, first_seen = self._numbers, self._first_seen
            self._forget()
            self._numbers = numbers
            self._first_seen = {token: first_seen[token] for token in first_seen if token in observed.machines}
            self._groups, before, seen = groups, Contents(), Observation(listed=False)
            self._dirty.update(self.view.instances)
        self._contents, self._observed = contents, observed
        changed = _changed(before.increments, contents.increments)
        tokens = self._changed_machines(seen.machines, observed.machines)
        tokens |= self._changed_deletions(before, contents)
        records = {ref.record.id for token in tokens if (ref := contents.by_token.get(token)) is not None}
        for records_of in (before.increments, contents.increments):
            tokens.update(m.token for key in changed if key in records_of for m in records_of[key].members)
        records |= changed
        records |= self._by_readiness(seen.ready, observed.ready)
        for token in tokens:
            self._put_machine(token)
        for key in records:
            self._put_record(key)
        self._known = True
        self._show(told=anew or bool(records))

    # ---- what has changed

    def _changed_machines(self, before: Mapping[str, BackendInstance], now: Mapping[str, BackendInstance]) -> set[str]:
        if before is now:
            return set()
        gone = before.keys() - now.keys()
        for token in gone:
            self._first_seen.pop(token, None)
        new = [token for token, machine in now.items() if before.get(token) is not machine]
        for token in new:
            if token not in self._first_seen:
                self._first_seen[token] = next(self._numbers)
        for token in (*gone, *new):
            if token in before and self._tokens.get(before[token].id) == token:
                del self._tokens[before[token].id]
        self._tokens.update((now[token].id, token) for token in new)
        return gone.union(new)

    def _changed_deletions(self, before: Contents, now: Contents) -> set[str]:
        if before.deletions is now.deletions:
            return set()
        return {self._tokens.get(key, key) for key in before.deletions.keys() ^ now.deletions.keys()}

    def _by_readiness(self, before: AbstractSet[str] | None, now: AbstractSet[str] | None) -> set[str]:
        """Return the increments in flight of whose nodes others are Ready than before."""
        if before is now:
            return set()
        if before is None or now is None:
            return {key for key, record in self._contents.increments.items() if record.phase.in_flight}
        refs = (self._contents.by_instance.get(each) for each in before ^ now)
        return {ref.record.id for ref in refs if ref is not None and ref.record.phase.in_flight}

    # ---- instances

    def _put_machine(self, token: str) -> None:
        machine = self._observed.machines.get(token)
        going = machine is not None and must_go(self._contents, machine)
        if machine is not None and going and machine.state is not InstanceState.DELETING:
            self._doomed[token] = machine
        else:
            self._doomed.pop(token, None)
        now, before = self._instance(token, machine, going=going), self._listed.get(token)
        if now == before:
            return
        if before is not None:
            group = before.instance.node_group
            del self._listed[token], self._of_group[group][token]
            self._targets[group] -= before.instance.state is not InstanceState.DELETING
            self._dirty.add(group)
        if now is not None:
            group = now.instance.node_group
            self._listed[token] = self._of_group.setdefault(group, {})[token] = now
            self._targets[group] += now.instance.state is not InstanceState.DELETING
            self._dirty.add(group)

    def _instance(self, token: str, machine: BackendInstance | None, *, going: bool) -> _ListedInstance | None:
        """Return how an instance, or a failed member, is listed; None where it is not."""
        place = self._contents.by_token.get(token)
        if place is not None and place.member.state is MemberState.FAILED:  # machine or not
            error = place.record.error
            instance = Instance(place.member.listed_id, place.member.node_group, InstanceState.CREATING, error)
            return _ListedInstance(place.order, instance) if error and instance.node_group in self._groups else None
        if machine is None:
            return None
        group = machine.node_group if place is None else place.member.node_group
        deleting = going or machine.state is InstanceState.DELETING
        state = InstanceState.DELETING if deleting else machine.state
        instance = Instance(machine.id, group, state, None if deleting else machine.error)
        return _ListedInstance(self._order(token), instance) if group in self._groups else None

    def _order(self, token: str) -> tuple[int, int]:
        place = self._contents.by_token.get(token)
        return (-1, self._first_seen.get(token, -1)) if place is None else place.order

    # ---- increments

    def _put_record(self, key: str) -> None:
        record, before = self._contents.increments.get(key), self._parts.pop(key, None)
        self._telling.pop(key, None)
        if before is not None:
            self._targets.subtract(before.coming)
        if record is not None:
            part = self._parts[key] = self._part(record)
            self._targets.update(part.coming)
            if part.held or part.requested or part.pods:
                self._telling[key] = part

    def _part(self, record: IncrementRecord) -> _IncrementView:
        return _IncrementView(
            status(record, self._observed),
            Counter(self._coming(record)),
            tuple(self._held(record)),
            dict(self._requested(record)),
            frozenset(self._pods(record)),
        )

    def _coming(self, record: IncrementRecord) -> Iterator[str]:
        if record.phase in _WAITING:
            for member in record.remaining:
                if member.token not in self._observed.machines and member.node_group in self._groups:
                    yield member.node_group

    def _held(self, record: IncrementRecord) -> Iterator[str]:
        """Yield instances of an increment in flight, and those that a failed one still has to delete: no pod may run
        there."""
        if not (record.phase.in_flight or record.failing):
            return
        for member in record.members:
            machine = self._observed.machines.get(member.token)
            if machine is not None:
                yield machine.id
            if record.failing and member.state is MemberState.FAILED:
                yield member.listed_id

    def _requested(self, record: IncrementRecord) -> Iterator[tuple[str, frozenset[str]]]:
        if record.failing or not record.increment.requests:
            return
        planned = record.planned()
        for member in record.remaining:
            machine = self._observed.machines.get(member.token)
            if machine is not None:
                yield machine.id, frozenset(planned[member.token].requests)

    def _pods(self, record: IncrementRecord) -> AbstractSet[PodKey]:
        """Return the pods that an increment in flight serves. One that is rolling back serves none, and neither does a
        node that was deleted, or that vanished from a ready increment: their pods can be planned elsewhere at once."""
        if not record.phase.in_flight or record.phase is Phase.ROLLING_BACK or record.increment.requests:
            return frozenset()
        observed, planned = self._observed, record.planned() if record.increment.placements else {}
        lost = {
            pod
            for member in record.members
            if member.state is MemberState.RELEASED
            or (observed.listed and record.phase is Phase.READY and not observed.exists(member.token))
            for pod in (planned[member.token].pods if planned else ())
        }
        return record.increment.pods - lost

    # ---- what is seen

    def _show(self, *, told: bool) -> None:
        """Make the values that readers see, of what has changed; `told` is whether increments have."""
        if not (told or self._dirty):
            return
        view, changed = self.view, told
        targets = +self._targets
        if self._dirty:
            instances = {key: found for key, found in view.instances.items() if key not in self._dirty}
            for key in self._dirty:
                listed = sorted(self._of_group.get(key, {}).values(), key=lambda each: each.order)
                if listed:
                    instances[key] = tuple(each.instance for each in listed)
            groups = {each.id: each.node_group for found in instances.values() for each in found}
            view = View(instances, view.targets, groups if groups != view.group_of_instance else view.group_of_instance)
            self._dirty = set()
        if targets != view.targets:
            view = View(view.instances, dict(targets), view.group_of_instance)
        if view is not self.view:
            self.view, changed = view, True
        if told:
            parts = self._telling.values()
            requested: dict[str, frozenset[str]] = {}
            for part in parts:
                requested.update(part.requested)
            held = frozenset[str]().union(*(part.held for part in parts))
            self.flight = Flight(held, requested, frozenset[PodKey]().union(*(part.pods for part in parts)))
        self.version += changed


def status(record: IncrementRecord, observed: Observation) -> IncrementStatus:
    """Return an increment's status: while it is in flight the message says what it waits for."""
    match record.phase:
        case Phase.PLANNED:
            return record.status("waits to be ordered", nodes(record, observed))
        case Phase.CREATING:
            return record.status(progress(record, observed), nodes(record, observed))
        case Phase.READY:
            held = nodes(record, observed)
            return record.status(f"waits until {pluralize(len(held), 'node')} can be released", held)
    return record.status()


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    """Return the keys of other values than before."""
    if before is now:
        return set()
    return {key for key, value in now.items() if before.get(key) is not value} | (before.keys() - now.keys())


def used(limit: Limit, groups: Mapping[str, NodeGroup], targets: Mapping[str, int]) -> Limit:
    """Return the limit with `used` brought up to date: what it was given with is used outside the fleet."""
    total = Counter(limit.used)
    for group_id, target in targets.items():
        for resource, amount in limit.counted(groups[group_id]).items():
            if resource in limit.maxima:
                total[resource] += amount * target
    return replace(limit, used=dict(total))


def _latest(contents: Contents) -> Iterator[IncrementRecord]:
    """Yield the finished increments that ended last, newest first."""
    ended = [(r.finished_at_seconds or 0.0, r) for r in contents.increments.values() if not r.phase.in_flight]
    ended.sort(key=lambda entry: entry[0])
    for number, (at, record) in enumerate(reversed(ended)):
        if number >= _FINISHED_KEPT and at <= ended[-1][0] - _LATELY_SECONDS:
            return
        yield record


def snapshot(
    previous: FleetSnapshot,
    contents: Contents,
    index: FleetIndex,
    groups: Mapping[str, NodeGroup],
    limits: Sequence[Limit],
    shown: Shown,
    orphans: Sequence[BackendInstance] = (),
    *,
    same_groups: bool = False,
) -> FleetSnapshot:
    """Return the next snapshot; the same object as `previous` where nothing changed. Unchanged groups stay the same
    objects too, so that readers may cache what they derived from them. `index` is that of these records. With
    `same_groups` the groups are those that `previous` was made of."""
    seen, flight = index.view, index.flight
    states = {
        group_id: _state(
            previous.groups.get(group_id), group, seen.targets.get(group_id, 0), seen.instances, same_group=same_groups
        )
        for group_id, group in groups.items()
    }
    in_flight = [record for record in contents.increments.values() if record.phase.in_flight]
    listed = {record.id for record in (*in_flight, *_latest(contents))}
    picked = {*shown(tuple(groups.values()), seen.targets), *seen.targets}
    result = FleetSnapshot(
        version=previous.version,
        groups=states,
        shown=tuple(group_id for group_id in groups if group_id in picked),
        group_of_instance=seen.group_of_instance,
        increments=tuple(index.status(key) for key in contents.increments if key in listed),
        limits=tuple(used(limit, groups, seen.targets) for limit in limits),
        held_instances=flight.held_instances,
        requested_instances=flight.requested_instances,
        in_flight_pods=flight.pods,
        orphans=tuple(Instance(each.id, each.node_group, each.state, each.error) for each in orphans),
        disruptions=tuple(contents.disruptions.values()),
    )
    return previous if result == previous else replace(result, version=previous.version + 1)


def _state(
    previous: GroupState | None,
    group: NodeGroup,
    target: int,
    instances: Mapping[str, tuple[Instance, ...]],
    *,
    same_group: bool,
) -> GroupState:
    found = instances.get(group.id, ())
    same = previous is not None and (previous.instances is found or previous.instances == found)
    same = same and previous is not None and previous.target_size == target
    if previous is not None and same and same_group:
        return previous
    # Where more exist than allowed (the maximum was lowered, or the group is no longer configured), that is its
    # maximum.
    shown = replace(group, target_size=target, max_size=max(group.max_size, target))
    if previous is not None and same and previous.group == shown:
        return previous
    return GroupState(group=shown, target_size=target, instances=found)
