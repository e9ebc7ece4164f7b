"""An attack on whoever reads: what a tenant writes comes to an administrator's terminal."""

from __future__ import annotations

import io

from bench.hostile.meter import Meter
from bench.hostile.reading import claimed, unschedulable, with_devices
from cagrpc.inspection.status import ServerPages, print_status
from cagrpc.tables import console, table
from solver import Budget, NodeGroup, Problem, solve

_EXPRESSION = '// \x1b]0;owned\x07\x1b[2J\x1b[1;1Hready: all is well\x1b[8m\nip.isCanonical("1.2.3.4")'
_GROUP = NodeGroup(id="g", allocatable={"cpu": 8000, "memory": 32 << 30, "pods": 110}, price_usd_per_hour=1.0)
_STATUS = {"ready": True, "why_not_ready": "", "increments_in_flight": 0}
_ROUND = {
    "at_seconds": 1, "pods": 1, "nodes": 0, "planned_cost_per_hour": 0, "gap": 0, "elapsed_seconds": 0,
    "increments": [], "incomplete_gangs": [], "shortages": [],
}  # fmt: skip


def escapes(meter: Meter, count: int) -> None:
    """Terminal escapes in a CEL expression's comment, so many times over."""
    expression = "\n".join([_EXPRESSION] * count)
    state = claimed(with_devices(), expression, meter=meter, what="the expression")
    nodes = tuple(each.node for each in state.nodes)
    problem = Problem(pod_sets=tuple(each.pod_set for each in state.waiting), node_groups=(_GROUP,), nodes=nodes)
    plan = meter.measure("a plan", lambda: solve(problem, Budget(deterministic_seconds=1.0)))
    reasons = [reason for each in plan.unplaced for reason in each.reasons]
    left = {"count": 1, "example": "default/p", "reasons": reasons or [unschedulable(state)], "ways": []}
    on_terminal, in_table = io.StringIO(), io.StringIO()
    print_status(ServerPages(_STATUS, [], [{**_ROUND, "unplaced": [left]}], []), console(on_terminal))
    cells = table("x", "a")
    cells.add_row(_EXPRESSION)
    console(in_table).print(cells)
    for where, text in (("cagrpc status", on_terminal.getvalue()), ("a table", in_table.getvalue())):
        found = sorted({repr(each)[1:-1] for each in text if (each < " " and each != "\n") or each == "\x7f"})
        meter.note(f"{where} writes these control characters: {' '.join(found) or 'none'}")
