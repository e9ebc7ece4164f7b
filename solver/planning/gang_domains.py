"""Gangs that ask for one topology domain: which one each gets, decided for all of them at once before any pod has a
place.

The search places pods, and learns late that a gang's pods have to be together. So domains are chosen by a smaller
problem, in which a domain is a number of nodes of each group with their resources in one sum (`domain_supply`): it
serves the gangs of the highest priority, then costs the least, then begins the fewest domains that are empty, so that
large gangs find whole ones later (`domain_choice`). Its answer is planned like any other problem, of pods that may run
in these domains only, and the better plan is taken. What the smaller problem proves of the domains that are begun holds
for all plans, as it forbids nothing that a plan may do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from solver.model import (
    HOSTNAME,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    Plan,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Unplaced,
)
from solver.model.budget import RunningBudget
from solver.model.domains import MOST_NEW_DOMAINS, folded, gang_terms, wished_domains, with_new_domains
from solver.model.eligibility import selects
from solver.model.errors import UncheckedPlanError
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.planning.domain_choice import ChosenDomains, DomainModel, can_be_modelled, of_first
from solver.planning.domain_supply import Domains, GangDomains
from solver.planning.first_domains import FirstDomains
from solver.planning.packed_domains import packed_as_chosen
from solver.planning.progress import SILENT, SearchProgress
from solver.planning.reasons import with_reasons
from solver.planning.settling import settled
from solver.planning.spares import with_spares
from solver.planning.write_plan import as_asked, certified
from solver.reduction.objective import breaks_ties
from solver.reduction.work import one_for_each, told_apart
from solver.verify.check import faults_of

_APART_SHARE, _IMPROVE_SHARE, _CHOOSE_SHARE, _AGAIN_SHARE = 0.1, 0.15, 0.25, 0.1
"""Of the time: for a plan of gangs that need not be together; for improving a first choice of domains; for choosing
them, the first time and again."""
_FIRST_PLAN_SHARE, _PLAN_SHARE, _SEARCH_SHARE, _BOUND_SHARE = 0.3, 0.1, 0.3, 0.05
"""Of the time: for the first plan with chosen domains and each further one; for the problem as it is; for a bound of
domains that are begun."""
_MOST_CHOICES = 3
"""Plans with chosen domains: what the smaller problem took to fit and a plan does not is forbidden in the next."""
_TOLERANCE = 1e-9
_NO_DOMAIN = "no topology domain was found for its gang"
"""Of the smaller problem alone: plans that are handed out have their own reasons."""


Search = Callable[[Problem, RunningBudget, SearchProgress], Plan]


def _pinned(of: GangDomains, choice: ChosenDomains) -> tuple[Problem, dict[PodSpec, PodSpec]]:
    """Return the problem of pods that may run in the domains that are chosen for them only, and ask for no company; and
    the specs that are asked for, by those that are planned instead."""
    asking = frozenset(of.asking)
    before = {each.spec: each.spec for each in of.problem.pod_sets if each.spec not in asking}
    unit_of = {pod_set: number for number in choice.units for pod_set in of.units[number].pod_sets}
    found: list[PodSet] = []
    for number, pods in enumerate(of.problem.pod_sets):
        pinned: list[tuple[tuple[Requirement, ...], int]] = []
        if number in unit_of:
            here = tuple(Requirement(key, Operator.IN, (value,)) for key, value in choice.units[unit_of[number]])
            pinned.append((here, pods.count))
        for site, count in choice.split.get(number, {}).items():
            here = tuple(
                Requirement(key, Operator.DOES_NOT_EXIST) if value is None else Requirement(key, Operator.IN, (value,))
                for key, value in zip(of.keys, site, strict=True)
            )
            pinned.append((here, count))
        parts = [([there], count) for there, count in pinned]
        left = pods.count - sum(count for _, count in pinned)
        if pinned and left:  # in no further domain, where they could take the room of others
            parts.append(([there for there, _ in pinned], left))
        planned = [(_only_in(pods.spec, sites), count) for sites, count in parts]
        for spec, count in planned or [(_without_domain(of, number), pods.count)]:
            found.append(replace(pods, spec=told_apart(spec, pods.spec, before), count=count))
    groups = (
        replace(group, max_size=_most_beside_spares(group, choice.opened.get(number, 0)))
        for number, group in enumerate(of.problem.node_groups)
    )
    return replace(of.problem, pod_sets=tuple(found), node_groups=tuple(groups)), before


def _without_domain(of: GangDomains, number: int) -> PodSpec:
    """Return what is planned for a pod set that gets no domain: one that asks for a domain waits."""
    spec = of.problem.pod_sets[number].spec
    if number not in of.pod_sets:
        return spec
    return _apart(spec) if number in of.wishing else replace(_apart(spec), unschedulable=_NO_DOMAIN)


def _most_beside_spares(group: NodeGroup, opened: int) -> int:
    """Return how many nodes the group may have for pods where so many are opened for gangs."""
    return max(group.target_size + opened, group.max_size - group.spares) if opened else group.max_size


def _only_in(spec: PodSpec, there: Sequence[tuple[Requirement, ...]]) -> PodSpec:
    return replace(_apart(spec), node_terms=(*spec.node_terms, tuple(map(NodeSelectorTerm, there))))


def _searched_instead(
    problem: Problem,
    instead: Mapping[PodSpec, PodSpec],
    budget: RunningBudget,
    search: Search,
    progress: SearchProgress,
) -> Plan:
    """Return the plan that is found for the problem with these specs instead of those, as one with those."""
    planned, before = one_for_each(problem, instead)
    return as_asked(search(planned, budget, progress), before)


def in_gang_domains(problem: Problem, budget: RunningBudget, search: Search, progress: SearchProgress) -> Plan:
    """Return the best plan of a problem with gangs that ask for one domain each, with the domains that it begins as a
    stage of its objective. `search` plans a problem as it is.

    What a plan costs at least is proven for gangs that need not be together, which is planned first. Where no choice of
    domains serves as many at that cost, the problem itself is searched, too."""
    terms, wishes = gang_terms(problem), wished_domains(problem)
    keys = {key for key, _ in terms} | {wish.term.topology_key for wish in wishes}
    whole = with_new_domains(problem, keys, MOST_NEW_DOMAINS if wishes else len(terms))
    of = GangDomains(whole, terms, wishes)  # which has the same pods
    apart = {each: _apart(each) for each in of.asking}
    began = budget.left_seconds()
    proven = [_searched_instead(problem, apart, _part(budget, _APART_SHARE), search, SILENT)]
    # Settling a plan and its reasons: each takes as long as the first plan took beyond its share.
    after_seconds = 2 * max(0.0, began - budget.left_seconds() - _APART_SHARE * budget.total_seconds)
    best = _best_choice(of, proven, budget, search)
    if best is None and budget.exhausted:  # the pods may be together by chance, or only wish to be
        best = _better(of, None, proven[0], proven)
    # A domain with room for spares may cost more, of which the search knows nothing.
    may_cost_less = terms and not any(group.spares for group in problem.node_groups)
    has_time = not budget.exhausted and (budget.deterministic or budget.left_seconds() > after_seconds)
    if best is None or (has_time and (_serves_less(best) or (may_cost_less and _costs_more(best)))):
        wished = {each: replace(each, preferred_domains=()) for each in of.asking if each.preferred_domains}
        found = _searched_instead(whole, wished, _rest(budget, after_seconds), search, progress)
        proven.append(found)
        best = _better(of, best, found, proven) or _with_stage(of, found, proven)
    if of.pod_sets and not best.unplaced and can_be_modelled(of) and budget.affords(1, _BOUND_SHARE):
        bounding = _part(budget, _BOUND_SHARE)
        goals = [Goal.DOMAINS] * bool(terms) + [Goal.SPREAD] * bool(of.spread(best, after_cost=False))
        seconds = bounding.total_seconds / max(1, len(goals))
        least = {goal: DomainModel(of).least(goal, bounding, seconds) for goal in goals}
        best = _with_stage(of, best, proven, least)
    return folded(problem, with_spares(whole, _with_lacks(of, with_reasons(whole, best))))


def _with_lacks(of: GangDomains, plan: Plan) -> Plan:
    """Return the plan with what domains lack among the reasons of gangs that are left out."""
    told: dict[tuple[str, PodSpec], str] = {}
    left = {plan.pod_classes[each.pod_class].gang for each in plan.unplaced}
    for unit in of.units:
        why = of.lacking(unit) if unit.gang in left else ""
        told.update(((unit.gang, of.problem.pod_sets[number].spec), why) for number in unit.pod_sets if why)
    if not told:
        return plan

    def of_class(each: Unplaced) -> Unplaced:
        mine = plan.pod_classes[each.pod_class]
        why = told.get((mine.gang or "", mine.spec))
        return replace(each, reasons=(*each.reasons, why)) if why else each

    return replace(plan, unplaced=tuple(map(of_class, plan.unplaced)))


def _part(budget: RunningBudget, share: float) -> RunningBudget:
    return RunningBudget(budget.next_plan(share))


def _rest(budget: RunningBudget, after_seconds: float) -> RunningBudget:
    """Return what is left for the search, less what comes after it, and what bounding the domains may take."""
    left = (budget.left_seconds() - after_seconds) / budget.total_seconds if budget.total_seconds else 0.0
    return _part(budget, _SEARCH_SHARE if budget.deterministic else max(0.0, left - _BOUND_SHARE))


def _best_choice(of: GangDomains, proven: Sequence[Plan], budget: RunningBudget, search: Search) -> Plan | None:
    """Return the best plan with chosen domains; None where there is none."""
    if not of.pod_sets:
        return None
    first = FirstDomains(of)
    if budget.affords(1, _IMPROVE_SHARE + _CHOOSE_SHARE + _PLAN_SHARE):
        first.improve(_part(budget, _IMPROVE_SHARE if can_be_modelled(of) else _IMPROVE_SHARE + _CHOOSE_SHARE))
    best = _packed(of, first, proven, budget, search)
    forbidden: frozenset[tuple[int, Domains]] = frozenset()
    for number in range(_MOST_CHOICES):
        share = _AGAIN_SHARE if number else _CHOOSE_SHARE
        if can_be_modelled(of) and budget.affords(1, _PLAN_SHARE + share):
            model = DomainModel(of, forbidden)
            choice = model.choose(_part(budget, share), None if number else first)
        elif not number and (best is None or budget.affords(1, _PLAN_SHARE)):
            choice = of_first(of, first)
        else:
            break
        if not choice:
            break
        pinned, before = _pinned(of, choice)
        found = search(pinned, _part(budget, _PLAN_SHARE if number else _FIRST_PLAN_SHARE), SILENT)
        other = as_asked(found, before)
        # A gang that its domain has no room for in the end may find it in another one.
        other = settled(of.problem, other) if other.unplaced else other
        best = _better(of, best, other, proven)
        left = {other.pod_classes[each.pod_class].gang for each in other.unplaced}
        failed = {(n, values) for n, values in choice.units.items() if of.units[n].gang in left}
        if not failed or (best is not None and not _is_open(best)):
            break
        forbidden |= failed
    return best


def _packed(
    of: GangDomains, first: FirstDomains, proven: Sequence[Plan], budget: RunningBudget, search: Search
) -> Plan | None:
    """Return the plan of the first choice as it stands; None where there is none that the checker passes."""
    if not first.at:
        return None
    found = packed_as_chosen(of, first, proven[0], lambda rest: search(rest, _part(budget, _PLAN_SHARE), SILENT))
    if found is None:
        return None
    return _better(of, None, settled(of.problem, found) if found.unplaced else found, proven)


def _serves_less(plan: Plan) -> bool:
    """Return whether a plan that serves more is not ruled out."""
    served = (Goal.UNSERVED, Goal.WAITING, Goal.PLACEHOLDERS)
    return any(each.value > each.lower_bound for each in plan.objective if each.stage.goal in served)


def _costs_more(plan: Plan) -> bool:
    """Return whether a plan that costs less is not ruled out."""
    return any(each.value > each.lower_bound for each in plan.objective if each.stage.goal is Goal.COST)


def _is_open(plan: Plan) -> bool:
    """Return whether a better plan is not ruled out."""
    return any(each.value > each.lower_bound for each in plan.objective if not breaks_ties(each.stage))


def _apart(spec: PodSpec) -> PodSpec:
    """Return the spec of pods that need not be together."""
    left = tuple(
        term
        for term in spec.pod_affinity
        if term.topology_key == HOSTNAME or not selects(term.selector, spec.namespace, dict(spec.labels))
    )
    return replace(spec, pod_affinity=left, preferred_domains=())


def _better(of: GangDomains, best: Plan | None, other: Plan, proven: Sequence[Plan]) -> Plan | None:
    """Return the better plan; `other` only where the checker passes it."""
    other = _with_stage(of, other, proven)
    try:
        if any(faults_of(of.problem, other)):
            return best
    except UncheckedPlanError:  # whose pods are left out is decided for the plan that is taken
        return best
    return other if best is None or other.vector < best.vector else best


def _with_stage(
    of: GangDomains, plan: Plan, proven: Sequence[Plan], least: Mapping[Goal, int] = MappingProxyType({})
) -> Plan:
    """Return the plan with the stages of domains, of which `least` says what is proven, and with what other plans
    prove: that holds for every plan that is no worse than they are in the stages before."""
    bounds: defaultdict[ObjectiveStage, float] = defaultdict(float)
    values = {each.stage: each.value for each in plan.objective}
    for other in proven:
        for each in other.objective:
            bounds[each.stage] = max(bounds[each.stage], each.lower_bound)
            if values.get(each.stage, math.inf) > each.value + _TOLERANCE:
                break
    ours = {Goal.SPREAD: of.spread(plan, after_cost=False), Goal.SPREAD_AFTER_COST: of.spread(plan, after_cost=True)}
    ours[Goal.DOMAINS] = of.begun(plan) if of.terms else None
    found = [
        StageValue(ObjectiveStage(goal), value, min(value, least.get(goal, 0)))
        for goal, value in ours.items()
        if value is not None
    ]
    found += [
        replace(each, lower_bound=min(each.value, bounds[each.stage]))
        for each in plan.objective
        if each.stage.goal not in ours
    ]
    goals = list(Goal)
    objective = sorted(found, key=lambda each: _place(goals, each.stage))  # which keeps the order within a goal
    return certified(plan, objective)


def _place(goals: Sequence[Goal], stage: ObjectiveStage) -> int:
    """Return where a stage is in the objective: those of pods come together, priority by priority."""
    return 0 if stage.goal in (Goal.UNSERVED, Goal.WAITING) else goals.index(stage.goal)
