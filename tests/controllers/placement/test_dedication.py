"""Nodes that are dedicated to their pods: these are let in, and the node is open to others once they are bound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.controllers.placement.release import AGAIN_SECONDS, taint_value
from cagrpc.fleet.model import Phase
from cagrpc.runtime.progress import DEADLINE_SECONDS
from tests.support.api_server import PODS, ApiServer, Refusal, RefusedOnce, api_server
from tests.support.controllers.placement import FREE, HELD, TOLERATION, Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    with api_server() as cluster:
        scene = Scene(cluster)
        scene.restart(dedicated=True)
        yield scene


def tolerated(cluster: ApiServer) -> dict[str, list[str]]:
    """The values of the start-up taint that each pod tolerates."""
    pods = {path.rpartition("/")[2]: pod for path, pod in cluster.objects.items() if path.startswith(PODS)}
    return {
        name: [each["value"] for each in pod["spec"].get("tolerations", ()) if each["key"] == START_UP_TAINT]
        for name, pod in pods.items()
    }


def value_of_taint(scene: Scene, node: str) -> str | None:
    taints = scene.cluster.node(node)["spec"].get("taints", ())
    return next((each.get("value", "") for each in taints if each["key"] == START_UP_TAINT), None)


def keep_away(scene: Scene, name: str) -> None:
    """Nobody changes this pod from now on."""

    def refuse(request: str) -> None:
        if request == f"PATCH {PODS}/{name}":
            raise Refusal(503, "away")

    scene.cluster.before = refuse


def bind(scene: Scene, *names: str) -> None:
    for name in names:
        scene.bind(name, scene.planned()[name])


def test_pods_are_let_onto_their_own_node_alone(scene: Scene) -> None:
    scene.run()
    planned = scene.planned()
    assert scene.nominated() == planned
    assert tolerated(scene.cluster) == {name: [node] for name, node in planned.items()}
    assert {node: value_of_taint(scene, node) for node in scene.nodes()} == {node: node for node in scene.nodes()}
    assert scene.phase() is Phase.READY


def test_nodes_are_open_to_all_once_the_pods_of_all_are_bound(scene: Scene) -> None:
    """A scheduler that is behind would put a pod there before it sees that it is let in elsewhere."""
    scene.run()
    first, *_ = scene.nodes()
    planned = scene.planned()
    bind(scene, *(name for name, node in planned.items() if node == first))
    scene.run()
    assert scene.taints() == {HELD}
    bind(scene, *(name for name, node in planned.items() if node != first))
    scene.run()
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE


def test_a_pod_that_cannot_be_let_in_keeps_all_nodes_from_others_for_the_patience_at_most(scene: Scene) -> None:
    late = next(iter(scene.planned()))
    keep_away(scene, late)
    scene.run()
    others = [name for name, node in scene.planned().items() if node != scene.planned()[late]]
    bind(scene, *others)
    scene.run()
    assert scene.taints() == {HELD}
    scene.later(DEADLINE_SECONDS / 2)
    assert scene.taints() == {HELD}
    scene.later(DEADLINE_SECONDS)
    assert scene.taints() == {FREE}


def test_a_node_whose_pods_were_bound_since_the_last_step_waits_for_the_others(scene: Scene) -> None:
    late = next(iter(scene.planned()))
    keep_away(scene, late)
    scene.run()
    bind(scene, *(name for name, node in scene.planned().items() if node != scene.planned()[late]))
    scene.sync()
    scene.clock.advance(AGAIN_SECONDS)
    scene.release.queue.run_due()
    assert scene.taints() == {HELD}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_whatever_fails_every_pod_is_let_in_and_every_node_opened(*, lost: bool, killed: bool) -> None:
    for failing in range(24):
        with api_server() as cluster:
            scene = Scene(cluster)
            scene.restart(dedicated=True)
            cluster.before = refused = RefusedOnce(failing, lost=lost)
            scene.run()
            if killed:
                scene.restart(dedicated=True)
            scene.later(DEADLINE_SECONDS / 4)
            planned = scene.planned()
            assert {name: set(values) for name, values in tolerated(cluster).items()} == {
                name: {node} for name, node in planned.items()
            }
            bind(scene, *planned)
            scene.later(DEADLINE_SECONDS / 4)
            assert scene.taints() == {FREE}
            assert scene.phase() is Phase.DONE
            assert refused.seen > failing


def test_pods_that_a_restart_finds_admitted_are_not_changed_again(scene: Scene) -> None:
    scene.run()
    before = tolerated(scene.cluster)
    scene.restart(dedicated=True)
    scene.cluster.requests.clear()
    scene.run()
    assert tolerated(scene.cluster) == before
    assert not [each for each in scene.cluster.requests if each.startswith(f"PATCH {PODS}") and "status" not in each]
    bind(scene, *scene.planned())
    scene.run()
    assert scene.phase() is Phase.DONE


def test_a_pod_without_tolerations_is_let_in(scene: Scene) -> None:
    name = next(iter(scene.planned()))
    path = f"{PODS}/{name}"
    pod = scene.cluster.objects[path]
    scene.cluster.put(path, {**pod, "spec": {key: each for key, each in pod["spec"].items() if key != "tolerations"}})
    for node in scene.nodes():  # whose other taint the pod does not tolerate any more
        taints = [{"key": START_UP_TAINT, "effect": "NoSchedule"}]
        scene.cluster.change(f"/api/v1/nodes/{node}", spec={"taints": taints})
    scene.run()
    assert tolerated(scene.cluster)[name] == [scene.planned()[name]]


@pytest.mark.parametrize("code", [403, 422])
def test_where_a_pod_cannot_be_changed_its_node_is_open_to_all(
    scene: Scene, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def refuse(request: str) -> None:
        if request.startswith(f"PATCH {PODS}") and not request.endswith("/status"):
            raise Refusal(code, "a policy denied it")

    scene.cluster.before = refuse
    scene.run()
    assert scene.taints() == {FREE}
    assert scene.nominated() == {} or scene.phase() is Phase.DONE
    assert sum("cannot be changed" in each.message for each in caplog.records) == 1


def test_a_pod_that_never_comes_holds_a_node_no_longer_than_patience(scene: Scene) -> None:
    scene.run()
    stuck, *others = scene.planned()
    bind(scene, *others)
    scene.run()
    scene.later(DEADLINE_SECONDS - 5)
    node = scene.planned()[stuck]
    assert scene.cluster.taints(node) == list(HELD)
    scene.later(10)
    assert scene.taints() == {FREE}
    assert scene.phase() is Phase.DONE


def test_patience_begins_anew_with_each_pod_that_is_bound(scene: Scene) -> None:
    scene.run()
    *slowly, last = scene.planned()
    for name in slowly:
        bind(scene, name)
        scene.later(DEADLINE_SECONDS - 10)
    assert scene.cluster.taints(scene.planned()[last]) == list(HELD)


def test_tolerations_of_ours_do_not_tell_pods_apart(scene: Scene) -> None:
    scene.run()
    assert len(scene.view.state().waiting) == 1
    assert TOLERATION["key"] in {each.key for each in scene.view.state().waiting[0].pod_set.spec.tolerations}


def test_the_value_of_a_taint_is_a_valid_one_for_the_longest_name_of_a_node() -> None:
    assert taint_value("node-1") == "node-1"
    long = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(taint_value(long)) == 63
    assert taint_value(long) != taint_value(long[:-1] + "c")
