"""The server as an object: it stops also where its backend never answers."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cagrpc.backends.simulated import SimulatedBackend
from cagrpc.cli.leader import RECONCILE_SECONDS, Leader
from cagrpc.cli.server import Server
from cagrpc.config.load import Address, load_settings
from tests.cli.conftest import configuration

GROUP = {"id": "small", "allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29}, "price_usd_per_hour": 0.1}


def test_it_stops_while_the_backend_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.cli.leader.STOP_SECONDS", 0.1)
    written = configuration(tmp_path / "cagrpc.yaml", [{"name": "one", "node_groups": [GROUP]}])
    anywhere = Address("127.0.0.1", 0)
    settings = replace(load_settings(written), provider=anywhere, expander=anywhere, http=anywhere, tls=None)
    server = Server(replace(settings, state_directory=tmp_path / "state"))
    entered, answer = threading.Event(), threading.Event()

    def hang(_: SimulatedBackend) -> list[object]:
        entered.set()
        assert answer.wait(30)
        return []

    monkeypatch.setattr(SimulatedBackend, "list_instances", hang)
    try:
        server.start()
        assert entered.wait(20 * RECONCILE_SECONDS)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 10
    finally:
        answer.set()


class _Elected:
    """A candidate that leads at once; `kept` is set when it gives the Lease back."""

    identity = "this one"
    is_leader = True
    problem = ""

    def __init__(self) -> None:
        self.kept = threading.Event()

    def acquire(self, _: threading.Event) -> bool:
        return True

    def check(self) -> None:
        pass

    def keep(self, stop: threading.Event) -> None:
        assert stop.wait(30)
        self.kept.set()


def test_who_cannot_lead_for_a_reason_nobody_thought_of_does_not_keep_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = configuration(tmp_path / "cagrpc.yaml", [{"name": "one", "node_groups": [GROUP]}])
    anywhere = Address("127.0.0.1", 0)
    settings = replace(load_settings(written), provider=anywhere, expander=anywhere, http=anywhere, tls=None)
    told = threading.Event()
    server = Server(replace(settings, state_directory=tmp_path / "state"), on_failure=told.set)
    monkeypatch.setattr(Server, "_lead", lambda *_: dict[str, Leader]()["nobody"])
    elected = _Elected()
    standing = threading.Thread(target=server._stand, args=(SimpleNamespace(client=None), elected), daemon=True)
    standing.start()
    try:
        assert told.wait(30)
        assert server.failure == "leading failed unexpectedly: KeyError('nobody')"
    finally:
        server.stop()
    assert elected.kept.wait(30)
    standing.join(30)
    assert not standing.is_alive()
