"""The process ends at any write of a step of consolidation, to the journal, to nodes or of an eviction; the next one
continues. Then the same, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from tests.controllers.consolidation.scene import DO_NOT_DISRUPT, Scene
from tests.support.fleet import group

RUNNING = 4
DONE = {"phase": "done", "evicted": RUNNING, "targets": {"big": 1, "small": 1}}
UNDONE = {"phase": "undone"}


def end_of(fatal: Callable[[int], int], *, stop: bool) -> tuple[dict[str, Any], list[list[str]]]:
    """Let a node be replaced by a new one and one that stands; with `stop` somebody lifts its cordon half-way. Return
    what there is in the end, and the writes of each process, of which each (by its number) is killed at its `fatal`
    one."""
    with Scene(group("big", cpu=8000, price=0.8), group("small", cpu=2000, price=0.2)) as scene:
        old, stands = scene.stand("big", 2)
        scene.backend.set_behaviours({"small": Behaviour(boot_seconds=2.0)})
        web = scene.cluster.workload("web", RUNNING, on=[old], budget=1)
        scene.cluster.workload("full", 6, on=[stands])
        scene.change_node(stands, metadata={"annotations": DO_NOT_DISRUPT})
        scene.begin()
        processes, least, lifted = [scene.calls], RUNNING, False
        scene.calls.names.clear()
        scene.calls.fatal = fatal(0)
        for _ in range(150):
            scene.step()
            scene.clock.advance(2.0)
            if scene.calls is not processes[-1]:
                processes.append(scene.calls)
                more = fatal(len(processes) - 1)
                scene.calls.fatal = more and len(scene.calls.names) + more
            pods = [each for each in scene.cluster.pods().values() if each.ref.workload == web.key]
            least = min(least, sum(bool(each.node) for each in pods))
            if scene.fleet.snapshot.disruptions and scene.ended():
                break
            if stop and not lifted and sum(each.node == old for each in pods) <= RUNNING - 2:
                lifted = True
                scene.change_node(old, spec={"unschedulable": False})
        steps = [list(each.names) for each in processes]
        scene.calls.fatal = 0
        scene.idle.add("consolidation")
        scene.run(40, 5)
        used = scene.pods_by_node().keys() | {stands}
        return {
            "phase": scene.last().phase.value,
            "least": least,
            "evicted": len(scene.cluster.paths) - len(scene.cluster.pods()),
            "targets": scene.targets(),
            "pods": sum(scene.pods_by_node().values()),
            "pending": scene.cluster.pending(),
            "cordoned": scene.cluster.cordoned(),
            "held": scene.fleet.snapshot.held_instances,
            "unused": scene.cluster.nodes().keys() - used,
        }, steps


def check(found: dict[str, Any], at: str, *, stop: bool) -> None:
    whole = {
        "least": RUNNING - 1,
        "pods": RUNNING + 6,
        "pending": [],
        "cordoned": set(),
        "held": set(),
        "unused": set(),
    }
    assert found == {**found, **whole, **(UNDONE if stop else DONE)}, at


@pytest.mark.parametrize("stop", [False, True], ids=["done", "undone"])
def test_killed_at_any_write_it_ends_as_if_nothing_had_happened(*, stop: bool) -> None:
    """Before a write: that after it is the same as before the next one."""
    found, [steps] = end_of(lambda _: 0, stop=stop)
    check(found, "never killed", stop=stop)
    assert {"eviction", "nodes", "commit"} <= {part for name in steps for part in name.replace("/", " ").split()}
    for fatal in range(1, len(steps) + 1, 6 if stop else 2):
        found, [until, _] = end_of(lambda process, fatal=fatal: 0 if process else fatal, stop=stop)  # type: ignore[misc]
        assert until == steps[:fatal]
        check(found, f"{fatal}: {until[-1]}", stop=stop)


@pytest.mark.parametrize("stop", [False, True], ids=["done", "undone"])
def test_killed_again_and_again_it_still_ends_so(*, stop: bool) -> None:
    found, processes = end_of(lambda process: process + 3, stop=stop)
    check(found, "killed again and again", stop=stop)
    assert len(processes) > 3
