"""Question, plan, controller and walk together, over a fleet and a cluster in memory: a cluster that has rotted becomes
one that costs the least, and a dry run changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cagrpc.controllers.consolidation.observer import PATIENCE_SECONDS
from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings, NodeBudget
from cagrpc.fleet.model import DisruptionPhase
from solver.model import PodSpec
from tests.support.controllers.consolidating import ConsolidatingHarness
from tests.support.controllers.consolidation import settings
from tests.support.fleet import group

ON, DRY_RUN = ConsolidationMode.ON, ConsolidationMode.DRY_RUN
GROUPS = (group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9))
Scenes = Callable[[ConsolidationSettings], ConsolidatingHarness]


@pytest.fixture
def scenes() -> Iterator[Scenes]:
    made: list[ConsolidatingHarness] = []

    def make(with_settings: ConsolidationSettings) -> ConsolidatingHarness:
        made.append(ConsolidatingHarness(GROUPS, with_settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rotten(scene: ConsolidatingHarness) -> None:
    """Four large nodes with one small pod each: two small nodes would do."""
    scene.workload("web", 4, on=scene.stand("big", 4))
    scene.writes.clear()


def cost(scene: ConsolidatingHarness) -> float:
    prices = {each.id: each.price_usd_per_hour for each in GROUPS}
    groups = scene.fleet.snapshot.groups
    return round(sum(prices[name] * each.target_size for name, each in groups.items()), 6)


def test_a_dry_run_says_what_it_would_save_and_writes_nothing(scenes: Scenes) -> None:
    scene = scenes(settings(DRY_RUN))
    rotten(scene)
    journal, pods = scene.fleet.snapshot.increments, scene.pods_by_node()
    scene.run(200)
    plan = scene.shown["plan"]
    assert plan["cost_usd_per_hour"] == pytest.approx(3.2)
    assert plan["cost_after_usd_per_hour"] == pytest.approx(0.4)
    assert plan["least_usd_per_hour"] <= plan["cost_after_usd_per_hour"]
    assert scene.shown["waits_for"] == "it is a dry run: nothing is changed"
    assert scene.writes == []
    assert scene.fleet.snapshot.increments == journal
    assert scene.fleet.snapshot.disruptions == ()
    assert scene.pods_by_node() == pods


def test_on_it_becomes_what_was_planned(scenes: Scenes) -> None:
    scene = scenes(settings(ON))
    rotten(scene)
    scene.run(900)
    assert cost(scene) == pytest.approx(0.4)
    assert {each.phase for each in scene.fleet.snapshot.disruptions} == {DisruptionPhase.DONE}
    assert sum(scene.pods_by_node().values()) == 4
    assert not scene.ours()
    assert scene.shown["waits_for"] == "nothing is worth moving"
    assert scene.shown["plan"]["least_usd_per_hour"] == pytest.approx(0.4)


def test_no_more_nodes_go_at_a_time_than_the_budget_lets_go(scenes: Scenes) -> None:
    scene = scenes(settings(ON, budgets=(NodeBudget(1),)))
    rotten(scene)
    scene.run(1500)
    assert cost(scene) < 3.2
    assert {len(each.nodes) for each in scene.fleet.snapshot.disruptions} == {1}
    assert sum(scene.pods_by_node().values()) == 4


def test_a_process_that_ends_is_continued_by_the_next(scenes: Scenes) -> None:
    scene = scenes(settings(ON))
    rotten(scene)
    for _ in range(40):
        scene.run(23)
        scene.restart()
    scene.run(300)
    assert cost(scene) == pytest.approx(0.4)
    assert sum(scene.pods_by_node().values()) == 4
    assert not scene.ours()


def test_switched_to_a_dry_run_it_undoes_what_is_under_way(scenes: Scenes) -> None:
    scene = scenes(settings(ON))
    rotten(scene)
    while not scene.ours():
        scene.step()
        scene.clock.advance(1.0)
    scene.settings_now = settings(DRY_RUN)
    scene.restart()
    scene.run(600)
    ended = scene.last()
    assert (ended.phase, ended.message) == (DisruptionPhase.UNDONE, "consolidation is a dry run now")
    assert not scene.ours()
    assert sum(scene.pods_by_node().values()) == 4
    assert scene.shown["waits_for"] == "it is a dry run: nothing is changed"


def test_while_a_pod_waits_nothing_begins_but_for_one_that_nothing_can_be_done_for(scenes: Scenes) -> None:
    scene = scenes(settings(ON))
    rotten(scene)
    scene._make(PodSpec((("cpu", 64_000),)), 0, None)
    scene.run(PATIENCE_SECONDS / 2)
    assert scene.shown["waits_for"] == "pods wait: 1"
    assert scene.fleet.snapshot.disruptions == ()
    scene.run(PATIENCE_SECONDS)
    assert scene.fleet.snapshot.disruptions
