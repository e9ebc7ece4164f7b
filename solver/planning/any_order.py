"""Plans that hold in whatever order the scheduler binds their pods.

Serving comes before cost, and a pod that some orders leave without a node is not served for sure: a plan with such pods
is given up for one that has a node or two more, if that serves as many, each in any order. No node is ordered to stand
empty for an unlucky one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement, islice

from solver.model import NodeGroup, Plan, PodSpec, Problem
from solver.model.budget import RunningBudget
from solver.model.capacity import fits, new_node, room_of
from solver.model.errors import UncheckedPlanError
from solver.model.objective import Goal
from solver.planning.own_way import is_played, left_without_node, with_risks
from solver.planning.write_plan import best_of, bounded_by
from solver.verify.check import check

_MOST_NODES, _MOST_TRIED = 2, 12
"""Nodes more than the plan has, and how many such plans are made."""
_SHARE = 0.1
"""Of the budget, for each of them."""
_TIMES = 5
"""As many orders are played with these as with the plan: of many tried one may hold in some by luck."""
_SERVING = (Goal.UNSERVED, Goal.WAITING)


def for_any_order(
    problem: Problem, plan: Plan, search: Callable[[Problem, RunningBudget], Plan], budget: RunningBudget
) -> Plan:
    """Return the plan if it holds in each order that is played and leaves nobody out whom terms between pods or spreads
    concern and who might be served, or else the best one found that does, and serves more where that is the fault; the
    plan with the pods that may get stuck where there is none. `search` returns a plan of a problem that is like this
    one."""
    risks = left_without_node(problem, plan)
    left = _might_be_served(plan)
    if not risks and (not left or not is_played(problem, plan)):
        return plan
    wanting = [*(plan.pod_classes[index].spec for index in risks), *left]
    found: list[Plan] = []
    for more in islice(_more_nodes(problem, plan, wanting), _MOST_TRIED):
        seconds = _SHARE * budget.total_seconds
        if budget.exhausted or budget.left_seconds() < seconds or (found and more.total() > 1):
            break
        budget.charge(seconds)
        other = search(_with_nodes(problem, plan, more), RunningBudget(budget.next_plan(_SHARE)))
        as_good = _served(other) <= _served(plan) if risks else _served(other) < _served(plan)
        if as_good and _empty(other) <= _empty(plan) and not left_without_node(problem, other, times=_TIMES):
            found += _checked(problem, bounded_by(other, plan))
    if not found:
        return with_risks(plan, risks) if risks else plan
    return replace(best_of(found), elapsed_seconds=budget.elapsed_seconds())


def _might_be_served(plan: Plan) -> list[PodSpec]:
    if not plan.certificate.unserved_unproven:
        return []
    left = (plan.pod_classes[each.pod_class].spec for each in plan.unplaced)
    return [spec for spec in left if spec.topology_spread or spec.pod_affinity or spec.pod_anti_affinity]


def _checked(problem: Problem, plan: Plan) -> list[Plan]:
    try:
        check(problem, plan)
    except UncheckedPlanError:
        return []
    return [plan]


def _served(plan: Plan) -> list[float]:
    return [each.value for each in plan.objective if each.stage.goal in _SERVING]


def _empty(plan: Plan) -> int:
    return sum(each.count for each in plan.nodes if not each.pods)


def _more_nodes(problem: Problem, plan: Plan, specs: Iterable[PodSpec]) -> Iterator[Counter[str]]:
    """Yield nodes that take a pod of these, by group: few before many, of higher weights and cheap ones first."""
    opened = {each.node_group: each.delta for each in plan.increments}
    rooms = {each.id: room_of(each, problem.limits)[0] - opened.get(each.id, 0) for each in problem.node_groups}
    wanted = [*dict.fromkeys(specs)]
    taking = [each for each in problem.node_groups if rooms[each.id] > 0 and _takes_one(problem, each, wanted)]
    taking.sort(key=lambda each: (-each.weight, each.price_usd_per_hour, each.id))
    for nodes in range(1, _MOST_NODES + 1):
        for groups in combinations_with_replacement(taking, nodes):
            more = Counter(each.id for each in groups)
            if all(count <= rooms[name] for name, count in more.items()):
                yield more


def _takes_one(problem: Problem, group: NodeGroup, specs: Iterable[PodSpec]) -> bool:
    node = new_node(group, problem.daemon_sets)
    return any(fits(spec, node) for spec in specs)


def _with_nodes(problem: Problem, plan: Plan, more: Mapping[str, int]) -> Problem:
    """Return the problem with minimum sizes that ask for the nodes of the plan and for these."""
    opened = {each.node_group: each.delta for each in plan.increments}

    def with_minimum(group: NodeGroup) -> NodeGroup:
        nodes = group.target_size + opened.get(group.id, 0) + more[group.id]
        return replace(group, min_size=max(group.min_size, nodes))

    groups = (with_minimum(each) if each.id in more else each for each in problem.node_groups)
    return replace(problem, node_groups=tuple(groups))
