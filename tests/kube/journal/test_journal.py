"""The journal in a cluster when requests fail, answers are lost, writers change and hands interfere: a commit is whole
or not at all, and whoever is told that nothing was written can rely on it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.fleet.ledger import Ledger
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    IncrementSpec,
    Origin,
    Phase,
    Placement,
    PodMove,
)
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, GroupRecord, IncrementRecord, Member, MemberState
from cagrpc.kube.journal import objects
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS
from cagrpc.kube.journal.root import ConfirmPolicy, parts_of
from tests.support.api_server import ApiRequest, ApiServer, Fault, api_server
from tests.support.fleet import FakeClock, group

ROOT = f"{FLEET_RECORDS}/journal"


@pytest.fixture
def store() -> Iterator[ApiServer]:
    with api_server(INCREMENTS, FLEET_RECORDS) as made:
        yield made


def opened(store: ApiServer, name: str = "one", check: Callable[[], None] = lambda: None) -> ClusterJournal:
    clock = FakeClock()
    return ClusterJournal(store.client(), name, check=check, patience=ConfirmPolicy(7.0, clock, clock.advance))


def told(contents: Contents) -> Any:
    """What two equal contents have in common."""
    return (
        list(contents.increments.items()),
        dict(contents.deletions),
        dict(contents.groups),
        # By age as they are read; a change appends one that was forgotten before, however old it is.
        sorted(contents.disruptions.items(), key=lambda each: each[1].created_at_seconds),
    )


def record(key: str, phase: Phase = Phase.PLANNED, **more: Any) -> IncrementRecord:
    made = IncrementRecord(
        id=key,
        increment=IncrementSpec({"a": 1, "b": 1}, Origin.CAGRPC, frozenset({"pod-1", "pod-2"}), "because"),
        phase=phase,
        members=(Member(f"{key}-a-1", "a"), Member(f"{key}-b-1", "b")),
        created_at_seconds=12.5,
        deadline_at_seconds=612.5,
    )
    return replace(made, **more)


def disruption(key: str, phase: DisruptionPhase = DisruptionPhase.CREATING, **more: Any) -> Disruption:
    made = Disruption(
        id=key,
        reason="Underutilized",
        phase=phase,
        nodes=(DisruptedNode("node-1", "x://1", "a"),),
        created_at_seconds=20.0 + len(key) + ord(key[0]) / 1000,
        deadline_at_seconds=920.0,
        increment_id="new",
        moves=(PodMove("uid-1", "default", "web-1", "ReplicaSet/default/web", "new/a/0", "gang"),),
        pods=1,
    )
    return replace(made, **more)


def deletion(number: int, done: float | None = None) -> DeletionRecord:
    return DeletionRecord(f"x://{number}", "a", 1.0, done)


BEFORE = Changes(
    increments=(record("old"), record("gone", Phase.DONE)),
    deletions=(deletion(1), deletion(2, 2.0)),
    groups=(GroupRecord(group("a")),),
    disruptions=(disruption("ended", DisruptionPhase.DONE, moves=(), finished_at_seconds=30.0), disruption("walk")),
)
CHANGES = Changes(
    increments=(record("old", Phase.READY, message="all run"), record("new")),
    deletions=(deletion(1, 3.0), deletion(3)),
    groups=(GroupRecord(group("b"), ("limit",)),),
    forgotten_increments=("gone",),
    forgotten_deletions=("x://2",),
    forgotten_groups=("a",),
    disruptions=(disruption("walk", DisruptionPhase.MOVING, message="moves"),),
    forgotten_disruptions=("ended",),
)
LATER = Changes(increments=(record("old", Phase.DONE), record("newer")), deletions=(deletion(4),))


@dataclass
class Trouble:
    """A fault at one request, counted from now, and what comes after it."""

    at: int
    fault: Fault
    after: Fault = Fault.NONE
    count: int = field(default=-1)

    def __call__(self, request: object) -> Fault:
        self.count += 1
        return Fault.NONE if self.count < self.at else self.fault if self.count == self.at else self.after


def _requests_of_a_commit() -> int:
    with api_server(INCREMENTS, FLEET_RECORDS) as store:
        journal = opened(store)
        journal.commit(BEFORE)
        store.requests.clear()
        journal.commit(CHANGES)
        return len(store.requests)


def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every object too large."""
    monkeypatch.setattr("cagrpc.kube.journal.root.LARGEST_BYTES", 500)
    monkeypatch.setattr("cagrpc.kube.journal.root._PART_BYTES", 200)


