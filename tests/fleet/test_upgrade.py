"""A journal file of an earlier release is read and finished by this one, and its records are written as before."""

from __future__ import annotations

import shutil
from pathlib import Path

from cagrpc.fleet.journal import SqliteJournal
from tests.support.recorded_journals import SQLITE_FILE, as_recorded, check_reads_and_finishes, recorded


def test_the_file_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    journal = SqliteJournal(Path(shutil.copy(SQLITE_FILE, tmp_path)))
    assert as_recorded(journal.read()) == recorded("records")
    journal.close()


def test_the_file_is_finished(tmp_path: Path) -> None:
    check_reads_and_finishes(SqliteJournal(Path(shutil.copy(SQLITE_FILE, tmp_path))))
