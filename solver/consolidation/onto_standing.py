"""Nodes that go with nothing opened for their pods: each pod onto the first node with room for it, those first that are
most likely to stay. Only plain pods (`PodRules.plain`) of no gang, which stay in the domains that they are spread over;
for the others steps are planned."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from solver.consolidation.cluster import Cluster, Pods, Replacement
from solver.consolidation.eligible import DomainSpread, Eligibility
from solver.reduction.reduced import Ints


def emptied(
    cluster: Cluster,
    eligibility: Eligibility,
    spread: DomainSpread,
    candidates: Sequence[int],
    targets: Sequence[int],
    plain: Sequence[bool],
    most_nodes: int,
    worth_it: float,
) -> Iterator[Replacement]:
    """Yield nodes of the candidates, the first ones first, that can go, at most so many together; whoever asks for the
    next has removed the ones before. `targets` are the nodes that take pods, those first that take them first;
    candidates' pods only go to targets after which they do not come themselves. `worth_it` are millionths of $/h that
    moving a pod has to save."""
    order = np.array(targets, dtype=np.int64)
    free = np.ascontiguousarray(cluster.free[order].T)
    """Resources x targets, for comparing one resource at a time."""
    position = {node: rank for rank, node in enumerate(targets)}
    going: list[int] = []
    placed: dict[int, Pods] = defaultdict(Counter)
    size = (cluster.requests / np.maximum(free.max(axis=1, initial=1), 1)).max(axis=1)
    left = Counter(cluster.target)
    open_to: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    for node in candidates:
        if node in placed:  # it took pods: they go on in a step of their own
            yield Replacement(tuple(sorted(going)), dict(placed))
            going, placed = [], defaultdict(Counter)
        pods, group = cluster.pods[node], cluster.group_of[node]
        if left[group] <= cluster.least[group] or not all(plain[k] for k in pods):
            continue
        if cluster.micros_of(node) < worth_it * cluster.evicted(pods):
            continue
        last = position.get(node, len(order))
        found = _fit(cluster, eligibility, spread, node, pods, order, free[:, :last], size, open_to)
        if found is None:
            continue
        going.append(node)
        left[group] -= 1
        for target, k, count in found:
            placed[target][k] += count
        if node in position:
            free[:, position[node]] = -1
        if len(going) >= most_nodes:
            yield Replacement(tuple(sorted(going)), dict(placed))
            going, placed = [], defaultdict(Counter)
    if going:
        yield Replacement(tuple(sorted(going)), dict(placed))


def _fit(
    cluster: Cluster,
    eligibility: Eligibility,
    spread: DomainSpread,
    node: int,
    pods: Pods,
    order: Ints,
    free: Ints,
    size: np.ndarray[tuple[int], np.dtype[np.float64]],
    open_to: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]],
) -> list[tuple[int, int, int]] | None:
    """Return (node, class, pods) for all of the pods, and take their room of `free`; None, and nothing is taken, where
    one finds none."""
    taken: list[tuple[int, int, int]] = []
    for k in sorted(pods, key=lambda each: -size[each]):
        request, count = cluster.requests[k], pods[k]
        if k not in open_to:
            open_to[k] = eligibility.of(k)[order]
        asks = [(column, int(request[column])) for column in np.flatnonzero(request).tolist()]
        mask = open_to[k][: free.shape[1]].copy()
        domains = spread.stay_in(k, node)
        if domains is None:
            mask[:] = False
        elif domains:
            mask &= spread.nodes_in(domains)[order[: len(mask)]]
        for column, amount in asks:
            mask &= free[column] >= amount
        while count and mask.any():
            rank = int(mask.argmax())
            units = min(count, *(int(free[column, rank]) // amount for column, amount in asks))
            for column, amount in asks:
                free[column, rank] -= amount * units
            taken.append((rank, k, units))
            count -= units
            mask[rank] = False
        if count:
            for taker, other, units in taken:
                free[:, taker] += cluster.requests[other] * units
            return None
    return [(int(order[rank]), k, units) for rank, k, units in taken]
