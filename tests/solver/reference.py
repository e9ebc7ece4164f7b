"""An exact reference for small problems: one variable per (pod class, node slot), no patterns, no reductions.

Slow and plain on purpose. It shares nothing with the solver but the model and the eligibility rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from solver import Problem
from solver.eligibility import why_not_eligible
from solver.model import PODS, NodeGroup, Resources
from solver.reduce import MICROS


@dataclass(frozen=True)
class _Slot:
    """A place for one node: an existing one, or one that may be opened."""

    free: Resources
    labels: Mapping[str, str]
    taints: tuple[object, ...]
    group: NodeGroup | None
    name: str = ""


def best_objective(problem: Problem, seconds: float = 20.0) -> tuple[int, ...]:
    """The optimal lexicographic objective: unserved and waiting by priority, placeholders, cost in micros by tier from
    the lowest, number of nodes."""
    model = cp_model.CpModel()
    slots = _slots(problem)
    opened = [model.new_bool_var(f"open{i}") for i in range(len(slots))]
    served: list[cp_model.IntVar] = []
    place: dict[tuple[int, int], cp_model.IntVar] = {}
    for p, pod_set in enumerate(problem.pod_sets):
        served.append(model.new_int_var(0, pod_set.count, f"served{p}"))
        for s, slot in enumerate(slots):
            if why_not_eligible(pod_set.spec, slot.labels, slot.taints, slot.name) is None:  # type: ignore[arg-type]
                place[p, s] = model.new_int_var(0, pod_set.count, f"place{p}_{s}")
        model.add(served[p] == sum(v for (q, _), v in place.items() if q == p))
    _capacity(problem, model, slots, opened, place)
    _gangs(problem, model, served)
    new = [(s, slot.group) for s, slot in enumerate(slots) if slot.group is not None]
    _sizes_and_limits(problem, model, opened, new)
    result = []
    for expression in _stages(problem, served, opened, new):
        model.minimize(expression)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = seconds
        assert solver.solve(model) == cp_model.OPTIMAL, "the reference must be exact"
        value = round(solver.objective_value)
        result.append(value)
        model.add(expression <= value)
    return tuple(result)


def _slots(problem: Problem) -> list[_Slot]:
    slots = [_Slot(n.free, n.labels, n.taints, None, n.name) for n in problem.nodes]
    pods = sum(p.count for p in problem.pod_sets)
    for group in problem.node_groups:
        free = dict(group.allocatable)
        for daemon in problem.daemon_sets:
            need = {**dict(daemon.requests), PODS: 1}
            fits = all(free.get(name, 0) >= amount for name, amount in need.items())
            if fits and why_not_eligible(daemon, group.labels, group.taints) is None:
                free |= {name: free.get(name, 0) - amount for name, amount in need.items()}
        obliged = max(0, min(group.min_size, group.max_size) - group.target_size)
        room = max(0, min(group.max_size - group.target_size, max(pods, obliged)))
        slots.extend(_Slot(free, group.labels, group.taints, group) for _ in range(room))
    return slots


def _capacity(
    problem: Problem,
    model: cp_model.CpModel,
    slots: list[_Slot],
    opened: list[cp_model.IntVar],
    place: dict[tuple[int, int], cp_model.IntVar],
) -> None:
    for s, slot in enumerate(slots):
        here = [(p, v) for (p, q), v in place.items() if q == s]
        names = {name for p, _ in here for name, _ in problem.pod_sets[p].spec.requests} | {PODS}
        for name in names:
            need = [{**dict(problem.pod_sets[p].spec.requests), PODS: 1}.get(name, 0) for p, _ in here]
            have = max(0, slot.free.get(name, 0))
            model.add(sum(n * v for n, (_, v) in zip(need, here, strict=True)) <= have * opened[s])


def _gangs(problem: Problem, model: cp_model.CpModel, served: list[cp_model.IntVar]) -> None:
    whole: dict[str, cp_model.IntVar] = {}
    for p, pod_set in enumerate(problem.pod_sets):
        if pod_set.gang is not None:
            whole.setdefault(pod_set.gang, model.new_bool_var(pod_set.gang))
            model.add(served[p] == pod_set.count * whole[pod_set.gang])


def _sizes_and_limits(
    problem: Problem, model: cp_model.CpModel, opened: list[cp_model.IntVar], new: list[tuple[int, NodeGroup]]
) -> None:
    for group in problem.node_groups:
        mine = [opened[s] for s, g in new if g is group]
        model.add(sum(mine) >= max(0, min(group.min_size, group.max_size) - group.target_size))
        for first, second in pairwise(mine):
            model.add(first >= second)
    for limit in problem.limits:
        for name, most in limit.maxima.items():
            left = max(0, most - limit.used.get(name, 0))
            bounded = [(s, g) for s, g in new if limit.node_groups is None or g.id in limit.node_groups]
            model.add(sum(g.counted_capacity.get(name, 0) * opened[s] for s, g in bounded) <= left)


def _stages(
    problem: Problem, served: list[cp_model.IntVar], opened: list[cp_model.IntVar], new: list[tuple[int, NodeGroup]]
) -> list[cp_model.LinearExprT]:
    claims: dict[int, list[int]] = defaultdict(list)
    for p, pod_set in enumerate(problem.pod_sets):
        if not pod_set.placeholder and pod_set.count:
            claims[pod_set.priority].append(p)
    stages: list[cp_model.LinearExprT] = []
    for priority in sorted(claims, reverse=True):
        missing = [(problem.pod_sets[p], problem.pod_sets[p].count - served[p]) for p in claims[priority]]
        stages.append(sum(m for _, m in missing))
        stages.append(sum(pod_set.waiting_seconds * m for pod_set, m in missing))
    slack = [p for p, pod_set in enumerate(problem.pod_sets) if pod_set.placeholder and pod_set.count]
    if slack:
        stages.append(sum(problem.pod_sets[p].count - served[p] for p in slack))
    stages.extend(
        sum(round(g.price_usd_per_hour * MICROS) * opened[s] for s, g in new if g.weight == weight)
        for weight in sorted({g.weight for g in problem.node_groups})
    )
    stages.append(sum(opened[s] for s, _ in new))
    return stages


def as_micros(vector: tuple[float, ...], problem: Problem) -> tuple[int, ...]:
    """A plan's objective vector in the reference's units: cost stages (after all claims, before nodes) in micros."""
    tiers = len({g.weight for g in problem.node_groups})
    first = len(vector) - 1 - tiers
    return tuple(
        round(v * MICROS) if first <= i < len(vector) - 1 else math.floor(v + 0.5) for i, v in enumerate(vector)
    )
