"""Every journal keeps its records in order, whole or not at all; and the SQLite one reports what is wrong."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.journal import Journal, SqliteJournal
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    IncrementSpec,
    InstanceError,
    Origin,
    Phase,
    Placement,
    PodMove,
)
from cagrpc.fleet.records import (
    Changes,
    Contents,
    DeletionRecord,
    GroupRecord,
    IncrementRecord,
    Member,
    MemberState,
)
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS
from solver.model import Devices, NewDomains, Taint, TaintEffect
from tests.support.api_server import api_server
from tests.support.fleet import MemoryJournal, group

Opener = Callable[[], Journal]


def _sqlite(tmp_path: Path) -> Opener:
    return lambda: SqliteJournal(tmp_path / "journal.db", busy_seconds=0.05)


def _memory(tmp_path: Path) -> Opener:
    shelf = [Contents()]
    return lambda: MemoryJournal(shelf)


@pytest.fixture(params=["sqlite", "memory", "cluster"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same journal each time."""
    if request.param == "cluster":
        with api_server(INCREMENTS, FLEET_RECORDS) as store:
            yield lambda: ClusterJournal(store.client(), "test")
    else:
        yield {"sqlite": _sqlite, "memory": _memory}[request.param](tmp_path)


def _record(key: str, **more: object) -> IncrementRecord:
    record = IncrementRecord(
        id=key,
        increment=IncrementSpec({"a": 1, "b": 1}, Origin.AUTOSCALER, frozenset({"pod-1", "pod-2"}), "because"),
        phase=Phase.CREATING,
        members=(Member(f"{key}-a-1", "a", MemberState.ORDERED, "x://1"), Member(f"{key}-b-1", "b")),
        created_at_seconds=12.5,
        deadline_at_seconds=612.5,
    )
    return replace(record, **more)  # type: ignore[arg-type]


def test_a_new_journal_is_empty(opener: Opener) -> None:
    contents = opener().read()
    assert not contents.increments
    assert not contents.deletions


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(_record("one"), id="in flight"),
        pytest.param(
            _record(
                "two",
                phase=Phase.ROLLED_BACK,
                message="ümlaut",
                error=InstanceError("stockout", "none left", ErrorKind.QUOTA, 180.0),
                failed_at_seconds=20.0,
                finished_at_seconds=21.0,
                short_groups=("a", "b"),
                members=(Member("two-a-1", "a", MemberState.FAILED), Member("two-b-1", "b", MemberState.RELEASED)),
            ),
            id="failed",
        ),
        pytest.param(
            _record(
                "three",
                phase=Phase.READY,
                increment=IncrementSpec(
                    {"a": 1},
                    plan="round 7",
                    placements=(Placement("a", ("p2", "p1")), Placement("b", (), domain="1")),
                    cost_usd_per_hour=0.25,
                    gap=0.01,
                ),
            ),
            id="planned by us",
        ),
    ],
)
def test_an_increment_comes_back_as_it_was(opener: Opener, record: IncrementRecord) -> None:
    journal = opener()
    journal.commit(Changes(increments=(record,)))
    journal.close()
    assert opener().read().increments == {record.id: record}


def test_order_of_creation_survives_updates_and_reopening(opener: Opener) -> None:
    journal = opener()
    for key in ("z", "m", "a"):
        journal.commit(Changes(increments=(_record(key),)))
    journal.commit(Changes(increments=(_record("z", phase=Phase.DONE),)))
    journal.close()
    contents = opener().read()
    assert list(contents.increments) == ["z", "m", "a"]
    assert contents.increments["z"].phase is Phase.DONE


def test_deletions_are_kept_updated_and_forgotten(opener: Opener) -> None:
    journal = opener()
    first, second = DeletionRecord("x://1", "a", 1.0), DeletionRecord("x://2", "a", 2.0)
    journal.commit(Changes(deletions=(first, second)))
    done = replace(first, done_at_seconds=3.0)
    journal.commit(Changes(deletions=(done,), forgotten_deletions=("x://2", "never was")))
    journal.close()
    assert opener().read().deletions == {"x://1": done}


def test_increments_are_forgotten(opener: Opener) -> None:
    journal = opener()
    journal.commit(Changes(increments=(_record("a"), _record("b"))))
    journal.commit(Changes(forgotten_increments=("a",)))
    journal.close()
    assert list(opener().read().increments) == ["b"]


def test_a_closed_journal_is_unavailable_and_closing_may_be_repeated(opener: Opener) -> None:
    journal = opener()
    journal.close()
    journal.close()
    with pytest.raises(errors.Unavailable):
        journal.commit(Changes(increments=(_record("a"),)))
    with pytest.raises(errors.Unavailable):
        journal.read()


