"""The fault campaign over the fleet: a short one finds nothing; over a fleet that breaks a promise it finds that."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.faults import fleet
from bench.faults.disk import small_disk
from bench.faults.episode import Result
from cagrpc import errors
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.fleet.backend import Order
from cagrpc.fleet.index import FleetIndex
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import Changes
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.root import Root
from cagrpc.kube.lease import LeaderElection

SEEDS = (0, 1, *(pytest.param(seed, marks=pytest.mark.long("another seed")) for seed in range(2, 8)))


def play(seed: str, goal: int, *, mounts: bool = False) -> Result:
    with tempfile.TemporaryDirectory() as directory, small_disk(Path(directory), mounts=mounts) as disk:
        return fleet.play(seed, goal, Path(directory) / "episode", disk)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_one_finds_nothing(seed: int) -> None:
    result = play(f"{seed}", 20, mounts=seed % 2 == 0)
    assert not result.violations
    assert result.told["increments"] >= 20
    assert result.told["quiet points"] >= 2


def test_the_same_seed_makes_the_same_episode() -> None:
    first, second = play("again", 8), play("again", 8)
    assert first.told == second.told
    assert first.steps == second.steps


# ---- a fleet, a journal or a cloud that breaks a promise

Broken = Callable[[pytest.MonkeyPatch], None]


def orders_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    order = SimulatedBackend.order

    def part(self: SimulatedBackend, of: Order) -> None:
        order(self, replace(of, wanted=frozenset(sorted(of.wanted)[:2])))

    monkeypatch.setattr(SimulatedBackend, "order", part)


def orders_again_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, say."""
    order = SimulatedBackend.order

    def twice(self: SimulatedBackend, of: Order) -> None:
        order(self, of)
        other = tuple(replace(each, token=f"x{each.token}") for each in of.instances)
        order(self, replace(of, instances=other, wanted=frozenset(each.token for each in other)))

    monkeypatch.setattr(SimulatedBackend, "order", twice)


def forgets_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqliteJournal.commit

    def forgetful(self: SqliteJournal, changes: Changes) -> None:
        if not any(record.phase is Phase.PLANNED for record in changes.increments):
            commit(self, changes)

    monkeypatch.setattr(SqliteJournal, "commit", forgetful)


def takes_what_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for journal in (SqliteJournal, ClusterJournal):
        commit = journal.commit

        def refusing(self: Any, changes: Changes, commit: Any = commit) -> None:
            commit(self, changes)
            if [record.phase for record in changes.increments] == [Phase.PLANNED]:
                raise errors.Unavailable("nothing was written")

        monkeypatch.setattr(journal, "commit", refusing)


def leaves_what_it_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def deleted(self: FleetIndex) -> Any:
        return {key: each[:-1] for key, each in to_delete(self).items() if each[:-1]}

    to_delete = FleetIndex.to_delete
    monkeypatch.setattr(FleetIndex, "to_delete", deleted)


def trusts_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.fleet.lifecycle.taken_over", lambda *_: Changes())


def deletes_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def deleted(self: FleetIndex) -> Any:
        old = [each for each in self._observed.listing if each.token.endswith("-a-2")]
        return {**to_delete(self), **({"a": old} if old else {})}

    to_delete = FleetIndex.to_delete
    monkeypatch.setattr(FleetIndex, "to_delete", deleted)


def writes_after_it_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the Lease nor the root's version is looked at."""

    def replaced(self: Root, increments: Any, pending: object) -> None:
        seen = self._client.get("/apis/cagrpc.io/v1alpha1/fleetrecords/journal")
        self._seen = {**self._seen, "metadata": seen["metadata"]}
        replace_root(self, increments, pending)

    replace_root = Root.replace
    monkeypatch.setattr(Root, "replace", replaced)
    monkeypatch.setattr(LeaderElection, "check", lambda _: None)


def says_done_before_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.fleet.observation.Observation.is_ready", lambda self, token: token in self.machines)


def answers_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions are journalled only with the next change."""
    for journal in (SqliteJournal, ClusterJournal):
        commit = journal.commit

        def late(self: Any, changes: Changes, commit: Any = commit) -> None:
            commit(self, replace(changes, deletions=()))

        monkeypatch.setattr(journal, "commit", late)


BROKEN: Sequence[tuple[Broken, str, int]] = (
    (orders_in_part, "made in part", 0),
    (orders_again_by_another_name, "never asked for", 4),
    (forgets_what_it_took, "does not end", 2),
    (takes_what_it_refused, "answered with nothing", 4),
    (leaves_what_it_rolled_back, "stand", 0),
    (trusts_another_clock, "for none", 1),
    (deletes_unasked, "deleted unasked", 5),
    (writes_after_it_led, "a former leader wrote", 3),
    (says_done_before_all_runs, "for ever not running", 5),
    (answers_before_it_writes, "answered with OK, and stand", 5),
)
"""With what it is found by, and the first seed to try: one that finds it soon, as long as episodes stay as they are."""


@pytest.mark.parametrize(("broken", "what", "first"), BROKEN, ids=[each.__name__ for each, *_ in BROKEN])
def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch, broken: Broken, what: str, first: int) -> None:
    broken(monkeypatch)
    found: list[str] = []
    for seed in range(first, first + 40):
        found += play(f"broken/{seed}", 30).violations
        if any(what in each for each in found):
            return
    raise AssertionError(f"it did not find {what!r}, but {found}")
