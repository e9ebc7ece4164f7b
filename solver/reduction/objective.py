"""The lexicographic objective as a list of stages, in order, each a linear expression over the pods left unserved and
the nodes opened. `fluid` bounds the stages, `master` minimises them, the plan reports their values.

1. real pods left unserved, higher priorities first; within a priority their number, then how long they have waited;
2. placeholders left unplaced;
3. preferences given up, over all pods;
4. cost of new nodes, tier by tier from the lowest weight to the highest;
5. domains that gangs begin (`planning.gang_domains`), where any asks for one;
6. number of new nodes;
7. change against the previous plan, where there is one: nodes more or fewer, over all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.reduced import Demand, Reduced


def stages(reduced: Reduced) -> tuple[ObjectiveStage, ...]:
    """Most important first."""
    claims = [ObjectiveStage(goal, p) for p in reduced.priorities for goal in (Goal.UNSERVED, Goal.WAITING)]
    slack = [ObjectiveStage(Goal.PLACEHOLDERS)] if any(d.placeholder for d in reduced.demands) else []
    wishes = [ObjectiveStage(Goal.PREFERENCES)] if any(row.given_up for row in reduced.rows) else []
    costs = [ObjectiveStage(Goal.COST, weight) for weight in reduced.tiers]
    change = [] if reduced.changed is None else [ObjectiveStage(Goal.CHANGE)]
    return (*claims, *slack, *wishes, *costs, ObjectiveStage(Goal.NODES), *change)


def breaks_ties(stage: ObjectiveStage) -> bool:
    """Whether the stage only chooses among plans that serve as much at the same cost; nobody is shown a bound of it."""
    return stage.goal in (Goal.SPREAD_AFTER_COST, Goal.DOMAINS, Goal.NODES, Goal.CHANGE)


def waited(demand: Demand, unserved: int) -> int:
    """Seconds that `unserved` pods of the demand have waited together: its youngest ones go unserved."""
    total = 0
    for age, count in demand.ages:
        taken = min(unserved, count)
        total += age * taken
        unserved -= taken
    return total


Units = Mapping[tuple[int, int], int]
"""(demand index, row) -> units served so, for demands that have a choice of rows."""


def value(
    stage: ObjectiveStage,
    reduced: Reduced,
    unserved: Mapping[int, int],
    opened: Sequence[int],
    units: Units | None = None,
) -> int:
    """A plan's value: `unserved` pods per demand index, `opened` new nodes per kind index."""
    match stage.goal:
        case Goal.COST | Goal.NODES:
            used = ((kind, nodes) for kind, nodes in zip(reduced.kinds, opened, strict=True) if nodes)
            return sum(stage.node_cost(k.price_micros, k.weight) * nodes for k, nodes in used if not k.existing)
        case Goal.CHANGE:
            return (reduced.changed or 0) + sum(abs(opened[k.index] - k.previous) for k in reduced.new_kinds)
        case Goal.PREFERENCES:
            return sum(
                count * reduced.rows[row].given_up
                for (demand, row), count in (units or {}).items()
                if demand == next((first for first, _ in reduced.rows[row].bundle), demand)
            )
    claims = reduced.counted.get(stage, ())
    if stage.goal is Goal.WAITING:
        return sum(waited(d, unserved.get(d.index, 0)) for d in claims)
    return sum(unserved.get(d.index, 0) for d in claims)


def unavoidable_value(stage: ObjectiveStage, reduced: Reduced) -> int:
    """The part of the stage that no plan can avoid: demands that fit nowhere."""
    if stage.goal is Goal.CHANGE:
        return reduced.changed or 0
    return value(stage, reduced, reduced.lost, [0] * len(reduced.kinds))


def step_of(stage: ObjectiveStage, reduced: Reduced) -> int:
    """A number that every value of the stage is a multiple of."""
    if stage.goal is not Goal.COST:
        return 1
    return reduced.price_steps.get(stage.key, 0) or 1


def rounded_up(bound: float, step: int) -> int:
    """A bound rounded up to the next possible value, less a billionth: relaxations are solved in floating point."""
    return -int(-(bound * (1 - 1e-9) - 1e-3) // step) * step


def rounded_cost(least_cost_micros: float, reduced: Reduced) -> int:
    """The least cost that new nodes can come to, given a bound on it; 0 where there are several tiers."""
    tiers = reduced.tiers
    return (
        rounded_up(least_cost_micros, step_of(ObjectiveStage(Goal.COST, tiers[0]), reduced)) if len(tiers) == 1 else 0
    )


def dollars(parts: Iterable[float]) -> float:
    """A sum without the dust of binary fractions."""
    return round(math.fsum(parts), 9)
