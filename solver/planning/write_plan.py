"""From a selection of columns back to the terms of the problem: which group opens how many nodes, and which pods go
where.

Columns have room for as many pods as fit; here each pod is given one place, surplus is dropped, kinds are split into
the groups (or existing nodes) they stand for, and a node that could be a cheaper one of its tier becomes that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns.pool import Pool
from solver.integral.master import Selection
from solver.model import (
    Certificate,
    NodeGroup,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    PodSpec,
    Relaxed,
    Status,
    TierCost,
)
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.model.plan import ClassKey, class_key
from solver.reduction.objective import breaks_ties, dollars
from solver.reduction.reduced import Demand, Ints, Kind, Reduced, minimums
from solver.reduction.terms import preferences


@dataclass(frozen=True, slots=True)
class Batch:
    """`count` equal nodes of a kind, each with the same pods."""

    kind: int
    count: int
    pods: tuple[tuple[int, int, int], ...]
    """(row, demand index, pods per node), sorted."""

    def by_demand(self) -> dict[int, int]:
        """Return demand index -> pods per node."""
        total: Counter[int] = Counter()
        for _, demand, pods in self.pods:
            total[demand] += pods
        return dict(sorted(total.items()))

    def rows(self, reduced: Reduced) -> dict[int, int]:
        """Return row -> units per node."""
        total: Counter[int] = Counter()
        for row, _, pods in self.pods:
            total[row] = 1 if reduced.rows[row].bundle else total[row] + pods
        return dict(total)


_TOLERANCE = 1e-9
"""Within which values are the same."""


def batches(pool: Pool, selection: Selection) -> list[Batch]:
    """Return batches in which every served pod has exactly one place; empty nodes are left out, unless they must be
    opened."""
    reduced = pool.reduced
    queues = _Queues(reduced, selection)
    copies = _with_idle_nodes(pool, selection)
    # Existing nodes first, then fuller columns: surplus is dropped where it empties nodes of the cheapest kinds last.
    order = sorted(
        (column for column, count in enumerate(copies) if count),
        key=lambda c: (
            not reduced.kinds[pool.patterns[c].kind].existing,
            -reduced.kinds[pool.patterns[c].kind].price_micros,
            c,
        ),
    )
    found: list[Batch] = []
    for column in order:
        pattern = pool.patterns[column]
        for count, placed in queues.split(copies[column], pattern.pods):
            found.append(Batch(pattern.kind, count, placed))
    cheaper = _Cheaper(reduced)
    kept = [cheaper.than(batch) for batch in found if batch.pods]
    return _merged([*kept, *_obligatory(reduced, kept)])


def _with_idle_nodes(pool: Pool, selection: Selection) -> list[int]:
    """Return copies per column, with existing nodes that the selection leaves idle filled too: they cost nothing, and
    what they take makes room on new ones."""
    copies, used = list(selection.nodes), selection.opened(pool)
    fullest: dict[int, int] = {}
    tied = {row for need in pool.reduced.needs for row in (*need.carriers, *need.helpers)}
    for column, pattern in enumerate(pool.patterns):
        if tied and any(row in tied for row, _ in pattern.pods):
            continue  # which pods need each other was decided for other nodes
        best = fullest.get(pattern.kind)
        if best is None or pattern.total > pool.patterns[best].total:
            fullest[pattern.kind] = column
    for kind in pool.reduced.existing_kinds:
        if kind.index in fullest:
            copies[fullest[kind.index]] += kind.most - used[kind.index]
    return copies


@dataclass(slots=True)
class _QueuedUnits:
    unit: tuple[tuple[int, int], ...]
    """(demand index, pods) of one unit."""
    units: int


class _Queues:
    """Served units still to be placed by row, as (pods of each demand in a unit, units)."""

    def __init__(self, reduced: Reduced, selection: Selection) -> None:
        self._queues: dict[int, list[_QueuedUnits]] = defaultdict(list)
        seen: set[int] = set()
        for demand in reduced.live:
            if len(demand.rows) == 1 and (demand.index, demand.rows[0]) not in selection.units:
                served = {demand.rows[0]: demand.count - selection.unserved[demand.index]}
            else:
                served = {row: selection.units.get((demand.index, row), 0) for row in demand.rows}
            for row, units in served.items():
                bundle = reduced.rows[row].bundle
                if units and row not in seen:
                    self._queues[row].append(_QueuedUnits(bundle or ((demand.index, 1),), units))
                if bundle and units:
                    seen.add(row)

    def split(
        self, count: int, units: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, tuple[tuple[int, int, int], ...]]]:
        """Fill `count` nodes that have room for `units` (row, per node); yield groups of nodes that got the same."""
        parts: list[tuple[int, tuple[tuple[int, int, int], ...]]] = [(count, ())]
        for row, per_node in units:
            filled: list[tuple[int, tuple[tuple[int, int, int], ...]]] = []
            for nodes, placed in parts:
                filled.extend((n, (*placed, *more)) for n, more in self._take(row, nodes, per_node))
            parts = filled
        for nodes, placed in parts:
            yield nodes, tuple(sorted(placed))

    def _take(self, row: int, nodes: int, per_node: int) -> Iterator[tuple[int, tuple[tuple[int, int, int], ...]]]:
        queue = self._queues[row]
        while nodes and queue:
            first = queue[0]
            whole = min(nodes, first.units // per_node)
            if whole:
                yield whole, tuple((row, demand, pods * per_node) for demand, pods in first.unit)
                first.units -= whole * per_node
                nodes -= whole
            else:  # a node where one demand ends and the next begins
                yield 1, tuple(self._mixed(row, queue, per_node))
                nodes -= 1
            if queue and not queue[0].units:
                queue.pop(0)
        if nodes:
            yield nodes, ()

    def _mixed(self, row: int, queue: list[_QueuedUnits], room: int) -> Iterator[tuple[int, int, int]]:
        while room and queue:
            taken = min(room, queue[0].units)
            yield from ((row, demand, pods * taken) for demand, pods in queue[0].unit)
            queue[0].units -= taken
            room -= taken
            if not queue[0].units:
                queue.pop(0)


class _Cheaper:
    """Replaces kinds by cheaper ones: the surplus that was dropped may have been what a kind was chosen for."""

    def __init__(self, reduced: Reduced) -> None:
        self._reduced = reduced
        enough = (kind for kind in reduced.new_kinds if kind.most >= reduced.enough[kind.index])
        by_price = sorted(enough, key=lambda kind: kind.price_micros)
        self._kinds = np.array([kind.index for kind in by_price], dtype=np.int64)
        self._prices = np.array([kind.price_micros for kind in by_price], dtype=np.int64)
        self._weights = np.array([kind.weight for kind in by_price], dtype=np.int64)
        self._others: dict[int, Ints] = {}

    def than(self, batch: Batch) -> Batch:
        """Return the same pods on the cheapest kind of the same tier that takes no more of any limit and has enough
        nodes."""
        reduced, kind = self._reduced, self._reduced.kinds[batch.kind]
        if kind.existing or kind.least:
            return batch
        if kind.index not in self._others:
            self._others[kind.index] = self._cheaper(kind)
        others = self._others[kind.index]
        units = batch.rows(reduced)
        rows = list(units)
        need = np.array(list(units.values()), dtype=np.int64) @ reduced.requests[rows]
        for resource in np.flatnonzero(need).tolist():
            others = others[reduced.free[others, resource] >= need[resource]]
            if not others.size:
                return batch
        fitting = np.ones(len(others), dtype=bool)
        for row in rows:
            fitting &= reduced.fits[others, row]
        return Batch(int(others[fitting.argmax()]), batch.count, batch.pods) if fitting.any() else batch

    def _cheaper(self, kind: Kind) -> Ints:
        """Return the cheaper kinds, the cheapest first."""
        reduced = self._reduced
        cheaper = int(np.searchsorted(self._prices, kind.price_micros))
        others = self._kinds[:cheaper][self._weights[:cheaper] == kind.weight]
        more_limited = (reduced.use[others] > reduced.use[kind.index]).any(axis=1)
        more_limited |= (reduced.spare[others] < reduced.spare[kind.index]).any(axis=1)
        cheaper_kinds: Ints = others[~more_limited]
        return cheaper_kinds


def _obligatory(reduced: Reduced, kept: Sequence[Batch]) -> Iterator[Batch]:
    """Yield empty nodes of groups below their minimum."""
    opened: Counter[int] = Counter()
    for batch in kept:
        opened[batch.kind] += batch.count
    for kind in reduced.new_kinds:
        if opened[kind.index] < kind.least:
            yield Batch(kind.index, kind.least - opened[kind.index], ())


def _merged(found: Sequence[Batch]) -> list[Batch]:
    totals: Counter[tuple[int, tuple[tuple[int, int, int], ...]]] = Counter()
    for batch in found:
        totals[batch.kind, batch.pods] += batch.count
    return [Batch(kind, count, pods) for (kind, pods), count in totals.items()]


def new_nodes(reduced: Reduced, found: Sequence[Batch]) -> tuple[PlannedNodes, ...]:
    """Assign batches of new nodes to the groups of their kind, minimum sizes first, then in the order of ids."""
    planned: list[PlannedNodes] = []
    groups = {group.id: group for group in reduced.problem.node_groups}
    previous = reduced.problem.previous
    before = {} if previous is None else {i.node_group: i.delta for i in previous.increments}
    by_kind = _by_kind(found)
    for kind in reduced.new_kinds:
        mine = by_kind.get(kind.index, [])
        rooms = _rooms(groups, kind, before) if mine else []
        for batch in mine:
            left = batch.count
            while left:
                group, room = rooms[0]
                taken = min(left, room)
                if taken:
                    planned.append(PlannedNodes(group, taken, batch.by_demand()))
                left -= taken
                rooms[0] = (group, room - taken)
                if rooms[0][1] == 0:
                    rooms.pop(0)
    return _joined(planned)


def _by_kind(found: Sequence[Batch]) -> dict[int, list[Batch]]:
    batches_of: dict[int, list[Batch]] = defaultdict(list)
    for batch in sorted(found, key=lambda b: b.pods):
        batches_of[batch.kind].append(batch)
    return batches_of


def _joined(planned: Sequence[PlannedNodes]) -> tuple[PlannedNodes, ...]:
    totals: Counter[tuple[str, tuple[tuple[int, int], ...]]] = Counter()
    for nodes in planned:
        totals[nodes.node_group, tuple(nodes.pods.items())] += nodes.count
    return tuple(PlannedNodes(group, count, dict(pods)) for (group, pods), count in sorted(totals.items()))


def _rooms(groups: Mapping[str, NodeGroup], kind: Kind, before: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (group, nodes it takes) in the order of assignment: to its minimum, to what the previous plan gave it, to
    its maximum."""
    order: list[tuple[str, int]] = []
    taken: Counter[str] = Counter()
    room = {g: max(0, groups[g].max_size - groups[g].target_size) for g in kind.groups}
    levels = (minimums([groups[g] for g in kind.groups], kind.least), before, room)
    for level in levels:
        for group in kind.groups:
            more = min(level.get(group, 0), room[group]) - taken[group]
            if more > 0:
                order.append((group, more))
                taken[group] += more
    return order


