"""Disruptions in the journal: one at a time, begun with its increment of new nodes in one commit, and ended with the
deletion of nodes in another, so that no crash comes between. Which phase is next is decided by who carries them out;
pods and cordons are nothing that the fleet knows.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cagrpc import errors
from cagrpc.fleet import admission
from cagrpc.fleet.admission import FleetState
from cagrpc.fleet.ledger import Ledger
from cagrpc.fleet.lifecycle import Times
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    IncrementSpec,
    InstanceState,
    PodMove,
)
from cagrpc.fleet.records import Changes, IncrementRecord
from cagrpc.runtime.clock import EpochClock
from solver.model.quantities import pluralize

KEPT = 20
"""How many of the disruptions that ended last are remembered."""
_LOCK_SECONDS = 2.0
"""How long a request waits for the lock while others write to a slow journal."""


@dataclass(frozen=True, slots=True)
class DisruptionSpec:
    """What is to be disrupted: `Disruption` before it has begun."""

    reason: str
    nodes: tuple[DisruptedNode, ...]
    moves: tuple[PodMove, ...]
    """The target of a pod that goes to a new node is `node group/number`, numbers from 0 by group."""
    new_nodes: IncrementSpec | None = None
    saving_usd_per_hour: float = 0.0
    deadline_seconds: float = 900.0


class Disruptions:
    """The part of the fleet that keeps disruptions. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        state: Callable[[], FleetState],
        publish: Callable[[], None],
        wake: Callable[[], None],
        clock: EpochClock,
        times: Times,
    ) -> None:
        self._ledger = ledger
        self._state = state
        self._publish = publish
        self._wake = wake
        self._clock = clock
        self._times = times

    def now(self) -> float:
        """Return the time by which deadlines count."""
        return self._clock()

    def check(self) -> None:
        """Raise `Unavailable` where another process may carry it out by now. Call it before each write to the
        cluster."""
        self._ledger.check()

    def begin(self, spec: DisruptionSpec) -> Disruption:
        """Journal a disruption together with the increment of its new nodes, which the next step of the fleet orders.

        Raises `FailedPrecondition` (another is under way, a node is not there any more, or fewer than a group's minimum
        would remain), what `Fleet.apply` raises for an increment, or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            state, now = self._state(), self._clock()
            _check(state, spec)
            increments: tuple[IncrementRecord, ...] = ()
            disruption_id, increment_id = secrets.token_hex(6), ""
            if spec.new_nodes is not None:
                increment_id = secrets.token_hex(6)
                record = admission.admit_increment(
                    state, spec.new_nodes, increment_id=increment_id, now=now, deadline_seconds=self._times.deadline
                )
                increments = (record,)
            new = {
                f"{group}/{number}": f"{increment_id}/{group}/{number}"
                for group, delta in (spec.new_nodes.deltas if spec.new_nodes else {}).items()
                for number in range(delta)
            }
            found = Disruption(
                id=disruption_id,
                reason=spec.reason,
                phase=DisruptionPhase.CREATING,
                nodes=spec.nodes,
                created_at_seconds=now,
                deadline_at_seconds=now + spec.deadline_seconds,
                increment_id=increment_id,
                moves=tuple(replace(each, target=new.get(each.target, each.target)) for each in spec.moves),
                pods=len(spec.moves),
                saving_usd_per_hour=spec.saving_usd_per_hour,
            )
            forgotten = tuple(state.contents.disruptions)[: -KEPT + 1]
            self._ledger.commit(Changes(increments=increments, disruptions=(found,), forgotten_disruptions=forgotten))
            self._publish()
        self._wake()
        return found

    def change(self, disruption: Disruption, *, delete: Sequence[str] = ()) -> None:
        """Journal what has become of the disruption under way, in one commit with the deletion of these instances; of
        those that are gone already there is nothing to delete. One that ends loses its moves. One that is not under way
        stays as it is.

        Raises `FailedPrecondition` (below a group's minimum) or `Unavailable`, with nothing changed.
        """
        with self._ledger.changing(wait_seconds=_LOCK_SECONDS):
            known = self._ledger.contents.disruptions.get(disruption.id)
            if known is None or not known.phase.under_way or known == disruption:
                return
            if not disruption.phase.under_way:
                disruption = replace(disruption, moves=(), finished_at_seconds=self._clock())
            doomed = _deletions(self._state(), delete, self._clock()) if delete else Changes()
            self._ledger.commit(replace(doomed, disruptions=(disruption,)))
            self._publish()
        self._wake()


def _check(state: FleetState, spec: DisruptionSpec) -> None:
    """Raise `FailedPrecondition` with everything that is against it."""
    problems = [
        f"disruption {each.id} is under way; there is one at a time"
        for each in state.contents.disruptions.values()
        if each.phase.under_way
    ]
    listed = {each.id: each for found in state.view.instances.values() for each in found}
    for node in spec.nodes:
        instance = listed.get(node.instance_id)
        if instance is None or instance.node_group != node.node_group or instance.state is not InstanceState.RUNNING:
            problems.append(f"node {node.name}: {node.instance_id} is not a running instance of {node.node_group}")
    going = Counter(each.node_group for each in spec.nodes)
    coming = spec.new_nodes.deltas if spec.new_nodes is not None else {}
    for group_id, count in going.items():
        group = state.groups.get(group_id)
        left = state.view.targets.get(group_id, 0) + coming.get(group_id, 0) - count
        if group is not None and left < group.min_size:
            problems.append(
                f"node group {group_id}: {pluralize(left, 'node')} would be left, fewer than its minimum of"
                f" {group.min_size}"
            )
    if problems:
        raise errors.FailedPrecondition("; ".join(problems))


def _deletions(state: FleetState, instance_ids: Sequence[str], now: float) -> Changes:
    """Return the changes of deleting these instances, of whatever groups."""
    by_group: defaultdict[str, list[str]] = defaultdict(list)
    for each in instance_ids:
        if (group := state.view.group_of_instance.get(each)) is not None:
            by_group[group].append(each)
    found = [_of_group(state, group, ids, now) for group, ids in by_group.items()]
    return Changes(
        increments=tuple(record for each in found for record in each.increments),
        deletions=tuple(record for each in found for record in each.deletions),
    )


def _of_group(state: FleetState, group: str, instance_ids: Sequence[str], now: float) -> Changes:
    changes = admission.admit_deletion(state, group, instance_ids, now)
    if changes.increments:
        in_flight = ", ".join(record.id for record in changes.increments)
        raise errors.FailedPrecondition(f"node group {group}: nodes of increments in flight ({in_flight}) stay")
    return changes
