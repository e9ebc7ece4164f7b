"""Opens SQLite files that belong to cagrpc: write-ahead log, full synchronisation, an application id and a version in
the header.

Shared by the journal and by backends that store a file. Tables are theirs; here are the file and the errors for one
that is damaged, foreign, locked or not writable.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cagrpc import errors

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_PRIMARY_CODE = 0xFF  # an extended result code carries the primary one in its lowest byte


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. `mark` is SQLite's application id, `version` its user version."""

    what: str
    """What it is called in messages, such as "journal"."""
    mark: int
    version: int
    """That and all before it are read; opening a file of those sets it."""
    schema: str
    """Statements that initialise a file, run at every opening with IF NOT EXISTS, so that older files get new tables
    without a new version."""
    exclusive: bool = False
    """Whether only one process may open the file at a time."""


def open_file(path: Path, kind: FileKind, *, busy_seconds: float = 2.0) -> sqlite3.Connection:
    """Open or create the file, which is for its owner alone, and verify that it can be written.

    Raises `InvalidConfiguration` where it is damaged, foreign, of a newer version or not writable, and `Unavailable`
    where another process has it locked. The connection may be used by any thread, one at a time; transactions are begun
    explicitly.
    """
    with explained(path, kind.what, opening=True):
        _for_its_owner_alone(path)
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
    """Run the block in a transaction: commit it, or roll back on an error."""
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
    """Convert SQLite's errors. While opening, those that need a person are `InvalidConfiguration`; later all are
    `Unavailable`, since the file was valid before."""
    try:
        yield
    except UnicodeDecodeError as error:  # sqlite3 raises it where SQLite's message quotes bytes that are no text
        found = bytes(error.object).decode(errors="replace")
        if opening:
            raise errors.InvalidConfiguration([_damaged(f"{what} {path}", found)]) from error
        raise errors.Unavailable(f"{what} {path}: {found}") from error
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


def _for_its_owner_alone(path: Path) -> None:
    """Create the file, or take away what others may do with it. SQLite gives the write-ahead log the same mode."""
    with suppress(OSError):  # what cannot be opened SQLite says in its own words
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:  # not opened: to close it would end the locks of this process's other connections
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)


def _writable(path: Path) -> bool:
    """Return whether the file can be written. SQLite reports a write-ahead log that it may not create as a generic I/O
    error."""
    return os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))


def _damaged(place: str, found: str) -> str:
    return f"{place}: damaged or not a SQLite file ({found}); restore it, or move it away to start with a new one"


def _check_header(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    place = f"{kind.what} {path}"
    if mark != kind.mark and (mark or tables):
        raise errors.InvalidConfiguration([f"{place}: a SQLite file of something else; name another file"])
    if mark == kind.mark and not 1 <= version <= kind.version:
        read = "1" if kind.version == 1 else f"1 to {kind.version}"
        raise errors.InvalidConfiguration(
            [f"{place}: has version {version}, this release reads {read}; use the release that wrote it"]
        )


def _check_pages(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise errors.InvalidConfiguration([_damaged(f"{kind.what} {path}", found)])
