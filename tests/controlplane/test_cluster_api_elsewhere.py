"""The management cluster is another one: Machines are there, pods and Nodes here, and so are cagrpc's rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from tests.controlplane.test_cluster_api_live import bound, configure, rights
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.cluster_api import CORE, WorkloadCluster, running_core
from tests.support.controlplane.deployed import CRDS, apply, documents, remove
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane

POOL = "only"


@pytest.fixture
def elsewhere(cluster: Cluster, cluster_api_elsewhere: Cluster, cluster_api_program: Path) -> Iterator[WorkloadCluster]:
    with running_core(cluster_api_elsewhere.plane, cluster_api_program) as core:
        workload = WorkloadCluster(cluster, core, cluster_api_elsewhere)
        yield workload
        workload.close()


@pytest.fixture
def cluster_api_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A namespace of a second control plane."""
    plane = ControlPlane(tmp_path_factory.mktemp("management"))
    yield Cluster(plane, "clusters")
    plane.close()


def test_machines_there_become_nodes_here(live: Live, elsewhere: WorkloadCluster) -> None:
    here, there = live.cluster.admin, elsewhere.admin
    taint = {"key": START_UP_TAINT, "effect": "NoSchedule"}
    elsewhere.template(POOL, {"cpu": "4", "memory": "8Gi"}, labels={"pool": POOL}, taints=[taint])
    elsewhere.machine_deployment(POOL)
    for document in documents("rbac.yaml"):
        apply(here, document)
        if document["kind"] in ("Namespace", "ServiceAccount"):
            apply(there, document)
    for document in rights(elsewhere):
        apply(there, document)
    assert not [each for each in here.items(CRDS) if each["spec"]["group"] == CORE]
    configure(live, elsewhere, POOL)
    live.cluster.create_deployment("web", 4, {"cpu": "1500m", "memory": "1Gi"})
    live.start()
    live.wait_for(lambda: len(bound(live)) == 4, "every pod is bound")
    live.wait_until_settled()
    assert len(set(bound(live))) == len(elsewhere.machines()) == 2
    assert not elsewhere.management.nodes()
    live.close()
    remove(here, "rbac.yaml")
