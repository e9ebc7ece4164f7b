"""Cluster API's core beside the control plane, as the backend's tests need it."""

from __future__ import annotations

from typing import Any

from tests.support.controlplane.cluster_api import CLUSTER, CORE, PROVIDER_GROUP, WorkloadCluster
from tests.support.controlplane.processes import wait_for


def test_a_machine_becomes_a_node_and_takes_everything_with_it(workload: WorkloadCluster) -> None:
    _create(workload, "testmachines", f"{PROVIDER_GROUP}/v1", "TestMachine", {"pool": "a", "resources": {"cpu": "4"}})
    _create(workload, "testconfigs", f"{PROVIDER_GROUP}/v1", "TestConfig", {"labels": {"pool": "a"}})
    references = {
        kind: {"apiGroup": PROVIDER_GROUP, "kind": kind, "name": "m"} for kind in ("TestMachine", "TestConfig")
    }
    spec = {
        "clusterName": CLUSTER,
        "infrastructureRef": references["TestMachine"],
        "bootstrap": {"configRef": references["TestConfig"]},
    }
    document = {"apiVersion": f"{CORE}/v1beta2", "kind": "Machine", "metadata": {"name": "m"}, "spec": spec}
    workload.admin.create(workload.path("machines"), document)
    wait_for(lambda: "nodeRef" in workload.machines()[0].get("status", {}), "the core knows the Node")
    (node,) = workload.cluster.nodes()
    assert node["spec"]["providerID"] == workload.machines()[0]["spec"]["providerID"]
    assert node["metadata"]["labels"]["pool"] == "a"
    workload.admin.delete(workload.path("machines", "m"))
    wait_for(lambda: not workload.left(), "nothing is left")


def _create(workload: WorkloadCluster, plural: str, version: str, kind: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "m"}, "spec": spec}
    workload.admin.create(workload.provider.path(plural), document)
