"""Prints a server's `/status`, `/increments` and `/plans`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.api.encoding.times import timestamp
from cagrpc.cluster.shortages import Shortage, left_out
from cagrpc.tables import table
from solver.model.quantities import several

FINISHED = ("done", "rolled-back")
_ROUNDS = 5
_LEFT_OUT = 10


def print_status(
    status: Mapping[str, Any], increments: Sequence[Mapping[str, Any]], plans: Sequence[Mapping[str, Any]], out: Console
) -> None:
    """Print the status, increments in flight, and the last planning rounds."""
    out.print("ready" if status["ready"] else f"not ready: {status['why_not_ready']}", soft_wrap=True)
    for name, value in status.items():
        if name not in ("ready", "why_not_ready", "increments_in_flight") and value not in (None, "", {}):
            shown = (
                ", ".join(f"{what}: {each}" for what, each in value.items()) if isinstance(value, Mapping) else value
            )
            out.print(f"{name.replace('_', ' ')}: {shown}", soft_wrap=True)
    in_flight = [each for each in increments if each["phase"] not in FINISHED]
    if in_flight:
        out.print(_increments(in_flight))
    else:
        out.print("no increment is in flight")
    if plans:
        out.print(_rounds(plans[-_ROUNDS:]))
        _print_left_out(plans[-1], out)


def _increments(in_flight: Sequence[Mapping[str, Any]]) -> Any:
    result = table("Increments in flight", "id", "phase", "nodes", "pods", "waits for", right=("pods",))
    for each in in_flight:
        whom = several(len(each["requests"]), "request") if each["requests"] else str(each["pods"])
        result.add_row(each["id"], each["phase"], groups_text(each["deltas"]), whom, each["message"])
    return result


def _rounds(plans: Sequence[Mapping[str, Any]]) -> Any:
    numbers = ("pods", "nodes", "planned $/h", "gap", "seconds")
    result = table("Planning rounds", "at", *numbers, "increments", right=numbers)
    for each in plans:
        increments = Counter(f"{groups_text(i['node_groups'])} ({i['phase']})" for i in each["increments"])
        result.add_row(
            timestamp(each["at_seconds"]),
            str(each["pods"]),
            str(each["nodes"]),
            f"{each['planned_cost_per_hour']:.4f}",
            f"{each['gap']:.2%}",
            f"{each['elapsed_seconds']:.2f}",
            "\n".join(text if count == 1 else f"{text} {count} times" for text, count in increments.items()),
        )
    return result


def _print_left_out(plan: Mapping[str, Any], out: Console) -> None:
    for each in plan["unplaced"][:_LEFT_OUT]:
        why = "; ".join((*each["reasons"], *each["ways"]))
        out.print(f"not planned: {several(each['count'], 'pod')} like {each['example']}: {why}", soft_wrap=True)
    if plan.get("limited"):
        out.print(plan["limited"]["text"], soft_wrap=True)
    for each in plan["incomplete_gangs"][:_LEFT_OUT]:
        out.print(f"not planned: gang {each['gang']} has {each['pods']} of {each['needed']} pods", soft_wrap=True)
    for each in plan["shortages"][:_LEFT_OUT]:
        out.print(left_out([Shortage.from_json(each)]), soft_wrap=True)


def groups_text(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{group}+{delta}" for group, delta in deltas.items())
