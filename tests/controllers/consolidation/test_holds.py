"""Pods and requests that need room hold consolidation: for a share of time of each namespace, and never a node that
must go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.consolidation.holds import SHARE_SECONDS, Holds, in_words, needs
from cagrpc.controllers.settings import ConsolidationMode
from cagrpc.fleet.model import DisruptionPhase, IncrementSpec, Phase
from solver.model import PodSpec
from tests.controllers.consolidation.scene import Scene
from tests.support.fleet import group

DRY_RUN, ON = ConsolidationMode.DRY_RUN, ConsolidationMode.ON
LOOK_SECONDS = 5.0
NOT_ORDERED = 2000
"""Milli-CPU of a pod that an empty node serves; here all have pods, and no further one may be ordered."""
Scenes = Callable[..., Scene]


@pytest.fixture
def full() -> Iterator[Scenes]:
    """Make worlds of as many nodes as there may be, of which two could go."""
    with ExitStack() as made:

        def make(mode: ConsolidationMode = DRY_RUN, **settings: Any) -> Scene:
            scene = made.enter_context(Scene(group("it", cpu=2000, max_size=4), mode=mode, **settings))
            scene.cluster.workload("web", 4, cpu=500, on=scene.stand("it", 4))
            scene.idle.add("the planner loop")  # what it has left out holds nothing
            scene.begin()
            return scene

        yield make


def held_seconds(scene: Scene, seconds: float) -> float:
    """Let so much time pass; return for how long consolidation was held."""
    held = 0.0
    for _ in range(round(seconds / LOOK_SECONDS)):
        scene.run(LOOK_SECONDS, LOOK_SECONDS)
        held += LOOK_SECONDS * ("pods " in scene.shown["waits_for"])
    return held


def test_pods_that_wait_hold_it_for_a_share_of_time(full: Scenes) -> None:
    scene = full(ON)
    scene.cluster.add(cpu=NOT_ORDERED, namespace="tenant")
    scene.step()
    until = scene.shown["waits_for"].removeprefix("pods wait: 1 (namespace tenant until ")
    assert until.endswith("Z at the latest)")
    (held,) = scene.shown["held_by"]
    assert (held["namespace"], held["pods_waiting"], held["requests"]) == ("tenant", 1, 0)
    assert held["until_seconds"] == held["since_seconds"] + SHARE_SECONDS
    assert timestamp(held["until_seconds"]) in until
    assert held_seconds(scene, SHARE_SECONDS - 20) == SHARE_SECONDS - 20
    assert until in scene.shown["waits_for"], "it does not move"
    assert scene.shown["held_by"] == [held]
    (event,) = scene.events("ConsolidationWaits")
    assert event.text == f"consolidation waits for this pod and others in its namespace until {until.rstrip(')')}"
    assert scene.fleet.snapshot.disruptions == ()
    held_seconds(scene, SHARE_SECONDS)
    assert scene.fleet.snapshot.disruptions


def test_a_pod_that_no_node_could_serve_holds_nothing(full: Scenes) -> None:
    scene = full()
    scene.cluster.add(cpu=NOT_ORDERED + 1, namespace="tenant")
    scene.cluster.add(spec=PodSpec((("cpu", 1),), node_selector=(("no", "where"),)), namespace="tenant")
    assert held_seconds(scene, 200) == 0


def test_a_pod_that_the_latest_round_left_out_holds_nothing(full: Scenes) -> None:
    scene = full()
    scene.cluster.add(cpu=NOT_ORDERED, namespace="tenant")
    assert held_seconds(scene, 20) == 20
    scene.idle.clear()
    scene.run(20, 1)
    assert held_seconds(scene, 20) == 0


def test_a_pod_that_is_made_anew_all_the_time_holds_it_no_longer_than_one_that_stays(full: Scenes) -> None:
    scene, held = full(), 0.0
    uid = scene.cluster.add(cpu=NOT_ORDERED, namespace="tenant")[0]
    for _ in range(4):
        held += held_seconds(scene, SHARE_SECONDS - 20)
        uid = scene.cluster.replace(uid)
    assert held <= SHARE_SECONDS + LOOK_SECONDS


@pytest.mark.parametrize("sizes", [(1, 2), (0, 2)])
def test_a_workload_that_changes_its_size_all_the_time_holds_it_for_its_share(
    full: Scenes, sizes: tuple[int, int]
) -> None:
    scene, held = full(), 0.0
    for turn in range(120):
        scene.cluster.workload("late", sizes[turn % 2], cpu=NOT_ORDERED, creates=False, namespace="tenant")
        held += held_seconds(scene, 2 * LOOK_SECONDS)
    whole = 120 * 2 * LOOK_SECONDS
    assert 0 < held <= SHARE_SECONDS + whole / 4 + LOOK_SECONDS


def test_each_namespace_has_its_own_share_and_gets_it_back(full: Scenes) -> None:
    scene = full()
    scene.cluster.add(cpu=NOT_ORDERED, namespace="tenant")
    held_seconds(scene, 2 * SHARE_SECONDS)
    assert held_seconds(scene, 100) == 0
    (honest,) = scene.cluster.add(cpu=NOT_ORDERED, namespace="honest")
    assert held_seconds(scene, 20) > 0
    assert "namespace honest until" in scene.shown["waits_for"]
    scene.cluster.delete(honest)
    scene.run(4 * 20, LOOK_SECONDS)
    scene.cluster.add(cpu=NOT_ORDERED, namespace="honest")
    assert held_seconds(scene, 2 * SHARE_SECONDS) == pytest.approx(SHARE_SECONDS, abs=2 * LOOK_SECONDS)


def test_a_node_that_must_go_is_replaced_while_pods_wait(full: Scenes) -> None:
    scene = full(ON, interruption_taints=frozenset({"cloud/going"}))
    scene.cluster.add(cpu=NOT_ORDERED, namespace="tenant")
    scene.run(30, 5)
    assert scene.fleet.snapshot.disruptions == ()
    going = next(iter(scene.cluster.nodes()))
    scene.change_node(going, spec={"taints": [{"key": "cloud/going", "effect": "NoSchedule"}]})
    scene.until(lambda: scene.fleet.snapshot.disruptions)
    assert ([each.name for each in scene.last().nodes], scene.last().reason) == ([going], "Interrupted")
    scene.until(lambda: going not in scene.cluster.nodes())


def test_requests_that_need_room_hold_it_too(full: Scenes) -> None:
    scene = full()
    served, too_large = PodSpec((("cpu", NOT_ORDERED),)), PodSpec((("cpu", NOT_ORDERED + 1),))
    asked: dict[str, list[tuple[PodSpec, ...]]] = {
        "other": [(served,), (served, too_large), (served, served)],
        "none": [(too_large,)],
    }
    found = needs(scene.view.state(), scene.fleet.snapshot, asked)
    text = "ProvisioningRequests need room: 2 (namespace other until 1970-01-01T00:01:00Z at the latest)"
    assert in_words(Holds().holding(found, 0.0)) == (text,)


@pytest.mark.parametrize("known", [True, False])
def test_an_increment_holds_it_for_the_share_of_whom_it_is_for_and_is_left_alone(known: bool) -> None:
    groups = group("it", cpu=2000, max_size=4), group("slow", cpu=9000, max_size=1)
    with Scene(*groups, mode=ON) as scene:
        scene.cluster.workload("web", 4, cpu=500, on=scene.stand("it", 4))
        scene.idle.add("the planner loop")
        scene.backend.set_behaviours({"slow": Behaviour(boot_seconds=400.0)})
        pods = scene.cluster.add(cpu=9000, namespace="tenant") if known else []
        scene.step()
        coming = scene.fleet.apply(IncrementSpec({"slow": 1}, pods=frozenset(pods)))
        scene.begin()
        scene.step()
        whose = "tenant" if known else "not known"
        assert f"increments are in flight: 1 (namespace {whose} until" in scene.shown["waits_for"]
        (held,) = scene.shown["held_by"]
        assert (held["namespace"], held["increments"]) == ("tenant" if known else "", 1)
        scene.run(SHARE_SECONDS - LOOK_SECONDS, LOOK_SECONDS)
        assert scene.fleet.snapshot.disruptions == ()
        scene.run(200, LOOK_SECONDS)
        assert len(scene.fleet.snapshot.disruptions) == 1
        assert scene.ended() is DisruptionPhase.DONE
        assert coming.id in {each.id for each in scene.increments() if each.phase.in_flight}
        assert scene.targets() == {"it": 1, "slow": 1}
        scene.run(300, LOOK_SECONDS)
        assert coming.id in {each.id for each in scene.increments(Phase.DONE)}


def test_room_on_nodes_that_stand_is_left_to_the_gang_that_it_is_planned_for() -> None:
    with Scene(group("it", cpu=2000, max_size=3), group("slow", cpu=4000, max_size=1), mode=ON) as scene:
        scene.cluster.workload("web", 3, cpu=500, on=scene.stand("it", 3))
        scene.backend.set_behaviours({"slow": Behaviour(boot_seconds=400.0)})
        gang = [*scene.cluster.add(2, cpu=1500, gang="g"), *scene.cluster.add(cpu=4000, gang="g")]
        scene.run(10)
        scene.begin()
        scene.run(4 * SHARE_SECONDS, LOOK_SECONDS)
        assert "in flight" not in scene.shown["waits_for"]
        assert scene.fleet.snapshot.disruptions == ()
        assert "pods that wait are planned for it" in scene.stays().values()
        scene.run(200, LOOK_SECONDS)
        assert not set(gang) & set(scene.cluster.pending())
