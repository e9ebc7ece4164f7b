"""Problems whose optimum is known: nodes filled to the last unit, certified by dual prices.

Each resource gets a price per unit. A node group costs at least what its allocatable is worth, so a plan costs at least
what its pods' requests are worth, whatever it does. The planted nodes are of groups that cost exactly their worth, and
are full in every resource that has a price: they cost what their pods are worth, and no plan can cost less.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from solver.model import PODS, NodeGroup, PodSet, PodSpec, Problem

_MICROS = 1_000_000
_SCALES = {"cpu": 100, "memory": 2**28}
"""What one step of a resource is in its unit; 1 where none is given."""
_NAMES = ("cpu", "memory", *(f"example.com/resource-{i:02}" for i in range(3, 13)))
MOST_DIMENSIONS = len(_NAMES)

Amounts = tuple[int, ...]
"""Per resource, in steps."""


@dataclass(frozen=True)
class PlantedNodes:
    """`count` nodes of a group, each with the same pods: pod set -> pods per node."""

    node_group: str
    count: int
    pods: Mapping[str, int]


@dataclass(frozen=True)
class Planted:
    """A problem, its optimum and the proof of it."""

    problem: Problem
    optimum_usd_per_hour: float
    prices_micros: Mapping[str, Fraction]
    """The dual prices: millionths of $/h per unit of each resource; `pods` is free."""
    nodes: tuple[PlantedNodes, ...]
    """A plan that costs the optimum."""


def plant(dimensions: int, kinds: int, patterns: int, nodes: int, seed: int) -> Planted:
    """`nodes` nodes of `kinds` node groups, filled in `patterns` ways over `dimensions` (2 to 12) resources, of which
    some may be free and then have slack; and as many groups again that are dearer than they are worth."""
    if not 2 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"{dimensions} dimensions: there are names for 2 to {MOST_DIMENSIONS}")
    rng = random.Random(seed)
    priced = [i < 2 or rng.random() < 0.8 for i in range(dimensions)]
    prices = [rng.randint(500, 5000) if is_priced else 0 for is_priced in priced]
    sizes = [tuple(rng.randint(8, 96) for _ in range(dimensions)) for _ in range(2 * kinds)]
    worth = [sum(p * a for p, a in zip(prices, size, strict=True)) for size in sizes]
    markups = [0.0] * kinds + [rng.uniform(0.001, 0.3) for _ in range(kinds)]
    costs = [w + int(w * markup) + bool(markup) for w, markup in zip(worth, markups, strict=True)]
    names = _NAMES[:dimensions]
    groups = tuple(
        NodeGroup(f"group-{i:03}", {**_amounts(names, size), PODS: 110}, cost / _MICROS, max_size=10**6)
        for i, (size, cost) in enumerate(zip(sizes, costs, strict=True))
    )
    classes: dict[Amounts, str] = {}
    planted = []
    for number in range(patterns):
        kind = number % kinds
        held = Counter(
            classes.setdefault(part, f"set-{len(classes):04}") for part in _parts(rng, sizes[kind], priced, classes)
        )
        count = nodes // patterns + (number < nodes % patterns)
        planted.append(PlantedNodes(groups[kind].id, count, held))
    asked: Counter[str] = Counter()
    for full in planted:
        for name, per_node in full.pods.items():
            asked[name] += per_node * full.count
    sets = tuple(
        PodSet(name, PodSpec(tuple(sorted((n, a) for n, a in _amounts(names, part).items() if a))), asked[name])
        for part, name in classes.items()
        if asked[name]
    )
    optimum = sum(full.count * costs[number % kinds] for number, full in enumerate(planted))
    duals = {n: Fraction(p, _SCALES.get(n, 1)) for n, p in zip(names, prices, strict=True)}
    return Planted(Problem(sets, groups), optimum / _MICROS, duals, tuple(p for p in planted if p.count))


def _amounts(names: tuple[str, ...], steps: Amounts) -> dict[str, int]:
    return {name: amount * _SCALES.get(name, 1) for name, amount in zip(names, steps, strict=True)}


def _parts(rng: random.Random, size: Amounts, priced: list[bool], known: Mapping[Amounts, str]) -> Iterator[Amounts]:
    """Pods that fill a node of this size: some of those that other nodes hold, then new ones of a share each, then one
    for what is left. Free resources are not used up."""
    left = list(size)
    for part in rng.sample(list(known), min(len(known), rng.randint(0, 3))):
        times = rng.randint(1, 4)
        while times and all(p <= have for p, have in zip(part, left, strict=True)):
            left = [have - p for p, have in zip(part, left, strict=True)]
            times -= 1
            yield part
    for shares in range(rng.randint(1, 4), 0, -1):
        part = tuple(rng.randint(0, 2 * have // (shares + 1)) for have in left)
        if any(part):
            left = [have - p for p, have in zip(part, left, strict=True)]
            yield part
    rest = tuple(have if is_priced else rng.randint(0, have) for have, is_priced in zip(left, priced, strict=True))
    if any(rest):
        yield rest


def faults(planted: Planted) -> Iterator[str]:
    """One sentence for everything that the certificate claims and that does not hold, in exact arithmetic; none where
    the optimum is proven. Reads nothing but the value: not how it was made."""
    prices, problem = planted.prices_micros, planted.problem
    specs = {pods.name: dict(pods.spec.requests) for pods in problem.pod_sets}
    groups = {group.id: group for group in problem.node_groups}
    yield from (f"{name} has a negative price" for name, price in prices.items() if price < 0)
    for group in problem.node_groups:
        if _worth(prices, group.allocatable) > _micros(group.price_usd_per_hour):
            yield f"{group.id} costs less than its allocatable is worth"
    served: Counter[str] = Counter()
    cost = Fraction(0)
    for nodes in planted.nodes:
        group = groups[nodes.node_group]
        used: Counter[str] = Counter({PODS: sum(nodes.pods.values())})
        for name, per_node in nodes.pods.items():
            served[name] += per_node * nodes.count
            for resource, amount in specs[name].items():
                used[resource] += amount * per_node
        if any(amount > group.allocatable.get(resource, 0) for resource, amount in used.items()):
            yield f"a planted node of {group.id} is over-full"
        if _worth(prices, used) != _micros(group.price_usd_per_hour):
            yield f"a planted node of {group.id} does not cost what its pods are worth"
        cost += nodes.count * _micros(group.price_usd_per_hour)
    if served != Counter({pods.name: pods.count for pods in problem.pod_sets}):
        yield "the planted nodes do not hold the problem's pods"
    if cost != _micros(planted.optimum_usd_per_hour):
        yield "the planted nodes do not cost the optimum"


def _worth(prices: Mapping[str, Fraction], amounts: Mapping[str, int]) -> Fraction:
    return sum((prices.get(resource, Fraction(0)) * amount for resource, amount in amounts.items()), Fraction(0))


def _micros(usd: float) -> Fraction:
    """Prices are whole millionths, of which a float is the nearest."""
    return Fraction(round(usd * _MICROS))
