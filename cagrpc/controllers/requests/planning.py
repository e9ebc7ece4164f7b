"""ProvisioningRequests decided: which are served whole, by which new nodes, and why others are not. Pure; the `loop`
orders and writes. `world` has the values, `choosing` says who is served, `handing` who gets what, `reasons` why not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cagrpc.controllers.requests.choosing import Attempt, Choice, Purse, alone, choose, handed, largest_part
from cagrpc.controllers.requests.handing import NewNode, together
from cagrpc.controllers.requests.model import Candidate
from cagrpc.controllers.requests.reasons import short_of, why_left, why_never
from cagrpc.controllers.requests.world import Checked, Decisions, Part, World
from cagrpc.controllers.requests.worlds import emptied, in_the_end, pods_of, without_faults
from cagrpc.controllers.sound import faults
from cagrpc.fleet.model import LARGEST_INCREMENT
from solver.budgeting import Meter
from solver.errors import PlanRejectedError
from solver.model import Budget, Certificate, NodeGroup, Problem
from solver.objectives import dollars
from solver.realise import realise
from solver.scheduler import Profile

__all__ = ["MOST_AT_ONCE", "Checked", "Decisions", "Part", "World", "check", "decide"]

MOST_AT_ONCE = 64
"""Candidates that are decided together; others wait for the next time."""

log = logging.getLogger(__name__)

_CHOOSING_UNTIL = 0.7
"""Of the time; then,"""
_REALISING_SHARE = 0.15
"""for what the scheduler will make of it, and the rest for reasons."""
_MOST_SIMULATED = 2_000_000
"""Pods times nodes, up to which the scheduler is simulated."""


def decide(
    candidates: Sequence[Candidate],
    world: World,
    budget: Budget,
    *,
    profile: Profile | None = None,
    realised: bool = True,
    advised: bool = True,
) -> Decisions:
    """Atomic requests: each whole or not at all, the highest priority first, then the oldest. `profile` is the
    cluster's scheduler; with `realised` the plan has what it takes on top that the pods land where there is room, as
    far as that can be simulated; with `advised` reasons say what would help."""
    world = without_faults(world)
    hopeless: dict[str, str] = {}
    ordered = []
    for candidate in sorted(candidates, key=_rank)[:MOST_AT_ONCE]:
        wrong = faults(Problem(tuple(pods_of([candidate]))))
        if wrong:
            hopeless[candidate.uid] = "; ".join(wrong)
        else:
            ordered.append(candidate)
    meter = Meter(budget)
    choice = choose(ordered, world, Purse(meter, _CHOOSING_UNTIL))
    parts: tuple[Part, ...] = ()
    on_nodes: dict[str, tuple[str, ...]] = {}
    found = choice.found
    if found is not None:
        if realised:
            found = _realised(found, choice, Purse(meter).part(_REALISING_SHARE), profile)
        given = handed(choice.served, found.plan)
        on_nodes = dict(given.on_nodes)
        groups = {group.id: group for group in world.groups}
        parts = tuple(_part(nodes, choice, groups, found.plan.certificate) for nodes in together(given.new))
    left, overtaken, purse = {}, set(), Purse(meter)
    for each in choice.left:
        never = "" if purse.empty else _never(each.candidate, world, purse, advised=advised)
        if never:
            hopeless[each.candidate.uid] = never
            continue
        left[each.candidate.uid] = why_left(each, choice, purse, advised=advised)
        younger = any(_rank(each.candidate) < _rank(other) for other in choice.served)
        if younger and not purse.empty and alone(in_the_end(world), each.candidate, purse).serves_all:
            overtaken.add(each.candidate.uid)
    served = frozenset(candidate.uid for candidate in choice.served)
    return Decisions(parts, on_nodes, served, left, frozenset(overtaken), hopeless)


def _rank(candidate: Candidate) -> tuple[int, float, str]:
    return -candidate.priority, candidate.created_at_seconds, candidate.uid


def _realised(found: Attempt, choice: Choice, budget: Budget, profile: Profile | None) -> Attempt:
    """With the nodes on top that the scheduler needs to bind all pods, where that is found."""
    problem, plan = found.problem, found.plan
    pods = sum(each.count for each in plan.pod_classes)
    if pods * (len(problem.nodes) + found.new_nodes) > _MOST_SIMULATED:
        return found
    try:
        made = realise(problem, plan, budget, profile, waves=1)
    except PlanRejectedError as error:  # the plan as it is is sound
        log.warning("requests are served as planned, for the simulation of the scheduler failed: %.500s", error)
        return found
    repaired = Attempt(problem, made.plan)
    # A node that is only needed if chance has it would be nobody's: it gets the labels of those it is planned for.
    for_all = all(nodes.pods for nodes in made.plan.nodes)
    good = made.repairs and repaired.serves_all and largest_part(choice.served, repaired) <= LARGEST_INCREMENT
    return repaired if good and for_all else found


def _part(nodes: Sequence[NewNode], choice: Choice, groups: Mapping[str, NodeGroup], certificate: Certificate) -> Part:
    """Whatever would be saved here would be saved of the whole, so no more than the whole may have too much."""
    deltas = Counter(group_id for group_id, _ in nodes)
    owners = {uid for _, uids in nodes for uid in uids}
    cost = dollars(groups[group_id].price_usd_per_hour * count for group_id, count in deltas.items())
    too_much = certificate.cost_usd_per_hour - certificate.lower_bound_usd_per_hour
    bound = max(0.0, cost - too_much)
    return Part(
        tuple(candidate.uid for candidate in choice.served if candidate.uid in owners),
        dict(sorted(deltas.items())),
        tuple(nodes),
        cost,
        bound,
        (cost - bound) / cost if cost else 0.0,
    )


def _never(candidate: Candidate, world: World, purse: Purse, *, advised: bool) -> str:
    """Why it can never be served; empty where that is not certain."""
    world = emptied(world)
    found = alone(world, candidate, purse)
    return why_never(candidate, found, purse, advised=advised) if found.proves_it_cannot else ""


def check(candidate: Candidate, world: World, budget: Budget) -> Checked:
    """Whether all its pods fit on nodes that stand, and where."""
    wrong = faults(Problem(tuple(pods_of([candidate]))))
    if wrong:
        return Checked(fits=False, message="; ".join(wrong))
    world = replace(without_faults(world), groups=(), limits=())
    found = alone(world, candidate, Purse(Meter(budget)))
    if found.serves_all:
        pods = sum(each.count for each in candidate.pod_sets)
        names = tuple(sorted(placed.node for placed in found.plan.existing))
        return Checked(fits=True, message=f"{pods} of {pods} fit", nodes=names)
    return Checked(fits=False, message=short_of(found))
