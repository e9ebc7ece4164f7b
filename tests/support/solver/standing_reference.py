"""The exact reference of consolidation: the least that a small cluster of plain pods can cost, in the order of the
weights, whichever nodes go and however many steps that takes. CP-SAT over single pods and nodes; it shares nothing with
planning but the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ortools.sat.python import cp_model

from solver import ConsolidationProblem, NodeGroup, PodSpec, StandingNode
from solver.model.eligibility import why_not_eligible

MICROS = 1_000_000


def exact_micros(problem: ConsolidationProblem) -> tuple[int, ...]:
    """Return the least cost by weight, the lowest weight first, in millionths of $/h.

    Expects plain pods, and no limits, sizes, DaemonSets or gangs. Pods on kept nodes stay; all others may be on any
    node that stands and takes pods, on their own, or on new ones.
    """
    weights = sorted({group.weight for group in problem.node_groups})
    fixed: list[int] = []
    for position in range(len(weights)):
        model, costs = _model(problem, weights)
        for cost, value in zip(costs, fixed, strict=False):
            model.add(cost <= value)
        model.minimize(costs[position])
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        status = solver.solve(model)
        assert status == cp_model.OPTIMAL, solver.status_name(status)
        fixed.append(round(solver.objective_value))
    return tuple(fixed)


def _model(problem: ConsolidationProblem, weights: Sequence[int]) -> tuple[cp_model.CpModel, list[cp_model.LinearExpr]]:
    model = cp_model.CpModel()
    groups = {group.id: group for group in problem.node_groups}
    moving = [
        (index, each.spec)
        for index, standing in enumerate(problem.nodes)
        if standing.node_group and not standing.kept
        for each in standing.pods
        for _ in range(each.count)
    ]
    stays = [model.new_bool_var(f"{standing.node.name} stays") for standing in problem.nodes]
    for standing, stay in zip(problem.nodes, stays, strict=True):
        if standing.kept or not standing.node_group:
            model.add(stay == 1)
    new = [(group, model.new_bool_var(f"{group.id} {n}")) for group in problem.node_groups for n in range(len(moving))]
    for (one, first), (other, second) in pairwise(new):
        if one.id == other.id:
            model.add(first >= second)
    _place(model, problem, moving, stays, new)
    costs = []
    for weight in weights:
        terms = [
            _price(groups[standing.node_group]) * stay
            for standing, stay in zip(problem.nodes, stays, strict=True)
            if standing.node_group and groups[standing.node_group].weight == weight
        ]
        terms += [_price(group) * used for group, used in new if group.weight == weight]
        costs.append(cp_model.LinearExpr.sum(terms))
    return model, costs


def _place(
    model: cp_model.CpModel,
    problem: ConsolidationProblem,
    moving: Sequence[tuple[int, PodSpec]],
    stays: Sequence[cp_model.IntVar],
    new: Sequence[tuple[NodeGroup, cp_model.IntVar]],
) -> None:
    """Put every pod somewhere, where there is room."""
    onto: dict[tuple[int, int], cp_model.IntVar] = {}
    for pod, (home, spec) in enumerate(moving):
        for index, standing in enumerate(problem.nodes):
            if index == home or (standing.takes_pods and _fits(spec, standing)):
                onto[pod, index] = model.new_bool_var("")
        for index, (group, _) in enumerate(new, len(problem.nodes)):
            if why_not_eligible(spec, group.labels, group.taints) is None:
                onto[pod, index] = model.new_bool_var("")
        model.add_exactly_one(var for (p, _), var in onto.items() if p == pod)
    places = [*(_room(standing) for standing in problem.nodes), *(dict(group.allocatable) for group, _ in new)]
    opened = [*stays, *(used for _, used in new)]
    for index, (room, used) in enumerate(zip(places, opened, strict=True)):
        here = [(moving[p][1], var) for (p, at), var in onto.items() if at == index]
        for name, amount in room.items():
            need = sum(_need(spec).get(name, 0) * var for spec, var in here)
            model.add(need <= amount * used)


def _fits(spec: PodSpec, standing: StandingNode) -> bool:
    return why_not_eligible(spec, standing.node.labels, standing.node.taints, standing.node.name) is None


def _room(standing: StandingNode) -> dict[str, int]:
    """Return what the pods that may move have on the node."""
    room = Counter(dict(standing.node.free))
    if standing.node_group and not standing.kept:
        for each in standing.pods:
            for name, amount in _need(each.spec).items():
                room[name] += amount * each.count
    return dict(room)


def _need(spec: PodSpec) -> dict[str, int]:
    return {**dict(spec.requests), "pods": 1}


def _price(group: NodeGroup) -> int:
    return max(1, round(group.price_usd_per_hour * MICROS))
