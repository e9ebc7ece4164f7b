"""A journal file of an earlier release is read and finished by this one, and its records are written as before."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.records import INCREMENTS
from tests.support.recorded_journals import SQLITE_FILE, as_recorded, check_reads_and_finishes, recorded


def test_the_file_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    journal = SqliteJournal(Path(shutil.copy(SQLITE_FILE, tmp_path)))
    assert as_recorded(journal.read()) == recorded("records")
    journal.close()


def test_the_file_is_finished(tmp_path: Path) -> None:
    check_reads_and_finishes(SqliteJournal(Path(shutil.copy(SQLITE_FILE, tmp_path))))


def test_every_increment_is_written_again_with_the_same_bytes() -> None:
    with closing(sqlite3.connect(f"file:{SQLITE_FILE}?mode=ro&immutable=1", uri=True)) as file:
        texts = [text for (text,) in file.execute("SELECT record FROM increments")]
    assert any("provisioningrequest/" in text for text in texts)
    assert any('"expected/' in text for text in texts)
    again = (INCREMENTS.value(INCREMENTS.record(json.loads(text))) for text in texts)
    assert [json.dumps(value, separators=(",", ":")) for value in again] == texts
