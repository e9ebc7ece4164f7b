"""The conformance suite over Cluster API's core, in real time. What this cloud cannot be made to do is played in
tests/backends/cluster_api, which passes the suite, too."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cagrpc.backends.cluster_api.backend import open_backend
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.runtime.clock import SteadyClock
from cagrpc.testing import Ability, BackendConformance, Cloud
from solver.model import NodeGroup
from tests.support.controlplane.cluster_api import CLUSTER, WorkloadCluster
from tests.support.fleet import group

_PLAYED = "only where the API server is in memory (tests/backends/cluster_api)"
_SHORTAGE = ("InstanceCreateFailed", "No valid host was found. There are not enough hosts available.")
_QUOTA = ("InstanceCreateFailed", "Quota exceeded for cores: Requested 16, but already used 20 of 20 cores")
_NEVER_SECONDS = 1e9


class ClusterApiCoreCloud(Cloud):
    lacks: ClassVar = {
        Ability.CUT_OFF: _PLAYED,
        Ability.LOSE_ANSWERS: _PLAYED,
        Ability.DELAY_LISTS: _PLAYED,
        Ability.REMEMBER_TOKENS: "an API server forgets the names of objects that are gone",
    }
    tick_seconds = 0.05
    patience_seconds = 60.0
    deadline_seconds = 30.0
    node_groups = (group("a", max_size=50), group("b", max_size=50))

    def __init__(self, workload: WorkloadCluster, directory: Path) -> None:
        self._workload = workload
        self._directory = directory
        self.clock = SteadyClock()
        for each in self.node_groups:
            workload.template(each.id, {"cpu": "4", "memory": "8Gi"})
            workload.machine_deployment(each.id)

    def open(self) -> OpenBackend:
        return self._open("cagrpc")

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def machines(self) -> AbstractSet[str]:
        """With clones that no Machine has."""
        provider = self._workload.provider
        found: list[Any] = self._workload.machines()
        for plural in ("testmachines", "testconfigs"):
            found += self._workload.admin.items(provider.path(plural))
        standing = {each["metadata"]["name"] for each in found}
        return standing - {each["metadata"]["name"] for each in found if "deletionTimestamp" in each["metadata"]}

    def recover(self) -> None:
        self._workload.provider.failing.clear()
        self._workload.provider.delay_seconds = 0.0

    def delay_ids(self) -> None:
        self._workload.provider.delay_seconds = _NEVER_SECONDS

    def run_out(self, group: NodeGroup) -> None:
        self._workload.provider.failing[group.id] = _SHORTAGE

    def exceed_quota(self, group: NodeGroup) -> None:
        self._workload.provider.failing[group.id] = _QUOTA

    def misconfigure(self, group: NodeGroup) -> None:
        self._workload.admin.delete(self._workload.path("machinedeployments", group.id))

    def vanish(self, instance_id: str) -> None:
        machines = self._workload.machines()
        name = next(each["metadata"]["name"] for each in machines if each["spec"].get("providerID") == instance_id)
        self._workload.admin.delete(self._workload.path("machines", name))

    def add_stranger(self, group: NodeGroup) -> None:
        self._workload.admin.merge(self._workload.path("machinedeployments", group.id), {"spec": {"replicas": 1}})
        others = self._open("others")
        others.backend.order(Order("theirs", (OrderedInstance("theirs", group, 0),), frozenset(["theirs"])))
        others.close()
        self.wait_until(lambda: len(self._workload.machines()) == 2, "the Machines of others")

    def _open(self, fleet: str) -> OpenBackend:
        sources = {each.id: MachineSource(machine_deployment=each.id) for each in self.node_groups}
        kubeconfig = self._workload.cluster.plane.kubeconfig()
        settings = ClusterApiSettings(CLUSTER, self._workload.namespace, sources, fleet=fleet, kubeconfig=kubeconfig)
        return open_backend(settings, BackendContext(self._directory, self.clock))


class TestClusterApiCore(BackendConformance):
    @pytest.fixture
    def cloud(self, workload: WorkloadCluster, tmp_path: Path) -> Cloud:
        return ClusterApiCoreCloud(workload, tmp_path)
