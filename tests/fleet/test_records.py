"""The current records: whatever changes in whatever order, they are as if read anew, and what did not change is not
rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.fleet.model import IncrementSpec, Phase
from cagrpc.fleet.records import (
    INCREMENTS,
    Changes,
    Contents,
    DeletionRecord,
    IncrementRecord,
    Member,
    MemberState,
)
from tests.support.examples import examples


def _record(number: int, ids: tuple[str | None, ...], state: MemberState = MemberState.ORDERED) -> IncrementRecord:
    members = tuple(Member(f"i{number}-a-{n}", "a", state, found) for n, found in enumerate(ids))
    return IncrementRecord(f"i{number}", IncrementSpec({"a": len(ids)}), Phase.CREATING, members, 1.0, 2.0)


_CHANGES = st.builds(
    Changes,
    increments=st.lists(
        st.builds(
            lambda number, known, size: _record(
                number, tuple(f"x://{number}-{n}" if known else None for n in range(size))
            ),
            st.integers(0, 4),
            st.booleans(),
            st.just(3),
        ),
        max_size=3,
        unique_by=lambda record: record.id,
    ).map(tuple),
    deletions=st.lists(st.builds(DeletionRecord, st.sampled_from("xyz"), st.just("a"), st.just(1.0))).map(tuple),
    forgotten_increments=st.lists(st.integers(0, 4).map("i{}".format), max_size=2).map(tuple),
    forgotten_deletions=st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
)


@examples(200)
@given(st.lists(_CHANGES, max_size=8))
def test_changed_step_by_step_they_are_as_if_read_anew(steps: list[Changes]) -> None:
    contents = Contents()
    for changes in steps:
        contents = contents.after(changes)
        anew = Contents(contents.increments.values(), contents.deletions.values())
        assert contents.deletions == anew.deletions
        for mine, fresh in ((contents.by_token, anew.by_token), (contents.by_instance, anew.by_instance)):
            assert {k: (p.record, p.member) for k, p in mine.items()} == {
                k: (p.record, p.member) for k, p in fresh.items()
            }
        assert sorted(contents.by_token, key=lambda token: contents.by_token[token].order) == list(anew.by_token)


def test_a_change_makes_only_what_it_changes_and_leaves_what_was_before() -> None:
    before = Contents([_record(0, ("x://0", "x://1")), _record(1, (None,))])
    after = before.after(Changes(increments=(_record(1, ("x://2",)), _record(2, (None,)))))
    assert after.by_token["i0-a-0"] is before.by_token["i0-a-0"]
    assert "x://2" not in before.by_instance
    assert "i2-a-0" not in before.by_token
    assert [after.by_token[f"i{n}-a-0"].order for n in range(3)] == [(0, 0), (1, 0), (2, 0)]
    deleted = after.after(Changes(deletions=(DeletionRecord("x://0", "a", 1.0),)))
    assert deleted.by_token is after.by_token


def test_since_when_its_pods_wait_is_kept_and_unknown_of_earlier_versions() -> None:
    record = _record(1, (None,))
    known = replace(record, increment=replace(record.increment, waiting_since_seconds=12.5))
    stored = json.loads(json.dumps(INCREMENTS.value(known)))
    assert INCREMENTS.record(stored) == known
    del stored["increment"]["waiting_since_seconds"]
    assert INCREMENTS.record(stored).increment.waiting_since_seconds is None
