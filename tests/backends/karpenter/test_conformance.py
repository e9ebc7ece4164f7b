"""The Karpenter backend passes the conformance suite."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from threading import Lock
from typing import ClassVar

import pytest

from cagrpc.backends.karpenter.claims import NODE_CLAIMS, SHORTAGE
from cagrpc.backends.plugin import OpenBackend
from cagrpc.testing import Ability, BackendConformance, Cloud
from solver.model import NodeGroup
from tests.support.api_server import ApiRequest, Fault, api_server
from tests.support.fleet import FakeClock, group
from tests.support.karpenter import KINDS, SHORT, PlayedKarpenter, claim_body, settings_for


class KarpenterCloud(Cloud):
    lacks: ClassVar = {Ability.REMEMBER_TOKENS: "an API server forgets the names of objects that are gone"}
    tick_seconds = 0.25
    node_groups = (group("pool-a", max_size=50, zone="zone-1"), group("pool-b", max_size=50, zone="zone-1"))

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._lock = Lock()
        self.clock = FakeClock()
        self._karpenter = PlayedKarpenter(self._undo.enter_context(api_server(*KINDS)), self.clock)

    def open(self) -> OpenBackend:
        return OpenBackend(self._karpenter.open(settings_for(*self.node_groups)), lambda: None)

    def close(self) -> None:
        self._undo.close()

    def advance(self, seconds: float) -> None:
        self._karpenter.advance(seconds)

    def machines(self) -> AbstractSet[str]:
        return self._karpenter.machines()

    def recover(self) -> None:
        karpenter = self._karpenter
        karpenter.api.fault = lambda _: Fault.NONE
        karpenter.answer = lambda _: None
        karpenter.node_class(ready=True)
        karpenter.launching, karpenter.behind_seconds = True, 0.0

    def cut_off(self) -> None:
        self._karpenter.api.fault = lambda _: Fault.CUT

    def lose_answers(self, after: int) -> None:
        left = [after]

        def fault(request: ApiRequest) -> Fault:
            with self._lock:
                if request.method not in ("POST", "DELETE"):
                    return Fault.NONE
                left[0] -= 1
                return Fault.LOST if left[0] < 0 else Fault.NONE

        self._karpenter.api.fault = fault

    def delay_lists(self) -> None:
        self._karpenter.behind_seconds = 1.5

    def delay_ids(self) -> None:
        self._karpenter.launching = False

    def run_out(self, group: NodeGroup) -> None:
        self._refuse(group, f"{SHORTAGE}: {SHORT}")

    def exceed_quota(self, group: NodeGroup) -> None:
        self._refuse(group, f"{SHORTAGE}: VcpuLimitExceeded: more than 32 vCPUs")

    def misconfigure(self, group: NodeGroup) -> None:
        self._refuse(group, "")
        self._karpenter.node_class(ready=False)

    def _refuse(self, group: NodeGroup, said: str) -> None:
        self._karpenter.answer = lambda name: said if name == group.instance_type else None

    def vanish(self, instance_id: str) -> None:
        api = self._karpenter.api
        path = next(p for p, each in api.objects.items() if each.get("status", {}).get("providerID") == instance_id)
        api.remove(path)

    def add_stranger(self, group: NodeGroup) -> None:
        api, token = self._karpenter.api, f"0123456789ab-{group.id}-1"
        for name, fleet in (("cagrpc-0123456789abcdef", "cagrpc"), ("others", "others")):
            api.put(f"{NODE_CLAIMS}/{name}", claim_body(name, token, fleet=fleet, group=group.id, at=self.clock()))
            provider = {"status": {"providerID": f"example:///{name}"}}
            api.change(f"{NODE_CLAIMS}/{name}", **provider)


class TestKarpenter(BackendConformance):
    @pytest.fixture
    def cloud(self) -> Cloud:
        return KarpenterCloud()
