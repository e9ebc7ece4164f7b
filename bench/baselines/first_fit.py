"""The baseline of the planner's benchmarks: first-fit decreasing over the node type that is cheapest for each pod, as
greedy autoscalers pack. Pods of a class are placed together, so that its time says something about packing rather
than about Python."""

from __future__ import annotations

from collections.abc import Mapping

from solver.model import PODS, NodeGroup, Problem
from solver.validate import validate


def first_fit_decreasing(problem: Problem) -> float:
    """$/h of the nodes it opens. Selectors, taints, limits and sizes are not looked at."""
    validate(problem)
    largest = {
        name: max(group.allocatable.get(name, 0) for group in problem.node_groups)
        for group in problem.node_groups
        for name in group.allocatable
    }
    opened: list[tuple[dict[str, int], int]] = []
    cost = 0.0
    classes = sorted(
        problem.pod_sets,
        key=lambda p: -max((amount / largest[name] for name, amount in p.spec.requests), default=0.0),
    )
    for pods in classes:
        need = {**dict(pods.spec.requests), PODS: 1}
        left = pods.count
        batches: list[tuple[dict[str, int], int]] = []
        for free, standing in opened:
            nodes = standing
            fit = min(free.get(name, 0) // amount for name, amount in need.items())
            if not left or not fit:
                batches.append((free, nodes))
                continue
            full = min(nodes, left // fit)
            if full:
                batches.append((_less(free, need, fit), full))
            left -= full * fit
            nodes -= full
            if nodes and left:
                batches.append((_less(free, need, left), 1))
                nodes, left = nodes - 1, 0
            if nodes:
                batches.append((free, nodes))
        opened = batches
        if left:
            group, fit = _cheapest(problem, need, left)
            whole, rest = divmod(left, fit)
            cost += group.price_usd_per_hour * (whole + bool(rest))
            if whole:
                opened.append((_less(group.allocatable, need, fit), whole))
            if rest:
                opened.append((_less(group.allocatable, need, rest), 1))
    return cost


def _cheapest(problem: Problem, need: dict[str, int], pods: int) -> tuple[NodeGroup, int]:
    """The group with the least price per pod, for as many as there are."""
    best: tuple[float, str, NodeGroup, int] | None = None
    for group in problem.node_groups:
        fit = min(group.allocatable.get(name, 0) // amount for name, amount in need.items())
        if fit:
            found = (group.price_usd_per_hour / min(fit, pods), group.id, group, fit)
            best = found if best is None or found[:2] < best[:2] else best
    if best is None:
        raise ValueError(f"no node group has room for a pod that asks for {need}")
    return best[2], best[3]


def _less(free: Mapping[str, int], need: dict[str, int], pods: int) -> dict[str, int]:
    left = dict(free)
    for name, amount in need.items():
        left[name] = left.get(name, 0) - amount * pods
    return left
