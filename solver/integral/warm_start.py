"""What a previous plan gives the next one to start from: its nodes, as patterns of the present problem."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from solver.columns.patterns import Pattern
from solver.columns.pool import Pool
from solver.model import Plan, PlannedNodes, PodSpec
from solver.reduction.colocation import CoLocation
from solver.reduction.reduced import Floats, Reduced

_MOST_CANDIDATES = 3000
_NEARLY_PAYS = 0.95


def known_nodes(reduced: Reduced) -> dict[Pattern, int]:
    """Return the previous plan's nodes, existing ones among them, with those of their pods that are still wanted, and
    the number of each. Groups, nodes and classes that are gone are skipped, and nodes that have become too small.
    Expects a problem in which every demand has one row."""
    previous = reduced.problem.previous
    if previous is None:
        return {}
    standing = ((each.node, 1, each.pods) for each in previous.existing)
    new = ((each.node_group, each.count, each.pods) for each in previous.nodes)
    return _patterns(reduced, previous, (*new, *standing))


def known_candidates(reduced: Reduced) -> Iterable[Pattern]:
    """Return what else the previous plan considered, in the same way."""
    previous = reduced.problem.previous
    if previous is None:
        return ()
    return _patterns(reduced, previous, ((each.node_group, 1, each.pods) for each in previous.candidates))


def _patterns(
    reduced: Reduced, previous: Plan, nodes: Iterable[tuple[str, int, Mapping[int, int]]]
) -> dict[Pattern, int]:
    """Return patterns for (group or node, number of nodes, pods of each class)."""
    rows_of: dict[PodSpec, list[int]] = defaultdict(list)
    for demand in reduced.live:
        if not reduced.rows[demand.row].bundle and demand.row not in rows_of[demand.spec]:
            rows_of[demand.spec].append(demand.row)
    rows = {cls.index: rows_of[cls.spec] for cls in previous.pod_classes if cls.spec in rows_of}
    kind_of = {name: kind.index for kind in reduced.kinds for name in (*kind.groups, *kind.nodes)}
    found: Counter[Pattern] = Counter()
    colocation = CoLocation(reduced)
    for name, count, pods in nodes:
        kind = kind_of.get(name)
        if kind is None:
            continue
        held: Counter[int] = Counter()
        for cls, number in pods.items():
            # A class that is split over domains has one row for this kind.
            for row in [row for row in rows.get(cls, ()) if reduced.fits[kind, row]][:1]:
                held[row] += number
        kept = held if colocation.anything_goes else colocation.trimmed(reduced.kinds[kind], held)
        if kept and _fits(reduced, kind, kept):
            found[Pattern(kind, tuple(sorted(kept.items())))] += count
    return dict(found)


def candidates(pool: Pool, node_cost: Floats, values: Floats) -> tuple[PlannedNodes, ...]:
    """Return the pool's patterns of new nodes, best first, that at these values per row are nearly worth their node."""
    reduced, entries, kinds = pool.reduced, pool.entries(), pool.kinds()
    value = values[entries.spec] * entries.pods
    worth = np.bincount(entries.column, weights=value, minlength=len(kinds)) / (node_cost[kinds] + 1.0)
    worth[[reduced.kinds[kind].existing for kind in kinds.tolist()]] = 0.0
    order = np.argsort(-worth, kind="stable")[:_MOST_CANDIDATES]
    chosen = order[(worth[order] > 0) & (worth[order] >= _NEARLY_PAYS * worth.max(initial=0.0))]
    demand_of = {row: demand.index for demand in reversed(reduced.live) for row in demand.rows}
    found = []
    for column in chosen.tolist():
        pattern = pool.patterns[column]
        pods = {demand_of[row]: units for row, units in pattern.pods if row in demand_of}
        found.append(PlannedNodes(reduced.kinds[pattern.kind].groups[0], 1, pods))
    return tuple(found)


def _fits(reduced: Reduced, kind: int, held: Mapping[int, int]) -> bool:
    rows, units = list(held), np.array(list(held.values()), dtype=np.int64)
    return bool(
        reduced.fits[kind, rows].all()
        and (units <= reduced.caps[rows]).all()
        and (units @ reduced.requests[rows] <= reduced.free[kind]).all()
    )
