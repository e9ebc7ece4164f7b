"""The index of the fleet, changed step by step, is what it would be made at once, by a plain sum over everything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.index import FleetIndex, status
from cagrpc.fleet.lifecycle import must_go
from cagrpc.fleet.model import IncrementSpec, Instance, InstanceError, InstanceState, Origin, Phase, Placement
from cagrpc.fleet.observation import Observation
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, IncrementRecord, Member, MemberState
from solver.model import NodeGroup
from tests.support.examples import examples
from tests.support.fleet import group

GROUPS = {name: group(name) for name in ("a", "b")}
FAULT = InstanceError("stockout", "none left")


class World:
    """Records and machines that change at random: more freely than a fleet lets them, and consistent with nothing."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.contents = Contents()
        self.machines: dict[str, BackendInstance] = {}
        self.ready: frozenset[str] | None = frozenset()
        self.groups: Mapping[str, NodeGroup] = GROUPS
        self.asks_cluster = True
        self._numbers = 0

    def observation(self) -> Observation:
        """As `DebouncedListing` has it: what has not changed are the same objects."""
        return Observation(
            tuple(self.machines.values()), self.ready, asks_cluster=self.asks_cluster, machines=self.machines
        )

    def change(self) -> None:
        self.rng.choice(
            (self._begin, self._move, self._move, self._member, self._member, self._delete, self._forget)
            + (self._machine,) * 4
            + (self._gone, self._nodes, self._groups)
        )()

    def _any(self) -> IncrementRecord | None:
        return self.rng.choice([*self.contents.increments.values(), None])

    def _commit(self, **changes: object) -> None:
        self.contents = self.contents.after(Changes(**changes))  # type: ignore[arg-type]

    def _begin(self) -> None:
        self._numbers += 1
        key = f"{self._numbers:02}"
        deltas = Counter(self.rng.choices("abc", k=self.rng.randint(1, 3)))
        uids = frozenset(self.rng.sample(("u", "v"), self.rng.choice((0, 0, 1, 2))))
        nodes = sorted(deltas.elements())[: self.rng.randint(0, 3)]
        pods = {f"pod-{key}-{number}": name for number, name in enumerate(nodes)}
        placements = tuple(
            Placement(name, () if uids else (pod,), tuple(sorted(uids))[:1]) for pod, name in pods.items()
        )
        spec = IncrementSpec(
            deltas,
            self.rng.choice(list(Origin)),
            pods=frozenset() if uids else frozenset((*pods, f"other-{key}")),
            placements=placements,
            requests=uids,
        )
        members = tuple(Member(f"{key}-{name}-{number}", name) for number, name in enumerate(deltas.elements()))
        self._commit(increments=(IncrementRecord(key, spec, Phase.PLANNED, members, 0.0, 600.0),))

    def _move(self) -> None:
        record = self._any()
        if record is not None:
            phase, error = self.rng.choice(list(Phase)), self.rng.choice((None, FAULT))
            self._commit(increments=(replace(record, phase=phase, error=error),))

    def _member(self) -> None:
        record = self._any()
        if record is not None:
            changed = self.rng.choice(record.members)
            machine = self.machines.get(changed.token)
            now = replace(
                changed, state=self.rng.choice(list(MemberState)), instance_id=machine.id if machine else None
            )
            members = tuple(now if each is changed else each for each in record.members)
            self._commit(increments=(replace(record, members=members),))

    def _delete(self) -> None:
        if self.machines and self.rng.random() < 0.7:
            machine = self.rng.choice(list(self.machines.values()))
            key = self.rng.choice((machine.id, machine.token or machine.id))
            self._commit(deletions=(DeletionRecord(key, machine.node_group, 0.0),))
        elif self.contents.deletions:
            self._commit(forgotten_deletions=(self.rng.choice(list(self.contents.deletions)),))

    def _forget(self) -> None:
        record = self._any()
        if record is not None:
            self._commit(forgotten_increments=(record.id,))

    def _machine(self) -> None:
        """One comes, or an old one changes; some carry no token."""
        record = self._any()
        token, name = (f"foreign-{self.rng.randint(0, 3)}", self.rng.choice("abc"))
        if record is not None:
            member = self.rng.choice(record.members)
            token, name = member.token, member.node_group
        known = self.machines.get(token)
        state = self.rng.choice(list(InstanceState))
        error = self.rng.choice((None, None, FAULT))
        found = BackendInstance(
            self.rng.choice((token, f"cloud://{token}")), "" if token == "foreign-0" else token, name, state, error
        )
        if found != known:
            self.machines = {**self.machines, found.token or token: found}

    def _gone(self) -> None:
        if self.machines:
            gone = self.rng.choice(list(self.machines))
            self.machines = {token: each for token, each in self.machines.items() if token != gone}

    def _nodes(self) -> None:
        known = [each.id for each in self.machines.values()]
        few = frozenset(self.rng.sample(known, self.rng.randint(0, len(known))))
        self.ready = self.rng.choice((few, few, few, None))

    def _groups(self) -> None:
        self.groups = self.rng.choice((GROUPS, {"a": GROUPS["a"]}))
        self.asks_cluster = self.rng.random() < 0.8


