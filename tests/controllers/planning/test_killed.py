"""The process is killed just before, or just after, each commit, order, deletion, nomination and release of a planned
increment, and another one goes on: it reaches the same end state as one that was not killed. Each day that is before
each of them, and after the last: after one is as before the next, but for what happens in between."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS, Happening, World

LONG = 3 * BOOT_SECONDS


def pods(gang: str | None = None) -> Happening:
    return lambda world: world.cluster.add(4, cpu=1500, gang=gang)


def short(world: World) -> None:
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=1)})


def pods_go(world: World) -> None:
    world.cluster.delete(*world.cluster.pending())


def long(world: World) -> None:
    world.run(LONG, step=2.0)


STORIES: dict[str, tuple[tuple[Happening, ...], dict[str, Any]]] = {
    "to done": ((pods(), long), {"phases": {"done"}, "ordered": 2, "instances": 2}),
    "a gang to done": ((pods("g"), long), {"phases": {"done"}, "ordered": 2, "instances": 2}),
    "to rolled back": ((short, pods("g"), long, pods_go, long), {"phases": {"rolled-back"}, "instances": 0}),
}


def end_of(story: tuple[Happening, ...], fatal: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Return what there is in the end, and the steps up to it or to the kill."""
    with World(group("only", cpu=4000), fatal=fatal) as world:
        steps = world.calls.names
        world.play(*story)
        assert world.died == bool(fatal)
        return {
            "phases": {each.phase.value for each in world.increments()},
            "ordered": world.ordered,
            "instances": len(world.backend.list_instances().instances),
            "held": world.cluster.held(),
            "pending": world.cluster.pending(),
            "targets": world.targets(),
        }, steps


@pytest.mark.parametrize("at", ["before", pytest.param("after", marks=pytest.mark.long("as before the next"))])
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_any_step_it_comes_to_the_same_end(name: str, at: str) -> None:
    story, end = STORIES[name]
    expected, steps = end_of(story)
    assert end.items() <= expected.items()
    assert len(steps) > 12
    for fatal in [each for each, step in enumerate(steps, 1) if step.startswith(at) or each == len(steps)]:
        found, until = end_of(story, fatal)
        assert until == steps[:fatal]
        assert found == expected, until[-1]
