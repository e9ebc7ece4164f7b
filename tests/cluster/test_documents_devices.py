"""Dumps with claims: what `cagrpc plan` makes of objects of resource.k8s.io."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.errors import InvalidInput
from cagrpc.offline.inputs import Inputs, read_problem

DRIVER = "gpu.example.com"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "extendedResourceName": "example.com/gpu",
    },
}
CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "two"},
    "spec": {"spec": CLAIM_SPEC},
}
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "both"}, "spec": CLAIM_SPEC}
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "n1-gpus"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{n}"} for n in range(4)],
    },
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "m5.large"}},
    "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
}
POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "pool"},
    "spec": {
        "template": {
            "spec": {
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large", "m5.xlarge"]}
                ]
            }
        }
    },
}
DEVICES = {
    "devices": [{"driver": DRIVER, "count": 2, "instance_types": ["m5.xlarge"], "attributes": {"model": "a100"}}]
}


def pod(name: str, claims: list[dict[str, str]], **requests: str) -> dict[str, Any]:
    asked = {"cpu": "1", **requests}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": asked}}], "resourceClaims": claims},
    }


BY_TEMPLATE = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
BY_NAME = [{"name": "gpu", "resourceClaimName": "both"}]


def read(tmp_path: Path, *objects: dict[str, Any], devices: dict[str, Any] | None = None) -> Any:
    dump, pool = tmp_path / "dump.yaml", tmp_path / "pool.yaml"
    dump.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*objects]}))
    pool.write_text(yaml.safe_dump(POOL))
    named = None
    if devices is not None:
        named = tmp_path / "devices.yaml"
        named.write_text(yaml.safe_dump(devices))
    return read_problem(Inputs(pods=(dump,), provisioners=(pool,), devices=named))


def test_a_dump_with_claims_leaves_no_warning(tmp_path: Path) -> None:
    found = read(tmp_path, NODE, SLICE, CLASS, TEMPLATE, CLAIM, pod("a", BY_TEMPLATE), pod("b", BY_NAME), pod("c", []))
    assert found.warnings == ()
    (node,) = found.problem.nodes
    assert [each.count for each in node.devices] == [4]
    assert {(pods.count, len(pods.spec.claims)) for pods in found.problem.pod_sets} == {(2, 1), (1, 0)}


def test_new_nodes_have_what_nodes_of_their_type_have_or_else_what_is_configured(tmp_path: Path) -> None:
    found = read(tmp_path, NODE, SLICE, CLASS, TEMPLATE, pod("a", BY_TEMPLATE), devices=DEVICES)
    counts = {group.instance_type: sum(each.count for each in group.devices) for group in found.problem.node_groups}
    assert counts == {"m5.large": 4, "m5.xlarge": 2}
    found = read(tmp_path, CLASS, TEMPLATE, pod("a", BY_TEMPLATE))
    assert not any(group.devices for group in found.problem.node_groups)


def test_devices_that_differ_are_entries_of_their_own(tmp_path: Path) -> None:
    entries = [{"driver": DRIVER, "count": 2, "attributes": {"model": model}} for model in ("a100", "h100")]
    expression = f'device.attributes["{DRIVER}"].model == "h100"'
    asked = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    template = {**TEMPLATE, "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}}}
    found = read(tmp_path, CLASS, template, pod("a", BY_TEMPLATE), devices={"devices": entries})
    assert {sum(each.count for each in group.devices) for group in found.problem.node_groups} == {2}


def test_pods_of_one_workload_share_a_claim_on_one_node(tmp_path: Path) -> None:
    template = pod("x", BY_NAME)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "share"},
        "spec": {"replicas": 3, "template": {"metadata": {"labels": {"app": "x"}}, "spec": template["spec"]}},
    }
    found = read(tmp_path, CLASS, CLAIM, deployment)
    with_claim = [pods for pods in found.problem.pod_sets if pods.spec.claims]
    tied = [pods for pods in found.problem.pod_sets if pods.spec.pod_affinity]
    assert [pods.count for pods in with_claim] == [1]
    assert [pods.count for pods in tied] == [2]
    (first,) = with_claim
    for pods in tied:
        (condition,) = pods.spec.pod_affinity[0].selector.match_expressions
        assert (condition.key, "true") in first.spec.labels
    found = read(tmp_path, CLASS, CLAIM, deployment, pod("other", BY_NAME))
    assert [pods.name for pods in found.problem.pod_sets if pods.spec.claims] == ["default/other"]
    assert [pods.count for pods in found.problem.pod_sets if pods.spec.pod_affinity] == [3]


def test_nobody_waits_for_a_pod_that_cannot_run(tmp_path: Path) -> None:
    lost = [*BY_NAME, {"name": "lost", "resourceClaimName": "lost"}]
    found = read(tmp_path, CLASS, CLAIM, pod("a", lost), pod("b", BY_NAME))
    by_name = {pods.name: pods.spec for pods in found.problem.pod_sets}
    assert by_name["default/a"].unschedulable == "ResourceClaim default/lost is not found"
    assert by_name["default/b"].claims
    assert not by_name["default/b"].pod_affinity


def test_an_extended_resource_that_a_class_backs_is_one_of_devices(tmp_path: Path) -> None:
    found = read(tmp_path, NODE, SLICE, CLASS, pod("a", [], **{"example.com/gpu": "3"}))
    (pods,) = found.problem.pod_sets
    assert dict(pods.spec.requests) == {"cpu": 1000}
    (claim,) = pods.spec.claims
    assert claim.requests[0].alternatives[0].count == 3
    (node,) = found.problem.nodes
    assert [each.count for each in node.devices] == [4]
    plugged = {**NODE, "status": {"allocatable": {**NODE["status"]["allocatable"], "example.com/gpu": "1"}}}  # type: ignore[index]
    found = read(tmp_path, plugged, SLICE, CLASS, pod("a", [], **{"example.com/gpu": "3"}))
    (node,) = found.problem.nodes
    assert [each.count for each in node.devices] == [1]  # the scheduler takes the device plugin's there


def test_what_is_missing_or_beyond_planning_is_the_pods_reason(tmp_path: Path) -> None:
    shared = {**SLICE, "spec": {**SLICE["spec"], "nodeName": None, "allNodes": True}}  # type: ignore[dict-item]
    found = read(tmp_path, shared, CLASS, TEMPLATE, pod("a", BY_TEMPLATE), pod("b", BY_NAME))
    reasons = {pods.name: pods.spec.unschedulable for pods in found.problem.pod_sets}
    assert "several nodes can use them" in reasons["default/a"]
    assert reasons["default/b"] == "ResourceClaim default/both is not found"


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"devices": [{"driver": "Gpu!"}]}, "name of a DRA driver"),
        ({"devices": [{"driver": DRIVER, "count": 1, "instance_types": ["none"]}]}, "no node group has such nodes"),
        ({"devices": [{"driver": DRIVER}]}, "no node group has such nodes"),  # the catalogue has no GPUs there
        ({"devices": [{"driver": DRIVER, "count": 1, "attributes": {"a b": 1}}]}, "expected a name"),
        ({"devices": [{"driver": DRIVER, "count": 1, "capacity": {"memory": "40Gb"}}]}, "not a quantity"),
        ({"devices": [{"driver": DRIVER, "count": 1, "attributes": {"v": {"version": "1"}}}]}, "semantic version"),
        ({}, "no section devices"),
    ],
)
def test_errors_of_the_section_name_the_place(tmp_path: Path, section: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read(tmp_path, pod("a", []), devices=section)
