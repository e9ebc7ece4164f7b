"""Room that is reserved for ProvisioningRequests, and the turn that planning takes with their controller."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc import errors
from cagrpc.cluster.node_info import RequestOwner, Reservation, Reservations
from cagrpc.cluster.state import ClusterState
from cagrpc.fleet.model import IncrementSpec, Phase, Placement
from solver.model import Node, PodSpec
from tests.support.controllers.planner import BOOT_SECONDS, Make
from tests.support.fleet import group

SOON = BOOT_SECONDS / 2
LONG = 300.0
FOR_A_REQUEST = IncrementSpec({"a": 1}, requests=frozenset({"u1"}), placements=(Placement("a", requests=("u1",)),))


def test_reserved_room_is_not_planned_with_until_it_is_free(make: Make) -> None:
    harness = make(group("a", max_size=5))
    harness.cluster.extra_nodes = [Node("old", {"cpu": 4000, "pods": 10}, {}, ())]
    harness.cluster.scheduling = False
    harness.reserved = {"old": (Reservation(RequestOwner("u"), PodSpec((("cpu", 3000),))),)}
    harness.add(cpu=1000)
    harness.run(SOON)
    assert harness.targets() == {}  # it has room beside what is kept
    harness.add(cpu=1000)
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    harness.reserved = {}
    harness.add(cpu=4000)
    harness.add(cpu=3000)
    harness.run(SOON)
    assert harness.targets() == {"a": 2}


def test_a_node_for_a_request_is_nobodys_room_from_its_order_to_its_booking(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.cluster.scheduling = False  # as if it always came too late: only the planner's word counts
    status = harness.fleet.apply(FOR_A_REQUEST)
    while harness.fleet.increment(status.id).phase is not Phase.DONE:
        harness.add(cpu=4000)
        harness.run(SOON)
        (mine,) = harness.increments()[:1]
        for node in mine.held:
            harness.reserved = {
                node.instance_id.removeprefix("simulated://"): (
                    Reservation(RequestOwner("u"), PodSpec((("cpu", 4000),))),
                )
            }
    harness.run(SOON)
    assert harness.targets() == {"a": 1 + harness.made}
    assert harness.made >= 2
    harness.reserved = {}  # it is over
    harness.add(cpu=4000)
    harness.run(SOON)
    assert harness.targets() == {"a": harness.made}


def test_an_increment_for_a_request_that_is_taken_back_teaches_no_shortage(make: Make) -> None:
    harness = make(group("a", max_size=1))
    status = harness.fleet.apply(FOR_A_REQUEST)
    harness.add()
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    assert [each.count for each in harness.loop.plans()[-1].unplaced] == [1]
    harness.fleet.withdraw(status.id, "its request was deleted")
    harness.run(SOON)
    (taken_back, own) = harness.increments()
    assert (taken_back.phase, own.phase) == (Phase.ROLLED_BACK, Phase.CREATING)
    assert not harness.loop.plans()[-1].shortages
    assert harness.targets() == {"a": 1}


class _Turn:
    """A lock for which somebody else has to be waited for, once."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile: Callable[[], object] | None = meanwhile
        self.taken = False

    def __enter__(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        assert not self.taken
        self.taken = True

    def __exit__(self, *_: object) -> None:
        self.taken = False


def test_a_round_takes_its_turn_and_knows_what_others_asked_for_in_theirs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make(group("a", max_size=1), group("b", price=0.5))
    turn = _Turn(lambda: harness.fleet.apply(FOR_A_REQUEST))
    harness.turn = turn
    harness.restart()
    turns: list[bool] = []

    def none_reserved(state: ClusterState) -> Reservations:
        turns.append(turn.taken)
        return {}

    monkeypatch.setattr(harness.loop, "_reservations", none_reserved)
    harness.add(cpu=4000)
    harness.run(SOON)
    assert set(turns) == {True}
    assert not turn.taken
    assert harness.targets() == {"a": 1, "b": 1}
    assert [each.id != "" for record in harness.loop.plans() for each in record.increments] == [True]


def test_nothing_is_planned_while_reservations_are_unknown(make: Make) -> None:
    harness = make(group("a"))
    known = harness.reservations

    def unknown(state: ClusterState) -> Reservations:
        raise errors.Unavailable("the list of ProvisioningRequests is still to come")

    harness.reservations = unknown  # type: ignore[method-assign]
    harness.restart()
    harness.add()
    harness.run(SOON)
    assert harness.targets() == {}
    assert harness.loop.waits_for == "the list of ProvisioningRequests is still to come"
    harness.clock.advance(LONG)
    assert [harness.planning.take(), harness.planning.take()] == [False, True]  # and then it waits a while
    assert not harness.turn.locked()
    harness.reservations = known  # type: ignore[method-assign]
    harness.restart()
    harness.run(LONG)
    assert not harness.pending()
