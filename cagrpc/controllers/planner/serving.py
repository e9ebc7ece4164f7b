"""Which pods are served already, and on which nodes: those of increments in flight, and for a while those of
increments that were let go, until the scheduler has bound them. So nothing is opened twice for them. What is planned
beside them is `problem`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.fleet.model import FleetSnapshot, HeldNode, IncrementStatus, Phase

SETTLE_SECONDS = 30.0
"""So long after its increment was let go a pod that still waits is left to the scheduler, which tries it again at most
10 s after a node has changed. Then it is planned again, first of all onto the nodes that there are."""

_ON_ITS_WAY = (Phase.PLANNED, Phase.CREATING)


@dataclass(frozen=True, slots=True)
class ComingNode:
    """A node of an increment in flight that is not known by an instance yet."""

    name: str
    node_group: str
    pods: tuple[str, ...]
    """UIDs of the pods it is planned for."""


@dataclass(frozen=True, slots=True)
class Serving:
    """One look."""

    coming: tuple[ComingNode, ...]
    held: Mapping[str, HeldNode]
    """By instance: nodes of increments that are ready, or were just let go, and the pods planned for them."""
    unfinished: frozenset[str]
    """Instances of those that are not let go yet."""
    increments: frozenset[str]
    """Those that serve pods."""
    pods: frozenset[str]
    """All pods that are planned for a node of these."""


class Settling:
    """Remembers increments from when they are let go. Not for several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch, as the fleet's does."""
        self._clock = clock
        self._held: dict[str, tuple[HeldNode, ...]] = {}
        self._done_at: dict[str, float] = {}

    def look(self, snapshot: FleetSnapshot) -> Serving:
        now = self._clock()
        coming: list[ComingNode] = []
        held: list[HeldNode] = []
        unfinished: set[str] = set()
        serving: set[str] = set()
        pods: set[str] = set()
        for status in snapshot.increments:
            if status.phase in _ON_ITS_WAY:
                coming.extend(_coming(status, snapshot.in_flight_pods))
            elif status.phase is Phase.READY:
                self._held[status.id] = status.held
                held.extend(status.held)
                unfinished.update(each.instance_id for each in status.held)
            elif status.phase is Phase.DONE and now < self._let_go(status) + SETTLE_SECONDS:
                # Not known after a restart: then the room of its pods is not kept for them.
                held.extend(self._held.get(status.id, ()))
            else:
                continue
            serving.add(status.id)
            planned = {pod for placement in status.increment.placements for pod in placement.pods}
            pods |= planned if status.phase is Phase.DONE else planned & snapshot.in_flight_pods
        self._held = {key: nodes for key, nodes in self._held.items() if key in serving}
        known = {status.id for status in snapshot.increments}
        self._done_at = {key: at for key, at in self._done_at.items() if key in known}
        return Serving(
            coming=tuple(coming),
            held={each.instance_id: each for each in held},
            unfinished=frozenset(unfinished),
            increments=frozenset(serving),
            pods=frozenset(pods),
        )

    def _let_go(self, status: IncrementStatus) -> float:
        return self._done_at.setdefault(status.id, self._clock())


def _coming(status: IncrementStatus, in_flight: AbstractSet[str]) -> Iterator[ComingNode]:
    """A group's k-th placement is its k-th node's; a node that was deleted serves nobody any more."""
    for group_id, delta in status.increment.deltas.items():
        placed = [each.pods for each in status.increment.placements if each.node_group == group_id]
        for number in range(delta):
            pods = placed[number] if number < len(placed) else ()
            if not pods or not in_flight.isdisjoint(pods):
                yield ComingNode(f"{status.id}/{group_id}/{number}", group_id, pods)
