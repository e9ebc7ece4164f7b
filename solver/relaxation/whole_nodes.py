"""The relaxation in which nodes are whole: all nodes of a kind share what they have, and pods take it in any parts.
Where two and a half nodes would do it sees that there have to be three, which no relaxation in fractions of nodes does:
of small problems, that is most of what these leave unproven.
"""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.objective import step_of
from solver.reduction.reduced import Ints, Reduced, most_per_node
from solver.relaxation.cp_sat import Model, new_solver, solve_within

MOST_ENTRIES, ENTRIES_A_SECOND = 8000, 8000
"""Pairs of kinds and rows, up to which CP-SAT mostly proves something, in all and in a second."""


def least_cost(
    reduced: Reduced, kinds: Ints, below_micros: int, floor_micros: int, budget: RunningBudget, fraction: float
) -> int:
    """Return what every plan costs that serves all pods with nodes of these kinds (of one tier), in millionths of $/h:
    `floor_micros`, which is proven already, or more; `below_micros` where none costs less than that. Pods have one row
    each, and no rules."""
    step = step_of(ObjectiveStage(Goal.COST, reduced.tiers[0]), reduced)
    model = Model()
    most = most_per_node(reduced, kinds)
    nodes = []
    served: list[list[cp_model.IntVar]] = [[] for _ in reduced.rows]
    for kind, alone in zip(kinds.tolist(), most, strict=True):
        of = reduced.kinds[kind]
        price = 0 if of.existing else of.price_micros
        affordable = of.most if not price else min(of.most, below_micros // price)
        opened = model.new_int_var(min(of.least, affordable), affordable, "")
        nodes.append((opened, price // step))
        rows = np.flatnonzero(alone)
        pods = [model.new_int_var(0, int(reduced.wanted[row]), "") for row in rows]
        for row, placed in zip(rows.tolist(), pods, strict=True):
            served[row].append(placed)
            if alone[row] < reduced.wanted[row]:
                model.add(placed <= int(alone[row]) * opened)
        for resource, amount in enumerate(of.free):
            taken = cp_model.LinearExpr.weighted_sum(pods, reduced.requests[rows, resource].tolist())
            model.add(taken <= amount * opened)
    for row in np.flatnonzero(reduced.wanted).tolist():
        if served[row]:
            model.add(cp_model.LinearExpr.sum(served[row]) >= int(reduced.wanted[row]))
    for limit, allowed in enumerate(reduced.limits):
        uses = [reduced.kinds[kind].use[limit] for kind in kinds.tolist()]
        model.add(cp_model.LinearExpr.weighted_sum([opened for opened, _ in nodes], uses) <= allowed)
    cost = cp_model.LinearExpr.weighted_sum([opened for opened, _ in nodes], [price for _, price in nodes])
    model.add_linear_constraint(cost, -(-floor_micros // step), below_micros // step - 1)
    model.minimize(cost)
    solver = new_solver()
    solver.parameters.linearization_level = 2
    status = solve_within(model, solver, budget, budget.left_seconds(fraction))
    if status == cp_model.INFEASIBLE:
        return below_micros
    return max(floor_micros, int(-(-solver.best_objective_bound // 1)) * step)
