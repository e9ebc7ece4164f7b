"""Steps of consolidation beside ProvisioningRequests: neither takes the room that is kept for the other, and neither
counts its own twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from cagrpc.fleet.model import DisruptionPhase
from tests.controllers.consolidation.scene import DO_NOT_DISRUPT, Scene
from tests.support.fleet import group
from tests.support.requests import ATOMIC, UPSTREAM_CHECK, RequestWorld

DONE = DisruptionPhase.DONE


class _Scene(Scene, RequestWorld):
    """Nodes of 4 cores stand, and stay."""

    def __init__(self, small: int) -> None:
        groups = group("big", cpu=8000, price=0.8), group("small", cpu=4000, price=0.4)
        super().__init__(*groups, world={"requests": RequestSettings(upstream_classes=frozenset(ClassBehaviour))})
        self.template("job", cpu=2000)
        self.small = self.stand("small", small)
        for name in self.small:
            self.change_node(name, metadata={"annotations": DO_NOT_DISRUPT})

    def begin_with(self, pods: int) -> None:
        """Let a step begin that takes away a node of 8 cores with so many pods."""
        (self.old,) = self.stand("big")
        self.cluster.workload("web", pods, on=[self.old])
        self.begin()
        self.until(lambda: self.fleet.snapshot.disruption)

    def let_go(self, pods: int) -> None:
        """Let so many pods be away at a time."""
        self.cluster.workload("web", self.cluster.workloads["web"].replicas, budget=pods)

    def until_moving(self, pods: int) -> str:
        """Let a step begin, of whose pods none may go, and return the node to which they are to go."""
        self.begin_with(pods)
        self.let_go(0)
        self.until(lambda: self.last().phase is DisruptionPhase.MOVING)
        (target,) = {each.target for each in self.last().moves}
        return target


@pytest.fixture
def scenes() -> Iterator[Callable[..., _Scene]]:
    with ExitStack() as made:
        yield lambda *of, **more: made.enter_context(_Scene(*of, **more))


@pytest.mark.parametrize("of", [ATOMIC, UPSTREAM_CHECK])
def test_a_request_that_comes_during_a_step_leaves_its_targets_alone(scenes: Callable[..., _Scene], of: str) -> None:
    """The nodes of a class of the autoscaler's own are not labelled."""
    scene = scenes(2)
    target = scene.until_moving(3)
    (other,) = {*scene.small} - {target}
    labelled = {other} if of == ATOMIC else set()
    uid = scene.request("r", ("job", 2), of=of)
    scene.run(10)
    assert scene.is_true("r", "Provisioned")
    assert scene.labelled(uid) == labelled
    scene.cluster.scheduling = False
    scene.let_go(9)
    scene.run(20)
    assert len(scene.cluster.pending()) == 3
    assert {each.target for each in scene.last().moves} == {target}
    assert scene.labelled(uid) == labelled
    scene.cluster.scheduling = True
    scene.until(lambda: scene.ended() is DONE, 60)
    assert (scene.pods_by_node(), scene.labelled(uid)) == ({target: 3}, labelled)
    assert scene.status()["provisioning_requests"]["bookings"] == 1


def test_what_is_kept_for_successors_is_no_room_for_a_request(scenes: Callable[..., _Scene]) -> None:
    scene = scenes(1)
    target = scene.until_moving(3)
    scene.request("r", ("job", 1), of=UPSTREAM_CHECK)
    scene.run(5)
    assert scene.condition("r", "Provisioned")["status"] == "False"
    scene.let_go(9)
    scene.until(lambda: scene.ended() is DONE, 60)
    assert scene.pods_by_node() == {target: 3}


def test_a_request_that_waits_for_its_next_attempt_holds_it_too(scenes: Callable[..., _Scene]) -> None:
    """Freed nodes are what it is tried with."""
    scene = scenes(1)
    (old,) = scene.stand("big")
    scene.cluster.workload("web", 4, on=[old])
    scene.request("r", ("job", 5), of=UPSTREAM_CHECK)
    scene.run(20)
    assert scene.condition("r", "Provisioned")["status"] == "False"
    scene.begin()
    scene.run(5)
    (held,) = scene.shown["held_by"]
    assert (held["namespace"], held["requests"]) == ("ns", 1)


def test_nor_are_nodes_that_go(scenes: Callable[..., _Scene]) -> None:
    """Nobody has seen the cordon yet."""
    scene = scenes(1)
    scene.begin_with(1)
    scene.late.add("nodes")
    scene.request("r", ("job", 3))
    scene.run(5)
    scene.late.clear()
    scene.run(90)
    assert scene.ended() is DONE
    assert scene.is_true("r", "Provisioned")
    assert scene.condition("r", "CapacityRevoked") is None
    assert scene.old not in scene.cluster.nodes()


def test_a_target_that_a_booking_shares_is_full_but_no_more_than_full(scenes: Callable[..., _Scene]) -> None:
    scene = scenes(1)
    (shared,) = scene.small
    uid = scene.request("r", ("job", 1))
    scene.run(5)
    assert scene.labelled(uid) == {shared}
    assert scene.until_moving(2) == shared
    scene.let_go(9)
    scene.until(lambda: scene.ended() is DONE, 60)
    assert (scene.pods_by_node(), scene.labelled(uid)) == ({shared: 2}, {shared})