def increments(planned: Sequence[PlannedNodes]) -> tuple[NodeGroupIncrease, ...]:
    """Return the number of new nodes by group, sorted by id."""
    totals: Counter[str] = Counter()
    for nodes in planned:
        totals[nodes.node_group] += nodes.count
    return tuple(NodeGroupIncrease(group, delta) for group, delta in sorted(totals.items()))


def on_existing(reduced: Reduced, found: Sequence[Batch]) -> tuple[PlacedOnNode, ...]:
    """Assign batches on existing nodes to the nodes of their kind."""
    placed: list[PlacedOnNode] = []
    by_kind = _by_kind(found)
    for kind in reduced.existing_kinds:
        names = iter(kind.nodes)
        for batch in by_kind[kind.index]:
            placed.extend(PlacedOnNode(next(names), batch.by_demand()) for _ in range(batch.count))
    return tuple(sorted(placed, key=lambda p: p.node))


def relaxed(reduced: Reduced, found: Sequence[Batch]) -> tuple[Relaxed, ...]:
    """Return how many pods gave up which preferences."""
    totals: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for batch in found:
        for row, demand, pods in batch.pods:
            given_up = _given_up(reduced, row, demand)
            if given_up:
                totals[demand, given_up] += pods * batch.count
    return tuple(Relaxed(demand, pods, names) for (demand, names), pods in sorted(totals.items()))


