import json
from pathlib import Path

import pytest
from cagrpc_rack.backend import RackBackend
from cagrpc_rack.plugin import Rack

from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.runtime.clock import EpochSeconds
from cagrpc.testing import Ability, BackendConformance, Cloud
from solver import NodeGroup

SHELVES = ("shelf-1", "shelf-2")


class RackCloud(Cloud):
    """A controller that boots a machine in two seconds and takes it away in one."""

    lacks = {
        Ability.CUT_OFF: "the directory is local",
        Ability.LOSE_ANSWERS: "a file is written or not; there is no answer to lose",
        Ability.DELAY_LISTS: "a directory shows every file at once",
        Ability.EXCEED_QUOTA: "the rack has no quotas",
    }

    def __init__(self, spool: Path) -> None:
        self.node_groups = [NodeGroup(name, {"cpu": 4000, "pods": 110}, 0.1) for name in SHELVES]
        self.spool, self.now, self.slow, self.empty = spool, 0.0, False, set[str]()
        self.clock = lambda: EpochSeconds(self.now)
        (spool / "controller").touch()

    def open(self) -> OpenBackend:
        return Rack(self.spool, "ours").open(BackendContext(self.spool, self.clock))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for request in self.spool.glob("*.request"):
            self._work(request)

    def machines(self) -> set[str]:
        there = (path for path in self.spool.glob("*.request") if not path.with_suffix(".delete").exists())
        return {path.stem for path in there if not self._state(path).get("gone")}

    def recover(self) -> None:
        self.slow, self.empty = False, set()
        for closed in self.spool.glob("*.closed"):
            closed.unlink()

    def delay_ids(self) -> None:
        self.slow = True

    def run_out(self, group: NodeGroup) -> None:
        self.empty.add(group.id)

    def misconfigure(self, group: NodeGroup) -> None:
        (self.spool / f"{group.id}.closed").touch()

    def vanish(self, instance_id: str) -> None:
        (self.spool / instance_id.removeprefix("rack://")).with_suffix(".state").write_text('{"gone": true}')

    def add_stranger(self, group: NodeGroup) -> None:
        RackBackend(self.spool, "others", self.clock).order(_order_of_one(group))

    def _work(self, request: Path) -> None:
        asked, state = json.loads(request.read_text()), self._state(request)
        if request.with_suffix(".delete").exists():
            state["gone"] = True
        elif asked["node_group"] in self.empty:
            state.setdefault("error", "every machine of the shelf is in use")
        elif self.now >= asked["asked_at"] + 2 and not self.slow and "error" not in state:
            state.update(id=f"rack://{request.stem}", running=True)
        request.with_suffix(".state").write_text(json.dumps(state))

    def _state(self, request: Path) -> dict:
        path = request.with_suffix(".state")
        return json.loads(path.read_text()) if path.exists() else {}


def _order_of_one(group: NodeGroup) -> Order:
    return Order("theirs", (OrderedInstance("theirs", group, 0),), frozenset(["theirs"]))


class TestConformance(BackendConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Cloud:
        (tmp_path / "spool").mkdir()
        return RackCloud(tmp_path / "spool")
