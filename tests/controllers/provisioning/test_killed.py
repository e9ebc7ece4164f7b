"""The process is killed before, or after, each single write of a request or of a booking's label, and each commit of an
increment, and another one goes on: it reaches the same end state as one that was not killed. Each day that is before
each of them, and after the last: after one is as before the next, but for what happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.model import Phase
from tests.support.fleet import group
from tests.support.requests import RequestWorld, path
from tests.support.world import BOOT_SECONDS

Story = Callable[[RequestWorld], object]
LONG = 3 * BOOT_SECONDS


def long(world: RequestWorld) -> None:
    world.run(LONG, step=2.0)


def ask(*pods: tuple[str, int]) -> Story:
    return lambda world: world.request("r", *pods)


def some_room(world: RequestWorld) -> None:
    world.request("before", ("web", 4))
    long(world)
    world.delete("before")
    world.run(5)


def short(world: RequestWorld) -> None:
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=0)})


def short_no_more(world: RequestWorld) -> None:
    world.run(30)
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=BOOT_SECONDS)})
    world.run(800, step=10)


def delete(world: RequestWorld) -> None:
    world.run(BOOT_SECONDS / 2)
    world.delete("r")


STORIES: dict[str, tuple[Story, ...]] = {
    "new nodes": (ask(("web", 6), ("wide", 1)), long),
    "nodes that stand and new ones": (some_room, ask(("web", 6)), long),
    "nodes that stand": (some_room, ask(("web", 3)), long),
    "a shortage": (short, ask(("web", 6)), short_no_more),
    "deleted on its way": (some_room, ask(("web", 6)), delete, long),
}


def end_of(name: str, fatal: int = 0) -> tuple[object, list[str]]:
    """Return what there is in the end, and the steps up to it or to the kill."""
    with RequestWorld(group("a"), group("b", cpu=9000, price=0.3), fatal=fatal) as world:
        steps = world.calls.names
        world.template("web", cpu=1000)
        world.template("wide", cpu=8000)
        for each in (*STORIES[name], long):
            each(world)
        assert world.died == bool(fatal)
        there = path("r") in world.api.objects
        kinds = ("Accepted", "Provisioned", "Failed", "CapacityRevoked", "BookingExpired")
        found = {kind: world.condition("r", kind) for kind in kinds} if there else {}
        details = world.details("r") if there else {}
        uid = world.document("r")["metadata"]["uid"] if there else "gone"
        return (
            {kind: each["status"] for kind, each in found.items() if each is not None},
            {key: details.get(key) for key in ("nodes", "nodeGroups", "attempts", "costPerHour")},
            (len(world.labelled(uid)), len(world.any_labels()), world.bookings),
            (len(world.increments()), len(world.increments(Phase.DONE))),
            sum(each.phase.in_flight for each in world.increments()),
            world.targets(),
        ), steps


@pytest.mark.parametrize("at", ["before", pytest.param("after", marks=pytest.mark.long("as before the next"))])
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_any_step_it_comes_to_the_same_end(name: str, at: str) -> None:
    expected, steps = end_of(name)
    told = ("provisioningrequests", "api/v1/nodes", "commit planned", "commit rolling-back")
    fatal = [number for number, step in enumerate(steps, start=1) if any(each in step for each in told)]
    assert len(fatal) >= 4
    for number in [each for each in fatal if steps[each - 1].startswith(at) or each == fatal[-1]]:
        found, until = end_of(name, number)
        assert until == steps[:number]
        assert found == expected, until[-1]
