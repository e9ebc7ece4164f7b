"""The placement controller: nominations are set, made again, handed over and taken back, whatever happens."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.controllers.placement.controller import CHECK_SECONDS, LEFT_SECONDS
from cagrpc.controllers.placement.nominations import FORBIDDEN_SECONDS, REST_SECONDS, SEEN_SECONDS
from cagrpc.fleet.model import IncrementSpec, Phase, Placement
from cagrpc.runtime.progress import DEADLINE_SECONDS
from tests.support.api_server import ApiServer, Refusal, api_server
from tests.support.controllers.placement import FREE, HELD, Scene

POD = "/api/v1/namespaces/default/pods"


@pytest.fixture
def scene() -> Iterator[Scene]:
    with api_server() as cluster:
        yield Scene(cluster)


def test_all_pods_are_nominated_before_the_first_node_is_released(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    planned = scene.planned()
    assert len(planned) == 9
    scene.run()
    assert scene.nominated() == planned
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE
    kinds = ["pod" if "/pods/" in request else "node" for request in scene.cluster.requests]
    assert kinds == ["pod"] * 9 + ["node"] * 3
    assert "3 nodes released" in caplog.text


def spread(scene: Scene, key: str) -> None:
    """Give all pods a spread over the key with which two of them at most may be more in a domain than in another."""
    constraint = {
        "maxSkew": 2, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }  # fmt: skip
    for name in scene.planned():
        scene.cluster.change(
            f"{POD}/{name}", metadata={"labels": {"app": "x"}}, spec={"topologySpreadConstraints": [constraint]}
        )


def test_pods_that_a_spread_would_keep_out_of_each_others_node_while_nominated_take_turns(scene: Scene) -> None:
    planned = scene.planned()
    spread(scene, "kubernetes.io/hostname")
    scene.run()
    assert Counter(scene.nominated().values()) == dict.fromkeys(planned.values(), 2)
    assert scene.phase() is Phase.DONE, "nodes are not held for those whose turn is to come"
    for name, node in scene.nominated().items():
        scene.bind(name, node)
    scene.later()
    assert len(scene.nominated()) == 3
    assert scene.nominated().items() <= planned.items()


@pytest.mark.parametrize(("zones", "nominated_per_node"), [("a a a", 3), ("a a b", 2)])
def test_a_spread_over_the_only_zone_lets_all_pods_be_nominated_at_once(
    scene: Scene, zones: str, nominated_per_node: int
) -> None:
    planned = scene.planned()
    spread(scene, "topology.kubernetes.io/zone")
    for name, zone in zip(sorted(set(planned.values())), zones.split(), strict=True):
        scene.cluster.change(f"/api/v1/nodes/{name}", metadata={"labels": {"topology.kubernetes.io/zone": zone}})
    scene.run()
    assert Counter(scene.nominated().values()) == dict.fromkeys(planned.values(), nominated_per_node)


def test_nobody_is_nominated_before_the_increment_is_whole(scene: Scene) -> None:
    scene.run()
    scene.pod("late")
    asked = IncrementSpec({"a": 2}, pods=frozenset({"uid-late"}), placements=(Placement("a", ("uid-late",)),))
    later = scene.fleet.apply(asked)
    scene.fleet.reconcile()
    first, _ = (i for i in scene.outside.backend.ids("a") if i.removeprefix("scripted://") not in scene.nodes())
    scene.outside.backend.boot(first)
    name = scene.register(first)
    scene.fleet.reconcile()
    scene.run()
    assert scene.fleet.increment(later.id).phase is Phase.CREATING
    assert "late" not in scene.nominated()
    assert scene.cluster.taints(name) == list(HELD)


def test_a_nomination_that_was_cleared_is_made_again(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    scene.nominate("pod-4", "")
    scene.run(1)
    assert scene.nominated() == planned


def test_the_schedulers_own_nomination_is_never_overwritten(scene: Scene) -> None:
    planned = scene.planned()
    scene.nominate("pod-0", "elsewhere")
    scene.run()
    assert scene.nominated() == {**planned, "pod-0": "elsewhere"}
    assert scene.phase() is Phase.DONE  # and its node is not held for it
    scene.nominate("pod-5", "elsewhere")
    scene.later()
    assert scene.nominated()["pod-5"] == "elsewhere"


def test_what_the_scheduler_nominates_meanwhile_is_never_overwritten(scene: Scene) -> None:
    def meanwhile(request: str) -> None:
        if request == f"PATCH {POD}/pod-0/status":
            scene.nominate("pod-0", "elsewhere")

    scene.cluster.before = meanwhile
    scene.run()
    assert scene.nominated()["pod-0"] == "elsewhere"


def test_another_pod_of_the_same_name_is_not_nominated(scene: Scene) -> None:
    def meanwhile(request: str) -> None:
        if request == f"PATCH {POD}/pod-0/status":
            scene.cluster.change(f"{POD}/pod-0", metadata={"uid": "of another"})

    scene.lags = True  # the view has not heard of it yet
    scene.cluster.before = meanwhile
    scene.run()
    assert "pod-0" not in scene.nominated()


def test_after_a_restart_nominations_stay_as_they_are(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    scene.restart()
    scene.cluster.requests.clear()
    scene.run()
    scene.later(CHECK_SECONDS)
    assert scene.nominated() == planned
    assert scene.cluster.requests == []


def test_a_nomination_whose_node_cannot_take_the_pod_any_more_is_taken_back_within_two_seconds(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    lost = planned["pod-0"]
    scene.cluster.change(f"/api/v1/nodes/{lost}", status={"conditions": [{"type": "Ready", "status": "False"}]})
    scene.later(CHECK_SECONDS)
    assert lost not in scene.nominated().values()
    assert scene.assumed.placements.lost_count >= 1


def test_a_pod_whose_room_was_taken_gets_the_place_that_the_taker_has_left(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    one, other = planned["pod-0"], planned["pod-8"]
    assert one != other
    for name in ("pod-1", "pod-2"):
        scene.bind(name, one)
    scene.pod("foreign", 1000, node=one)  # leaves room for pod-0 alone
    scene.bind("pod-8", one)
    scene.run(1)
    assert scene.nominated()["pod-0"] == other
    assert scene.assumed.placements.lost_count == 0


def test_pods_of_nodes_that_are_held_move_where_that_helps_and_nothing_is_opened(scene: Scene) -> None:
    """Somebody has taken so much of the room of a large pod that what is left is enough for small ones only."""
    left, right, third = scene.nodes()
    for number in range(9):
        scene.cluster.remove(f"{POD}/pod-{number}")
    scene.pod("fills", 4000, node=third)
    scene.pod("large", 3000)
    small = [scene.pod(f"small-{number}") for number in range(3)]
    scene.assumed.placements.assume({"uid-large": left, **{f"uid-{name}": right for name in small}})
    scene.place()
    assert scene.nominated() == {"large": left, **dict.fromkeys(small, right)}
    scene.pod("thief", 2000, node=left)
    scene.clock.advance(CHECK_SECONDS)
    scene.place()
    found = scene.nominated()
    assert found["large"] == right
    assert sorted(found[name] for name in small) == [left, left, right]
    assert scene.assumed.placements.lost_count == 0


@pytest.mark.parametrize("kept", ["", "spread", "nominated by the scheduler"])
def test_pods_of_open_nodes_move_too_unless_others_decide_where_they_are(scene: Scene, kept: str) -> None:
    scene.run()
    left, right, third = scene.nodes()
    for number in range(9):
        scene.cluster.remove(f"{POD}/pod-{number}")
    scene.pod("fills", 4000, node=third)
    scene.pod("large", 3000)
    spread = {"maxSkew": 5, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    more: Any = {"topologySpreadConstraints": [spread]} if kept == "spread" else {}
    small = [scene.pod(f"small-{number}", **more) for number in range(3)]
    scene.assumed.placements.assume({"uid-large": left, **{f"uid-{name}": right for name in small}})
    scene.place()
    assert scene.nominated() == {"large": left, **dict.fromkeys(small, right)}
    if kept == "nominated by the scheduler":
        for name in small:
            scene.nominate(name, right)
    scene.pod("thief", 2000, node=left)
    scene.clock.advance(CHECK_SECONDS)
    scene.place()
    found = scene.nominated()
    assert found.get("large") == (None if kept else right)
    assert scene.assumed.placements.lost_count == (1 if kept else 0)
    assert sorted(found[name] for name in small) == ([right] * 3 if kept else [left, left, right])


def test_a_pod_without_any_place_is_news_and_keeps_no_nomination(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    for node in set(planned.values()):
        scene.pod(f"fills-{node}", 4000, node=node)
    scene.later(CHECK_SECONDS)
    assert scene.nominated() == {}
    assert scene.assumed.placements.lost_count == 9
    scene.later(LEFT_SECONDS)
    assert scene.assumed.placements.lost_count == 9  # once


def test_a_pod_that_is_planned_elsewhere_is_nominated_there(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    elsewhere = planned["pod-8"]
    scene.assumed.placements.assume({"uid-pod-0": elsewhere})
    scene.run(1)
    assert scene.nominated()["pod-0"] == elsewhere


def test_a_pod_that_the_scheduler_does_not_take_for_other_reasons_gives_up_its_place(scene: Scene) -> None:
    scene.run()
    for _ in range(2):
        scene.later(SEEN_SECONDS)
        scene.nominate("pod-0", "")  # it was tried, and failed
        scene.run(1)
    assert "pod-0" not in scene.nominated()
    assert scene.assumed.placements.lost_count == 1
    scene.later(SEEN_SECONDS)
    assert "pod-0" not in scene.nominated()
    scene.assumed.placements.assume({"uid-pod-0": scene.nominated()["pod-1"]})  # it is planned there again
    scene.run()
    assert "pod-0" not in scene.nominated()
    scene.later(REST_SECONDS)
    assert "pod-0" in scene.nominated()


def test_while_the_scheduler_stands_still_nobody_gives_up(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    scene.later(10 * DEADLINE_SECONDS)
    assert scene.nominated() == planned
    scene.bind("pod-1", planned["pod-1"])  # it works, and comes to the others
    scene.run()
    scene.later(0.9 * DEADLINE_SECONDS)
    assert scene.nominated() == {name: node for name, node in planned.items() if name != "pod-1"}
    scene.later(0.2 * DEADLINE_SECONDS)  # it has come to nobody: they wait for nothing that is known
    assert scene.nominated() == {}


def test_however_slow_the_scheduler_is_each_pod_keeps_its_place_until_its_turn(scene: Scene) -> None:
    planned = scene.planned()
    scene.run()
    for name, node in planned.items():
        scene.later(0.9 * DEADLINE_SECONDS)
        assert scene.nominated()[name] == node
        scene.bind(name, node)
        scene.sync()
    scene.run()
    assert scene.assumed.placements.lost_count == 0


def test_without_the_right_everything_else_is_done_and_it_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(request: str) -> None:
        if "/pods/" in request:
            raise Refusal(403, "no")

    scene.cluster.before = forbidden
    scene.run()
    assert scene.phase() is Phase.DONE
    assert scene.taints() == {FREE}
    assert "the right to patch pods/status is missing" in scene.placement.status()["placement"]["problem"]
    scene.later(FORBIDDEN_SECONDS)
    assert sum("they cannot be nominated" in record.message for record in caplog.records) == 1
    scene.cluster.before = lambda request: None
    scene.later(FORBIDDEN_SECONDS)
    assert len(scene.nominated()) == 9
    assert "problem" not in scene.placement.status()["placement"]


def test_nodes_that_others_still_keep_pods_off_are_not_released(scene: Scene) -> None:
    name = scene.planned()["pod-0"]
    scene.cluster.taint(name, {"key": "network", "effect": "NoSchedule"})
    scene.run()
    assert scene.cluster.taints(name) == [*HELD, "network"]
    assert scene.phase() is Phase.READY
    node = scene.cluster.node(name)
    rest = [taint for taint in node["spec"]["taints"] if taint["key"] != "network"]
    scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": rest})
    scene.later(CHECK_SECONDS)
    assert scene.phase() is Phase.DONE


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_whichever_request_fails_no_node_is_released_before_its_pods_are_nominated(lost: bool, killed: bool) -> None:
    for failing in range(12):
        with api_server() as cluster:
            _fails_at(cluster, failing, lost=lost, killed=killed)


def _fails_at(cluster: ApiServer, failing: int, *, lost: bool, killed: bool) -> None:
    scene = Scene(cluster)
    planned = scene.planned()
    seen = 0

    def fail(request: str) -> None:
        nonlocal seen
        seen += 1
        if "/nodes/" in request:
            assert scene.nominated() == planned, request
        if seen - 1 == failing:
            raise Refusal(503, "away", lost=lost)

    cluster.before = fail
    scene.run()
    if killed:
        scene.restart()
    scene.later()
    assert scene.nominated() == planned
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE
