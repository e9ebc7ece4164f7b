"""The process killed on the way of a ProvisioningRequest, one process after the other: the next one goes on where the
last one was. Nothing is ordered twice, and nothing is left over: no instance, no label, no annotation. Here are some
steps, against the real API server; every call is in tests/controllers/provisioning/test_killed.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.markers import BOOKING_LABELS, SCALE_DOWN_DISABLED
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.provisioning import PlaneRequests

CPU, LATE = group("cpu", "4", "16Gi", 0.2), group("late", "2", "4Gi", 0.05)
HEAD, SMALL = {"cpu": "3", "memory": "4Gi"}, {"cpu": "1500m", "memory": "1Gi"}
TO_PROVISIONED = (
    "after book",  # the node that stands
    "after commit planned",
    "before tell",  # Accepted
    "after commit ready",
    "before commit done",
    "after tell",  # Provisioned
)
TO_ROLLED_BACK = ("after commit planned", "before commit rolling-back", "after delete", "before tell")


@pytest.fixture
def requests(live: Live) -> Iterator[PlaneRequests]:
    requests = PlaneRequests(live)
    # A name of its own: the node lifecycle controller remembers those of earlier tests, and takes them for lost.
    requests.cluster.create_node(f"standing-{live.cluster.namespace}", {"cpu": "4", "memory": "16Gi"})
    requests.template("head", HEAD)
    requests.template("small", SMALL, nodeSelector={"pool": "late"})
    yield requests
    live.close()
    requests.close()


def test_on_the_way_to_provisioned_and_deleted(requests: PlaneRequests) -> None:
    live = requests.live
    live.configure([{"name": "all", "node_groups": [CPU]}], {"cpu": {"boot": "15s"}})
    requests.create("killed", {"head": 3})
    for step in TO_PROVISIONED:
        live.serve_until(step)
    live.start()
    assert requests.wait_for("killed", "Provisioned")["reason"] == "CapacityIsProvisioned"
    live.wait_until_settled()
    assert live.phases() == ["done"]
    assert (live.ordered(), live.pools()) == (2, {"cpu": 2})
    selected = requests.selected("killed")
    made = [node["metadata"]["name"] for node in live.nodes()]
    assert selected == sorted([f"standing-{live.cluster.namespace}", *made])
    live.wait_for(lambda: marks(requests).issuperset((name, SCALE_DOWN_DISABLED) for name in made), "they stay")
    live.close()
    requests.delete("killed")
    live.serve_until("before unbook")
    live.start()
    live.wait_for(lambda: not marks(requests), "its nodes are as any others")
    assert live.ordered() == 2


def test_on_the_way_back(requests: PlaneRequests) -> None:
    live = requests.live
    live.configure([{"name": "all", "node_groups": [CPU, LATE]}], {"late": {"late_shortage": 1, "boot": "1s"}})
    # Tried once: on a slow machine its next try would be due before the last kill.
    requests.create("killed", {"head": 2, "small": 2}, noRetry="true")
    for step in TO_ROLLED_BACK:
        live.serve_until(step)
    live.start()
    requests.wait_for("killed", "Failed")
    live.wait_for(lambda: live.phases() == ["rolled-back"], "it is rolled back")
    live.wait_for(lambda: not live.nodes(), "its nodes are gone")
    assert live.ordered() <= 4
    live.wait_for(lambda: not marks(requests), "no label is left")


def test_deleted_on_the_way(requests: PlaneRequests) -> None:
    live = requests.live
    live.configure([{"name": "all", "node_groups": [CPU]}], {"cpu": {"boot": "2s"}})
    requests.create("killed", {"head": 3})
    live.serve_until("after commit ready")
    requests.delete("killed")
    live.start()
    live.wait_for(lambda: live.phases() == ["rolled-back"], "it is rolled back")
    live.wait_for(lambda: not live.nodes() and not marks(requests), "nothing is left")
    assert live.ordered() <= 3  # its own nodes, once


def marks(requests: PlaneRequests) -> set[tuple[str, str]]:
    """Nodes with what says that they are booked or on their way: booking labels, annotations, the start-up taint."""
    return {
        (node["metadata"]["name"], mark)
        for node in requests.admin.items("/api/v1/nodes")
        for mark in (
            *(node["metadata"].get("labels") or {}),
            *(node["metadata"].get("annotations") or {}),
            *(taint["key"] for taint in node["spec"].get("taints", ())),
        )
        if mark.startswith(BOOKING_LABELS) or mark in (SCALE_DOWN_DISABLED, START_UP_TAINT)
    }
