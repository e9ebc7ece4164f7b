"""The simulated backend: instances as rows of a SQLite file, which turn from creating to running as time passes.

No thread moves them: an instance's state follows from the time and from what was decided when it was ordered, so the
file alone survives a restart. Faults are settings (`simulated_behaviour`), kept in the same file and changed while it
runs. The file is the backend's own and knows nothing of the fleet's journal, as a cloud knows nothing of it.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cagrpc import errors
from cagrpc.backends.simulated_behaviour import (
    EVERYWHERE,
    Behaviour,
    behaviour_from_json,
    behaviour_to_json,
    outcome,
)
from cagrpc.fleet.backend import BackendInstance, Order
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.fleet.sqlite_file import FileKind, explained, open_file, transaction
from solver.model import NodeGroup

ID_PREFIX = "simulated://"
"""An instance's id is this and its name, which is also the name its Node would have."""

_KIND = FileKind(
    what="simulated backend",
    mark=0x63617362,  # "casb"
    version=1,
    schema=(
        "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS behaviours (key TEXT PRIMARY KEY, settings TEXT NOT NULL);"
        # Rows stay when their instance is gone, since a token must never be executed twice.
        "CREATE TABLE IF NOT EXISTS instances (number INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT UNIQUE NOT NULL,"
        " name TEXT UNIQUE, node_group TEXT NOT NULL, instance_type TEXT NOT NULL, ordered_at REAL NOT NULL,"
        " running_at REAL, fails_at REAL, deleted_at REAL, gone_at REAL);"
        "CREATE INDEX IF NOT EXISTS standing ON instances (instance_type, gone_at)"
    ),
)

_COUNT_SOUND = {
    "node_group": (
        "SELECT count(*) FROM instances WHERE node_group = :value"
        " AND (gone_at IS NULL OR gone_at > :now) AND fails_at IS NULL AND deleted_at IS NULL"
    ),
    "instance_type": (
        "SELECT count(*) FROM instances WHERE instance_type = :value"
        " AND (gone_at IS NULL OR gone_at > :now) AND fails_at IS NULL AND deleted_at IS NULL"
    ),
}
"""Instances that hold capacity: those that fail, or are on their way out, do not."""

_LABEL_LENGTH = 50  # with prefix and number a name stays below the 63 characters of a DNS label


