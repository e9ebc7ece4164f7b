"""Consolidation is switched off while a step is under way: the next process undoes it, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from cagrpc.fleet.model import DisruptionPhase, Phase
from tests.controllers.consolidation.scene import Scene
from tests.support.api_server import Refusal
from tests.support.fleet import group

GROUPS = (group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9))


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A node with three pods is replaced by two new ones; somebody cordoned another, which stays."""
    with Scene(*GROUPS) as made:
        old, (others,) = made.stand("big"), made.stand("big")
        made.cluster.workload("web", 3, on=old, budget=1)
        stays = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
        made.change_node(others, spec={"unschedulable": True}, metadata=stays)
        made.begin()
        made.until(lambda: made.fleet.snapshot.disruption)
        yield made


def ordered(scene: Scene) -> set[str]:
    """Return the new nodes that are known."""
    (increment,) = (each for each in scene.increments() if each.id == scene.last().increment_id)
    return {each.instance_id.removeprefix("simulated://") for each in increment.nodes if each.instance_id}


def there(scene: Scene) -> int:
    """Return how many of the new nodes are there."""
    return len(ordered(scene) & scene.cluster.nodes().keys())


def evicted(scene: Scene) -> int:
    return sum(each.endswith("/eviction") for each in scene.api.requests)


MOMENTS: Mapping[str, Callable[[Scene], object]] = {
    "journalled": lambda _: True,
    "cordoned": lambda scene: len(scene.ours()) == 1,
    "ordered": ordered,
    "new nodes there": there,
    "moving": lambda scene: scene.last().phase is DisruptionPhase.MOVING,
    "some evicted": lambda scene: evicted(scene) >= 2,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_at_whatever_moment_it_is_undone_and_nothing_else_is_done(scene: Scene, moment: str) -> None:
    scene.until(lambda: MOMENTS[moment](scene))
    assert (scene.last().pods, len(scene.last().nodes)) == (3, 1)
    came, before, cordoned_by_others = there(scene), evicted(scene), scene.cluster.cordoned() - scene.ours()
    scene.switch(None)
    scene.run(120)
    assert scene.ended() is DisruptionPhase.UNDONE
    assert scene.last().message == "consolidation is off"
    assert scene.cluster.cordoned() == cordoned_by_others
    assert evicted(scene) == before
    assert {each.name for each in scene.last().nodes} <= scene.cluster.nodes().keys()
    assert not scene.cluster.pending()
    assert scene.targets() == {"big": 2} | ({"small": came} if came else {})
    assert not [each for each in scene.increments() if each.phase.in_flight]
    assert not scene.cluster.held()


def test_what_fails_is_tried_again_and_the_record_ends_last(scene: Scene) -> None:
    scene.until(scene.ours)
    (name,) = scene.ours()

    def refuse(request: str) -> None:
        if request == f"PATCH /api/v1/nodes/{name}":
            raise Refusal(503, "away")

    scene.api.before = refuse
    scene.switch(None)
    scene.run(20)
    assert scene.ours() == {name}
    assert scene.ended() is None
    scene.api.before = lambda _: None
    scene.run(60)
    assert not scene.ours()
    assert scene.ended() is DisruptionPhase.UNDONE


def test_nothing_is_withdrawn_while_nobody_knows_which_nodes_are_there(scene: Scene) -> None:
    scene.disconnect()
    scene.switch(None)
    scene.run(20)
    assert scene.ended() is None
    assert not scene.increments(Phase.ROLLING_BACK, Phase.ROLLED_BACK)
    scene.reconnect()
    scene.run(60)
    assert scene.ended() is DisruptionPhase.UNDONE
