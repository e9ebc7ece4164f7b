"""Refuse invalid problems and budgets, naming every fault at once.

Says nothing about whether a problem can be solved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from solver.model import Budget, Limit, Node, NodeGroup, Plan, PodSet, Problem
from solver.model.errors import ProblemError
from solver.model.validation_specs import MAX_AMOUNT, MAX_COUNT, SpecFaults, amounts, device_faults

__all__ = ["MAX_COUNT", "validate"]

MAX_PRICE_USD_PER_HOUR = 10**6
MAX_TOTAL_USD_PER_HOUR = 10**12
MAX_WAITED_SECONDS = 10**18
MAX_BUDGET_SECONDS = 10**9
MAX_WORKERS = 1000


def validate(problem: Problem, budget: Budget | None = None) -> None:
    """Raises `ProblemError` with every fault, of the budget too where one is given."""
    faults = [
        *(_budget(budget) if budget is not None else ()),
        *_duplicates("node group", [group.id for group in problem.node_groups]),
        *_duplicates("node", [node.name for node in problem.nodes]),
        *_duplicates("limit", [limit.name for limit in problem.limits]),
    ]
    specs = SpecFaults()
    for pod_set in problem.pod_sets:
        faults.extend(_pod_set(pod_set))
        faults.extend(specs.faults(f"pod set {pod_set.name}", pod_set.spec))
    for group in problem.node_groups:
        faults.extend(_node_group(group))
        faults.extend(device_faults(f"node group {group.id}: devices", group.devices))
    for node in problem.nodes:
        faults.extend(_node(node, specs))
    for number, spec in enumerate(problem.daemon_sets):
        faults.extend(specs.faults(f"daemon set {number}", spec))
    if problem.previous is not None:
        faults.extend(_previous(problem.previous))
    for limit in problem.limits:
        faults.extend(_limit(limit))
    faults.extend(_sums(problem))
    if faults:
        raise ProblemError(faults)


def _budget(budget: Budget) -> Iterator[str]:
    """None at all, 0 seconds, is allowed: what is found without searching is a plan too."""
    for name, seconds in (("seconds", budget.seconds), ("deterministic_seconds", budget.deterministic_seconds)):
        if seconds is not None and not 0 <= seconds <= MAX_BUDGET_SECONDS:  # nor is nan
            yield f"budget: {name} {seconds} is not between 0 and {MAX_BUDGET_SECONDS}"
    workers = budget.workers
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MAX_WORKERS:
        yield f"budget: workers {workers!r} is not a whole number between 1 and {MAX_WORKERS}"


def _duplicates(what: str, names: list[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what} {name}: given {count} times, names must be unique"


def _pod_set(pod_set: PodSet) -> Iterator[str]:
    place = f"pod set {pod_set.name}"
    if not 0 <= pod_set.count <= MAX_COUNT:
        yield f"{place}: count {pod_set.count} is not between 0 and {MAX_COUNT}"
    if pod_set.waiting_seconds < 0:
        yield f"{place}: waiting_seconds {pod_set.waiting_seconds} is negative"
    if pod_set.placeholder and pod_set.gang is not None:
        yield f"{place}: a placeholder cannot belong to a gang"


def _node_group(group: NodeGroup) -> Iterator[str]:
    place = f"node group {group.id}"
    yield from amounts(f"{place}: allocatable", group.allocatable)
    yield from amounts(f"{place}: capacity", group.capacity)
    if not 0 <= group.min_size <= group.max_size <= MAX_COUNT:
        yield f"{place}: sizes must be 0 <= min <= max <= {MAX_COUNT}, found {group.min_size} and {group.max_size}"
    if not 0 <= group.target_size <= MAX_COUNT:
        yield f"{place}: target size {group.target_size} is not between 0 and {MAX_COUNT}"
    if not 0 <= group.weight <= 100:
        yield f"{place}: weight {group.weight} is not between 0 and 100"
    price = group.price_usd_per_hour
    if not (math.isfinite(price) and 0 <= price <= MAX_PRICE_USD_PER_HOUR):
        yield f"{place}: price {price} is not between 0 and {MAX_PRICE_USD_PER_HOUR} $/h"


def _node(node: Node, specs: SpecFaults) -> list[str]:
    """Thousands stand, and mostly nothing is wrong with any: that is found first."""
    faults: list[str] = []
    for amount in node.free.values():
        if type(amount) is not int or not 0 <= amount <= MAX_AMOUNT:
            faults.extend(amounts(f"node {node.name}: free", node.free))
            break
    if node.devices:
        faults.extend(device_faults(f"node {node.name}: devices", node.devices))
    for number, running in enumerate(node.running):
        place = f"node {node.name}: running pods {number}"
        if not 1 <= running.count <= MAX_COUNT:
            faults.append(f"{place}: count {running.count} is not between 1 and {MAX_COUNT}")
        faults.extend(specs.faults(place, running.spec))
    return faults


def _previous(plan: Plan) -> Iterator[str]:
    """Only its increments are read. Groups that a problem does not have are passed over."""
    yield from _duplicates("previous plan: increment of", [increment.node_group for increment in plan.increments])
    for increment in plan.increments:
        if not 0 <= increment.delta <= MAX_COUNT:
            yield (
                f"previous plan: increment of {increment.node_group}: {increment.delta} nodes are not between 0 and"
                f" {MAX_COUNT}"
            )


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
    yield from amounts(f"{place}: maximum", limit.maxima, ceiling)
    yield from amounts(f"{place}: used", limit.used, ceiling)