def with_preferences(plan: Plan) -> Plan:
    """Return the plan in which pods that were planned without their preferences have given them up. What it is to cost
    at least holds for all plans that give up as many, and nothing says that none keeps more."""
    left = Counter[int]()
    for unplaced in plan.unplaced:
        left[unplaced.pod_class] += unplaced.count
    found = list(plan.relaxed)
    for pods in plan.pod_classes:
        reason = pods.spec.preferences_left_out
        if reason:
            whole = replace(pods.spec, preferences_left_out="")
            names = tuple(each.name for each in preferences(whole, soft_taints=False))
            mine = [each for each in found if each.pod_class == pods.index]
            others = pods.count - left[pods.index] - sum(each.count for each in mine)
            found = [each for each in found if each.pod_class != pods.index]
            found += (replace(each, preferences=(*names, *each.preferences), reason=reason) for each in mine)
            found += [Relaxed(pods.index, others, names, reason)] if others else []
    found.sort(key=lambda each: (each.pod_class, each.preferences))
    goals, stage = list(Goal), ObjectiveStage(Goal.PREFERENCES)
    values = {each.stage: each for each in plan.objective}
    given_up = sum(each.count * len(each.preferences) for each in found)
    before = values.pop(stage, StageValue(stage, 0, 0))
    if before.value == given_up:
        return plan
    first = [each for each in values.values() if goals.index(each.stage.goal) < goals.index(Goal.PREFERENCES)]
    rest = [each for each in values.values() if goals.index(each.stage.goal) > goals.index(Goal.PREFERENCES)]
    status = Status.FEASIBLE if plan.certificate.status is Status.OPTIMAL else plan.certificate.status
    return replace(
        plan,
        relaxed=tuple(found),
        objective=(*first, replace(before, value=given_up), *rest),
        certificate=replace(plan.certificate, status=status),
    )


