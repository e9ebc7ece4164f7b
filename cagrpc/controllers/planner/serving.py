"""Which pods are served already, and where: those of increments in flight, and for a while those of increments that
were let go, until the scheduler has bound them. So nothing is opened twice for them. Pure; what is planned beside them
is `problem`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.controllers.settling import SETTLE_SECONDS, let_go_within
from cagrpc.fleet.model import FleetSnapshot, HeldNode, IncrementStatus, Phase, Placement

_ON_ITS_WAY = (Phase.PLANNED, Phase.CREATING)
_TRIED_AGAIN_SECONDS = 10.0
"""So long after the last nodes of a plan were let go none of its pods has lost its room: the scheduler has places of
its own for them, and tries each again at most so much later."""


@dataclass(frozen=True, slots=True)
class ComingNode:
    """A node of an increment in flight that is not known by an instance yet."""

    name: str
    node_group: str
    pods: tuple[str, ...]
    """UIDs of the pods it is planned for."""
    for_requests: bool = False
    """It is for ProvisioningRequests, and has no room for others."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What the fleet's increments are for, at one time."""

    increments: frozenset[str]
    """Those that serve pods."""
    pods: frozenset[str]
    """UIDs of pods that are planned for a node of an increment in flight, or of a plan whose nodes are still let go."""
    coming: tuple[ComingNode, ...]
    held: Mapping[str, HeldNode]
    """By instance: nodes of increments that are ready and not let go yet, and the pods planned for them."""
    settling: tuple[Placement, ...]
    """Of increments that were let go a moment ago: the scheduler may still be at it. Which node it takes is its own
    business."""


def serving(snapshot: FleetSnapshot, now: float) -> Serving:
    """`now` in seconds since the epoch."""
    increments: set[str] = set()
    pods: set[str] = set()
    coming: list[ComingNode] = []
    held: dict[str, HeldNode] = {}
    settling: list[Placement] = []
    under_way = {
        status.increment.plan
        for status in snapshot.increments
        if status.phase is Phase.READY
        or (status.increment.reserve and status.phase in _ON_ITS_WAY)
        or let_go_within(_TRIED_AGAIN_SECONDS, status, now)
    } - {""}
    for status in snapshot.increments:
        placements = status.increment.placements
        if status.increment.reserve and status.phase in (*_ON_ITS_WAY, Phase.READY):
            pass  # nobody else's room: it may be given back
        elif status.phase in _ON_ITS_WAY:
            coming.extend(_coming(status, snapshot.in_flight_pods))
        elif status.phase is Phase.READY:
            held.update((each.instance_id, each) for each in status.held)
        elif status.phase is Phase.DONE and status.increment.plan in under_way:
            # Others may have taken its nodes, and these pods are for the plan's later waves.
            pods.update(status.increment.pods)
            settling.extend(placements)
        elif let_go_within(SETTLE_SECONDS, status, now):
            settling.extend(placements)
        else:
            continue
        increments.add(status.id)
        if status.phase.in_flight:
            pods.update(pod for each in placements for pod in each.pods if pod in snapshot.in_flight_pods)
    return Serving(frozenset(increments), frozenset(pods), tuple(coming), held, tuple(settling))


def _coming(status: IncrementStatus, in_flight: AbstractSet[str]) -> Iterator[ComingNode]:
    """A group's k-th placement is its k-th node's; a node that was deleted serves nobody any more."""
    for_requests = bool(status.increment.requests)
    for group_id, delta in status.increment.deltas.items():
        placed = [each.pods for each in status.increment.placements if each.node_group == group_id]
        for number in range(delta):
            pods = placed[number] if number < len(placed) else ()
            if not pods or for_requests or not in_flight.isdisjoint(pods):
                yield ComingNode(f"{status.id}/{group_id}/{number}", group_id, pods, for_requests)
