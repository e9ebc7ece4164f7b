"""The entry point of planning: `solve(problem, budget) -> Plan`, its steps from top to bottom.

Refuse an invalid problem (`validate`), leave out preferences and pods whose constraints are too much work
(`within_share`) and nodes that the others cannot need (`with_enough_nodes`), reduce the rest to classes and kinds
(`reduce`), search (`search`), write the plan in the terms of the problem (`write_plan`), settle what is left of single
pods (`settled`), let the independent checker pass it (`check`), and say why pods are left out (`reasons`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solver.model import (
    Budget,
    Certificate,
    NodeGroupIncrease,
    Plan,
    PodSet,
    PodSpec,
    Problem,
    Status,
    TierCost,
    Unplaced,
)
from solver.model.budget import RunningBudget
from solver.model.domains import gang_terms, wished_domains
from solver.model.errors import UncheckedPlanError
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.model.plan import TellProgress
from solver.model.validation import validate
from solver.planning import write_plan
from solver.planning.any_order import for_any_order
from solver.planning.gang_domains import in_gang_domains
from solver.planning.own_way import as_scheduled
from solver.planning.progress import SILENT, SearchProgress
from solver.planning.reasons import with_reasons
from solver.planning.search import SearchResult, are_rules_few, optimise
from solver.planning.settling import settled
from solver.planning.shared_volumes import with_shared_volumes
from solver.planning.warm_up import while_small
from solver.reduction.claim_ties import without_unknown_domains
from solver.reduction.enough_nodes import with_enough_nodes
from solver.reduction.objective import breaks_ties, dollars
from solver.reduction.reduce import Reduction, reduce
from solver.reduction.reduced import MICROS, Demand, Reduced
from solver.reduction.work import one_for_each, within_share
from solver.verify.check import check
from solver.verify.order import may_be_played, stuck
from solver.verify.places import CheckedPlaces

_UNCHECKED = "its node's devices could be given to its pods in too many ways to check that all find theirs"
_MAIN_SHARE = 0.75
"""Share of the budget; the rest is for the price of priority, where there is more than one tier."""
_AFTER_CLAIMS, _LEAST_SHARE = 1.0, 0.7
"""What comes after the search takes where pods have claims, of the time until it begins, which is spent on the same
pairs of claims and nodes; and the share of the budget that it leaves to the search."""
_LOOSE_SHARE = 0.4
"""Share of it for a plan in which pods that spreads only count come last, if there are such."""


def solve(problem: Problem, budget: Budget | None = None, progress: TellProgress | None = None) -> Plan:
    """Return the best plan found within `budget` (default: one second), with a certificate of how good it is.

    Raises `ProblemError` for an invalid problem or budget, naming every fault. Every plan has passed `verify.check`.
    The result depends on nothing but the arguments where the budget is deterministic. `progress` is told better plans
    and bounds as they are found, from a thread of the planner's.
    """
    return while_small(lambda granted: _solve(problem, granted, progress), budget or Budget())


def _solve(problem: Problem, budget: Budget, progress: TellProgress | None) -> Plan:
    running = RunningBudget(budget)
    validate(problem, running.granted)
    instead = without_unknown_domains(problem, within_share(problem))
    asked = dict.fromkeys(each.spec for each in problem.pod_sets if each.spec.claims)

    def without(specs: Iterable[PodSpec]) -> dict[PodSpec, PodSpec]:
        planned = (spec for spec in specs if not instead.get(spec, spec).unschedulable)
        return instead | {spec: replace(spec, unschedulable=_UNCHECKED) for spec in planned}

    try:
        return _solved_with(problem, instead, running, SearchProgress(progress))
    except _UncheckedSpecsError as error:
        found = error.specs
    try:
        return _solved_with(problem, without(found), running)
    except _UncheckedSpecsError as error:
        owners = {spec.namespace for spec in (*found, *error.specs)}
    try:
        return _solved_with(problem, without(spec for spec in asked if spec.namespace in owners), running)
    except _UncheckedSpecsError:
        return _solved_with(problem, without(asked), running)


class _UncheckedSpecsError(Exception):
    """The checker does not pass a plan on account of pods of these specs."""

    def __init__(self, specs: Iterable[PodSpec]) -> None:
        super().__init__("pods may not find their devices")
        self.specs = tuple(specs)


def _solved(problem: Problem, budget: RunningBudget, progress: SearchProgress = SILENT) -> Plan:
    in_domains = bool(gang_terms(problem) or wished_domains(problem))
    if in_domains:
        found = _FoundPlan(in_gang_domains(problem, budget, _searched, progress), None)
    else:
        found = _found(problem, budget, progress)
    try:
        check(problem, found.plan)
    except UncheckedPlanError as error:
        raise _UncheckedSpecsError(found.plan.pod_classes[index].spec for index in error.pod_classes) from error
    if in_domains:  # whose plan has its reasons
        return as_scheduled(problem, found.plan)
    plan = for_any_order(problem, found.plan, lambda other, part: _searched(other, part, SILENT), budget)
    return with_reasons(problem, plan, found.reduced)


@dataclass(frozen=True, slots=True)
class _FoundPlan:
    """A plan, and what was searched."""

    plan: Plan
    reduced: Reduced | None
    """None where that were several problems."""
    by_rules: bool = False
    """Whether its bounds look at rules over domains."""


def _searched(problem: Problem, budget: RunningBudget, progress: SearchProgress) -> Plan:
    return _found(problem, budget, progress).plan


def _found(problem: Problem, budget: RunningBudget, progress: SearchProgress) -> _FoundPlan:
    """Return the best plan found."""
    shared = with_shared_volumes(problem, lambda each, share: _best(each, budget, share).plan)
    if shared is not None:
        return _FoundPlan(_costing_a_node(problem, shared), None)
    found = _best(problem, budget, 1.0, progress)
    return replace(found, plan=_costing_a_node(problem, settled(problem, found.plan)))


def _best(problem: Problem, budget: RunningBudget, share: float, progress: SearchProgress = SILENT) -> _FoundPlan:
    """Return the best plan that is found in this share of the budget. Where spreads count pods that they do not bind, a
    plan in which these come last is the best that any order reaches; if pods may not be placed in that order, there is
    one in which they may come first, with the bounds of the other. Where there is too much to look at, bounds look at
    no spread, and the second is made alone."""
    reduction = Reduction(with_enough_nodes(problem))
    reduced = reduction.reduced()
    share *= _share_of_search(reduced, budget)
    first = reduced.counts_unbound and are_rules_few(reduced) and not budget.exhausted
    loose = _in_the_best_order(reduction, budget, share * _LOOSE_SHARE) if first else None
    if loose is not None and _has_turns(problem, loose.plan):
        return loose
    found = _best_of(reduced, budget, share, progress)
    if loose is None and (not reduced.counts_unbound or not found.by_rules):
        return found
    if loose is None and not budget.exhausted:
        loose = _in_the_best_order(reduction, budget, share)
    plan = found.plan
    bounded = write_plan.without_bounds(plan) if loose is None else write_plan.bounded_by(plan, loose.plan)
    return replace(found, plan=bounded)


def _share_of_search(reduced: Reduced, budget: RunningBudget) -> float:
    """Return by which share of the budget the search has to end, so that settling, checking and reasons are within the
    whole."""
    if budget.deterministic or not reduced.served.claims or not budget.total_seconds:
        return 1.0
    return max(_LEAST_SHARE, 1 - _AFTER_CLAIMS * budget.elapsed_seconds() / budget.total_seconds)


def _in_the_best_order(reduction: Reduction, budget: RunningBudget, share: float) -> _FoundPlan:
    """Return a plan in which pods that spreads count and do not bind come last."""
    return _best_of(reduction.reduced(unbound_last=True), budget, share)


def _has_turns(problem: Problem, plan: Plan) -> bool:
    """Return whether each pod gets its turn, as far as priorities say who comes first."""
    priorities = [each.priority for each in plan.pod_classes]
    return may_be_played(problem) and not stuck(problem, CheckedPlaces(problem, plan), priorities)


def _best_of(reduced: Reduced, budget: RunningBudget, share: float, progress: SearchProgress = SILENT) -> _FoundPlan:
    tiered = len(reduced.tiers) > 1
    outcome = optimise(reduced, budget, share * _MAIN_SHARE if tiered else share, progress)
    cost = sum(outcome.values[s] for s in outcome.values if s.goal is Goal.COST)
    priority = max(0, cost - _cost_with_equal_weights(outcome, budget, share)) if tiered and cost else 0
    return _FoundPlan(_plan(outcome, priority, budget), outcome.reduced, outcome.by_rules)


def _costing_a_node(problem: Problem, plan: Plan) -> Plan:
    """Return the plan with a bound of its cost that is at least the price of a node, if it serves a pod where none
    stands: a search that stops between two stages knows less. Not for several weights, of which each has a bound."""
    certificate = plan.certificate
    if problem.nodes or len(certificate.tiers) != 1 or not any(each.pods for each in plan.nodes):
        return plan
    (tier,) = certificate.tiers
    least = min(dollars([min(each.price_usd_per_hour for each in problem.node_groups)]), tier.cost_usd_per_hour)
    if tier.lower_bound_usd_per_hour >= least:
        return plan
    proven = replace(
        certificate, lower_bound_usd_per_hour=least, tiers=(replace(tier, lower_bound_usd_per_hour=least),)
    )
    objective = (replace(s, lower_bound=least) if s.stage.goal is Goal.COST else s for s in plan.objective)
    return replace(plan, certificate=proven, objective=tuple(objective))


def _solved_with(
    problem: Problem, instead: Mapping[PodSpec, PodSpec], budget: RunningBudget, progress: SearchProgress = SILENT
) -> Plan:
    """Return a plan that has the pods of these specs planned as those."""
    planned, asked = one_for_each(problem, instead)
    try:
        plan = _solved(planned, budget, progress)
    except _UncheckedSpecsError as error:
        raise _UncheckedSpecsError(asked.get(spec, spec) for spec in error.specs) from error
    classes = tuple(replace(each, spec=asked.get(each.spec, each.spec)) for each in plan.pod_classes)
    return replace(write_plan.with_preferences(plan), pod_classes=classes) if instead else plan


def _cost_with_equal_weights(outcome: SearchResult, budget: RunningBudget, share: float) -> int:
    """Return the cost, in millionths of $/h, of serving the same pods as one tier."""
    problem = outcome.reduced.problem
    left = write_plan.unserved_demands(outcome.reduced, outcome.selection)
    served = tuple(
        PodSet(d.example, d.spec, d.count - left.get(d, 0), d.priority, gang=d.gang)
        for d in outcome.reduced.demands
        if d.count > left.get(d, 0)
    )
    equal = tuple(replace(group, weight=0) for group in problem.node_groups)
    same = reduce(replace(problem, pod_sets=served, node_groups=equal))
    other = optimise(same, budget, share)
    if any(v for s, v in other.values.items() if s.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS)):
        return sum(v for s, v in outcome.values.items() if s.goal is Goal.COST)
    return sum(v for s, v in other.values.items() if s.goal is Goal.COST)


def _plan(outcome: SearchResult, priority_micros: int, budget: RunningBudget) -> Plan:
    reduced = outcome.reduced
    planned = write_plan.new_nodes(reduced, outcome.batches)
    placed = write_plan.on_existing(reduced, outcome.batches)
    increments = write_plan.increments(planned)
    missing = write_plan.unserved_demands(reduced, outcome.selection)
    tiers = tuple(reversed(list(_tiers(outcome, increments))))
    cost = dollars(tier.cost_usd_per_hour for tier in tiers)
    bound = dollars(tier.lower_bound_usd_per_hour for tier in tiers)
    certificate = Certificate(
        _status(outcome, missing),
        cost,
        bound,
        tiers,
        priority_micros / MICROS,
        outcome.unserved_unproven,
    )
    return Plan(
        reduced.pod_classes(),
        increments,
        planned,
        placed,
        tuple(Unplaced(demand.index, pods, ()) for demand, pods in missing.items()),
        certificate,
        budget.elapsed_seconds(),
        tuple(_stage_value(stage, value, outcome.bounds[stage]) for stage, value in outcome.values.items()),
        relaxed=write_plan.relaxed(reduced, outcome.batches),
        candidates=outcome.candidates,
    )


def _tiers(outcome: SearchResult, increments: Sequence[NodeGroupIncrease]) -> Iterator[TierCost]:
    """Yield costs in dollars, from the groups' own prices: what the search counts may differ by millionths."""
    groups = {group.id: group for group in outcome.reduced.problem.node_groups}
    for stage in outcome.values:
        if stage.goal is Goal.COST:
            mine = [i for i in increments if groups[i.node_group].weight == stage.key]
            cost = dollars(groups[i.node_group].price_usd_per_hour * i.delta for i in mine)
            # A stage that is proven is proven in dollars too.
            proven = outcome.bounds[stage] == outcome.values[stage]
            yield TierCost(stage.key, cost, cost if proven else min(cost, outcome.bounds[stage] / MICROS))


def _stage_value(stage: ObjectiveStage, value: int, bound: int) -> StageValue:
    """Return the value with costs in $/h."""
    unit = MICROS if stage.goal is Goal.COST else 1
    return StageValue(stage, value / unit, bound / unit)


def _status(outcome: SearchResult, missing: Mapping[Demand, int]) -> Status:
    pods = sum(demand.count for demand in outcome.reduced.demands)
    if pods and sum(missing.values()) == pods and not outcome.unserved_unproven:
        return Status.INFEASIBLE
    proven = all(outcome.bounds[s] == v for s, v in outcome.values.items() if not breaks_ties(s))
    return Status.OPTIMAL if proven else Status.FEASIBLE
