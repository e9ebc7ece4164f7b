"""The reserve of a plan: nodes that are ordered with it, and let go only for pods that would stay pending; others are
given back. Sized here, by what the scheduler leaves over in simulation; which of them are let go in the end is said
when it is known who is left over.

Repairing a plan until everything lands under every order of pods costs more than any one order needs. A reserve is as
large as the worst of them asks for, and costs for good what the one that came true does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.budgeting import Meter
from solver.model import Budget, Increment, NodeGroup, Problem
from solver.realise_fleet import PLANNED, Fleet, Slot
from solver.realise_repair import repair_budget, repaired_by, rest
from solver.reduce import Ints
from solver.rehearsal import NOMINAL, Rehearsal, group_numbers
from solver.scheduler import Scenario
from solver.solve import solve

_TRIES = 4
"""After a layer the scheduler is looked at so often at most, and nodes are added for what it has left over."""
_PLANNING_SHARE = 0.01
"""Of the time that is left, for planning these."""
_HELD = "/held"
_REVIEWED = 8
"""Scenarios that the reserve has not been sized for, and that it must do for, too."""


def reserved(rehearsal: Rehearsal, planned: Fleet, meter: Meter) -> tuple[Fleet, Fleet]:
    """The planned nodes with those of the reserve that are needed in the nominal scenario; and the rest of the
    reserve, as far as maximum sizes and limits have room for it."""
    number = group_numbers(rehearsal.problem)
    last = max(rehearsal.layers(planned).values(), default=0)
    told = _staged(rehearsal, planned, NOMINAL, meter)
    for _ in range(_TRIES):  # simulated as a whole it may come out otherwise
        missing = rehearsal.missing(told, NOMINAL)
        if not missing.any() or meter.left_seconds() <= 0:
            break
        told = told.more(repaired_by(rehearsal, told, missing, meter), number, last)
    most = told.deltas()
    for scenario in rehearsal.scenarios:
        if meter.left_seconds() <= 0:
            break
        if scenario != NOMINAL:
            most |= _staged(rehearsal, planned, scenario, meter).deltas()
    whole = _with(rehearsal.problem, told, most - told.deltas(), last)
    for _ in range(_REVIEWED):
        scenario = rehearsal.fresh()
        if meter.left_seconds() > 0 and (missing := rehearsal.missing(whole, scenario)).any():
            rehearsal.scenarios.append(scenario)
            whole = whole.more(repaired_by(rehearsal, whole, missing, meter), number, last)
    return told, Fleet({slot: more for slot, n in whole.nodes.items() if (more := n - told.nodes.get(slot, 0))})


def _staged(rehearsal: Rehearsal, planned: Fleet, scenario: Scenario, meter: Meter) -> Fleet:
    """With what this scenario needs of a reserve, layer after layer."""
    layers, problem = rehearsal.layers(planned), rehearsal.problem
    number = group_numbers(problem)
    whole, before, held = planned, Fleet({}), np.zeros((0, 3), dtype=np.int64)
    for layer in range(max(layers.values(), default=0) + 1):
        # Nodes for pods that only later layers have nodes for come no sooner: they would take what others need now.
        so_far = [group for group, at in layers.items() if at <= layer]
        beyond = (
            (rehearsal.claim > 0) & rehearsal.holds[list(layers)].any(axis=0) & ~rehearsal.holds[so_far].any(axis=0)
        )
        for _ in range(_TRIES):
            now = Fleet({s: n for s, n in whole.nodes.items() if s.stage != PLANNED or layers[s.group] <= layer})
            outcome = rehearsal.went_on(now, scenario, _renumbered(held, before, now, len(problem.nodes)))
            before, held = now, outcome.rows()
            missing: Ints = np.maximum(0, rehearsal.claim - outcome.landed)
            if not missing.any() or meter.left_seconds() <= 0:
                break
            later = [(problem.node_groups[n], count) for n, count in (whole.deltas() - now.deltas()).items()]
            budget = repair_budget(meter, _PLANNING_SHARE)
            asked = rest(rehearsal, whole, missing)
            may = [g for n, g in enumerate(asked.node_groups) if not (rehearsal.holds[n] & beyond).any()]
            more = needed(replace(asked, node_groups=tuple(may)), later, budget)
            meter.charge(budget.seconds)
            if not more:
                break
            whole = whole.more(more, number, layer)
    return whole


def needed(problem: Problem, held: Sequence[tuple[NodeGroup, int]], budget: Budget) -> tuple[Increment, ...]:
    """What the problem's pods need of its node groups, beside so many nodes of groups that are held still and cost
    nothing more. Of these groups nothing else is asked for: pods that they are held for would go there first. Raises
    `solver.errors.ProblemError` for what cannot be meant."""
    held_back = {group.id for group, _ in held}
    groups = tuple(group for group in problem.node_groups if group.id not in held_back)
    named = frozenset(group.id for group in groups)
    free = [
        replace(group, id=group.id + _HELD, price_usd_per_hour=0.0, target_size=0, min_size=0, max_size=count)
        for group, count in held
    ]
    limits = tuple(
        replace(each, node_groups=named if each.node_groups is None else each.node_groups) for each in problem.limits
    )
    plan = solve(replace(problem, node_groups=(*groups, *free), limits=limits), budget)
    return tuple(each for each in plan.increments if each.node_group in named)


def _renumbered(held: Ints, before: Fleet, now: Fleet, standing: int) -> Ints:
    """Rows (class, node, pods) of the nodes of a fleet, for another that has all of these, and more; with what is bound
    to the new ones."""
    old, new = before.first_of_slot(standing), now.first_of_slot(standing)
    moved = np.arange(standing + before.total, dtype=np.int64)
    for slot, first in old.items():
        moved[first : first + before.nodes[slot]] += new[slot] - first
    rows = held.copy()
    rows[:, 1] = moved[held[:, 1]]
    fresh = now.bound(standing)
    return np.concatenate([rows, fresh[~np.isin(fresh[:, 1], moved[standing:])]])


def _with(problem: Problem, fleet: Fleet, more: Counter[int], stage: int) -> Fleet:
    """With as many of these nodes, per group, as may be; the cheapest groups first."""
    for number in sorted(more, key=lambda n: (problem.node_groups[n].price_usd_per_hour, n)):
        count = next((n for n in range(more[number], 0, -1) if _allowed(problem, fleet, number, n)), 0)
        if count:
            fleet = fleet.changed(Slot(number, stage), count)
    return fleet


def _allowed(problem: Problem, fleet: Fleet, number: int, more: int) -> bool:
    """Whether the group's maximum size and the limits have room for so many nodes more."""
    groups, deltas = problem.node_groups, fleet.deltas()
    deltas[number] += more
    if groups[number].target_size + deltas[number] > groups[number].max_size:
        return False
    for limit in problem.limits:
        bounded = [n for n in deltas if limit.node_groups is None or groups[n].id in limit.node_groups]
        for name, most in limit.maxima.items():
            added = sum(groups[n].counted_capacity.get(name, 0) * deltas[n] for n in bounded)
            if number in bounded and added and limit.used.get(name, 0) + added > most:
                return False
    return True
