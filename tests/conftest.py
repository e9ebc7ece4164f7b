"""For every test."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest_plugins = ["tests.support.serving", "tests.controlplane.plugin"]


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


@pytest.fixture(autouse=True)
def _connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many a test leaves a journal or a simulated fleet as a killed process does. From 3.13 on Python warns of
    connections that nobody closed, in whichever test runs when they are collected."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remembered(*arguments: Any, **more: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remembered)
    yield
    for connection in opened:
        connection.close()
