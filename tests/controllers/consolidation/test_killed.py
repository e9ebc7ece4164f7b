"""The process ends at any write of the walk, to the journal, to nodes or of an eviction, before it or after it; the
next one continues. Then the same, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cagrpc.fleet.model import DisruptionPhase
from tests.support.controllers.walking import WalkHarness
from tests.support.fleet import MemoryJournal, group
from tests.support.kills import Killed, SteppedJournal, Steps

DONE, UNDONE = DisruptionPhase.DONE, DisruptionPhase.UNDONE


class Story:
    """Two nodes are replaced by new ones and what there is; with `stop` it is undone half-way."""

    def __init__(self, *, stop: bool = False) -> None:
        self.stop = stop
        self.scene = WalkHarness([group("big", cpu=8000, price=0.8), group("small", cpu=2000, price=0.2)])
        self.scene.most_in_flight = 1
        self.scene.restart()
        self.old = self.scene.stand("big", 3)
        self.web = self.scene.workload("web", 4, on=self.old[:2], budget=1)
        self.nodes = self.scene.names()
        self.never = 4

    def run(self, step: Steps) -> None:
        """One process, from its start to the end of the step, or to the one at which it is killed."""
        scene = self.scene
        assert isinstance(scene.journal, MemoryJournal)
        shelf = scene.journal.shelf
        scene.fleet.close()
        scene.journal = SteppedJournal(MemoryJournal(shelf), step)

        def stepped(what: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            found: dict[str, Any] = step.around(what, do)()
            return found

        scene.fault = stepped
        try:
            scene._start()
            if not scene.fleet.snapshot.disruptions:
                scene.begin(self.old[:2], new={"small": 1}, onto=[self.old[2]])
            for _ in range(150):
                scene.step()
                self.never = min(self.never, scene.cluster.running(self.web.key))
                if self.stop and len(scene.cluster.evicted) >= 2:
                    scene.walk.undo("it is stopped")
                if scene.ended() is not None:
                    break
                scene.clock.advance(1.0)
        finally:
            scene.fault = lambda _, do: do()
            scene.journal = MemoryJournal(shelf)

    def check(self, at: str) -> None:
        """What holds in the end, however often it was killed."""
        self.scene.restart()
        self.scene.run(40)
        scene = self.scene
        assert scene.ended() is (UNDONE if self.stop else DONE), (at, scene.last())
        assert not scene.pending(), at
        assert scene.cluster.running(self.web.key) == 4, at
        assert self.never >= 3, at
        assert not scene.ours(), at
        assert scene.cluster.evicted == list(dict.fromkeys(scene.cluster.evicted)), at
        assert not scene.fleet.snapshot.held_instances, at
        by_node = scene.pods_by_node()
        if self.stop:
            assert scene.names() - {self.old[2]} == by_node.keys() - {self.old[2]}, at
        else:
            assert not scene.names() & set(self.old[:2]), at
            assert len(scene.cluster.evicted) == 4, at
            assert scene.targets() == {"big": 1, "small": 1}, at


@pytest.mark.parametrize("stop", [False, True], ids=["done", "undone"])
def test_killed_at_any_write_it_ends_as_if_nothing_had_happened(*, stop: bool) -> None:
    calm = Story(stop=stop)
    steps = Steps()
    calm.run(steps)
    calm.check("never killed")
    calm.scene.close()
    assert any("evict" in name for name in steps.names)
    assert any("cordon" in name for name in steps.names)
    for fatal, name in list(enumerate(steps.names, start=1))[:: 3 if stop else 1]:
        story = Story(stop=stop)
        with pytest.raises(Killed):
            story.run(Steps(fatal))
        story.run(Steps())
        story.check(f"{fatal}: {name}")
        story.scene.close()


@pytest.mark.parametrize("stop", [False, True], ids=["done", "undone"])
def test_killed_again_and_again_it_still_ends_so(*, stop: bool) -> None:
    story = Story(stop=stop)
    for fatal in range(3, 100):
        try:
            story.run(Steps(fatal))
        except Killed:
            continue
        assert fatal > 5
        break
    story.check("killed again and again")
    story.scene.close()
