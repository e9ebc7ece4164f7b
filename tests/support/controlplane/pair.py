"""Servers of one configuration that share one simulated cloud: one leads, and those beside it stand by."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.live import FINISHED, LOG_LINES_SHOWN, SIMULATED, instances_ordered
from tests.support.controlplane.processes import wait_for
from tests.support.forked import ForkedProcess
from tests.support.serving import Serving, Start, configuration, serve

PATIENCE_SECONDS = 300.0
INCREMENTS = "/apis/cagrpc.io/v1alpha1/increments"


class Pair:
    """The servers, and what is seen of them in the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        provisioners: Sequence[Mapping[str, Any]],
        behaviour: Mapping[str, Any],
        **more: Any,
    ) -> None:
        """`behaviour` is that of the simulated cloud, and `more` are other sections of the configuration."""
        self.cluster = cluster
        self.servers: list[Serving] = []
        self._directory = directory
        self._cloud = directory / "cloud.sqlite"
        self._configuration = configuration(
            directory / "cagrpc.yaml",
            [dict(each) for each in provisioners],
            drive="plan",
            kubernetes={"kubeconfig": str(cluster.plane.kubeconfig()), "namespace": cluster.namespace},
            backend={"file": str(self._cloud), "simulated": {"*": dict(behaviour)}},
            **more,
        )

    def start(self, *program: str, start: Start = ForkedProcess) -> Serving:
        """Start one more. `program` is what stands for `cagrpc.cli`."""
        state = self._directory / f"state-{len(self.servers)}"
        program = program or ("cagrpc.cli",)
        self.servers.append(serve(state, "--config", self._configuration, program=program, start=start))
        return self.servers[-1]

    def close(self) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()

    def scale(self, replicas: int) -> None:
        path = self.cluster.path("deployments", "web", api="apis/apps/v1")
        self.cluster.admin.merge(path, {"spec": {"replicas": replicas}})

    def in_flight(self) -> list[str]:
        """Return the phases of increments that are not finished."""
        found = self.cluster.admin.items(INCREMENTS)
        return [i["status"]["phase"] for i in found if i["status"]["phase"] not in FINISHED]

    def running(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.cluster.pods())

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_for(condition, what, seconds=seconds)
        except AssertionError as error:
            error.add_note(self.what_is_there())
            raise

    def wait_for_running(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait_for(lambda: self.running() == count, f"{count} pods run", seconds)

    def what_is_there(self) -> str:
        """Return increments, the last lines of logs, Nodes and pods."""
        found = self.cluster.admin.items(INCREMENTS)
        lines = [f"{each['spec']['summary']}: {each['status'].get('phase')}" for each in found]
        logs = [line for server in self.servers[-2:] for line in server.log().splitlines()[-LOG_LINES_SHOWN:]]
        return "\n".join([f"{self.ordered()} instances ordered", *lines, *logs, self.cluster.summary()])

    def ordered(self) -> int:
        """Return how many instances were ever ordered of the cloud, whatever became of them."""
        return instances_ordered(self._cloud)

    def nodes(self) -> list[Any]:
        """Return the Nodes of its cloud."""
        return self.cluster.admin.items("/api/v1/nodes", labelSelector=f"{SIMULATED}=true")

    def assert_nothing_twice(self) -> None:
        """Every instance that was ever ordered is a node, and each has pods."""
        nodes = self.nodes()
        increments = self.cluster.admin.items(INCREMENTS)
        assert len(nodes) == self.ordered(), [(found["spec"]["summary"], found["status"]) for found in increments]
        assert {pod["spec"]["nodeName"] for pod in self.cluster.pods()} == {n["metadata"]["name"] for n in nodes}


def why_not_ready(server: Serving) -> str:
    """Return what /readyz says; empty where the server is ready."""
    assert server.process.poll() is None, server.log()[-4000:]
    try:
        server.get("/readyz")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def wait_until_ready(server: Serving) -> None:
    """How soon a standby leads is tested with an injected clock (tests/kube/test_lease.py)."""
    wait_for(lambda: not why_not_ready(server), "it is ready", seconds=PATIENCE_SECONDS)


def wait_until_it_stands_by(server: Serving) -> None:
    wait_for(lambda: "held by" in why_not_ready(server), "it stands by")
