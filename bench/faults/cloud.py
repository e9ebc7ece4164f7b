"""The cloud of a fault campaign: the simulated backend over its file, outside of every process. The database itself
keeps the books, by triggers, so that nothing of the code under test, or of a campaign, stands between what happened and
what is read. Each process has a line to it, which fails."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cagrpc import errors
from cagrpc.backends.simulated.backend import ID_PREFIX, SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.runtime.clock import EpochClock

_TRIGGERS = """
CREATE TABLE IF NOT EXISTS books (number INTEGER PRIMARY KEY, what TEXT, token TEXT, name TEXT, node_group TEXT);
CREATE TRIGGER IF NOT EXISTS made AFTER INSERT ON instances BEGIN
  INSERT INTO books (what, token, name, node_group)
  VALUES (CASE WHEN NEW.fails_at IS NULL THEN 'made' ELSE 'made to fail' END, NEW.token, NEW.name, NEW.node_group); END;
CREATE TRIGGER IF NOT EXISTS deleted AFTER UPDATE OF deleted_at ON instances WHEN OLD.deleted_at IS NULL BEGIN
  INSERT INTO books (what, token, name, node_group) VALUES ('deleted', NEW.token, NEW.name, NEW.node_group); END;
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON instances BEGIN
  INSERT INTO books (what, token, name, node_group)
  VALUES (CASE WHEN OLD.deleted_at IS NULL THEN 'vanished' ELSE 'gone' END, OLD.token, OLD.name, OLD.node_group); END;
"""


@dataclass(slots=True)
class BookedInstance:
    """One instance, as the books have it."""

    token: str
    id: str
    node_group: str
    made: int = 0
    """How often; 1, or the cloud was made to do something twice."""
    fails: bool = False
    """Whether it was decided that it fails while it is created."""
    deleted: bool = False
    """Whether somebody asked for it."""
    vanished: bool = False
    gone: bool = False

    @property
    def increment_id(self) -> str:
        return self.token.partition("-")[0]

    @property
    def stands(self) -> bool:
        return not (self.deleted or self.vanished or self.gone)


@dataclass(slots=True)
class CloudWeather:
    """What lines do now. Shares of calls, 0 to 1."""

    away: bool = False
    lost: float = 0.0
    """Carried out, and nobody learns of it."""
    late: float = 0.0
    """Orders that nobody learns of, and that are carried out later."""


class Books:
    """What the database of a simulated cloud notes by itself. `now` is the cloud's time."""

    def __init__(self, file: Path, now: Callable[[sqlite3.Connection], float]) -> None:
        self._reader = sqlite3.connect(file)
        self._reader.executescript(_TRIGGERS)
        self._now = now
        self._found: dict[str, BookedInstance] = {}
        self._read_to = 0

    def read(self) -> Mapping[str, BookedInstance]:
        """Return every instance that ever was, by token, in order of creation."""
        rows = self._reader.execute(
            "SELECT number, what, token, name, node_group FROM books WHERE number > ? ORDER BY number", (self._read_to,)
        ).fetchall()
        for number, what, token, name, group_id in rows:
            self._read_to = number
            each = self._found.setdefault(token, BookedInstance(token, f"{ID_PREFIX}{name}", group_id))
            each.made += what.startswith("made")
            each.fails |= what == "made to fail"
            each.deleted |= what == "deleted"
            each.vanished |= what == "vanished"
            each.gone |= what in ("gone", "vanished")
        vanished = self._reader.execute(
            "SELECT token FROM instances WHERE deleted_at IS NULL AND gone_at <= ?", (self._now(self._reader),)
        )  # gone by itself: a row is removed with the next change
        for (token,) in vanished:
            if token in self._found:
                self._found[token].vanished = True
        return self._found

    def close(self) -> None:
        self._reader.close()


class Cloud:
    """The one cloud of an episode. `clock` is its own, which no process can set."""

    def __init__(self, file: Path, clock: EpochClock, rng: Random, told: Counter[str]) -> None:
        """`told` counts what happened."""
        self.backend = SimulatedBackend(file, clock=clock, seed=rng.randrange(2**32))
        self._books = Books(file, lambda _: clock())
        self.books = self._books.read
        self.clock = clock
        self.rng = rng
        self.told = told
        self.weather = CloudWeather()
        self.refused: set[str] = set()
        """Ids of increments of which an order was refused."""
        self._late: list[tuple[float, Order]] = []

    def close(self) -> None:
        self._books.close()
        self.backend.close()

    def behave(self, group_id: str, behaviour: Behaviour | None) -> None:
        self.backend.set_behaviours({group_id: behaviour})

    def heal(self) -> None:
        """Behave as usual from now on. What is late stays late."""
        self.weather = CloudWeather()
        self.backend.set_behaviours(dict.fromkeys(self.backend.behaviours()))

    def delay(self, order: Order) -> None:
        self._late.append((self.clock() + self.rng.choice((1.0, 20.0, 200.0)), order))

    def carry_out_late(self, until: float | None = None) -> None:
        """Carry out the orders that were under way for long enough."""
        until = self.clock() if until is None else until
        due = [order for at, order in self._late if at <= until]
        self._late = [(at, order) for at, order in self._late if at > until]
        for order in due:
            self.told["orders that arrived late"] += 1
            try:
                self.backend.order(order)
            except errors.OrderRefused:
                self.refused.add(order.increment_id)
            except errors.Unavailable:
                continue


@dataclass
class Line:
    """One process's line to the cloud: a `Backend`. At each `step` the process may end."""

    cloud: Cloud
    step: Callable[[str], None]
    clock: EpochClock
    """The process's own."""
    superseded: bool = False
    """Whether another process leads: whatever is carried out over this line from now on is a violation."""
    carried_out_after: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def pace(self) -> Pace:
        return self.cloud.backend.pace

    def list_instances(self) -> Listing:
        self.step("before list")
        self._reach()
        found = self.cloud.backend.list_instances().instances
        self.step("executed list, not answered")
        return Listing(found, self.clock())

    def order(self, order: Order) -> None:
        self.step("before order")
        self._reach()
        if self.cloud.rng.random() < self.cloud.weather.late:
            self.cloud.delay(order)
            raise errors.Unavailable("the cloud did not answer in time")
        self._note(f"an order of increment {order.increment_id}")
        try:
            self.cloud.backend.order(order)
        except errors.OrderRefused:
            self.cloud.refused.add(order.increment_id)
            self.cloud.told["orders refused"] += 1
            raise
        self._answer("executed order, not answered")

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.step("before delete")
        self._reach()
        self._note(f"a deletion of {', '.join(each.id for each in instances)}")
        self.cloud.backend.delete(instances)
        self._answer("executed delete, not answered")

    def _reach(self) -> None:
        if self.cloud.weather.away:
            raise errors.Unavailable("the cloud is out of reach")

    def _note(self, what: str) -> None:
        if self.superseded:
            self.carried_out_after.append(what)

    def _answer(self, step: str) -> None:
        self.step(step)
        if self.cloud.rng.random() < self.cloud.weather.lost:
            self.cloud.told["answers of the cloud that were lost"] += 1
            raise errors.Unavailable("the answer was lost")
