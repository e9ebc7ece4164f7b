"""The rest of a real pod beside the real scheduler: labels of Namespaces that change, RuntimeClasses, resize in place,
schedulers that are not ours, PodDisruptionBudgets. What is planned is what runs, and who cannot run gets no node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from tests.support.controlplane.live import Live, group
from tests.support.storage import ZONE

RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
A = group("a", "4", "8Gi", 0.2, labels={ZONE: "a"}, zone="a")
B = group("b", "4", "8Gi", 0.3, labels={ZONE: "b"}, zone="b")


@pytest.fixture
def served(live: Live) -> Iterator[Live]:
    live.configure([{"name": "all", "node_groups": [A, B]}])
    live.start()
    yield live
    live.close()
    live.cluster.admin.delete(RUNTIME_CLASSES)


def places(live: Live) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in live.cluster.pods()}


def reasons(live: Live) -> dict[str, str]:
    """Of the pods that the latest round could not place, by name."""
    latest = (live.serving.get("/plans") or [{"unplaced": []}])[-1]["unplaced"]
    return {each["example"].rpartition("/")[2]: " ".join(each["reasons"]) for each in latest}


def test_labels_of_namespaces_count_from_when_they_are_there(served: Live) -> None:
    live = served
    live.cluster.create_pod("db", {"cpu": "1"}, nodeSelector={"pool": "b"}, metadata={"labels": {"app": "db"}})
    live.wait_for_running(1)
    term = {
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"team": "storage"}},
        "topologyKey": ZONE,
    }
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    live.cluster.create_pod("beside", {"cpu": "3500m"}, affinity=affinity)
    live.wait_for(lambda: "beside" in reasons(live), "its reason is told")
    assert live.pools() == {"b": 1}
    live.cluster.admin.merge(
        f"/api/v1/namespaces/{live.cluster.namespace}", {"metadata": {"labels": {"team": "storage"}}}
    )
    live.wait_for_running(2)
    live.wait_until_settled()
    assert live.pools() == {"b": 2}
    live.assert_nothing_wasted(2)


def test_overhead_resize_and_schedulers_that_are_not_ours(served: Live) -> None:
    live = served
    admin = live.cluster.admin
    runtime = {
        "handler": "sandbox",
        "overhead": {"podFixed": {"cpu": "2"}},
        "scheduling": {"nodeSelector": {"pool": "b"}},
    }
    admin.create(RUNTIME_CLASSES, {"metadata": {"name": "sandboxed"}, **runtime})
    live.cluster.create_pod("theirs", {"cpu": "1"}, schedulerName="somebody-else")
    live.cluster.create_deployment("sandbox", 2, {"cpu": "1"}, runtimeClassName="sandboxed")
    live.wait_for(lambda: live.running() == 2, "both run, on a node each: with its overhead a pod has three CPUs")
    live.wait_until_settled()
    assert live.pools() == {"b": 2}

    live.cluster.create_pod("grows", {"cpu": "1"}, nodeSelector={"pool": "a"})
    live.wait_for_running(3)
    larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}}
    path = live.cluster.path("pods", "grows")
    # As a kubelet reports what it has allocated; without it no pod is resized.
    allocated = {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}
    known = {"name": "main", "image": "example.com/none", "imageID": "", "ready": True, "restartCount": 0}
    admin.merge(f"{path}/status", {"status": {"containerStatuses": [{**known, **allocated}]}})
    admin.ask("PATCH", f"{path}/resize", larger, kind="application/strategic-merge-patch+json")
    live.cluster.create_pod("beside", {"cpu": "2"}, nodeSelector={"pool": "a"})
    live.wait_for_running(4)
    live.wait_until_settled()
    found = places(live)
    assert found["beside"] != found["grows"], "three of its four CPUs are asked for"
    assert found["theirs"] == ""
    assert live.pools() == {"a": 2, "b": 2}
    assert live.ordered() == 4


@pytest.mark.long("budgets are among the cases of controllers/scale_down/test_nodes.py; each review takes 20 s")
def test_a_node_that_a_budget_keeps_from_being_drained_is_not_scaled_down(served: Live) -> None:
    live = served
    live.cluster.create_deployment("kept", 1, {"cpu": "500m"})
    budgets = live.cluster.path("poddisruptionbudgets", api="apis/policy/v1")
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}}
    live.cluster.admin.create(budgets, {"metadata": {"name": "never"}, "spec": spec})
    live.cluster.create_pod("large", {"cpu": "3800m"})  # on a node of its own
    live.wait_for_running(2)
    live.wait_until_settled()
    (kept,) = [node for pod, node in places(live).items() if pod.startswith("kept")]

    def why_it_stays() -> str:
        (node,) = [each for each in live.nodes() if each["metadata"]["name"] == kept]
        return str(node["metadata"].get("annotations", {}).get(OURS, ""))

    live.wait_for(lambda: "PodDisruptionBudget" in why_it_stays(), "the budget is the reason")
    live.cluster.admin.delete(f"{budgets}/never")
    live.wait_for(lambda: "PodDisruptionBudget" not in why_it_stays(), "it is the reason no longer")
