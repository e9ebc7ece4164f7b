"""The emulated EC2 as the conformance suite takes a cloud."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from cagrpc.backends.plugin import OpenBackend
from cagrpc.testing import Ability
from cagrpc.testing import Cloud as TestedCloud
from solver.model import NodeGroup
from tests.support.clocks import any_clock
from tests.support.ec2.emulator import ZONES, Emulator
from tests.support.ec2.proxy import Cloud
from tests.support.ec2.world import CLUSTER, Ec2World, group, order


class Ec2Cloud(TestedCloud):
    lacks: ClassVar = {Ability.DELAY_IDS: "an instance has its id before any list has it"}
    tick_seconds = 5.0
    node_groups = (group("on-demand"), group("spot", ZONES[1], "spot", instance_type="c7i.large"))

    def __init__(self, emulator: Emulator, directory: Path) -> None:
        self._world = Ec2World(emulator, directory)
        self._open = ExitStack()
        self._open.enter_context(self._world.running())
        self.clock = any_clock(self._world.clock)

    def open(self) -> OpenBackend:
        return self._world.open_whole(groups=self.node_groups)

    def close(self) -> None:
        self._open.close()

    def advance(self, seconds: float) -> None:
        self._world.now += seconds

    def machines(self) -> AbstractSet[str]:
        return self._world.emulator.alive()

    def recover(self) -> None:
        self._world.proxy.answers_left, self._world.proxy.away = None, False
        self._world.proxy.cloud = Cloud()

    def cut_off(self) -> None:
        self._world.proxy.away = True

    def lose_answers(self, after: int) -> None:
        self._world.proxy.answers_left = after

    def delay_lists(self) -> None:
        self._world.proxy.cloud.visible_after_seconds = 115

    def run_out(self, group: NodeGroup) -> None:
        self._world.proxy.cloud.stock[group.instance_type, group.zone] = 1

    def exceed_quota(self, group: NodeGroup) -> None:
        self._world.proxy.cloud.refused[group.instance_type, group.zone] = "VcpuLimitExceeded"

    def misconfigure(self, group: NodeGroup) -> None:
        self._world.proxy.cloud.refused[group.instance_type, group.zone] = "InvalidAMIID.NotFound"

    def vanish(self, instance_id: str) -> None:
        self._world.proxy.end(instance_id.rpartition("/")[2], "Server.SpotInstanceTermination")

    def add_stranger(self, group: NodeGroup) -> None:
        opened = self._world.open_whole("another")
        opened.backend.order(order("conformance1", (group, 1)))
        opened.close()
        tags = {"cagrpc.io/cluster": CLUSTER, "cagrpc.io/node-group": group.id}
        self._world.emulator.launch(tags)
        self._world.emulator.launch({**tags, "cagrpc.io/token": f"conformance1-{group.id}-0"})
