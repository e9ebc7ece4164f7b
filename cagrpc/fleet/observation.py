"""What one look at the world finds: the backend's instances and, with a cluster, whose Nodes are Ready. Here is what an
instance needs to count as come, and how long an unknown cluster is waited for; what follows from it is `increments`'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, ReadyNodes
from cagrpc.fleet.model import InstanceState

_log = logging.getLogger(__name__)

UNKNOWN_GRACE_SECONDS = 300.0
"""So long a cluster that is not known keeps deadlines from passing: its nodes are not late, they cannot be seen. With
the default deadline both end with the 15 minutes after which CA gives a node up. A start begins anew."""
KNOWN_AGAIN_SECONDS = 60.0
"""So long, and no longer than it was unknown, deadlines wait once it is known again: nodes register only now."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look. `ready` are ids of instances whose Node is Ready, None where the cluster is not known."""

    listing: tuple[BackendInstance, ...] = ()
    ready: AbstractSet[str] | None = None
    asks_cluster: bool = False
    """Whether there is a cluster to ask: instances come with their Nodes, and increments wait to be let go."""
    looked: bool = True
    """False before the first look at the backend: what is not listed may be there all the same."""
    deadlines_wait: bool = False
    """Whether the cluster has been unknown for less than its grace, or is known again only just now."""
    machines: Mapping[str, BackendInstance] = field(init=False, repr=False, compare=False)
    """What the backend lists, by token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", {machine.token: machine for machine in self.listing})

    def runs(self, token: str) -> bool:
        """Whether the backend runs it."""
        machine = self.machines.get(token)
        return machine is not None and machine.state is InstanceState.RUNNING and machine.error is None

    def has_come(self, token: str) -> bool:
        """Whether it counts for its increment: the backend runs it and, with a cluster, its Node is Ready."""
        if not self.asks_cluster:
            return self.runs(token)
        return self.ready is not None and self.runs(token) and self.machines[token].id in self.ready

    def is_there(self, token: str) -> bool:
        """Whether it exists and nobody is deleting it."""
        machine = self.machines.get(token)
        return machine is not None and machine.state is not InstanceState.DELETING


class ClusterObserver:
    """Asks a cluster which Nodes are Ready, where there is one, and remembers since when it is not known."""

    def __init__(self, nodes: ReadyNodes | None, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._clock = clock
        self._unknown_since: float | None = None
        self._late_from = float("-inf")
        """When deadlines count again."""
        self._reason: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the cluster is not known; None where it is, and where there is none to ask."""
        return self._reason

    def look(self, listing: Sequence[BackendInstance]) -> Observation:
        """The backend's list beside what the cluster says now."""
        if self._nodes is None:
            return Observation(tuple(listing))
        now = self._clock()
        try:
            ready = self._nodes.ready_instances()
        except errors.Unavailable as error:
            self._tell(f"the cluster is not known: {error}")
            since = self._unknown_since = now if self._unknown_since is None else min(now, self._unknown_since)
            return Observation(tuple(listing), asks_cluster=True, deadlines_wait=now < since + UNKNOWN_GRACE_SECONDS)
        self._tell(None)
        if self._unknown_since is not None:
            self._late_from = now + min(KNOWN_AGAIN_SECONDS, now - self._unknown_since)
            self._unknown_since = None
        # A clock that was put back must not make it longer.
        waits = self._late_from - KNOWN_AGAIN_SECONDS <= now < self._late_from
        return Observation(tuple(listing), ready, asks_cluster=True, deadlines_wait=waits)

    def nothing_seen(self) -> Observation:
        """What is known before the first look."""
        return Observation(asks_cluster=self._nodes is not None, looked=False)

    def _tell(self, reason: str | None) -> None:
        if reason is not None and reason != self._reason:  # once, not every second
            _log.warning("%s", reason)
        self._reason = reason
