"""deploy/provisioning-crds.yaml in a real API server: what it refuses, that it overwrites nothing, and what is told of
requests where the definition that is there refuses less."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.api.provisioning.objects import Condition, request_path, status_patch
from cagrpc.controllers.provisioning.model import ConditionType, Service
from cagrpc.controllers.provisioning.store import RequestStore, Template
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.errors import Conflict
from cagrpc.kube.client.client import Client, PatchKind
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.deployed import CRDS, documents, remove_crds, wait_until_served
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import wait_for

FILE = "provisioning-crds.yaml"
API = "apis/autoscaling.x-k8s.io/v1"
OLDER = "apis/autoscaling.x-k8s.io/v1beta1"
CLASSES = "/apis/cagrpc.io/v1alpha1/provisioningclasses"


def create(admin: Api, *definitions: dict[str, Any]) -> None:
    """As `kubectl create` does; served when this returns."""
    for definition in definitions:
        admin.create(CRDS, definition)
        wait_until_served(admin, definition)


@pytest.fixture(scope="module")
def definitions(control_plane: ControlPlane) -> Iterator[None]:
    create(control_plane.admin, *documents(FILE))
    yield
    remove_crds(control_plane.admin, FILE)


@pytest.fixture
def namespace(definitions: None, cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.admin.delete(cluster.path("provisioningrequests", api=API))
    cluster.admin.delete(CLASSES)


@pytest.fixture
def store(client: Client) -> Iterator[RequestStore]:
    store = RequestStore(client)
    yield store
    store.stop()


def pod_set(template: str = "worker", count: Any = 3) -> dict[str, Any]:
    return {"podTemplateRef": {"name": template}, "count": count}


def request(name: str = "train", api: str = API, **spec: Any) -> dict[str, Any]:
    body = {"provisioningClassName": "atomic-scale-up.kubernetes.io", "podSets": [pod_set()], **spec}
    kept = {key: value for key, value in body.items() if value is not None}
    return {
        "apiVersion": api.removeprefix("apis/"),
        "kind": "ProvisioningRequest",
        "metadata": {"name": name},
        "spec": kept,
    }


def provisioning_class(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "cagrpc.io/v1alpha1",
        "kind": "ProvisioningClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def path(cluster: Cluster, name: str = "", api: str = API) -> str:
    return cluster.path("provisioningrequests", name, api=api)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"podSets": []}, "should have at least 1 items", id="no pod set"),
        pytest.param({"podSets": [pod_set()] * 33}, "must have at most 32 items", id="too many pod sets"),
        pytest.param({"podSets": None}, "spec.podSets: Required value", id="pod sets are missing"),
        pytest.param({"podSets": [pod_set(count=0)]}, "should be greater than or equal to 1", id="no pod"),
        pytest.param({"podSets": [pod_set(count=16385)]}, "less than or equal to 16384", id="too many pods"),
        pytest.param({"podSets": [pod_set(count="3")]}, "must be of type integer", id="a count that is a text"),
        pytest.param({"podSets": [{"count": 1}]}, "podTemplateRef: Required value", id="no template"),
        pytest.param({"podSets": [pod_set("No Name")]}, "should match", id="a name that cannot be"),
        pytest.param({"provisioningClassName": None}, "provisioningClassName: Required value", id="no class"),
        pytest.param({"provisioningClassName": "A B"}, "should match", id="a class that cannot be"),
        pytest.param({"parameters": {"a": "x" * 256}}, "may not be more than 255", id="a long parameter"),
        pytest.param({"parameters": {str(i): "" for i in range(101)}}, "at most 100 items", id="too many parameters"),
    ],
)
def test_a_request_that_cannot_be_is_refused(namespace: Cluster, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiRefusal, match=told) as refused:
        namespace.admin.create(path(namespace), request(**spec))
    assert refused.value.status == 422


def test_the_largest_request_is_taken(namespace: Cluster) -> None:
    namespace.admin.create(path(namespace), request(podSets=[pod_set(count=16384)] * 32))


@pytest.mark.parametrize(
    "change",
    [
        {"podSets": [pod_set(count=4)]},
        {"podSets": [pod_set(), pod_set()]},
        {"provisioningClassName": "another"},
        {"parameters": {"ValidUntilSeconds": "7200"}},
        {"parameters": None},
    ],
)
def test_what_is_asked_for_never_changes(namespace: Cluster, change: dict[str, Any]) -> None:
    namespace.admin.create(path(namespace), request(parameters={"ValidUntilSeconds": "3600"}))
    with pytest.raises(ApiRefusal, match="what a request asks for cannot be changed"):
        namespace.admin.merge(path(namespace, "train"), {"spec": change})
    namespace.admin.merge(path(namespace, "train"), {"metadata": {"labels": {"team": "a"}}})


def test_parameters_cannot_be_added_later(namespace: Cluster) -> None:
    namespace.admin.create(path(namespace), request())
    with pytest.raises(ApiRefusal, match="what a request asks for cannot be changed"):
        namespace.admin.merge(path(namespace, "train"), {"spec": {"parameters": {"noRetry": "true"}}})


def test_the_status_is_its_own_and_holds_64_details(namespace: Cluster) -> None:
    created = {**request(), "status": {"provisioningClassDetails": {"nodes": "1"}}}
    assert "status" not in namespace.admin.create(path(namespace), created)
    status = path(namespace, "train") + "/status"
    details = {f"detail-{index}": "x" for index in range(64)}
    namespace.admin.merge(status, {"status": {"provisioningClassDetails": details}})
    with pytest.raises(ApiRefusal, match="must have at most 64 items"):
        namespace.admin.merge(status, {"status": {"provisioningClassDetails": {"one-more": "x"}}})
    with pytest.raises(ApiRefusal, match="may not be more than 32768"):
        namespace.admin.merge(status, {"status": {"provisioningClassDetails": {"detail-0": "x" * 32769}}})


@pytest.mark.parametrize(
    "wrong", [{"status": "true"}, {"reason": ""}, {"reason": "two words"}, {"type": "a b"}, {"message": None}]
)
def test_conditions_are_those_of_kubernetes(namespace: Cluster, wrong: dict[str, Any]) -> None:
    namespace.admin.create(path(namespace), request())
    status = path(namespace, "train") + "/status"
    right = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    namespace.admin.merge(status, {"status": {"conditions": [right]}})
    condition = {key: value for key, value in {**right, **wrong}.items() if value is not None}
    with pytest.raises(ApiRefusal):
        namespace.admin.merge(status, {"status": {"conditions": [condition]}})
    with pytest.raises(ApiRefusal, match="Duplicate value"):
        namespace.admin.merge(status, {"status": {"conditions": [right, right]}})


def test_older_clients_see_the_same(namespace: Cluster) -> None:
    older = path(namespace, api=OLDER)
    namespace.admin.create(older, request(api=OLDER))
    assert namespace.admin.get(path(namespace, "train"))["spec"] == namespace.admin.get(f"{older}/train")["spec"]
    with pytest.raises(ApiRefusal, match="less than or equal to 16384"):
        namespace.admin.create(older, request("large", OLDER, podSets=[pod_set(count=16385)]))


def test_a_status_that_is_written_is_read_again(namespace: Cluster, client: Client, store: RequestStore) -> None:
    namespace.admin.create(path(namespace), request())
    store.start()
    wait_for(lambda: store.synced and len(store.requests()) == 1, "the request is known")
    (before,) = store.requests()
    parts = Condition("Accepted", True, "Accepted", "ready in about 40 s", 1767323045.0)
    at = request_path(before.namespace, before.name, "status")
    patch = status_patch(
        [parts], {"nodes": "2", "attempts": "1"}, resource_version=before.resource_version, generation=1
    )
    client.patch(at, patch, PatchKind.MERGE)
    wait_for(lambda: store.requests()[0].holds(ConditionType.ACCEPTED), "it is accepted")
    (after,) = store.requests()
    assert after.conditions["Accepted"].message == "ready in about 40 s"
    assert after.conditions["Accepted"].since_seconds == 1767323045.0
    assert after.details == {"nodes": "2", "attempts": "1"}
    gone = status_patch([parts], {"nodes": "2"}, details_before=after.details, resource_version=after.resource_version)
    client.patch(at, gone, PatchKind.MERGE)
    wait_for(lambda: store.requests()[0].details == {"nodes": "2"}, "a detail is gone")
    with pytest.raises(Conflict):
        client.patch(at, patch, PatchKind.MERGE)


def test_what_a_request_refers_to_is_followed(namespace: Cluster, store: RequestStore) -> None:
    store.start()
    wait_for(lambda: store.synced, "all is listed")
    assert (store.problem, store.requests(), store.service("patient")) == (None, (), None)
    template = {
        "metadata": {"labels": {"app": "train"}},
        "spec": pod_spec({"cpu": "2"}, priorityClassName="system-node-critical"),
    }
    namespace.admin.create(namespace.path("podtemplates"), {"metadata": {"name": "worker"}, "template": template})
    spec = {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "12h"}}
    namespace.admin.create(CLASSES, provisioning_class("patient", spec))
    wait_for(lambda: store.service("patient") is not None, "the class is known")
    assert store.service("patient") == Service(ClassBehaviour.ATOMIC, parameters={"ValidUntilSeconds": "12h"})
    wait_for(lambda: isinstance(store.template(namespace.namespace, "worker"), Template), "the template is known")
    found = store.template(namespace.namespace, "worker")
    assert isinstance(found, Template)
    assert (found.priority, found.spec.requests) == (2_000_001_000, (("cpu", 2000),))
    assert (found.spec.namespace, found.spec.labels) == (namespace.namespace, (("app", "train"),))


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("c", {}, "spec.behaviour: Required value"),
        ("c", {"behaviour": "fly"}, "supported values"),
        ("atomic-scale-up.kubernetes.io", {"behaviour": "check-capacity"}, "have a meaning already"),
        ("check-capacity.autoscaling.x-k8s.io", {"behaviour": "check-capacity"}, "have a meaning already"),
        ("c", {"behaviour": "check-capacity", "parameters": {"colour": "red"}}, "are ValidUntilSeconds and noRetry"),
        ("c", {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "soon"}}, "a number of seconds, or"),
        ("c", {"behaviour": "atomic-scale-up", "parameters": {"noRetry": "yes"}}, "noRetry is true or false"),
    ],
)
def test_a_class_that_cannot_be_is_refused(namespace: Cluster, name: str, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiRefusal, match=told) as refused:
        namespace.admin.create(CLASSES, provisioning_class(name, spec))
    assert refused.value.status == 422


def test_what_a_class_does_never_changes_and_its_parameters_may(namespace: Cluster) -> None:
    spec = {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "1.5h", "noRetry": "true"}}
    namespace.admin.create(CLASSES, provisioning_class("patient", spec))
    namespace.admin.merge(f"{CLASSES}/patient", {"spec": {"parameters": {"ValidUntilSeconds": "7200"}}})
    with pytest.raises(ApiRefusal, match="what a class does cannot be changed"):
        namespace.admin.merge(f"{CLASSES}/patient", {"spec": {"behaviour": "check-capacity"}})


def test_definitions_that_are_there_are_never_overwritten(namespace: Cluster) -> None:
    names = [document["metadata"]["name"] for document in documents(FILE)]
    before = [namespace.admin.get(f"{CRDS}/{name}") for name in names]
    for document in documents(FILE):
        with pytest.raises(ApiRefusal) as refused:
            namespace.admin.create(CRDS, document)
        assert refused.value.status == 409
    assert [namespace.admin.get(f"{CRDS}/{name}") for name in names] == before


def test_where_upstreams_definition_is_there_it_stays_and_too_many_pods_are_told(
    definitions: None, cluster: Cluster, store: RequestStore
) -> None:
    ours, classes = documents(FILE)
    upstreams = copy.deepcopy(ours)
    for version in upstreams["spec"]["versions"]:
        pod_sets = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["podSets"]
        pod_sets["items"]["properties"]["count"].pop("maximum", None)
    remove_crds(cluster.admin, FILE)
    try:
        create(cluster.admin, upstreams)
        with pytest.raises(ApiRefusal) as refused:
            cluster.admin.create(CRDS, ours)
        assert refused.value.status == 409
        create(cluster.admin, classes)
        cluster.admin.create(path(cluster), request("too-large", podSets=[pod_set(count=16385)]))
        cluster.admin.create(path(cluster), request("right", podSets=[pod_set(count=16384)]))
        store.start()
        wait_for(lambda: store.synced and len(store.requests()) == 2, "both are known")
        problems = {found.name: found.problems for found in store.requests()}
        told = "spec.podSets[0].count: 16385 is not a whole number from 1 to 16384"
        assert problems == {"too-large": (told,), "right": ()}
    finally:
        remove_crds(cluster.admin, FILE)
        create(cluster.admin, ours, classes)
