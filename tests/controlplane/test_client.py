"""`cagrpc.kube.client` against a real API server: every kind of credentials, its words for what it refuses, and what
happens while it is away. Faults that must come at one moment are played in tests/kube."""

from __future__ import annotations

import pytest

from cagrpc.errors import Conflict, InvalidInput, NotFound, Unavailable
from cagrpc.kube.client.client import Client, PatchKind
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.plane import User


def who(client: Client) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    return str(answer["status"]["userInfo"]["username"])


def test_every_kind_of_credentials_is_accepted(cluster: Cluster) -> None:
    plane = cluster.plane
    kubeconfigs = {
        plane.kubeconfig(User.NOBODY): "nobody",
        plane.kubeconfig_by_certificate(): "cluster-autoscaler",
        plane.kubeconfig_of_service_account(cluster.namespace, "default"): (
            f"system:serviceaccount:{cluster.namespace}:default"
        ),
    }
    for kubeconfig, name in kubeconfigs.items():
        client = Client.connect(kubeconfig)
        assert who(client) == name
        client.close()


def test_a_missing_right_is_named(cluster: Cluster) -> None:
    client = cluster.plane.client(User.NOBODY)
    with pytest.raises(Unavailable, match="list pods"):
        client.get("/api/v1/pods")
    client.close()


def test_of_two_writers_the_second_one_learns_of_the_first(cluster: Cluster, client: Client) -> None:
    path = cluster.path("configmaps", "one")
    read = client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}, "data": {"by": "nobody"}})
    client.replace(path, {**read, "data": {"by": "the first"}})
    with pytest.raises(Conflict):
        client.replace(path, {**read, "data": {"by": "the second"}})
    with pytest.raises(Conflict):
        client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}})
    assert client.get(path)["data"] == {"by": "the first"}


def test_every_kind_of_patch(cluster: Cluster, client: Client) -> None:
    path = cluster.path("configmaps", "one")
    client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}, "data": {"a": "1"}})
    client.patch(path, {"data": {"a": None, "b": "2"}})
    found = client.patch(path, {"metadata": {"labels": {"c": "3"}}}, PatchKind.STRATEGIC)
    assert (found["data"], found["metadata"]["labels"]) == ({"b": "2"}, {"c": "3"})


def test_an_object_of_the_same_name_is_not_deleted_for_another(cluster: Cluster, client: Client) -> None:
    path = cluster.path("configmaps", "one")
    first = client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}})
    client.delete(path)
    second = client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}})
    client.delete(path, uid=first["metadata"]["uid"])
    assert client.get(path)["metadata"]["uid"] == second["metadata"]["uid"]
    client.delete(path, uid=second["metadata"]["uid"])
    client.delete(path)
    with pytest.raises(NotFound):
        client.get(path)


def test_what_cannot_be_meant_is_refused_in_the_servers_words(cluster: Cluster, client: Client) -> None:
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        client.create(cluster.path("configmaps"), {"metadata": {"name": "Not A Name"}})


def test_a_pod_is_bound_once(cluster: Cluster, client: Client) -> None:
    for name in ("one", "two"):
        cluster.create_node(name, {"cpu": "4", "memory": "8Gi"})
    cluster.create_pod("pod", {"cpu": "1"}, schedulerName="none")
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pod"}}
    path = cluster.path("pods", "pod") + "/binding"
    client.create(path, {**binding, "target": {"apiVersion": "v1", "kind": "Node", "name": "one"}})
    with pytest.raises(Conflict):
        client.create(path, {**binding, "target": {"apiVersion": "v1", "kind": "Node", "name": "two"}})
    (pod,) = cluster.pods()
    assert pod["spec"]["nodeName"] == "one"


def test_a_server_that_comes_back_is_found_again(cluster: Cluster, client: Client) -> None:
    cluster.plane.stop_apiserver()
    with pytest.raises(Unavailable, match="cannot be reached"):
        client.get("/version")
    cluster.plane.start_apiserver()
    assert client.get("/version")["gitVersion"].startswith("v1.36.")
