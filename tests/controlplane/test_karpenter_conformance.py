"""The conformance suite over Karpenter's core, in real time. What this cloud cannot be made to do is played in
tests/backends/karpenter, which passes the suite, too."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import ClassVar

import pytest

from cagrpc.backends.karpenter.backend import open_backend
from cagrpc.backends.karpenter.plugin import KarpenterSettings, NodeClass, Parameters, node_pool
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import SteadyClock
from cagrpc.testing import Ability, BackendConformance, Cloud
from solver.model import NodeGroup
from tests.controlplane.test_karpenter import create as create_claim
from tests.support.controlplane.karpenter import CLAIMS, NODE_CLASS, TYPE, ZONES, Karpenter, offering

_PLAYED = "only where Karpenter is played (tests/backends/karpenter)"


class KarpenterCoreCloud(Cloud):
    lacks: ClassVar = {
        Ability.CUT_OFF: _PLAYED,
        Ability.LOSE_ANSWERS: _PLAYED,
        Ability.DELAY_LISTS: _PLAYED,
        Ability.REMEMBER_TOKENS: "an API server forgets the names of objects that are gone",
    }
    tick_seconds = 0.05
    patience_seconds = 60.0
    deadline_seconds = 30.0

    def __init__(self, karpenter: Karpenter, directory: Path) -> None:
        self._karpenter = karpenter
        self._directory = directory
        self._clients: list[Client] = []
        self._stopped = False
        self.clock = SteadyClock()
        self.node_groups = tuple(
            NodeGroup(name, {"cpu": 3900, "pods": 110}, 0.1, instance_type=TYPE, zone=zone, capacity_type="on-demand")
            for name, zone in zip("ab", ZONES, strict=False)
        )
        self.recover()

    def open(self) -> OpenBackend:
        return self._open("cagrpc")

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def machines(self) -> AbstractSet[str]:
        claims = self._karpenter.claims()
        return {each["metadata"]["name"] for each in claims if "deletionTimestamp" not in each["metadata"]}

    def recover(self) -> None:
        self._karpenter.stock({})
        for group in self.node_groups:
            self._karpenter.node_class(group.id)
        if self._stopped:
            self._karpenter.start()
            self._stopped = False

    def delay_ids(self) -> None:
        self._karpenter.stop()
        self._stopped = True

    def run_out(self, group: NodeGroup) -> None:
        self._karpenter.stock({offering(zone=group.zone): 0})

    def exceed_quota(self, group: NodeGroup) -> None:
        message = "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit"
        self._karpenter.stock({offering(zone=group.zone): {"stock": 0, "message": message}})

    def misconfigure(self, group: NodeGroup) -> None:
        self._karpenter.node_class(group.id, ready=False)

    def vanish(self, instance_id: str) -> None:
        claims = self._karpenter.claims()
        name = next(each["metadata"]["name"] for each in claims if each["status"].get("providerID") == instance_id)
        self._karpenter.cluster.admin.delete(f"{CLAIMS}/{name}")

    def add_stranger(self, group: NodeGroup) -> None:
        create_claim(self._karpenter, "by-hand", group.zone)
        others = self._open("others")
        others.backend.order(Order("theirs", (OrderedInstance("theirs", group, 0),), frozenset(["theirs"])))
        others.close()

    def _open(self, fleet: str) -> OpenBackend:
        client = Client.connect(self._karpenter.cluster.plane.kubeconfig())
        self._clients.append(client)
        settings = KarpenterSettings(
            fleet=fleet,
            parameters={group.id: _parameters(group) for group in self.node_groups},
            node_pools=frozenset(node_pool(group) for group in self.node_groups),
        )
        return open_backend(settings, BackendContext(self._directory, self.clock, client))


def _parameters(group: NodeGroup) -> Parameters:
    return Parameters(NodeClass(**{**NODE_CLASS, "name": group.id}), termination_grace_period_seconds=1)


class TestKarpenterCore(BackendConformance):
    @pytest.fixture
    def cloud(self, karpenter: Karpenter, tmp_path: Path) -> Cloud:
        return KarpenterCoreCloud(karpenter, tmp_path)
