"""One episode of the campaign over the fleet: one cloud, one journal, and one process after the other that works on
both while everything goes wrong: they are killed at any step, or paused to wake up as former leaders, and the
weather is bad (`weather`). What happens is drawn from a seed, and the same seed makes the same episode."""

from __future__ import annotations

import secrets
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self
from unittest.mock import patch

from bench.faults.callers import Callers
from bench.faults.cloud import Cloud, Line
from bench.faults.observer import KEPT, KEPT_NODES, Evidence, violations
from bench.faults.stores import Backup, Opened, Store
from bench.faults.weather import EpisodeNodes, Weather
from cagrpc import errors
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.model import IncrementSpec, InstanceState, Phase
from cagrpc.runtime.clock import SteadyClock
from solver.model import Limit
from tests.support.clocks import any_clock
from tests.support.fleet import FakeClock, group, run_inline
from tests.support.kills import Killed, Steps

GROUPS = (
    group("a", max_size=40),
    group("b", max_size=40, price=0.2),
    group("c", max_size=30, price=0.3),
    group(KEPT, min_size=KEPT_NODES, max_size=4),
)
LIMITS = (Limit("cluster", {"nodes": 90}),)
DEADLINE_SECONDS = 600.0
STEPS_BETWEEN_QUIET_POINTS = 120
_PAUSES_SECONDS = (0.5, 1.0, 1.0, 1.0, 2.0, 5.0, 15.0, 60.0)
_QUIET_ROUNDS = 300
_RENEW_SECONDS = 4.0
_YOUNGEST_BACKUP_SECONDS = 15.0
"""A leader writes to its journal every 10 s."""


@dataclass
class Process:
    """One process, from its start to its end."""

    fleet: Fleet
    opened: Opened
    line: Line
    steps: Steps


@dataclass
class Result:
    told: Counter[str]
    """What happened, how often."""
    violations: list[str] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    """The steps at which processes were killed."""
    most: Counter[str] = field(default_factory=Counter)
    """Largest figures, of memory and time."""

    def __iadd__(self, other: Result) -> Self:
        self.most |= other.most
        self.told += other.told
        self.violations += other.violations
        self.steps += other.steps
        return self


