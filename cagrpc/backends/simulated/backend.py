"""The simulated backend: instances are rows of a SQLite file whose state follows from time.

No thread advances them: an instance's state is a function of the current time and of what was decided at its order, so
the file alone survives a restart. Time never runs backwards, whatever the clock does. Faults are settings
(`behaviour`), stored in the same file and changeable at run time. Like a cloud, the backend knows nothing of the
fleet's journal.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import NamedTuple

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import (
    EVERYWHERE,
    REFUSALS,
    Behaviour,
    behaviour_from_json,
    outcome,
)
from cagrpc.errors import ErrorKind, shown
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.fleet.sqlite_file import FileKind, explained, open_file, transaction
from cagrpc.runtime.clock import EpochClock, epoch
from solver.model import NodeGroup


@lru_cache(maxsize=1024)
def _stored(settings: str, key: str) -> Behaviour:
    """Read a behaviour of the file, where they seldom change and are asked for all the time. It has the attributes'
    names, and seconds, which other releases read as well."""
    return behaviour_from_json(json.loads(settings), key)


ID_PREFIX = "simulated://"
"""An instance's id is this prefix and its name, which is also the name of its Node."""

_KIND = FileKind(
    what="simulated backend",
    mark=0x63617362,  # "casb"
    version=1,
    schema=(
        "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS behaviours (key TEXT PRIMARY KEY, settings TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS instances (number INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT UNIQUE NOT NULL,"
        " name TEXT UNIQUE, node_group TEXT NOT NULL, instance_type TEXT NOT NULL, ordered_at REAL NOT NULL,"
        " running_at REAL, fails_at REAL, deleted_at REAL, gone_at REAL);"
        # Tokens of removed instances: a token must never be executed twice.
        "CREATE TABLE IF NOT EXISTS spent (token TEXT PRIMARY KEY) WITHOUT ROWID;"
        # Instances that are listed late, or whose id is known late.
        "CREATE TABLE IF NOT EXISTS late"
        " (number INTEGER PRIMARY KEY, listed_at REAL NOT NULL, named_at REAL NOT NULL)"
    ),
)

_COUNT_HEALTHY = {
    column: f"SELECT count(*) FROM instances WHERE {column} = :value"  # noqa: S608 - a column of these two
    " AND (gone_at IS NULL OR gone_at > :now) AND fails_at IS NULL AND deleted_at IS NULL"
    for column in ("node_group", "instance_type")
}
"""Count instances that hold capacity: not failing and not being deleted."""

_LABEL_LENGTH = 50  # with prefix and number a name stays below the 63 characters of a DNS label


class _Kind(NamedTuple):
    """The key by which an instance's behaviour is found."""

    group_id: str
    instance_type: str


_Row = tuple[str, str, str, float | None, float | None, float | None, float | None, float | None, float | None]


class _Listed(NamedTuple):
    """How a row is listed, until time changes that; None where it is not listed yet."""

    row: _Row
    until: float
    instance: BackendInstance | None


@dataclass(frozen=True, slots=True)
class _InstancePool:
    """The scope of a stock: a node group with a behaviour of its own, else an instance type, according to `column`."""

    column: str
    name: str
    behaviour: Behaviour
    standing: int
    """Healthy instances when the order came."""


