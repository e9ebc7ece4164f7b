"""Refuses problems that cannot be meant, naming every fault at once. Says nothing about whether they can be solved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from solver.errors import ProblemError
from solver.model import PODS, Limit, NodeGroup, PodSet, Problem, Resources

MAX_AMOUNT = 10**15
"""Of one resource on one node or pod: a pebibyte. More is a slip of units, and would overflow what is summed."""
MAX_COUNT = 10**9
"""Pods of one set, nodes of one group."""
MAX_PRICE_USD_PER_HOUR = 10**6
MAX_TOTAL_USD_PER_HOUR = 10**12
MAX_WAITED_SECONDS = 10**18


def validate(problem: Problem) -> None:
    """Raises `ProblemError` with every fault."""
    faults = [
        *_duplicates("node group", [group.id for group in problem.node_groups]),
        *_duplicates("node", [node.name for node in problem.nodes]),
        *_duplicates("limit", [limit.name for limit in problem.limits]),
    ]
    for pod_set in problem.pod_sets:
        faults.extend(_pod_set(pod_set))
    for group in problem.node_groups:
        faults.extend(_node_group(group))
    for node in problem.nodes:
        faults.extend(_amounts(f"node {node.name}: free", node.free))
    for number, spec in enumerate(problem.daemon_sets):
        faults.extend(_amounts(f"daemon set {number}: requests", dict(spec.requests)))
    for limit in problem.limits:
        faults.extend(_limit(limit))
    faults.extend(_sums(problem))
    if faults:
        raise ProblemError(faults)


def _duplicates(what: str, names: list[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what} {name}: given {count} times, names must be unique"


def _amounts(place: str, amounts: Mapping[str, int], maximum: int = MAX_AMOUNT) -> Iterator[str]:
    for name, amount in amounts.items():
        if not isinstance(amount, int) or isinstance(amount, bool):
            yield f"{place} {name}: {amount!r} is not a whole number of base units"
        elif not 0 <= amount <= maximum:
            yield f"{place} {name}: {amount} is not between 0 and {maximum}"


def _pod_set(pod_set: PodSet) -> Iterator[str]:
    place = f"pod set {pod_set.name}"
    if not 0 <= pod_set.count <= MAX_COUNT:
        yield f"{place}: count {pod_set.count} is not between 0 and {MAX_COUNT}"
    if pod_set.waiting_seconds < 0:
        yield f"{place}: waiting_seconds {pod_set.waiting_seconds} is negative"
    if pod_set.placeholder and pod_set.gang is not None:
        yield f"{place}: a placeholder cannot belong to a gang"
    names = [name for name, _ in pod_set.spec.requests]
    if PODS in names:
        yield f"{place}: requests {PODS}: every pod takes one, which the solver adds itself"
    if names != sorted(set(names)):
        yield f"{place}: requests must be sorted by name, each name once"
    yield from _amounts(f"{place}: requests", dict(pod_set.spec.requests))


def _node_group(group: NodeGroup) -> Iterator[str]:
    place = f"node group {group.id}"
    yield from _amounts(f"{place}: allocatable", group.allocatable)
    yield from _amounts(f"{place}: capacity", group.capacity)
    if not 0 <= group.min_size <= group.max_size <= MAX_COUNT:
        yield f"{place}: sizes must be 0 <= min <= max <= {MAX_COUNT}, found {group.min_size} and {group.max_size}"
    if not 0 <= group.target_size <= MAX_COUNT:
        yield f"{place}: target size {group.target_size} is not between 0 and {MAX_COUNT}"
    if not 0 <= group.weight <= 100:
        yield f"{place}: weight {group.weight} is not between 0 and 100"
    price = group.price_usd_per_hour
    if not (math.isfinite(price) and 0 <= price <= MAX_PRICE_USD_PER_HOUR):
        yield f"{place}: price {price} is not between 0 and {MAX_PRICE_USD_PER_HOUR} $/h"


def _sums(problem: Problem) -> Iterator[str]:
    """What is added up over all pods must fit 64 bits."""
    pods = sum(max(0, p.count) for p in problem.pod_sets) + sum(max(0, g.min_size) for g in problem.node_groups)
    prices = [g.price_usd_per_hour for g in problem.node_groups if math.isfinite(g.price_usd_per_hour)]
    if pods * max(prices, default=0.0) > MAX_TOTAL_USD_PER_HOUR:
        yield (
            f"{pods} pods at up to {max(prices)} $/h a node may cost more than {MAX_TOTAL_USD_PER_HOUR:.0e} $/h,"
            " which cannot be counted exactly; plan fewer at once"
        )
    waited = sum(p.count * p.waiting_seconds for p in problem.pod_sets)
    if waited > MAX_WAITED_SECONDS:
        yield f"pods have waited {waited} s together, at most {MAX_WAITED_SECONDS} can be counted; cap waiting_seconds"


def _limit(limit: Limit) -> Iterator[str]:
    place = f"limit {limit.name}"
    ceiling = MAX_AMOUNT * MAX_COUNT
    yield from _amounts(f"{place}: maximum", limit.maxima, ceiling)
    yield from _amounts(f"{place}: used", limit.used, ceiling)


def remaining(limit: Limit) -> Resources:
    """What a limit still allows of each resource it names; never negative."""
    return {name: max(0, most - limit.used.get(name, 0)) for name, most in limit.maxima.items()}
