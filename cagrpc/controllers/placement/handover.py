"""Other places for pods whose room was taken, on existing nodes and on those in flight; no node is opened. Pure.

A pod that took the room of another has mostly left its own place: where both are of the same class, they swap.
Otherwise the pods without a place are packed again into what is free, together with unbound pods of a few nodes: these
may move as long as all of them keep a place. One that the scheduler binds meanwhile where it was is a pod bound
elsewhere than planned, like any other; so pods of as few nodes as possible move, and those of nodes that the scheduler
does not see come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.controllers.assume_cache.placements import PlacedPods
from cagrpc.fleet.model import PodKey
from solver.model import Budget, Node, PodSet, PodSpec, Problem

NODES = 96
"""On how many nodes room is looked for."""
MOVING = (slice(0), *(slice(n, n + 1) for n in range(16)), *(slice(n) for n in (2, 4, 8, 16, 32, NODES)))
"""Pods of which of them may move, of none or single ones first: tried until all pods have a place."""
BUDGET = Budget(0.3)
"""Of each attempt."""
MOST_SPECS = 8
"""For how many different pods nodes are looked for."""


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


def most_promising(
    lost: Mapping[PodKey, PodSpec], movable: Iterable[PodKey], placed: PlacedPods, unseen: AbstractSet[str]
) -> list[str]:
    """Return the nodes of the `movable`: those first that admit one of the `lost`, of these the ones that are `unseen`
    by the scheduler, then those with the most room."""
    specs = sorted(set(lost.values()), key=lambda spec: spec.requests, reverse=True)[:MOST_SPECS]
    room = {
        name: max(placed.room(spec, name) for spec in specs) for name in {placed.nodes_of_pods[uid] for uid in movable}
    }
    return sorted(room, key=lambda name: (room[name] < 0, name not in unseen, -room[name], name))


def repack(
    lost: Mapping[PodKey, PodSpec],
    movable: Mapping[PodKey, PodSpec],
    placed: PlacedPods,
    first: Iterable[str],
    budget: Budget = BUDGET,
) -> dict[PodKey, str]:
    """Return new nodes, by pod (UID), for as many of the `lost` as can be, and for those of the `movable` that have to
    move for it. The `movable` have places in `placed`; nodes are tried in the order of `first`."""
    there: defaultdict[str, list[PodKey]] = defaultdict(list)
    for uid in movable:
        there[placed.nodes_of_pods[uid]].append(uid)
    known = ((name, placed.node(name)) for name in dict.fromkeys(first))
    nodes = dict(islice(((name, node) for name, node in known if node is not None), NODES))
    best: dict[PodKey, str] = {}
    tried: set[frozenset[PodKey]] = set()
    for some in MOVING:
        names = list(nodes)[some]
        moving = {uid: movable[uid] for name in names for uid in there.get(name, ())}
        if frozenset(moving) in tried:
            continue
        tried.add(frozenset(moving))
        emptied = {name: placed.node(name, without=there.get(name, ())) for name in names}
        before = {uid: placed.nodes_of_pods[uid] for uid in moving}
        found = _packed(lost, moving, [emptied.get(name) or node for name, node in nodes.items()], before, budget)
        if len(found.keys() & lost.keys()) > len(best.keys() & lost.keys()):
            best = {uid: node for uid, node in found.items() if before.get(uid) != node}
        if lost.keys() <= best.keys():
            break
    return best


def _packed(
    lost: Mapping[PodKey, PodSpec],
    moving: Mapping[PodKey, PodSpec],
    nodes: Sequence[Node],
    before: Mapping[PodKey, str],
    budget: Budget,
) -> dict[PodKey, str]:
    """Return a node for as many of the `lost` as fit beside all that are `moving`, where possible their one of
    `before`; empty where these do not all fit."""
    classes = {**{uid: (spec, 0) for uid, spec in lost.items()}, **{uid: (spec, 1) for uid, spec in moving.items()}}
    counts = enumerate(Counter(classes.values()).items())
    sets = tuple(PodSet(str(number), spec, count, priority) for number, ((spec, priority), count) in counts)
    plan = solve_valid(Problem(sets, nodes=tuple(nodes)), budget).plan
    index = {each.index: (each.spec, each.priority) for each in plan.pod_classes}
    left: defaultdict[tuple[PodSpec, int], Counter[str]] = defaultdict(Counter)
    for on_node in plan.existing:
        for number, count in on_node.pods.items():
            left[index[number]][on_node.node] += count
    if any(left[pods].total() < count for pods, count in Counter(classes[uid] for uid in moving).items()):
        return {}
    found: dict[PodKey, str] = {}
    for uid in sorted(classes, key=lambda uid: not left[classes[uid]][before.get(uid, "")]):
        free = +left[classes[uid]]
        if free:
            found[uid] = before[uid] if free[before.get(uid, "")] else next(iter(free))
            left[classes[uid]][found[uid]] -= 1
    return found
