"""Events as a real API server takes them, and shows them to people."""

from __future__ import annotations

import time

from cagrpc.controllers.events import REPEAT_SECONDS, Events, Note, pod_object
from cagrpc.controllers.planner.reasons import ACTION, CONTROLLER, NOT_PLANNED
from cagrpc.controllers.state import PodRef
from tests.controlplane.cluster import Cluster
from tests.fleet.support import FakeClock


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
    events = Events(client, clock=clock, controller=CONTROLLER, action=ACTION, instance="cagrpc-0")
    note = Note(pod_object(ref), NOT_PLANNED, "no node group fits: " + "é" * 1000, warning=True)
    events.say(note)
    assert events.drain() == 1
    clock.advance(REPEAT_SECONDS)
    events.say(note)
    assert events.drain() == 1
    # as `kubectl describe pod` asks for them
    query = {"fieldSelector": f"involvedObject.uid={ref.uid},reason=NotPlanned"}
    (found,) = client.get(cluster.path("events"), query)["items"]
    assert (found["type"], found["series"]["count"]) == ("Warning", 2)
    assert found["message"].startswith("no node group fits: é")
    assert found["reportingComponent"] == "cagrpc.io/planner"
    client.close()
