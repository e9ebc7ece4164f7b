"""Real `cagrpc serve` processes beside a real control plane: one leads, one stands by, whoever ends is started again,
as a kubelet would. Each has a wire to the API server and a wall clock of its own; they share one simulated cloud."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.faults.wire import Wire
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.processes import Process
from tests.support.serving import ProviderClient, configuration

_READ_SECONDS = 3.0


class Server:
    """One place for a process."""

    def __init__(self, number: int, cluster: Cluster, directory: Path, **configured: Any) -> None:
        plane = cluster.plane
        self.name = f"server-{number}"
        self.wire = Wire(int(plane.server.rpartition(":")[2]))
        self._state = directory / self.name
        self._clock = directory / f"{self.name}.clock"
        self._clock.write_text("0")
        self._log = directory / f"{self.name}.log"
        kubeconfig = yaml.safe_load(plane.kubeconfig().read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.wire.port}"
        path = directory / f"{self.name}.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        self._configuration = directory / f"{self.name}.yaml"
        of_cluster = {"kubeconfig": str(path), "namespace": cluster.namespace}
        configuration(self._configuration, kubernetes=of_cluster, **configured)
        self._process: Process | None = None
        self.paused = False
        self.started = 0
        self.most_rss_mib = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        program = [sys.executable, "-m", "tests.support.controlplane.stepping", self._clock, "serve"]
        flags = ["--ephemeral-ports", "--state-dir", self._state, "--config", self._configuration]
        self._process = Process([str(each) for each in (*program, *flags)], self._log)
        self.paused = False
        self.started += 1

    def kill(self) -> None:
        if self._process is not None:
            self._process.stop(kill=True)

    def end(self) -> None:
        """As a rollout does: it may take its time."""
        if self._process is not None and not self.paused:
            self._process.signal(signal.SIGTERM)

    def pause(self) -> None:
        if self._process is not None:
            self._process.signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        if self._process is not None:
            self._process.signal(signal.SIGCONT)
        self.paused = False

    def set_clock(self, seconds: float) -> None:
        """Be so much ahead of the others."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._clock)

    def look(self) -> None:
        """Note how much memory it has."""
        if self._process is None or not self.running:
            return
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        self.most_rss_mib = max([self.most_rss_mib, *(int(each) / 1024 for each in found)])

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Where it listens; empty until it does."""
        path = self._state / "endpoints.json"
        text = path.read_text() if path.exists() else ""
        found: dict[str, Any] = json.loads(text) if text.endswith("\n") else {}
        return found if self._process is not None and found.get("pid") == self._process.pid else {}

    @property
    def leads(self) -> bool:
        """Whether it is ready, which only a leader is."""
        if self.paused or not self.running or not self.endpoints:
            return False
        try:
            return bool(self.get("/readyz"))
        except OSError:  # HTTP's errors are such, too
            return False

    def get(self, page: str) -> Any:
        """Of a list only the first page."""
        with urllib.request.urlopen(f"http://{self.endpoints['http']}{page}", timeout=_READ_SECONDS) as answer:
            text = answer.read().decode()
        return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def provider(self) -> ProviderClient:
        return ProviderClient(self.endpoints["provider"], self._state / "certs")

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        self.resume()
        self.kill()
        self.wire.close()


class Servers(list[Server]):
    """All of them."""

    def __init__(self, cluster: Cluster, directory: Path, count: int = 2, **configured: Any) -> None:
        super().__init__(Server(number, cluster, directory, **configured) for number in range(count))

    @property
    def leader(self) -> Server | None:
        return next((each for each in self if each.leads), None)

    def keep(self) -> None:
        """Start again what has ended."""
        for each in self:
            if not each.running:
                each.start()
            each.look()

    def heal(self) -> None:
        for each in self:
            each.wire.heal()
            each.resume()

    def faults(self) -> Sequence[str]:
        """Return what no log may have."""
        marks = ("Traceback", "failed unexpectedly")
        return [
            f"{each.name}: {line}" for each in self for line in each.log().splitlines() if any(m in line for m in marks)
        ]

    def close(self) -> None:
        for each in self:
            each.close()
