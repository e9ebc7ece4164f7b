"""What goes wrong around a running server: the API server restarts, its past is forgotten, others write the same
objects. It converges: every pod runs, nothing is ordered twice, nothing is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import meanwhile

PODS = 8
GROUP = group("only", "4", "8Gi", 0.2)
SLOW = {"*": {"boot": "4s"}}
FAULTS: dict[str, Callable[[ControlPlane], None]] = {
    "the API server restarts": ControlPlane.restart_apiserver,
    "the past is forgotten": ControlPlane.forget,
}


def start_increment(live: Live) -> None:
    """Two pods a node; machines take their time."""
    live.configure([{"name": "all", "node_groups": [GROUP]}], SLOW)
    live.start()
    live.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})


def assert_converged(live: Live) -> None:
    live.wait_for_running(PODS)
    live.wait_until_settled()
    assert set(live.phases()) == {"done"}, live.what_it_says()
    live.assert_nothing_wasted(nodes=PODS // 2)


OTHER_PHASE = pytest.mark.long("the same fault in another phase; each day each phase has one")


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        pytest.param("the API server restarts", "creating", marks=OTHER_PHASE),
        ("the API server restarts", "nodes register"),
        ("the past is forgotten", "creating"),
        pytest.param("the past is forgotten", "nodes register", marks=OTHER_PHASE),
    ],
)
def test_in_the_middle_of_an_increment(live: Live, fault: str, phase: str) -> None:
    start_increment(live)
    if phase == "creating":
        live.wait_for(lambda: "creating" in live.phases(), "machines are ordered")
    else:
        live.wait_for(live.nodes, "the first node registers")
    FAULTS[fault](live.cluster.plane)
    assert_converged(live)


def test_a_cluster_that_is_away_for_long_changes_nothing(live: Live) -> None:
    """Nodes that nobody can see are not taken for lost, and pods that nobody can see are not planned again."""
    start_increment(live)
    assert_converged(live)
    live.cluster.plane.stop_apiserver()
    live.wait_for(lambda: live.serving.get("/status")["cluster"] != live.cluster.plane.server, "it is noticed")
    live.cluster.plane.start_apiserver()
    live.wait_for(lambda: live.serving.get("/status")["cluster"] == live.cluster.plane.server, "it is back")
    assert_converged(live)
    live.cluster.create_deployment("more", 2, {"cpu": "1500m", "memory": "1Gi"})
    live.wait_for_running(PODS + 2)


@contextmanager
def meddling(live: Live) -> Iterator[None]:
    """Somebody else changes every node and pod all the time, so that whoever has read one has read an old one."""
    paths, numbers = ("/api/v1/nodes", live.cluster.path("pods")), count(1)

    def meddle() -> None:
        number = next(numbers)
        for path in paths:
            for each in admin.items(path):
                name = each["metadata"]["name"]
                try:
                    admin.merge(f"{path}/{name}", {"metadata": {"annotations": {"example.com/n": str(number)}}})
                except ApiRefusal as refused:
                    if refused.status != 404:
                        raise

    with closing(live.cluster.plane.api()) as admin, meanwhile(meddle, every_seconds=0.01):
        yield


def test_others_write_the_same_objects(live: Live) -> None:
    with meddling(live):
        start_increment(live)
        assert_converged(live)


def test_a_pod_that_somebody_else_binds_first_stays_there(live: Live) -> None:
    """While the nodes are held, another scheduler takes one of the pods."""
    live.cluster.create_node("foreign", {"cpu": "2", "memory": "4Gi"})
    live.cluster.admin.merge(
        "/api/v1/nodes/foreign", {"spec": {"taints": [{"key": "foreign", "effect": "NoSchedule"}]}}
    )
    start_increment(live)
    live.wait_for(lambda: len(live.cluster.pods()) == PODS, "its pods are there")  # nodes are ordered for them before
    live.wait_for(live.phases, "machines are ordered")
    taken = live.cluster.pods()[0]["metadata"]["name"]
    binding = {"metadata": {"name": taken}, "target": {"apiVersion": "v1", "kind": "Node", "name": "foreign"}}
    live.cluster.admin.create(live.cluster.path("pods", taken) + "/binding", binding)
    live.wait_for_running(PODS - 1)  # nobody plays a kubelet for the foreign node
    live.wait_until_settled()
    where = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in live.cluster.pods()}
    assert where[taken] == "foreign"
    assert live.ordered() == PODS // 2
