"""Prints pages of a server: a decision of the expander (`/decisions`), a ProvisioningRequest (`/provisioningrequests`)
and the slack (`/slack`). `/status` and what belongs to it are `status`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.tables import table
from solver.model.money import hourly

_FIELDS = (
    ("cost_per_hour", "cost"),
    ("lower_bound_per_hour", "costs at least"),
    ("gap", "gap"),
    ("node_groups", "node groups"),
    ("node_selector", "its nodes"),
    ("attempts", "failed tries"),
    ("retry_at", "tried again at"),
    ("bypassed", "bypassed by younger ones"),
    ("consumers", "pods that consume it"),
)
"""Fields shown where they are not empty, with their headings."""
_MONEY = ("cost_per_hour", "lower_bound_per_hour")
_NUMBERS = ("wanted", "held", "pushed out", "left over")


def print_decision(decision: dict[str, Any], out: Console) -> None:
    """Print every option with whether it was chosen or left out, and why."""
    at = timestamp(decision["at_seconds"])
    columns = ("nodes", "pods", "cost")
    result = table(f"Asked at {at}", "", "node group", *columns, "why", right=columns)
    for option in decision["options"]:
        cost = option["cost_usd_per_hour"]
        result.add_row(
            "chosen" if option["node_group"] == decision["chosen"] else "left out" if option["left_out"] else "",
            option["node_group"],
            str(option["node_count"]),
            str(option["pods"]),
            "" if cost is None else hourly(cost),
            option["left_out"] or option["reason"],
        )
    out.print(result)
    nothing = "nothing" if decision.get("shadow") else "nothing (a veto: no scale-up in this loop)"
    choice = decision["chosen"] or ("the autoscaler's next expander chooses" if decision.get("passed_on") else nothing)
    verb = "would be chosen" if decision.get("shadow") else "chosen"
    out.print(f"{verb}: {choice}, in {decision['elapsed_seconds']:.2f} s; {decision['reason']}")


def print_request(record: Mapping[str, Any], out: Console) -> None:
    """Print a request of `/provisioningrequests`."""
    out.print(f"{record['namespace']}/{record['name']}: {record['phase']}", style="bold")
    out.print(record["explanation"])
    out.print(f"class: {record['class']} ({record['behaviour']}), created {record['created']}")
    for key, heading in _FIELDS:
        if record.get(key):
            out.print(f"{heading}: {hourly(float(record[key])) if key in _MONEY else record[key]}")
    increment = record["increment"]
    if increment:
        out.print(f"increment {increment['id']}: {increment['phase']}; {increment['message']}")
    sets = table("Pod sets", "template", "pods", "consumed", right=("pods", "consumed"))
    for each in record["pod_sets"]:
        sets.add_row(each["template"], str(each["count"]), str(each["consumed"]))
    out.print(sets)
    if record["conditions"]:
        conditions = table("Conditions", "type", "status", "reason", "message")
        for kind, each in record["conditions"].items():
            conditions.add_row(kind, "true" if each["status"] else "false", each["reason"], each["message"])
        out.print(conditions)


def print_slack(slack: Mapping[str, Any], out: Console) -> None:
    """Print it by target, then by placeholder, then the warnings."""
    if not slack:
        out.print("no slack is held: there is no `slack` in the configuration, or this server does not lead")
        return
    carrier = slack["carrier"] or "not known yet"
    out.print(f"carrier: {carrier}" + (f"; {slack['problem']}" if slack["problem"] else ""))
    out.print(_targets(slack["targets"]))
    if slack["shapes"]:
        out.print(_shapes(slack["shapes"]))
    for name, count in slack.get("left_out", {}).items():
        out.print(f"not shown: {count} more of {name}")
    for warning in slack["warnings"]:
        out.print(f"not held: {warning}")


def _targets(targets: Sequence[Mapping[str, Any]]) -> Any:
    result = table("Slack", "target", *_NUMBERS, "cost", right=(*_NUMBERS, "cost"))
    for each in targets:
        result.add_row(each["target"], *_counts(each), hourly(each["cost_usd_per_hour"]))
    if len(targets) > 1:
        total = {key: sum(each[key] for each in targets) for key in (*map(_key, _NUMBERS), "cost_usd_per_hour")}
        result.add_section()
        result.add_row("all", *_counts(total), hourly(total["cost_usd_per_hour"]))
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
