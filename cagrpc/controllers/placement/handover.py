"""Other places for pods whose room was taken, on existing nodes and on those in flight; no node is opened. Pure.

A pod that took the room of another has mostly left its own place: where both are of the same class, they swap.
Otherwise the pods without a place are packed again, together with pods of a few nodes that the scheduler does not see
yet: these may move as long as all of them have a place. Pods of other nodes are about to be bound, and stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.controllers.placement.placed_pods import PlacedPods
from cagrpc.fleet.model import PodKey
from solver.model import Budget, Node, PodSet, PodSpec, Problem

NODES = (8, 32, 96)
"""How many nodes are packed again: larger numbers are tried until all pods have a place."""
BUDGET = Budget(0.3)
"""Of each attempt."""


def swap(lost: Mapping[PodKey, PodSpec], left: Iterable[tuple[PodSpec, str]], placed: PlacedPods) -> dict[PodKey, str]:
    """Return new nodes, by pod (UID), for those of the `lost` whose class has a free place that another pod has `left`,
    and take these places in `placed`."""
    free: defaultdict[PodSpec, list[str]] = defaultdict(list)
    for spec, node in left:
        free[spec].append(node)
    found: dict[PodKey, str] = {}
    for uid in sorted(lost, key=str):
        taken = next((name for name in free.get(lost[uid], ()) if placed.take(uid, lost[uid], name)), None)
        if taken is not None:
            found[uid] = taken
    return found


def repack(
    lost: Mapping[PodKey, PodSpec],
    movable: Mapping[PodKey, PodSpec],
    placed: PlacedPods,
    first: Sequence[str],
    budget: Budget = BUDGET,
    sizes: Sequence[int] = NODES,
) -> dict[PodKey, str]:
    """Return new nodes, by pod (UID), for all of the `lost` and those of the `movable` that have to move; empty where
    none are found. The `movable` have places in `placed`; nodes are tried in the order of `first`."""
    there: defaultdict[str, list[PodKey]] = defaultdict(list)
    for uid in movable:
        there[placed.nodes_of_pods[uid]].append(uid)
    nodes = {name: node for name in first if (node := placed.node(name, without_pods=name in there)) is not None}
    for size in sizes:
        chosen = list(nodes)[:size]
        specs = {**lost, **{uid: movable[uid] for name in chosen for uid in there[name]}}
        before = {uid: placed.nodes_of_pods.get(uid, "") for uid in specs}
        found = _packed(specs, [nodes[name] for name in chosen], before, budget)
        if found:
            return {uid: node for uid, node in found.items() if before[uid] != node}
        if len(nodes) <= size:
            break
    return {}


def _packed(
    specs: Mapping[PodKey, PodSpec], nodes: Sequence[Node], before: Mapping[PodKey, str], budget: Budget
) -> dict[PodKey, str]:
    """Return a node for each pod, where possible the one of `before`; empty where not all pods fit."""
    counts = Counter(specs.values())
    sets = tuple(PodSet(str(number), spec, count) for number, (spec, count) in enumerate(counts.items()))
    planned = solve_valid(Problem(sets, nodes=tuple(nodes)), budget)
    if not planned.places_all:
        return {}
    plan = planned.plan
    index = {each.index: each.spec for each in plan.pod_classes}
    left: defaultdict[PodSpec, Counter[str]] = defaultdict(Counter)
    for on_node in plan.existing:
        for number, count in on_node.pods.items():
            left[index[number]][on_node.node] += count
    found: dict[PodKey, str] = {}
    for uid in sorted(specs, key=lambda uid: not left[specs[uid]][before[uid]]):
        free = left[specs[uid]]
        node = before[uid] if free[before[uid]] else next(name for name, count in free.items() if count)
        free[node] -= 1
        found[uid] = node
    return found
