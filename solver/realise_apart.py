"""Another choice of new nodes for the same pods: hard classes apart.

Pods that cost much on a node of their own are cheap in a plan only since smaller ones share their nodes. The scheduler
does not keep to that: it fills these nodes with the smaller ones. Here the easy classes are planned without them, and
the hard ones on nodes that are let go last, when mostly they are pending. `realise` tries several shares of pods and
takes the cheapest outcome.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.budgeting import Meter
from solver.model import PODS, PodSpec
from solver.realise_fleet import Fleet
from solver.realise_repair import pod_sets, repair_budget, repaired_by
from solver.reduce import Ints
from solver.rehearsal import Rehearsal, group_numbers
from solver.solve import solve

SHARES = (0.2, 0.35, 0.1, 0.05)
"""Of the pods that are claimed, those of the hardest classes; in the order in which they are tried."""


def apart(rehearsal: Rehearsal, share: float, meter: Meter) -> Fleet | None:
    """The new nodes with (about) this share of the pods apart. None where there is nothing to part, or to plan with."""
    hard = _hard(rehearsal, share)
    easy = rehearsal.claim - hard
    if not hard.any() or not easy.any():
        return None
    problem = replace(rehearsal.problem, pod_sets=pod_sets(rehearsal, easy), previous=None)
    budget = repair_budget(meter)
    plan = solve(problem, budget)
    meter.charge(budget.seconds)
    fleet = Fleet({}).more(plan.increments, group_numbers(problem), late=False)
    late = repaired_by(rehearsal, fleet, hard, meter)
    return fleet.more(late, group_numbers(problem), late=True) if late else None


def _hard(rehearsal: Rehearsal, share: float) -> Ints:
    """Per class its claimed pods where it is a hard one."""
    classes, claim = rehearsal.plan.pod_classes, rehearsal.claim
    hard, wanted = np.zeros_like(claim), share * float(claim.sum())
    dearest_first = sorted(classes, key=lambda cls: (-_alone(rehearsal, cls.index, cls.spec), cls.index))
    for cls in dearest_first:
        if hard.sum() >= wanted:
            break
        hard[cls.index] = claim[cls.index]
    return hard


def _alone(rehearsal: Rehearsal, who: int, spec: PodSpec) -> float:
    """What a pod of the class costs on nodes that have no others; 0 where no new node holds it."""
    costs = []
    for number, group in enumerate(rehearsal.problem.node_groups):
        if rehearsal.holds[number, who]:
            fit = min(group.allocatable.get(name, 0) // asked for name, asked in (*spec.requests, (PODS, 1)))
            costs.append(group.price_usd_per_hour / max(1, fit))
    return min(costs, default=0.0)
