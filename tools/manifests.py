"""The plain manifests of deploy/, each rendered from the chart with values of deploy/values, and what the chart's
schema has of the configuration's own. `make manifests` writes them; a test holds them equal to what it would write.
"""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
SCHEMA = CHART / "values.schema.json"
CONFIGURATION_SCHEMA = ROOT / "docs" / "reference" / "config.schema.json"
NAME = NAMESPACE = "cagrpc"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file of deploy/."""

    templates: tuple[str, ...]
    values: str = ""
    """A file of deploy/values beside plain.yaml; none for the chart's own."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What `helm template` is asked for, from the directory of the project."""
        files = ("plain", self.values) if self.values else ("plain",)
        values = (part for each in files for part in ("--values", f"deploy/values/{each}.yaml"))
        shown = (part for each in self.templates for part in ("--show-only", f"templates/{each}.yaml"))
        return ("template", NAME, "deploy/chart", "--namespace", NAMESPACE, *values, *shown)


MANIFESTS: Mapping[str, Manifest] = {
    "crds": Manifest(("crds",)),
    "slack-crds": Manifest(("slack-crds",), "slack"),
    "provisioning-crds": Manifest(("provisioning-crds",)),
    "buffer-crds": Manifest(("buffer-crds",)),
    "rbac": Manifest(("namespace", "service-account", "rbac")),
    "rbac-simulated-nodes": Manifest(("rbac-simulated-nodes",), "simulated"),
    "rbac-karpenter": Manifest(("rbac-karpenter",), "karpenter"),
    "rbac-cluster-api": Manifest(("rbac-cluster-api",), "cluster-api"),
    "rbac-kueue": Manifest(("rbac-kueue",), "kueue"),
    "rbac-dedicated-nodes": Manifest(("rbac-dedicated-nodes",), "dedicated-nodes"),
    "rbac-consolidation": Manifest(("rbac-consolidation",), "consolidation"),
    "rbac-expander": Manifest(("rbac-expander",), "expander"),
    "policies": Manifest(("policies",)),
    "flow-schemas": Manifest(("flow-schemas",)),
    "network-policy": Manifest(("network-policy",)),
    "slack": Manifest(("slack",), "slack"),
    "cagrpc": Manifest(("configuration", "service", "simulated-cloud", "deployment"), "simulated"),
    "expander": Manifest(
        (
            *("namespace", "service-account", "rbac", "rbac-expander", "flow-schemas", "network-policy"),
            *("configuration", "service", "deployment", "pod-disruption-budget"),
        ),
        "expander",
    ),
    "certificates": Manifest(("certificates",), "cert-manager"),
    "monitoring": Manifest(("monitoring",), "monitoring"),
    "ca": Manifest(("cluster-autoscaler",), "try-slack"),
    "try-slack": Manifest(("configuration", "extra-objects"), "try-slack"),
}
"""By name, without `.yaml`."""

_SET_BY_THE_CHART = {
    "": ("listen", "state_directory", "provider"),
    "Tls": ("directory", "certificate", "key", "client_ca", "insecure"),
    "Kubernetes": ("kubeconfig", "context", "in_cluster", "namespace", "journal"),
    "BackendForm": ("file",),
}
"""By definition of the configuration's schema, "" for its root: fields that are no values."""


def rendered(helm: Path, name: str) -> str:
    """Return what the file has to be. Raises CalledProcessError."""
    flags = MANIFESTS[name].flags
    done = subprocess.run([helm, *flags], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - a program of `make programs`
    asked = f"helm {' '.join(flags)}"
    lines = textwrap.wrap(asked, 110, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False)
    command = " \\\n".join(lines)
    objects = re.sub(r"\n{2,}---\n", "\n---\n", done.stdout).rstrip()
    return f"# Rendered from the chart by `make manifests`, which writes it anew:\n#\n{command}\n{objects}\n"


def schema(written: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of values, with the definitions that the configuration's schema has now."""
    definitions = json.loads(json.dumps(configuration["$defs"]))
    root = {key: value for key, value in configuration.items() if key not in ("$defs", "$schema", "$id")}
    definitions["Configuration"] = json.loads(json.dumps(root))
    for name, fields in _SET_BY_THE_CHART.items():
        for field in fields:
            del definitions[name or "Configuration"]["properties"][field]
    return {**written, "$defs": definitions}


def write_schema() -> None:
    """Write the chart's schema anew."""
    found = schema(json.loads(SCHEMA.read_text()), json.loads(CONFIGURATION_SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    from tests.support.controlplane.binaries import HELM, build

    write_schema()
    program = build(HELM) / "helm"
    for each in MANIFESTS:
        (DEPLOY / f"{each}.yaml").write_text(rendered(program, each))
