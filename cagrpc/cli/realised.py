"""`cagrpc plan --realise`: what the kube-scheduler makes of the plan, for machines and for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from cagrpc.cli.output import table
from cagrpc.cli.planning import Planned, watched
from solver.realise import Realised, realise
from solver.scheduler import Profile, Scoring


def realised_plan(planned: Planned, scoring: str) -> Realised:
    """Within the budget that planning had."""
    profile = Profile(Scoring(scoring))
    return watched("realising", lambda: realise(planned.problem, planned.plan, planned.budget, profile))


def as_json(realised: Realised) -> dict[str, Any]:
    """Costs are US dollars per hour. A wave is let go once nothing lands any more on the nodes of those before."""
    return {
        "planned_cost_per_hour": realised.planned_cost_usd_per_hour,
        "realised_cost_per_hour": realised.realised_cost_usd_per_hour,
        "left_without_repairs": realised.stranded,
        "at_risk": realised.at_risk,
        "repairs": [
            {
                "node_group": repair.node_group,
                "delta": repair.delta,
                "cost_per_hour": repair.cost_usd_per_hour,
                "reason": repair.reason,
            }
            for repair in realised.repairs
        ],
        "waves": [
            [{"node_group": increment.node_group, "delta": increment.delta} for increment in wave]
            for wave in realised.waves
        ],
        "unplaced": [
            {"class": left.pod_class, "count": left.count, "reasons": list(left.reasons)}
            for left in realised.plan.unplaced
        ],
    }


def print_realised(realised: Realised, out: Console) -> None:
    """The repairs, and both costs in a sentence."""
    if realised.repairs:
        columns = ("nodes", "$/h")
        rows = table("Repairs", "node group", *columns, "why", right=columns)
        for repair in realised.repairs:
            rows.add_row(repair.node_group, f"{repair.delta:+}", f"{repair.cost_usd_per_hour:+.4f}", repair.reason)
        out.print(rows)
    waves = len(realised.waves)
    out.print(
        f"realised by the kube-scheduler at ${realised.realised_cost_usd_per_hour:.4f}/h, planned"
        f" ${realised.planned_cost_usd_per_hour:.4f}/h; left to it as planned, {realised.stranded} pods would stay"
        f" pending; {waves} {'wave' if waves == 1 else 'waves'} of nodes",
        soft_wrap=True,
    )
    left = sum(each.count for each in realised.plan.unplaced)
    if left:
        out.print(f"{left} pods stay pending all the same", soft_wrap=True)
