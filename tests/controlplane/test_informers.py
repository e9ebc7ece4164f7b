"""The informer against a real API server: pages, a restart, and a past that the server has forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.processes import wait_for

TWO_PAGES = 600


class Names:
    """Of the objects there are."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.lists = 0

    def replaced(self, objects: Iterable[str]) -> None:
        self.known = set(objects)
        self.lists += 1

    def applied(self, obj: str) -> None:
        self.known.add(obj)

    def deleted(self, of: ObjectIdentity) -> None:
        self.known.discard(of.name)


def name_of_pod(data: Any) -> str:
    return kubernetes_pb2.Pod.FromString(data).metadata.name


def name_in_json(document: Any) -> str:
    return str(document["metadata"]["name"])


@pytest.fixture
def pods(cluster: Cluster, client: Client) -> Iterator[Names]:
    """As an informer sees them, of this test's namespace."""
    names = Names()
    informer = Informer(client, Resource(cluster.path("pods"), name_of_pod), names)
    cluster.create_pod("first", {"cpu": "1"})
    informer.start()
    wait_for(lambda: informer.synced, "the first list")
    yield names
    informer.stop()


def agree(cluster: Cluster, names: Names) -> bool:
    return names.known == {pod["metadata"]["name"] for pod in cluster.pods()}


def test_what_comes_and_goes_is_seen_without_listing_again(cluster: Cluster, pods: Names) -> None:
    cluster.create_pod("second", {"cpu": "1"})
    wait_for(lambda: pods.known == {"first", "second"}, "the new pod is seen")
    cluster.admin.delete(cluster.path("pods", "first"), gracePeriodSeconds=0)
    wait_for(lambda: pods.known == {"second"}, "the deletion is seen")
    assert pods.lists == 1


def test_several_pages(cluster: Cluster, client: Client) -> None:
    cluster.create_deployment("many", TWO_PAGES, {"cpu": "1"})
    wait_for(lambda: len(cluster.pods()) == TWO_PAGES, "the pods are made")
    names = Names()
    informer = Informer(client, Resource(cluster.path("pods"), name_of_pod), names)
    informer.start()
    wait_for(lambda: informer.synced, "the first list")
    assert agree(cluster, names)
    assert len(names.known) == TWO_PAGES
    informer.stop()


def test_a_restart_is_survived(cluster: Cluster, pods: Names) -> None:
    cluster.plane.restart_apiserver()
    cluster.create_pod("second", {"cpu": "1"})
    wait_for(lambda: pods.known == {"first", "second"}, "a pod made after the restart is seen")


def test_a_forgotten_past_is_listed_anew(cluster: Cluster, pods: Names) -> None:
    cluster.plane.forget()
    cluster.admin.delete(cluster.path("pods", "first"), gracePeriodSeconds=0)
    cluster.create_pod("second", {"cpu": "1"})
    wait_for(lambda: pods.known == {"second"}, "what there is now is seen")
    assert pods.lists >= 2


def test_custom_resources(cluster: Cluster, client: Client) -> None:
    """They have no protobuf. Kubernetes' own kinds answer in JSON the same way."""
    client.create(cluster.path("configmaps"), {"metadata": {"name": "one"}})
    names = Names()
    informer = Informer(client, Resource(cluster.path("configmaps"), name_in_json, Encoding.JSON), names)
    informer.start()
    wait_for(lambda: "one" in names.known, "the first list")
    client.delete(cluster.path("configmaps", "one"))
    wait_for(lambda: "one" not in names.known, "the deletion is seen")
    informer.stop()