class SimulatedBackend:
    """A `Backend` over a file. Safe for many threads.

    `seed` makes the outcomes a function of the order in which instances are ordered; it is kept in the file when that
    is made. Raises `errors.InvalidConfiguration` where the file is damaged or foreign, `errors.Unavailable` where it
    cannot be reached.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time, seed: int = 0) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = open_file(path, _KIND)
        # Names must not come back when a file is made anew: a cluster may still know the old nodes.
        batch = zlib.crc32(f"{seed} {clock()}".encode()) & 0xFFFF
        with explained(path, _KIND.what), transaction(self._connection):
            facts = [("seed", str(seed)), ("batch", f"{batch:04x}")]
            self._connection.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts)
            stored = dict(self._connection.execute("SELECT name, value FROM facts").fetchall())
        self._seed, self._batch = stored["seed"], stored["batch"]

    def list_instances(self) -> Sequence[BackendInstance]:
        now = self._clock()
        with self._lock, explained(self._path, _KIND.what):
            self._check_reachable([])
            rows = self._connection.execute(
                "SELECT name, token, node_group, running_at, fails_at, deleted_at FROM instances"
                " WHERE gone_at IS NULL OR gone_at > :now ORDER BY number",
                {"now": now},
            ).fetchall()
        return [_instance(row, now) for row in rows]

    def order(self, orders: Sequence[Order]) -> None:
        now = self._clock()
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            self._check_reachable([order.group for order in orders])
            new = {order.token: order.group for order in orders if not self._knows(order.token)}
            self._check_stock(list(new.values()), now)
            for token, group in new.items():
                self._create(token, group, now)

    def delete(self, instance_ids: Sequence[str]) -> None:
        now = self._clock()
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            self._check_reachable([])
            for instance_id in dict.fromkeys(instance_ids):
                row = self._connection.execute(
                    "SELECT number, node_group, instance_type, gone_at FROM instances"
                    " WHERE name = :name AND deleted_at IS NULL AND (gone_at IS NULL OR gone_at > :now)",
                    {"name": instance_id.removeprefix(ID_PREFIX), "now": now},
                ).fetchone()
                if row is None:
                    continue
                number, group_id, instance_type, gone_at = row
                behaviour = self._behaviour(group_id, instance_type)[1]
                if behaviour.unreachable:
                    raise errors.Unavailable(f"simulated backend: out of reach for {instance_type}")
                gone = min(now + behaviour.delete_seconds, gone_at or float("inf"))
                self._connection.execute(
                    "UPDATE instances SET deleted_at = ?, gone_at = ? WHERE number = ?", (now, gone, number)
                )

    def vanish(self, instance_ids: Sequence[str]) -> None:
        """Plays the sudden loss of instances: they are gone, now. Unknown ones are passed over."""
        now = self._clock()
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            self._connection.executemany(
                "UPDATE instances SET gone_at = :now WHERE name = :name AND (gone_at IS NULL OR gone_at > :now)",
                [{"name": instance_id.removeprefix(ID_PREFIX), "now": now} for instance_id in instance_ids],
            )

    def behaviours(self) -> Mapping[str, Behaviour]:
        """All behaviours that were set, by instance type, node group id or `*`."""
        with self._lock, explained(self._path, _KIND.what):
            rows = self._connection.execute("SELECT key, settings FROM behaviours ORDER BY key").fetchall()
        return {key: behaviour_from_json(json.loads(settings), key) for key, settings in rows}

    def set_behaviour(self, key: str, behaviour: Behaviour | None) -> None:
        """The behaviour of an instance type, of a node group (which goes before its type's), or of everything else
        (`*`); None takes it back. Survives restarts. Raises `errors.InvalidInput` for an empty key."""
        if not key:
            raise errors.InvalidInput("behaviour: needs an instance type, a node group id or *")
        with self._lock, explained(self._path, _KIND.what), transaction(self._connection):
            if behaviour is None:
                self._connection.execute("DELETE FROM behaviours WHERE key = ?", (key,))
            else:
                settings = json.dumps(behaviour_to_json(behaviour))
                self._connection.execute("INSERT OR REPLACE INTO behaviours VALUES (?, ?)", (key, settings))

    def close(self) -> None:
        """Every later call is `errors.Unavailable`. May be repeated."""
        with self._lock:
            self._connection.close()

    def _behaviour(self, group_id: str, instance_type: str) -> tuple[str, Behaviour]:
        """The key that applies, and what is set under it."""
        for key in (group_id, instance_type, EVERYWHERE):
            row = self._connection.execute("SELECT settings FROM behaviours WHERE key = ?", (key,)).fetchone()
            if row is not None:
                return key, behaviour_from_json(json.loads(row[0]), key)
        return EVERYWHERE, Behaviour()

    def _check_reachable(self, groups: Sequence[NodeGroup]) -> None:
        asked = {(EVERYWHERE, EVERYWHERE), *((group.id, _type(group)) for group in groups)}
        for group_id, instance_type in sorted(asked):
            if self._behaviour(group_id, instance_type)[1].unreachable:
                raise errors.Unavailable(f"simulated backend: out of reach for {instance_type}")

    def _check_stock(self, groups: Sequence[NodeGroup], now: float) -> None:
        wanted = Counter((group.id, _type(group)) for group in groups)
        by_pool: Counter[tuple[str, str]] = Counter()
        stocks: dict[tuple[str, str], int] = {}
        for (group_id, instance_type), count in wanted.items():
            key, behaviour = self._behaviour(group_id, instance_type)
            if behaviour.stock is not None:
                pool = _pool(key, group_id, instance_type)
                by_pool[pool] += count
                stocks[pool] = behaviour.stock
        short = []
        for pool, count in by_pool.items():
            left = max(0, stocks[pool] - self._count(pool, now))
            if count > left:
                short.append(f"{pool[1]}: {count} wanted, {left} of {stocks[pool]} left")
        if short:
            raise errors.OutOfCapacity("; ".join(short))

    def _knows(self, token: str) -> bool:
        row = self._connection.execute("SELECT 1 FROM instances WHERE token = ?", (token,)).fetchone()
        return row is not None

    def _count(self, pool: tuple[str, str], now: float) -> int:
        column, value = pool
        (count,) = self._connection.execute(_COUNT_SOUND[column], {"value": value, "now": now}).fetchone()
        return int(count)

    def _create(self, token: str, group: NodeGroup, now: float) -> None:
        instance_type = _type(group)
        key, behaviour = self._behaviour(group.id, instance_type)
        cursor = self._connection.execute(
            "INSERT INTO instances (token, node_group, instance_type, ordered_at) VALUES (?, ?, ?, ?)",
            (token, group.id, instance_type, now),
        )
        number = cursor.lastrowid
        # The new row is sound too, so far, and does not compete with itself.
        standing = self._count(_pool(key, group.id, instance_type), now) - 1
        fate = outcome(behaviour, now, standing, random.Random(f"{self._seed} {number}"))  # noqa: S311 - a simulation
        self._connection.execute(
            "UPDATE instances SET name = ?, running_at = ?, fails_at = ?, gone_at = ? WHERE number = ?",
            (
                f"{_label(instance_type)}-{self._batch}-{number:04d}",
                fate.running_at_seconds,
                fate.fails_at_seconds,
                fate.vanishes_at_seconds,
                number,
            ),
        )


def _type(group: NodeGroup) -> str:
    return group.instance_type or group.id


def _pool(key: str, group_id: str, instance_type: str) -> tuple[str, str]:
    """What shares a stock: the node group where the behaviour is the group's own, else the instance type. As a column
    and its value."""
    return ("node_group", group_id) if key == group_id else ("instance_type", instance_type)


def _label(instance_type: str) -> str:
    """The readable part of a name: lower case letters, digits and dashes, as in a DNS label."""
    label = re.sub(r"[^a-z0-9]+", "-", instance_type.lower()).strip("-")[:_LABEL_LENGTH].strip("-")
    return label or "node"


def _instance(row: tuple[str, str, str, float | None, float | None, float | None], now: float) -> BackendInstance:
    name, token, group_id, running_at, fails_at, deleted_at = row
    state, error = InstanceState.CREATING, None
    if deleted_at is not None:
        state = InstanceState.DELETING
    elif fails_at is not None and now >= fails_at:
        error = InstanceError("stockout", "no capacity (simulated)", out_of_resources=True)
    elif running_at is not None and now >= running_at and fails_at is None:
        state = InstanceState.RUNNING
    return BackendInstance(f"{ID_PREFIX}{name}", token, group_id, state, error)
