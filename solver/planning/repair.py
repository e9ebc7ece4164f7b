"""Repair of selections whose pods lack the helpers that they need on a node.

Columns have room for at least the pods that there are. So a node's helpers (`reduction.colocation`) may exist in the
column and not on the node, where CP-SAT had no time to count them exactly. Then fewer pods are served, rather than a
constraint broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from solver.columns.patterns import Pattern
from solver.columns.pool import Pool
from solver.integral.master import Selection
from solver.integral.quotas import chosen
from solver.planning import write_plan
from solver.planning.write_plan import Batch
from solver.reduction.colocation import CoLocation
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import claims, settle, units_of, unserved_of

_ATTEMPTS = 3


def placed(pool: Pool, selection: Selection) -> tuple[list[Batch], Selection]:
    """Return the batches of a selection, and the selection reduced to pods that have the helpers that they need."""
    reduced = pool.reduced
    colocation = CoLocation(reduced)
    for attempt in range(_ATTEMPTS + 1):
        batches = write_plan.batches(pool, selection)
        if all(colocation.helped(reduced.kinds[batch.kind], batch.rows(reduced)) for batch in batches):
            break
        helped = _helped(reduced, colocation, batches)
        if attempt == _ATTEMPTS - 1:  # last attempt: serve no pods that need helpers
            helped = {row: 0 if any(row in n.carriers for n in reduced.needs) else n for row, n in helped.items()}
        room = [helped.get(row, 0) for row in range(len(reduced.rows))]
        claimed = claims(reduced)
        values = settle(reduced, claimed, room, chosen(reduced, claimed, room=room))
        selection = replace(selection, unserved=unserved_of(claimed, values), units=units_of(claimed, values))
    return batches, selection


def realised(pool: Pool, selection: Selection) -> Selection:
    """Return the selection with patterns of just the pods that are placed, where pods need co-location: helpers without
    a pod are gone. May add columns to the pool."""
    reduced = pool.reduced
    if not reduced.needs:
        return selection
    batches, kept = placed(pool, selection)
    nodes: Counter[Pattern] = Counter()
    for batch in batches:
        nodes[Pattern(batch.kind, tuple(sorted(batch.rows(reduced).items())))] += batch.count
    pool.add(nodes)
    return replace(kept, nodes=tuple(nodes[pattern] for pattern in pool.patterns))


def _helped(reduced: Reduced, colocation: CoLocation, batches: Sequence[Batch]) -> dict[int, int]:
    """Return the units per row that have the helpers that they need."""
    total: Counter[int] = Counter()
    for batch in batches:
        kept = colocation.trimmed(reduced.kinds[batch.kind], batch.rows(reduced))
        total.update({row: units * batch.count for row, units in kept.items()})
    return dict(total)
