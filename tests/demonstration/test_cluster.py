"""The demonstration's cluster: what is played there, step by step, in a time that is told, and how clients see it."""

from __future__ import annotations

from typing import Any

from cagrpc.api.core.nodes import node_document
from cagrpc.cluster.view.objects import read_node
from cagrpc.demonstration.cluster import PODS_PATH, REPLICA_SETS, PlayedCluster
from cagrpc.demonstration.objects import NODES
from cagrpc.demonstration.story import CYCLE_SECONDS, SCENES, WORKLOADS, MachineStock, Scale, Scene
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity, WatchEventType, event, frames, page
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from solver.model import NodeGroup
from tests.support.controlplane.processes import wait_for
from tests.support.fleet import FakeClock

LARGE = NodeGroup("large", {"cpu": 16_000, "memory": 64 * 2**30, "pods": 110}, 1.0)
SCALE = (
    Scene(0, "it starts", (Scale("web", 3),)),
    Scene(10, "it is sold out", (MachineStock("m7i.4xlarge", 0), Scale("web", 5))),
    Scene(20, "it is back", (MachineStock("m7i.4xlarge", None), Scale("web", 1))),
)


def _played(scenes: tuple[Scene, ...] = SCALE) -> tuple[PlayedCluster, FakeClock, list[Any]]:
    clock, changes = FakeClock(), list[Any]()
    played = PlayedCluster(scenes, clock=clock)
    played.simulate = changes.append
    return played, clock, changes


def _node(played: PlayedCluster, name: str) -> None:
    document = node_document(LARGE, name)
    document["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    played.api.put(f"{NODES}/{name}", document)


def _nodes_of_pods(played: PlayedCluster) -> list[str]:
    pods = [each for path, each in played.api.objects.items() if path.startswith(PODS_PATH)]
    return [each["spec"].get("nodeName", "") for each in pods]


def test_the_story_is_played_at_its_times_again_and_again() -> None:
    played, clock, changes = _played()
    played.step()
    assert _nodes_of_pods(played) == [""] * 3
    clock.advance(10)
    played.step()
    assert (len(_nodes_of_pods(played)), played.status()["scene"]) == (5, "it is sold out")
    assert changes == [{"m7i.4xlarge": {"stock": 0, "boot": "10s"}}]
    clock.advance(10)
    played.step()
    assert (len(_nodes_of_pods(played)), changes[1:]) == (1, [{"m7i.4xlarge": None}])
    assert played.api.objects[f"{REPLICA_SETS}/web"]["status"] == {"replicas": 1}
    clock.advance(CYCLE_SECONDS - 20)
    played.step()
    assert (len(_nodes_of_pods(played)), played.status()["scene"]) == (3, "it starts")
    assert "demonstration" in played.status()["demonstration"]


def test_pods_are_bound_where_they_are_nominated_and_room_is_kept_for_those() -> None:
    played, _, _ = _played((Scene(0, "", (Scale("search", 3),)),))  # two of them fill a node
    _node(played, "a")
    played.step()
    assert sorted(_nodes_of_pods(played)) == ["", "a", "a"]
    (waiting,) = (
        path
        for path, each in played.api.objects.items()
        if path.startswith(PODS_PATH) and not each["spec"].get("nodeName")
    )
    _node(played, "b")
    _node(played, "c")
    played.api.change(waiting, status={"nominatedNodeName": "c"})
    played.step()
    assert sorted(_nodes_of_pods(played)) == ["a", "a", "c"]


def test_nodes_that_are_cordoned_or_not_ready_get_no_pods_and_others_of_those_that_go_come_again() -> None:
    played, _, _ = _played()
    _node(played, "a")
    played.api.change(f"{NODES}/a", spec={"unschedulable": True})
    _node(played, "b")
    played.api.change(f"{NODES}/b", status={"conditions": [{"type": "Ready", "status": "False"}]})
    played.step()
    assert _nodes_of_pods(played) == [""] * 3
    first = next(path for path in played.api.objects if path.startswith(PODS_PATH))
    played.api.remove(first)
    played.step()
    assert first not in played.api.objects
    assert len(_nodes_of_pods(played)) == 3


def test_of_events_the_last_ones_are_kept() -> None:
    played, _, _ = _played()
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    for number in range(250):
        played.api.put(f"{events}/{number}", {"metadata": {"namespace": "default"}})
    played.step()
    kept = [path for path in played.api.objects if path.startswith(events)]
    assert (len(kept), kept[0], kept[-1]) == (200, f"{events}/50", f"{events}/249")


def test_every_workload_and_time_of_the_story_is_valid() -> None:
    names = {each.name for each in WORKLOADS}
    times = [each.at_seconds for each in SCENES]
    assert times == sorted(times)
    assert times[-1] < CYCLE_SECONDS
    asked = {each.workload for scene in SCENES for each in scene.happens if isinstance(each, Scale)}
    assert asked == names


class _Names:
    """A sink."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def replaced(self, objects: Any) -> None:
        self.names = {each.key for each in objects}

    def applied(self, obj: Any) -> None:
        self.names.add(obj.key)

    def deleted(self, of: ObjectIdentity) -> None:
        self.names.discard(of.name)


def test_an_informer_follows_it_as_it_follows_an_api_server() -> None:
    played, _, _ = _played()
    _node(played, "a")
    sink = _Names()
    informer = Informer(played.client, Resource(NODES, read_node), sink)
    informer.start()
    try:
        wait_for(lambda: sink.names == {"a"}, "it is listed")
        _node(played, "b")
        wait_for(lambda: sink.names == {"a", "b"}, "what comes is seen")
        played.api.remove(f"{NODES}/a")
        wait_for(lambda: sink.names == {"b"}, "what goes is seen")
        assert informer.problem is None
    finally:
        informer.stop()


def test_lists_and_watches_select_by_fields_and_labels_in_both_encodings() -> None:
    played, _, _ = _played()
    _node(played, "a")
    played.step()
    query = {"fieldSelector": "spec.nodeName!="}
    bound = page(Encoding.JSON, played.client.read("/api/v1/pods", query, Encoding.JSON)).items
    assert [each["spec"]["nodeName"] for each in bound] == ["a"] * 3
    no_labels = {"labelSelector": "cagrpc.io/simulated=true"}
    assert [*page(Encoding.PROTOBUF, played.client.read(NODES, no_labels)).items] == []
    since = str(played.api.latest_version)
    played.api.change(f"{NODES}/a", metadata={"labels": {"new": "yes"}})
    for encoding in Encoding:
        for selector, change in (("new=yes", WatchEventType.MODIFIED), ("new=no", WatchEventType.DELETED)):
            stream = played.client.stream(
                NODES, {"resourceVersion": since, "watch": "1", "labelSelector": selector}, encoding
            )
            found = event(encoding, next(frames(encoding, stream)))
            stream.close()
            assert (found.change, found.of.name) == (change, "a")
