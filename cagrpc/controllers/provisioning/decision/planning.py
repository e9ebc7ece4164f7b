"""Decides ProvisioningRequests: which are served whole, by which new nodes, and why others are not. Pure; `deciding`
orders, `controller` writes. `model` has the values, `selection` chooses who is served, `assignment` who gets what,
`reasons` explains the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cagrpc.cluster.drop_invalid import faults
from cagrpc.controllers.provisioning.decision.assignment import NewNode, together
from cagrpc.controllers.provisioning.decision.capacity import emptied, in_the_end, pods_of, without_faults
from cagrpc.controllers.provisioning.decision.model import Checked, Decisions, RequestPart, Scenario
from cagrpc.controllers.provisioning.decision.reasons import (
    short_of,
    shortages_of,
    why_left,
    why_never,
    why_short,
    would_be_served,
)
from cagrpc.controllers.provisioning.decision.selection import Choice, alone, assigned, choose
from cagrpc.controllers.provisioning.model import Candidate
from cagrpc.errors import in_one_line
from solver.model import Budget, Certificate, NodeGroup, Problem
from solver.model.budget import RunningBudget
from solver.model.plan import gap
from solver.reduction.objective import dollars

__all__ = ["MOST_AT_ONCE", "Checked", "Decisions", "RequestPart", "Scenario", "check", "decide"]

MOST_AT_ONCE = 128
"""Candidates that are decided together; others wait for the next time."""

log = logging.getLogger(__name__)

_CHOOSING_UNTIL = 0.85
"""The share of the budget for choosing; the rest is for reasons."""


def decide(
    candidates: Sequence[Candidate],
    scenario: Scenario,
    budget: Budget,
    *,
    advised: bool = True,
) -> Decisions:
    """Decide atomic requests: each whole or not at all, the highest priority first, then by turn, then the oldest. With
    `advised` the reasons include what would help."""
    scenario = without_faults(scenario)
    infeasible: dict[str, str] = {}
    ordered = []
    for candidate in sorted(candidates, key=_rank)[:MOST_AT_ONCE]:
        wrong = faults(Problem(tuple(pods_of([candidate]))))
        if wrong:
            infeasible[candidate.uid] = in_one_line(wrong)
        else:
            ordered.append(candidate)
    running = RunningBudget(budget)
    choice = choose(ordered, scenario, replace(running, until=_CHOOSING_UNTIL))
    parts: tuple[RequestPart, ...] = ()
    on_nodes: dict[str, tuple[str, ...]] = {}
    found = choice.found
    if found is not None:
        given = assigned(choice.served, found.plan)
        on_nodes = dict(given.on_nodes)
        groups = {group.id: group for group in scenario.groups}
        parts = tuple(_part(nodes, choice, groups, found.plan.certificate) for nodes in together(given.new))
    left, until, overtaken = {}, {}, set()
    for each in choice.left:
        never = "" if running.exhausted else _never(each.candidate, scenario, running, advised=advised)
        if never:
            infeasible[each.candidate.uid] = never
            continue
        waits_for = shortages_of(each, choice)
        if waits_for and would_be_served(each, choice, running):
            left[each.candidate.uid] = why_short(waits_for)
            until[each.candidate.uid] = min(shortage.until_seconds for shortage in waits_for)
        else:
            left[each.candidate.uid] = why_left(each, choice, running, waits_for, advised=advised)
        younger = any(_rank(each.candidate) < _rank(other) for other in choice.served)
        if younger and not running.exhausted and alone(in_the_end(scenario), each.candidate, running).serves_all:
            overtaken.add(each.candidate.uid)
    served = frozenset(candidate.uid for candidate in choice.served)
    return Decisions(parts, on_nodes, served, left, until, frozenset(overtaken), infeasible, choice.kept_for)


def _rank(candidate: Candidate) -> tuple[int, int, float, str]:
    return -candidate.priority, candidate.turn, candidate.created_at_seconds, candidate.uid


def _part(
    nodes: Sequence[NewNode], choice: Choice, groups: Mapping[str, NodeGroup], certificate: Certificate
) -> RequestPart:
    """Return one part. Its gap in dollars is no more than the whole plan's: any saving here would be one of the
    whole."""
    deltas = Counter(group_id for group_id, _ in nodes)
    owners = {uid for _, uids in nodes for uid in uids}
    cost = dollars(groups[group_id].price_usd_per_hour * count for group_id, count in deltas.items())
    too_much = certificate.cost_usd_per_hour - certificate.lower_bound_usd_per_hour
    bound = max(0.0, cost - too_much)
    return RequestPart(
        tuple(candidate.uid for candidate in choice.served if candidate.uid in owners),
        dict(sorted(deltas.items())),
        tuple(nodes),
        cost,
        bound,
        gap(cost, bound),
    )


def _never(candidate: Candidate, scenario: Scenario, budget: RunningBudget, *, advised: bool) -> str:
    """Return why it can never be served; empty where that is not proved."""
    scenario = emptied(scenario)
    found = alone(scenario, candidate, budget)
    return why_never(candidate, found, budget, advised=advised) if found.proves_it_cannot else ""


def check(candidate: Candidate, scenario: Scenario, budget: Budget) -> Checked:
    """Return whether all its pods fit on existing nodes, and where."""
    wrong = faults(Problem(tuple(pods_of([candidate]))))
    if wrong:
        return Checked(fits=False, message=in_one_line(wrong))
    scenario = replace(without_faults(scenario), groups=(), limits=())
    found = alone(scenario, candidate, RunningBudget(budget))
    if found.serves_all:
        pods = sum(each.count for each in candidate.pod_sets)
        names = tuple(sorted(placed.node for placed in found.plan.existing))
        return Checked(fits=True, message=f"{pods} of {pods} fit", nodes=names)
    return Checked(fits=False, message=short_of(found))