def test_groups_are_kept_updated_and_forgotten(opener: Opener) -> None:
    gpus = Devices(7, frozenset({"gpu", "any"}), (("gpu.example.com/model", "h100"),), taken=1)
    taints = (Taint("k", TaintEffect.NO_EXECUTE, "v"),)
    late = frozenset({"feature.example.com/driver"})
    tainted = group(
        "a",
        taints=taints,
        labels={"l": "x"},
        capacity={"cpu": 1},
        devices=(gpus,),
        post_registration_labels=late,
        new_domains=NewDomains(("block", "rack"), 16),
        shared_fate="rack",
        spares=2,
    )
    journal = opener()
    journal.commit(Changes(groups=(GroupRecord(group("a")), GroupRecord(group("b"), ("one", "two")))))
    journal.commit(Changes(groups=(GroupRecord(tainted),)))
    journal.close()
    journal = opener()
    assert dict(journal.read().groups) == {"a": GroupRecord(tainted), "b": GroupRecord(group("b"), ("one", "two"))}
    journal.commit(Changes(forgotten_groups=("a", "never was")))
    assert list(journal.read().groups) == ["b"]
    journal.close()


def test_disruptions_are_kept_updated_and_forgotten(opener: Opener) -> None:
    moves = (
        PodMove("uid-1", "default", "web-1", "ReplicaSet/default/web", "new/a/0"),
        PodMove("uid-2", "default", "web-2", "ReplicaSet/default/web", "node-7", "gang"),
    )
    nodes = (DisruptedNode("node-1", "x://1", "a"), DisruptedNode("node-2", "x://2", "b"))
    first = Disruption("z", "Underutilized", DisruptionPhase.CREATING, nodes, 1.0, 901.0, "new", moves, 2, 0.25)
    second = Disruption("a", "Empty", DisruptionPhase.DONE, nodes, 2.0, 902.0, finished_at_seconds=9.0)
    journal = opener()
    journal.commit(Changes(increments=(_record("new"),), disruptions=(first, second)))
    moving = replace(first, phase=DisruptionPhase.MOVING, message="mögen")
    journal.commit(Changes(disruptions=(moving,)))
    journal.close()
    journal = opener()
    contents = journal.read()
    assert list(contents.disruptions.items()) == [("z", moving), ("a", second)]
    assert list(contents.increments) == ["new"]
    journal.commit(Changes(forgotten_disruptions=("a", "never was")))
    journal.close()
    assert list(opener().read().disruptions) == ["z"]


# SQLite alone.


def test_a_transaction_that_fails_half_way_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TRIGGER no BEFORE INSERT ON deletions BEGIN SELECT RAISE(ABORT, 'disk on fire'); END")
    connection.close()
    journal = SqliteJournal(path)
    with pytest.raises(errors.Unavailable, match="disk on fire"):
        journal.commit(Changes(increments=(_record("a"),), deletions=(DeletionRecord("x://1", "a", 1.0),)))
    assert not journal.read().increments
    journal.commit(Changes(increments=(_record("b"),)))
    assert list(journal.read().increments) == ["b"]


def test_a_probe_finds_a_full_disk_and_leaves_nothing_to_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal._open().execute("PRAGMA max_page_count = 1")  # What SQLite has of a disk that is full.
    with pytest.raises(errors.Unavailable, match="full"):
        journal.probe()
    journal._open().execute("PRAGMA max_page_count = 1000")
    journal.probe()
    assert (journal.read().increments, journal.read().deletions) == ({}, {})
    journal.close()


def test_a_file_of_an_earlier_release_gets_the_tables_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal._open().execute("DROP TABLE probes")
    journal._open().execute("DROP TABLE disruptions")
    journal.close()
    journal = SqliteJournal(path)
    assert not journal.read().disruptions
    journal.probe()
    journal.close()


