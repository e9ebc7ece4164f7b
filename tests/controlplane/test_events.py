"""Events as a real API server takes them, and shows them to people."""

from __future__ import annotations

import time

from cagrpc.cluster.state import PodRef
from cagrpc.controllers.events import REPEAT_SECONDS, EventRecorder, EventSource, Note, ObjectRef, pod_object
from cagrpc.controllers.planning.reasons import ACTION, CONTROLLER, NOT_PLANNED
from cagrpc.runtime.clock import epoch
from tests.support.controlplane.cluster import Cluster
from tests.support.fleet import FakeClock


def test_what_is_told_of_a_pod_is_found_with_it(cluster: Cluster) -> None:
    client, clock = cluster.plane.client(), FakeClock(time.time())
    name = "web-" + "x" * 240
    pod = client.create(
        cluster.path("pods"),
        {
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "web", "image": "web"}]},
        },
    )
    ref = PodRef(pod["metadata"]["uid"], cluster.namespace, name)
    events = EventRecorder(client, EventSource(CONTROLLER, ACTION, "cagrpc-0"), clock=clock)
    note = Note(pod_object(ref), NOT_PLANNED, "no node group fits: " + "é" * 1000)
    events.event(note)
    assert events.write_due() == 1
    clock.advance(REPEAT_SECONDS)
    events.event(note)
    assert events.write_due() == 1
    # as `kubectl describe pod` asks for them
    query = {"fieldSelector": f"involvedObject.uid={ref.uid},reason=NotPlanned"}
    (found,) = client.get(cluster.path("events"), query)["items"]
    assert (found["type"], found["series"]["count"]) == ("Warning", 2)
    assert found["message"].startswith("no node group fits: é")
    assert found["reportingComponent"] == "cagrpc.io/planner"
    client.close()


def test_what_is_told_of_an_object_without_a_namespace_is_found_with_it(cluster: Cluster) -> None:
    client = cluster.plane.client()
    node = client.create("/api/v1/nodes", {"metadata": {"name": f"{cluster.namespace}-node"}})
    about = ObjectRef("v1", "Node", "", node["metadata"]["name"], node["metadata"]["uid"])
    events = EventRecorder(client, EventSource("cagrpc.io/provisioning-requests", "Provisioning"), clock=epoch)
    events.event(Note(about, "Accepted", "room is kept on it"))
    assert events.write_due() == 1
    query = {"fieldSelector": f"involvedObject.uid={about.uid}"}
    (found,) = client.get("/api/v1/namespaces/default/events", query)["items"]
    assert (found["type"], found["reason"], found["message"]) == ("Normal", "Accepted", "room is kept on it")
    client.delete(f"/api/v1/nodes/{about.name}")
    client.close()
