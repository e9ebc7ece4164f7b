"""The controller of consolidation: when it plans, what it shows, which step it begins, and what keeps it from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cagrpc.controllers.consolidation.controller import narrowed
from cagrpc.controllers.settings import ConsolidationMode
from cagrpc.fleet.model import DisruptionPhase
from solver.consolidation.model import ConsolidationProblem
from tests.controllers.consolidation.scene import DO_NOT_DISRUPT, SPOT, Scene, evictions_are_forbidden
from tests.support.cluster import NODES
from tests.support.fleet import group

DRY_RUN = ConsolidationMode.DRY_RUN
NONE_ANY_MORE = "the planned steps no longer apply"
Scenes = Callable[..., tuple[Scene, list[str]]]


@pytest.fixture
def scenes() -> Iterator[Scenes]:
    """Make worlds of so many nodes, of which each is a step of its own, and return them with their nodes."""
    with ExitStack() as made:

        def make(count: int, **settings: Any) -> tuple[Scene, list[str]]:
            scene = made.enter_context(Scene(group("big", cpu=8000, max_size=99), most_nodes_per_step=1, **settings))
            return scene, scene.stand("big", count)

        yield make


def stays(scene: Scene, *names: str) -> None:
    for name in names:
        scene.change_node(name, metadata={"annotations": DO_NOT_DISRUPT})


@pytest.mark.parametrize(("allowed", "asked", "most"), [(50, 2, 2), (50, 0, 1), (2, 3, 2)])
def test_a_part_that_is_asked_anew_takes_no_more_nodes_than_that_nor_than_a_step_may(
    allowed: int, asked: int, most: int
) -> None:
    found = narrowed(ConsolidationProblem((), (), most_nodes_per_step=allowed), frozenset("abc"[:asked]))
    assert found.most_nodes_per_step == most


def test_the_status_has_the_first_of_what_the_page_has(scenes: Scenes) -> None:
    scene, nodes = scenes(11, mode=DRY_RUN)
    for node in nodes[:4]:
        asks_to_stay = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
        scene.cluster.add(node=node, owner="ReplicaSet/ns/web", annotations=asks_to_stay)
    scene.begin()
    assert "cagrpc_consolidation_cost_usd_per_hour" not in scene.metrics(), "nothing is known"
    scene.run(1)
    json.dumps(scene.shown)
    assert (scene.shown["mode"], scene.shown["under_way"], scene.shown["last"]) == ("dry-run", None, None)
    for plan, steps, examples in ((scene.shown["plan"], 5, 3), (scene.plan, 7, 4)):
        (kind,) = plan["stays"]
        assert (plan["steps_planned"], len(plan["steps"])) == (7, steps)
        assert (kind["reason"], kind["nodes"], len(kind["examples"])) == ("… has the annotation … …", 4, examples)
    cost = {labels[0]: each.value for labels, each in scene.metrics()["cagrpc_consolidation_cost_usd_per_hour"].items()}
    assert cost == pytest.approx({"now": 1.1, "planned": 0.4, "least": 0.4, "least_if_all_moved": 0.1})
    assert scene.metrics()["cagrpc_consolidation_nodes_kept"]["… has the annotation … …",].value == 4


def test_it_is_planned_anew_at_its_pace(scenes: Scenes) -> None:
    scene, _ = scenes(0, every_seconds=60.0)
    scene.begin()
    planned = set()
    for _ in range(100):
        scene.run(3, 3)
        planned.add(scene.plan["at_seconds"])
    assert len(planned) == 6
    assert scene.shown["waits_for"] == "nothing is worth moving"


def test_while_nothing_may_be_begun_nothing_is_planned_and_the_last_plan_stays(scenes: Scenes) -> None:
    scene, _ = scenes(1, mode=DRY_RUN)
    scene.begin()
    scene.run(1)
    before = scene.plan
    scene.disconnect("the watch is down")
    scene.run(100, 5)
    assert (scene.shown["waits_for"], scene.plan) == ("the cluster is not known: the watch is down", before)
    assert before["steps_planned"] == 1
    scene.reconnect()
    scene.run(6)
    assert scene.plan["at_seconds"] > scene.clock() - 6, "sooner than at its pace"


def test_what_fails_is_told_and_tried_again(scenes: Scenes) -> None:
    scene, _ = scenes(1)
    scene.begin()
    scene.before_beginning(lambda: setattr(scene.journal, "broken", True))
    scene.run(5)
    assert (scene.shown["waits_for"], scene.fleet.snapshot.disruptions) == ("journal: out of reach", ())
    scene.journal.broken = False
    scene.until(lambda: scene.fleet.snapshot.disruptions, 61)


def test_the_next_step_begins_as_soon_as_the_one_before_has_ended(scenes: Scenes) -> None:
    scene, _ = scenes(3)
    scene.begin()
    scene.run(30)
    first, second, third = scene.fleet.snapshot.disruptions
    for before, after in ((first, second), (second, third)):
        assert before.finished_at_seconds is not None
        assert after.created_at_seconds <= before.finished_at_seconds + 1


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        pytest.param(lambda scene, _: scene.cluster.add(), "pods wait: 1", id="a pod comes"),
        pytest.param(stays, NONE_ANY_MORE, id="its node may not go any more"),
        pytest.param(lambda scene, _: scene.controller("consolidation").stop(0.0), NONE_ANY_MORE, id="it stops"),
    ],
)
def test_the_step_that_is_begun_is_one_of_what_is_then(
    scenes: Scenes, happens: Callable[[Scene, str], None], why: str
) -> None:
    """Something happens while the whole is planned."""
    scene, (node,) = scenes(1)
    scene.begin()
    scene.before_beginning(lambda: happens(scene, node))
    scene.run(1)
    assert scene.shown["plan"]["steps_planned"] == 1
    assert scene.shown["waits_for"].startswith(why)
    assert scene.fleet.snapshot.disruptions == ()


def test_steps_that_turn_out_to_be_none_do_not_hold_up_later_ones_for_ever(scenes: Scenes) -> None:
    """All nodes but that of the last step may go whenever it is planned, and never when a step is to begin."""
    scene, _ = scenes(7, mode=DRY_RUN)
    scene.begin()
    scene.run(1)
    *others, last = (node for each in scene.plan["steps"] for node in each["nodes"])
    scene.switch(ConsolidationMode.ON)
    planned_at = 0.0

    def flicker() -> None:
        nonlocal planned_at
        stay = str(planned_at == scene.clock()).lower()
        planned_at = scene.clock()
        for name in others:
            scene.api.edit(f"{NODES}/{name}", annotations=dict.fromkeys(DO_NOT_DISRUPT, stay))
        scene.meanwhile(flicker, "consolidation")

    scene.meanwhile(flicker, "consolidation")
    scene.until(lambda: scene.fleet.snapshot.disruptions, 130)
    assert [each.name for each in scene.last().nodes] == [last]


def test_after_failures_nothing_is_begun_for_longer_and_longer_also_after_a_restart(scenes: Scenes) -> None:
    scene, (old, target) = scenes(2, pause_after_failure_seconds=600.0, longest_pause_seconds=2000.0)
    scene.cluster.workload("web", 1, on=[old])
    stays(scene, target)
    evictions_are_forbidden(scene)
    scene.begin()
    waited = []
    for number in range(1, 5):
        scene.until(lambda count=number: len(scene.fleet.snapshot.disruptions) == count)  # type: ignore[misc]
        scene.until(scene.ended)
        scene.restart()
        scene.run(6)
        failed, paused = scene.last(), scene.shown["paused"]
        assert paused["why"] == failed.message
        assert scene.shown["waits_for"] == f"paused after a step that failed: {failed.message}"
        assert scene.metrics()["cagrpc_consolidation_paused"][()].value
        assert failed.finished_at_seconds is not None
        waited.append(paused["until_seconds"] - failed.finished_at_seconds)
        scene.clock.advance(paused["until_seconds"] - scene.clock() - 50)
        scene.run(45, 5)
        assert scene.last() == failed
    assert waited == [600.0, 1200.0, 2000.0, 2000.0]


def test_in_a_pause_a_node_that_must_go_does_unless_it_has_failed_and_a_step_that_is_done_ends_it(
    scenes: Scenes,
) -> None:
    scene, (old, target, other) = scenes(3)
    scene.cluster.workload("web", 1, on=[old])
    stays(scene, target, other)
    evictions_are_forbidden(scene)
    scene.begin()
    scene.until(lambda: scene.fleet.snapshot.disruptions and scene.ended())
    scene.api.before = lambda _: None
    for each in (old, other):
        scene.change_node(each, spec=SPOT)
    scene.run(120)
    disruptions = scene.fleet.snapshot.disruptions
    assert [each.name for step in disruptions for each in step.nodes] == [old, other, old]
    assert [each.phase for each in disruptions] == [DisruptionPhase.UNDONE, DisruptionPhase.DONE, DisruptionPhase.DONE]
    metrics = scene.metrics()
    steps = {labels: each.value for labels, each in metrics["cagrpc_consolidation_steps_total"].items()}
    assert steps == {("undone", "Underutilized"): 1, ("done", "Interrupted"): 2}
    seconds = [(each.finished_at_seconds or 0.0) - each.created_at_seconds for each in disruptions]
    assert metrics["cagrpc_consolidation_step_duration_seconds_sum"]["done",].value == pytest.approx(sum(seconds[1:]))
    assert metrics["cagrpc_consolidation_pods_moved_total"][()].value == 1
    scene.restart()
    scene.run(1)
    assert "cagrpc_consolidation_steps_total" not in scene.metrics(), "they are another process's"
