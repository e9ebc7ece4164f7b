"""What the kube-scheduler makes of a plan, and the plan repaired until all that it claims to serve lands. The one way
in: `realise(problem, plan, budget, profile) -> Realised`.

The scheduler has never heard of a plan's patterns. It binds pods one at a time by its own scores, so that a plan that
is nearly full leaves pods pending. Here it is simulated (`scheduler`) under several scenarios (`rehearsal`), the plan
gets nodes for what is left over and loses those that turn out not to be needed (`realise_repair`), and the outcome is
written as a plan again (`realise_plan`). How and why: docs/realisation.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from solver.budgeting import Meter
from solver.model import Budget, Increment, Plan, Problem
from solver.objectives import dollars
from solver.realise_apart import SHARES, apart
from solver.realise_fleet import Fleet, fleet_of
from solver.realise_plan import realised_plan, whole_gangs
from solver.realise_repair import mend, trim
from solver.rehearsal import NOMINAL, Rehearsal, group_numbers
from solver.scheduler import Profile
from solver.validate import validate

WAVES = 12
"""So many waves at most, where the nodes may be let go one wave after the other."""
_FIRST_SHARE = 0.3
"""Of the budget, for repairs of the first kind,"""
_TRIM_SHARE = 0.8
"""and for all of them; the rest is for making sure."""
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


@dataclass(frozen=True, slots=True)
class Realised:
    """A plan that the scheduler makes true."""

    plan: Plan
    """Pods are where the scheduler, simulated, puts them; what does not land is unplaced."""
    planned_cost_usd_per_hour: float
    realised_cost_usd_per_hour: float
    repairs: tuple[Repair, ...]
    waves: tuple[tuple[Increment, ...], ...]
    """The new nodes in the order in which they are let go: those of a wave once nothing lands any more on those before.
    One wave: all at once."""
    placements: tuple[Placement, ...]
    """Every new node, wave by wave."""
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
    before the scheduler sees these (`realise: bind`); others are simulated around them. `waves`: how many waves the new
    nodes may be let go in; 1 where all are let go at once. Raises `solver.errors.ProblemError` for what cannot be
    meant.
    """
    meter = Meter(budget or Budget())
    validate(problem, meter.budget)
    profile = profile or Profile()
    planned = fleet_of(plan, group_numbers(problem), may_bind or {})
    stranded = int(Rehearsal(problem, plan, profile, 1, meter).missing(planned, NOMINAL).sum())
    rehearsal = Rehearsal(problem, plan, profile, max(1, waves), meter)
    fleet = _repaired(rehearsal, planned, meter, late=waves > 1)
    held = whole_gangs(plan.pod_classes, rehearsal.outcome(fleet, NOMINAL))
    realised = realised_plan(problem, plan, fleet, held, meter.elapsed_seconds())
    placements = tuple(_placements(rehearsal, fleet, held))
    return Realised(
        realised,
        plan.certificate.cost_usd_per_hour,
        realised.certificate.cost_usd_per_hour,
        tuple(_repairs(problem, planned, fleet)),
        _waves(placements),
        placements,
        stranded,
        rehearsal.at_risk(fleet, realised),
        len(rehearsal.scenarios),
    )


def _repaired(rehearsal: Rehearsal, planned: Fleet, meter: Meter, *, late: bool) -> Fleet:
    """Nodes for what is left over, let go last or with others of their size; and the hard classes apart, with several
    shares of the pods. The cheapest fleet under which all that is claimed lands counts."""
    before = meter.left_seconds()
    lands = rehearsal.lands(planned)
    rehearsal.more_scenarios(before - meter.left_seconds())
    if lands and rehearsal.lands(planned):
        rehearsal.need_fewer_waves(planned)
        return _reviewed(rehearsal, planned, meter, late=late)

    def has_time(share: float) -> bool:
        return meter.left_seconds(share) > 0

    fleet = trim(rehearsal, mend(rehearsal, planned, meter, late=late), lambda: has_time(_FIRST_SHARE))
    for begun, last in _others(rehearsal, planned, meter) if late else ():
        claim = rehearsal.claim
        other = trim(rehearsal, mend(rehearsal, begun, meter, late=last), lambda: has_time(_TRIM_SHARE))
        groups = rehearsal.problem.node_groups
        if rehearsal.claim is claim and other.cost(groups) < fleet.cost(groups):
            fleet = other
        rehearsal.claim = claim
        if not has_time(_TRIM_SHARE):
            break
    rehearsal.need_fewer_waves(fleet)
    return _reviewed(rehearsal, fleet, meter, late=late)


def _others(rehearsal: Rehearsal, planned: Fleet, meter: Meter) -> Iterator[tuple[Fleet, bool]]:
    """Other fleets to begin with, and whether what they lack is let go last."""
    if not any(slot.bound for slot in planned.nodes):  # what is bound stays where it was planned
        for share in SHARES:
            fleet = apart(rehearsal, share, meter)
            if fleet is not None:
                yield fleet, True
    yield planned, False


def _reviewed(rehearsal: Rehearsal, fleet: Fleet, meter: Meter, *, late: bool) -> Fleet:
    """What landed under the scenarios that it was made for must land under others, too."""
    passed = 0
    while passed < _ENOUGH_PASSED and meter.left_seconds() > 0:
        scenario = rehearsal.fresh()
        if rehearsal.missing(fleet, scenario).any():
            rehearsal.scenarios.insert(0, scenario)
            fleet, passed = mend(rehearsal, fleet, meter, late=late), 0
        else:
            passed += 1
    return fleet


def _repairs(problem: Problem, planned: Fleet, fleet: Fleet) -> Iterator[Repair]:
    before, now = planned.deltas(), fleet.deltas()
    for number in sorted({*before, *now}, key=lambda n: problem.node_groups[n].id):
        group, delta = problem.node_groups[number], now[number] - before[number]
        if delta:
            late = sum(count for slot, count in fleet.nodes.items() if slot.group == number and slot.late)
            reason = "not needed once other nodes are repaired" if delta < 0 else "for pods that would stay pending"
            last = f"; {late} of its nodes are let go last" if late else ""
            yield Repair(group.id, delta, dollars([group.price_usd_per_hour * delta]), reason + last)


def _placements(
    rehearsal: Rehearsal, fleet: Fleet, held: Mapping[int, Mapping[int, int]]
) -> list[Placement]:  # fmt: skip
    groups, first = rehearsal.problem.node_groups, len(rehearsal.problem.nodes)
    slots = (slot for slot, count in fleet.nodes.items() for _ in range(count))
    found = [
        Placement(groups[slot.group].id, wave, dict(sorted(held.get(node, {}).items())), dict(slot.bound))
        for node, (slot, wave) in enumerate(zip(slots, rehearsal.waves(fleet).tolist(), strict=True), first)
    ]
    return sorted(found, key=lambda placement: placement.wave)


def _waves(placements: Sequence[Placement]) -> tuple[tuple[Increment, ...], ...]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for placement in placements:
        counts[placement.wave][placement.node_group] += 1
    return tuple(
        tuple(Increment(group, delta) for group, delta in sorted(counts[wave].items())) for wave in sorted(counts)
    )
