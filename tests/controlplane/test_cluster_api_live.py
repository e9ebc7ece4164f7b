"""`cagrpc serve` over Cluster API's core, with the rights of deploy/ and nothing beside them: pods are planned, their
machines made, and the process killed on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import START_UP_TAINT
from tests.support.controlplane.cluster_api import CLUSTER, WorkloadCluster
from tests.support.controlplane.deployed import apply, documents, remove
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.machine_provider import PROVIDER_GROUP

PODS = 4
POOL, SHORT = "only", "short"
TO_DONE = (
    "before order",
    "after clone of infrastructure",
    "before machine",
    "after order",
    "after commit ready",
    "before commit done",
)
TO_ROLLED_BACK = ("after order", "before commit rolling-back", "after delete")
RIGHTS = "rbac-cluster-api.yaml"


@pytest.fixture
def served(live: Live, workload: WorkloadCluster) -> Iterator[Live]:
    """Configured for the Cluster, with a service account for both of its roles."""
    for pool in (POOL, SHORT):
        taint = {"key": START_UP_TAINT, "effect": "NoSchedule"}
        workload.template(pool, {"cpu": "4", "memory": "8Gi"}, labels={"pool": pool}, taints=[taint])
        workload.machine_deployment(pool)
    for document in (*documents("rbac.yaml"), *rights(workload)):
        apply(workload.admin, document)
    yield live
    live.close()
    remove(workload.admin, "rbac.yaml")


def rights(workload: WorkloadCluster) -> Sequence[dict[str, Any]]:
    """Return the file's for this namespace and provider: its kinds stand for kubeadm's and vSphere's."""
    names = {
        "kubeadmconfigs": "testconfigs",
        "kubeadmconfigtemplates": "testconfigtemplates",
        "vspheremachines": "testmachines",
        "vspheremachinetemplates": "testmachinetemplates",
    }
    found = documents(RIGHTS)
    for document in found:
        document["metadata"]["namespace"] = workload.namespace
        for rule in document.get("rules", ()):
            if rule["apiGroups"] != ["cluster.x-k8s.io"]:
                rule["apiGroups"] = [PROVIDER_GROUP]
                rule["resources"] = [names[each] for each in rule["resources"] if each in names]
    return found


def configure(live: Live, workload: WorkloadCluster, *pools: str, **more: Any) -> None:
    """With the service account of both clusters, which may be one."""
    kubeconfig = str(workload.cluster.plane.kubeconfig_of_service_account("cagrpc", "cagrpc"))
    section = {"cluster": CLUSTER, "namespace": workload.namespace}
    if workload.management is not workload.cluster:
        there = workload.management.plane
        section["kubeconfig"] = str(there.kubeconfig_of_service_account("cagrpc", "cagrpc"))
    machines = {pool: {"machine_deployment": pool} for pool in pools}
    live.write(
        {
            "drive": "plan",
            "kubernetes": {"kubeconfig": kubeconfig, "journal": "sqlite"},
            "backend": {"cluster_api": {**section, "node_groups": machines}},
            "provisioners": [{"name": "all", "node_groups": [group(pool, "4", "8Gi", 0.2) for pool in pools]}],
            "planner": {"idle": "1s", "window": "1m", "shortage": "10m"},
            **more,
        }
    )


def bound(live: Live) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in live.cluster.pods() if pod["spec"].get("nodeName")]


def test_killed_on_the_way_to_done(served: Live, workload: WorkloadCluster) -> None:
    configure(served, workload, POOL)
    served.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    for step in TO_DONE:
        served.serve_until(step)
    served.start()
    served.wait_for(lambda: len(bound(served)) == PODS, "every pod is bound")
    served.wait_until_settled()
    nodes = PODS // 2
    assert workload.provider.launched == nodes
    assert len(set(bound(served))) == len(workload.machines()) == len(served.cluster.nodes()) == nodes
    assert len(workload.left()) == 4 * nodes


def test_killed_on_the_way_back(served: Live, workload: WorkloadCluster) -> None:
    """A gang over two pools, of which one has nothing to give: gone whole with the deadline."""
    workload.provider.short = {SHORT}
    configure(served, workload, POOL, SHORT, increment_deadline_seconds=10)
    for pool in (POOL, SHORT):
        served.cluster.create_pod(
            pool, {"cpu": "3"}, nodeSelector={"pool": pool}, metadata={"labels": {DEFAULT_GANG_LABEL: "both"}}
        )
    for step in TO_ROLLED_BACK:
        served.serve_until(step)
    served.start()
    served.wait_for(lambda: not workload.left(), "nothing is left")
    served.wait_until_settled()
    assert bound(served) == []
    assert {each["phase"] for each in served.increments()} == {"rolled-back"}
