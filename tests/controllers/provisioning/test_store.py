"""The store of ProvisioningRequests and of what they refer to, fed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import CLASSES, POD_TEMPLATES, REQUESTS
from cagrpc.cluster.view.model import PRIORITY_CLASSES
from cagrpc.controllers.provisioning.model import Condition, ConditionType, ProvisioningRequest, RequestedPods, Service
from cagrpc.controllers.provisioning.store import RequestObjects, Template
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import identity
from solver.model import PodSpec

_CREATED = "2026-01-02T03:04:05Z"
_CONTAINERS = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]


class _Fed(RequestObjects):
    """RequestObjects whose reflectors are a test."""

    def put(self, path: str, *objects: Any) -> None:
        for each in objects:
            self._followed(path).sink.applied(self._followed(path).resource.decode(each))

    def drop(self, path: str, *objects: Any) -> None:
        for each in objects:
            self._followed(path).sink.deleted(identity(self._followed(path).resource.encoding, each))

    def relist(self, path: str, *objects: Any) -> None:
        self._followed(path).sink.replaced(map(self._followed(path).resource.decode, objects))

    def _followed(self, path: str) -> Any:
        (found,) = (each for each in self.followed if each.resource.path == path)
        return found


def _request(name: str = "train", *, status: Any = None, created: str = _CREATED, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": created}
    pod_sets = [{"podTemplateRef": {"name": "worker"}, "count": 3}]
    return {
        "metadata": {**metadata, "resourceVersion": "17", "generation": 2},
        "spec": {"provisioningClassName": "c", "podSets": pod_sets, **spec},
        **({"status": status} if status is not None else {}),
    }


def _template(name: str = "worker", *, labels: Any = None, **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"labels": labels or {}}, "spec": {"containers": _CONTAINERS, **spec}}
    return {"metadata": {"name": name, "namespace": "ns"}, "template": body}


def _priority(name: str, value: int, *, default: bool = False) -> bytes:
    found = kubernetes_pb2.PriorityClass(value=value, globalDefault=default)
    found.metadata.name = name
    return found.SerializeToString()


def test_a_request_is_all_that_its_object_says() -> None:
    fed = _Fed()
    accepted = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "m",
        "lastTransitionTime": _CREATED,
    }
    status = {"conditions": [accepted], "provisioningClassDetails": {"attempts": "1"}}
    fed.put(REQUESTS, _request(status=status, parameters={"ValidUntilSeconds": "2h"}))
    (found,) = fed.requests()
    assert found == ProvisioningRequest(
        uid="uid-train",
        namespace="ns",
        name="train",
        class_name="c",
        pod_sets=(RequestedPods("worker", 3),),
        parameters={"ValidUntilSeconds": "2h"},
        created_at_seconds=1767323045.0,
        resource_version="17",
        generation=2,
        conditions={"Accepted": Condition("Accepted", True, "Accepted", "m", 1767323045.0)},
        details={"attempts": "1"},
    )
    assert found.holds(ConditionType.ACCEPTED)
    assert not found.holds(ConditionType.PROVISIONED)


def test_requests_come_and_go_and_are_oldest_first() -> None:
    fed = _Fed()
    fed.put(REQUESTS, _request("b"), _request("a"), _request("oldest", created="2025-01-02T03:04:05Z"))
    assert [each.name for each in fed.requests()] == ["oldest", "a", "b"]
    assert fed.requests() is fed.requests()
    going = _request("b")
    going["metadata"]["deletionTimestamp"] = _CREATED
    fed.put(REQUESTS, going)
    assert [each.deleting for each in fed.requests()] == [False, False, True]
    fed.drop(REQUESTS, going)
    assert [each.name for each in fed.requests()] == ["oldest", "a"]
    fed.relist(REQUESTS, _request("new"))
    assert [each.name for each in fed.requests()] == ["new"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        # what the definition that comes with CA lets pass
        ({"podSets": [{"podTemplateRef": {"name": "worker"}, "count": 20_000}]}, "spec.podSets[0].count: 20000 is not"),
        ({"podSets": []}, "spec.podSets: has 0 pod sets"),
        ({"parameters": {"a": 1}}, "spec.parameters.a: expected text"),
    ],
)
def test_an_invalid_request_is_stored_with_its_problem(spec: dict[str, Any], problem: str) -> None:
    fed = _Fed()
    fed.put(REQUESTS, _request(**spec), _request("good"))
    good, bad = fed.requests()
    assert (good.name, good.problems) == ("good", ())
    assert [each[: len(problem)] for each in bad.problems] == [problem]


def test_a_status_that_nobody_can_read_is_no_mistake_of_who_asks() -> None:
    fed = _Fed()
    fed.put(REQUESTS, _request(status={"conditions": 3, "provisioningClassDetails": {"nodes": 2}}))
    (found,) = fed.requests()
    assert (found.problems, found.conditions, found.details) == ((), {}, {})


def test_a_template_is_a_pod_with_all_of_its_labels() -> None:
    fed = _Fed()
    assert fed.template("ns", "worker") == "there is no PodTemplate ns/worker"
    fed.put(POD_TEMPLATES, _template(labels={"b": "2", "a": "1"}))
    spec = PodSpec(requests=(("cpu", 2000),), namespace="ns", labels=(("a", "1"), ("b", "2")))
    found = fed.template("ns", "worker")
    assert isinstance(found, Template)
    assert (found.spec, found.priority, found.pod.name) == (spec, 0, "worker")
    assert isinstance(fed.template("other", "worker"), str)
    fed.put(POD_TEMPLATES, _template(tolerations=[{"operator": "In"}]))
    assert fed.template("ns", "worker") == (
        "PodTemplate ns/worker is invalid: template.spec.tolerations[0].operator: 'In' is not one of Equal, Exists"
    )
    fed.drop(POD_TEMPLATES, _template())
    assert fed.template("ns", "worker") == "there is no PodTemplate ns/worker"


def test_the_priority_is_that_of_the_class_or_of_the_default_whatever_number_the_template_says() -> None:
    fed = _Fed()
    said = _template("said", priority=2_000_000_000)
    fed.put(POD_TEMPLATES, _template(), _template("named", priorityClassName="high", priority=7), said)

    def priority(name: str) -> int | str:
        found = fed.template("ns", name)
        return found if isinstance(found, str) else found.priority

    assert [priority(name) for name in ("worker", "named", "said")] == [
        0, "PodTemplate ns/named: there is no PriorityClass high", 0,
    ]  # fmt: skip
    fed.put(
        PRIORITY_CLASSES, _priority("high", 100), _priority("usual", 5, default=True), _priority("x", 3, default=True)
    )
    assert [priority(name) for name in ("worker", "named", "said")] == [3, 100, 3]


def test_classes_of_the_clusters_own() -> None:
    fed = _Fed()
    assert fed.service("patient") is None
    spec = {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "12h"}}
    look = {"metadata": {"name": "look"}, "spec": {"behaviour": "check-capacity"}}
    fed.put(CLASSES, {"metadata": {"name": "patient"}, "spec": spec}, look)
    assert fed.service("patient") == Service(ClassBehaviour.ATOMIC, parameters={"ValidUntilSeconds": "12h"})
    assert fed.service("look") == Service(ClassBehaviour.CHECK, books=False)
    fed.relist(CLASSES, look)
    assert fed.service("patient") is None
    with pytest.raises(InvalidInput, match=r"spec\.behaviour: 'fly' is not one of check-capacity, atomic-scale-up"):
        fed.put(CLASSES, {"metadata": {"name": "c"}, "spec": {"behaviour": "fly"}})


def test_templates_of_requests_that_have_not_failed_are_expected() -> None:
    fed = _Fed()
    assert fed.expected() == frozenset()
    fed.put(REQUESTS, _request("a"), _request("b", podSets=[{"podTemplateRef": {"name": "head"}, "count": 1}]))
    fed.put(POD_TEMPLATES, _template(labels={"app": "a"}), _template("head"), _template("of-nobody", labels={"x": "y"}))
    assert {(each.name, each.labels) for each in fed.expected()} == {("worker", (("app", "a"),)), ("head", ())}
    assert fed.expected() is fed.expected()
    failed = {"type": "Failed", "status": "True", "reason": "Expired", "message": "", "lastTransitionTime": _CREATED}
    fed.put(REQUESTS, _request("a", status={"conditions": [failed]}))
    (head,) = fed.expected()
    assert head.name == "head"
    fed.put(POD_TEMPLATES, _template("head", tolerations=[{"operator": "In"}]))
    assert fed.expected() == frozenset()
    fed.keep(frozenset({head}))
    assert fed.expected() == {head}, "capacity is reserved for its pods"
