"""Whatever is committed, whichever requests fail and however often the process changes: the journal in a cluster says
what the one in a file says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cagrpc import errors
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import DisruptionPhase, Phase
from cagrpc.fleet.records import Changes, GroupRecord
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS
from tests.kube.journal.test_journal import FAULTS, Trouble, deletion, disruption, opened, record, told
from tests.support.api_server import Fault, api_server
from tests.support.examples import examples
from tests.support.fleet import group

_KEYS = st.sampled_from("abcd")
_NUMBERS = st.lists(st.integers(1, 6), unique=True, max_size=3)
_SOME_KEYS = st.lists(_KEYS, unique=True, max_size=3)
_CHANGES = st.builds(
    Changes,
    increments=_SOME_KEYS.flatmap(
        lambda keys: st.tuples(*(st.builds(record, st.just(k), st.sampled_from(Phase)) for k in keys))
    ),
    deletions=_NUMBERS.map(lambda numbers: tuple(deletion(number, float(number)) for number in numbers)),
    groups=_SOME_KEYS.map(lambda keys: tuple(GroupRecord(group(key), (key,)) for key in keys)),
    forgotten_increments=_SOME_KEYS.map(tuple),
    forgotten_deletions=_NUMBERS.map(lambda numbers: tuple(f"x://{number}" for number in numbers)),
    forgotten_groups=_SOME_KEYS.map(tuple),
    disruptions=_SOME_KEYS.flatmap(
        lambda keys: st.tuples(*(st.builds(disruption, st.just(k), st.sampled_from(DisruptionPhase)) for k in keys))
    ),
    forgotten_disruptions=_SOME_KEYS.map(tuple),
)
_TROUBLE = st.builds(
    Trouble, st.integers(0, 8), st.sampled_from([Fault.NONE, *FAULTS]), st.sampled_from([Fault.NONE, Fault.CUT])
)


class TwoJournals(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._file = SqliteJournal(Path(self._directory.name) / "journal.sqlite")
        self._server = api_server(INCREMENTS, FLEET_RECORDS)
        self._store = self._server.__enter__()
        self._cluster = opened(self._store)
        self._cluster.read()
        self._earlier: list[ClusterJournal] = []

    def teardown(self) -> None:
        try:
            self.both_say_the_same()
        finally:
            self._file.close()
            self._server.__exit__(None, None, None)
            self._directory.cleanup()

    @rule(changes=_CHANGES)
    def commit(self, changes: Changes) -> None:
        self._cluster.commit(changes)
        self._file.commit(changes)

    @rule(changes=_CHANGES, trouble=_TROUBLE, late=st.integers(0, 6))
    def commit_in_trouble(self, changes: Changes, trouble: Trouble, late: int) -> None:
        before = self._file.read()
        self._store.lateness = late
        written = self._try(lambda: self._cluster.commit(changes), trouble)
        if self._cluster.closed_because:
            self.start_anew()
            found = told(self._cluster.read())
            written = found != told(before)
            assert found == told(before.after(changes)) or not written
        if written:
            self._file.commit(changes)

    @rule(trouble=_TROUBLE)
    def probe(self, trouble: Trouble) -> None:
        self._try(self._cluster.probe, trouble)
        if self._cluster.closed_because:
            self.start_anew()

    @rule()
    def start_anew(self) -> None:
        self._earlier.append(self._cluster)
        self._cluster = opened(self._store)
        self._cluster.read()

    @rule(changes=_CHANGES)
    def an_earlier_writer_wakes_up(self, changes: Changes) -> None:
        for journal in self._earlier:
            try:
                journal.commit(changes)
            except errors.Unavailable:
                continue
            raise AssertionError("two writers")

    @rule()
    def both_say_the_same(self) -> None:
        assert told(self._cluster.read()) == told(self._file.read())

    def _try(self, write: Any, trouble: Trouble) -> bool:
        self._store.fault = trouble
        try:
            write()
        except errors.Unavailable:
            return False
        finally:
            self._store.fault = lambda _: Fault.NONE
        return True


TestTwoJournals = TwoJournals.TestCase
TestTwoJournals.settings = examples(25, steps=12)
