"""Planned pods run where they were planned, whatever comes in between: pods that trickle in, a restart, pods and nodes
that go, others that take their room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.processes import meanwhile

SLOW = {"*": {"boot": "4s"}}
PODS = 24
SMALL, LARGE = group("small", "4", "8Gi", 0.2), group("large", "16", "32Gi", 0.7)


def start(live: Live, **planner: Any) -> None:
    live.configure([{"name": "all", "node_groups": [SMALL, LARGE]}], SLOW, planner=planner)
    live.start()


def create_web(live: Live, pods: int = PODS) -> None:
    live.cluster.create_deployment("web", pods, {"cpu": "1200m", "memory": "1Gi"})


def pending(live: Live) -> list[dict[str, Any]]:
    return [pod for pod in live.cluster.pods() if not pod["spec"].get("nodeName")]


def assert_nothing_is_stale(live: Live) -> None:
    """Nobody is nominated who is bound, or to a node that there is not."""
    nodes = {node["metadata"]["name"] for node in live.cluster.nodes()}
    for pod in live.cluster.pods():
        nominated = pod["status"].get("nominatedNodeName", "")
        assert not nominated or (nominated in nodes and not pod["spec"].get("nodeName"))


@pytest.mark.parametrize(
    "restarts",
    [
        False,
        pytest.param(True, marks=pytest.mark.long("with a restart in controllers/planning/test_orders.py")),
    ],
    ids=["", "restart"],
)
def test_pods_that_their_controllers_create_slowly_are_one_round(live: Live, restarts: bool) -> None:
    start(live)
    with live.cluster.plane.controller_manager("--kube-api-qps=5", "--kube-api-burst=5"):
        create_web(live, 60)
        live.wait_for(lambda: "creating" in live.phases(), "machines are ordered")
        assert len(live.cluster.pods()) < 60
        if restarts:
            live.wait_for(live.nodes, "the first node registers")
            live.kill()
            live.start()
        live.wait_for_running(60)
    live.wait_until_settled()
    if not restarts:
        (planned,) = live.rounds()
        assert (planned["pods"], planned["nodes"]) == (60, len(live.nodes()))
    live.assert_nothing_wasted(nodes=live.ordered())
    assert live.pools() == {"large": 4, "small": 3}
    assert_nothing_is_stale(live)


def test_nodes_for_pods_that_never_come_go(live: Live) -> None:
    """A webhook, a controller that is away: here the ReplicaSet's controller stops after its first pods."""
    start(live, progress_deadline="20s")
    with live.cluster.plane.controller_manager("--kube-api-qps=1", "--kube-api-burst=3"):
        create_web(live, 60)
        live.wait_for(lambda: live.ordered() >= 7, "machines are ordered for all")
        live.cluster.plane.stop_controller_manager()
        there = len(live.cluster.pods())
        assert there < 30
        live.wait_for_running(there, seconds=120)
        live.wait_until_settled()
        live.wait_for(lambda: len(live.nodes()) <= 1 + there // 3, "nodes for nobody are gone")
        live.cluster.plane.start_controller_manager()
        live.wait_for_running(60)
    live.wait_until_settled()


def delete_a_pod(live: Live) -> None:
    live.cluster.admin.delete(live.cluster.path("pods", pending(live)[0]["metadata"]["name"]), gracePeriodSeconds=0)


def delete_a_node(live: Live) -> None:
    live.cluster.admin.delete(f"{NODES}/{live.nodes()[0]['metadata']['name']}")


def foreign_pods(live: Live) -> None:
    """Of another scheduler, which knows nothing of taints or nominations: two, on the Nodes that there are by now."""
    nodes = live.nodes()
    for number in range(2):
        name, node = f"foreign-{number}", nodes[number % len(nodes)]
        live.cluster.create_pod(name, {"cpu": "2"}, schedulerName="another")
        target = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
        binding = {"metadata": {"name": name}, "target": target}
        live.cluster.admin.create(live.cluster.path("pods", name) + "/binding", binding)


def pods_of_higher_priority(live: Live) -> None:
    live.cluster.admin.ensure(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": "above"}, "value": 1000, "preemptionPolicy": "Never"},
    )
    for number in range(4):
        live.wait_for(partial(_create_above, live, number), "admission knows the PriorityClass")


def _create_above(live: Live, number: int) -> bool:
    try:
        live.cluster.create_pod(f"above-{number}", {"cpu": "1"}, priorityClassName="above")
    except ApiRefusal as refused:
        if refused.status != 403:
            raise
        return False
    return True


def a_node_is_not_ready(live: Live) -> None:
    name = live.nodes()[0]["metadata"]["name"]
    down = {"type": "Ready", "status": "False", "reason": "Test", "message": "down"}
    live.cluster.admin.merge(f"{NODES}/{name}/status", {"status": {"conditions": [down]}})


MEDDLING = {
    "a pod is deleted": (delete_a_pod, 0),
    "a node is deleted": (delete_a_node, 0),
    "pods of another scheduler": (foreign_pods, 2),
    "pods of higher priority": (pods_of_higher_priority, 4),
    "a node is not Ready": (a_node_is_not_ready, 0),
}


@pytest.mark.parametrize(("meddle", "more"), MEDDLING.values(), ids=MEDDLING)
def test_what_comes_in_between(live: Live, meddle: Callable[[Live], None], more: int) -> None:
    start(live)
    create_web(live)
    live.wait_for(live.nodes, "the first node registers")
    meddle(live)
    live.wait_for_running(PODS + more)
    live.wait_until_settled()
    assert not pending(live)
    assert_nothing_is_stale(live)
    assert live.ordered() <= live.rounds()[0]["nodes"] + 2


def test_the_api_server_is_away_while_nodes_register(live: Live) -> None:
    start(live)
    create_web(live)
    live.wait_for(live.nodes, "the first node registers")
    plane = live.cluster.plane
    plane.stop_apiserver()
    live.wait_for(lambda: live.serving.get("/status")["cluster"] != plane.server, "it is noticed")  # all have booted
    plane.start_apiserver()
    live.wait_for_running(PODS)
    live.wait_until_settled()
    live.assert_nothing_wasted(nodes=live.rounds()[0]["nodes"])
    assert_nothing_is_stale(live)


@contextmanager
def storm(live: Live) -> Iterator[None]:
    """Small pods, twenty a second."""
    numbers = count(1)

    def blow() -> None:
        container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "200m"}}}
        body = {"metadata": {"name": f"small-{next(numbers)}"}, "spec": {"containers": [container]}}
        admin.create(live.cluster.path("pods"), body)

    with closing(live.cluster.plane.api()) as admin, meanwhile(blow, every_seconds=0.05):
        yield


