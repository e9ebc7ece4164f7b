"""kubectl with cagrpc's plug-in in its PATH, and a kubelet's part in forwarding ports: as far as a control plane
without kubelets goes, the way of `kubectl cagrpc`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.processes import Process, free_port

PATIENCE_SECONDS = 120.0
SCRIPTS = {
    "cagrpc": "from cagrpc.cli.main import main as run",
    "kubectl-cagrpc": "from cagrpc.cli.main import kubectl_main as run",
    "kubectl_complete-cagrpc": "from cagrpc.cli.completion import for_kubectl as run",
}
"""The entry points of pyproject.toml, for an environment in which they are not installed."""


def install_scripts(directory: Path) -> None:
    """Write the commands of cagrpc into a directory of PATH."""
    for name, imported in SCRIPTS.items():
        path = directory / name
        path.write_text(f"#!{sys.executable}\nimport sys\n{imported}\nsys.exit(run())\n")
        path.chmod(0o755)


class Kubectl:
    """kubectl, which finds the plug-in."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self.programs = programs
        self.directory = directory
        (directory / "kubectl").symlink_to(programs / "kubectl")
        install_scripts(directory)

    def environment(self, kubeconfig: Path) -> Mapping[str, str]:
        mine = {name: text for name, text in os.environ.items() if not name.startswith("CAGRPC_")}
        path = f"{self.directory}{os.pathsep}{mine.get('PATH', '')}"
        return {**mine, "PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(self.directory)}

    def ask(self, kubeconfig: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [self.directory / "kubectl", *map(str, arguments)],
            env=self.environment(kubeconfig),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


@contextmanager
def forwarding_kubelet(cluster: Cluster, programs: Path, node: str, address: str, directory: Path) -> Iterator[None]:
    """A Node of which every port of every pod leads to one address, as long as the context lasts."""
    certificate, key = (directory / name for name in ("kubelet.crt", "kubelet.key"))
    shutil.copy(cluster.plane.directory / "server.crt", certificate)
    shutil.copy(cluster.plane.directory / "server.key", key)
    port = free_port()
    cluster.create_node(node, {"cpu": "4", "memory": "8Gi"})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    cluster.admin.merge(f"{NODES}/{node}/status", {"status": status})
    kubelet = Process([programs / "kubelet", f"127.0.0.1:{port}", certificate, key, address], directory / "kubelet.log")
    try:
        yield
    finally:
        kubelet.stop(kill=True)