def _requests_of_a_commit_in_parts() -> int:
    with pytest.MonkeyPatch.context() as monkeypatch:
        _in_parts(monkeypatch)
        return _requests_of_a_commit()


NUMBER, IN_PARTS = _requests_of_a_commit(), _requests_of_a_commit_in_parts()
FAULTS = [fault for fault in Fault if fault not in (Fault.NONE, Fault.REFUSED)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(NUMBER))
def test_one_request_fails_and_the_answer_of_the_commit_is_true(store: ApiServer, at: int, fault: Fault) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    before = journal.read()
    store.fault = Trouble(at, fault)
    written = True
    try:
        journal.commit(CHANGES)
    except errors.Unavailable:
        written = False
    store.fault = lambda _: Fault.NONE
    assert not journal.closed_because  # one fault is lived with
    expected = before.after(CHANGES) if written else before
    journal.commit(LATER)
    journal.probe()
    if fault is not Fault.LATE:  # what arrives so late is cleared away by the next reader
        names = {path.rpartition("/")[2] for path in store.objects if path.startswith(INCREMENTS)}
        assert names == expected.after(LATER).increments.keys()
    assert told(opened(store, "next").read()) == told(expected.after(LATER))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(NUMBER))
def test_the_api_server_goes_away_at_any_request(store: ApiServer, at: int, fault: Fault) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    before = journal.read()
    store.fault = Trouble(at, fault, Fault.CUT)
    written = True
    try:
        journal.commit(CHANGES)
    except errors.Unavailable:
        written = False
    store.fault = lambda _: Fault.NONE
    found = told(opened(store, "next").read())
    if journal.closed_because:  # nobody could find out; so it says that it does not know, and writes no more
        assert found in (told(before), told(before.after(CHANGES)))
    else:
        assert found == told(before.after(CHANGES) if written else before)
    with pytest.raises(errors.Unavailable):
        journal.commit(LATER)
    assert told(opened(store, "third").read()) == found


@pytest.mark.parametrize("at", range(NUMBER))
def test_a_writer_that_was_paused_at_any_request_changes_nothing_any_more(store: ApiServer, at: int) -> None:
    paused, second = opened(store, "paused"), opened(store, "second")
    paused.commit(BEFORE)
    seen: list[Contents] = []
    trouble = Trouble(at, Fault.CUT)

    def meanwhile(request: str) -> None:
        if trouble(request) is Fault.CUT:
            seen.append(second.read())
            second.commit(LATER)

    store.before = meanwhile
    written = True
    try:
        paused.commit(CHANGES)
    except errors.Unavailable:
        written = False
    store.before = lambda _: None
    assert len(seen) == 1
    assert ("new" in seen[0].increments) is written
    with pytest.raises(errors.Unavailable, match="another writer"):
        paused.commit(CHANGES)
    second.probe()
    assert told(opened(store, "third").read()) == told(seen[0].after(LATER))
    shown = [found for path, found in store.objects.items() if path.startswith(INCREMENTS)]
    assert {found["metadata"]["name"]: found["status"]["phase"] for found in shown} == {
        key: str(found.phase) for key, found in seen[0].after(LATER).increments.items()
    }


