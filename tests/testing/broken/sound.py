"""The simulated backend in a cloud that others use, too: what the broken backends are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from cagrpc.backends.plugin import OpenBackend
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.fleet.backend import BackendInstance, Listing, Order, OrderedInstance, Pace
from solver.model import NodeGroup
from tests.support.simulated_cloud import SimulatedCloud

HIDDEN = "hidden-"
STRANGER = "stranger-"


@dataclass
class Memory:
    """What a broken backend knows across its processes."""

    processes: int = 0
    calls: int = 0
    tokens: set[str] = field(default_factory=set)
    instances: dict[str, BackendInstance] = field(default_factory=dict)


class Sound:
    """The simulated backend in a cloud that others use, too. It breaks nothing."""

    def __init__(self, cloud: SimulatedCloud, memory: Memory) -> None:
        self.inner = SimulatedBackend(cloud.file, clock=cloud.clock)
        self.cloud = cloud
        self.memory = memory
        memory.processes += 1

    @property
    def pace(self) -> Pace:
        return self.inner.pace

    @property
    def problem(self) -> str | None:
        return self.inner.problem

    def list_instances(self) -> Listing:
        listing = self.inner.list_instances()
        self.memory.calls += 1
        ours = (each for each in listing.instances if not each.token.startswith((HIDDEN, STRANGER)))
        return replace(listing, instances=tuple(ours))

    def order(self, order: Order) -> None:
        self.inner.order(order)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.inner.delete(instances)

    def hide(self, instances: Sequence[OrderedInstance]) -> None:
        """Create instances that no list will have."""
        mark = f"{HIDDEN}{self.memory.processes}-"
        hidden = tuple(replace(each, token=f"{mark}{each.token}") for each in instances)
        self.inner.order(Order(hidden[0].token, hidden, frozenset(each.token for each in hidden)))


def wanted(order: Order) -> list[OrderedInstance]:
    return [each for each in order.instances if each.token in order.wanted]


class SharedCloud(SimulatedCloud):
    """A cloud with strangers, and with a broken backend in it."""

    lacks: ClassVar = {}

    def __init__(self, directory: Path, backend: Callable[[SimulatedCloud, Memory], Sound] = Sound) -> None:
        super().__init__(directory)
        self.patience_seconds = 120.0
        self.backend = backend
        self.memory = Memory()

    def open(self) -> OpenBackend:
        backend = self.backend(self, self.memory)
        return OpenBackend(backend, backend.inner.close)

    def add_stranger(self, group: NodeGroup) -> None:
        token = f"{STRANGER}{group.id}"
        self.faults.order(Order(token, (OrderedInstance(token, group, 0),), frozenset([token])))
