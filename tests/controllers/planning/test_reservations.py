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


def test_room_that_is_kept_is_not_planned_with_until_it_is_free(make: Make) -> None:
    world = make(group("a", max_size=5))
    world.cluster.extra_nodes = [Node("old", {"cpu": 4000, "pods": 10}, {}, ())]
    world.cluster.scheduling = False
    world.reserved = {"old": (Reservation(RequestOwner("u"), PodSpec((("cpu", 3000),))),)}
    world.add(cpu=1000)
    world.run(SOON)
    assert world.targets() == {}  # it has room beside what is kept
    world.add(cpu=1000)
    world.run(SOON)
    assert world.targets() == {"a": 1}
    world.reserved = {}
    world.add(cpu=4000)
    world.add(cpu=3000)
    world.run(SOON)
    assert world.targets() == {"a": 2}


def test_a_node_for_a_request_is_nobodys_room_from_its_order_to_its_booking(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.cluster.scheduling = False  # as if it always came too late: only the planner's word counts
    status = world.fleet.apply(FOR_A_REQUEST)
    while world.fleet.increment(status.id).phase is not Phase.DONE:
        world.add(cpu=4000)
        world.run(SOON)
        (mine,) = world.increments()[:1]
        for node in mine.held:
            world.reserved = {
                node.instance_id.removeprefix("simulated://"): (
                    Reservation(RequestOwner("u"), PodSpec((("cpu", 4000),))),
                )
            }
    world.run(SOON)
    assert world.targets() == {"a": 1 + world.made}
    assert world.made >= 2
    world.reserved = {}  # it is over
    world.add(cpu=4000)
    world.run(SOON)
    assert world.targets() == {"a": world.made}


def test_an_increment_for_a_request_that_is_taken_back_teaches_no_shortage(make: Make) -> None:
    world = make(group("a", max_size=1))
    status = world.fleet.apply(FOR_A_REQUEST)
    world.add()
    world.run(SOON)
    assert world.targets() == {"a": 1}
    assert [each.count for each in world.loop.plans()[-1].unplaced] == [1]
    world.fleet.withdraw(status.id, "its request was deleted")
    world.run(SOON)
    (taken_back, own) = world.increments()
    assert (taken_back.phase, own.phase) == (Phase.ROLLED_BACK, Phase.CREATING)
    assert not world.loop.plans()[-1].shortages
    assert world.targets() == {"a": 1}


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
    world = make(group("a", max_size=1), group("b", price=0.5))
    turn = _Turn(lambda: world.fleet.apply(FOR_A_REQUEST))
    world.turn = turn
    world.restart()
    turns: list[bool] = []

    def none_reserved(state: ClusterState) -> Reservations:
        turns.append(turn.taken)
        return {}

    monkeypatch.setattr(world.loop, "_reservations", none_reserved)
    world.add(cpu=4000)
    world.run(SOON)
    assert set(turns) == {True}
    assert not turn.taken
    assert world.targets() == {"a": 1, "b": 1}
    assert [each.id != "" for record in world.loop.plans() for each in record.increments] == [True]


def test_while_it_is_not_known_what_is_kept_nothing_is_planned(make: Make) -> None:
    world = make(group("a"))
    known = world.reservations

    def unknown(state: ClusterState) -> Reservations:
        raise errors.Unavailable("the list of ProvisioningRequests is still to come")

    world.reservations = unknown  # type: ignore[method-assign]
    world.restart()
    world.add()
    world.run(SOON)
    assert world.targets() == {}
    assert world.loop.waits_for == "the list of ProvisioningRequests is still to come"
    world.clock.advance(LONG)
    assert [world.planning.take(), world.planning.take()] == [False, True]  # and then it waits a while
    assert not world.turn.locked()
    world.reservations = known  # type: ignore[method-assign]
    world.restart()
    world.run(LONG)
    assert not world.pending()
