"""Ready increments: pods are bound, then taints are lifted, then the fleet is told; whatever fails on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

import pytest

from cagrpc.controllers.requests.model import booking_label
from cagrpc.controllers.settings import START_UP_TAINT, Realise
from cagrpc.controllers.startup import StartUp
from cagrpc.controllers.state import PodRef
from cagrpc.controllers.waves import SETTLED_SECONDS
from cagrpc.errors import CagrpcError, Conflict, InvalidInput, Unavailable
from cagrpc.fleet.model import Increment, Phase, Placement, request_key, requests_among
from tests.controllers.fake_cluster import FakeCluster, Refusal, fake_cluster
from tests.fleet.support import MemoryJournal, ScriptedNodes, World, group

_OTHER_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


class View:
    """What a view would know that sees everything at once; `unbindable` are names of pods."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.unbindable: set[str] = set()
        self.unknown = False
        self.stands_still: Mapping[str, str] | None = None

    def held_nodes(self) -> Mapping[str, str]:
        if self.unknown:
            raise Unavailable("the list of nodes is still to come")
        if self.stands_still is not None:
            return self.stands_still
        return {key: name for key, name in self.node_names().items() if START_UP_TAINT in self.cluster.taints(name)}

    def node_names(self) -> Mapping[str, str]:
        nodes = [document for path, document in self.cluster.objects.items() if "/nodes/" in path]
        return {node["spec"]["providerID"]: node["metadata"]["name"] for node in nodes}

    def pod_of(self, uid: str) -> PodRef | None:
        for path, pod in self.cluster.objects.items():
            metadata = pod["metadata"]
            if "/pods/" in path and metadata["uid"] == uid and not pod["spec"].get("nodeName"):
                name = metadata["name"]
                return PodRef(uid, metadata["namespace"], name, bindable=name not in self.unbindable)
        return None

    def news_of(self, uid: str) -> int | None:
        return None if self.pod_of(uid) is None else 0


