"""A backend before the emulated EC2, with a clock of its own: opened, killed and opened again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from cagrpc import errors
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.fleet.backend import Backend, BackendInstance, Order, OrderedInstance
from cagrpc.kube.client.client import Client
from cagrpc_ec2.opening import open_backend
from cagrpc_ec2.parameters import AllParameters, CapacityReservation, LaunchParameters, LaunchTemplate
from cagrpc_ec2.plugin import Ec2Settings
from cagrpc_ec2.rates import LAUNCHED_INSTANCES, TokenRate
from solver.model import NodeGroup
from tests.support.clocks import any_clock
from tests.support.ec2.emulator import REGION, ZONES, Emulator
from tests.support.ec2.proxy import FaultProxy, proxied
from tests.support.waiting import AMPLE_SECONDS

TEMPLATE = "workers"
CLUSTER = "prod"
RESERVATION = "cr-0123456789abcdef0"


def group(group_id: str = "small", zone: str = ZONES[0], capacity_type: str = "on-demand", **fields: Any) -> NodeGroup:
    """Return a node group that can be launched."""
    own = {"instance_type": "m7i.large", **fields}
    return NodeGroup(group_id, {"cpu": 2000, "pods": 29}, 0.1, zone=zone, capacity_type=capacity_type, **own)


def order(increment_id: str, *counts: tuple[NodeGroup, int], wanted: set[str] | None = None) -> Order:
    """Return an order as the fleet makes it."""
    instances = [
        OrderedInstance(f"{increment_id}-{of.id}-{number}", of, number)
        for of, count in counts
        for number in range(count)
    ]
    tokens = {each.token for each in instances}
    return Order(increment_id, tuple(instances), frozenset(tokens if wanted is None else wanted))


class Ec2World:
    """EC2, a clock, and the backends that are opened before it."""

    def __init__(self, emulator: Emulator, directory: Path) -> None:
        self.emulator = emulator
        self.now = 1_000_000.0
        self.slept: list[float] = []
        self.proxy: FaultProxy
        self.subnets = emulator.subnets()
        self.template_id = emulator.make_template(TEMPLATE)
        self.parameters = AllParameters(
            LaunchParameters(
                LaunchTemplate(None, TEMPLATE, "$Default"),
                self.subnets,
                CapacityReservation(RESERVATION, None, capacity_block=False),
                {"team": "ml"},
            )
        )
        self._directory = directory
        self.url = ""
        self._opened: list[OpenBackend] = []

    @contextmanager
    def running(self) -> Iterator[Ec2World]:
        """Run the proxy; whatever is open is closed at the end."""
        with proxied(self.emulator, self.clock) as (self.proxy, self.url):
            try:
                yield self
            finally:
                for each in self._opened:
                    each.close()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def open(
        self,
        cluster_name: str = CLUSTER,
        *,
        groups: Sequence[NodeGroup] = (),
        launched_instances: TokenRate = LAUNCHED_INSTANCES,
        read_seconds: float = AMPLE_SECONDS,
        has_cluster: bool = False,
    ) -> Backend:
        """Open a backend, as a process does that starts. Those opened before are as good as killed."""
        opened = self.open_whole(
            cluster_name,
            groups=groups,
            launched_instances=launched_instances,
            read_seconds=read_seconds,
            has_cluster=has_cluster,
        )
        self._opened.append(opened)
        return opened.backend

    def open_whole(
        self,
        cluster_name: str = CLUSTER,
        *,
        groups: Sequence[NodeGroup] = (),
        launched_instances: TokenRate = LAUNCHED_INSTANCES,
        read_seconds: float = AMPLE_SECONDS,
        has_cluster: bool = False,
    ) -> OpenBackend:
        """Open a backend that the caller closes."""
        return open_backend(
            Ec2Settings(cluster_name, REGION, self.url, launched_instances, self.parameters, tuple(groups)),
            BackendContext(self._directory, any_clock(self.clock), Mock(spec=Client) if has_cluster else None),
            sleep=self.sleep,
            read_seconds=read_seconds,
        )

    def listed(self, backend: Backend) -> dict[str, BackendInstance]:
        """Return what a backend lists, by token."""
        instances = backend.list_instances().instances
        found = {each.token: each for each in instances}
        assert len(found) == len(instances), "a token names one instance"
        return found

    def order_until_accepted(self, backend: Backend, asked: Order, most_steps: int = 1000) -> int:
        """Order as the fleet does, each second until EC2 has accepted; return the number of steps."""
        for step in range(1, most_steps + 1):
            with suppress(errors.Unavailable):
                backend.order(asked)
                return step
            self.now += 1.0
        raise AssertionError(f"not accepted within {most_steps} steps")
