"""Prints a ProvisioningRequest, from `/provisioningrequests`: its phase and the reason, its cost, and every
condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from cagrpc.tables import table

_FIELDS = (
    ("cost_per_hour", "$/h"),
    ("lower_bound_per_hour", "at least ($/h)"),
    ("gap", "gap"),
    ("node_groups", "node groups"),
    ("node_selector", "its nodes"),
    ("attempts", "failed tries"),
    ("retry_at", "tried again at"),
    ("overtaken", "bypassed by younger ones"),
    ("consumers", "pods that consume it"),
)
"""Fields shown where they are not empty, with their headings."""


def print_request(record: Mapping[str, Any], out: Console) -> None:
    """Print a request of `/provisioningrequests`."""
    out.print(f"{record['namespace']}/{record['name']}: {record['phase']}", style="bold", soft_wrap=True)
    out.print(record["explanation"], soft_wrap=True)
    out.print(f"class: {record['class']} ({record['behaviour']}), created {record['created']}", soft_wrap=True)
    for key, heading in _FIELDS:
        if record[key]:
            out.print(f"{heading}: {record[key]}", soft_wrap=True)
    increment = record["increment"]
    if increment:
        out.print(f"increment {increment['id']}: {increment['phase']}; {increment['message']}", soft_wrap=True)
    sets = table("Pod sets", "template", "pods", "consumed", right=("pods", "consumed"))
    for each in record["pod_sets"]:
        sets.add_row(each["template"], str(each["count"]), str(each["consumed"]))
    out.print(sets)
    if record["conditions"]:
        conditions = table("Conditions", "type", "status", "reason", "message")
        for kind, each in record["conditions"].items():
            conditions.add_row(kind, "true" if each["status"] else "false", each["reason"], each["message"])
        out.print(conditions)
