"""For every test."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

pytest_plugins = ["tests.controlplane.plugin"]


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
