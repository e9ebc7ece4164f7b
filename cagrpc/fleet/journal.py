"""The journal: a write-ahead log of what the fleet is to do, written before anything is asked of a backend.

Here are the protocol, which custom resources implement too (`cagrpc.kube.journal`), and its SQLite implementation. The
records are in `records`, what follows from them in `lifecycle`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from cagrpc import errors
from cagrpc.fleet.records import (
    Changes,
    Contents,
    deletion_from_json,
    deletion_to_json,
    disruption_from_json,
    disruption_to_json,
    group_from_json,
    group_to_json,
    increment_from_json,
    increment_to_json,
)
from cagrpc.fleet.sqlite_file import FileKind, explained, open_file, transaction

R = TypeVar("R")


class Journal(Protocol):
    """One writer at a time. Every call raises `errors.Unavailable` when the journal is out of reach or closed."""

    def read(self) -> Contents:
        """Return all records, increments in order of creation. Raises `errors.InvalidConfiguration` where one is
        damaged."""
        ...

    def commit(self, changes: Changes) -> None:
        """Write all of the changes, durably, or raise `errors.Unavailable` with none of them written. Where the outcome
        of a write is unknown the implementation has to find it out before it returns, or close itself. Raises
        `errors.InvalidInput`, also with nothing written, for a new increment that is too large to be stored. The spec
        of a known increment never changes."""
        ...

    def probe(self) -> None:
        """Write, durably, a meaningless record of an ordinary size: proof that commits succeed."""
        ...

    def check(self) -> None:
        """Raise `errors.Unavailable` where this is no longer the writer, as far as is known locally: no request, no
        waiting. Call it before every call of a backend."""
        ...

    def close(self) -> None:
        """Release the journal to the next writer. Idempotent."""
        ...


_PROBE_BYTES = 16 * 1024

_KIND = FileKind(
    what="journal",
    mark=0x63616A6C,  # "cajl"
    version=2,  # 1: increments without plan, placements, cost, gap and short groups
    schema=(
        "CREATE TABLE IF NOT EXISTS increments (position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL,"
        " record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS deletions (position INTEGER PRIMARY KEY AUTOINCREMENT,"
        " instance_id TEXT UNIQUE NOT NULL, record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS node_groups (id TEXT PRIMARY KEY, record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS disruptions (id TEXT PRIMARY KEY, record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS probes (place INTEGER PRIMARY KEY, content BLOB NOT NULL)"
    ),
    exclusive=True,
)


class SqliteJournal:
    """A `Journal` in one file (write-ahead log, synchronised at every commit), held by one process at a time.

    Raises `errors.InvalidConfiguration` where the file is damaged, foreign, newer or cannot be written, and
    `errors.Unavailable` where another process holds it.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 2.0) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = open_file(path, _KIND, busy_seconds=busy_seconds)

    def read(self) -> Contents:
        with self._lock, explained(self._path, _KIND.what):
            connection = self._open()
            increments = connection.execute("SELECT id, record FROM increments ORDER BY position").fetchall()
            deletions = connection.execute("SELECT instance_id, record FROM deletions ORDER BY position").fetchall()
            groups = connection.execute("SELECT id, record FROM node_groups ORDER BY id").fetchall()
            disruptions = connection.execute("SELECT id, record FROM disruptions ORDER BY id").fetchall()
        problems: list[str] = []
        contents = Contents(
            self._readable("increment", increments, increment_from_json, problems),
            self._readable("deletion", deletions, deletion_from_json, problems),
            self._readable("node group", groups, group_from_json, problems),
            self._readable("disruption", disruptions, disruption_from_json, problems),
        )
        if problems:
            raise errors.InvalidConfiguration(problems)
        return contents

    def commit(self, changes: Changes) -> None:
        with self._lock, explained(self._path, _KIND.what):
            connection = self._open()
            with transaction(connection):
                connection.executemany(
                    "INSERT INTO increments (id, record) VALUES (?, ?)"
                    " ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                    [(record.id, increment_to_json(record)) for record in changes.increments],
                )
                connection.executemany(
                    "INSERT INTO deletions (instance_id, record) VALUES (?, ?)"
                    " ON CONFLICT (instance_id) DO UPDATE SET record = excluded.record",
                    [(record.instance_id, deletion_to_json(record)) for record in changes.deletions],
                )
                connection.executemany(
                    "INSERT OR REPLACE INTO node_groups (id, record) VALUES (?, ?)",
                    [(record.group.id, group_to_json(record)) for record in changes.groups],
                )
                connection.executemany(
                    "INSERT OR REPLACE INTO disruptions (id, record) VALUES (?, ?)",
                    [(record.id, disruption_to_json(record)) for record in changes.disruptions],
                )
                connection.executemany(
                    "DELETE FROM increments WHERE id = ?", [(key,) for key in changes.forgotten_increments]
                )
                connection.executemany(
                    "DELETE FROM deletions WHERE instance_id = ?", [(key,) for key in changes.forgotten_deletions]
                )
                connection.executemany(
                    "DELETE FROM node_groups WHERE id = ?", [(key,) for key in changes.forgotten_groups]
                )
                connection.executemany(
                    "DELETE FROM disruptions WHERE id = ?", [(key,) for key in changes.forgotten_disruptions]
                )

    def probe(self) -> None:
        with self._lock, explained(self._path, _KIND.what):
            connection = self._open()
            with transaction(connection):
                connection.execute("INSERT OR REPLACE INTO probes VALUES (1, randomblob(?))", (_PROBE_BYTES,))

    def check(self) -> None:
        self._open()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise errors.Unavailable(f"journal {self._path}: closed")
        return self._connection

    def _readable(
        self, what: str, rows: list[tuple[str, str]], parse: Callable[[str], R], problems: list[str]
    ) -> Iterator[R]:
        """Yield the records that can be read; add the others to the problems."""
        for key, text in rows:
            try:
                yield parse(text)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found = f"{type(error).__name__}: {error}"
                problems.append(f"journal {self._path}: {what} {key} cannot be read ({found}); restore the file")
