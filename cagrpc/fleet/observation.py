"""Observed state: the backend's instances and, with a cluster, which of their Nodes are Ready. Decides when an instance
counts as ready, and how long an unreachable cluster pauses deadlines; what follows from it is in `lifecycle`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, ReadyNodes
from cagrpc.fleet.model import InstanceState
from cagrpc.fleet.serial_backend import DebouncedListing
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.log_once import LogOnce
from solver.model import NodeGroup

_log = logging.getLogger(__name__)

UNKNOWN_GRACE_SECONDS = 300.0
"""How long an unreachable cluster pauses deadlines: its nodes are not late, they cannot be observed. With the default
deadline both end with the 15 minutes after which CA gives a node up. A restart begins anew."""
KNOWN_AGAIN_SECONDS = 60.0
"""How long deadlines stay paused once the cluster is reachable again, at most as long as it was not: nodes register
only now."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation. `ready` are ids of instances whose Node is Ready and has all of its labels, None while the
    cluster is unreachable."""

    listing: tuple[BackendInstance, ...] = ()
    ready: AbstractSet[str] | None = None
    asks_cluster: bool = False
    """Whether there is a cluster: instances are ready with their Nodes, and increments wait for `Fleet.release`."""
    listed: bool = True
    """False before the backend was listed once: an instance that is not listed may exist all the same."""
    absent_from_seconds: float = float("-inf")
    """`DebouncedListing.absent_from_seconds`."""
    deadlines_paused: bool = False
    """Whether the cluster has been unreachable for less than the grace period, or is reachable again only just now."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By instance id: of the labels that are looked for those that its Node has, where it is there."""
    machines: Mapping[str, BackendInstance] = field(default_factory=dict, repr=False, compare=False)
    """What the backend lists, by token; by id where somebody else has made it and it has none."""

    def is_running(self, token: str) -> bool:
        """Return whether the backend runs it."""
        machine = self.machines.get(token)
        return machine is not None and machine.state is InstanceState.RUNNING and machine.error is None

    def is_ready(self, token: str) -> bool:
        """Return whether the backend runs it and, with a cluster, its Node is Ready."""
        if not self.asks_cluster:
            return self.is_running(token)
        return self.ready is not None and self.is_running(token) and self.machines[token].id in self.ready

    def labels_of(self, token: str) -> Mapping[str, str]:
        """Return what is known of its Node's labels."""
        machine = self.machines.get(token)
        return {} if machine is None else self.labels.get(machine.id, {})

    def has_labels(self, token: str, keys: Collection[str]) -> bool:
        """Return whether its Node has all of these labels; without a cluster nobody knows, and none are waited for."""
        return not self.asks_cluster or self.labels_of(token).keys() >= set(keys)

    def is_absent(self, token: str, accepted_at_seconds: float | None) -> bool:
        """Return whether the instance is gone, or was never created: not listed, though its order was accepted before
        lists of which none has had it for long enough (None: at an unknown time before this list)."""
        from_seconds = self.absent_from_seconds
        old = from_seconds > float("-inf") if accepted_at_seconds is None else accepted_at_seconds <= from_seconds
        return old and token not in self.machines

    def exists(self, token: str) -> bool:
        """Return whether it exists and is not being deleted."""
        machine = self.machines.get(token)
        return machine is not None and machine.state is not InstanceState.DELETING


class ClusterObserver:
    """Reads from a cluster, where there is one, which Nodes are Ready, and remembers since when it is unreachable."""

    def __init__(
        self,
        nodes: ReadyNodes | None,
        clock: EpochClock,
        groups: Sequence[NodeGroup] = (),
    ) -> None:
        """`groups` say which labels nodes get after they have joined, and which tell their topology domain."""
        self._late_labels = {each.id: each.post_registration_labels for each in groups}
        self._domain_keys = {each.id: each.new_domains.keys for each in groups if each.new_domains is not None}
        self._nodes = nodes
        self._clock = clock
        self._unknown_since: float | None = None
        self._late_from = float("-inf")
        """When deadlines are no longer paused."""
        self._reason: str | None = None
        self._known = False
        """Whether the cluster has been known once: before, it is no news that it is not."""
        self._reported = LogOnce()

    @property
    def problems(self) -> Mapping[str, str | None]:
        """Why the `cluster` is unreachable, None where it is reachable; empty where there is none."""
        return {} if self._nodes is None else {"cluster": self._reason}

    def observe(self, backend: DebouncedListing) -> Observation:
        """Return the backend's list together with the Ready Nodes of now. Raises `Unavailable` for the backend."""
        listing = backend.current()
        observed = Observation(
            listing.instances, absent_from_seconds=backend.absent_from_seconds, machines=backend.machines
        )
        if self._nodes is None:
            return observed
        now = self._clock()
        try:
            ready: AbstractSet[str] = frozenset(self._nodes.ready_instances())  # the same one where it is one
            labels = self._nodes.labels(self._wanted_labels(listing.instances))
            if lacking := self._lacking(listing.instances, labels):
                ready -= lacking
        except errors.Unavailable as error:
            self._tell(f"the cluster is {'unreachable' if self._known else 'not known yet'}: {error}")
            since = self._unknown_since = now if self._unknown_since is None else min(now, self._unknown_since)
            return replace(observed, asks_cluster=True, deadlines_paused=now < since + UNKNOWN_GRACE_SECONDS)
        self._tell(None)
        if self._unknown_since is not None:
            self._late_from = now + min(KNOWN_AGAIN_SECONDS, now - self._unknown_since)
            self._unknown_since = None
        # A clock that was set back must not make it longer.
        waits = self._late_from - KNOWN_AGAIN_SECONDS <= now < self._late_from
        return replace(observed, ready=ready, asks_cluster=True, deadlines_paused=waits, labels=labels)

    def _wanted_labels(self, instances: Iterable[BackendInstance]) -> Mapping[str, AbstractSet[str]]:
        """Return the keys of labels to look for, by instance id."""
        late, domains = self._late_labels, self._domain_keys
        if not domains and not any(late.values()):
            return {}
        wanted = ((each.id, late.get(each.node_group, ()), domains.get(each.node_group, ())) for each in instances)
        return {name: frozenset((*mine, *keys)) for name, mine, keys in wanted if mine or keys}

    def _lacking(
        self, instances: Iterable[BackendInstance], labels: Mapping[str, Mapping[str, str]]
    ) -> AbstractSet[str]:
        """Return the ids of those whose Node is there without a label that it gets after it has joined."""
        late = ((each.id, self._late_labels.get(each.node_group)) for each in instances) if labels else ()
        return {name for name, keys in late if keys and name in labels and not keys <= labels[name].keys()}

    def unobserved(self) -> Observation:
        """Return what is known before the first listing."""
        return Observation(asks_cluster=self._nodes is not None, listed=False)

    def _tell(self, reason: str | None) -> None:
        if reason is None:
            self._known = True
            self._reported.over()
        elif self._reported.is_new(reason):
            _log.log(logging.WARNING if self._known else logging.INFO, "%s", reason)
        self._reason = reason