def listed(world: World, order: Mapping[str, int]) -> dict[str, tuple[Instance, ...]]:
    """By group, in order of creation; those of unknown origin first, as they were seen."""
    contents, found = world.contents, list[tuple[tuple[int, int], Instance]]()
    for token, machine in world.machines.items():
        place = contents.by_token.get(token)
        if place is not None and place.member.state is MemberState.FAILED:
            continue
        deleting = must_go(contents, machine) or machine.state is InstanceState.DELETING
        name = machine.node_group if place is None else place.member.node_group
        state = InstanceState.DELETING if deleting else machine.state
        at = (-1, order[token]) if place is None else place.order
        found.append((at, Instance(machine.id, name, state, None if deleting else machine.error)))
    for record in contents.increments.values():
        for member in record.members:
            if member.state is MemberState.FAILED and record.error is not None:
                failed = Instance(member.listed_id, member.node_group, InstanceState.CREATING, record.error)
                found.append((contents.by_token[member.token].order, failed))
    groups: defaultdict[str, list[Instance]] = defaultdict(list)
    for _, instance in sorted(found, key=lambda each: each[0]):
        if instance.node_group in world.groups:
            groups[instance.node_group].append(instance)
    return {name: tuple(instances) for name, instances in groups.items()}


def coming(world: World) -> Iterator[str]:
    for record in world.contents.increments.values():
        if record.phase in (Phase.PLANNED, Phase.CREATING):
            for member in record.remaining:
                if member.token not in world.machines and member.node_group in world.groups:
                    yield member.node_group


def held(world: World) -> Iterator[str]:
    for token, machine in world.machines.items():
        place = world.contents.by_token.get(token)
        if place is not None and (place.record.phase.in_flight or place.record.failing):
            yield machine.id
    for record in world.contents.increments.values():
        if record.failing:
            yield from (member.listed_id for member in record.members if member.state is MemberState.FAILED)


def requested(world: World) -> dict[str, frozenset[str]]:
    return {
        world.machines[member.token].id: frozenset(record.planned()[member.token].requests)
        for record in world.contents.increments.values()
        if not record.failing and record.increment.requests
        for member in record.remaining
        if member.token in world.machines
    }


def pods(world: World) -> Iterator[object]:
    for record in world.contents.increments.values():
        if not record.phase.in_flight or record.phase is Phase.ROLLING_BACK or record.increment.requests:
            continue
        lost = {
            pod
            for member in record.members
            if member.state is MemberState.RELEASED
            or (record.phase is Phase.READY and not world.observation().exists(member.token))
            for pod in record.planned()[member.token].pods
        }
        yield from record.increment.pods - lost


@examples(300)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_changed_step_by_step_it_is_the_plain_sum(seed: int, steps: list[int]) -> None:
    world, index, order = World(seed), FleetIndex(), dict[str, int]()
    for number, changes in enumerate(steps):
        for _ in range(changes):
            world.change()
        observed = world.observation()
        index.update(world.contents, observed, world.groups)
        order = {token: order.get(token, number) for token in world.machines}
        _check(index, world, observed, order)


def _check(index: FleetIndex, world: World, observed: Observation, order: Mapping[str, int]) -> None:
    seen = listed(world, order)
    # Which of two comes first that were seen first in one list is the backend's affair.
    assert {name: sorted(map(str, each)) for name, each in index.view.instances.items()} == {
        name: sorted(map(str, each)) for name, each in seen.items()
    }
    positions = {
        machine.id: order[token]
        for token, machine in world.machines.items()
        if token not in world.contents.by_token and machine.node_group in world.groups
    }
    for instances in index.view.instances.values():
        foreign = [positions[each.id] for each in instances if each.id in positions]
        assert foreign == sorted(foreign)
    targets = Counter(coming(world))
    for name, instances in seen.items():
        targets[name] += sum(each.state is not InstanceState.DELETING for each in instances)
    assert index.view.targets == {name: count for name, count in targets.items() if count}
    assert set(index.view.group_of_instance) == {each.id for instances in seen.values() for each in instances}
    assert index.flight.held_instances == frozenset(held(world))
    assert index.flight.requested_instances == requested(world)
    assert index.flight.pods == frozenset(pods(world))
    for key, record in world.contents.increments.items():
        assert index.status(key) == status(record, observed)
    doomed = [each for each in world.machines.values() if must_go(world.contents, each)]
    assert sorted(map(str, (each for found in index.to_delete().values() for each in found))) == sorted(
        str(each) for each in doomed if each.state is not InstanceState.DELETING
    )


def test_what_has_not_changed_are_the_same_objects() -> None:
    machines = {
        f"{name}-{number}": BackendInstance(f"{name}-{number}", f"{name}-{number}", name, InstanceState.RUNNING)
        for name in GROUPS
        for number in range(3)
    }
    index, contents = FleetIndex(), Contents()
    index.update(contents, Observation(tuple(machines.values()), machines=machines), GROUPS)
    before, version = index.view, index.version
    index.update(contents, Observation(tuple(machines.values()), absent_from_seconds=1.0, machines=machines), GROUPS)
    assert (index.view, index.version) == (before, version)
    assert index.view is before
    machines = {**machines, "a-1": replace(machines["a-1"], state=InstanceState.DELETING)}
    index.update(contents, Observation(tuple(machines.values()), machines=machines), GROUPS)
    assert index.version > version
    assert index.view.instances["b"] is before.instances["b"]
    assert index.view.instances["a"] != before.instances["a"]
    assert index.view.group_of_instance is before.group_of_instance
