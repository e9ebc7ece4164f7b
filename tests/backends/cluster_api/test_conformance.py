"""The Cluster API backend passes the conformance suite, over a management cluster in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import pytest

from cagrpc.backends.cluster_api.backend import ClusterApiBackend
from cagrpc.backends.cluster_api.bodies import Kinds
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource
from cagrpc.backends.plugin import OpenBackend
from cagrpc.testing import Ability, BackendConformance, Cloud
from solver.model import NodeGroup
from tests.support.api_server import Fault
from tests.support.fleet import FakeClock, group
from tests.support.management_cluster import CLUSTER, NAMESPACE, ManagementCluster, lost_after, management_cluster
from tests.support.waiting import AMPLE_SECONDS

SHORTAGE = ("InstanceCreateFailed", "No valid host was found. There are not enough hosts available.")
QUOTA = ("InstanceCreateFailed", "Quota exceeded for cores: Requested 16, but already used 20 of 20 cores")


class MachineCloud(Cloud):
    """Time is injected, but the informers' threads are real: a step waits until they have seen it."""

    lacks: ClassVar = {
        Ability.REMEMBER_TOKENS: "only within a process: the API server knows nothing of deleted objects",
    }
    node_groups = (group("a", max_size=50), group("b", max_size=50))
    deadline_seconds = 60.0

    def __init__(self, api: ManagementCluster) -> None:
        self.api = api
        self.clock = self.time = FakeClock()
        for each in self.node_groups:
            api.template(each.id)
            api.machine_deployment(each.id)
        self._opened: list[ClusterApiBackend] = []
        self._ids_are_late = False
        self._delivered_at = 0.0

    def open(self) -> OpenBackend:
        sources = {each.id: MachineSource(machine_deployment=each.id) for each in self.node_groups}
        client = self.api.client()
        settings = ClusterApiSettings(CLUSTER, NAMESPACE, sources)
        backend = ClusterApiBackend(client, Kinds(client, NAMESPACE), settings, self.clock, self.time)
        self._opened.append(backend)
        backend.follow_templates()
        _wait(lambda: backend.objects.problem is None)
        return OpenBackend(backend, backend.close)

    def advance(self, seconds: float) -> None:
        self.time.advance(seconds)
        if not self._ids_are_late:
            self.api.step()
        late = self.api.lists_are_late
        if late and self.clock() < self._delivered_at + ClusterApiBackend.pace.absent_after_seconds:
            return
        self.api.deliver()
        self._delivered_at = self.clock()
        self._catch_up()
        self.api.lists_are_late = late

    def machines(self) -> AbstractSet[str]:
        return {
            f"{each['metadata']['name']}"
            for kind in ("Machine", "TestMachine", "TestConfig")
            for each in self.api.of(kind)
            if not each["metadata"].get("deletionTimestamp")
        }

    def recover(self) -> None:
        self.api.fault = type(self.api)().fault
        self.api.short.clear()
        self.api.failing.clear()
        self._ids_are_late = False
        self.api.deliver()
        for each in self.node_groups:
            self.api.machine_deployment(each.id)
        self._catch_up()

    def cut_off(self) -> None:
        self.api.fault = lambda _: Fault.CUT

    def lose_answers(self, after: int) -> None:
        self.api.fault = lost_after(after)

    def delay_lists(self) -> None:
        self._delivered_at = self.clock()
        self.api.lists_are_late = True

    def delay_ids(self) -> None:
        self._ids_are_late = True

    def run_out(self, group: NodeGroup) -> None:
        self.api.failing[group.id] = SHORTAGE

    def exceed_quota(self, group: NodeGroup) -> None:
        self.api.failing[group.id] = QUOTA

    def misconfigure(self, group: NodeGroup) -> None:
        self.api.remove(self.api.path("MachineDeployment", group.id))

    def vanish(self, instance_id: str) -> None:
        for each in self.api.of("Machine"):
            if each["spec"].get("providerID") == instance_id:
                for kind in ("Machine", "TestMachine", "TestConfig"):
                    self.api.remove(self.api.path(kind, each["metadata"]["name"]))
        self._catch_up()

    def add_stranger(self, group: NodeGroup) -> None:
        labels = {"cluster.x-k8s.io/cluster-name": CLUSTER}
        annotations = {"cagrpc.io/token": "x-a-1", "cagrpc.io/node-group": group.id}
        for name, metadata in (
            ("by-hand", {"labels": labels}),
            ("another-fleets", {"labels": {**labels, "cagrpc.io/fleet": "another"}, "annotations": annotations}),
            ("another-clusters", {"labels": {"cagrpc.io/fleet": "cagrpc"}, "annotations": annotations}),
        ):
            self.api.put(self.api.path("Machine", name), {"metadata": metadata, "spec": {"clusterName": CLUSTER}})
        self._catch_up()

    def _catch_up(self) -> None:
        """Wait until the watches of the present process have delivered everything."""
        if self.api.lists_are_late or not self._opened:
            return
        backend = self._opened[-1]
        for collection, store in backend.objects._stores.items():
            _wait(lambda collection=collection, store=store: self._seen(collection, store))

    def _seen(self, collection: Any, store: Any) -> bool:
        query = {} if collection.kind == "Cluster" else {"cagrpc.io/fleet": "cagrpc"}
        there = {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"]
            for each in self.api.of(collection.kind)
            if query.items() <= (each["metadata"].get("labels") or {}).items()
            and (not query or each["metadata"]["labels"].get("cluster.x-k8s.io/cluster-name") == CLUSTER)
        }
        return there == {name: each["metadata"]["resourceVersion"] for name, each in tuple(store._objects.items())}


def _wait(condition: Any) -> None:
    give_up = time.monotonic() + AMPLE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the informers have not caught up"
        time.sleep(0.001)


class TestConformance(BackendConformance):
    @pytest.fixture
    def cloud(self) -> Iterator[Cloud]:
        with management_cluster() as api:
            yield MachineCloud(api)
