"""Which of several candidate scale-ups leaves the best plan for the rest: what the expander asks of the planner.

CA's options are one node group each, with the pods that CA fits there. A candidate's score is the lexicographic
objective of opening it and then serving the pods it leaves as well as possible: cost(candidate) + optimum(rest).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from solver.columns.pool import Pool, RelaxedMaster, values, weighting
from solver.compiled import not_waiting
from solver.model import Budget, NodeGroup, PodSet, PodSpec, Problem
from solver.model.budget import RunningBudget
from solver.model.errors import ProblemError
from solver.model.money import hourly
from solver.model.objective import Goal, ObjectiveStage
from solver.model.plan import ScaleUpCandidate, Score, class_key
from solver.model.quantities import pluralize
from solver.model.validation import validate
from solver.planning.search import Columns, choose, find_columns
from solver.planning.warm_up import while_small
from solver.reduction.enough_nodes import with_enough_nodes
from solver.reduction.objective import stages
from solver.reduction.reduce import reduce
from solver.reduction.reduced import MICROS, Demand, Kind, Reduced, price_micros
from solver.reduction.shared_volumes import in_parts, scarce_attachments
from solver.reduction.work import replaced, within_share

_FIRST_SHARE = 0.4
"""Share of the budget for the columns that all candidates have in common."""
_MOST_SPECS = 128
_SMALL = 16  # whole devices are not rounded
_COARSEST = 1000.0


def rank(problem: Problem, candidates: Sequence[ScaleUpCandidate], budget: Budget) -> tuple[Score, ...]:
    """Return a score per candidate, best first.

    Where all patterns of the problem are few enough to enumerate, the rest is planned to the end for each candidate.
    Otherwise the fractional optimum over shared columns is compared: it costs milliseconds a candidate, and carries no
    noise that could turn the order, unlike plans found in a hurry.

    Raises `ProblemError` where the problem, the budget or a candidate is invalid (an unknown group, more pods than
    there are), TimeoutError where the budget is too short for a comparison, and at once NotCompiledError where that
    takes compiled kernels and there are none yet.
    """
    with not_waiting():
        return while_small(lambda granted: _rank(problem, candidates, granted), budget)


def _rank(problem: Problem, candidates: Sequence[ScaleUpCandidate], budget: Budget) -> tuple[Score, ...]:
    running = RunningBudget(budget)
    validate(problem, budget)
    _validate(problem, candidates)
    problem = replaced(problem, within_share(problem))
    problem = _coarse(with_enough_nodes(in_parts(problem, scarce_attachments(problem))))
    full = reduce(problem, domains=False)
    shared = find_columns(full, running, _FIRST_SHARE)
    finish = _planned(shared, running) if shared.complete else _relaxed(full, shared, running)
    scores = []
    for position, candidate in enumerate(candidates):
        share = _FIRST_SHARE + (1 - _FIRST_SHARE) * (position + 1) / len(candidates)
        rest = finish(_rest(problem, full, candidate), share)
        scores.append(_score(problem, full, candidate, rest))
    return tuple(sorted(scores, key=lambda score: score.order))


def _coarse(problem: Problem) -> Problem:
    """Return the problem with requests rounded down to a geometric grid, as coarse as it takes to leave few specs.
    Options are compared with each other, and all of them are rounded alike; a pod that fits somewhere still does."""
    ratio, coarse = 1.0, problem
    while len({pods.spec for pods in coarse.pod_sets}) > _MOST_SPECS:
        ratio = ratio * 1.5 if ratio > 1 else 1.1
        specs = {pods.spec: _rounded(pods.spec, ratio) for pods in problem.pod_sets}
        coarse = replace(problem, pod_sets=tuple(replace(p, spec=specs[p.spec]) for p in problem.pod_sets))
        if ratio > _COARSEST:
            break  # the specs differ in more than size
    return coarse


def _rounded(spec: PodSpec, ratio: float) -> PodSpec:
    return replace(
        spec,
        requests=tuple(
            (name, amount if amount < _SMALL else int(ratio ** math.floor(math.log(amount, ratio))))
            for name, amount in spec.requests
        ),
    )


def _planned(shared: Columns, budget: RunningBudget) -> Callable[[Reduced, float], Mapping[ObjectiveStage, float]]:
    return lambda rest, fraction: {s: float(v) for s, v in choose(rest, shared, budget, fraction).values.items()}


def _relaxed(
    full: Reduced, shared: Columns, budget: RunningBudget
) -> Callable[[Reduced, float], Mapping[ObjectiveStage, float]]:
    pool = Pool(full)
    pool.add(shared.patterns)
    master, order = RelaxedMaster(pool, weighting(full)), stages(full)

    def finish(rest: Reduced, _: float) -> Mapping[ObjectiveStage, float]:
        found = master.solve(budget.wall_limit(), rest)
        if found is None:
            raise TimeoutError(f"comparing took longer than {budget.granted.seconds:g} s")
        # Floating point must not decide a stage that comes before the one that matters.
        return {stage: round(value, 3) for stage, value in values(found, pool, rest, order).items()}

    return finish


def _validate(problem: Problem, candidates: Sequence[ScaleUpCandidate]) -> None:
    groups = {group.id for group in problem.node_groups}
    faults = []
    for candidate in candidates:
        if candidate.node_group not in groups:
            faults.append(f"candidate {candidate.node_group}: no such node group")
        if candidate.node_count < 1:
            faults.append(f"candidate {candidate.node_group}: found {candidate.node_count} nodes, expected at least 1")
        for index, pods in candidate.pod_counts.items():
            if not 0 <= index < len(problem.pod_sets) or not 0 <= pods <= problem.pod_sets[index].count:
                faults.append(f"candidate {candidate.node_group}: {pods} pods of set {index}, which has fewer")
    if faults:
        raise ProblemError(faults)


def _score(problem: Problem, full: Reduced, candidate: ScaleUpCandidate, rest: Mapping[ObjectiveStage, float]) -> Score:
    group = next(group for group in problem.node_groups if group.id == candidate.node_group)
    whole = dict(rest)
    cost = price_micros(group) * candidate.node_count
    whole[ObjectiveStage(Goal.COST, group.weight)] = whole.get(ObjectiveStage(Goal.COST, group.weight), 0) + cost
    whole[ObjectiveStage(Goal.NODES)] += candidate.node_count
    unserved = round(sum(v for s, v in whole.items() if s.goal is Goal.UNSERVED))
    rest_cost = sum(v for s, v in rest.items() if s.goal is Goal.COST)
    return Score(
        candidate,
        tuple(whole.get(s, 0) / MICROS if s.goal is Goal.COST else float(whole.get(s, 0)) for s in stages(full)),
        cost / MICROS,
        rest_cost / MICROS,
        unserved,
        _reason(group, candidate, cost / MICROS, rest_cost / MICROS, unserved),
    )


def _reason(group: NodeGroup, candidate: ScaleUpCandidate, cost: float, rest: float, unserved: int) -> str:
    pods = sum(candidate.pod_counts.values())
    left = f", {pluralize(unserved, 'pod')} then without a place" if unserved else ""
    return (
        f"weight {group.weight}: {pluralize(candidate.node_count, 'node')} at {hourly(cost)}"
        f" for {pluralize(pods, 'pod')}, {hourly(rest)} for the rest{left}"
    )


def _rest(problem: Problem, full: Reduced, candidate: ScaleUpCandidate) -> Reduced:
    """Return the same classes and kinds without the candidate's pods, nodes and share of the limits."""
    demand_of = {class_key(demand): demand.index for demand in full.demands}
    served: dict[int, list[tuple[PodSet, int]]] = defaultdict(list)
    for index, pods in candidate.pod_counts.items():
        if pods:
            served[demand_of[class_key(problem.pod_sets[index])]].append((problem.pod_sets[index], pods))
    own = next(kind for kind in full.kinds if candidate.node_group in kind.groups)
    group = next(group for group in problem.node_groups if group.id == candidate.node_group)
    met = min(candidate.node_count, max(0, group.min_size - group.target_size))
    limits = tuple(max(0, left - use * candidate.node_count) for left, use in zip(full.limits, own.use, strict=True))
    return replace(
        full,
        demands=tuple(_less(demand, served.get(demand.index, ())) for demand in full.demands),
        kinds=tuple(
            _fewer(kind, limits, *((candidate.node_count, met) if kind is own else (0, 0))) for kind in full.kinds
        ),
        limits=limits,
    )


def _less(demand: Demand, served: Sequence[tuple[PodSet, int]]) -> Demand:
    ages = dict(demand.ages)
    taken = 0
    for pods, count in served:
        taken += count
        left = count
        # Buckets may have been merged: take from the pod set's own age, then from the oldest.
        for age in [pods.waiting_seconds, *sorted(ages, reverse=True)]:
            used = min(left, ages.get(age, 0))
            if used:
                ages[age] -= used
                left -= used
    return replace(demand, count=demand.count - taken, ages=tuple(sorted(ages.items())))


def _fewer(kind: Kind, limits: Sequence[int], opened: int, met: int) -> Kind:
    """Return the kind with `opened` nodes less to open, of which `met` count towards minimum sizes."""
    most = max(0, kind.most - opened)
    for left, use in zip(limits, kind.use, strict=True):
        if use:
            most = min(most, left // use)
    return replace(kind, most=most, least=min(most, max(0, kind.least - met)))
