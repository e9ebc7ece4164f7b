"""A real Prometheus that scrapes one server, and what it is asked."""

from __future__ import annotations

import json
import math
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.processes import Process, wait_for
from tests.support.waiting import AMPLE_SECONDS


class Prometheus:
    """A running one. Its label `namespace` is `test`, as an operator would set it."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self._url}{path}?{urllib.parse.urlencode(parameters)}", timeout=AMPLE_SECONDS
        ) as answer:
            return json.loads(answer.read())["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression now that are numbers. Raises AssertionError where it is no PromQL."""
        try:
            found = self.ask("/api/v1/query", query=expression)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        assert found["resultType"] == "vector", expression
        return [value for each in found["result"] if not math.isnan(value := float(each["value"][1]))]

    def wait_for(self, expression: str, what: str) -> None:
        """Wait until an expression has a value."""
        wait_for(lambda: bool(self.values(expression)), f"{what}: {expression}", seconds=30)

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=AMPLE_SECONDS):
                return True
        except OSError:
            return False


@contextmanager
def scraping(
    programs: Path, directory: Path, scrape: Mapping[str, Any], target: str, rules: Path
) -> Iterator[Prometheus]:
    """Run Prometheus with these rules; `scrape` is how it reaches `target`: scheme, authorization, TLS."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    labelled = {"targets": [target], "labels": {"namespace": "test"}}
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "cagrpc", "static_configs": [labelled], **scrape}],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    command: list[str | Path] = [
        programs / "prometheus",
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    process = Process(command, directory / "prometheus.log")
    try:
        prometheus = Prometheus(address)
        wait_for(lambda: prometheus.is_ready, "Prometheus is ready", process=process)
        yield prometheus
    finally:
        process.stop()
