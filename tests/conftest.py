"""For every test: the profiles of hypothesis, and the mark `alone`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.examples import load_profile
from tests.support.tls_sockets import close_tls_sockets_that_are_reset

load_profile()  # before any module with properties is imported; --hypothesis-profile comes after it, and wins
close_tls_sockets_that_are_reset()

pytest_plugins = [
    "tests.support.browser",
    "tests.support.serving",
    "tests.support.controlplane.plugin",
    "tests.support.controlplane.cluster_api",
]


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test with the mark `alone` has the machine for itself: those of other workers end first, or begin later."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    shared = tmp_path_factory.getbasetemp().parent
    alone = request.node.get_closest_marker("alone") is not None
    # Who waits to be alone has the turn meanwhile, and keeps others from beginning.
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with _lock(shared / "turn", fcntl.LOCK_EX) as turn, _lock(shared / "machine", kind):
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@contextmanager
def _lock(path: Path, kind: int) -> Iterator[int]:
    with path.open("w") as file:
        fcntl.flock(file, kind)
        yield file.fileno()
