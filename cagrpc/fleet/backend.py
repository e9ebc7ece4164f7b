"""The backend protocol: all that a cloud (or a simulation of one) must do for the fleet.

Three calls, all synchronous, one at a time, each safe to repeat. The fleet journals before it calls, so after a crash a
backend is called again with the same content and must not do anything twice. Backends own instances; the fleet owns
increments. `cagrpc.testing` has the tests that every backend passes.

What a backend promises:

- A token names one instance for ever. An instance's id is its token until the cloud has given it one, then the Node's
  spec.providerID, which never changes again. An instance that is RUNNING has its last id.
- Nothing is created that was not ordered, nothing twice, and nothing is deleted that was not asked for.
- New Nodes register with the taint `START_UP_TAINT` where there is a cluster: who sets it (an object's template, user
  data) is the backend's affair.
- Lists may lack an instance for `Pace.absent_after_seconds`, new or old, but the first list of a process has every old
  one.
- A failed creation is listed as CREATING with its error until it is deleted, if the backend still knows of it. What it
  no longer knows of is absent, which the fleet finds after `Pace.absent_after_seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from cagrpc.fleet.model import InstanceError, InstanceState
from solver.model import NodeGroup


@dataclass(frozen=True, slots=True)
class OrderedInstance:
    """One instance to be created. `token` names it for ever, across crashes of either side."""

    token: str
    group: NodeGroup
    ordinal: int
    """Its number among those of its node group in the order, from 0."""


@dataclass(frozen=True, slots=True)
class Order:
    """A whole increment. Repeated, it is the same but for `wanted` (and fields of node groups that were configured
    anew), so that a cloud's call with a client token has the same parameters each time."""

    increment_id: str
    instances: tuple[OrderedInstance, ...]
    wanted: frozenset[str]
    """Tokens of those to be created. The others were accepted before, or are no longer wanted: where the cloud's call
    creates them all the same, the fleet deletes them once they are listed."""


@dataclass(frozen=True, slots=True)
class BackendInstance:
    """An instance as the backend sees it."""

    id: str
    token: str
    node_group: str
    state: InstanceState
    error: InstanceError | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Instances in order of creation, a deleted one DELETING and then absent, as of a time of the fleet's clock: every
    call that was answered before it has its effect in the list, but for what `Pace.absent_after_seconds` allows."""

    instances: tuple[BackendInstance, ...]
    as_of_seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How a backend's lists follow its calls."""

    list_every_seconds: float = 0.0
    """The fleet lists at most so often, and after each order and delete. 0: each step (with a watch, say)."""
    absent_after_seconds: float = 0.0
    """An instance is gone that no list had for so long: from the first list that lacks it (a new one: the first after
    its order was accepted) to the last. 0: with the first list that lacks it."""


class Backend(Protocol):
    """Errors of all calls: `errors.Unavailable` where the cloud cannot be reached or its answer is unknown (the fleet
    retries later, with the same content)."""

    @property
    def pace(self) -> Pace: ...

    @property
    def problem(self) -> str | None:
        """Why nothing can be created though the cloud answers, for people; None where it can."""
        ...

    def list_instances(self) -> Listing:
        """Return every instance of this fleet that exists, and no instance of others."""
        ...

    def order(self, order: Order) -> None:
        """Create the wanted instances of one increment. Those that exist, or have existed, are skipped.

        A subclass of `errors.OrderRefused` says that the cloud refuses: then none of the call's instances is created,
        or those that are will be listed, and deleted by the fleet. Any other `CagrpcError` is a refusal too.
        """
        ...

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        """Delete instances, all of one node group, as they were listed: by token where the id is provisional. Unknown
        ones and those that are being deleted are skipped."""
        ...


class ReadyNodes(Protocol):
    """A cluster's Nodes. With one, an instance is ready when its Node is Ready, and an increment stays `ready`, its
    nodes held, until it is released."""

    def ready_instances(self) -> AbstractSet[str]:
        """Return ids of instances whose Node is registered and Ready, with or without our start-up taint. Raises
        `errors.Unavailable` while the cluster is unreachable."""
        ...

    def labels(self, wanted: Mapping[str, AbstractSet[str]], /) -> Mapping[str, Mapping[str, str]]:
        """Return those of the wanted labels that Nodes have, by instance id; `wanted` are keys by id. Instances whose
        Node is not registered are left out."""
        ...

    def node_names(self) -> Mapping[str, str]:
        """Return the names of all registered Nodes by the ids of their instances."""
        ...
