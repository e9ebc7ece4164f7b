"""Cordons and evictions against a real API server: what it takes, and what its refusals are to us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.cluster.markers import DISRUPTION
from cagrpc.controllers.consolidation.evictions import REFUSED_SECONDS, Evictions, cordon, uncordon
from cagrpc.errors import NotFound
from cagrpc.fleet.model import PodMove
from cagrpc.kube.client.client import Client
from tests.support.controlplane.cluster import Cluster
from tests.support.fleet import FakeClock

NODE = "/api/v1/nodes/evictions"
POD = {
    "spec": {
        "containers": [{"name": "main", "image": "pause"}],
        "nodeName": "evictions",
        "automountServiceAccountToken": False,
    }
}


@pytest.fixture
def node(client: Client) -> Iterator[str]:
    client.create("/api/v1/nodes", {"metadata": {"name": "evictions"}})
    yield "evictions"
    client.delete(NODE)


def move(cluster: Cluster, name: str, uid: str) -> PodMove:
    return PodMove(uid, cluster.namespace, name, "ReplicaSet/ns/web", "elsewhere")


def test_a_node_is_cordoned_and_uncordoned(client: Client, node: str) -> None:
    for _ in range(2):
        cordon(client, node, "3f9a")
        found = client.get(NODE)
        assert (found["spec"]["unschedulable"], found["metadata"]["annotations"][DISRUPTION]) == (True, "3f9a")
    for _ in range(2):
        uncordon(client, node)
        found = client.get(NODE)
        assert "unschedulable" not in found["spec"]
        assert DISRUPTION not in found["metadata"].get("annotations", {})
    cordon(client, "nowhere", "3f9a")
    uncordon(client, "nowhere")


def test_a_cordon_of_somebody_else_stays(client: Client, node: str) -> None:
    client.patch(NODE, {"spec": {"unschedulable": True}})
    cordon(client, node, "3f9a")
    uncordon(client, node)
    assert client.get(NODE)["spec"]["unschedulable"] is True


def test_one_that_somebody_lifted_leaves_nothing_of_ours(client: Client, node: str) -> None:
    cordon(client, node, "3f9a")
    client.patch(NODE, {"spec": {"unschedulable": None}})
    uncordon(client, node)
    assert DISRUPTION not in client.get(NODE)["metadata"].get("annotations", {})


def test_pods_are_evicted_within_budgets_and_by_their_uid(cluster: Cluster, client: Client, node: str) -> None:
    clock = FakeClock()
    evictions = Evictions(client.hurried(10.0), clock)
    pods = cluster.path("pods")
    made = {
        name: client.create(pods, {**POD, "metadata": {"name": name, "labels": {"app": name}}})["metadata"]["uid"]
        for name in ("free", "kept")
    }
    for name in made:
        client.patch(
            f"{pods}/{name}/status",
            {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
        )
    budget = {"metadata": {"name": "kept"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}
    client.create(f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets", budget)
    evictions.evict([move(cluster, "free", "another uid")])
    assert client.get(f"{pods}/free")["metadata"]["uid"] == made["free"], "not the pod that was meant"
    evictions.evict([move(cluster, name, uid) for name, uid in made.items()])
    assert (evictions.evicted, evictions.refused) == (1, 1)
    assert "pod" in evictions.problem
    assert not evictions.is_due(made["kept"])
    clock.advance(REFUSED_SECONDS)
    assert evictions.is_due(made["kept"])
    ended = client.get(f"{pods}/free")["metadata"].get("deletionTimestamp")
    assert ended, "it ends in its own time"
    assert "deletionTimestamp" not in client.get(f"{pods}/kept")["metadata"]
    client.delete(f"{pods}/free", grace_seconds=0)
    with pytest.raises(NotFound):
        client.get(f"{pods}/free")
    evictions.evict([move(cluster, "free", made["free"])])  # gone: no error
    client.delete(f"{pods}/kept", grace_seconds=0)
