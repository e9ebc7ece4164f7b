"""Consolidation over a cluster that has rotted: it becomes one that costs the least, a dry run changes nothing, and
while something else is under way nothing begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import ConsolidationMode, NodeBudget
from cagrpc.fleet.model import DisruptionPhase, IncrementSpec
from tests.controllers.consolidation.scene import Scene
from tests.support.fleet import group

ON, DRY_RUN = ConsolidationMode.ON, ConsolidationMode.DRY_RUN
GROUPS = (group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9))
Scenes = Callable[..., Scene]


@pytest.fixture
def rotten() -> Iterator[Scenes]:
    """Make worlds of four large nodes with one small pod each: two small nodes would do."""
    with ExitStack() as made:

        def make(mode: ConsolidationMode = ON, **settings: Any) -> Scene:
            scene = made.enter_context(Scene(*GROUPS, mode=mode, **settings))
            scene.cluster.workload("web", 4, on=scene.stand("big", 4))
            scene.begin()
            return scene

        yield make


def test_a_dry_run_says_what_it_would_save_and_writes_nothing(rotten: Scenes) -> None:
    scene = rotten(DRY_RUN)
    journal, pods = scene.fleet.snapshot.increments, scene.pods_by_node()
    scene.idle.add("what the autoscaler may scale down")
    scene.api.requests.clear()
    scene.run(200, 5)
    plan = scene.shown["plan"]
    assert plan["cost_usd_per_hour"] == pytest.approx(3.2)
    assert plan["cost_after_usd_per_hour"] == pytest.approx(0.4)
    assert plan["least_usd_per_hour"] <= plan["cost_after_usd_per_hour"]
    assert scene.shown["waits_for"] == "it is a dry run: nothing is changed"
    assert not [each for each in scene.api.requests if not each.startswith("GET")]
    assert scene.fleet.snapshot.increments == journal
    assert scene.fleet.snapshot.disruptions == ()
    assert scene.pods_by_node() == pods


@pytest.mark.parametrize("restarts", [0, 40])
def test_on_it_becomes_what_was_planned_also_where_processes_end(rotten: Scenes, restarts: int) -> None:
    scene = rotten()
    for _ in range(restarts):
        scene.run(23, 2)
        scene.restart()
    scene.run(600, 2)
    assert scene.cost() == pytest.approx(0.4)
    assert {each.phase for each in scene.fleet.snapshot.disruptions} == {DisruptionPhase.DONE}
    assert sum(scene.pods_by_node().values()) == 4
    assert not scene.ours()
    assert scene.shown["waits_for"] == "nothing is worth moving"
    assert scene.shown["plan"]["least_usd_per_hour"] == pytest.approx(0.4)


def test_no_more_nodes_go_at_a_time_than_the_budget_lets_go(rotten: Scenes) -> None:
    scene = rotten(budgets=(NodeBudget(1),))
    scene.run(900, 3)
    assert scene.cost() < 3.2
    assert {len(each.nodes) for each in scene.fleet.snapshot.disruptions} == {1}
    assert sum(scene.pods_by_node().values()) == 4


def test_switched_to_a_dry_run_it_undoes_what_is_under_way(rotten: Scenes) -> None:
    scene = rotten()
    scene.until(scene.ours)
    scene.switch(DRY_RUN)
    scene.run(600, 3)
    ended = scene.last()
    assert (ended.phase, ended.message) == (DisruptionPhase.UNDONE, "consolidation is a dry run now")
    assert not scene.ours()
    assert sum(scene.pods_by_node().values()) == 4
    assert scene.shown["waits_for"] == "it is a dry run: nothing is changed"


def is_drained(scene: Scene) -> None:
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    scene.change_node(next(iter(scene.cluster.nodes())), spec={"taints": [taint]})


def orders(scene: Scene) -> None:
    scene.backend.set_behaviours({"small": Behaviour(boot_seconds=300.0)})
    scene.fleet.apply(IncrementSpec({"small": 1}))


def is_expected(scene: Scene) -> None:
    scene.idle.add("the planner loop")
    scene.cluster.workload("late", 2, creates=False)


def is_away(scene: Scene) -> None:
    scene.disconnect("the watch is down")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        pytest.param(is_away, "the cluster is not known: the watch is down", id="the cluster is not known"),
        pytest.param(is_expected, "pods are to be created by their workloads: 2 (namespace", id="pods are expected"),
        pytest.param(orders, "increments are in flight: 1 (namespace not known until", id="an increment"),
        pytest.param(is_drained, "node {node} is being removed and still has pods", id="somebody drains a node"),
    ],
)
def test_while_something_else_is_under_way_nothing_begins(
    rotten: Scenes, happens: Callable[[Scene], None], why: str
) -> None:
    scene = rotten()
    happens(scene)
    scene.run(10)
    assert scene.shown["waits_for"].startswith(why.format(node=next(iter(scene.cluster.nodes()))))
    assert scene.fleet.snapshot.disruptions == ()