def test_what_cannot_be_found_out_closes_the_journal(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    store.fault = Trouble(1, Fault.LOST, Fault.CUT)  # the second request replaces the root
    with pytest.raises(errors.Unavailable, match="could not be confirmed"):
        journal.commit(Changes(increments=(record("new"),)))
    store.fault = lambda _: Fault.NONE
    with pytest.raises(errors.Unavailable, match="could not be confirmed"):
        journal.probe()
    assert "new" in opened(store).read().increments


def test_objects_that_are_behind_are_made_good_by_the_next_write(
    store: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    store.fault = lambda request: Fault.ERROR if request.method == "PATCH" else Fault.NONE
    with caplog.at_level(logging.WARNING):
        for phase in (Phase.CREATING, Phase.READY):
            journal.commit(Changes(increments=(record("old", phase),)))
    assert len(caplog.records) == 1  # told once
    assert store.objects[f"{INCREMENTS}/old"]["status"]["phase"] == "planned"
    store.fault = lambda _: Fault.NONE
    journal.probe()
    assert store.objects[f"{INCREMENTS}/old"]["status"]["phase"] == "ready"


def test_many_objects_are_written_once_for_several_commits_and_the_root_has_the_rest(store: ApiServer) -> None:
    clock = FakeClock()
    journal = ClusterJournal(store.client(), "one", patience=ConfirmPolicy(7.0, clock, clock.advance))
    keys = [f"many-{number:02}" for number in range(20)]

    def phases() -> set[str]:
        return {store.objects[f"{INCREMENTS}/{key}"]["status"]["phase"] for key in keys}

    journal.commit(Changes(increments=tuple(map(record, keys))))
    store.requests.clear()
    for phase in (Phase.CREATING, Phase.READY):
        journal.commit(Changes(increments=tuple(record(key, phase) for key in keys)))
    assert phases() == {"planned"}
    clock.advance(2)
    journal.probe()
    assert phases() == {"ready"}
    assert sum(request.startswith("PATCH") for request in store.requests) == len(keys)
    journal.commit(Changes(increments=tuple(record(key, Phase.DONE) for key in keys)))
    assert phases() == {"ready"}
    found = opened(store, "next").read()  # the process ended before it came to the objects
    assert {each.phase for each in found.increments.values()} == {Phase.DONE}
    assert phases() == {"done"}


def test_a_root_that_is_refused_is_a_journal_that_cannot_be_written(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    before = journal.read()
    ledger = Ledger(journal, FakeClock())
    store.fault = lambda request: Fault.REFUSED if request.path == ROOT and request.method == "PUT" else Fault.NONE
    with pytest.raises(errors.Unavailable, match="a webhook denied the request"):
        ledger.probe()
    with pytest.raises(errors.Unavailable, match="a webhook denied the request"):
        ledger.commit(CHANGES)
    assert "a webhook denied the request" in (ledger.problem or "")
    with pytest.raises(errors.Unavailable, match="a webhook denied the request"):
        opened(store, "next").read()
    store.fault = lambda _: Fault.NONE
    assert not journal.closed_because
    ledger.probe()
    assert ledger.problem is None
    assert told(opened(store, "next").read()) == told(before)


def test_a_root_that_is_refused_once_is_not_written_later(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    before = journal.read()
    refused: list[ApiRequest] = []

    def once(request: ApiRequest) -> Fault:
        if request.path != ROOT or request.method != "PUT" or refused:
            return Fault.NONE
        refused.append(request)
        return Fault.REFUSED

    store.fault = once
    with pytest.raises(errors.Unavailable, match="nothing was written"):
        journal.commit(CHANGES)
    journal.commit(LATER)
    assert told(opened(store, "next").read()) == told(before.after(LATER))


def test_nothing_is_written_by_whom_the_lease_left(store: ApiServer) -> None:
    leading = [True]

    def check() -> None:
        if not leading[0]:
            raise errors.Unavailable("not the one writer")

    journal = opened(store, check=check)
    journal.commit(BEFORE)
    leading[0] = False
    store.requests.clear()
    for write in (lambda: journal.commit(LATER), journal.probe, journal.read):
        with pytest.raises(errors.Unavailable, match="not the one writer"):
            write()
    assert not store.requests


def test_whether_the_lease_is_held_is_told_without_asking_anybody(store: ApiServer) -> None:
    held = True

    def check() -> None:
        if not held:
            raise errors.Unavailable("not the one writer")

    journal = ClusterJournal(store.client(), "first", check=check)
    journal.read()
    asked = len(store.requests)
    journal.check()
    held = False
    with pytest.raises(errors.Unavailable, match="not the one writer"):
        journal.check()
    assert len(store.requests) == asked
    held = True
    journal.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        journal.check()


def test_what_hands_change_is_written_over_or_made_anew(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    store.edit(f"{INCREMENTS}/old", annotations={"note": "by hand"})
    journal.commit(Changes(increments=(record("old", Phase.CREATING),)))
    assert store.objects[f"{INCREMENTS}/old"]["status"]["phase"] == "creating"
    del store.objects[f"{INCREMENTS}/old"]
    for page in [path for path in store.objects if "/page-" in path]:
        del store.objects[page]
    journal.commit(Changes(increments=(record("old", Phase.READY),), deletions=(deletion(1, 5.0),)))
    found = opened(store).read()
    assert found.increments["old"].phase is Phase.READY
    assert found.deletions["x://1"].done_at_seconds == 5.0


def test_an_increment_that_hands_deleted_is_told_and_gone(store: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    opened(store).commit(BEFORE)
    del store.objects[f"{INCREMENTS}/old"]
    with caplog.at_level(logging.WARNING):
        assert list(opened(store).read().increments) == ["gone"]
    assert "increment old was deleted by another client" in caplog.text


def test_without_its_root_the_journal_is_what_the_objects_say(store: ApiServer) -> None:
    journal = opened(store)
    records = (record("z", created_at_seconds=1.0), record("a", created_at_seconds=2.0))
    journal.commit(Changes(increments=records, deletions=(deletion(1),)))
    before = journal.read()
    del store.objects[ROOT]
    with pytest.raises(errors.Unavailable, match="it was deleted"):
        journal.commit(LATER)
    again = opened(store).read()
    assert list(again.increments)[:2] == ["z", "a"]
    assert told(again.after(Changes(forgotten_increments=("newer", "old")))) == told(before)


def test_increments_that_never_counted_are_cleared_away(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    store.put(f"{INCREMENTS}/left", {"metadata": {"name": "left"}, **_parts(record("left"))})
    found = opened(store).read()
    assert "left" not in found.increments
    assert f"{INCREMENTS}/left" not in store.objects


def _parts(made: IncrementRecord) -> dict[str, Any]:
    body = objects.increment_body(made)
    return {"spec": body["spec"], "status": body["status"]}


def test_the_journal_of_another_namespace_is_not_taken_over(store: ApiServer) -> None:
    def of(namespace: str) -> ClusterJournal:
        return ClusterJournal(store.client(), f"server in {namespace}", namespace=namespace)

    opened(store).commit(BEFORE)  # of a version that did not say where it runs
    first = of("first")
    before = first.read()
    with pytest.raises(errors.InvalidConfiguration, match=r"namespace first \(last writer server in first\)"):
        of("second").read()
    first.commit(LATER)  # it was not disturbed
    assert told(of("first").read()) == told(before.after(LATER))
    del store.objects[ROOT]
    assert of("second").read().increments.keys() == before.after(LATER).increments.keys()


def test_missing_definitions_are_named(store: ApiServer) -> None:
    store.kinds.clear()
    with pytest.raises(errors.InvalidConfiguration, match=r"deploy/crds\.yaml are not installed"):
        opened(store).read()


@pytest.mark.parametrize("path", [ROOT, f"{INCREMENTS}/old", f"{FLEET_RECORDS}/{objects.page_of('x://1')}"])
@pytest.mark.parametrize("content", ["milk", "bWlsaw==", objects.pack({"increments": 7}), objects.pack(7)])
def test_damaged_objects_are_named(store: ApiServer, path: str, content: str) -> None:
    opened(store).commit(BEFORE)
    found = store.objects[path]
    part = "status" if "increments" in path else "spec"
    store.put(path, {**found, part: {**found[part], "content": content}})
    with pytest.raises(errors.InvalidConfiguration, match="cannot be read") as raised:
        opened(store).read()
    assert path.rpartition("/")[2] in str(raised.value)


def test_a_large_increment_comes_back(store: ApiServer) -> None:
    """10,000 nodes, each with 3 pods planned for it."""
    made = large("big", nodes=10_000, pods=3)
    journal = opened(store)
    journal.commit(Changes(increments=(made,)))
    running = replace(
        made,
        phase=Phase.READY,
        members=tuple(
            replace(m, state=MemberState.ORDERED, instance_id=f"aws:///us-east-1a/i-{number * 7919:017x}")
            for number, m in enumerate(made.members)
        ),
    )
    journal.commit(Changes(increments=(running,)))
    assert opened(store).read().increments["big"] == running
    assert max(objects.size(found) for found in store.objects.values()) <= objects.LARGEST_BYTES


def test_an_increment_too_large_for_one_object_is_kept_instored_parts(store: ApiServer) -> None:
    made = large("big", nodes=1_000, pods=100)
    journal = opened(store)
    journal.commit(BEFORE)
    journal.commit(Changes(increments=(made,)))
    assert opened(store).read().increments["big"] == made
    assert stored_parts(store)
    assert max(objects.size(found) for found in store.objects.values()) <= objects.LARGEST_BYTES
    journal = opened(store)
    moved = replace(made, phase=Phase.CREATING)
    journal.commit(Changes(increments=(moved,)))
    assert opened(store).read().increments["big"] == moved
    journal = opened(store)
    journal.commit(Changes(forgotten_increments=("big",)))
    assert not stored_parts(store), "parts go with what they are of"


def test_a_disruption_too_large_for_one_object_is_kept_in_parts(
    store: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.kube.journal.root.LARGEST_BYTES", 100_000)
    monkeypatch.setattr("cagrpc.kube.journal.root._PART_BYTES", 90_000)
    moves = tuple(
        PodMove(secrets.token_hex(18), "default", f"web-{secrets.token_hex(5)}", "ReplicaSet/default/web", f"node-{n}")
        for n in range(3_000)
    )
    journal = opened(store)
    journal.commit(Changes(disruptions=(disruption("walk", moves=moves),), deletions=(deletion(1),)))
    assert opened(store).read().disruptions["walk"].moves == moves
    assert stored_parts(store)
    assert max(objects.size(found) for found in store.objects.values()) <= 100_000
    journal = opened(store)
    journal.commit(Changes(disruptions=(disruption("walk", DisruptionPhase.DONE, moves=()),)))
    found = opened(store).read()
    assert found.disruptions["walk"].phase is DisruptionPhase.DONE
    assert list(found.deletions) == ["x://1"]
    assert not stored_parts(store), "parts go with what they are of"


def stored_parts(store: ApiServer) -> set[str]:
    return {path.rpartition("/")[2] for path in store.objects if "/part-" in path}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(0, IN_PARTS, 2))
def test_what_is_in_parts_is_whole_whatever_request_fails(
    store: ApiServer, at: int, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_parts(monkeypatch)
    test_one_request_fails_and_the_answer_of_the_commit_is_true(store, at, fault)
    assert len(stored_parts(store)) > 3
    _nothing_is_left_over(store)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(1, IN_PARTS, 3))
def test_what_is_in_parts_is_whole_whenever_the_api_server_goes_away(
    store: ApiServer, at: int, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_parts(monkeypatch)
    test_the_api_server_goes_away_at_any_request(store, at, fault)
    _nothing_is_left_over(store)


@pytest.mark.parametrize("at", range(IN_PARTS))
def test_a_paused_writer_deletes_no_part_of_another(store: ApiServer, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_parts(monkeypatch)
    test_a_writer_that_was_paused_at_any_request_changes_nothing_any_more(store, at)
    _nothing_is_left_over(store)


def _nothing_is_left_over(store: ApiServer) -> None:
    reader = opened(store, "last")
    reader.read()
    reader.probe()
    named = {part for found in store.objects.values() for part in parts_of(found)}
    assert stored_parts(store) == named


def test_what_an_increment_asks_for_does_not_change(store: ApiServer) -> None:
    journal = opened(store)
    journal.commit(BEFORE)
    with pytest.raises(errors.InvalidInput, match="cannot be changed"):
        journal.commit(Changes(increments=(record("old", increment=IncrementSpec({"a": 7})),)))


def large(key: str, *, nodes: int, pods: int) -> IncrementRecord:
    uids = [
        [f"{(node * 1000 + pod) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for pod in range(pods)]
        for node in range(nodes)
    ]
    uids = [[f"{u[:8]}-{u[8:12]}-{u[12:16]}-{u[16:20]}-{u[20:]}" for u in node] for node in uids]
    return IncrementRecord(
        id=key,
        increment=IncrementSpec(
            {"m7i.large-us-east-1a": nodes},
            pods=frozenset(uid for node in uids for uid in node),
            placements=tuple(Placement("m7i.large-us-east-1a", tuple(node)) for node in uids),
            cost_usd_per_hour=1234.5678,
            gap=0.0123,
        ),
        phase=Phase.PLANNED,
        members=tuple(Member(f"{key}-m7i.large-us-east-1a-{n}", "m7i.large-us-east-1a") for n in range(1, nodes + 1)),
        created_at_seconds=1.0,
        deadline_at_seconds=601.0,
    )


def test_of_forgotten_increments_nothing_is_kept(store: ApiServer) -> None:
    journal = opened(store)
    for number in range(3):
        journal.commit(Changes(increments=(record(f"i{number}"),)))
        journal.commit(Changes(forgotten_increments=(f"i{number}",)))
    assert [path for path in journal._versions if path.startswith(INCREMENTS)] == []
