"""The simulated backend: instances live by the clock, faults are played as set, and the file outlives the process."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cagrpc import errors
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour, behaviour_from_json, behaviour_to_json
from cagrpc.fleet.backend import BackendInstance, Order, OrderedInstance
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, InstanceState, Origin, Phase
from solver.model import NodeGroup
from tests.support.fleet import FakeClock, group, run_inline, states, targets

M7I = group("pool-a", instance_type="m7i.large")
M6I = group("pool-b", instance_type="m6i.large")


def _orders(count: int, node_group: NodeGroup = M7I, start: int = 1) -> list[OrderedInstance]:
    return [OrderedInstance(f"{node_group.id}-{n}", node_group, n) for n in range(start, start + count)]


def _order(backend: SimulatedBackend, instances: Sequence[OrderedInstance]) -> None:
    backend.order(Order("increment", tuple(instances), frozenset(each.token for each in instances)))


def _listed(backend: SimulatedBackend) -> list[BackendInstance]:
    return list(backend.list_instances().instances)


def _states(backend: SimulatedBackend) -> list[str]:
    return ["failed" if i.error is not None else i.state.value for i in _listed(backend)]


def test_an_instance_boots_runs_is_deleted_and_gone(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=30, delete_seconds=5)})
    _order(backend, _orders(1))
    assert _states(backend) == ["creating"]
    clock.advance(29.9)
    assert _states(backend) == ["creating"]
    clock.advance(0.1)
    assert _states(backend) == ["running"]
    (instance,) = _listed(backend)
    backend.delete([instance])
    assert _states(backend) == ["deleting"]
    clock.advance(4.9)
    backend.delete([instance])
    assert _states(backend) == ["deleting"]
    clock.advance(0.1)
    assert _states(backend) == []
    backend.delete([instance, replace(instance, token="never-was"), replace(instance, token="")])


def test_ids_are_readable_unique_and_fit_for_nodes(backend: SimulatedBackend, clock: FakeClock) -> None:
    odd = group("Ünusual/GROUP " + "x" * 80, instance_type="")
    _order(backend, [*_orders(2), *_orders(1, odd), *_orders(1, group("…", instance_type="…"))])
    ids = [i.id for i in _listed(backend)]
    assert len(set(ids)) == 4
    assert re.fullmatch(r"simulated://m7i-large-[0-9a-f]{4}-0001", ids[0])
    for instance_id in ids:
        name = instance_id.removeprefix("simulated://")
        assert len(name) <= 63
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_names_do_not_come_back_with_a_new_file(tmp_path: Path, clock: FakeClock) -> None:
    first = SimulatedBackend(tmp_path / "one.db", clock=clock)
    clock.advance(1)
    second = SimulatedBackend(tmp_path / "two.db", clock=clock)
    for backend in (first, second):
        _order(backend, _orders(1))
    assert _listed(first)[0].id != _listed(second)[0].id


def test_a_token_is_executed_once_for_ever(backend: SimulatedBackend, tmp_path: Path, clock: FakeClock) -> None:
    _order(backend, _orders(2))
    _order(backend, _orders(3))
    ids = [i.id for i in _listed(backend)]
    assert len(ids) == 3
    backend.delete(_listed(backend))
    clock.advance(1000)
    backend.close()
    again = SimulatedBackend(tmp_path / "cloud.db", clock=clock)
    _order(again, _orders(3))
    assert _listed(again) == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_is_put_back_brings_nothing_back(
    backend: SimulatedBackend, tmp_path: Path, clock: FakeClock, restart: bool
) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=60, delete_seconds=5)})
    _order(backend, _orders(3))
    clock.advance(60)
    backend.delete([_listed(backend)[0]])
    clock.advance(5)
    assert _states(backend) == ["running"] * 2
    _order(backend, _orders(4))
    clock.advance(-65)
    if restart:
        backend.close()
        backend = SimulatedBackend(tmp_path / "cloud.db", clock=clock)
    assert _states(backend) == ["running"] * 2 + ["creating"]
    clock.advance(60)  # Time goes on from where it was.
    assert _states(backend) == ["running"] * 3


def test_what_was_listed_stays_so_where_a_process_is_killed(
    backend: SimulatedBackend, tmp_path: Path, clock: FakeClock
) -> None:
    """Killed, it has closed nothing; and the clock of the next one is behind."""
    backend.set_behaviours({"*": Behaviour(boot_seconds=60)})
    _order(backend, _orders(2))
    backend.set_behaviours({"*": Behaviour(boot_seconds=60, vanish_probability=1.0, vanish_after_seconds=5)})
    _order(backend, _orders(3))
    assert _states(backend) == ["creating"] * 3
    clock.advance(120)
    assert _states(backend) == ["running"] * 2
    clock.advance(-120)
    after = SimulatedBackend(tmp_path / "cloud.db", clock=clock)
    assert _states(after) == ["running"] * 2


def test_a_list_that_nothing_has_changed_writes_nothing(
    backend: SimulatedBackend, tmp_path: Path, clock: FakeClock
) -> None:
    _order(backend, _orders(2))
    _listed(backend)
    clock.advance(1000)
    _listed(backend)
    with closing(sqlite3.connect(tmp_path / "cloud.db")) as reader:
        before = reader.execute("PRAGMA data_version").fetchone()
        clock.advance(1000)
        _listed(backend)
        assert reader.execute("PRAGMA data_version").fetchone() == before


def test_rows_of_what_is_gone_are_cleared_away(backend: SimulatedBackend, tmp_path: Path, clock: FakeClock) -> None:
    _order(backend, _orders(50))
    backend.delete(_listed(backend))
    clock.advance(5)
    _order(backend, _orders(51))
    assert [i.token for i in _listed(backend)] == ["pool-a-51"]
    with closing(sqlite3.connect(tmp_path / "cloud.db")) as connection:
        assert connection.execute("SELECT count(*) FROM instances").fetchone() == (1,)


def test_a_large_order_counts_what_stands_once(backend: SimulatedBackend) -> None:
    """Of 3,000 instances: the statements, which time would only hint at, must not grow with what stands."""
    counted: list[str] = []
    backend._connection.set_trace_callback(lambda text: counted.append(text) if "count(*)" in text else None)
    _order(backend, [*_orders(3000), *_orders(10, M6I)])
    assert len(counted) == 2
    assert len(_listed(backend)) == 3010


def test_everything_survives_a_restart(backend: SimulatedBackend, tmp_path: Path, clock: FakeClock) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(boot_seconds=10, boot_jitter_seconds=5, vanish_probability=0.5)})
    backend.set_behaviours({"pool-b": Behaviour(late_shortage=1, fail_after_seconds=7)})
    _order(backend, [*_orders(6), *_orders(3, M6I)])
    backend.delete([_listed(backend)[0]])
    again = SimulatedBackend(tmp_path / "cloud.db", clock=clock, seed=99)
    assert again.behaviours() == backend.behaviours()
    for _ in range(20):
        clock.advance(4)
        assert _listed(again) == _listed(backend)


def _history(path: Path, seed: int) -> list[list[str]]:
    clock = FakeClock()
    backend = SimulatedBackend(path, clock=clock, seed=seed)
    backend.set_behaviours({"*": Behaviour(boot_jitter_seconds=30, failure_probability=0.3, vanish_probability=0.3)})
    _order(backend, _orders(20))
    result = []
    for _ in range(10):
        clock.advance(7)
        result.append(_states(backend))
    return result


def test_outcomes_follow_from_the_seed(tmp_path: Path) -> None:
    first = _history(tmp_path / "a.db", 1)
    assert first == _history(tmp_path / "b.db", 1)
    assert first != _history(tmp_path / "c.db", 2)


# Faults, one by one.


def test_stock_refuses_the_whole_order_at_once(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(stock=3)})
    backend.set_behaviours({"m6i.large": Behaviour(stock=0)})
    _order(backend, _orders(2))
    with pytest.raises(errors.OutOfCapacity) as raised:
        _order(backend, [*_orders(2, start=3), *_orders(1, M6I)])
    assert str(raised.value) == "m7i.large: 2 wanted, 1 of 3 left; m6i.large: 1 wanted, 0 of 0 left"
    assert raised.value.node_groups == ("pool-a", "pool-b")
    assert len(_listed(backend)) == 2
    _order(backend, _orders(3))  # Two of them are known.
    backend.delete([_listed(backend)[0]])
    _order(backend, _orders(1, start=4))


def test_stock_is_shared_by_the_groups_of_a_type(backend: SimulatedBackend) -> None:
    other = group("pool-c", instance_type="m7i.large")
    backend.set_behaviours({"*": Behaviour(stock=2)})
    _order(backend, _orders(1))
    with pytest.raises(errors.OutOfCapacity, match=r"m7i\.large: 2 wanted, 1 of 2 left") as raised:
        _order(backend, [*_orders(1, start=2), *_orders(1, other), *_orders(1, M6I)])
    assert raised.value.node_groups == ("pool-a", "pool-c")
    _order(backend, [*_orders(1, other), *_orders(2, M6I)])


def test_a_stock_of_a_type_is_shared_also_with_a_group_of_the_types_name(backend: SimulatedBackend) -> None:
    same, other = group("m7i.large"), group("other", instance_type="m7i.large")
    backend.set_behaviours({"m7i.large": Behaviour(stock=2)})
    _order(backend, _orders(2, other))
    with pytest.raises(errors.OutOfCapacity, match=r"m7i\.large: 2 wanted, 0 of 2 left"):
        _order(backend, _orders(2, same))


def test_a_groups_own_behaviour_goes_before_its_types(backend: SimulatedBackend) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(stock=0)})
    backend.set_behaviours({"pool-a": Behaviour(stock=1)})
    _order(backend, _orders(1))
    with pytest.raises(errors.OutOfCapacity, match="pool-a"):
        _order(backend, _orders(1, start=2))
    backend.set_behaviours({"pool-a": None})
    with pytest.raises(errors.OutOfCapacity, match=r"m7i\.large"):
        _order(backend, _orders(1, start=2))


def test_a_late_shortage_fails_the_surplus_while_it_is_created(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(boot_seconds=1, late_shortage=2, fail_after_seconds=20)})
    _order(backend, _orders(8))
    clock.advance(19)
    assert _states(backend) == ["running"] * 2 + ["creating"] * 6
    clock.advance(1)
    assert _states(backend) == ["running"] * 2 + ["failed"] * 6
    failed = _listed(backend)[-1]
    assert failed.error is not None
    assert failed.error.out_of_resources
    backend.delete(_listed(backend))
    clock.advance(5)
    _order(backend, _orders(2, start=9))
    clock.advance(20)
    assert _states(backend) == ["running"] * 2


def test_failures_are_as_likely_as_set(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(failure_probability=0.25, fail_after_seconds=0)})
    _order(backend, _orders(400))
    failed = Counter(_states(backend))["failed"]
    assert 60 < failed < 140


def test_vanishing_instances_go_without_being_asked(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=1, vanish_probability=1, vanish_after_seconds=50)})
    _order(backend, _orders(2))
    clock.advance(49)
    assert _states(backend) == ["running"] * 2
    clock.advance(1)
    assert _states(backend) == []


def test_instances_can_be_lost_by_hand(backend: SimulatedBackend) -> None:
    _order(backend, _orders(3))
    first, second, third = (i.id for i in _listed(backend))
    backend.vanish([second, "simulated://never-was"])
    assert [i.id for i in _listed(backend)] == [first, third]


def test_hanging_instances_never_run(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(hang=True)})
    _order(backend, _orders(1))
    clock.advance(1e6)
    assert _states(backend) == ["creating"]


def test_out_of_reach_altogether(backend: SimulatedBackend) -> None:
    _order(backend, _orders(1))
    (instance,) = _listed(backend)
    backend.set_behaviours({"*": Behaviour(unreachable=True)})
    for call in (backend.list_instances, lambda: _order(backend, _orders(2)), lambda: backend.delete([instance])):
        with pytest.raises(errors.Unavailable):
            call()
    backend.set_behaviours({"*": None})
    assert _listed(backend) == [instance]


def test_out_of_reach_for_one_type(backend: SimulatedBackend) -> None:
    _order(backend, [*_orders(1), *_orders(1, M6I)])
    found = _listed(backend)
    backend.set_behaviours({"m6i.large": Behaviour(unreachable=True)})
    with pytest.raises(errors.Unavailable, match=r"m6i\.large"):
        _order(backend, [*_orders(1, start=2), *_orders(1, M6I, start=2)])
    with pytest.raises(errors.Unavailable):
        backend.delete(found)
    _order(backend, _orders(1, start=2))
    backend.delete(found[:1])
    assert _states(backend) == ["deleting", "creating", "creating"]


def test_a_change_is_for_later_orders(backend: SimulatedBackend, clock: FakeClock) -> None:
    _order(backend, _orders(1))
    backend.set_behaviours({"*": Behaviour(hang=True)})
    _order(backend, _orders(1, start=2))
    clock.advance(1000)
    assert _states(backend) == ["running", "creating"]


def test_a_closed_backend_is_out_of_reach(backend: SimulatedBackend) -> None:
    backend.close()
    backend.close()
    with pytest.raises(errors.Unavailable):
        _listed(backend)
    with pytest.raises(errors.Unavailable):
        _order(backend, _orders(1))


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    SqliteJournal(path).close()
    with pytest.raises(errors.InvalidConfiguration, match="a SQLite file of something else"):
        SimulatedBackend(path)


def test_faults_may_be_set_from_another_connection(backend: SimulatedBackend, tmp_path: Path) -> None:
    other = SimulatedBackend(tmp_path / "cloud.db")
    other.set_behaviours({"m7i.large": Behaviour(stock=0)})
    with pytest.raises(errors.OutOfCapacity):
        _order(backend, _orders(1))
    other.close()
    with sqlite3.connect(tmp_path / "cloud.db") as connection:
        assert connection.execute("SELECT count(*) FROM instances").fetchone() == (0,)
    connection.close()


# Settings.


def test_settings_go_to_json_and_back() -> None:
    behaviour = Behaviour(boot_seconds=1.5, stock=3, late_shortage=0, hang=True, vanish_probability=0.25)
    assert behaviour_from_json(behaviour_to_json(behaviour)) == behaviour
    assert behaviour_from_json({}) == Behaviour()
    assert behaviour_to_json(behaviour)["boot"] == "1.5s"
    assert behaviour_from_json({"boot": "3s"}) == Behaviour(boot_seconds=3.0)


def test_a_file_is_read_by_the_release_before_and_that_ones_by_this(backend: SimulatedBackend, tmp_path: Path) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=1.5)})
    with sqlite3.connect(tmp_path / "cloud.db") as connection:
        (settings,) = connection.execute("SELECT settings FROM behaviours").fetchone()
    connection.close()
    assert json.loads(settings)["boot_seconds"] == 1.5
    assert behaviour_from_json({"boot_seconds": 1.5}) == backend.behaviours()["*"]


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        pytest.param([], ["faults.x: found [], expected a mapping"], id="no mapping"),
        pytest.param({"boots": 1}, ['faults.x.boots: unknown field; did you mean "boot"?'], id="unknown"),
        pytest.param({"boot": "-1s"}, ['faults.x.boot: found "-1s", expected a duration from "0s"'], id="negative"),
        pytest.param({"boot": 1}, ["faults.x.boot: found 1, expected a duration"], id="a number"),
        pytest.param(
            {"boot_seconds": True}, ["faults.x.boot_seconds: found true, expected boot: a duration"], id="true"
        ),
        pytest.param({"boot_seconds": float("nan")}, ["faults.x.boot_seconds: found NaN"], id="nan"),
        pytest.param({"boot_seconds": float("inf")}, ["faults.x.boot_seconds: found Infinity"], id="infinity"),
        pytest.param({"boot_seconds": 1, "boot": "1s"}, ["boot_seconds: found together with boot"], id="both names"),
        pytest.param({"stock": 1.5}, ["faults.x.stock: found 1.5, expected a whole number"], id="half a node"),
        pytest.param({"stock": 10**400}, ["faults.x.stock: found 1000"], id="endless stock"),
        pytest.param({"boot_seconds": 10**400}, ["faults.x.boot_seconds: found 1000"], id="too long for a float"),
        pytest.param({"\ud800": 1}, ["faults.x"], id="half a character"),
        pytest.param({"stock": -1}, ["faults.x.stock: found -1, expected 0 or more"], id="negative stock"),
        pytest.param({"hang": "yes"}, ['faults.x.hang: found "yes", expected true or false'], id="a word"),
        pytest.param({"failure_probability": 1.1}, ["found 1.1, expected 1 or less"], id="probability"),
        pytest.param(
            {"boot_seconds": "1", "stock": -1, "nope": 0, "hang": 1},
            ["boot_seconds", "stock", "nope", "hang"],
            id="all at once",
        ),
    ],
)
def test_wrong_settings_are_all_named(value: object, problems: Sequence[str]) -> None:
    with pytest.raises(errors.InvalidConfiguration) as raised:
        behaviour_from_json(value, "faults.x")
    assert len(raised.value.problems) == len(problems)
    assert all(problem in str(raised.value) for problem in problems), str(raised.value)
    assert len(str(raised.value).encode()) < 1000


@pytest.mark.parametrize("key", ["", "\ud800", "a\nb"])
def test_behaviours_are_set_all_or_none(backend: SimulatedBackend, key: str) -> None:
    with pytest.raises(errors.InvalidInput, match="needs an instance type, a node group id or"):
        backend.set_behaviours({"good": Behaviour(stock=1), key: Behaviour()})
    assert backend.behaviours() == {}
    backend.set_behaviours({"good": Behaviour(stock=1), "*": Behaviour(hang=True)})
    backend.set_behaviours({"good": None, "*": Behaviour()})
    assert backend.behaviours() == {"*": Behaviour()}


# With a fleet: the faults of the recorded conversations.

STOCKOUT = Behaviour(stock=0)
FAIL_INSTANCES = Behaviour(failure_probability=1, fail_after_seconds=1)
ATOMIC_FAIL = Behaviour(boot_seconds=0.4, late_shortage=2, fail_after_seconds=20)


@pytest.fixture
def fleet(tmp_path: Path, clock: FakeClock, backend: SimulatedBackend) -> Fleet:
    groups = [group("a", instance_type="a"), group("b", instance_type="b")]
    journal = SqliteJournal(tmp_path / "journal.db")
    return Fleet(FleetSettings(groups), backend, journal, clock=clock, submit=run_inline)


def test_a_stockout_is_refused_at_once(fleet: Fleet, backend: SimulatedBackend) -> None:
    backend.set_behaviours({"a": STOCKOUT})
    with pytest.raises(errors.OutOfCapacity):
        fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER), refusal_wait_seconds=1)
    assert targets(fleet.snapshot) == {}
    assert states(fleet.snapshot, "a") == []


def test_instances_that_fail_are_listed_until_ca_deletes_them(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    backend.set_behaviours({"a": FAIL_INSTANCES})
    fleet.apply(IncrementSpec({"a": 4}, Origin.AUTOSCALER), refusal_wait_seconds=1)
    assert targets(fleet.snapshot) == {"a": 4}
    clock.advance(1)
    fleet.refresh()
    assert states(fleet.snapshot, "a") == ["failed"] * 4
    fleet.delete_instances("a", [i.id for i in fleet.snapshot.groups["a"].instances])
    assert targets(fleet.snapshot) == {}
    clock.advance(5)
    fleet.refresh()
    assert states(fleet.snapshot, "a") == []
    assert _listed(backend) == []


def test_two_of_eight_come_up_and_the_whole_goes(fleet: Fleet, backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"a": ATOMIC_FAIL})
    applied = fleet.apply(IncrementSpec({"a": 8}, Origin.AUTOSCALER), refusal_wait_seconds=1)
    clock.advance(1)
    fleet.refresh()
    assert states(fleet.snapshot, "a") == ["running"] * 2 + ["creating"] * 6
    clock.advance(19)
    fleet.refresh()
    assert states(fleet.snapshot, "a") == ["failed"] * 8
    clock.advance(5)
    fleet.refresh()
    assert _listed(backend) == []
    assert fleet.increment(applied.id).phase is Phase.ROLLED_BACK
    assert targets(fleet.snapshot) == {"a": 8}
    assert {i.state for i in fleet.snapshot.groups["a"].instances} == {InstanceState.CREATING}
