"""The bench of calls: its yardstick in Go, and its client, with the autoscaler's gRPC library, which asks ours, too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import rpc
from cagrpc.server.certificates import ensure_certificates
from cagrpc.services.grpc import provider
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.grpc_servers import FRONTS, fronted, ready_answers, rpc_server
from tests.support.waiting import AMPLE_SECONDS

NODES = 300


@pytest.fixture(name="certificates")
def _certificates(tmp_path: Path) -> Path:
    ensure_certificates(tmp_path)
    return tmp_path


def asked(rpc_program: Path, certificates: Path, port: int, clients: int = 1) -> rpc.Times:
    command = [str(rpc_program), "load", str(certificates), f"127.0.0.1:{port}", str(NODES), str(clients), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return rpc.Times(**json.loads(done.stdout))


@pytest.fixture(name="yardstick")
def _yardstick(rpc_program: Path, certificates: Path) -> Iterator[int]:
    command = [str(rpc_program), "serve", str(certificates), str(NODES), "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_every_node_is_asked_for_once_of_the_yardstick(rpc_program: Path, certificates: Path, yardstick: int) -> None:
    assert asked(rpc_program, certificates, yardstick).calls == NODES


@pytest.mark.parametrize("front", FRONTS)
def test_every_node_is_asked_for_once_of_ours(rpc_program: Path, certificates: Path, front: str) -> None:
    with fronted(front):
        ready = ready_answers()
        fleet = rpc._Standing(NODES, ready)
        files = (certificates / name for name in ("server.crt", "server.key", "ca.crt"))
        tls = LiveTls(TlsMaterial(*(each.read_bytes() for each in files)))
        methods = Provider(fleet, ready=ready).methods()  # type: ignore[arg-type] # nobody changes it
        server = rpc_server(provider.SERVICE, methods, ready=ready, tls=tls, asks_clients=True)
        server.start()
        try:
            assert asked(rpc_program, certificates, server.port).calls == NODES
            fleet.change()
            assert asked(rpc_program, certificates, server.port, clients=3).calls == NODES
        finally:
            server.stop(0.0)
        # Each client asks a hundred times more; its first call, and the first of the new snapshot, are Python's.
        answered = sum(sum(each.by_bucket) for each in ready.calls())
        assert answered <= 2 * NODES + 4 * 100
        assert (answered >= 2 * NODES + 4 * 100 - 4 - 1) == (front == "native")


def test_times_are_shown_as_multiples_of_go() -> None:
    go, ours = rpc.Times(10, 1.0, 50, 100, 200, 300), rpc.Times(10, 2.0, 75, 300, 400, 500)
    one, _, python, *_ = [line.split() for line in rpc.show({rpc.GO: go, rpc.PYTHON: ours}, {rpc.GO: go})]
    assert one[:4] == ["one", "client", "p50", "us"]
    assert python == ["Python", "75", "1.50", "300", "3.00", "2.00"]