class SimulatedBackend:
    """A `Backend` over a file. Thread-safe.

    `seed` makes the outcomes a function of the order in which instances are ordered; it is stored when the file is
    created. Raises `errors.InvalidConfiguration` for a damaged or foreign file, `errors.Unavailable` where it cannot be
    accessed.
    """

    def __init__(self, path: Path, *, clock: EpochClock = epoch, seed: int = 0) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = open_file(path, _KIND)
        # Names must not recur in a new file: a cluster may still have the old nodes.
        batch = zlib.crc32(f"{seed} {clock()}".encode()) & 0xFFFF
        with explained(path, _KIND.what), transaction(self._connection):
            facts = [("seed", str(seed)), ("batch", f"{batch:04x}"), ("latest", "0")]
            self._connection.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts)
            stored = dict(self._connection.execute("SELECT name, value FROM facts").fetchall())
        self._seed, self._batch = stored["seed"], stored["batch"]
        self._latest, self._offset = float(stored["latest"]), 0.0
        self._calls = 0
        self._listed: dict[str, _Listed] = {}
        """By token, as of the last list that was made anew; until then and with this version it still holds."""
        self._instances: tuple[BackendInstance, ...] = ()
        self._listed_version: object = None
        self._listed_until = -inf

    @property
    def pace(self) -> Pace:
        """Lists are complete but for the longest delay that is configured, or was for what is still late."""
        delays = [each.list_delay_seconds for each in self.behaviours().values()]
        with self._lock, explained(self._path, _KIND.what):
            (longest,) = self._connection.execute(
                "SELECT max(listed_at - ordered_at) FROM late JOIN instances USING (number) WHERE listed_at > ?",
                (self._now(),),
            ).fetchone()
        return Pace(absent_after_seconds=max(*delays, longest or 0.0, 0.0))

    @property
    def problem(self) -> str | None:
        return None

    def list_instances(self) -> Listing:
        with self._lock, explained(self._path, _KIND.what):
            now = self._now()
            self._check_reachable([])
            if self._version() != self._listed_version or now >= self._listed_until:
                # Before it is told: whoever opens the file next, with a clock that is behind, goes on from here even if
                # this process is killed. An instance that was running is not created once more.
                with transaction(self._connection):
                    self._remember_time()
                version = self._version()
                rows = self._connection.execute(
                    "SELECT token, name, node_group, running_at, fails_at, deleted_at, gone_at, listed_at, named_at"
                    " FROM instances LEFT JOIN late USING (number) WHERE gone_at IS NULL OR gone_at > ?"
                    " ORDER BY number",
                    (now,),
                ).fetchall()
                self._listed = {row[0]: _listed(row, now, self._listed.get(row[0])) for row in rows}
                self._listed_version = version
                self._listed_until = min((each.until for each in self._listed.values()), default=inf)
                found = (each.instance for each in self._listed.values())
                self._instances = tuple(each for each in found if each is not None)
        return Listing(self._instances, self._clock())

    def order(self, order: Order) -> None:
        wanted = [each for each in order.instances if each.token in order.wanted]
        with self._changing() as now:
            self._check_reachable([each.group for each in wanted])
            new = {each.token: _Kind(each.group.id, _type(each.group)) for each in wanted}
            kinds = dict.fromkeys(new.values())
            new = {token: kind for token, kind in new.items() if not self._knows(token)}
            pools = {kind: self._pool(kind, now) for kind in dict.fromkeys(new.values())}
            self._check_refusals(pools)
            self._check_stock(Counter(new.values()), pools)
            self._create(new, pools, now)
        self._answer(kinds)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        kinds: dict[_Kind, None] = {}
        with self._changing() as now:
            self._check_reachable([])
            for token in dict.fromkeys(each.token for each in instances):
                row = self._connection.execute(
                    "SELECT number, node_group, instance_type, gone_at FROM instances"
                    " WHERE token = :token AND deleted_at IS NULL AND (gone_at IS NULL OR gone_at > :now)",
                    {"token": token, "now": now},
                ).fetchone()
                if row is None:
                    continue
                number, group_id, instance_type, gone_at = row
                kinds[_Kind(group_id, instance_type)] = None
                behaviour = self._behaviour(group_id, instance_type)[1]
                if behaviour.unreachable:
                    raise errors.Unavailable(f"simulated backend: out of reach for {instance_type}")
                gone = min(now + behaviour.delete_seconds, gone_at or float("inf"))
                self._connection.execute(
                    "UPDATE instances SET deleted_at = ?, gone_at = ? WHERE number = ?", (now, gone, number)
                )
        self._answer(kinds)

    def vanish(self, instance_ids: Sequence[str]) -> None:
        """Simulate the sudden loss of instances: remove them at once. Unknown ones are ignored."""
        with self._changing() as now:
            self._connection.executemany(
                "UPDATE instances SET gone_at = :now WHERE name = :name AND (gone_at IS NULL OR gone_at > :now)",
                [{"name": instance_id.removeprefix(ID_PREFIX), "now": now} for instance_id in instance_ids],
            )

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Return all configured behaviours, by instance type, node group id or `*`."""
        with self._lock, explained(self._path, _KIND.what):
            rows = self._connection.execute("SELECT key, settings FROM behaviours ORDER BY key").fetchall()
        return {key: _stored(settings, key) for key, settings in rows}

    def set_behaviours(self, behaviours: Mapping[str, Behaviour | None]) -> None:
        """Set the behaviour of instance types, of node groups (which take precedence), or of all others (`*`), all or
        none; None resets one. Persistent. Raises `errors.InvalidInput` for an invalid key."""
        for key in behaviours:
            if not key or not key.isprintable():
                raise errors.InvalidInput(f"behaviour {shown(key)}: needs an instance type, a node group id or *")
        settings = {key: None if b is None else json.dumps(asdict(b)) for key, b in behaviours.items()}
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            for key, text in settings.items():
                self._connection.execute("DELETE FROM behaviours WHERE key = ?", (key,))
                if text is not None:
                    self._connection.execute("INSERT INTO behaviours VALUES (?, ?)", (key, text))

    def close(self) -> None:
        """Close the file; later calls raise `errors.Unavailable`. Idempotent."""
        with self._lock:
            with suppress(sqlite3.Error), transaction(self._connection):  # so that time is monotonic across processes
                self._remember_time()
            self._connection.close()

    @contextmanager
    def _changing(self) -> Iterator[float]:
        """Begin a transaction, remove instances that are gone, and yield the current time."""
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            now = self._now()
            self._remember_time()
            self._connection.execute("INSERT INTO spent SELECT token FROM instances WHERE gone_at <= ?", (now,))
            self._connection.execute("DELETE FROM instances WHERE gone_at <= ?", (now,))
            self._connection.execute("DELETE FROM late WHERE number NOT IN (SELECT number FROM instances)")
            yield now

    def _now(self) -> float:
        """Return the clock's time, plus all that the clock was ever set back, so that it is monotonic."""
        found = self._clock()
        self._offset = max(self._offset, self._latest - found)
        self._latest = found + self._offset
        return self._latest

    def _version(self) -> object:
        """Return what changes with the file, whoever changes it."""
        return self._connection.execute("PRAGMA data_version").fetchone(), self._connection.total_changes

    def _remember_time(self) -> None:
        self._connection.execute(
            "UPDATE facts SET value = ?1 WHERE name = 'latest' AND CAST(value AS REAL) < CAST(?1 AS REAL)",
            (repr(self._latest),),
        )

    def _behaviour(self, group_id: str, instance_type: str) -> tuple[str, Behaviour]:
        """Return the key that applies, and its behaviour."""
        for key in (group_id, instance_type, EVERYWHERE):
            row = self._connection.execute("SELECT settings FROM behaviours WHERE key = ?", (key,)).fetchone()
            if row is not None:
                return key, _stored(row[0], key)
        return EVERYWHERE, Behaviour()

    def _check_reachable(self, groups: Sequence[NodeGroup]) -> None:
        asked = {(EVERYWHERE, EVERYWHERE), *((group.id, _type(group)) for group in groups)}
        for group_id, instance_type in sorted(asked):
            if self._behaviour(group_id, instance_type)[1].unreachable:
                raise errors.Unavailable(f"simulated backend: out of reach for {instance_type}")

    def _check_refusals(self, pools: Mapping[_Kind, _InstancePool]) -> None:
        for name in REFUSALS:
            groups = [each.group_id for each, pool in pools.items() if pool.behaviour.refusal == name]
            if groups:
                raise errors.REFUSALS[ErrorKind(name)](
                    f"simulated backend: refused for {name}: {', '.join(groups)}", groups
                )

    def _answer(self, kinds: Iterable[_Kind]) -> None:
        """Lose the answer to a call that was carried out, as likely as configured."""
        with self._lock, explained(self._path, _KIND.what):
            likely = max((self._behaviour(*kind)[1].lost_answer_probability for kind in kinds), default=0.0)
        self._calls += 1
        if random.Random(f"{self._seed} answer {self._calls}").random() < likely:  # noqa: S311 - a simulation
            raise errors.Unavailable("simulated backend: the answer was lost")

    def _check_stock(self, wanted: Mapping[_Kind, int], pools: Mapping[_Kind, _InstancePool]) -> None:
        by_pool: Counter[_InstancePool] = Counter()
        for kind, count in wanted.items():
            by_pool[pools[kind]] += count
        short: dict[_InstancePool, str] = {}
        for pool, count in by_pool.items():
            stock = pool.behaviour.stock
            if stock is not None and count > (left := max(0, stock - pool.standing)):
                short[pool] = f"{pool.name}: {count} wanted, {left} of {stock} left"
        if short:
            node_groups = dict.fromkeys(kind.group_id for kind in wanted if pools[kind] in short)
            raise errors.OutOfCapacity("; ".join(short.values()), tuple(node_groups))

    def _knows(self, token: str) -> bool:
        row = self._connection.execute(
            "SELECT 1 FROM instances WHERE token = ?1 UNION ALL SELECT 1 FROM spent WHERE token = ?1", (token,)
        ).fetchone()
        return row is not None

    def _pool(self, kind: _Kind, now: float) -> _InstancePool:
        """Return the pool of a kind. A behaviour whose key is an instance type has one stock for the whole type, even
        if a group has the same id."""
        key, behaviour = self._behaviour(*kind)
        column = "node_group" if key == kind.group_id != kind.instance_type else "instance_type"
        name = kind.group_id if column == "node_group" else kind.instance_type
        (standing,) = self._connection.execute(_COUNT_HEALTHY[column], {"value": name, "now": now}).fetchone()
        return _InstancePool(column, name, behaviour, standing)

    def _create(self, new: Mapping[str, _Kind], pools: Mapping[_Kind, _InstancePool], now: float) -> None:
        (last,) = self._connection.execute(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'instances'"
        ).fetchone()
        standing = {pool: pool.standing for pool in pools.values()}
        rows, late = [], []
        for number, (token, kind) in enumerate(new.items(), start=last + 1):
            pool = pools[kind]
            rng = random.Random(f"{self._seed} {number}")  # noqa: S311 - a simulation
            result = outcome(pool.behaviour, now, standing[pool], rng)
            standing[pool] += result.fails_at_seconds is None
            name = f"{_label(kind.instance_type)}-{self._batch}-{number:04d}"
            times = (now, result.running_at_seconds, result.fails_at_seconds, result.vanishes_at_seconds)
            rows.append((number, token, name, *kind, *times))
            if max(result.listed_at_seconds, result.named_at_seconds) > now:
                late.append((number, result.listed_at_seconds, result.named_at_seconds))
        self._connection.executemany("INSERT INTO late VALUES (?, ?, ?)", late)
        self._connection.executemany(
            "INSERT INTO instances (number, token, name, node_group, instance_type, ordered_at, running_at, fails_at,"
            " gone_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def _type(group: NodeGroup) -> str:
    return group.instance_type or group.id


def _label(instance_type: str) -> str:
    """Return the readable part of a name: lower case letters, digits and dashes, as in a DNS label."""
    label = re.sub(r"[^a-z0-9]+", "-", instance_type.lower()).strip("-")[:_LABEL_LENGTH].strip("-")
    return label or "node"


def _listed(row: _Row, now: float, before: _Listed | None) -> _Listed:
    """Return how an instance is listed now; what was found `before` where that still holds."""
    if before is not None and before.row == row and now < before.until:
        return before
    token, name, group_id, running_at, fails_at, deleted_at, gone_at, listed_at, named_at = row
    times = (running_at, fails_at, gone_at, listed_at, named_at)
    until = min((at for at in times if at is not None and at > now), default=inf)
    if listed_at is not None and now < listed_at:
        return _Listed(row, until, None)
    state, error = InstanceState.CREATING, None
    if deleted_at is not None:
        state = InstanceState.DELETING
    elif fails_at is not None and now >= fails_at:
        error = InstanceError("stockout", "no capacity (simulated)")
    elif running_at is not None and now >= running_at and fails_at is None:
        state = InstanceState.RUNNING
    instance_id = token if named_at is not None and now < named_at else f"{ID_PREFIX}{name}"
    return _Listed(row, until, BackendInstance(instance_id, token, group_id, state, error))