def _given_up(reduced: Reduced, row: int, demand: int) -> tuple[str, ...]:
    parts = reduced.rows[row].parts
    position = next((i for i, (member, _) in enumerate(reduced.rows[row].bundle) if member == demand), 0)
    return parts[position].variant.given_up


def unserved_demands(reduced: Reduced, selection: Selection) -> dict[Demand, int]:
    """Return the pods of each demand that have no place, infeasible ones included."""
    missing = selection.all_unserved(reduced)
    return {demand: missing[demand.index] for demand in reduced.demands if missing[demand.index]}


def as_asked(plan: Plan, asked: Mapping[PodSpec, PodSpec]) -> Plan:
    """Return a plan with other specs, such as for pods with chosen domains, as one with the specs `asked` by what was
    planned instead. What was found for those of why pods are left out says nothing of these."""
    plan = with_specs(plan, asked)
    return replace(plan, unplaced=tuple(replace(each, reasons=()) for each in plan.unplaced))


def with_specs(plan: Plan, asked: Mapping[PodSpec, PodSpec]) -> Plan:
    """Return the plan with the specs `asked` by what was planned instead."""
    classes = tuple(replace(each, spec=asked.get(each.spec, each.spec)) for each in plan.pod_classes)
    return _with_classes_merged(replace(plan, pod_classes=classes))


