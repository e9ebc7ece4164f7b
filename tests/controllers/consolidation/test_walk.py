"""The walk, from the first cordon to the last deletion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.fleet.model import DisruptionPhase
from tests.support.controllers.walking import WalkHarness
from tests.support.fleet import group


@pytest.fixture
def scene() -> Iterator[WalkHarness]:
    made = WalkHarness([group("big", cpu=8000, price=0.8), group("small", cpu=2000, price=0.2)])
    yield made
    made.close()


def test_pods_move_to_a_new_node_and_the_old_one_goes(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    scene.begin(old, new={"small": 1})
    scene.run(120)
    assert scene.ended() is DisruptionPhase.DONE
    (new,) = scene.names()
    assert scene.pods_by_node() == {new: 2}
    assert scene.targets() == {"small": 1}
    assert not scene.ours()
