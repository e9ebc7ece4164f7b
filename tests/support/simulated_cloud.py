"""The simulated backend as the conformance suite takes a cloud."""

from __future__ import annotations

import sqlite3
from collections.abc import Set as AbstractSet
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from cagrpc.backends.plugin import OpenBackend
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.testing import Ability, Cloud
from solver.model import NodeGroup
from tests.support.fleet import FakeClock, group


class SimulatedCloud(Cloud):
    lacks: ClassVar = {Ability.ADD_STRANGER: "a file has the instances of one fleet alone"}
    node_groups = (group("pool-a", max_size=50), group("pool-b", max_size=50))

    def __init__(self, directory: Path) -> None:
        self.file = directory / "cloud.sqlite"
        self.clock = self.time = FakeClock()
        self.faults = SimulatedBackend(self.file, clock=self.clock)

    def open(self) -> OpenBackend:
        backend = SimulatedBackend(self.file, clock=self.clock)
        return OpenBackend(backend, backend.close)

    def close(self) -> None:
        self.faults.close()

    def advance(self, seconds: float) -> None:
        self.time.advance(seconds)

    def machines(self) -> AbstractSet[str]:
        with closing(sqlite3.connect(self.file)) as connection:
            rows = connection.execute(
                "SELECT name FROM instances WHERE (gone_at IS NULL OR gone_at > ?) AND deleted_at IS NULL",
                (self.clock(),),
            ).fetchall()
        return {name for (name,) in rows}

    def recover(self) -> None:
        self.faults.set_behaviours(dict.fromkeys(self.faults.behaviours()))

    def cut_off(self) -> None:
        self.faults.set_behaviours({"*": Behaviour(unreachable=True)})

    def lose_answers(self, after: int) -> None:
        if after == 0:  # a call is one request
            self.faults.set_behaviours({"*": Behaviour(lost_answer_probability=1)})

    def delay_lists(self) -> None:
        self.faults.set_behaviours({"*": Behaviour(list_delay_seconds=45)})

    def delay_ids(self) -> None:
        self.faults.set_behaviours({"*": Behaviour(id_after_seconds=20)})

    def run_out(self, group: NodeGroup) -> None:
        self.faults.set_behaviours({group.id: Behaviour(stock=1)})

    def exceed_quota(self, group: NodeGroup) -> None:
        self.faults.set_behaviours({group.id: Behaviour(refusal="quota")})

    def misconfigure(self, group: NodeGroup) -> None:
        self.faults.set_behaviours({group.id: Behaviour(refusal="configuration")})

    def vanish(self, instance_id: str) -> None:
        self.faults.vanish([instance_id])


class LateSimulatedCloud(SimulatedCloud):
    """Its shortages show only while instances are created."""

    def run_out(self, group: NodeGroup) -> None:
        self.faults.set_behaviours({group.id: Behaviour(late_shortage=1)})