def _with_classes_merged(plan: Plan) -> Plan:
    """Return the plan with one class for pods that are alike, which were planned as several."""
    first: dict[ClassKey, int] = {}
    merged: list[PodClass] = []
    number: dict[int, int] = {}
    for each in plan.pod_classes:
        index = number[each.index] = first.setdefault(class_key(each), len(merged))
        if index == len(merged):
            merged.append(replace(each, index=index))
        else:
            merged[index] = replace(merged[index], count=merged[index].count + each.count)
    if len(merged) == len(plan.pod_classes):
        return plan

    def pods(of: Mapping[int, int]) -> dict[int, int]:
        found = Counter[int]()
        for index, count in of.items():
            found[number[index]] += count
        return dict(sorted(found.items()))

    left = Counter[int]()
    for unplaced in plan.unplaced:
        left[number[unplaced.pod_class]] += unplaced.count
    reasons_of = {number[each.pod_class]: each for each in plan.unplaced}
    return replace(
        plan,
        pod_classes=tuple(merged),
        nodes=tuple(replace(each, pods=pods(each.pods)) for each in plan.nodes),
        candidates=tuple(replace(each, pods=pods(each.pods)) for each in plan.candidates),
        existing=tuple(replace(each, pods=pods(each.pods)) for each in plan.existing),
        unplaced=tuple(replace(each, pod_class=index, count=left[index]) for index, each in reasons_of.items()),
        relaxed=tuple(replace(each, pod_class=number[each.pod_class]) for each in plan.relaxed),
    )


def certified(plan: Plan, objective: Sequence[StageValue]) -> Plan:
    """Return the plan with these values and bounds of its objective, and a certificate that says the same."""
    unserved = (Goal.UNSERVED, Goal.PLACEHOLDERS)
    unproven = sum(round(each.value - each.lower_bound) for each in objective if each.stage.goal in unserved)
    costs = [each for each in objective if each.stage.goal is Goal.COST]
    cost = dollars(each.value for each in costs)
    pods = sum(each.count for each in plan.pod_classes)
    proven = all(each.value <= each.lower_bound for each in objective if not breaks_ties(each.stage))
    if pods and sum(each.count for each in plan.unplaced) == pods and not unproven:
        status = Status.INFEASIBLE
    else:
        status = Status.OPTIMAL if proven else Status.FEASIBLE
    certificate = Certificate(
        status,
        cost,
        dollars(each.lower_bound for each in costs),
        tuple(TierCost(each.stage.key, each.value, each.lower_bound) for each in reversed(costs)),
        min(cost, plan.certificate.price_of_priority_usd_per_hour),
        unproven,
    )
    return replace(plan, objective=tuple(objective), certificate=certificate)


def bounded_by(plan: Plan, loose: Plan) -> Plan:
    """Return the plan with bounds of one that is asked for less: of a stage they hold for plans that are as good at all
    stages before it."""
    known, holds, objective = {each.stage: each for each in loose.objective}, True, list[StageValue]()
    for each in plan.objective:
        other = known.get(each.stage)
        bound = min(each.value, other.lower_bound) if holds and other is not None else 0
        objective.append(replace(each, lower_bound=bound))
        holds = holds and other is not None and each.value <= other.value + _TOLERANCE
    return certified(plan, objective)


def without_bounds(plan: Plan) -> Plan:
    """Return the plan with nothing proven of it."""
    return certified(plan, [replace(each, lower_bound=0) for each in plan.objective])


def best_of(plans: Sequence[Plan]) -> Plan:
    """Return the plan with the best objective; stages that one does not have are 0 there."""
    values = [{each.stage: each.value for each in plan.objective} for plan in plans]
    stages = [*max(values, key=len)]
    return plans[min(range(len(plans)), key=lambda number: [values[number].get(stage, 0.0) for stage in stages])]
