"""`cagrpc.cluster.view.view` against a real API server, scheduler and controllers: pods come, are bound and go, and
whatever happens to the watches, the view ends as one that begins only then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.cluster.state import ConsumerStage
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.bookings import consumed
from cagrpc.controllers.provisioning.store import RequestStore, Template
from cagrpc.kube.client.client import Client
from tests.support.clocks import any_clock
from tests.support.controllers.cluster_objects import comparable
from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.processes import wait_for


@pytest.fixture
def view(client: Client) -> Iterator[ClusterView]:
    view = _started(client)
    yield view
    view.stop()


def _started(client: Client) -> ClusterView:
    view = ClusterView(client, now=any_clock(lambda: 0.0))
    view.start()
    wait_for(lambda: view.problem is None, "the view knows the cluster")
    return view


def _name(cluster: Cluster) -> str:
    """Of a node, and of no test before: the node lifecycle controller remembers when it saw a name last."""
    return f"n1-{cluster.namespace}"


def _waiting(view: ClusterView) -> list[int]:
    return [each.pod_set.count for each in view.state().waiting]


def _cpus(view: ClusterView) -> dict[str, int]:
    return {each.node.name: each.node.free["cpu"] for each in view.state().nodes}


def _shut_down(cluster: Cluster, deployment: str) -> None:
    """Without kubelets, pods on nodes go only when told to go at once."""
    cluster.admin.merge(cluster.path("deployments", deployment, api="apis/apps/v1"), {"spec": {"replicas": 0}})

    def gone() -> bool:
        left = [pod["metadata"] for pod in cluster.pods() if pod["metadata"]["labels"]["app"] == deployment]
        for metadata in left:
            if "deletionTimestamp" in metadata:
                cluster.admin.delete(cluster.path("pods", metadata["name"]), gracePeriodSeconds=0)
        return not left

    wait_for(gone, f"the pods of {deployment} are gone")


def test_pods_wait_and_then_take_from_their_nodes(cluster: Cluster, view: ClusterView) -> None:
    cluster.create_deployment("web", 6, {"cpu": "900m"})
    wait_for(lambda: _waiting(view) == [6], "all six are one set")
    wait_for(lambda: view.arrivals().expected == 0, "none is still to be created")
    n1 = _name(cluster)
    cluster.create_node(n1, {"cpu": "4", "memory": "8Gi"})
    wait_for(lambda: _cpus(view) == {n1: 400}, "four are on the node")
    assert _waiting(view) == [2]
    (shown,) = view.state().nodes
    assert (shown.ready, shown.held, [each.count for each in shown.movable]) == (True, False, [4])
    _shut_down(cluster, "web")
    wait_for(lambda: _cpus(view) == {n1: 4000} and not _waiting(view), "they are gone")


def test_whatever_happens_to_the_watches_the_view_is_right_in_the_end(
    cluster: Cluster, client: Client, view: ClusterView
) -> None:
    n1 = _name(cluster)
    cluster.create_node(n1, {"cpu": "4", "memory": "8Gi"})
    cluster.create_deployment("web", 6, {"cpu": "900m"})
    wait_for(lambda: _cpus(view) == {n1: 400}, "four are on the node")
    cluster.plane.forget()
    cluster.create_deployment("db", 3, {"cpu": "100m"})
    cluster.plane.restart_apiserver()
    _shut_down(cluster, "web")
    wait_for(lambda: _cpus(view) == {n1: 3700} and not _waiting(view), "the view is as the cluster is")
    wait_for(lambda: view.problem is None, "all is followed again")
    anew = _started(client)
    assert comparable(view.state()) == comparable(anew.state())
    anew.stop()


def test_consumers_of_a_request_are_told_with_the_spec_of_its_template(cluster: Cluster, client: Client) -> None:
    n1 = _name(cluster)
    annotations = {CONSUME_KEYS[0]: "train", CLASS_KEYS[1]: "atomic-scale-up.kubernetes.io"}
    tolerates = [{"key": "gpu", "operator": "Exists"}]
    spec = pod_spec({"cpu": "900m"}, tolerations=tolerates, nodeSelector={"kubernetes.io/hostname": n1})
    template = {"metadata": {"labels": {"app": "train"}}, "spec": spec}
    cluster.admin.create(cluster.path("podtemplates"), {"metadata": {"name": "worker"}, "template": template})
    store = RequestStore(client)
    store.start()
    view = _started(client)
    try:
        wait_for(lambda: isinstance(store.template(cluster.namespace, "worker"), Template), "the template is known")
        metadata = {"annotations": annotations}
        more = {"tolerations": tolerates, "nodeSelector": {"kubernetes.io/hostname": n1}}
        cluster.create_pod("first", {"cpu": "900m"}, metadata={**metadata, "labels": {"app": "train"}}, **more)
        cluster.create_pod("half", {"cpu": "100m"}, metadata={"annotations": {CONSUME_KEYS[1]: "train"}})
        wait_for(
            lambda: len(view.state().consumers) == 1 and len(view.state().consumers_missing_annotation) == 1,
            "both are known",
        )
        half = f"{cluster.namespace}/half"
        wait_for(lambda: [each.pod_set.name for each in view.state().waiting] == [half], "the scheduler has tried it")
        cluster.create_node(n1, {"cpu": "4", "memory": "8Gi"})
        wait_for(lambda: view.state().consumers[0].stage is ConsumerStage.BOUND, "it is bound")
        (bound,) = view.state().consumers
        assert (bound.request, bound.class_name, bound.node) == ("train", "atomic-scale-up.kubernetes.io", n1)
        found = store.template(cluster.namespace, "worker")
        assert isinstance(found, Template)
        other = replace(found.spec, node_selector=())
        assert consumed([(other, 1), (found.spec, 1)], view.state().consumers, {}) == {0: 0, 1: 1}
    finally:
        view.stop()
        store.stop()
