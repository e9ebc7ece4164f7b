"""The observer of the other tests of consolidation notices what it is there for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.kubelets import kubelets
from tests.support.controlplane.observer import Observer, observing
from tests.support.controlplane.processes import wait_for
from tests.support.controlplane.rotting import Workload, create, rot, running, wait_for_budgets, workloads

KIND = "pool"
WEB = Workload("web", 4, 4, {"cpu": "1"}, max_unavailable=1)
FOUND = [WEB]


@pytest.fixture
def observer(cluster: Cluster) -> Iterator[Observer]:
    """Two nodes with two pods each, at 1 $/h."""
    with kubelets(cluster.plane, KIND):
        for name in ("one", "two"):
            cluster.create_node(name, {"cpu": "4", "memory": "8Gi"}, labels={KIND: "any"})
        create(cluster, FOUND)
        wait_for(lambda: running(cluster) == WEB.replicas, "all pods run")
        with observing(cluster.plane, FOUND, {"any": 1.0}, KIND) as observing_them:
            yield observing_them


def evict(cluster: Cluster, node: str, count: int = 1) -> None:
    """Budgets are asked, once they know of all pods."""
    wait_for_budgets(cluster, FOUND)
    here = (pod for pod in cluster.pods() if pod["spec"].get("nodeName") == node)
    names = [pod["metadata"]["name"] for pod in here if "deletionTimestamp" not in pod["metadata"]]
    for name in names[:count]:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        cluster.admin.create(cluster.path("pods", name) + "/eviction", body)


def cordon(cluster: Cluster, node: str) -> None:
    cluster.admin.merge(f"{NODES}/{node}", {"spec": {"unschedulable": True}})


def wait_for_pods(observer: Observer) -> None:
    wait_for(lambda: observer.history().healthy["web"] == WEB.left, "all pods are seen to run")


def test_a_step_that_keeps_the_rules(cluster: Cluster, observer: Observer) -> None:
    cordon(cluster, "one")
    for _ in range(2):
        evict(cluster, "one")
        wait_for(lambda: running(cluster) == WEB.left, "its successor runs")
        wait_for_pods(observer)
    cluster.admin.delete(f"{NODES}/one")
    wait_for(lambda: observer.history().cost == 1.0, "the node is seen to be gone")
    seen = observer.history()
    assert seen.violations == []
    assert [each.node for each in seen.evictions] == ["one", "one"]
    assert len(seen.steps_seconds) == 1
    assert [cost for _, cost in seen.costs] == [2.0, 1.0]
    assert seen.places == {"two": ["web"] * 4}


def test_a_violated_budget(cluster: Cluster, observer: Observer) -> None:
    for pod in cluster.pods()[:2]:
        cluster.admin.delete(cluster.path("pods", pod["metadata"]["name"]))
    wait_for(lambda: bool(observer.history().violations), "it is noticed")
    assert "2 pods of web are healthy, and its PodDisruptionBudget desires 3" in observer.history().violations[0]


def test_a_step_that_begins_too_early(cluster: Cluster, observer: Observer) -> None:
    cordon(cluster, "one")
    cluster.create_pod("filler", {"cpu": "2"}, nodeName="two")  # so that there is no room for the successor
    evict(cluster, "one")
    cordon(cluster, "two")
    wait_for(lambda: bool(observer.history().violations), "it is noticed")
    assert "two is drained while these do not run: {'web': 1}" in observer.history().violations[0]


def test_a_node_that_goes_too_soon(cluster: Cluster, observer: Observer) -> None:
    cluster.create_node("three", {"cpu": "1"}, labels={KIND: "any"})
    wait_for(lambda: observer.history().made == 1, "it is seen")
    cluster.admin.delete(f"{NODES}/three")
    wait_for(lambda: bool(observer.history().short_lived(60)), "it is noticed")
    cluster.admin.delete(f"{NODES}/two")
    wait_for(lambda: observer.history().cost == 1.0, "the other one is seen to go")
    (short,) = observer.history().short_lived(60)  # the other one was there before
    assert short.startswith("three of any: ")


def test_a_cluster_rots(cluster: Cluster) -> None:
    found = workloads(40)
    with kubelets(cluster.plane, KIND):
        cluster.create_node("one", {"cpu": "1000", "memory": "8000Gi"}, labels={KIND: "any"})
        create(cluster, found)
        wait_for(lambda: running(cluster) == 40, "all pods run")
        rot(cluster, found)
        assert running(cluster) == sum(each.left for each in found) == 20