def test_a_journal_of_version_1_is_read_and_becomes_one_of_version_2(tmp_path: Path) -> None:
    """It knew nothing yet of plans and of groups that are short."""
    path = tmp_path / "journal.db"
    SqliteJournal(path).close()
    text = (
        '{"id":"one","increment":{"deltas":{"a":1},"origin":"cluster-autoscaler","pods":["p"],"reason":"because"},'
        '"phase":"creating","members":[{"token":"one-a-1","node_group":"a","state":"ordered","instance_id":"x://1"}],'
        '"created_at_seconds":1.0,"deadline_at_seconds":2.0,"message":"","error":null,"failed_at_seconds":null,'
        '"finished_at_seconds":null}'
    )
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO increments (id, record) VALUES ('one', ?)", (text,))
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    journal = SqliteJournal(path)
    record = journal.read().increments["one"]
    journal.close()
    assert record == IncrementRecord(
        id="one",
        increment=IncrementSpec({"a": 1}, Origin.AUTOSCALER, frozenset({"p"}), "because"),
        phase=Phase.CREATING,
        members=(Member("one-a-1", "a", MemberState.ORDERED, "x://1"),),
        created_at_seconds=1.0,
        deadline_at_seconds=2.0,
    )
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = SqliteJournal(path)
    script = (
        "import sys; from pathlib import Path\n"
        "from cagrpc import errors; from cagrpc.fleet.journal import SqliteJournal\n"
        "try: SqliteJournal(Path(sys.argv[1]), busy_seconds=0.05)\n"
        "except errors.Unavailable as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(path)]
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "in use by another process" in second.stdout
    first.close()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def _text(path: Path) -> None:
    path.write_text("this is no database, it is a shopping list: milk, bread, ortools\n" * 40)


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    SqliteJournal(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _torn_pages(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.commit(Changes(increments=tuple(_record(f"i{n}") for n in range(200))))
    journal.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def _truncated(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.commit(Changes(increments=tuple(_record(f"i{n}") for n in range(200))))
    journal.close()
    path.write_bytes(path.read_bytes()[:5000])


def _torn_schema(path: Path) -> None:
    SqliteJournal(path).close()
    data = path.read_bytes()
    assert b"sqlite_autoindex_increments_1" in data
    path.write_bytes(data.replace(b"sqlite_autoindex_increments_1", b"sqlite_a\xfftoindex_increments_1"))


def _directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        pytest.param(_text, "damaged or not a SQLite file", id="text file"),
        pytest.param(_foreign, "a SQLite file of something else", id="foreign database"),
        pytest.param(_newer, "has version 99, this release reads 1 to 2", id="newer version"),
        pytest.param(_torn_pages, "damaged", id="torn pages"),
        pytest.param(_truncated, "damaged", id="truncated"),
        pytest.param(_torn_schema, "damaged.*sqlite_a\N{REPLACEMENT CHARACTER}toindex", id="torn schema"),
        pytest.param(_directory, "cannot be opened for writing", id="a directory"),
    ],
)
def test_a_file_that_cannot_be_the_journal_is_named(tmp_path: Path, spoil: Callable[[Path], None], found: str) -> None:
    path = tmp_path / "journal.db"
    spoil(path)
    with pytest.raises(errors.InvalidConfiguration, match=found) as raised:
        SqliteJournal(path, busy_seconds=0.05)
    assert str(path) in str(raised.value)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidConfiguration, match="its directory must exist and be writable"):
        SqliteJournal(tmp_path / "nowhere" / "journal.db")


@pytest.mark.parametrize("existing", [pytest.param(False, id="new file"), pytest.param(True, id="existing file")])
def test_a_read_only_directory_is_named(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "shut" / "journal.db"
    path.parent.mkdir()
    if existing:
        SqliteJournal(path).close()
        path.chmod(0o444)
    path.parent.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from cagrpc import errors; from cagrpc.fleet.journal import SqliteJournal\n"
        "if os.getuid() == 0: os.setuid(65534)  # root may write everywhere\n"
        "try: SqliteJournal(Path(sys.argv[1]))\n"
        "except errors.InvalidConfiguration as error: print(error)"
    )
    child = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    path.parent.chmod(0o755)
    assert "cannot be opened for writing" in child.stdout


def test_damaged_records_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.commit(
        Changes(increments=(_record("good"), _record("bad")), deletions=(DeletionRecord("x://1", "a", 1.0),))
    )
    journal.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE increments SET record = '{\"phase\": 7}' WHERE id = 'bad'")
        connection.execute("UPDATE deletions SET record = 'milk'")
    connection.close()
    journal = SqliteJournal(path)
    with pytest.raises(errors.InvalidConfiguration) as raised:
        journal.read()
    assert len(raised.value.problems) == 2
    assert "increment bad" in str(raised.value)
    assert "deletion x://1" in str(raised.value)
    journal.close()


def test_what_a_backend_keeps_is_there_for_the_next_process(opener: Opener) -> None:
    journal = opener()
    kept = BackendRecords(journal)
    assert kept.read() == {}
    kept.write({"pool/a": {"target": 3, "tokens": ["t-1", "t-2"]}, "pool/b": {}})
    journal.commit(Changes(increments=(_record("one"),)))
    kept.write({"pool/b": None, "pool/a": {"target": 4}})
    journal.close()
    after = opener()
    assert BackendRecords(after).read() == {"pool/a": {"target": 4}}
    assert after.read().increments.keys() == {"one"}


def test_what_others_keep_is_none_of_the_backends(opener: Opener) -> None:
    journal = opener()
    BackendRecords(journal, "overview").write({"history": {"samples": []}})
    journal.close()
    after = opener()
    assert BackendRecords(after).read() == {}
    assert not after.read().backend  # of which an earlier release gives all to its backend
    assert BackendRecords(after, "overview").read() == {"history": {"samples": []}}


def test_what_was_found_in_a_journal_is_not_read_again(opener: Opener) -> None:
    journal = opener()
    BackendRecords(journal, "overview").write({"history": {"samples": [1]}})
    found = journal.read()
    journal.close()  # so that whoever reads it is refused
    assert BackendRecords(journal, "overview", found).read() == {"history": {"samples": [1]}}


def test_what_a_backend_keeps_is_refused_to_who_leads_no_more(opener: Opener) -> None:
    journal = opener()
    kept = BackendRecords(journal)
    kept.read()
    journal.close()
    with pytest.raises(errors.Unavailable):
        kept.write({"a": {}})
