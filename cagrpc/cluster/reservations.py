"""Room that is kept on nodes for pods that are still to come. Who keeps it for whom is said elsewhere; here is what is
left on a node beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cagrpc.cluster.state import ClusterState
from solver.model import PODS, Node, PodSpec, RunningPods

Kept = Mapping[str, Sequence[RunningPods]]
"""By node name."""


def nothing_kept(_: ClusterState) -> Kept:
    return {}


def together(one: Kept, other: Kept) -> Kept:
    return {name: (*one.get(name, ()), *other.get(name, ())) for name in {**one, **other}}


def keeping(node: Node, pods: Iterable[RunningPods]) -> Node:
    """The node as if these pods were on it. Where there is less room than they need, nothing is left."""
    more = tuple(pods)
    if not more:
        return node
    taken = requested((each.spec, each.count) for each in more)
    free = {name: max(0, node.free.get(name, 0) - taken.get(name, 0)) for name in (*node.free, *taken)}
    return replace(node, free=free, running=(*node.running, *more))


def requested(pods: Iterable[tuple[PodSpec, int]]) -> dict[str, int]:
    """What so many pods of each spec request in all, the pods themselves included."""
    total: Counter[str] = Counter()
    for spec, count in pods:
        for name, amount in (*spec.requests, (PODS, 1)):
            total[name] += amount * count
    return dict(total)
