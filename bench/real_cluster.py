"""A real control plane of a bench's own, servers beside it, and an unmodified cluster-autoscaler."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.table import machine, machine_line
from solver.planning.warm_up import warm_up
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane
from tests.support.serving import started_process

_FLAGS = (
    "--expander=grpc",
    "--balance-similar-node-groups=false",
    "--write-status-configmap=false",
    "--scan-interval=5s",
    "--scale-down-unneeded-time=20s",  # quicker than cagrpc: whatever it may take it takes
    "--scale-down-delay-after-add=10s",
)


@contextmanager
def control_plane() -> Iterator[tuple[ControlPlane, Path]]:
    """Run a control plane, with a directory for what runs beside it."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        (directory / "plane").mkdir()
        plane = ControlPlane(directory / "plane")
        try:
            yield plane, directory
        finally:
            plane.close()


@contextmanager
def served(plane: ControlPlane, directory: Path, name: str = "bench") -> Iterator[Live]:
    """Make a namespace, with a server that is started as people start it; nothing of both is left in the end."""
    state = directory / name
    state.mkdir()
    cluster = Cluster(plane, name)
    live = Live(cluster, state, started_process)
    try:
        yield live
    finally:
        live.close()
        clear_journal(cluster.admin)
        cluster.tidy()


def measured(run: Callable[[Live], int], *, verbose: bool = False) -> int:
    """Print the machine, run a bench beside a control plane, and return its exit code. With `verbose` the log of the
    server is printed in the end, also where the bench fails."""
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory), served(plane, directory) as live:
        try:
            return run(live)
        finally:
            if verbose:
                print(live.serving.log())


@contextmanager
def real_autoscaler(
    live: Live, program: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Run an unmodified cluster-autoscaler beside, and give the path of its log: without `flags` as
    `docs/guides/connect.md` has it."""
    log = live.directory / "cluster-autoscaler.log"
    command = [
        str(program),
        f"--kubeconfig={live.cluster.plane.kubeconfig()}",
        f"--grpc-expander-url={live.serving.endpoints['expander']}",
        f"--grpc-expander-cert={live.serving.certificates / 'ca.crt'}",
        "--leader-elect=false",
        "--address=127.0.0.1:0",
        "--v=2",
        *(flags or external_provider(live)),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environment or {})})
    try:
        yield log
        assert process.poll() is None, f"the cluster-autoscaler has ended:\n{log.read_text()[-4000:]}"
    finally:
        process.kill()  # told to end, it takes the nodes of a provider of its own away first, one by one
        process.wait(30)


def external_provider(live: Live) -> tuple[str, ...]:
    certificates = live.serving.certificates
    cloud: Mapping[str, str] = {
        "address": live.serving.endpoints["provider"],
        "cert": str(certificates / "client.crt"),
        "key": str(certificates / "client.key"),
        "cacert": str(certificates / "ca.crt"),
    }
    path = live.directory / "cloud-config.yaml"
    path.write_text(yaml.safe_dump(dict(cloud)))
    return "--cloud-provider=externalgrpc", f"--cloud-config={path}", *_FLAGS
