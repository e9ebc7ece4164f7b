"""Prints a server's `/slack`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.tables import table

_NUMBERS = ("wanted", "held", "pushed out", "left over")


def print_slack(slack: Mapping[str, Any], out: Console) -> None:
    """Print it by target, then by placeholder, then the warnings."""
    if not slack:
        out.print("no slack is held: there is no `slack` in the configuration, or this server does not lead")
        return
    carrier = slack["carrier"] or "not known yet"
    out.print(f"carrier: {carrier}" + (f"; {slack['problem']}" if slack["problem"] else ""), soft_wrap=True)
    out.print(_targets(slack["targets"]))
    if slack["shapes"]:
        out.print(_shapes(slack["shapes"]))
    for name, count in slack.get("left_out", {}).items():
        out.print(f"not shown: {count} more of {name}")
    for warning in slack["warnings"]:
        out.print(f"not held: {warning}", soft_wrap=True)


def _targets(targets: Sequence[Mapping[str, Any]]) -> Any:
    result = table("Slack", "target", *_NUMBERS, "$/h", right=(*_NUMBERS, "$/h"))
    for each in targets:
        result.add_row(each["target"], *_counts(each), f"{each['cost_usd_per_hour']:.4f}")
    if len(targets) > 1:
        total = {key: sum(each[key] for each in targets) for key in (*map(_key, _NUMBERS), "cost_usd_per_hour")}
        result.add_section()
        result.add_row("all", *_counts(total), f"{total['cost_usd_per_hour']:.4f}")
    return result


def _shapes(shapes: Sequence[Mapping[str, Any]]) -> Any:
    result = table("Placeholders", "name", "requests", *_NUMBERS, "nodes", "why", right=(*_NUMBERS, "nodes"))
    for each in shapes:
        requests = ", ".join(f"{name} {amount}" for name, amount in each["requests"].items())
        result.add_row(each["name"], requests, *_counts(each), str(len(each["nodes"])), each["why"])
    return result


def _counts(of: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(of[_key(name)]) for name in _NUMBERS)


def _key(heading: str) -> str:
    return heading.replace(" ", "_")
