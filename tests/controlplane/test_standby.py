"""Two servers, one Lease: the standby is not ready, takes over when the leader is killed, paused or stopped, and
finishes what was in flight; nothing is ordered twice."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal, install_crds
from tests.support.controlplane.live import group
from tests.support.controlplane.pair import PATIENCE_SECONDS, Pair, wait_until_it_stands_by, wait_until_ready
from tests.support.controlplane.processes import wait_for
from tests.support.serving import Serving


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path) -> Iterator[Pair]:
    install_crds(cluster.admin)
    pair = Pair(
        cluster,
        tmp_path,
        [{"name": "all", "weight": 1, "node_groups": [group("small", "2", "4Gi", 0.1)]}],
        {"boot": "3s", "delete": "0.1s"},
        planner={"idle": "3s"},  # one round for all pods of a Deployment, however slowly these are made
    )
    yield pair
    pair.close()
    clear_journal(cluster.admin)


def status(server: Serving) -> Any:
    with urllib.request.urlopen(f"http://{server.endpoints['http']}/status", timeout=5) as answer:
        return json.loads(answer.read())


def test_a_leader_is_killed_paused_and_stopped(pair: Pair) -> None:
    first = pair.start()
    wait_until_ready(first)
    second = pair.start()
    wait_until_it_stands_by(second)
    with second.provider() as provider, pytest.raises(grpc.RpcError) as refused:
        provider.node_groups()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert status(second)["ready"] is False

    pair.cluster.create_deployment("web", 4, {"cpu": "900m"})
    wait_for(lambda: "creating" in pair.in_flight(), "an increment is in flight", seconds=PATIENCE_SECONDS)
    first.process.kill()
    wait_until_ready(second)
    pair.wait_for_running(4)
    pair.assert_nothing_twice()

    third = pair.start()
    wait_until_it_stands_by(third)
    second.process.send_signal(signal.SIGSTOP)
    wait_until_ready(third)
    pair.scale(8)
    wait_for(lambda: bool(pair.in_flight()), "the new leader orders", seconds=PATIENCE_SECONDS)
    second.process.send_signal(signal.SIGCONT)
    assert second.process.wait(PATIENCE_SECONDS) == 1
    assert "lost by" in second.log()
    pair.wait_for_running(8)
    pair.assert_nothing_twice()

    fourth = pair.start()
    wait_until_it_stands_by(fourth)
    assert third.stop() == 0
    wait_until_ready(fourth)
    pair.assert_nothing_twice()


def test_a_leader_that_hangs_gives_the_lease_up_and_ends(pair: Pair) -> None:
    """In the middle of its own locks, so that it cannot even be closed."""
    first = pair.start("tests.support.controlplane.hanging", "before commit creating")
    wait_until_ready(first)
    second = pair.start()
    wait_until_it_stands_by(second)
    pair.cluster.create_deployment("web", 4, {"cpu": "900m"})
    wait_until_ready(second)
    assert first.process.wait(PATIENCE_SECONDS) == 1
    log = first.log()
    assert "given up by" in log
    assert "a step of the fleet makes no progress: in the middle of" in log
    assert "hanging.py" in log  # where each thread is
    pair.wait_for_running(4)
    pair.assert_nothing_twice()


def test_a_server_whose_journal_is_gone_ends(pair: Pair) -> None:
    """And its supervisor starts it anew: what it does not know any more it reads."""
    server = pair.start()
    wait_until_ready(server)
    pair.cluster.admin.delete("/apis/cagrpc.io/v1alpha1/fleetrecords/journal")
    assert server.process.wait(PATIENCE_SECONDS) == 1
    assert "it was deleted" in server.log()
    wait_until_ready(pair.start())
