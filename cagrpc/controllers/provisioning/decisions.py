"""Decides ProvisioningRequests: which are served whole, by which new nodes, why others are not, and what would help.
Pure; `deciding` orders, `controller` writes. `scenario` has the values, `selection` chooses who is served and who gets
what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.cluster.drop_invalid import faults
from cagrpc.cluster.shortages import Shortage, backed_off, could_hold
from cagrpc.controllers.provisioning.model import Candidate
from cagrpc.controllers.provisioning.progress import Granted, Refused
from cagrpc.controllers.provisioning.scenario import (
    Decisions,
    RequestPart,
    Scenario,
    emptied,
    pods_of,
    problem_of,
    without_faults,
)
from cagrpc.controllers.provisioning.selection import (
    FIRST_SHARE,
    MOST_BYPASSED,
    Attempt,
    Choice,
    Left,
    NewNode,
    alone,
    assigned,
    choose,
    one_day,
    together,
)
from cagrpc.errors import in_one_line
from cagrpc.fleet.model import LARGEST_INCREMENT
from cagrpc.fleet.provisioners import Widen
from solver import solve
from solver.explanation.explain import explain_unserved
from solver.explanation.model import sentence
from solver.explanation.waiting import MORE_TIME, MOST_WAYS, ways_of
from solver.explanation.waiting import OUT_OF_TIME as NOT_EXPLAINED
from solver.model import Budget, Certificate, NodeGroup, Plan, Problem
from solver.model.budget import RunningBudget
from solver.model.capacity import after_plan
from solver.model.plan import gap
from solver.model.quantities import pluralize
from solver.planning.reasons import OUT_OF_TIME
from solver.reduction.objective import dollars

MOST_AT_ONCE = 128
"""Candidates that are decided together; others wait for the next time."""

_CHOOSING_UNTIL = 0.85
"""The share of the budget for choosing; the rest is for reasons."""


_MOST_REASONS = 2
_EXPLAIN_SHARE = 0.2
"""Of the budget, for one request."""
_FIT_SHARE = 0.05
_MOST_EXPLAINED = 2_000
"""Nodes and node groups together, above which only the planner's own reasons are given."""


def decide(
    candidates: Sequence[Candidate],
    scenario: Scenario,
    budget: Budget,
    widen: Widen | None = None,
) -> Decisions:
    """Decide atomic requests: each whole or not at all, the highest priority first, then by turn, then the oldest. With
    `widen` the reasons include what would help, node groups among it that could be there."""
    scenario = without_faults(scenario)
    refused: dict[str, Refused] = {}
    ordered = []
    for candidate in sorted(candidates, key=_rank)[:MOST_AT_ONCE]:
        wrong = faults(Problem(tuple(pods_of([candidate]))))
        if wrong:
            refused[candidate.uid] = Refused(in_one_line(wrong), final=True)
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
    for each in sorted(choice.left, key=lambda left: _rank(left.candidate)):
        early = each.candidate.early
        why = Refused("", early=True) if early else _refused(each, choice, scenario, running, widen)
        bypassed = not why.final and _is_bypassed(each, choice, scenario, running)
        refused[each.candidate.uid] = replace(why, bypassed=bypassed)
    served = frozenset(candidate.uid for candidate in choice.served)
    return Decisions(parts, on_nodes, served, refused, choice.kept_for)


def _refused(left: Left, choice: Choice, scenario: Scenario, budget: RunningBudget, widen: Widen | None) -> Refused:
    """Return the refusal, with its reason."""
    never = "" if budget.exhausted else _never(left.candidate, scenario, budget, widen)
    if never:
        return Refused(never, final=True)
    waits_for = shortages_of(left, choice)
    if waits_for and would_be_served(left, choice, budget):
        return Refused(why_short(waits_for), until_seconds=min(each.until_seconds for each in waits_for))
    return Refused(why_left(left, choice, budget, waits_for, widen=widen))


def _is_bypassed(left: Left, choice: Choice, scenario: Scenario, budget: RunningBudget) -> bool:
    """Return whether younger requests are served while it waits, and it could be served one day; no more is counted
    than what makes it late."""
    candidate = left.candidate
    younger = any(_rank(candidate) < _rank(other) for other in choice.served)
    counts = younger and candidate.bypassed < MOST_BYPASSED and not budget.exhausted
    return counts and one_day(scenario, candidate, budget)


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


def _never(candidate: Candidate, scenario: Scenario, budget: RunningBudget, widen: Widen | None) -> str:
    """Return why it can never be served; empty where that is not proved."""
    scenario = emptied(scenario)
    found = alone(scenario, candidate, budget)
    return why_never(candidate, found, budget, widen) if found.proves_it_cannot else ""


def check(candidate: Candidate, scenario: Scenario, budget: Budget) -> Granted | Refused:
    """Return whether all its pods fit on existing nodes, and where. What is said is like `16 of 16 pods fit`, or
    `12 of 16 fit: needs 4 cpu, at most 2 is free (3 of 5 nodes)`."""
    wrong = faults(Problem(tuple(pods_of([candidate]))))
    if wrong:
        return Refused(in_one_line(wrong))
    scenario = replace(without_faults(scenario), groups=(), limits=())
    found = alone(scenario, candidate, RunningBudget(budget))
    pods = sum(each.count for each in candidate.pod_sets)
    if found.serves_all:
        return Granted(f"{pods} of {pods} fit", frozenset(placed.node for placed in found.plan.existing))
    missing = sum(each.count for each in found.plan.unplaced)
    return Refused(f"{pods - missing} of {pods} fit: {'; '.join(found.reasons[:_MOST_REASONS])}")


