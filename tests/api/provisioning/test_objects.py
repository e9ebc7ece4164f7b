"""ProvisioningRequests, PodTemplates and classes in JSON, and what is written back."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS, Consumption, consumption
from cagrpc.api.core.pods import PodDecoder
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import (
    Condition,
    TemplatePod,
    conditions,
    pod_sets,
    provisioning_class,
    request_path,
    status_patch,
    template_pod,
)
from cagrpc.errors import InvalidInput
from solver.model import Operator, PodSelector, PodSpec, Requirement

_CONTAINERS = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]


def _pod_set(name: str = "worker", count: Any = 3) -> dict[str, Any]:
    return {"podTemplateRef": {"name": name}, "count": count}


def test_pod_sets_are_templates_and_counts() -> None:
    problems: list[str] = []
    assert pod_sets({"podSets": [_pod_set(), _pod_set("head", 1)]}, problems) == (("worker", 3), ("head", 1))
    assert pod_sets({"podSets": [_pod_set(str(i), 16384) for i in range(32)]}, problems)[31] == ("31", 16384)
    assert not problems


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(
            [_pod_set(), _pod_set(count=16385)],
            "spec.podSets[1].count: 16385 is not a whole number from 1 to 16384",
            id="more pods than upstream's definition refuses",
        ),
        pytest.param(
            [_pod_set(count=0)], "spec.podSets[0].count: 0 is not a whole number from 1 to 16384", id="no pod"
        ),
        pytest.param(
            [_pod_set(count="2")], 'spec.podSets[0].count: "2" is not a whole number from 1 to 16384', id="a text"
        ),
        pytest.param([], "spec.podSets: has 0 pod sets; a request has 1 to 32", id="none"),
        pytest.param(None, "spec.podSets: has 0 pod sets; a request has 1 to 32", id="absent"),
        pytest.param([_pod_set()] * 33, "spec.podSets: has 33 pod sets; a request has 1 to 32", id="too many"),
        pytest.param({}, "spec.podSets: expected a list, found {}", id="no list"),
        pytest.param(
            [{"count": 1}],
            "spec.podSets[0].podTemplateRef.name: missing; write the name of a PodTemplate",
            id="no name",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_path(found: Any, problem: str) -> None:
    problems: list[str] = []
    assert len(pod_sets({"podSets": found}, problems)) <= 32
    assert problems == [problem]


def test_conditions_are_read_as_they_are_written() -> None:
    written = (
        Condition("Accepted", True, "Accepted", "soon", 1767323045.0),
        Condition("Provisioned", False, "CapacityIsNotFound", "", 1767323046.0),
    )
    patch = status_patch(written, {"nodes": "2"}, resource_version="7", generation=3)
    assert patch["metadata"] == {"resourceVersion": "7"}
    first = patch["status"]["conditions"][0]
    assert (first["status"], first["lastTransitionTime"], first["observedGeneration"]) == (
        "True", "2026-01-02T03:04:05Z", 3,
    )  # fmt: skip
    assert conditions(patch["status"]) == written


def test_conditions_of_others_are_read_as_far_as_they_can_be() -> None:
    found = conditions({"conditions": [{"type": "A", "status": "Unknown"}, {"status": "True"}, "no condition"]})
    assert found == (Condition("A", False, "", "", 0.0),)
    assert conditions({"conditions": "none"}) == ()


def test_details_that_are_gone_are_taken_away_and_others_are_whole() -> None:
    patch = status_patch((), {"b": "2"}, details_before=["a", "b"])
    assert patch == {"status": {"conditions": [], "provisioningClassDetails": {"a": None, "b": "2"}}}


def test_what_is_too_long_for_the_server_is_cut() -> None:
    patch = status_patch([Condition("T", True, "r" * 2000, "m" * 40_000, 0.0)], {"a": "d" * 40_000})["status"]
    (condition,) = patch["conditions"]
    assert (len(condition["reason"]), len(condition["message"])) == (1024, 32768)
    assert patch["provisioningClassDetails"]["a"].endswith("d…")
    assert len(patch["provisioningClassDetails"]["a"]) == 32768
    with pytest.raises(InvalidInput, match="65 details are too many"):
        status_patch((), {str(index): "" for index in range(65)})


def test_paths() -> None:
    path = "/apis/autoscaling.x-k8s.io/v1/namespaces/ns/provisioningrequests/train"
    assert request_path("ns", "train") == path
    assert request_path("ns", "train", "status") == f"{path}/status"


def _template(spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t", "namespace": "ns"}, "template": {"metadata": metadata, "spec": spec}}


def test_a_template_is_what_a_pod_made_from_it_is() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "train"}}}
    required = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {"containers": _CONTAINERS, "affinity": required, "priorityClassName": "high"}
    found = template_pod(_template(spec, labels={"b": "2", "app": "train"}))
    assert (found.namespace, found.labels) == ("ns", (("app", "train"), ("b", "2")))
    assert found.priority_class == "high"
    (anti,) = found.spec.pod_anti_affinity
    assert anti.selector == PodSelector((Requirement("app", Operator.IN, ("train",)),), ("ns",))
    pod = kubernetes_pb2.Pod()
    pod.metadata.name, pod.metadata.namespace = "p", "ns"
    pod.metadata.labels["app"] = "train"
    pod.spec.containers.add().resources.requests["cpu"].string = "2"
    message = pod.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution.add()
    message.topologyKey = "kubernetes.io/hostname"
    message.labelSelector.matchLabels["app"] = "train"
    assert PodDecoder().decode(pod.SerializeToString()).spec == found.spec


def test_what_a_template_claims_is_read() -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    spec = {"containers": _CONTAINERS, "resourceClaims": claims, "volumes": volumes}
    found = template_pod({"template": {"spec": spec}})
    assert not found.spec.unschedulable
    assert [each.template for each in found.claims.claims] == ["t"]
    assert [each.claim for each in found.volumes.claims] == ["c"]


def test_a_template_with_little_in_it() -> None:
    found = template_pod({"template": {"spec": {"containers": _CONTAINERS, "priority": 5}}})
    assert found == TemplatePod("default", (), PodSpec(requests=(("cpu", 2000),)))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "template.spec.containers: missing; a pod has at least one container"),
        (_template({"containers": []}), "template.spec.containers: missing"),
        (_template({"containers": _CONTAINERS, "tolerations": [{"operator": "In"}]}),
         r"template\.spec\.tolerations\[0\]\.operator: \"In\" is not one of Equal, Exists"),
        (_template({"containers": [{"resources": {"requests": {"cpu": "much"}}}]}),
         r"template\.spec\.containers\[0\]\.resources\.requests\.cpu"),
        (_template([]), r"template\.spec: expected a mapping, found a list"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_meant(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        template_pod(document)


def test_classes() -> None:
    spec = {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "2h"}}
    assert provisioning_class({"spec": spec}) == ("atomic-scale-up", {"ValidUntilSeconds": "2h"})
    assert provisioning_class({"spec": {"behaviour": "check-capacity"}}) == ("check-capacity", {})
    for wrong in ({}, {"behaviour": "other"}, {"behaviour": "check-capacity", "parameters": {"a": 1}}):
        with pytest.raises(InvalidInput):
            provisioning_class({"spec": wrong})


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, None),
        ({CONSUME_KEYS[0]: "r", CLASS_KEYS[1]: "c"}, Consumption("r", "c")),
        ({CONSUME_KEYS[1]: "older", CONSUME_KEYS[0]: "r", CLASS_KEYS[0]: "c"}, Consumption("r", "c")),
        ({CONSUME_KEYS[1]: "r"}, Consumption("r", "")),
        ({CLASS_KEYS[1]: "c"}, Consumption("", "c")),
        ({CONSUME_KEYS[0]: "", CLASS_KEYS[0]: ""}, None),
    ],
)
def test_consumption(annotations: dict[str, str], found: Consumption | None) -> None:
    assert consumption(annotations) == found
    assert found is None or bool(found.missing) == (not (found.request and found.class_name))
