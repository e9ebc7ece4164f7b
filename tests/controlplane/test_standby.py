"""Two servers, one Lease: the standby is not ready, takes over when the leader is killed, paused or stopped, and
finishes what was in flight; nothing is ordered twice."""

from __future__ import annotations

import json
import signal
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal, install_crds
from tests.support.controlplane.live import SIMULATED, group
from tests.support.controlplane.processes import wait_for
from tests.support.serving import Serving, configuration, serve

PATIENCE_SECONDS = 120.0


class Pair:
    """Servers of one configuration that share one simulated cloud."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self._directory = directory
        self._cloud = directory / "cloud.sqlite"
        self._configuration = directory / "cagrpc.yaml"
        self._servers: list[Serving] = []
        configuration(
            self._configuration,
            [{"name": "all", "weight": 1, "node_groups": [group("small", "2", "4Gi", 0.1)]}],
            drive="plan",
            planner={"idle": "3s"},  # one round for all pods of a Deployment, however slowly these are made
            kubernetes={"kubeconfig": str(cluster.plane.kubeconfig()), "namespace": cluster.namespace},
            backend={"file": str(self._cloud), "simulated": {"*": {"boot": "3s", "delete": "0.1s"}}},
        )

    def start(self, *program: str) -> Serving:
        """`program` is what stands for `cagrpc.cli`."""
        state = self._directory / f"state-{len(self._servers)}"
        self._servers.append(
            serve(state, "--config", self._configuration, program=program or ("cagrpc.cli",)),
        )
        return self._servers[-1]

    def close(self) -> None:
        for server in self._servers:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()

    def scale(self, replicas: int) -> None:
        path = self.cluster.path("deployments", "web", api="apis/apps/v1")
        self.cluster.admin.merge(path, {"spec": {"replicas": replicas}})

    def in_flight(self) -> list[str]:
        found = self.cluster.admin.items("/apis/cagrpc.io/v1alpha1/increments")
        return [i["status"]["phase"] for i in found if i["status"]["phase"] not in ("done", "rolled-back")]

    def wait_for_running(self, count: int) -> None:
        def running() -> bool:
            return bool(sum(pod["status"]["phase"] == "Running" for pod in self.cluster.pods()) == count)

        wait_for(running, f"{count} pods run", seconds=PATIENCE_SECONDS)

    def assert_nothing_twice(self) -> None:
        """Every instance that was ever ordered is a node, and each has pods."""
        with closing(sqlite3.connect(self._cloud)) as connection:
            (ordered,) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'instances'").fetchone()
        nodes = self.cluster.admin.items("/api/v1/nodes", labelSelector=f"{SIMULATED}=true")
        increments = self.cluster.admin.items("/apis/cagrpc.io/v1alpha1/increments")
        assert len(nodes) == ordered, [(found["spec"]["summary"], found["status"]) for found in increments]
        assert {pod["spec"]["nodeName"] for pod in self.cluster.pods()} == {n["metadata"]["name"] for n in nodes}


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path) -> Iterator[Pair]:
    install_crds(cluster.admin)
    pair = Pair(cluster, tmp_path)
    yield pair
    pair.close()
    clear_journal(cluster.admin)


def why_not_ready(server: Serving) -> str:
    assert server.process.poll() is None, server.log()[-4000:]
    try:
        server.get("/readyz")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def wait_until_ready(server: Serving) -> None:
    """How soon a standby leads is tested with an injected clock (tests/kube/test_lease.py)."""
    wait_for(lambda: not why_not_ready(server), "it is ready", seconds=PATIENCE_SECONDS)


def status(server: Serving) -> Any:
    with urllib.request.urlopen(f"http://{server.endpoints['http']}/status", timeout=5) as answer:
        return json.loads(answer.read())


def test_a_leader_is_killed_paused_and_stopped(pair: Pair) -> None:
    first = pair.start()
    wait_until_ready(first)
    second = pair.start()
    wait_for(lambda: "held by" in why_not_ready(second), "it stands by")
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
    wait_for(lambda: "held by" in why_not_ready(third), "it stands by")
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
    wait_for(lambda: "held by" in why_not_ready(fourth), "it stands by")
    assert third.stop() == 0
    wait_until_ready(fourth)
    pair.assert_nothing_twice()


def test_a_leader_that_hangs_gives_the_lease_up_and_ends(pair: Pair) -> None:
    """In the middle of its own locks, so that it cannot even be closed."""
    first = pair.start("tests.support.controlplane.hanging", "before commit creating")
    wait_until_ready(first)
    second = pair.start()
    wait_for(lambda: "held by" in why_not_ready(second), "it stands by")
    pair.cluster.create_deployment("web", 4, {"cpu": "900m"})
    wait_until_ready(second)
    assert first.process.wait(PATIENCE_SECONDS) == 1
    log = first.log()
    assert "given up by" in log
    assert "a step of the fleet does not go on: in the middle of" in log
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
