"""What is short of nodes and of room on them, in words: limits, sizes, and pods that are too large. Which of it is a
class's reason is `reasons`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from solver.model import PODS, Limit, NodeGroup, PodSpec, Problem, Resources
from solver.model.capacity import remaining
from solver.model.quantities import format_quantity, pluralize, resource_words

_MOST_NAMED = 3


def named(groups: Sequence[NodeGroup], *, sizes: bool = False) -> str:
    """Return the first few groups by name, with `sizes` with their maxima, and how many more there are."""
    rest = len(groups) - _MOST_NAMED
    names = ", ".join(f"{g.id} ({g.max_size})" if sizes else g.id for g in groups[:_MOST_NAMED])
    return f"{names} and {rest} more" if rest > 0 else names


def room_of(group: NodeGroup, limits: Sequence[Limit]) -> tuple[int, str]:
    """Return how many more nodes the group may have, and the limit that says so; empty where its maximum does."""
    counted = group.counted_capacity
    bounds = [(max(0, group.max_size - group.target_size), "")]
    bounds += [
        (left // counted[resource], limit.name)
        for limit in limits
        if limit.node_groups is None or group.id in limit.node_groups
        for resource, left in remaining(limit).items()
        if counted.get(resource)
    ]
    return min(bounds)


def limits_reached(problem: Problem, deltas: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return by group the limits that leave no room for one more node of it."""
    groups = {group.id: group for group in problem.node_groups}
    found: dict[str, list[str]] = {group_id: [] for group_id in groups}
    for limit in sorted(problem.limits, key=lambda each: each.name):
        bounded = groups if limit.node_groups is None else [g for g in groups if g in limit.node_groups]
        for resource, left in remaining(limit).items():
            counted = {g: groups[g].counted_capacity.get(resource, 0) for g in bounded}
            spare = left - sum(counted.get(g, 0) * delta for g, delta in deltas.items())
            sentence = f"limit {limit.name} allows {format_quantity(resource, limit.maxima[resource])} {resource}"
            for group_id, mine in counted.items():
                if mine and mine > spare:
                    found[group_id].append(sentence)
    return {group_id: tuple(sentences) for group_id, sentences in found.items()}


def too_small(spec: PodSpec, groups: Sequence[tuple[Resources, Resources]], *, alone: bool) -> Iterator[str]:
    """Yield which resource is short on all eligible groups, and the most there is of it. Of each group its nodes'
    allocatable, and what DaemonSets leave of it. `alone`: the pod requires nothing of other pods."""
    if not groups:
        return
    asked: Resources = {**dict(spec.requests), PODS: 1}
    for resource, amount in asked.items():
        most = max(free.get(resource, 0) for _, free in groups)
        if amount > most:
            beside = " beside DaemonSets" if most < max(whole.get(resource, 0) for whole, _ in groups) else ""
            yield (
                f"needs {format_quantity(resource, amount)} {resource_words(resource)}, "
                f"the largest eligible node has {format_quantity(resource, most)}{beside}"
            )
    each_somewhere = all(any(free.get(r, 0) >= a for _, free in groups) for r, a in asked.items())
    if each_somewhere and alone:
        yield f"no eligible node has all it needs together ({pluralize(len(groups), 'node group')} too small)"
