"""Whose turn it is: new nodes take pods one after the other, held by their start-up taint until then, and only so many
pods go at a time.

The scheduler binds a successor to the open node that it likes best, by default the emptiest. Were all new nodes open at
once, pods would spread over them, the last ones would find no room, old nodes would have to stay for these, and the
next plan would do all of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from cagrpc.api.core.movability import Kept
from cagrpc.cluster.state import ReschedulablePod
from cagrpc.fleet.model import Disruption, PodMove
from solver.consolidation.model import FORCEFUL


def opened_next(
    new: AbstractSet[str],
    known: frozenset[str],
    left: Sequence[PodMove],
    *,
    is_open: Callable[[PodMove], bool],
    is_refused: Callable[[PodMove], bool],
    needed: AbstractSet[str],
    open_now: int,
) -> frozenset[str]:
    """Return which of the `new` nodes may take pods: the `known` ones, and the next once those before have theirs.
    `left` are the pods that are not evicted yet, in their order; `is_open` tells whether the target of one takes it,
    `is_refused` whether a PodDisruptionBudget does not let it go, which holds up nobody else. `needed` are nodes to
    which pods of others are to come, which are not kept waiting; `open_now` is how many evicted pods have no successor
    that runs."""
    found = (needed & new) | known
    closed = [each.target for each in left if each.target in new and each.target not in found]
    busy = open_now or any((is_open(each) or each.target in found) and not is_refused(each) for each in left)
    return frozenset(found | _with_gangs(closed[0], left) & new if closed and not busy else found)


def _with_gangs(node: str, moves: Iterable[PodMove]) -> set[str]:
    """Return the node with all others to which its pods' gangs go, which move whole."""
    all_moves, found = list(moves), {node}
    while True:
        gangs = {each.gang for each in all_moves if each.gang and each.target in found}
        more = {each.target for each in all_moves if each.gang in gangs} - found
        if not more:
            return found
        found |= more


def with_open_targets(moves: Iterable[PodMove], is_open: Callable[[PodMove], bool]) -> list[PodMove]:
    """Return the moves whose targets are open, those of a gang only where all of its targets are."""
    all_moves = list(moves)
    shut = {each.gang for each in all_moves if each.gang and not is_open(each)}
    return [each for each in all_moves if is_open(each) and each.gang not in shut]


def next_evictions(
    pods: Iterable[PodMove], is_due: Callable[[str], bool], most_in_flight: int, open_now: int
) -> list[PodMove]:
    """Return the pods to evict now: as many as may be without a successor at a time, and a gang at once."""
    room = most_in_flight - open_now
    gangs: dict[str, list[PodMove]] = {}
    for each in pods:
        gangs.setdefault(each.gang or f"/{each.uid}", []).append(each)
    found: list[PodMove] = []
    for members in gangs.values():
        due = [pod for pod in members if is_due(pod.uid)]
        if due and (len(due) <= room or not (found or open_now)):
            found += due
            room -= len(due)
    return found


def may_be_evicted(pod: ReschedulablePod, under_way: Disruption) -> bool:
    """Return whether the pod may be evicted; a PodDisruptionBudget is the API server's to heed."""
    ending = pod.kept_by is Kept.UNTIL_IT_ENDS and under_way.reason in FORCEFUL
    return ending or pod.kept_by in (Kept.NOTHING, Kept.FOR_NOW)


def stranger(pod: ReschedulablePod) -> PodMove:
    """Return the move of a pod that came to a node which must go after all."""
    ref = pod.ref
    return PodMove(ref.uid, ref.namespace, ref.name, ref.workload, "wherever there is room", pod.gang or "")
