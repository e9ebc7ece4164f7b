"""What other plans would cost: without each group that was chosen, with one node of the best group of each tier that
was not, and without the sizes and limits that shape the plan; and how one plan differs from another, as JSON (an
interface, written out field by field) and in words. What keeps pods out is `unserved`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from solver.explanation.capacity import LIMIT, MAX_SIZE
from solver.explanation.kinds import apply, reason
from solver.explanation.model import Alternative, ConstraintChange, Difference, WhyGroup, WhyLimited
from solver.explanation.question import LARGEST_SHARE
from solver.model import PODS, NodeGroup, NodeGroupIncrease, Plan, Problem, Status
from solver.model.budget import Budget, RunningBudget
from solver.model.capacity import fits, new_node
from solver.model.money import DUST_USD_PER_HOUR, hourly, more_or_less
from solver.model.quantities import pluralize
from solver.planning.solve import solve

_DUST_USD = 1e-9


def why_group(problem: Problem, plan: Plan, increment: NodeGroupIncrease, budget: RunningBudget) -> WhyGroup:
    """Plan again without the group, and once per tier with a node of the best group that was not chosen."""
    groups = {group.id: group for group in problem.node_groups}
    mine = groups[increment.node_group]
    forbidden = _resized(problem, replace(mine, min_size=0, max_size=max(0, min(mine.target_size, mine.max_size))))
    without = difference(plan, solve(forbidden, budget.next_plan(LARGEST_SHARE)))
    others = []
    for other in _candidates(problem, plan, mine):
        if budget.exhausted:
            break
        forced = solve(
            _resized(problem, replace(other, min_size=max(other.min_size, other.target_size + 1))),
            budget.next_plan(LARGEST_SHARE),
        )
        opened = any(each.node_group == other.id for each in forced.increments)
        others.append(
            Alternative(other.id, other.weight, other.price_usd_per_hour, difference(plan, forced) if opened else None)
        )
    cost = round(increment.delta * mine.price_usd_per_hour, 9)
    return WhyGroup(mine.id, increment.delta, mine.weight, cost, without, tuple(others))


def difference(plan: Plan, other: Plan) -> Difference:
    """Return what `other` has more than `plan` of everything that is minimised. Both are of the same pods and tiers."""
    tiers = {tier.weight: -tier.cost_usd_per_hour for tier in plan.certificate.tiers}
    for tier in other.certificate.tiers:
        tiers[tier.weight] = tiers.get(tier.weight, 0.0) + tier.cost_usd_per_hour
    before, after = _unserved(plan), _unserved(other)
    now = {increment.node_group: -increment.delta for increment in plan.increments}
    for increment in other.increments:
        now[increment.node_group] = now.get(increment.node_group, 0) + increment.delta
    return Difference(
        after[False] - before[False],
        after[True] - before[True],
        tuple((weight, _clean(cost)) for weight, cost in sorted(tiers.items())),
        _clean(math.fsum(tiers.values())),
        tuple(NodeGroupIncrease(group_id, delta) for group_id, delta in sorted(now.items()) if delta),
        all(each.certificate.status is not Status.FEASIBLE for each in (plan, other)),
    )


def _clean(cost: float) -> float:
    return round(cost, 9) if abs(cost) > _DUST_USD else 0.0


def _unserved(plan: Plan) -> Counter[bool]:
    """Return unserved pods: real ones under False, placeholders under True."""
    counts: Counter[bool] = Counter()
    for each in plan.unplaced:
        counts[plan.pod_classes[each.pod_class].placeholder] += each.count
    return counts


def _resized(problem: Problem, group: NodeGroup) -> Problem:
    groups = tuple(group if each.id == group.id else each for each in problem.node_groups)
    return replace(problem, node_groups=groups)


def _candidates(problem: Problem, plan: Plan, mine: NodeGroup) -> Iterator[NodeGroup]:
    """Yield, per tier, highest first, the group that would serve the most of the pods on `mine` at the lowest price, of
    those that were not chosen and can grow."""
    chosen = {increment.node_group for increment in plan.increments}
    pods: Counter[int] = Counter()
    for nodes in plan.nodes:
        if nodes.node_group == mine.id:
            pods.update({index: count * nodes.count for index, count in nodes.pods.items()})
    best: dict[int, tuple[tuple[int, float, str], NodeGroup]] = {}
    for group in problem.node_groups:
        if group.id in chosen or group.target_size >= group.max_size:
            continue
        fitting = {index: count for index, count in pods.items() if may_hold(problem, plan, group, index)}
        if fitting:
            worth = (-sum(fitting.values()), _price(problem, plan, group, fitting), group.id)
            if group.weight not in best or worth < best[group.weight][0]:
                best[group.weight] = (worth, group)
    yield from (best[weight][1] for weight in sorted(best, reverse=True))


def may_hold(problem: Problem, plan: Plan, group: NodeGroup, index: int) -> bool:
    """Return whether a new node of the group has room for a pod of the class."""
    return fits(plan.pod_classes[index].spec, new_node(group, problem.daemon_sets))


def _price(problem: Problem, plan: Plan, group: NodeGroup, pods: Mapping[int, int]) -> float:
    """Return the price of as many nodes as the pods need of their scarcest resource."""
    free = new_node(group, problem.daemon_sets).free
    load: Counter[str] = Counter()
    for index, count in pods.items():
        for name, amount in ((PODS, 1), *plan.pod_classes[index].spec.requests):
            load[name] += amount * count
    return group.price_usd_per_hour * max(-(-amount // free[name]) for name, amount in load.items() if amount)


def by_cost(problem: Problem, plan: Plan) -> list[NodeGroupIncrease]:
    """Return the increments of a plan in the order in which they are explained: the most expensive first."""
    price = {group.id: group.price_usd_per_hour for group in problem.node_groups}
    return sorted(plan.increments, key=lambda i: (-i.delta * price[i.node_group], i.node_group))


_MOST_NAMED = 3


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return what another plan has more."""
    return {
        "unserved": difference.unserved,
        "placeholders": difference.placeholders,
        "cost_per_hour": difference.cost_usd_per_hour,
        "tiers": [{"weight": weight, "cost_per_hour": cost} for weight, cost in difference.tiers],
        "increments": [{"node_group": each.node_group, "delta": each.delta} for each in difference.increments],
        "proven": difference.proven,
    }


