"""Release of ready increments: start-up taints are removed, then the fleet is notified, whatever fails in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.markers import booking_label
from cagrpc.controllers.assume_cache.bookings import AssumedRequests
from cagrpc.controllers.placement.release import APART_SECONDS
from cagrpc.errors import CagrpcError, Unavailable
from cagrpc.fleet.disruptions import DisruptionSpec
from cagrpc.fleet.model import DisruptedNode, DisruptionPhase, IncrementSpec, Phase, Placement
from cagrpc.runtime.progress import DEADLINE_SECONDS
from tests.support.api_server import Refusal, RefusedOnce, api_server
from tests.support.controllers.placement import FREE, HELD, OTHER_TAINT, Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    with api_server() as cluster:
        yield Scene(cluster)


def test_an_increment_that_is_not_whole_yet_is_left_alone(scene: Scene) -> None:
    scene.run()
    later = scene.fleet.apply(IncrementSpec({"a": 2}))
    scene.fleet.reconcile()
    first, second = (i for i in scene.outside.backend.ids("a") if i.removeprefix("scripted://") not in scene.nodes())
    scene.outside.backend.boot(first)
    name = scene.register(first)
    scene.fleet.reconcile()
    scene.run()
    assert scene.cluster.taints(name) == list(HELD)
    scene.outside.backend.fail(second)
    scene.fleet.reconcile()
    assert scene.fleet.increment(later.id).phase is Phase.ROLLING_BACK
    scene.run()
    scene.outside.backend.finish_deletes()
    scene.fleet.reconcile()
    assert scene.fleet.increment(later.id).phase is Phase.ROLLED_BACK
    scene.run()  # its Node may be there a moment longer
    assert scene.cluster.taints(name) == list(HELD)


def _faults(requests: int) -> list[tuple[int, bool, bool]]:
    return [(number, lost, killed) for number in range(requests) for lost in (False, True) for killed in (False, True)]


def test_nodes_are_released_last_whose_pods_the_scheduler_tries_first(scene: Scene) -> None:
    released: list[str] = []

    def note(request: str) -> None:
        if request.startswith("PATCH /api/v1/nodes/"):
            released.append(request.rpartition("/")[2])

    scene.place()
    planned = scene.planned()
    tried = [scene.nodes()[index] for index in (1, 2, 0)]
    for node in tried:  # what was tried last is at the end of its queue
        scene.clock.advance(1)
        for pod, of in planned.items():
            if of == node:
                scene.nominate(pod, "")
        scene.place()
    scene.cluster.before = note
    scene.run()
    assert released == tried[::-1]


def test_where_others_want_their_room_nodes_are_released_one_after_the_other(scene: Scene) -> None:
    scene.pod("rival")
    scene.place()
    held = []
    for _ in range(4):
        scene.let_go()
        scene.let_go()
        held.append(sum(START_UP_TAINT in scene.cluster.taints(name) for name in scene.nodes()))
        scene.clock.advance(APART_SECONDS)
    assert held == [2, 1, 0, 0]


def test_another_writer_of_taints_loses_nothing(scene: Scene) -> None:
    written: list[str] = []

    def interfere(request: str) -> None:
        if request.startswith("PATCH /api/v1/nodes/") and len(written) < 2:
            name = request.rpartition("/")[2]
            written.append(name)
            taints = [
                {"key": f"mine-{len(written)}", "effect": "NoExecute"},
                *scene.cluster.node(name)["spec"]["taints"],
            ]
            scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": taints})

    scene.cluster.before = interfere
    scene.run()
    assert scene.phase() is Phase.DONE
    assert {key for taints in scene.taints() for key in taints} == {"nvidia.com/gpu", "mine-1", "mine-2"}


def test_a_node_that_others_write_all_the_time_is_tried_again(scene: Scene) -> None:
    name = scene.nodes()[0]

    def interfere(request: str) -> None:
        if request == f"PATCH /api/v1/nodes/{name}":
            taints = [
                {"key": str(len(scene.cluster.requests)), "effect": "NoExecute"},
                *scene.cluster.node(name)["spec"]["taints"],
            ]
            scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": taints})

    scene.cluster.before = interfere
    scene.run()
    assert f"node {name}: taint {START_UP_TAINT} cannot be changed" in (scene.release.queue.problem or "")
    assert scene.phase() is Phase.READY
    scene.cluster.before = lambda request: None
    scene.later()
    assert scene.phase() is Phase.DONE
    assert not any(START_UP_TAINT in taints for taints in scene.taints())


def test_a_node_that_is_deleted_meanwhile_is_let_go_of(scene: Scene) -> None:
    name = scene.nodes()[0]

    def vanish(request: str) -> None:
        if request == f"PATCH /api/v1/nodes/{name}" and name in scene.nodes():
            scene.cluster.remove(f"/api/v1/nodes/{name}")

    scene.cluster.before = vanish
    scene.run()
    assert scene.phase() is Phase.DONE
    assert scene.taints() == {FREE}
    assert len(scene.nodes()) == 2


def test_with_the_cluster_out_of_reach_the_increment_stays_held(scene: Scene) -> None:
    def away(request: str) -> None:
        raise Refusal(503, "away")

    planned = scene.planned()
    scene.cluster.before = away
    for _ in range(5):
        scene.later()
        assert scene.phase() is Phase.READY
        assert scene.taints() == {HELD}
    scene.cluster.before = lambda request: None
    scene.later()
    assert scene.nominated() == planned
    assert scene.phase() is Phase.DONE


def test_nothing_is_done_before_the_cluster_is_known(scene: Scene) -> None:
    scene.view.unknown = True
    scene.run()
    with pytest.raises(Unavailable, match="still to come"):
        scene.release.step()
    assert scene.cluster.requests == []
    assert scene.phase() is Phase.READY


def test_with_an_unreachable_journal_the_fleet_hears_of_the_release_later(scene: Scene) -> None:
    scene.journal.broken = True
    scene.run()
    with pytest.raises(CagrpcError):
        scene.release.step()
    assert scene.taints() == {FREE}
    scene.cluster.requests.clear()
    scene.journal.broken = False
    scene.run()
    assert scene.phase() is Phase.DONE
    assert scene.cluster.requests == []


def test_a_view_that_lags_behind_is_not_asked_again_and_again(scene: Scene) -> None:
    scene.place()
    scene.lags = True
    scene.run()
    scene.cluster.requests.clear()
    scene.run()
    assert scene.cluster.requests == []
    scene.later(30)  # but what stays held for so long is looked at
    assert len([request for request in scene.cluster.requests if "/nodes/" in request]) >= 3


def test_pods_that_cannot_be_nominated_do_not_hold_a_node_for_ever(scene: Scene) -> None:
    def refused(request: str) -> None:
        if request.endswith("/pods/pod-0/status"):
            raise Refusal(422, "a policy says no")

    scene.cluster.before = refused
    scene.run()
    assert scene.phase() is Phase.READY
    scene.later(DEADLINE_SECONDS)
    assert scene.phase() is Phase.DONE


def test_a_node_that_no_increment_holds_is_released(scene: Scene) -> None:
    scene.run()
    backend = scene.outside.backend
    known = backend.add("a", token="of-before")
    backend.boot(known)
    unheard_of = "scripted://nobody-knows-0001"
    for instance_id in (known, unheard_of):
        scene.register(instance_id)
    scene.fleet.reconcile()
    scene.run()
    assert scene.cluster.taints(known.removeprefix("scripted://")) == list(FREE)
    assert scene.cluster.taints(unheard_of.removeprefix("scripted://")) == list(HELD)


@pytest.mark.parametrize("code", [422, 503])
def test_one_increment_in_trouble_does_not_hold_the_others(scene: Scene, code: int) -> None:
    troubled = scene.nodes()[0]
    later = scene.apply(IncrementSpec({"b": 1}))

    def refused(request: str) -> None:
        if request.endswith(f"/nodes/{troubled}") and not request.startswith("GET"):
            raise Refusal(code, "this one is not to be written")

    scene.cluster.before = refused
    scene.run()
    scene.later(DEADLINE_SECONDS)  # the later one is for nobody, and waits for those that are for pods
    assert "this one is not to be written" in (scene.release.queue.problem or "")
    assert scene.fleet.increment(later).phase is Phase.DONE
    assert scene.phase() is Phase.READY


# Nodes for ProvisioningRequests.

FOR_REQUESTS = IncrementSpec(
    {"a": 2, "b": 1},
    requests=frozenset({"u1", "u2"}),
    placements=(
        Placement("a", requests=("u1",)),
        Placement("a", requests=("u1", "u2")),
        Placement("b", requests=("u2",)),
    ),
)


def _labels(scene: Scene) -> dict[str, set[str]]:
    """Booking labels by node."""
    labels = {name: scene.cluster.node(name)["metadata"].get("labels", {}) for name in scene.nodes()}
    return {name: {key for key, value in of.items() if value == "true"} for name, of in labels.items() if of}


def _requested(scene: Scene) -> tuple[str, dict[str, set[str]]]:
    """An increment for requests that is ready, beside nodes that are let go; its id, and who its nodes are for."""
    scene.run()
    key = scene.apply(FOR_REQUESTS)
    of = {node.instance_id.removeprefix("scripted://"): node.requests for node in scene.fleet.increment(key).held}
    return key, {name: set(map(booking_label, uids)) for name, uids in of.items()}


def test_nodes_for_requests_get_their_labels_in_the_write_that_lets_them_go(scene: Scene) -> None:
    key, wanted = _requested(scene)
    scene.cluster.requests.clear()

    def neither_held_nor_booked(request: str) -> None:
        for name, labels in wanted.items():
            assert (START_UP_TAINT in scene.cluster.taints(name)) != (_labels(scene).get(name) == labels), request

    scene.cluster.before = neither_held_nor_booked
    scene.run()
    assert sorted(map(len, wanted.values())) == [1, 1, 2]
    assert _labels(scene) == wanted
    assert scene.taints() == {FREE}
    assert scene.fleet.increment(key).phase is Phase.DONE
    assert [request.split()[0] for request in scene.cluster.requests].count("PATCH") == 3


def test_whichever_request_fails_a_node_for_requests_is_held_or_labelled() -> None:
    for failing, lost, killed in _faults(6):
        with api_server() as cluster:
            scene = Scene(cluster)
            key, wanted = _requested(scene)
            cluster.before = RefusedOnce(failing, lost=lost)
            scene.run()
            for name, labels in wanted.items():
                assert (START_UP_TAINT in cluster.taints(name)) != (_labels(scene).get(name) == labels)
            if killed:
                scene.restart()
            scene.later()
            assert _labels(scene) == wanted
            assert scene.taints() == {FREE}
            assert scene.fleet.increment(key).phase is Phase.DONE


def test_labels_of_others_stay(scene: Scene) -> None:
    _, wanted = _requested(scene)
    first = next(iter(wanted))
    scene.cluster.change(f"/api/v1/nodes/{first}", metadata={"labels": {"mine": "true"}})
    scene.run()
    assert _labels(scene) == {**wanted, first: {*wanted[first], "mine"}}


def test_nodes_that_never_had_the_taint_are_labelled_before_the_fleet_is_notified(scene: Scene) -> None:
    key, wanted = _requested(scene)
    for name in wanted:
        scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": [OTHER_TAINT]})
    scene.journal.broken = True
    scene.run()
    assert _labels(scene) == wanted
    assert scene.taints() == {FREE}
    scene.cluster.requests.clear()
    scene.run()  # it is not asked again and again
    assert scene.cluster.requests == []
    scene.journal.broken = False
    scene.run()
    assert scene.fleet.increment(key).phase is Phase.DONE


def test_a_request_is_no_pod_to_nominate(scene: Scene) -> None:
    scene.run()
    nominated = scene.nominated()
    scene.pod("consumer")
    key = scene.apply(FOR_REQUESTS)
    scene.cluster.requests.clear()
    scene.run()
    assert scene.nominated() == nominated
    assert not any("/pods/" in request for request in scene.cluster.requests)
    assert scene.fleet.increment(key).phase is Phase.DONE


def test_an_increment_that_is_taken_back_while_it_is_let_go_is_no_trouble(scene: Scene) -> None:
    key, wanted = _requested(scene)

    def deleted(request: str) -> None:
        if request.startswith("PATCH"):
            scene.fleet.withdraw(key, "its request was deleted")

    scene.cluster.before = deleted
    scene.run()
    assert scene.fleet.increment(key).phase is Phase.ROLLING_BACK
    scene.fleet.reconcile()
    assert {i.removeprefix("scripted://") for i in scene.outside.backend.executed_deletes} == wanted.keys()
    scene.run()
    assert scene.fleet.increment(key).message == "its request was deleted"


def test_nodes_for_requests_stay_held_until_it_is_known_who_still_asks(scene: Scene) -> None:
    scene.run()
    scene.assumed.requests = AssumedRequests(unknown="starting")
    increment, _ = _requested(scene)
    assert scene.phase() is Phase.DONE  # the one that is for pods
    scene.run()
    assert scene.fleet.increment(increment).phase is Phase.READY
    assert scene.fleet.snapshot.held_instances
    scene.assumed.requests = AssumedRequests()
    scene.run()
    assert scene.fleet.increment(increment).phase is Phase.DONE


def test_new_nodes_of_a_disruption_are_released_once_it_moves_pods(scene: Scene) -> None:
    scene.run()
    old = scene.outside.backend.ids("a")[0]
    name = old.removeprefix("scripted://")
    asked = DisruptionSpec("Underutilized", (DisruptedNode(name, old, "a"),), (), IncrementSpec({"a": 1}))
    under_way = scene.fleet.disruptions.begin(asked)
    scene.fleet.reconcile()
    new = next(each for each in scene.outside.backend.ids("a") if each.removeprefix("scripted://") not in scene.nodes())
    scene.outside.backend.boot(new)
    coming = scene.register(new)
    scene.fleet.reconcile()
    assert scene.fleet.increment(under_way.increment_id).phase is Phase.READY
    scene.run()
    scene.clock.advance(DEADLINE_SECONDS + 1)
    scene.run()
    assert START_UP_TAINT in scene.cluster.taints(coming)
    assert scene.release.unreleased() == 0
    new_node = DisruptedNode(coming, new, "a")
    under_way = replace(under_way, phase=DisruptionPhase.MOVING, new_nodes=(new_node,))
    scene.fleet.disruptions.change(under_way)
    scene.run()
    assert START_UP_TAINT in scene.cluster.taints(coming)
    assert scene.release.unreleased() == 0
    scene.assumed.displaced.open(under_way, frozenset({coming}))
    assert scene.release.unreleased() == 1
    scene.run()
    scene.run()
    assert START_UP_TAINT not in scene.cluster.taints(coming)
    assert scene.fleet.increment(under_way.increment_id).phase is Phase.DONE


def test_nodes_that_are_to_be_released_are_counted(scene: Scene) -> None:
    assert scene.release.unreleased() == 3
    scene.view.unknown = True
    assert scene.release.unreleased() == 3
    scene.view.unknown = False
    (name, *_) = scene.nodes()
    scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": []})
    scene.sync()
    assert scene.release.unreleased() == 2
    scene.run()
    assert scene.phase() is Phase.DONE
    assert scene.release.unreleased() == 0
    scene.cluster.change(f"/api/v1/nodes/{name}", spec={"taints": [{"key": START_UP_TAINT, "effect": "NoSchedule"}]})
    scene.sync()
    assert scene.release.unreleased() == 1  # held by nobody
    (metric,) = scene.release.collectors()
    assert [(each.name, each.samples[0].value) for each in metric.collect()] == [("cagrpc_unreleased_nodes", 1)]


def test_nodes_that_come_without_the_taint_are_said_once_and_released(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.run()
    for _ in range(2):
        asked = scene.fleet.apply(IncrementSpec({"b": 1})).id
        scene.fleet.reconcile()
        (new,) = (i for i in scene.outside.backend.ids("b") if i.removeprefix("scripted://") not in scene.nodes())
        scene.outside.backend.boot(new)
        path = f"/api/v1/nodes/{scene.register(new)}"
        scene.cluster.change(path, spec={"providerID": new, "taints": [OTHER_TAINT]})
        scene.fleet.reconcile()
        scene.run()
        assert scene.fleet.increment(asked).phase is Phase.DONE
    assert caplog.text.count("node group b: its nodes register without the taint") == 1
