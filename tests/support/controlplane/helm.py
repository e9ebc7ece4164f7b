"""Helm's client and deploy/chart: rendering it with values, and installing it in the control plane."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.deployed import DEPLOY

CHART = DEPLOY / "chart"
VALUES = DEPLOY / "values"
PATIENCE_SECONDS = 120.0

Values = Mapping[str, Any]
Document = dict[str, Any]


class Helm:
    """One program with its caches in a directory; nothing of the user's Helm is read."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        homes = {f"HELM_{each}_HOME": str(directory / each.lower()) for each in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(directory / "none")}
        self._directory = directory

    def ask(self, *arguments: object, values: Values | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; `values` come after those of files."""
        command = [str(self.program), *map(str, arguments)]
        if values is not None:
            path = self._directory / "values.json"
            path.write_text(json.dumps(values))
            command += ["--values", str(path)]
        return subprocess.run(
            command,
            env=self._environment,
            cwd=DEPLOY.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def run(self, *arguments: object, values: Values | None = None) -> str:
        """Run one command, which succeeds, and return what it prints."""
        done = self.ask(*arguments, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def template(self, values: Values | None = None, *files: str, namespace: str = "cagrpc") -> list[Document]:
        """Return the objects that the chart is with these values. `files` are of deploy/values, without `.yaml`."""
        flags = [part for each in files for part in ("--values", VALUES / f"{each}.yaml")]
        text = self.run("template", "cagrpc", CHART, "--namespace", namespace, *flags, values=values or {})
        return [document for document in yaml.safe_load_all(text) if document]


def only(documents: list[Document], kind: str, name: str = "cagrpc") -> Document:
    """Return the one object of this kind and name."""
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def names(documents: list[Document]) -> set[tuple[str, str]]:
    """Return kind and name of each."""
    return {(each["kind"], each["metadata"]["name"]) for each in documents}