def limited_json(limited: WhyLimited) -> dict[str, Any]:
    """Return sizes and limits that shape a plan, and what it would be without them."""
    return {
        "constraints": [
            {"kind": each.kind, "subject": each.subject, "key": each.key, "amount": each.before, "text": reason(each)}
            for each in limited.changes
        ],
        "without": difference_json(limited.without),
        "lower_bound_without": limited.lower_bound_usd_per_hour,
        "text": limited_words(limited),
    }


def limited_words(limited: WhyLimited) -> str:
    """Describe what shapes a plan, and what that costs."""
    rest = len(limited.changes) - _MOST_NAMED
    named = ", ".join(reason(each) for each in limited.changes[:_MOST_NAMED])
    more = f" and {pluralize(rest, 'more size or limit', 'more sizes and limits')}" if rest > 0 else ""
    them = "it" if len(limited.changes) == 1 else "them"
    least = limited.lower_bound_usd_per_hour
    bound = (
        f"no bound on the cost without {them} is proven yet"
        if least is None
        else f"no plan without {them} that serves as much costs less than {hourly(least)}"
    )
    return f"limited: {named}{more}; without {them}, {difference_words(limited.without)}; {bound}"


def difference_words(difference: Difference) -> str:
    """Describe what decides between two plans, what that costs in all, and the nodes that are most different."""
    if difference.unserved or difference.placeholders:
        pods = difference.unserved or difference.placeholders
        what = f"{'fewer' if pods > 0 else 'more'} {'pod' if difference.unserved else 'placeholder'}"
        words = f"{pluralize(abs(pods), what)} {'is' if abs(pods) == 1 else 'are'} served"
    else:
        changed = [(weight, cost) for weight, cost in difference.tiers if abs(cost) >= DUST_USD_PER_HOUR]
        words = "it would cost the same"
        if changed:
            words = f"it would cost {more_or_less(difference.cost_usd_per_hour)}"
        if len(changed) > 1:
            weight, cost = changed[0]
            words += f", with {more_or_less(cost)} of weight {weight}, which decides"
    most = sorted(difference.increments, key=lambda each: (-abs(each.delta), each.node_group))[:_MOST_NAMED]
    nodes = ", ".join(f"{each.delta:+d} {each.node_group}" for each in most)
    rest = len(difference.increments) - len(most)
    nodes += f", and {pluralize(rest, 'other node group')}" if rest else ""
    unproven = "" if difference.proven else "; as far as was found in the time"
    return f"{words} ({nodes}{unproven})" if nodes else words