def bound(live: Live, names: Sequence[str]) -> list[str]:
    """The nodes of those of these pods that have one."""
    nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in live.cluster.pods()}
    return [nodes[name] for name in names if nodes[name]]


@pytest.mark.parametrize(("dedicated", "most"), [(True, 5), (False, 8)], ids=["dedicated", "nominated"])
def test_a_gang_lands_whole_on_standing_nodes_in_a_storm_of_small_pods(live: Live, dedicated: bool, most: int) -> None:
    """Three of its eight pods fit on nodes that stand; the others take a while, and everybody wants their room. Where
    nodes are dedicated, there need be no more than five others. A nomination alone may be lost for a moment, in which
    small pods come first: then there is another round."""
    few = group("few", "4", "8Gi", 0.2, labels={"role": "gang"}, max_size=most)
    planner = {"window": "3s", "dedicated_nodes": dedicated}
    live.configure([{"name": "all", "node_groups": [few, SMALL]}], SLOW, planner=planner)
    live.start()
    for node in range(3):
        live.cluster.create_node(f"standing-{node}", {"cpu": "4", "memory": "8Gi"}, labels={"role": "gang"})
    gang = {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}, "annotations": {"cagrpc.io/gang-min-count": "8"}}
    names = [f"gang-{member}" for member in range(8)]
    for name in names:
        requests = {"cpu": "3500m", "memory": "1Gi"}
        live.cluster.create_pod(name, requests, metadata=gang, nodeSelector={"role": "gang"})
    live.wait_for(lambda: len(bound(live, names)) >= 3, "the scheduler has bound those that fit")
    with storm(live):
        live.wait_for(lambda: len(bound(live, names)) == 8, "the gang is bound")
    where = Counter(node.partition("-")[0] for node in bound(live, names))
    assert where == {"standing": 3, "few": 5}
    live.wait_for(lambda: not pending(live), "nobody waits")
    assert_nothing_is_stale(live)
