"""The control plane that the other tests stand on: every part of it does its work, and comes back when stopped."""

from __future__ import annotations

import pytest

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.plane import Scoring, User
from tests.support.controlplane.processes import wait_for


def phase_and_node(cluster: Cluster) -> list[tuple[str, str | None]]:
    return [(pod["status"]["phase"], pod["spec"].get("nodeName")) for pod in cluster.pods()]


def test_it_is_the_version_that_the_module_names(cluster: Cluster) -> None:
    assert cluster.admin.get("/version")["gitVersion"] == "v1.36.3"


def test_a_deployments_pods_are_made_and_scheduled(cluster: Cluster) -> None:
    cluster.create_node("one", {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"})
    cluster.create_deployment("web", 3, {"cpu": "1", "memory": "1Gi"})
    cluster.create_pod("gpu", {"cpu": "1", "nvidia.com/gpu": "2"})
    wait_for(lambda: phase_and_node(cluster) == [("Pending", "one")] * 4, "all four pods are bound to the node")


def test_who_has_no_rights_is_refused_and_who_is_not_known_too(cluster: Cluster) -> None:
    nobody = cluster.plane.api(User.NOBODY)
    with pytest.raises(ApiRefusal) as refused:
        nobody.get("/api/v1/pods")
    assert refused.value.status == 403
    nobody.close()


def test_a_restarted_api_server_has_what_it_had(cluster: Cluster) -> None:
    cluster.create_pod("waiting", {"cpu": "1"})
    cluster.plane.restart_apiserver()
    assert [pod["metadata"]["name"] for pod in cluster.pods()] == ["waiting"]
    cluster.create_node("one", {"cpu": "1", "memory": "1Gi"})
    wait_for(lambda: phase_and_node(cluster) == [("Pending", "one")], "the scheduler goes on with the new one")


def test_what_is_forgotten_is_gone_for_lists_and_watches(cluster: Cluster) -> None:
    for name in ("one", "two", "three"):
        cluster.create_pod(name, {"cpu": "1"})
    pods = cluster.path("pods")
    first = cluster.admin.get(pods, limit="1")["metadata"]
    cluster.create_pod("four", {"cpu": "1"})
    cluster.plane.forget()
    with pytest.raises(ApiRefusal) as refused:
        cluster.admin.get(pods, limit="1", **{"continue": first["continue"]})
    assert refused.value.status == 410
    event = cluster.admin.get(pods, watch="true", resourceVersion=first["resourceVersion"], timeoutSeconds="20")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


@pytest.mark.parametrize(("scoring", "expected"), [(Scoring.LEAST_ALLOCATED, 2), (Scoring.MOST_ALLOCATED, 1)])
def test_the_scheduler_scores_as_it_is_told(cluster: Cluster, scoring: Scoring, expected: int) -> None:
    for name in ("one", "two"):
        cluster.create_node(name, {"cpu": "8", "memory": "16Gi"})
    with cluster.plane.scheduler(scoring):
        for number in range(2):
            # Bare pods are not spread, as those of a Deployment would be.
            cluster.create_pod(f"pod-{number}", {"cpu": "1", "memory": "2Gi"})
            wait_for(lambda: all(node for _, node in phase_and_node(cluster)), "the pod is bound")
    assert len({node for _, node in phase_and_node(cluster)}) == expected


def test_pods_of_a_gang_wait_for_one_another(cluster: Cluster) -> None:
    """PodGroup and `spec.schedulingGroup` are there, and the scheduler heeds them."""
    gang = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    cluster.admin.create(cluster.path("podgroups", api="apis/scheduling.k8s.io/v1alpha2"), gang)
    cluster.create_node("one", {"cpu": "4", "memory": "8Gi"})
    member = {"requests": {"cpu": "1"}, "schedulingGroup": {"podGroupName": "gang"}}
    cluster.create_pod("first", **member)
    cluster.create_pod("alone", {"cpu": "1"})
    wait_for(lambda: ("Pending", "one") in phase_and_node(cluster), "the pod of no gang is bound")
    assert phase_and_node(cluster).count(("Pending", None)) == 1
    cluster.create_pod("second", **member)
    wait_for(lambda: phase_and_node(cluster) == [("Pending", "one")] * 3, "the whole gang is bound")