class Episode:
    def __init__(self, directory: Path, store: Store, clock: FakeClock, rng: Random, told: Counter[str]) -> None:
        self.store = store
        self.clock = clock
        self.rng = rng
        self.told = told
        self.killed_at: Counter[str] = Counter()
        self.cloud = Cloud(directory / "cloud.sqlite", any_clock(clock), rng, told)
        self.nodes: EpisodeNodes | None = EpisodeNodes(self.cloud, rng, clock) if rng.random() < 0.6 else None
        self.weather = Weather(self.cloud, store, self.nodes, clock, rng, told)
        self.callers = Callers(rng, clock, told, 0)
        self.found: list[str] = []
        self._process: Process | None = None
        self._zombies: list[Process] = []
        self._may_die = True
        self._backup: tuple[float, Backup] | None = None
        self._restored_at: float | None = None
        self._deleted_before: frozenset[str] = frozenset()

    def run(self, goal: int) -> Result:
        """Go on until about `goal` increments were journalled."""
        self.callers = Callers(self.rng, self.clock, self.told, goal)
        self.weather.clear_up()
        try:
            while not self.callers.is_done and not self.found:
                for _ in range(STEPS_BETWEEN_QUIET_POINTS):
                    self._step()
                self._quiet()
            self._end()
        finally:
            self._let_go()
            self.cloud.close()
        return Result(self.told, self.found, self.killed_at)

    # ---- what goes wrong

    def _step(self) -> None:
        rng = self.rng
        if rng.random() < 0.08:
            self.weather.change()
        if rng.random() < 0.02:
            self.weather.set_clock()
        self.cloud.carry_out_late()
        self._pass_time(rng.choice(_PAUSES_SECONDS) if rng.random() < 0.9 else 0.0)
        if rng.random() < 0.02:
            self._change_process()
        if rng.random() < 0.01:
            self._use_backups()
        if self._running() and rng.random() < 0.95:
            self._attempt(self._work)
        if self._zombies and rng.random() < 0.3:
            self._zombie_acts(rng.choice(self._zombies))

    def _change_process(self) -> None:
        rng, process = self.rng, self._process
        if process is None:
            return
        if not self.store.several or rng.random() < 0.3:
            self._end_process("killed between two steps")
        elif rng.random() < 0.4:
            with suppress(Killed, errors.CagrpcError):
                process.fleet.close()
                if process.opened.election is not None:
                    process.opened.election.release()
                self.told["leaders that handed over"] += 1
            self._end_process("")
        else:  # paused, or cut off: another one leads, and this one wakes up
            self._zombies.append(process)
            self._process = None
            self.told["leaders that were paused"] += 1

    def _use_backups(self) -> None:
        if self._backup is None or self.rng.random() < 0.5:
            self._backup = self.clock(), self.store.backup()
            self.clock.advance(0.001)  # what comes is later
            return
        taken_at, backup = self._backup
        if self.clock() < taken_at + _YOUNGEST_BACKUP_SECONDS:
            return
        self._backup = None
        if not self.store.several:
            self._end_process("")  # a file is restored while nobody has it open
        self.store.restore(backup)
        self.told["older backups that were restored"] += 1
        self._restored_at = min(taken_at, self._restored_at or taken_at)
        self._deleted_before = frozenset(each.token for each in self.cloud.books().values() if each.deleted)
        self.callers.restored(taken_at)
        # The leader may go on until it writes.

    # ---- processes

    def _pass_time(self, seconds: float) -> None:
        """A leader renews its Lease meanwhile."""
        election = None if self._process is None else self._process.opened.election
        until = self.clock() + seconds
        while election is not None and election.is_leader and until - self.clock() > _RENEW_SECONDS:
            self.clock.advance(_RENEW_SECONDS)
            with suppress(errors.CagrpcError):
                election.step()
        self.clock.advance(max(0.0, until - self.clock()))
        if election is not None and election.is_leader:
            with suppress(errors.CagrpcError):
                election.step()

    def _running(self) -> bool:
        """Return whether there is a leader; try to start one where there is none."""
        if self._process is None:
            self._attempt(self._start)
        return self._process is not None

    def _start(self) -> None:
        rng = self.rng
        steps = Steps(int(rng.expovariate(1 / 80)) + 1 if self._may_die and rng.random() < 0.7 else 0)
        opened: Opened | None = None
        try:
            opened = self.store.open(steps, self.weather.wall)
            if opened is None:
                return
            self.told["processes"] += 1
            clock = SteadyClock(any_clock(self.weather.wall), any_clock(self.clock))
            line = Line(self.cloud, steps, clock)
            for each in self._zombies:
                each.line.superseded = True
            fleet = Fleet(
                FleetSettings(GROUPS, LIMITS, increment_deadline_seconds=DEADLINE_SECONDS),
                line,
                opened.journal,
                nodes=self.nodes,
                clock=clock,
                submit=run_inline,
            )
        except BaseException as error:
            if opened is not None:
                opened.crash()
            if isinstance(error, Killed):
                self._killed(steps)
            raise
        self._process = Process(fleet, opened, line, steps)
        self.callers.look(fleet)
        if self._restored_at is not None:
            self.callers.find_again(fleet, self._restored_at)
            self._restored_at = None

    def _attempt(self, do: object) -> None:
        """Do something that may fail, or at which the process may end."""
        try:
            do()  # type: ignore[operator]
        except Killed:
            process = self._process
            if process is not None:
                self._killed(process.steps)
                self._end_process("")
        except errors.CagrpcError:
            self.told["calls refused"] += 1
        except Exception as error:  # noqa: BLE001 - which is a violation
            self._wrong(f"{error!r} at {traceback.format_exception(error)[-2].strip()}")
        if (process := self._process) is not None:
            election = process.opened.election
            if process.opened.closed_because() or (election is not None and not election.is_leader):
                self._end_process("ended by themselves")  # as `Standby` ends the process

    def _killed(self, steps: Steps) -> None:
        self.told["processes killed at a step"] += 1
        what, _, phases = steps.names[-1].rpartition(" ")
        self.killed_at[f"{what} {','.join(sorted(set(phases.split(','))))}"] += 1

    def _end_process(self, why: str) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.opened.crash()
            if why:
                self.told[f"processes {why}"] += 1

    def _work(self) -> None:
        process = self._process
        assert process is not None
        fleet, books = process.fleet, self.cloud.books
        if self._restored_at is not None:
            # It does not know that the journal is another one: it may show what was, and change nothing.
            fleet.apply(IncrementSpec({"a": 1}, reason="after the journal was restored"))
            self._wrong("a process went on with a journal that was restored")
        if self.rng.random() < 0.8:
            fleet.reconcile()
        if self.nodes is not None and not self.nodes.unknown:
            self.callers.look(fleet)
            self.callers.release(fleet, books(), self.nodes.there())
        self.callers.act(fleet, books())

    def _zombie_acts(self, process: Process) -> None:
        """It wakes up and goes on with what it has in memory: nothing of that may count."""
        if self._process is None:
            return  # nobody has taken over yet: it might lead on
        self.told["tries of former leaders"] += 1
        fleet, before = process.fleet, self.store.writer()
        with suppress(Killed, errors.CagrpcError):
            match self.rng.randrange(4):
                case 0 | 1:
                    fleet.reconcile()
                case 2:
                    for status in fleet.snapshot.increments:
                        fleet.release(status.id)
                case _:
                    for key, state in fleet.snapshot.groups.items():
                        fleet.delete_instances(key, [each.id for each in state.instances])
        identity = "" if process.opened.election is None else process.opened.election.identity
        if self.store.writer() == identity != before:
            self._wrong("a former leader wrote to the journal")
        for what in process.line.carried_out_after:
            self._wrong(f"a former leader carried out {what}")
        process.line.carried_out_after.clear()

    def _wrong(self, what: str) -> None:
        self.found.append(f"at {self.clock():.1f}: {what}")

    # ---- quiet points

    def _quiet(self) -> None:
        """Let everything end, with nothing in the way, and judge."""
        self._may_die = False
        if self._process is not None:
            self._process.steps.fatal = 0
        self.weather.clear_up()
        self.cloud.carry_out_late(float("inf"))
        for round_ in range(_QUIET_ROUNDS):
            self._pass_time(5.0 if round_ < 100 else 30.0)
            if self.nodes is not None:
                self.nodes.not_ready = set()
            if self._running():
                self._attempt(self._finish)
            if self._is_settled():
                break
        self._judge()
        for each in self._zombies:
            self._zombie_acts(each)
            each.opened.crash()
        self._zombies.clear()
        self._may_die = True
        self.told["quiet points"] += 1

    def _finish(self) -> None:
        process = self._process
        assert process is not None
        fleet = process.fleet
        fleet.reconcile()
        if self._restored_at is not None:
            return
        self.callers.look(fleet)
        if self.nodes is not None:
            self.callers.release(fleet, self.cloud.books(), self.nodes.there())
        self.callers.finish(fleet, self.cloud.books())

    def _is_settled(self) -> bool:
        if self._process is None or self._restored_at is not None:
            return False
        snapshot = self._process.fleet.snapshot
        instances = [each for state in snapshot.groups.values() for each in state.instances]
        phases = {ask.phase for ask in self.callers.asks if ask.id and not ask.lost}
        return (
            all(each.state is InstanceState.RUNNING and each.error is None for each in instances)
            and not any(status.phase.in_flight for status in snapshot.increments)
            and snapshot.groups[KEPT].target_size >= KEPT_NODES
            and phases <= {Phase.DONE, Phase.ROLLED_BACK}
            and not self._left_to_delete()
        )

    def _left_to_delete(self) -> bool:
        books = self.cloud.books()
        unneeded = {
            ask.id
            for demand in self.callers.demands
            for ask in demand.asks
            if ask.id and (demand.over or ask.lost or ask is not demand.last)
        }
        return any(each.stands and each.increment_id in unneeded for each in books.values())

    def _judge(self) -> None:
        process = self._process
        if process is None:
            self._wrong("no process could be started")
            return
        evidence = Evidence(
            self.cloud.books(),
            self.cloud.refused,
            self.callers,
            DEADLINE_SECONDS,
            self._deleted_before,
            process.fleet.snapshot,
        )
        for what in (*self.callers.violations, *violations(evidence), *self.store.leftovers()):
            self._wrong(what)
        self.callers.violations.clear()

    def _end(self) -> None:
        """Nobody needs anything any more: nothing may be left but what groups keep."""
        if self.found:
            return
        for demand in self.callers.demands:
            demand.over = True
        self._quiet()
        process = self._process
        if process is None or self.found:
            return
        instances = {key: [each.id for each in state.instances] for key, state in process.fleet.snapshot.groups.items()}
        for key, ids in instances.items():
            if key != KEPT and ids:  # of increments that a restored journal does not know
                for each in ids:
                    self.callers.deletes[each] = False
                process.fleet.delete_instances(key, ids)
        self._quiet()
        left = [each.id for each in self.cloud.books().values() if each.stands and each.node_group != KEPT]
        if left and not self.found:
            self._wrong(f"left in the end: {left}")

    def _let_go(self) -> None:
        self._end_process("")
        for each in self._zombies:
            each.opened.crash()


@contextmanager
def seeded(rng: Random) -> Iterator[None]:
    """Ids are drawn from the seed as well."""
    with patch.object(secrets, "token_hex", lambda nbytes=32: rng.randbytes(nbytes).hex()):
        yield
