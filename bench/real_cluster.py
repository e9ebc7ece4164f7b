"""A real control plane of a bench's own, and servers beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane
from tests.support.serving import started_process


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
