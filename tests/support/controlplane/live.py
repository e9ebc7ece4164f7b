"""`cagrpc serve` with `drive: plan` beside the control plane: its configuration, its process, and what can be asked of
both. The tests of the whole are in `test_live_*`."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from cagrpc.api.core.nodes import START_UP_TAINT
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.processes import wait_for
from tests.support.forked import ForkedProcess
from tests.support.serving import Serving, Start, configuration, serve

SIMULATED = "cagrpc.io/simulated"
GPU = "nvidia.com/gpu"
FINISHED = ("done", "rolled-back")
PATIENCE_SECONDS = 120.0
LOG_LINES_SHOWN = 30


def group(name: str, cpu: str, memory: str, price: float, *, gpus: int = 0, **more: Any) -> dict[str, Any]:
    """A node group of the configuration; what stands in `labels` names it as its pool."""
    allocatable: dict[str, Any] = {"cpu": cpu, "memory": memory, "pods": 110, **({GPU: gpus} if gpus else {})}
    labels = {"pool": name, **more.pop("labels", {})}
    return {"id": name, "allocatable": allocatable, "price_usd_per_hour": price, "labels": labels, **more}


def instances_ordered(cloud: Path) -> int:
    """Return how many instances were ever ordered of a simulated cloud, by its file."""
    with closing(sqlite3.connect(cloud)) as connection:
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'instances'").fetchone()
    return int(row[0]) if row else 0


class Live:
    """One configuration, served by one process after the other; state and cluster go on."""

    def __init__(self, cluster: Cluster, directory: Path, start: Start = ForkedProcess) -> None:
        self.cluster = cluster
        self._start = start
        self.directory = directory
        self._serving: Serving | None = None
        self._configuration = directory / "cagrpc.yaml"
        self.node_selector = f"{SIMULATED}=true"
        """Labels of the Nodes that its backend makes."""

    def configure(
        self,
        provisioners: list[dict[str, Any]],
        behaviours: Mapping[str, Mapping[str, Any]] | None = None,
        planner: Mapping[str, Any] | None = None,
        provisioning: Mapping[str, Any] | None = None,
        drive: str = "plan",
        slack: Mapping[str, Any] | None = None,
        devices: Sequence[Mapping[str, Any]] = (),
        tracing: bool = False,
        consolidation: Mapping[str, Any] | None = None,
        expander: Mapping[str, Any] | None = None,
        schedulers: Sequence[str] = ("default-scheduler",),
        **kubernetes: Any,
    ) -> None:
        configuration(
            self._configuration,
            provisioners,
            behaviours,
            drive=drive,
            tracing=tracing,
            schedulers=list(schedulers),
            provisioning_requests=dict(provisioning or {}),
            kubernetes={"kubeconfig": str(self.cluster.plane.kubeconfig()), "journal": "sqlite", **kubernetes},
            **({"devices": [dict(each) for each in devices]} if devices else {}),
            **({} if slack is None else {"slack": dict(slack)}),
            **({} if consolidation is None else {"consolidation": dict(consolidation)}),
            **({} if expander is None else {"expander": dict(expander)}),
            planner={"idle": "1s", "window": "1m", "shortage": "4s", **(planner or {})},
        )

    def write(self, configuration: Mapping[str, Any]) -> None:
        """A configuration as it is."""
        self._configuration.write_text(yaml.safe_dump(dict(configuration)))

    def start(self, patience_seconds: float = PATIENCE_SECONDS, flags: Sequence[object] = ()) -> Serving:
        arguments = ("--config", self._configuration, *flags)
        state = self.directory / "state"
        self._serving = serve(state, *arguments, patience_seconds=patience_seconds, start=self._start)
        return self._serving

    def serve_until(self, step: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Start a process that dies at this step (`dying`), and wait until it has, which may be while it starts."""
        command = ["tests.support.controlplane.dying", step, "serve", "--ephemeral-ports"]
        command += ["--state-dir", str(self.directory / "state"), "--config", str(self._configuration)]
        log = self.directory / "dying.log"
        log.unlink(missing_ok=True)
        process = ForkedProcess(command, log, log)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        assert code == -signal.SIGKILL, (
            f"it did not come to the step {step!r} (exit code {code}):\n{log.read_text(errors='replace')}"
        )

    @property
    def serving(self) -> Serving:
        assert self._serving, "nothing was started"
        return self._serving

    def kill(self) -> None:
        """As a machine that loses power."""
        self.serving.process.kill()
        self.serving.process.wait()

    def close(self) -> None:
        if self._serving is not None and self._serving.process.poll() is None:
            self.kill()

    # ---- pages of the server

    def increments(self) -> list[dict[str, Any]]:
        return list(self.serving.get("/increments"))

    def rounds(self) -> list[dict[str, Any]]:
        """Planning rounds that ordered something."""
        return [plan for plan in self.serving.get("/plans") if plan["increments"]]

    def phases(self) -> list[str]:
        return [increment["phase"] for increment in self.increments()]

    def behave(self, behaviours: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Change what the simulated cloud does from now on."""
        url = f"http://{self.serving.endpoints['http']}/simulation"
        request = urllib.request.Request(url, data=json.dumps(behaviours).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200

    # ---- state of the cluster

    def ordered(self) -> int:
        """How many instances were ever ordered of the cloud, whatever became of them."""
        return instances_ordered(self.directory / "state" / "simulated.sqlite")

    def pools(self) -> Counter[str]:
        """Its Nodes by the group that they are of."""
        return Counter(node["metadata"]["labels"].get("pool", "") for node in self.nodes())

    def types(self) -> Counter[str]:
        """The same by their instance type."""
        return Counter(node["metadata"]["labels"]["node.kubernetes.io/instance-type"] for node in self.nodes())

    def nodes(self) -> list[Any]:
        return self.cluster.admin.items("/api/v1/nodes", labelSelector=self.node_selector)

    def running(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.cluster.pods())

    def wait_for_running(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait_for(lambda: self.running() == count, f"{count} pods run", seconds=seconds)

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_for(lambda: self._alive() and bool(condition()), what, seconds=seconds)
        except AssertionError as error:
            error.add_note(self.what_it_says())
            raise

    def _alive(self) -> bool:
        assert self.serving.process.poll() is None, "it has ended"
        return True

    def what_it_says(self) -> str:
        """Return pools, log and pages of the server, for the message of a failed test."""
        lines = [f"pools {self.pools()}, held {self.held()}", *self.serving.log().splitlines()[-LOG_LINES_SHOWN:]]
        if self.serving.process.poll() is None:
            lines += [f"{page}: {self.serving.get(page)}" for page in ("/status", "/increments", "/plans", "/slack")]
        return "\n".join(lines)

    def wait_until_settled(self) -> None:
        """Wait until nothing is in flight, and no node is held."""
        self.wait_for(lambda: set(self.phases()) <= set(FINISHED), "every increment is finished")
        self.wait_for(lambda: not self.held(), "every node is let go")

    def held(self) -> list[str]:
        """Names of nodes that carry the start-up taint."""
        tainted = (n for n in self.nodes() if START_UP_TAINT in (t["key"] for t in n["spec"].get("taints", ())))
        return [node["metadata"]["name"] for node in tainted]

    def assert_nothing_wasted(self, nodes: int) -> None:
        """So many nodes were ever ordered, all of them are there, and each has pods."""
        found = {node["metadata"]["name"] for node in self.nodes()}
        assert (self.ordered(), len(found)) == (nodes, nodes), self.what_it_says()
        assert {pod["spec"].get("nodeName") for pod in self.cluster.pods()} == found, self.what_it_says()
