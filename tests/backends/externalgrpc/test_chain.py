"""The project's own provider behind the backend: a chain of two."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from cagrpc import errors
from cagrpc.api.encoding.messages import parse
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.status import CallContext, status_of
from cagrpc.testing import BackendConformance, Cloud
from solver.model import NodeGroup
from tests.support.played_provider import FaultyChannel, PlayedCloud, PlayedError
from tests.support.simulated_cloud import SimulatedCloud


class Chain(PlayedCloud):
    """Our provider over a fleet over the simulated backend; what it answers is lost on the way, not behind it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.inner = SimulatedCloud(directory)
        self.inner.clock = self.inner.time = self.time
        self.inner.faults = self.inner.open().backend  # type: ignore[assignment] # which is its class
        self._fleet = Fleet(
            FleetSettings(self.node_groups, failed_listing_seconds=60.0),
            self.inner.open().backend,
            SqliteJournal(directory / "inner.sqlite"),
            clock=self.clock,
            submit=lambda work: work(),
        )
        self._methods = Provider(self._fleet).methods()
        self.channel = FaultyChannel(self._answer, self.time)

    def _answer(self, method: str, request: Any, answer: type[Message], timeout_seconds: float) -> Message:
        try:
            found = self._methods[method](request.SerializeToString(), CallContext(method, timeout_seconds))
        except errors.CagrpcError as error:
            raise PlayedError(*status_of(error)) from error
        return parse(answer, found)

    def close(self) -> None:
        self._fleet.close()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._fleet.reconcile()

    def machines(self) -> AbstractSet[str]:
        return self.inner.machines()

    def recover(self) -> None:
        self.channel.recover()
        self.inner.recover()

    def delay_lists(self) -> None:
        self.inner.delay_lists()

    def delay_ids(self) -> None:
        self.inner.delay_ids()

    def run_out(self, group: NodeGroup) -> None:
        self.inner.run_out(group)

    def exceed_quota(self, group: NodeGroup) -> None:
        self.inner.exceed_quota(group)

    def misconfigure(self, group: NodeGroup) -> None:
        self.inner.misconfigure(group)

    def vanish(self, instance_id: str) -> None:
        self.inner.vanish(instance_id)


class TestChain(BackendConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Cloud:
        return Chain(tmp_path)
