"""The fleet against a simple model, under random requests, faults, time and restarts from the same file; alone, and
with a cluster that registers nodes late, loses them and is not always known.

The model knows of each increment only how many nodes of each group it still counts for, and why it might fail. It takes
the phases from the fleet, but checks that each was allowed to come, and that the targets follow from them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.groups import REASON
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, IncrementStatus, InstanceState, Origin, Phase
from cagrpc.fleet.observation import UNKNOWN_GRACE_SECONDS
from cagrpc.fleet.records import Changes
from solver.model import Limit
from tests.support.examples import examples
from tests.support.fleet import FleetHarness, ScriptedNodes, group, states

GROUPS = {"a": group("a", min_size=1, max_size=4), "b": group("b", max_size=4), "c": group("c", max_size=6)}
LIMITS = [Limit("provisioner", {"nodes": 6}, node_groups=frozenset({"a", "b"})), Limit("cluster", {"nodes": 10})]
FAILING = (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
WHOLE = (Phase.READY, Phase.DONE)
DEADLINE_SECONDS = FAILED_LISTING_SECONDS = 600.0


class BreakableJournal(SqliteJournal):
    broken = False

    def commit(self, changes: Changes) -> None:
        if self.broken:
            raise errors.Unavailable("journal: out of reach")
        super().commit(changes)

    def probe(self) -> None:
        if self.broken:
            raise errors.Unavailable("journal: out of reach")
        super().probe()


@dataclass
class Known:
    """What the model knows of an increment."""

    origin: Origin
    counted: Counter[str]
    deadline: float
    phase: Phase = Phase.PLANNED
    may_fail: bool = False
    withdrawn: bool = False
    give_up_at: float = float("inf")
    dropped: set[str] = field(default_factory=set)
    """Tokens of instances that no longer count: deleted, or vanished after it was done."""


def _raising(call: object) -> type[Exception] | None:
    try:
        call()  # type: ignore[operator]
    except errors.CagrpcError as error:
        return type(error)
    return None


class FleetMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "journal.db"
        self.harness = FleetHarness(
            groups=list(GROUPS.values()),
            limits=LIMITS,
            journal=BreakableJournal(path),
            open_journal=lambda last: BreakableJournal(path),
            options={
                "increment_deadline_seconds": DEADLINE_SECONDS,
                "failed_listing_seconds": FAILED_LISTING_SECONDS,
                **self._more_options(),
            },
        )
        self.backend = self.harness.backend
        self.known: dict[str, Known] = {}
        self.tokens: dict[str, str] = {}  # instance id -> token
        self.listed: set[str] = set()
        """Tokens that a list had."""
        self.vanished: set[str] = set()
        self.deleted: dict[str, set[str]] = {key: set() for key in GROUPS}
        self.refused_reasons: set[str] = set()
        self.applied = 0
        self.fleet = self.harness.fleet()
        self._learn(looked=True)

    def _more_options(self) -> dict[str, object]:
        return {}

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            try:
                self._settle()
            finally:
                self.fleet.close()
                self.directory.cleanup()

    # What may be asked.

    @rule(
        deltas=st.dictionaries(st.sampled_from([*GROUPS, *GROUPS, "x"]), st.integers(-1, 4), max_size=3),
        origin=st.sampled_from(list(Origin)),
        wait=st.booleans(),
    )
    def apply(self, deltas: dict[str, int], origin: Origin, wait: bool) -> None:
        before = self._targets()
        self.applied += 1
        reason = f"apply {self.applied}"
        allowed = self._may_apply(deltas, before)
        asked = IncrementSpec(deltas, origin, reason=reason)
        raised = _raising(lambda: self._add(self.fleet.apply(asked, refusal_wait_seconds=1.0 if wait else 0.0)))
        if raised is None:
            assert allowed
            assert self._targets() == before + Counter(deltas)
        else:
            assert self._targets() == before
        if raised is errors.OutOfCapacity:
            assert wait
            assert self.backend.refused_groups & set(deltas)
            self.refused_reasons.add(reason)
        elif raised is not errors.Unavailable:
            assert allowed == (raised is None)
        self._learn(looked=False)

    def _may_apply(self, deltas: dict[str, int], before: Counter[str]) -> bool:
        after = before + Counter(deltas)
        return (
            bool(deltas)
            and all(key in GROUPS and delta >= 1 for key, delta in deltas.items())
            and all(after[key] <= GROUPS[key].max_size for key in deltas)
            and (after["a"] + after["b"] <= 6 or not {"a", "b"} & set(deltas))
            and after.total() <= 10
        )

    @rule(group_id=st.sampled_from(list(GROUPS)), data=st.data())
    def delete(self, group_id: str, data: st.DataObject) -> None:
        state = self.fleet.snapshot.groups[group_id]
        listed = {i.id: i for i in state.instances}
        listed = {**{self._token_of(i.id): i for i in state.instances}, **listed}  # the id that was provisional
        choices = [*listed, *sorted(self.deleted[group_id])]
        if not choices:
            return
        ids = data.draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3))
        asked = {listed[key].id: listed[key] for key in ids if key in listed}
        going = [each for each in asked.values() if each.state is not InstanceState.DELETING]
        sound = [i for i in going if i.error is None]
        sound_left = state.target_size - sum(i.error is not None for i in state.instances) - len(sound)
        before = self._targets()
        raised = _raising(lambda: self.fleet.delete_instances(group_id, ids))
        if raised is None:
            assert not sound or sound_left >= GROUPS[group_id].min_size
            assert self._targets()[group_id] == before[group_id] - len(going)
            for instance in going:
                self._drop(instance.id, group_id)
            self.deleted[group_id].update(ids)
        else:
            assert raised is errors.Unavailable or (sound and sound_left < GROUPS[group_id].min_size)
            assert self._targets() == before

    @rule(group_id=st.sampled_from(list(GROUPS)), data=st.data())
    def delete_from_the_wrong_group(self, group_id: str, data: st.DataObject) -> None:
        others = [key for key, owner in self.fleet.snapshot.group_of_instance.items() if owner != group_id]
        ids = data.draw(st.lists(st.sampled_from([*others, "unknown"]), min_size=1, max_size=3))
        before = self.fleet.snapshot
        assert _raising(lambda: self.fleet.delete_instances(group_id, ids)) is not None
        assert self.fleet.snapshot is before

    @rule(group_id=st.sampled_from(list(GROUPS)), delta=st.integers(-6, 1))
    def decrease(self, group_id: str, delta: int) -> None:
        before = self._targets()
        # What the backend says of an instance is a failure once the journal has taken it.
        failed = [
            i.id
            for i in self.fleet.snapshot.groups[group_id].instances
            if i.error is not None and self._known_of(i.id).phase in FAILING
        ]
        raised = _raising(lambda: self.fleet.decrease_target(group_id, delta))
        if delta >= 0:
            assert raised in (errors.InvalidInput, errors.Unavailable)
        if raised is not None:
            assert self._targets() == before
            return
        given_back = failed[:-delta]
        assert self._targets()[group_id] == before[group_id] - len(given_back)
        for instance_id in given_back:
            self._drop(instance_id, group_id)

    @precondition(lambda self: self.fleet.snapshot.increments)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        status = data.draw(st.sampled_from(self.fleet.snapshot.increments))
        known, before, deletes = self.known[status.id], self._targets(), len(self.backend.executed_deletes)
        raised = _raising(lambda: self.fleet.withdraw(status.id, "no longer wanted"))
        open_ = status.phase in (Phase.PLANNED, Phase.CREATING, Phase.READY)
        expected = before
        if raised is None and open_:
            assert known.origin is Origin.CAGRPC
            expected = before - known.counted
            known.may_fail = known.withdrawn = True
            assert self.fleet.increment(status.id).phase in FAILING
        elif raised is errors.FailedPrecondition:
            assert known.origin is Origin.AUTOSCALER
        elif raised is None:
            assert self.fleet.increment(status.id).phase is status.phase
        else:
            assert raised is errors.Unavailable
        assert +self._targets() == +expected
        assert len(self.backend.executed_deletes) == deletes
        self._learn(looked=False)

    @rule()
    def reconcile(self) -> None:
        looked = _raising(self.fleet.reconcile) is None
        self._learn(looked=looked)

    @rule(ahead=st.sampled_from([0.0, 0.0, 600.0, -600.0, -86_400.0]))
    def restart(self, ahead: float) -> None:
        """Another process, whose clock is that much ahead of the last one's."""
        self.harness.journal.close()
        self.harness.clock.advance(ahead)
        self._new_process()
        self.fleet = self.harness.restart()
        self._learn(looked=self.fleet.problem is None)

    def _new_process(self) -> None:
        now = self.harness.clock()
        for known in self.known.values():
            known.deadline = min(max(known.deadline, now + DEADLINE_SECONDS / 2), now + DEADLINE_SECONDS)
            if known.give_up_at < float("inf"):
                least, most = now + FAILED_LISTING_SECONDS / 2, now + FAILED_LISTING_SECONDS
                known.give_up_at = min(max(known.give_up_at, least), most)

    # What may happen.

    @rule(seconds=st.sampled_from([1.0, 30.0, 59.0, 299.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)
        for known in self.known.values():
            known.may_fail |= self.harness.clock() >= known.deadline

    @rule()
    def boot_all(self) -> None:
        self.backend.boot_all()

    @precondition(lambda self: self.backend.ids())
    @rule(data=st.data(), what=st.sampled_from(["boot", "fail", "vanish"]))
    def one_instance_changes(self, data: st.DataObject, what: str) -> None:
        instance_id = data.draw(st.sampled_from(self.backend.ids()))
        instance = self.backend.instances[instance_id]
        being_created = instance.state is InstanceState.CREATING
        known = self._known_of(instance_id)
        if what == "vanish":
            self.backend.vanish(instance_id)
            self.vanished.add(instance_id)
            known.may_fail = True
        elif what == "boot" and being_created and instance.error is None:
            self.backend.boot(instance_id)
        elif what == "fail" and being_created:
            self.backend.fail(instance_id)
            known.may_fail = True

    @rule()
    def deletes_finish(self) -> None:
        self.backend.finish_deletes()

    @rule(group_id=st.sampled_from(list(GROUPS)))
    def toggle_shortage(self, group_id: str) -> None:
        self.backend.refused_groups ^= {group_id}

    @rule(group_id=st.sampled_from(list(GROUPS)))
    def toggle_reach(self, group_id: str) -> None:
        self.backend.unreachable_groups ^= {group_id}

    @rule(what=st.sampled_from(["unreachable", "lose_answers"]))
    def toggle_backend(self, what: str) -> None:
        setattr(self.backend, what, not getattr(self.backend, what))

    @rule()
    def toggle_journal(self) -> None:
        assert isinstance(self.harness.journal, BreakableJournal)
        self.harness.journal.broken = not self.harness.journal.broken

    # What must hold.

    @invariant()
    def sizes_and_limits_are_kept(self) -> None:
        found = self._targets()
        assert all(0 <= found[key] <= GROUPS[key].max_size for key in GROUPS)
        assert found["a"] + found["b"] <= 6
        assert found.total() <= 10
        assert [limit.used["nodes"] for limit in self.fleet.snapshot.limits if limit.used] in (
            [found["a"] + found["b"], found.total()],
            [],
            [found.total()],
        )

    @invariant()
    def an_instance_belongs_to_one_group(self) -> None:
        snapshot = self.fleet.snapshot
        owners = [(i.id, key) for key, state in snapshot.groups.items() for i in state.instances]
        assert len({key for key, _ in owners}) == len(owners)
        assert dict(owners) == snapshot.group_of_instance

    @invariant()
    def nothing_is_executed_twice_and_orders_are_whole(self) -> None:
        assert len(set(self.backend.executed_orders)) == len(self.backend.executed_orders)
        assert len(set(self.backend.executed_deletes)) == len(self.backend.executed_deletes)
        executed = Counter(token.split("-")[0] for token in self.backend.executed_orders)
        for status in self.fleet.snapshot.increments:
            assert executed[status.id] in (0, sum(status.increment.deltas.values()))

    # The model.

    def _targets(self) -> Counter[str]:
        return Counter({key: state.target_size for key, state in self.fleet.snapshot.groups.items()})

    def _add(self, status: IncrementStatus) -> None:
        deltas = status.increment.deltas
        self.known[status.id] = Known(status.increment.origin, Counter(deltas), status.deadline_at_seconds)

    def _known_of(self, instance_id: str) -> Known:
        return self.known[self._token_of(instance_id).split("-")[0]]

    def _token_of(self, instance_id: str) -> str:
        """Return the token; of a failed instance that never existed that is its id."""
        self.tokens.update({i.id: i.token for i in self.backend.instances.values()})
        return self.tokens.get(instance_id, instance_id)

    def _drop(self, instance_id: str, group_id: str) -> None:
        known, token = self._known_of(instance_id), self._token_of(instance_id)
        if token not in known.dropped:
            known.dropped.add(token)
            known.counted[group_id] -= 1

    def _learn(self, *, looked: bool) -> None:
        """Takes over the phases; after a successful look the targets must be what follows from them."""
        if looked:
            self.listed |= {i.token for i in self.backend.instances.values()} - self.backend.missing
        for status in self.fleet.snapshot.increments:
            self._take_over(status)
        if not looked:
            return
        for known in self.known.values():
            if self.harness.clock() >= known.give_up_at:
                known.counted.clear()
        for instance_id in tuple(self.vanished):
            if self._known_of(instance_id).phase in WHOLE:
                self._drop(instance_id, self._token_of(instance_id).split("-")[1])
                self.vanished.discard(instance_id)
        expected = sum((known.counted for known in self.known.values()), Counter[str]())
        assert {key: n for key, n in self._targets().items() if n} == {key: n for key, n in expected.items() if n}
        for instance in self.backend.instances.values():
            listed = instance.token in self.listed
            must_go = listed and self._known_of(instance.id).phase in FAILING
            reached = instance.node_group not in self.backend.unreachable_groups
            assert not (must_go and reached) or instance.state is InstanceState.DELETING

    def _take_over(self, status: IncrementStatus) -> None:
        """One increment's phase, where it may have come to that."""
        if status.id not in self.known:
            self._add(status)
            assert status.increment.reason == REASON or status.increment.reason in self.refused_reasons
        known = self.known[status.id]
        if status.phase in FAILING and known.phase not in FAILING:
            assert known.may_fail or self.backend.refused_groups & set(status.increment.deltas), status
            if known.origin is Origin.CAGRPC or status.increment.reason in self.refused_reasons:
                known.counted.clear()
            else:
                known.give_up_at = self.harness.clock() + FAILED_LISTING_SECONDS
        assert known.phase is not Phase.DONE or status.phase is Phase.DONE
        assert known.phase is not Phase.READY or status.phase in WHOLE or known.withdrawn
        assert not known.withdrawn or not status.short_groups
        assert known.phase not in FAILING or status.phase in FAILING
        known.phase = status.phase

    def _settle(self) -> None:
        """With backend and cluster in order everything ends: increments finished, failed ones gone without a trace,
        minimum sizes reached, and what is left runs."""
        self.backend.unreachable = self.backend.lose_answers = False
        self.backend.refused_groups = self.backend.unreachable_groups = set()
        assert isinstance(self.harness.journal, BreakableJournal)
        self.harness.journal.broken = False
        for _ in range(8):
            self.fleet.reconcile()
            self._learn(looked=True)
            self.backend.boot_all()
            self._let_go()
            self.backend.finish_deletes()
            self.time_passes(601.0)
        self.fleet.reconcile()
        self._learn(looked=True)
        assert not any(status.phase.in_flight for status in self.fleet.snapshot.increments)
        for key, node_group in GROUPS.items():
            assert set(states(self.fleet.snapshot, key)) <= {"running"}
            assert self._targets()[key] == len(self.backend.ids(key))
            assert len(self.backend.ids(key)) >= node_group.min_size or self._is_full(key)

    def _is_full(self, group_id: str) -> bool:
        """Return whether a limit allows the group no further node."""
        targets = self._targets()
        mine = (each for each in LIMITS if each.node_groups is None or group_id in each.node_groups)
        return any(sum(targets[key] for key in each.node_groups or GROUPS) >= each.maxima["nodes"] for each in mine)

    def _let_go(self) -> None:
        """What a cluster and its controllers do in the end."""


class ClusterFleetMachine(FleetMachine):
    """The same with a cluster, whose increments are held until they are let go."""

    def _more_options(self) -> dict[str, object]:
        self.nodes = ScriptedNodes()
        self.unknown_from = float("inf")
        return {"nodes": self.nodes}

    @rule()
    def all_nodes_register(self) -> None:
        self.nodes.ready.update(self.backend.ids())

    @precondition(lambda self: self.backend.ids())
    @rule(data=st.data())
    def one_node_changes(self, data: st.DataObject) -> None:
        self.nodes.ready ^= {data.draw(st.sampled_from(self.backend.ids()))}

    def _new_process(self) -> None:
        super()._new_process()
        if self.nodes.unknown:  # the grace begins anew
            self.unknown_from = self.harness.clock()

    @rule()
    def toggle_cluster(self) -> None:
        self.nodes.unknown = not self.nodes.unknown
        if self.nodes.unknown:
            self.unknown_from = min(self.unknown_from, self.harness.clock())

    @precondition(lambda self: self.fleet.snapshot.increments)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        status = data.draw(st.sampled_from(self.fleet.snapshot.increments))
        before = self._targets()
        raised = _raising(lambda: self.fleet.release(status.id))
        after = self.fleet.increment(status.id)
        if raised is None:
            assert status.phase in WHOLE
            assert after.phase is Phase.DONE
        else:
            assert raised is errors.Unavailable or status.phase not in WHOLE
            assert after.phase is status.phase
        assert self._targets() == before
        self._learn(looked=False)

    def _take_over(self, status: IncrementStatus) -> None:
        was = self.known[status.id].phase if status.id in self.known else Phase.PLANNED
        super()._take_over(status)
        known = self.known[status.id]
        if known.phase in WHOLE and was not in WHOLE and known.counted.total():
            # It has become ready at the last look: all that is still a part of it has come.
            assert not self.nodes.unknown
            parts = [i for i in self._machines_of(status.id) if i.token not in known.dropped]
            assert len(parts) == known.counted.total()
            assert all(i.state is InstanceState.RUNNING and i.id in self.nodes.ready for i in parts)
        if known.phase in FAILING and was not in FAILING and "the cluster is unreachable" in status.message:
            assert self.harness.clock() >= self.unknown_from + UNKNOWN_GRACE_SECONDS
        assert known.phase in FAILING or not status.short_groups
        assert set(status.short_groups) <= set(status.increment.deltas)

    def _learn(self, *, looked: bool) -> None:
        super()._learn(looked=looked)
        if looked and not self.nodes.unknown:
            self.unknown_from = float("inf")
        snapshot = self.fleet.snapshot
        listed = [i for i in self.backend.instances.values() if i.id in snapshot.group_of_instance]
        done = {i.id for i in listed if self._known_of(i.id).phase is Phase.DONE}
        assert snapshot.held_instances & {i.id for i in listed} == {i.id for i in listed} - done
        for status in snapshot.increments:
            dropped = self.known[status.id].dropped
            parts = {i.id for i in self._machines_of(status.id) if i.token not in dropped}
            assert {node.instance_id for node in status.held} <= parts or not looked
            if looked and status.phase is Phase.READY:
                assert {node.instance_id for node in status.held} == parts != set()

    def _machines_of(self, increment_id: str) -> list[BackendInstance]:
        return [i for i in self.backend.instances.values() if i.token.split("-")[0] == increment_id]

    def _let_go(self) -> None:
        self.nodes.unknown = False
        self.all_nodes_register()
        for status in self.fleet.snapshot.increments:
            if status.phase is Phase.READY:
                self.fleet.release(status.id)


class FlickeringFleetMachine(FleetMachine):
    """The same over a backend whose lists lack instances for a moment, new ones and old ones, and whose ids change: the
    model stays as it is, since none of that may show."""

    @initialize()
    def start(self) -> None:
        super().start()
        self.backend.provisional_ids = True
        self.backend.absent_after_seconds = 60.0

    @precondition(lambda self: self.backend.ids())
    @rule(data=st.data())
    def lists_lack_some(self, data: st.DataObject) -> None:
        """Of those that this process has listed, and of new ones: an old one is not missing from a first list."""
        seen = self.fleet.snapshot.group_of_instance
        tokens = [i.token for i in self.backend.instances.values() if i.id in seen or i.token not in self.listed]
        if tokens:
            self.backend.missing = set(data.draw(st.lists(st.sampled_from(tokens))))

    @rule(seconds=st.sampled_from([1.0, 30.0, 59.0, 299.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        """Lists lack nothing for as long as a minute."""
        if self.backend.missing:
            self.backend.missing = set()
            _raising(self.fleet.reconcile)
            self._learn(looked=False)
        super().time_passes(seconds)

    @rule(ahead=st.sampled_from([0.0, 600.0, -600.0]))
    def restart(self, ahead: float) -> None:
        """A new process keeps nothing that it has not listed itself."""
        self.backend.missing = set()
        super().restart(ahead)

    @precondition(lambda self: self.backend.ids())
    @rule(data=st.data(), what=st.sampled_from(["boot", "fail"]))
    def one_instance_changes(self, data: st.DataObject, what: str) -> None:
        """Nothing vanishes: that shows only a minute later."""
        super().one_instance_changes(data, what)

    def _settle(self) -> None:
        self.backend.missing = set()
        super()._settle()


_SETTINGS = examples(150, steps=50)
FleetMachine.TestCase.settings = _SETTINGS
ClusterFleetMachine.TestCase.settings = _SETTINGS
TestFleet = FleetMachine.TestCase
FlickeringFleetMachine.TestCase.settings = _SETTINGS
TestFlickeringFleet = FlickeringFleetMachine.TestCase
TestFleetWithCluster = ClusterFleetMachine.TestCase
