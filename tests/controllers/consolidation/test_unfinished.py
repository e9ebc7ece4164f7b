"""Consolidation is switched off while a step is under way: the next process undoes it, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.consolidation.unfinished import UnfinishedStep
from cagrpc.fleet.model import DisruptionPhase, Phase
from tests.support.controllers.walking import WalkApi, WalkHarness
from tests.support.fleet import group

GROUPS = (group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9))


class Scene(WalkHarness):
    """Once `off`, the processes that start consolidate nothing."""

    off = False

    def _start(self) -> None:
        super()._start()
        api: Any = WalkApi(self.cluster)
        api.fault = self._with_fault
        self.unfinished = UnfinishedStep(api, self.fleet, self.cluster)
        if self.off:
            self.walk.advance = lambda: None  # type: ignore[method-assign]

    def instances_to_hold(self) -> frozenset[str]:
        return frozenset() if self.off else super().instances_to_hold()

    def reservations(self, state: ClusterState) -> Reservations:
        return {} if self.off else super().reservations(state)

    def step(self) -> None:
        if self.off:
            with suppress(errors.CagrpcError):
                self.unfinished.step()
        super().step()

    def switch_off(self) -> None:
        self.off = True
        self.restart()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(GROUPS)
    yield made
    made.close()


def begin(scene: Scene) -> list[str]:
    """Two nodes with three pods each, for two new ones and one that stands."""
    old, rest = scene.stand("big", 2), scene.stand("small", 1)
    scene.workload("web", 6, on=old, budget=2)
    scene.most_in_flight = 1
    scene.begin(old, new={"small": 2}, onto=rest)
    return old


def ordered(scene: Scene) -> bool:
    return any(each.instance_id for each in scene.fleet.snapshot.increments[-1].nodes)


def first_is_there(scene: Scene) -> bool:
    known = scene.cluster.node_names()
    return any(each.instance_id in known for each in scene.fleet.snapshot.increments[-1].nodes)


MOMENTS: Mapping[str, Callable[[Scene], bool]] = {
    "journalled": lambda _: True,
    "cordoned": lambda scene: len(scene.ours()) == 2,
    "ordered": ordered,
    "new nodes there": first_is_there,
    "moving": lambda scene: scene.last().phase is DisruptionPhase.MOVING,
    "some evicted": lambda scene: len(scene.cluster.evicted) >= 3,
    "undoing": lambda scene: scene.last().phase is DisruptionPhase.UNDOING,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_at_whatever_moment_it_is_undone_and_nothing_else_is_done(scene: Scene, moment: str) -> None:
    others = scene.stand("big", 1)[0]
    scene.cluster.cordons[others] = None  # somebody else's
    old = begin(scene)
    for _ in range(300):
        if MOMENTS[moment](scene):
            break
        scene.step()
        scene.clock.advance(1.0)
        if moment == "undoing" and scene.cluster.evicted:
            scene.walk.undo("it is stopped")
    assert MOMENTS[moment](scene)
    came = first_is_there(scene)
    evicted = list(scene.cluster.evicted)
    scene.switch_off()
    scene.run(90)
    assert scene.ended() is DisruptionPhase.UNDONE
    assert scene.last().message == "consolidation is off"
    assert scene.cluster.cordons == {others: None}
    assert scene.cluster.evicted == evicted
    assert set(old) <= scene.names()
    assert not scene.pending()
    assert scene.cluster.running("ReplicaSet/ns/web") == 6
    assert scene.targets() == {"big": 3, "small": 3 if came else 1}
    assert not [each for each in scene.fleet.snapshot.increments if each.phase.in_flight]
    assert not [name for name in scene.names() if scene.cluster.held_at(name) >= 0]


def test_what_fails_is_tried_again_and_the_record_ends_last(scene: Scene) -> None:
    old = begin(scene)
    scene.run(5)
    assert scene.ours() == set(old)
    scene.switch_off()

    def refused(what: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if what.endswith(old[1]):
            raise errors.Unavailable("the API server is away")
        return do()

    scene.fault = refused
    with pytest.raises(errors.Unavailable, match="is away"):
        scene.unfinished.step()
    assert scene.ours() == {old[1]}
    assert scene.ended() is None
    scene.fault = lambda _, do: do()
    scene.unfinished.step()
    assert not scene.ours()
    assert scene.ended() is DisruptionPhase.UNDONE


def test_nothing_is_withdrawn_while_nobody_knows_which_nodes_are_there(scene: Scene) -> None:
    begin(scene)
    scene.switch_off()
    scene.cluster.problem = "the list of nodes is still to come"
    with pytest.raises(errors.Unavailable, match="still to come"):
        scene.unfinished.step()
    assert scene.ended() is None
    assert scene.fleet.snapshot.increments[-1].phase is not Phase.ROLLING_BACK
    scene.cluster.problem = None
    scene.unfinished.step()
    assert scene.ended() is DisruptionPhase.UNDONE
    scene.unfinished.step()  # and then there is nothing to do
