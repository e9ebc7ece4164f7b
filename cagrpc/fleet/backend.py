"""The backend protocol: all that a cloud (or a simulation of one) must do for the fleet.

Three calls, all synchronous, each safe to repeat. The fleet journals before it calls, so a backend may be called again
with the same tokens and ids after a crash and must not do anything twice: `order` is idempotent by token (EC2's
ClientToken, Azure's and GCP's request ids), `delete` by instance id. Backends own instances; the fleet owns increments.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from cagrpc.fleet.model import InstanceError, InstanceState
from solver.model import NodeGroup


@dataclass(frozen=True, slots=True)
class Order:
    """One instance to be created. `token` names it for ever, across crashes of either side."""

    token: str
    group: NodeGroup


@dataclass(frozen=True, slots=True)
class BackendInstance:
    """An instance as the backend sees it. A failed creation is CREATING with an `error`, and stays listed until
    deleted."""

    id: str
    token: str
    node_group: str
    state: InstanceState
    error: InstanceError | None = None


class Backend(Protocol):
    """Errors: `errors.OutOfCapacity` from `order` when the cloud refuses at once (nothing of the call is then created);
    `errors.Unavailable` from any call when the cloud cannot be reached or its answer is unknown (the fleet retries
    later, with the same tokens). Any other `CagrpcError` from `order` is a refusal like `OutOfCapacity`."""

    def list_instances(self) -> Sequence[BackendInstance]:
        """Return every instance that exists, in order of creation; a deleted one is DELETING, then gone."""
        ...

    def order(self, orders: Sequence[Order]) -> None:
        """Create instances, all of one increment. Orders whose token is known are skipped."""
        ...

    def delete(self, instance_ids: Sequence[str]) -> None:
        """Delete instances, all of one node group. Unknown and already deleted ids are skipped."""
        ...


class ReadyNodes(Protocol):
    """A cluster's Nodes. With one, an instance is ready when its Node is Ready, and an increment stays `ready`, its
    nodes held, until it is released."""

    def ready_instances(self) -> AbstractSet[str]:
        """Return ids of instances whose Node is registered and Ready, with or without our start-up taint. Raises
        `errors.Unavailable` while the cluster is unreachable."""
        ...