class Scene:
    """An increment of two nodes of group a and one of b, three pods planned for each, all of it ready."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.ready = ScriptedNodes()
        self.view = View(cluster)
        self.journal = MemoryJournal()
        self.outside = World([group("a"), group("b")], journal=self.journal, options={"nodes": self.ready})
        self.fleet = self.outside.fleet()
        pods = [f"pod-{number}" for number in range(9)]
        for name in pods:
            cluster.pod(name)
        placements = tuple(
            Placement(of, tuple(f"uid-{name}" for name in pods[3 * index : 3 * index + 3]))
            for index, of in enumerate("aab")
        )
        self.increment = self.apply(Increment({"a": 2, "b": 1}, placements=placements))
        self.cluster.requests.clear()
        self.restart()

    def apply(self, increment: Increment) -> str:
        """Until it is ready."""
        applied = self.fleet.apply(increment)
        self.fleet.reconcile()
        self.outside.backend.boot_all()
        for instance_id in self.outside.backend.ids():
            self.register(instance_id)
        self.fleet.reconcile()
        assert self.fleet.increment(applied.id).phase is Phase.READY
        return applied.id

    def register(self, instance_id: str) -> str:
        """The Node of an instance, ready and held; its name."""
        name = instance_id.removeprefix("scripted://")
        self.ready.ready.add(instance_id)
        if f"/api/v1/nodes/{name}" not in self.cluster.objects:
            taints = [_OTHER_TAINT, {"key": START_UP_TAINT, "effect": "NoSchedule"}]
            self.cluster.write(f"/api/v1/nodes/{name}", {"spec": {"providerID": instance_id, "taints": taints}})
        return name

    def restart(self, realise: Realise = Realise.BIND, requests_known: Callable[[], bool] = lambda: True) -> None:
        """A new process; the old one may have ended anywhere."""
        clock = self.outside.clock
        self.startup = StartUp(
            self.cluster.client(), self.fleet, self.view, realise=realise, requests_known=requests_known, clock=clock
        )

    def phase(self) -> Phase:
        return self.fleet.increment(self.increment).phase

    def nodes(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.cluster.objects if "/nodes/" in path]

    def bound(self) -> dict[str, str]:
        pods = {path.rpartition("/")[2]: pod["spec"] for path, pod in self.cluster.objects.items() if "/pods/" in path}
        return {name: spec["nodeName"] for name, spec in pods.items() if spec.get("nodeName")}

    def planned(self) -> dict[str, str]:
        held = self.fleet.increment(self.increment).held
        return {
            uid.removeprefix("uid-"): node.instance_id.removeprefix("scripted://") for node in held for uid in node.pods
        }

    def taints(self) -> set[tuple[str, ...]]:
        return {tuple(self.cluster.taints(name)) for name in self.nodes()}


HELD = ("nvidia.com/gpu", START_UP_TAINT)
FREE = ("nvidia.com/gpu",)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with fake_cluster() as cluster:
        yield Scene(cluster)


def test_with_simulation_the_nodes_are_let_go_and_pods_are_the_schedulers(scene: Scene) -> None:
    scene.restart(Realise.SIMULATE)
    scene.startup.step()
    assert scene.taints() == {FREE}
    assert scene.bound() == {}
    assert scene.phase() is Phase.DONE
    assert scene.fleet.snapshot.held_instances == frozenset()


def test_a_reserve_is_let_go_as_far_as_it_is_needed_and_the_rest_given_back(scene: Scene) -> None:
    def reserve() -> str:
        return scene.apply(Increment({"b": 1}, plan="p", reserve=True))

    first, used, spare = scene.apply(Increment({"a": 1}, pods=frozenset({"uid-pod-0"}), plan="p")), reserve(), reserve()
    answers = iter([{"b": 1}, {}])
    clock = scene.outside.clock
    scene.startup = StartUp(
        scene.cluster.client(), scene.fleet, scene.view, needed=lambda *_: next(answers), clock=clock
    )
    for _ in range(5):
        scene.startup.step()
        clock.advance(SETTLED_SECONDS)
    assert [scene.fleet.increment(each).phase for each in (first, used)] == [Phase.DONE] * 2
    assert scene.fleet.increment(spare).phase is Phase.ROLLING_BACK
    assert next(answers, None) is None
    scene.fleet.reconcile()
    assert scene.fleet.snapshot.groups["b"].target_size == 2


def test_pods_are_bound_as_planned_before_any_node_is_let_go(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    planned = scene.planned()
    assert len(planned) == 9
    scene.startup.step()
    assert scene.bound() == planned
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE
    kinds = ["bind" if request.endswith("/binding") else "node" for request in scene.cluster.requests]
    assert kinds == ["bind"] * 9 + ["node"] * 6
    assert "9 pods bound, 0 left to the scheduler; 3 nodes let go" in caplog.text


def test_an_increment_that_is_not_whole_yet_is_left_alone(scene: Scene) -> None:
    scene.startup.step()
    later = scene.fleet.apply(Increment({"a": 2}))
    scene.fleet.reconcile()
    first, second = (i for i in scene.outside.backend.ids("a") if i.removeprefix("scripted://") not in scene.nodes())
    scene.outside.backend.boot(first)
    name = scene.register(first)
    scene.fleet.reconcile()
    scene.startup.step()
    assert scene.cluster.taints(name) == list(HELD)
    scene.outside.backend.fail(second)
    scene.fleet.reconcile()
    assert scene.fleet.increment(later.id).phase is Phase.ROLLING_BACK
    scene.startup.step()
    scene.outside.backend.finish_deletes()
    scene.fleet.reconcile()
    assert scene.fleet.increment(later.id).phase is Phase.ROLLED_BACK
    scene.startup.step()  # its Node may be there a moment longer
    assert scene.cluster.taints(name) == list(HELD)


def test_what_cannot_be_bound_is_told_and_left_to_the_scheduler(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene.view.unbindable = {"pod-0"}
    taken, gone, another, odd = (f"/api/v1/namespaces/default/pods/pod-{number}" for number in (1, 4, 5, 8))

    def meanwhile(request: str) -> None:
        match request:
            case _ if request == f"POST {taken}/binding":
                scene.cluster.changed(taken, spec={"nodeName": "elsewhere"})
            case _ if request == f"POST {gone}/binding":
                scene.cluster.remove(gone)
            case _ if request == f"POST {another}/binding":
                scene.cluster.changed(another, metadata={"uid": "of another pod"})
            case _ if request == f"POST {odd}/binding":
                raise Refusal(422, "cannot be meant")

    scene.cluster.before = meanwhile
    planned = scene.planned()
    scene.startup.step()
    expected = {name: node for name, node in planned.items() if name not in {"pod-0", "pod-4", "pod-5", "pod-8"}}
    assert scene.bound() == {**expected, "pod-1": "elsewhere"}
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE
    told = caplog.records[-1].message
    assert "4 pods bound, 5 left to the scheduler" in told
    assert "1 since its placement is the scheduler's alone: default/pod-0" in told
    assert "2 since it is bound already, or another pod of that name is there: default/pod-1, default/pod-5" in told
    assert "1 since it is gone: default/pod-4" in told
    assert "cannot be meant" in told


def _faults(requests: int) -> list[tuple[int, bool, bool]]:
    return [(number, lost, killed) for number in range(requests) for lost in (False, True) for killed in (False, True)]


def test_whichever_request_fails_it_is_bound_once_and_never_let_go_too_soon() -> None:
    for failing, lost, killed in _faults(15):
        with fake_cluster() as cluster:
            scene = Scene(cluster)
            planned = scene.planned()
            seen = 0

            def fail(request: str, scene: Scene = scene, failing: int = failing, lost: bool = lost) -> None:
                nonlocal seen
                seen += 1
                if request.startswith("PATCH"):
                    assert len(scene.bound()) == 9
                if seen - 1 == failing:
                    raise Refusal(503, "away", lost=lost)

            cluster.before = fail
            with pytest.raises(Unavailable, match="away"):
                scene.startup.step()
            assert scene.phase() is Phase.READY
            if killed:
                scene.restart()
            scene.startup.step()
            assert scene.bound() == planned
            assert scene.taints() == {FREE}
            assert scene.phase() is Phase.DONE
            bindings = [request for request in cluster.requests if request.endswith("/binding")]
            assert len(bindings) - len(set(bindings)) <= 1  # the one that failed


def test_another_writer_of_taints_loses_nothing(scene: Scene) -> None:
    written: list[str] = []

    def interfere(request: str) -> None:
        if request.startswith("PATCH") and len(written) < 2:
            name = request.rpartition("/")[2]
            written.append(name)
            scene.cluster.taint(name, {"key": f"mine-{len(written)}", "effect": "NoExecute"})

    scene.cluster.before = interfere
    scene.startup.step()
    assert scene.phase() is Phase.DONE
    assert {key for taints in scene.taints() for key in taints} == {"nvidia.com/gpu", "mine-1", "mine-2"}


def test_a_node_that_others_write_all_the_time_is_tried_again(scene: Scene) -> None:
    name = scene.nodes()[0]

    def interfere(request: str) -> None:
        if request == f"PATCH /api/v1/nodes/{name}":
            scene.cluster.changed(f"/api/v1/nodes/{name}", status={"writes": len(scene.cluster.requests)})

    scene.cluster.before = interfere
    with pytest.raises(Conflict, match=f"node {name}: taint {START_UP_TAINT} cannot be taken off"):
        scene.startup.step()
    assert scene.phase() is Phase.READY
    scene.cluster.before = lambda request: None
    scene.startup.step()
    assert scene.phase() is Phase.DONE
    assert scene.taints() == {FREE}


def test_a_node_that_is_deleted_meanwhile_is_let_go_of(scene: Scene) -> None:
    name = scene.nodes()[0]

    def vanish(request: str) -> None:
        if request == f"GET /api/v1/nodes/{name}":
            scene.cluster.remove(f"/api/v1/nodes/{name}")

    scene.cluster.before = vanish
    scene.startup.step()
    assert scene.phase() is Phase.DONE
    assert scene.taints() == {FREE}
    assert len(scene.nodes()) == 2


def test_with_the_cluster_out_of_reach_the_increment_stays_held(scene: Scene) -> None:
    def away(request: str) -> None:
        raise Refusal(503, "away")

    scene.cluster.before = away
    for _ in range(10):
        with pytest.raises(Unavailable, match="away"):
            scene.startup.step()
        scene.outside.clock.advance(60)
    scene.cluster.before = lambda request: None
    planned = scene.planned()
    scene.startup.step()
    assert scene.bound() == planned
    assert scene.phase() is Phase.DONE


def test_binding_that_is_not_allowed_holds_nodes_for_a_minute_only(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(request: str) -> None:
        if request.endswith("/binding"):
            raise Refusal(403, "no")

    scene.cluster.before = forbidden
    for _ in range(6):
        with pytest.raises(Unavailable, match="the right to create pods/binding is missing"):
            scene.startup.step()
        scene.outside.clock.advance(10)
    assert scene.taints() == {HELD}
    scene.startup.step()
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE
    assert "its pods are left to the scheduler: " in caplog.text


def test_binding_that_goes_on_slowly_is_not_given_up(scene: Scene) -> None:
    bound = 0

    def slow(request: str) -> None:
        nonlocal bound
        if request.endswith("/binding"):
            bound += 1
            if bound % 2 == 0:
                raise Refusal(503, "overloaded")

    scene.cluster.before = slow
    planned = scene.planned()
    for _ in range(9):
        if scene.phase() is Phase.READY:
            try:
                scene.startup.step()
            except Unavailable:
                scene.outside.clock.advance(50)
    assert scene.bound() == planned
    assert scene.phase() is Phase.DONE


def test_nothing_is_done_before_the_cluster_is_known(scene: Scene) -> None:
    scene.view.unknown = True
    with pytest.raises(Unavailable, match="still to come"):
        scene.startup.step()
    assert scene.cluster.requests == []
    assert scene.phase() is Phase.READY


def test_with_the_journal_out_of_reach_it_is_released_later(scene: Scene) -> None:
    scene.journal.broken = True
    with pytest.raises(CagrpcError):
        scene.startup.step()
    assert scene.taints() == {FREE}
    scene.cluster.requests.clear()
    scene.journal.broken = False
    scene.startup.step()
    assert scene.phase() is Phase.DONE
    assert scene.cluster.requests == []


def test_a_view_that_lags_behind_is_not_asked_again_and_again(scene: Scene) -> None:
    scene.view.stands_still = scene.view.held_nodes()
    scene.startup.step()
    scene.cluster.requests.clear()
    scene.startup.step()
    assert scene.cluster.requests == []
    scene.outside.clock.advance(30)  # but what stays held for so long is looked at
    scene.startup.step()
    assert len(scene.cluster.requests) == 3


def test_a_node_that_no_increment_holds_is_let_go(scene: Scene) -> None:
    scene.startup.step()
    backend = scene.outside.backend
    known = backend.add("a", token="of-before")
    backend.boot(known)
    unheard_of = "scripted://nobody-knows-0001"
    for instance_id in (known, unheard_of):
        scene.register(instance_id)
    scene.fleet.reconcile()
    scene.startup.step()
    assert scene.cluster.taints(known.removeprefix("scripted://")) == list(FREE)
    assert scene.cluster.taints(unheard_of.removeprefix("scripted://")) == list(HELD)


def test_one_increment_in_trouble_does_not_hold_the_others(scene: Scene) -> None:
    troubled = scene.nodes()[0]
    later = scene.apply(Increment({"b": 1}))

    def away(request: str) -> None:
        if troubled in request:
            raise Refusal(503, "this one is away")

    scene.cluster.before = away
    with pytest.raises(Unavailable, match="this one is away"):
        scene.startup.step()
    assert scene.fleet.increment(later).phase is Phase.DONE
    assert scene.phase() is Phase.READY


def test_a_node_that_a_policy_keeps_as_it_is_does_not_hold_other_increments(scene: Scene) -> None:
    kept = scene.nodes()[0]
    later = scene.apply(Increment({"b": 1}))

    def forbid(request: str) -> None:
        if request == f"PATCH /api/v1/nodes/{kept}":
            raise Refusal(422, "a policy says no")

    scene.cluster.before = forbid
    with pytest.raises(InvalidInput, match="a policy says no"):
        scene.startup.step()
    assert scene.fleet.increment(later).phase is Phase.DONE
    assert scene.phase() is Phase.READY


# Nodes for ProvisioningRequests.

FOR_REQUESTS = Increment(
    {"a": 2, "b": 1},
    pods=frozenset(map(request_key, ("u1", "u2"))),
    placements=(
        Placement("a", (request_key("u1"),)),
        Placement("a", (request_key("u1"), request_key("u2"))),
        Placement("b", (request_key("u2"),)),
    ),
)


def _labels(scene: Scene) -> dict[str, set[str]]:
    """Booking labels by node."""
    labels = {name: scene.cluster.node(name)["metadata"].get("labels", {}) for name in scene.nodes()}
    return {name: {key for key, value in of.items() if value == "true"} for name, of in labels.items() if of}


def _requested(scene: Scene) -> tuple[str, dict[str, set[str]]]:
    """An increment for requests that is ready, beside nodes that are let go; its id, and who its nodes are for."""
    scene.startup.step()
    key = scene.apply(FOR_REQUESTS)
    of = {node.instance_id.removeprefix("scripted://"): node.pods for node in scene.fleet.increment(key).held}
    return key, {name: {booking_label(uid) for uid in requests_among(pods)} for name, pods in of.items()}


def test_nodes_for_requests_get_their_labels_in_the_write_that_lets_them_go(scene: Scene) -> None:
    key, wanted = _requested(scene)
    scene.cluster.requests.clear()

    def neither_held_nor_booked(request: str) -> None:
        for name, labels in wanted.items():
            assert (START_UP_TAINT in scene.cluster.taints(name)) != (_labels(scene).get(name) == labels), request

    scene.cluster.before = neither_held_nor_booked
    scene.startup.step()
    assert sorted(map(len, wanted.values())) == [1, 1, 2]
    assert _labels(scene) == wanted
    assert scene.taints() == {FREE}
    assert scene.fleet.increment(key).phase is Phase.DONE
    assert [request.split()[0] for request in scene.cluster.requests].count("PATCH") == 3


def test_whichever_request_fails_a_node_for_requests_is_held_or_labelled() -> None:
    for failing, lost, killed in _faults(6):
        with fake_cluster() as cluster:
            scene = Scene(cluster)
            key, wanted = _requested(scene)
            seen = 0

            def fail(request: str, failing: int = failing, lost: bool = lost) -> None:
                nonlocal seen
                seen += 1
                if seen - 1 == failing:
                    raise Refusal(503, "away", lost=lost)

            cluster.before = fail
            with pytest.raises(Unavailable, match="away"):
                scene.startup.step()
            for name, labels in wanted.items():
                assert (START_UP_TAINT in cluster.taints(name)) != (_labels(scene).get(name) == labels)
            if killed:
                scene.restart()
            scene.startup.step()
            assert _labels(scene) == wanted
            assert scene.taints() == {FREE}
            assert scene.fleet.increment(key).phase is Phase.DONE


def test_labels_of_others_stay(scene: Scene) -> None:
    _, wanted = _requested(scene)
    first = next(iter(wanted))
    scene.cluster.changed(f"/api/v1/nodes/{first}", metadata={"labels": {"mine": "true"}})
    scene.startup.step()
    assert _labels(scene) == {**wanted, first: {*wanted[first], "mine"}}


def test_nodes_that_never_had_the_taint_are_labelled_before_the_fleet_is_told(scene: Scene) -> None:
    key, wanted = _requested(scene)
    for name in wanted:
        scene.cluster.changed(f"/api/v1/nodes/{name}", spec={"taints": [_OTHER_TAINT]})
    scene.journal.broken = True
    with pytest.raises(Unavailable):
        scene.startup.step()
    assert _labels(scene) == wanted
    assert scene.taints() == {FREE}
    scene.cluster.requests.clear()
    with pytest.raises(Unavailable):  # it is not asked again and again
        scene.startup.step()
    assert scene.cluster.requests == []
    scene.journal.broken = False
    scene.startup.step()
    assert scene.fleet.increment(key).phase is Phase.DONE


def test_a_request_is_no_pod_to_bind(scene: Scene) -> None:
    scene.startup.step()
    bound = scene.bound()
    scene.cluster.pod("consumer")
    key = scene.apply(FOR_REQUESTS)
    scene.cluster.requests.clear()
    scene.startup.step()
    assert scene.bound() == bound
    assert not any(request.endswith("/binding") for request in scene.cluster.requests)
    assert scene.fleet.increment(key).phase is Phase.DONE


def test_an_increment_that_is_taken_back_while_it_is_let_go_is_no_trouble(scene: Scene) -> None:
    key, wanted = _requested(scene)

    def deleted(request: str) -> None:
        if request.startswith("PATCH"):
            scene.fleet.withdraw(key, "its request was deleted")

    scene.cluster.before = deleted
    scene.startup.step()
    assert scene.fleet.increment(key).phase is Phase.ROLLING_BACK
    scene.fleet.reconcile()
    assert {i.removeprefix("scripted://") for i in scene.outside.backend.executed_deletes} == wanted.keys()
    scene.startup.step()
    assert scene.fleet.increment(key).message == "its request was deleted"


def test_nodes_for_requests_stay_held_until_it_is_known_who_still_asks(scene: Scene) -> None:
    known: list[bool] = []
    scene.restart(requests_known=lambda: bool(known))
    increment, _ = _requested(scene)
    assert scene.phase() is Phase.DONE  # the one that is for pods
    for _ in range(3):
        scene.startup.step()
    assert scene.fleet.increment(increment).phase is Phase.READY
    assert scene.fleet.snapshot.held_instances
    known.append(True)
    scene.startup.step()
    assert scene.fleet.increment(increment).phase is Phase.DONE
