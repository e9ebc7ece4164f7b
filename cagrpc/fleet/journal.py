"""The journal: a write-ahead log of what the fleet is to do, written before anything is asked of a backend.

Here are the protocol, which custom resources implement too (`cagrpc.kube.journal`), and its SQLite implementation. The
records are in `records`, what follows from them in `lifecycle`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from cagrpc import errors
from cagrpc.fleet.records import (
    BACKEND,
    DELETIONS,
    DISRUPTIONS,
    GROUPS,
    INCREMENTS,
    KINDS,
    OWN,
    Changes,
    Contents,
    RecordKind,
)
from cagrpc.fleet.sqlite_file import FileKind, explained, open_file, transaction


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
        "CREATE TABLE IF NOT EXISTS backend (id TEXT PRIMARY KEY, record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS own (id TEXT PRIMARY KEY, record TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS probes (place INTEGER PRIMARY KEY, content BLOB NOT NULL)"
    ),
    exclusive=True,
)


_TABLES: Mapping[RecordKind[Any], tuple[str, str, str]] = {
    INCREMENTS: ("increments", "id", "position"),
    DELETIONS: ("deletions", "instance_id", "position"),
    GROUPS: ("node_groups", "id", "id"),
    DISRUPTIONS: ("disruptions", "id", "id"),
    BACKEND: ("backend", "id", "id"),
    OWN: ("own", "id", "id"),
}
"""Where records of each kind are: table, column of the key, and the column whose order they are read in."""


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
            rows = {
                kind: connection.execute(f"SELECT {key}, record FROM {table} ORDER BY {order}").fetchall()  # noqa: S608
                for kind, (table, key, order) in _TABLES.items()
            }
        problems: list[str] = []
        contents = Contents(*(self._readable(kind, rows[kind], problems) for kind in KINDS))
        if problems:
            raise errors.InvalidConfiguration(problems)
        return contents

    def commit(self, changes: Changes) -> None:
        with self._lock, explained(self._path, _KIND.what):
            connection = self._open()
            with transaction(connection):
                for kind, (table, key, _) in _TABLES.items():
                    changed = changes.of(kind).items()
                    connection.executemany(
                        f"INSERT INTO {table} ({key}, record) VALUES (?, ?)"  # noqa: S608 - names of tables and columns
                        f" ON CONFLICT ({key}) DO UPDATE SET record = excluded.record",
                        [(of, _text(kind.value(record))) for of, record in changed if record is not None],
                    )
                    connection.executemany(
                        f"DELETE FROM {table} WHERE {key} = ?",  # noqa: S608 - the same
                        [(of,) for of, record in changed if record is None],
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

    def _readable(self, kind: RecordKind[Any], rows: list[tuple[str, str]], problems: list[str]) -> Iterator[Any]:
        """Yield the records that can be read; add the others to the problems."""
        for key, text in rows:
            try:
                yield kind.record(json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found = f"{type(error).__name__}: {error}"
                problems.append(f"journal {self._path}: {kind.what} {key} cannot be read ({found}); restore the file")


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
