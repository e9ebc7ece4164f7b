"""Increments of a real `Fleet`, with the SQLite journal, over a backend: whole or gone, whatever happens. Part of the
conformance suite (`suite`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, IncrementStatus, InstanceState, Phase
from cagrpc.testing.cloud import Ability
from cagrpc.testing.processes import Processes

_MOST_REQUESTS = 50


class _NoNodes:
    """A cluster in which no Node is Ready: increments are not whole before it changes."""

    def labels(self, _wanted: Mapping[str, AbstractSet[str]], /) -> Mapping[str, Mapping[str, str]]:
        return {}

    def ready_instances(self) -> AbstractSet[str]:
        return frozenset()

    def node_names(self) -> Mapping[str, str]:
        return {}


class _Checked:
    """The backend of the present process, with the suite's checks of every list."""

    def __init__(self, run: Processes) -> None:
        self._run = run
        self.answers_lost = False

    @property
    def pace(self) -> Pace:
        return self._run.backend.pace

    @property
    def problem(self) -> str | None:
        return self._run.backend.problem

    def list_instances(self) -> Listing:
        return self._run.list_once()

    def order(self, order: Order) -> None:
        with self._noting():
            self._run.order_once(order)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        with self._noting():
            self._run.delete_once(instances)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except errors.Unavailable:
            self.answers_lost = True
            raise


class FleetRun:
    """The processes of a test, each with a fleet over the same journal."""

    def __init__(self, run: Processes, journal: Path) -> None:
        self.cloud = run.cloud
        self._run = run
        self._path = journal
        self.before = run.cloud.machines()
        self.fleet = self._start()

    def restart(self) -> None:
        """Kill the process and begin the next."""
        self.fleet.close()
        self._run.restart()
        self.fleet = self._start()

    def without_nodes(self) -> None:
        """Begin a process whose cluster has no Ready node."""
        self.fleet.close()
        self.fleet = self._start(_NoNodes())

    def apply(self, *counts: int) -> str:
        """Ask for an increment of so many instances of each node group; return its id."""
        groups = self.cloud.node_groups
        deltas = {group.id: number for group, number in zip(groups, counts, strict=False) if number}
        return self.fleet.apply(IncrementSpec(deltas)).id

    def step(self) -> None:
        with suppress(errors.Unavailable):
            self.fleet.reconcile()

    def loses_answer(self, after: int) -> bool:
        """Step while the cloud's answers are lost after so many; return whether one was."""
        self.cloud.lose_answers(after)
        self.step()
        self.cloud.recover()
        return self._backend.answers_lost

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Step until the condition holds."""

        def holds() -> bool:
            self.step()
            return condition()

        self.cloud.wait_until(holds, what)

    def wait_for_phase(self, increment_id: str, *phases: Phase) -> IncrementStatus:
        self.wait_for(lambda: self.fleet.increment(increment_id).phase in phases, f"increment in {', '.join(phases)}")
        return self.fleet.increment(increment_id)

    def delete_all(self) -> None:
        """Delete every instance, and wait until none is left."""
        for group_id, state in self.fleet.snapshot.groups.items():
            self.fleet.delete_instances(group_id, [each.id for each in state.instances])
        self.wait_for(lambda: not self.fleet.snapshot.group_of_instance, "all instances to be deleted")

    @property
    def made(self) -> AbstractSet[str]:
        """Return the machines that were not there before the test."""
        return self.cloud.machines() - self.before

    def _start(self, nodes: _NoNodes | None = None) -> Fleet:
        self._backend = _Checked(self._run)
        fleet = Fleet(
            FleetSettings(self.cloud.node_groups, increment_deadline_seconds=self.cloud.deadline_seconds),
            self._backend,
            SqliteJournal(self._path),
            nodes=nodes,
            clock=self.cloud.clock,
            submit=lambda work: work(),
        )

        def listed() -> bool:
            with suppress(errors.Unavailable):
                fleet.reconcile()
                return True
            return False

        self.cloud.wait_until(listed, "the first list of a process")
        return fleet


class FleetConformance:
    """Tests with a `Fleet`, inherited by `BackendConformance`."""

    @pytest.fixture
    def whole(self, run: Processes, tmp_path: Path) -> Iterator[FleetRun]:
        whole = FleetRun(run, tmp_path / "journal.sqlite")
        yield whole
        whole.fleet.close()

    def test_an_increment_comes_whole_and_goes_again(self, whole: FleetRun) -> None:
        increment = whole.apply(2, 3)
        whole.wait_for_phase(increment, Phase.DONE)
        assert len(whole.made) == 5
        whole.restart()
        whole.wait_for(lambda: len(whole.fleet.snapshot.group_of_instance) == 5, "5 instances to be listed")
        whole.delete_all()
        assert not whole.made

    def test_an_increment_with_a_shortage_is_rolled_back_whole(self, whole: FleetRun) -> None:
        whole.cloud.need(Ability.RUN_OUT)
        short, sound = whole.cloud.node_groups[:2]
        whole.cloud.run_out(short)
        increment = whole.apply(2, 2)
        status = whole.wait_for_phase(increment, Phase.ROLLED_BACK, Phase.DONE)
        assert status.phase is Phase.ROLLED_BACK
        assert short.id in status.short_groups
        assert not whole.made
        assert whole.fleet.snapshot.groups[sound.id].target_size == 0

    def test_an_increment_that_loses_an_instance_is_rolled_back_whole(self, whole: FleetRun) -> None:
        whole.cloud.need(Ability.VANISH)
        whole.without_nodes()
        increment = whole.apply(2, 1)
        whole.wait_for(lambda: _all_run(whole), "3 instances to run")
        whole.cloud.vanish(min(whole.fleet.snapshot.group_of_instance))
        status = whole.wait_for_phase(increment, Phase.ROLLED_BACK)
        assert status.retry_after_seconds is None
        assert not whole.made

    def test_an_increment_is_whole_after_a_kill_at_any_answer(self, whole: FleetRun) -> None:
        """Lose each answer in turn, and kill the process."""
        whole.cloud.need(Ability.LOSE_ANSWERS)
        for after in range(_MOST_REQUESTS):
            increment = whole.apply(1, 2)
            lost = whole.loses_answer(after)
            whole.restart()
            whole.wait_for_phase(increment, Phase.DONE)
            assert len(whole.made) == 3
            whole.delete_all()
            if not lost:
                assert after > 0, "no answer was lost"
                return
        raise AssertionError(f"an order of 3 instances needs more than {_MOST_REQUESTS} requests")


def _all_run(whole: FleetRun) -> bool:
    states = [each.state for group in whole.fleet.snapshot.groups.values() for each in group.instances]
    return len(states) == 3 and set(states) == {InstanceState.RUNNING}