def shortages_of(left: Left, choice: Choice) -> list[Shortage]:
    """Return the shortages of the offerings that its pods could run on, each once; none where the request itself is
    held back."""
    if left.kept_for or left.nodes:
        return []
    specs = dict.fromkeys(pods.spec for pods in left.candidate.pod_sets)
    groups = {group.id: group for group in choice.scenario.groups}
    short = ((groups[name], each) for name, each in choice.scenario.short.items() if name in groups)
    return list(dict.fromkeys(each for group, each in short if any(could_hold(group, spec) for spec in specs)))


def would_be_served(left: Left, choice: Choice, budget: RunningBudget) -> bool:
    """Return whether it would be served beside those that are, with the offerings that are left out."""
    problem = replace(_rest(choice, with_short=True), pod_sets=tuple(pods_of([left.candidate])), previous=None)
    return not solve(problem, budget.next_plan(FIRST_SHARE)).unplaced


def why_short(shortages: Sequence[Shortage]) -> str:
    """Return why nothing could be tried for it now."""
    return f"{backed_off(shortages)}; with {_them(shortages)} the whole request would fit"


def _them(shortages: Sequence[Shortage]) -> str:
    return "it" if len(shortages) == 1 else "them"


def _rest(choice: Choice, *, with_short: bool) -> Problem:
    """Return what is left beside those that are served, with or without the offerings that are left out."""
    scenario = replace(choice.scenario, short={}) if with_short else choice.scenario
    found, problem = choice.found, problem_of(scenario, ())
    if found is None:
        return problem
    whole = replace(found.problem, node_groups=problem.node_groups)
    return after_plan(whole, found.plan, range(len(found.plan.pod_classes)))


def why_left(
    left: Left,
    choice: Choice,
    budget: RunningBudget,
    shortages: Sequence[Shortage] = (),
    *,
    widen: Widen | None = None,
) -> str:
    """Return why it is not served now, and what would serve it beside those that are. It would not be served with the
    offerings either that are left out after `shortages`: what is said counts these as there."""
    if left.kept_for:
        bypassed = f"which younger requests have bypassed {MOST_BYPASSED} times"
        return f"what it needs is reserved for {left.kept_for}, {bypassed}"
    if left.nodes:
        return (
            f"it takes {left.nodes} new nodes that must come together, and one increment has at most"
            f" {LARGEST_INCREMENT}; ask for less, or allow larger nodes"
        )
    if budget.exhausted:
        return "; ".join(left.reasons[:_MOST_REASONS]) or OUT_OF_TIME
    text = _message(_rest(choice, with_short=bool(shortages)), left.candidate, "now", budget, widen)
    return f"{backed_off(shortages)}; even with {_them(shortages)} {text}" if shortages else text


def why_never(candidate: Candidate, found: Attempt, budget: RunningBudget, widen: Widen | None) -> str:
    """Return why it can never be served. `found` is the attempt with everything empty."""
    return _message(found.problem, candidate, "with all node groups empty and no limit used", budget, widen)


def _message(scenario: Problem, candidate: Candidate, when: str, budget: RunningBudget, widen: Widen | None) -> str:
    """Return the message, such as `7 of 8 pods fit now (7 of 8 of ns/workers): node group b is at its maximum size 9.
    What would serve all of them: raise maxSize of b from 9 to 10`."""
    pods = sum(each.count for each in candidate.pod_sets)
    problem = replace(scenario, pod_sets=tuple(pods_of([candidate])), previous=None)
    apart = Attempt(problem, solve(problem, budget.next_plan(_FIT_SHARE)))
    missing = sum(each.count for each in apart.plan.unplaced)
    if not missing:
        return f"the whole request would fit {when}, but {OUT_OF_TIME}"
    lacking = ", ".join(_lacking(candidate, apart.plan)) if len(candidate.pod_sets) > 1 else ""
    text = f"{pods - missing} of {pluralize(pods, 'pod')} fit {when}{f' ({lacking})' if lacking else ''}"
    text += f": {'; '.join(apart.reasons[:_MOST_REASONS])}"
    return text if widen is None else sentence(text, _ways(scenario, candidate, budget, widen))


def _lacking(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Yield how many pods fit of each pod set that is short; of equal pod sets the last is short first."""
    missing = Counter({plan.pod_classes[each.pod_class].spec: each.count for each in plan.unplaced})
    found = []
    for pods in reversed(candidate.pod_sets):
        short = min(missing[pods.spec], pods.count)
        missing[pods.spec] -= short
        if short:
            found.append(f"{pods.count - short} of {pods.count} of {pods.name}")
    yield from reversed(found)


def _ways(scenario: Problem, candidate: Candidate, budget: RunningBudget, widen: Widen) -> tuple[str, ...]:
    """Return what would serve it; never empty."""
    if budget.exhausted or len(scenario.nodes) + len(scenario.node_groups) > _MOST_EXPLAINED:
        return (NOT_EXPLAINED,)
    problem = replace(scenario, pod_sets=tuple(pods_of([candidate], gang=candidate.key)), previous=None)
    plan = solve(problem, budget.next_plan(_FIT_SHARE))
    found = explain_unserved(widen(problem, plan), plan, budget.next_plan(_EXPLAIN_SHARE))
    return next((ways_of(each)[:MOST_WAYS] for each in found), (MORE_TIME if not plan.unplaced else NOT_EXPLAINED,))
