"""Room for pods that wait, and for those of nodes that are on their way out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable

import numpy as np

from cagrpc.controllers.scale_down.relocation import MOST_TARGETS, Relocated, Relocation, largest_first
from cagrpc.controllers.scale_down.room import Room
from solver.model import Budget, PodSet, PodSpec

_MOST_NODES = 512
"""How many nodes may be in question where all pods are planned at once,"""
_MOST_SPECS = 200
"""and how many specs."""
_SPECS_AT_A_TIME = 10
"""Of pods whose constraints reach beyond a node,"""
_MOST_TARGETS = 256
"""each with so many nodes at most."""


def reserve(
    room: Room, relocation: Relocation, pod_sets: Iterable[PodSet], budget: Budget
) -> Generator[None, None, Counter[PodSpec]]:
    """Assume as many of these pods as find room on any of the nodes, and return which. Their specs are `required` ones.
    It pauses after each part of the work.

    Those with the fewest nodes come first. Where some are left, the planner is asked for all at once, unless too many
    nodes are in question."""
    in_question = np.zeros(len(room.nodes), dtype=bool)
    choices: list[tuple[int, tuple[int, ...], PodSet]] = []
    for each in pod_sets:
        if each.count and any(True for _ in relocation.open_to(each.spec, room.there)):
            open_to = room.open_to(each.spec)
            in_question |= open_to
            choices.append((int(open_to.sum()), largest_first(each.spec), each))
        yield
    sets = [each for *_, each in sorted(choices, key=lambda choice: choice[:2])]
    room.begin()
    found: list[Relocated] = []
    for each in sets:
        if relocation.decided_by_node(each.spec):
            found.append(relocation.first_fit({each.spec: each.count}, room.there))
            relocation.assume(found[-1])
            yield
    others = [each for each in sets if not relocation.decided_by_node(each.spec)]
    for start in range(0, len(others), _SPECS_AT_A_TIME):
        several = tuple(others[start : start + _SPECS_AT_A_TIME])
        most = min(max(MOST_TARGETS, sum(each.count for each in several)), _MOST_TARGETS)
        targets = relocation.targets([each.spec for each in several], room.there, most)
        found.append(relocation.planned(several, targets, budget))
        relocation.assume(found[-1])
        yield
    too_many = np.count_nonzero(in_question) > _MOST_NODES or len(sets) > _MOST_SPECS
    if all(each.all for each in found) or too_many:
        room.end(undo=False)
        return _placed(found)
    room.end(undo=True)
    together = relocation.planned(tuple(sets), np.flatnonzero(in_question).tolist(), budget)
    if together.count > sum(each.count for each in found):
        found = [together]
    for relocated in found:
        relocation.assume(relocated)
    return _placed(found)


def _placed(found: Iterable[Relocated]) -> Counter[PodSpec]:
    placed: Counter[PodSpec] = Counter()
    for each in found:
        for pods in each.pods.values():
            placed.update(pods)
    return placed
