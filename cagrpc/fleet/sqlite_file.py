"""Opening a SQLite file that must be ours: write-ahead log, full synchronisation, a mark and a version in its header.

Shared by the journal and by backends that keep a file. What the tables mean is theirs; here are only the file and the
errors that people see when it is damaged, foreign, locked or cannot be written.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cagrpc import errors

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_PRIMARY_CODE = 0xFF  # an extended result code carries the primary one in its lowest byte


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is. `mark` is SQLite's application id, `version` its user version."""

    what: str
    """For people: "journal"."""
    mark: int
    version: int
    schema: str
    """Statements that make an empty file one of this kind, run at every opening: each says IF NOT EXISTS, so a table
    that is new comes to older files without another version."""
    reads_from: int = 1
    """The oldest version that is read; such a file gets the present version when it is opened."""
    exclusive: bool = False
    """Whether the file belongs to one process at a time."""


def open_file(path: Path, kind: FileKind, *, busy_seconds: float = 2.0) -> sqlite3.Connection:
    """Opens or creates the file, and proves that it can be written.

    Raises `InvalidConfiguration` where it is damaged, something else, of a newer version or cannot be written, and
    `Unavailable` where another process holds it. The connection may be used by any thread, one at a time; transactions
    are begun by hand.
    """
    with explained(path, kind.what, opening=True):
        connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            if kind.exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            _check_header(connection, path, kind)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _check_pages(connection, path, kind)
            with transaction(connection):
                for statement in kind.schema.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {kind.mark}")
                connection.execute(f"PRAGMA user_version = {kind.version}")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path, what: str, *, opening: bool = False) -> Iterator[None]:
    """SQLite's errors in our words. While opening, what only a person can put right is `InvalidConfiguration`;
    later everything is `Unavailable`, since the file was right before."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
        place = f"{what} {path}"
        if opening and code in _DAMAGED:
            raise errors.InvalidConfiguration([_damaged(place, str(error))]) from error
        if opening and (code in _UNWRITABLE or not _writable(path)):
            raise errors.InvalidConfiguration(
                [f"{place}: cannot be opened for writing ({error}); its directory must exist and be writable"]
            ) from error
        if code in _BUSY:
            raise errors.Unavailable(f"{place}: in use by another process ({error})") from error
        raise errors.Unavailable(f"{place}: {error}") from error


def _writable(path: Path) -> bool:
    """SQLite reports a write-ahead log that it may not create as an I/O error like any other."""
    return os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))


def _damaged(place: str, found: str) -> str:
    return f"{place}: damaged or not a SQLite file ({found}); restore it, or move it away to start anew"


def _check_header(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    place = f"{kind.what} {path}"
    if mark != kind.mark and (mark or tables):
        raise errors.InvalidConfiguration([f"{place}: a SQLite file of something else; name another file"])
    if mark == kind.mark and not kind.reads_from <= version <= kind.version:
        read = str(kind.version) if kind.reads_from == kind.version else f"{kind.reads_from} to {kind.version}"
        raise errors.InvalidConfiguration(
            [f"{place}: has version {version}, this release reads {read}; use the release that wrote it"]
        )


def _check_pages(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise errors.InvalidConfiguration([_damaged(f"{kind.what} {path}", found)])
