"""What the kube-scheduler makes of a plan, and the plan repaired until all that it claims to serve lands. The one way
in: `realise(problem, plan, budget, profile) -> Realised`.

The scheduler has never heard of a plan's patterns. It binds pods one at a time by its own scores, so that a plan that
is nearly full leaves pods pending. Here it is simulated (`scheduler`) under several scenarios (`rehearsal`). Where
nodes may be let go one after the other, the plan gets a reserve for what may be left over (`realise_reserve`); where
all come at once it gets nodes for it, and loses those that turn out not to be needed (`realise_repair`). The outcome is
written as a plan again (`realise_plan`). How and why: docs/realisation.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from solver.budgeting import Meter
from solver.model import Budget, Increment, Plan, Problem
from solver.objectives import dollars
from solver.realise_fleet import PLANNED, Fleet, fleet_of
from solver.realise_plan import realised_plan, whole_gangs
from solver.realise_repair import mend, trim
from solver.realise_reserve import reserved
from solver.rehearsal import NOMINAL, Rehearsal, group_numbers
from solver.scheduler import Profile
from solver.validate import validate

WAVES = 8
"""So many at most, where the nodes may be let go one wave after the other."""
_TRIM_SHARE = 0.8
"""Of the budget, for repairs; the rest is for making sure."""
_ENOUGH_PASSED = 16
"""Scenarios in a row that need no further repair."""


@dataclass(frozen=True, slots=True)
class Repair:
    """How many nodes more (or fewer) of a group the realised plan opens."""

    node_group: str
    delta: int
    cost_usd_per_hour: float
    """Of these nodes; below 0 where there are fewer."""
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """What one new node holds in the realised plan: class -> pods."""

    node_group: str
    wave: int
    pods: Mapping[int, int]
    bound: Mapping[int, int]
    """Of these, pods to bind to it before it is let go."""
    reserve: bool = False
    """It is let go only for pods that are left over, and given back otherwise."""


@dataclass(frozen=True, slots=True)
class Realised:
    """A plan that the scheduler makes true."""

    plan: Plan
    """Pods are where the scheduler, simulated, puts them; what does not land is unplaced."""
    planned_cost_usd_per_hour: float
    realised_cost_usd_per_hour: float
    """Of what stays in the nominal scenario."""
    reserve_cost_usd_per_hour: float
    """Of all nodes of the reserve, those among them that stay in the nominal scenario."""
    repairs: tuple[Repair, ...]
    waves: tuple[tuple[Increment, ...], ...]
    """The new nodes in the order in which they are let go: those of a wave once nothing lands any more on those before.
    One wave: all at once. Nodes of the reserve have waves of their own."""
    placements: tuple[Placement, ...]
    """Every new node, wave by wave: those of the plan, and last those of the reserve that hold nothing."""
    stranded: int
    """Pods that the plan claims to serve and that would have stayed pending without repairs and waves."""
    at_risk: int
    """Pods that it claims to serve now, and that stay pending in the worst of the scenarios simulated."""
    scenarios: int
    """How many these are."""


def realise(
    problem: Problem,
    plan: Plan,
    budget: Budget | None = None,
    profile: Profile | None = None,
    *,
    may_bind: Mapping[int, int] | None = None,
    waves: int = WAVES,
) -> Realised:
    """The plan as the scheduler will make it, repaired within `budget` (default: one second).

    `plan` is one of this problem's. `may_bind`: class -> pods that are bound to the new nodes they are planned for
    before the scheduler sees these (`realise: bind`); others are simulated around them. `waves`: in how many waves the
    planned nodes may be let go, with a reserve after each; 1 where all nodes come at once, and there is no reserve.
    Raises `solver.errors.ProblemError` for what cannot be meant.
    """
    meter = Meter(budget or Budget())
    validate(problem, meter.budget)
    profile = profile or Profile()
    planned = fleet_of(plan, group_numbers(problem), may_bind or {})
    stranded = int(Rehearsal(problem, plan, profile, 1, meter).missing(planned, NOMINAL).sum())
    rehearsal = Rehearsal(problem, plan, profile, max(1, waves), meter)
    fleet, reserve = _realised(rehearsal, planned, meter, at_once=waves <= 1)
    held = whole_gangs(plan.pod_classes, rehearsal.outcome(fleet, NOMINAL))
    realised = realised_plan(problem, plan, fleet, held, meter.elapsed_seconds())
    used = _placements(rehearsal, fleet, held)
    last = max((each.wave for each in used), default=0)
    spare = (problem.node_groups[group].id for group in reserve.groups().tolist())
    placements = (*used, *(Placement(group, last + 1, {}, {}, reserve=True) for group in spare))
    return Realised(
        realised,
        plan.certificate.cost_usd_per_hour,
        realised.certificate.cost_usd_per_hour,
        _reserve_cost(problem, placements),
        tuple(_repairs(problem, planned, fleet)),
        _waves(placements),
        placements,
        stranded,
        rehearsal.at_risk(fleet.joined(reserve), realised),
        len(rehearsal.scenarios),
    )


def _realised(rehearsal: Rehearsal, planned: Fleet, meter: Meter, *, at_once: bool) -> tuple[Fleet, Fleet]:
    """The nodes that the nominal scenario needs, and those that others may need beside them."""
    before = meter.left_seconds()
    lands = rehearsal.lands(planned)
    rehearsal.more_scenarios(before - meter.left_seconds())
    if at_once:
        if not (lands and rehearsal.lands(planned)):
            planned = mend(rehearsal, planned, meter)
            planned = trim(rehearsal, planned, lambda: meter.left_seconds(_TRIM_SHARE) > 0)
        return _reviewed(rehearsal, planned, meter), Fleet({})
    rehearsal.lands_at_once(planned)
    return reserved(rehearsal, planned, meter)


def _reviewed(rehearsal: Rehearsal, fleet: Fleet, meter: Meter) -> Fleet:
    """What landed under the scenarios that it was made for must land under others, too."""
    passed = 0
    while passed < _ENOUGH_PASSED and meter.left_seconds() > 0:
        scenario = rehearsal.fresh()
        if rehearsal.missing(fleet, scenario).any():
            rehearsal.scenarios.insert(0, scenario)
            fleet, passed = mend(rehearsal, fleet, meter), 0
        else:
            passed += 1
    return fleet


def _repairs(problem: Problem, planned: Fleet, fleet: Fleet) -> Iterator[Repair]:
    before, now = planned.deltas(), fleet.deltas()
    for number in sorted({*before, *now}, key=lambda n: problem.node_groups[n].id):
        group, delta = problem.node_groups[number], now[number] - before[number]
        if delta:
            reason = "not needed once other nodes are repaired" if delta < 0 else "for pods that would stay pending"
            yield Repair(group.id, delta, dollars([group.price_usd_per_hour * delta]), reason)


def _placements(
    rehearsal: Rehearsal, fleet: Fleet, held: Mapping[int, Mapping[int, int]]
) -> list[Placement]:  # fmt: skip
    groups, first = rehearsal.problem.node_groups, len(rehearsal.problem.nodes)
    slots = (slot for slot, count in fleet.nodes.items() for _ in range(count))
    found = [
        Placement(
            groups[slot.group].id,
            wave,
            dict(sorted(held.get(node, {}).items())),
            dict(slot.bound),
            slot.stage != PLANNED,
        )
        for node, (slot, wave) in enumerate(zip(slots, rehearsal.waves(fleet).tolist(), strict=True), first)
    ]
    return sorted(found, key=lambda placement: placement.wave)


def _reserve_cost(problem: Problem, placements: Sequence[Placement]) -> float:
    price = {group.id: group.price_usd_per_hour for group in problem.node_groups}
    return dollars(price[each.node_group] for each in placements if each.reserve)


def _waves(placements: Sequence[Placement]) -> tuple[tuple[Increment, ...], ...]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for placement in placements:
        counts[placement.wave][placement.node_group] += 1
    return tuple(
        tuple(Increment(group, delta) for group, delta in sorted(counts[wave].items())) for wave in sorted(counts)
    )
