"""Faults of real clouds that the simulated backend plays: lists and ids that come late, refusals with a kind, answers
that are lost, and instances that vanish at once. Its other faults are in `test_backend`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cagrpc import errors
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour, Refusal, behaviour_from_json
from cagrpc.fleet.backend import BackendInstance, Order, OrderedInstance
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, InstanceState, Phase
from solver.model import NodeGroup
from tests.support.fleet import FakeClock, group, run_inline

A = group("pool-a", instance_type="m7i.large")
B = group("pool-b", instance_type="m6i.large")


@pytest.fixture
def fleet(backend: SimulatedBackend, clock: FakeClock, tmp_path: Path) -> Fleet:
    return Fleet(FleetSettings([A, B]), backend, SqliteJournal(tmp_path / "journal.db"), clock=clock, submit=run_inline)


def _order(backend: SimulatedBackend, *groups: NodeGroup, increment: str = "i") -> Order:
    instances = tuple(OrderedInstance(f"{increment}-{n}", group, n) for n, group in enumerate(groups))
    order = Order(increment, instances, frozenset(each.token for each in instances))
    backend.order(order)
    return order


def _listed(backend: SimulatedBackend) -> list[BackendInstance]:
    return list(backend.list_instances().instances)


def test_an_instance_is_missing_from_lists_for_its_delay(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(boot_seconds=10, list_delay_seconds=45)})
    _order(backend, A, B)
    assert [each.token for each in _listed(backend)] == ["i-1"]
    clock.advance(44.9)
    assert [each.token for each in _listed(backend)] == ["i-1"]
    clock.advance(0.1)
    assert [(each.token, each.state) for each in _listed(backend)] == [
        ("i-0", InstanceState.RUNNING),
        ("i-1", InstanceState.RUNNING),
    ]


def test_the_pace_says_how_late_lists_are_also_by_settings_that_are_over(
    backend: SimulatedBackend, clock: FakeClock
) -> None:
    assert backend.pace.absent_after_seconds == 0
    backend.set_behaviours({"*": Behaviour(list_delay_seconds=30), "pool-b": Behaviour(list_delay_seconds=60)})
    assert backend.pace.absent_after_seconds == 60
    _order(backend, B)
    backend.set_behaviours({"*": None, "pool-b": None})
    assert backend.pace.absent_after_seconds == 60
    clock.advance(60)
    assert backend.pace.absent_after_seconds == 0


def test_an_increment_that_is_listed_late_is_not_rolled_back(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=5, list_delay_seconds=45)})
    increment = fleet.apply(IncrementSpec({"pool-a": 2, "pool-b": 1})).id
    for _ in range(45):
        fleet.reconcile()
        assert fleet.increment(increment).phase is Phase.CREATING
        clock.advance(1)
    fleet.reconcile()
    assert fleet.increment(increment).phase is Phase.DONE


def test_a_late_instance_can_be_lost_before_any_list_has_it(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    """As Karpenter deletes a claim that it cannot serve: the fleet knows it once lists would have had it."""
    late = Behaviour(vanish_probability=1, vanish_after_seconds=1, list_delay_seconds=20)
    backend.set_behaviours({"pool-a": late})
    increment = fleet.apply(IncrementSpec({"pool-a": 1, "pool-b": 1})).id
    seconds = 0
    fleet.reconcile()
    while fleet.increment(increment).phase is Phase.CREATING:
        clock.advance(1)
        fleet.reconcile()
        seconds += 1
    assert seconds == 20
    assert fleet.increment(increment).short_groups == ("pool-a",)


def test_an_instance_that_vanishes_at_once_is_a_shortage_after_a_second(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    backend.set_behaviours({"pool-a": Behaviour(vanish_probability=1, vanish_after_seconds=1)})
    increment = fleet.apply(IncrementSpec({"pool-a": 1, "pool-b": 2})).id
    fleet.reconcile()
    clock.advance(1)
    fleet.reconcile()
    status = fleet.increment(increment)
    assert (status.phase, status.short_groups) == (Phase.ROLLING_BACK, ("pool-a",))
    clock.advance(5)
    fleet.reconcile()
    assert fleet.increment(increment).phase is Phase.ROLLED_BACK
    assert _listed(backend) == []


def test_a_token_stands_for_an_instance_until_its_id_is_known(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=5, id_after_seconds=20)})
    _order(backend, A)
    for seconds in (0, 5, 14.9):
        clock.advance(seconds)
        (instance,) = _listed(backend)
        assert (instance.id, instance.state) == ("i-0", InstanceState.CREATING)
    clock.advance(0.1)
    (instance,) = _listed(backend)
    assert instance.id.startswith("simulated://m7i-large-")
    assert instance.state is InstanceState.RUNNING


def test_an_instance_is_deleted_by_either_of_its_ids(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=5, id_after_seconds=20)})
    _order(backend, A, A)
    first, second = _listed(backend)
    backend.delete([first])
    clock.advance(20)
    assert [each.token for each in _listed(backend)] == ["i-1"]
    backend.delete([second])  # as it was listed before it had its id
    clock.advance(5)
    assert _listed(backend) == []


def test_an_increment_keeps_its_instances_when_their_ids_change(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=5, id_after_seconds=20)})
    increment = fleet.apply(IncrementSpec({"pool-a": 2})).id
    fleet.reconcile()
    before = fleet.snapshot.group_of_instance.keys()
    clock.advance(20)
    fleet.reconcile()
    assert fleet.increment(increment).phase is Phase.DONE
    assert len(fleet.snapshot.group_of_instance.keys() - before) == 2
    fleet.delete_instances("pool-a", list(before))  # as the autoscaler may remember them
    fleet.reconcile()
    clock.advance(5)
    fleet.reconcile()
    assert fleet.snapshot.group_of_instance == {}


@pytest.mark.parametrize(
    ("refusal", "error"), [("quota", errors.QuotaExceeded), ("configuration", errors.OrderMisconfigured)]
)
def test_an_order_is_refused_whole_with_its_kind_and_its_groups(
    backend: SimulatedBackend, refusal: Refusal, error: type[errors.OrderRefused]
) -> None:
    backend.set_behaviours({"m7i.large": Behaviour(refusal=refusal)})
    with pytest.raises(error, match=f"refused for {refusal}: pool-a") as raised:
        _order(backend, B, A)
    assert raised.value.node_groups == ("pool-a",)
    assert _listed(backend) == []
    _order(backend, B, increment="another")
    backend.set_behaviours({"m7i.large": None})
    _order(backend, B, A)
    assert [each.token for each in _listed(backend)] == ["another-0", "i-0", "i-1"]


def test_what_was_accepted_before_is_not_refused_again(backend: SimulatedBackend) -> None:
    _order(backend, A)
    backend.set_behaviours({"*": Behaviour(refusal="quota")})
    _order(backend, A)
    assert len(_listed(backend)) == 1


@pytest.mark.parametrize("found", ["capacity", "", 1, True])
def test_a_refusal_of_another_name_is_a_problem(found: object) -> None:
    with pytest.raises(
        errors.InvalidConfiguration, match=r'refusal: found .*, expected one of "quota", "configuration"'
    ):
        behaviour_from_json({"refusal": found})


def test_a_call_whose_answer_is_lost_is_carried_out(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(lost_answer_probability=1)})
    with pytest.raises(errors.Unavailable, match="the answer was lost"):
        _order(backend, A, B)
    found = _listed(backend)
    assert len(found) == 2
    with pytest.raises(errors.Unavailable, match="the answer was lost"):
        backend.delete(found)
    assert {each.state for each in _listed(backend)} == {InstanceState.DELETING}
    backend.set_behaviours({"*": None})
    _order(backend, A, B)
    backend.delete(found)
    clock.advance(5)
    assert _listed(backend) == []


def test_answers_are_lost_only_for_the_instances_that_it_is_set_for(backend: SimulatedBackend) -> None:
    backend.set_behaviours({"pool-b": Behaviour(lost_answer_probability=1)})
    _order(backend, A)
    with pytest.raises(errors.Unavailable):
        _order(backend, A, B, increment="j")
    backend.delete([each for each in _listed(backend) if each.node_group == "pool-a"])
    with pytest.raises(errors.Unavailable):
        backend.delete([each for each in _listed(backend) if each.node_group == "pool-b"])


def test_answers_are_lost_as_often_as_set(backend: SimulatedBackend) -> None:
    backend.set_behaviours({"*": Behaviour(lost_answer_probability=0.3)})
    lost = 0
    for number in range(200):
        try:
            _order(backend, A, increment=f"i{number}")
        except errors.Unavailable:
            lost += 1
    assert 35 < lost < 90
    assert len(_listed(backend)) == 200


def test_an_increment_is_whole_though_every_third_answer_is_lost(
    fleet: Fleet, backend: SimulatedBackend, clock: FakeClock
) -> None:
    backend.set_behaviours({"*": Behaviour(boot_seconds=5, lost_answer_probability=0.33)})
    asked = [fleet.apply(IncrementSpec({"pool-a": 1, "pool-b": 1})).id for _ in range(5)]
    for _ in range(30):
        fleet.reconcile()
        clock.advance(1)
    assert {fleet.increment(each).phase for each in asked} == {Phase.DONE}
    assert len(_listed(backend)) == 10


def test_what_is_late_is_so_after_a_restart_and_is_forgotten_with_its_instance(
    backend: SimulatedBackend, clock: FakeClock, tmp_path: Path
) -> None:
    backend.set_behaviours({"*": Behaviour(list_delay_seconds=30, id_after_seconds=60)})
    _order(backend, A)
    backend.close()
    again = SimulatedBackend(tmp_path / "cloud.db", clock=clock)
    assert _listed(again) == []
    clock.advance(30)
    (instance,) = _listed(again)
    assert instance.id == "i-0"
    again.delete([instance])
    clock.advance(5)
    again.set_behaviours({"*": None})
    _order(again, A, increment="next")
    with closing(sqlite3.connect(tmp_path / "cloud.db")) as connection:
        assert connection.execute("SELECT count(*) FROM late").fetchone() == (0,)


def test_an_unlisted_instance_can_be_deleted_by_its_token(backend: SimulatedBackend, clock: FakeClock) -> None:
    backend.set_behaviours({"*": Behaviour(list_delay_seconds=30)})
    order = _order(backend, A, A)
    first, second = (
        BackendInstance(each.token, each.token, "pool-a", InstanceState.CREATING) for each in order.instances
    )
    backend.delete([first, replace(second, token="never-was")])
    clock.advance(30)
    assert [each.token for each in _listed(backend)] == ["i-1"]