_MOST_ALONE = 5


def can_bind(problem: Problem) -> bool:
    """Return whether there is a maximum size or a limit that a plan could use up."""
    return bool(problem.limits) or any(True for _ in MAX_SIZE.find(problem, ()))


def reached(problem: Problem, plan: Plan) -> tuple[ConstraintChange, ...]:
    """Return the maximum sizes and limits that a plan has used up, as the changes that remove them: with none of these,
    nothing but prices and pods shapes it."""
    return (*_sizes(problem, plan), *_limits(problem, plan))


def _sizes(problem: Problem, plan: Plan) -> Iterator[ConstraintChange]:
    groups = {group.id: group for group in problem.node_groups}
    deltas = {each.node_group: each.delta for each in plan.increments}
    for change in MAX_SIZE.find(problem, ()):
        group = groups[change.subject]
        full = group.target_size + deltas.get(group.id, 0) >= group.max_size
        if full and any(may_hold(problem, plan, group, each.index) for each in plan.pod_classes):
            yield change


def _limits(problem: Problem, plan: Plan) -> Iterator[ConstraintChange]:
    opened = {each.node_group for each in plan.increments}
    limits = {limit.name: limit for limit in problem.limits}
    for change in LIMIT.find(problem, ()):
        bounds = limits[change.subject].node_groups
        bounded = [group for group in problem.node_groups if bounds is None or group.id in bounds]
        used = LIMIT.reached(change, problem, plan)
        assert used is not None
        assert change.before is not None
        left, of_opened = change.before - used, [group for group in bounded if group.id in opened]
        if left < max(_one_more(of_opened, change.key), min(filter(None, _counted(bounded, change.key)), default=0)):
            yield change


def _counted(groups: Sequence[NodeGroup], resource: str) -> Iterator[int]:
    return (group.counted_capacity.get(resource, 0) for group in groups)


def _one_more(groups: Sequence[NodeGroup], resource: str) -> int:
    return max(_counted(groups, resource), default=0)


def without(problem: Problem, plan: Plan, changes: Sequence[ConstraintChange], budget: Budget) -> WhyLimited | None:
    """Return what the plan would be without these; None where it would serve as much for as much."""
    freed = apply(replace(problem, previous=plan), changes)
    other = solve(freed, budget)
    found = difference(plan, other)
    if not (found.unserved or found.placeholders or any(cost for _, cost in found.tiers)):
        return None
    if _is_worse(plan, other):  # there was too little time to find as good a plan
        return None
    return WhyLimited(tuple(changes), found, other.certificate.least_usd_per_hour)


def _is_worse(plan: Plan, other: Plan) -> bool:
    """Return whether the other plan, of fewer constraints, is worse at the first stage in which they differ."""
    theirs = {each.stage: each.value for each in other.objective}
    for mine in plan.objective:
        value = theirs.get(mine.stage, mine.value)
        if abs(value - mine.value) > 1e-9:
            return value > mine.value
    return False


def why_limited(problem: Problem, plan: Plan, budget: RunningBudget, share: float) -> tuple[WhyLimited, ...]:
    """Return what all that is reached costs together, and then each alone that costs something, as far as there is
    time."""
    changes = reached(problem, plan)
    asked = [changes, *([each] for each in changes[:_MOST_ALONE])] if len(changes) > 1 else [changes] if changes else []
    found: list[WhyLimited] = []
    for together in asked:
        if budget.exhausted or (len(together) == 1 < len(changes) and not found):
            break
        if (why := without(problem, plan, together, budget.next_plan(share))) is not None:
            found.append(why)
    return tuple(found)
