"""Prints a decision of the expander, from `/decisions`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from cagrpc.tables import table


def print_decision(decision: dict[str, Any], out: Console) -> None:
    """Print every option with whether it was chosen or left out, and why."""
    at = datetime.fromtimestamp(decision["at_seconds"], UTC)
    columns = ("nodes", "pods", "$/h")
    result = table(f"Asked at {at:%Y-%m-%d %H:%M:%S} UTC", "", "node group", *columns, "why", right=columns)
    for option in decision["options"]:
        cost = option["cost_usd_per_hour"]
        result.add_row(
            "chosen" if option["node_group"] == decision["chosen"] else "left out" if option["left_out"] else "",
            option["node_group"],
            str(option["node_count"]),
            str(option["pods"]),
            "" if cost is None else f"{cost:.4f}",
            option["left_out"] or option["reason"],
        )
    out.print(result)
    choice = decision["chosen"] or "nothing (a veto: no scale-up in this loop)"
    out.print(f"chosen: {choice}, in {decision['elapsed_seconds']:.2f} s; {decision['reason']}", soft_wrap=True)
