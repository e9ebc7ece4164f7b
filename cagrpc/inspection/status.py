"""Prints a server's `/status`, `/increments` and `/plans`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.shortages import Shortage, left_out
from cagrpc.tables import table
from solver.model.plan import gap_words
from solver.model.quantities import pluralize

FINISHED = ("done", "rolled-back")
_ROUNDS = 5
_LEFT_OUT = 10
_STAYS = 5


def print_status(
    status: Mapping[str, Any], increments: Sequence[Mapping[str, Any]], plans: Sequence[Mapping[str, Any]], out: Console
) -> None:
    """Print the status, increments in flight, and the last planning rounds."""
    out.print("ready" if status["ready"] else f"not ready: {status['why_not_ready']}", soft_wrap=True)
    for name, value in status.items():
        if name == "consolidation":
            _print_consolidation(value, out)
        elif name not in ("ready", "why_not_ready", "increments_in_flight") and value not in (None, "", {}):
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


def _print_consolidation(shown: Mapping[str, Any], out: Console) -> None:
    plan, under_way = shown["plan"], shown["under_way"]
    out.print(f"consolidation: {shown['mode']}; {_what_it_does(shown)}", soft_wrap=True)
    if plan is not None:
        out.print(
            f"  {plan['cost_usd_per_hour']:.4f} $/h now, {plan['cost_after_usd_per_hour']:.4f} after"
            f" {pluralize(plan['steps_planned'], 'step')}, {plan['least_usd_per_hour']:.4f} at least,"
            f" {plan['least_if_all_moved_usd_per_hour']:.4f} if all could be moved",
            soft_wrap=True,
        )
        for each in plan["stays"][:_STAYS]:
            out.print(f"  {each['reason']}: {pluralize(each['nodes'], 'node')}", soft_wrap=True)
    if under_way is None and shown["last"] is not None:
        last = shown["last"]
        out.print(f"  last step: {last['phase']}, {timestamp(last['finished_at_seconds'])}: {last['message']}",
                  soft_wrap=True)  # fmt: skip


def _what_it_does(shown: Mapping[str, Any]) -> str:
    under_way = shown["under_way"]
    if under_way is None:
        return str(shown["waits_for"])
    nodes, pods = pluralize(len(under_way["nodes"]), "node"), pluralize(under_way["pods_moved"], "pod")
    said = f"step {under_way['id']} ({under_way['reason']}, {nodes}, {pods}) is {under_way['phase']}"
    return f"{said}, waits for {shown['waits_for']}" if shown["waits_for"] else said


def _increments(in_flight: Sequence[Mapping[str, Any]]) -> Any:
    result = table("Increments in flight", "id", "phase", "nodes", "pods", "waits for", right=("pods",))
    for each in in_flight:
        whom = pluralize(len(each["requests"]), "request") if each["requests"] else str(each["pods"])
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
            gap_words(each["gap"], sum(one["count"] for one in each["unplaced"])),
            f"{each['elapsed_seconds']:.2f}",
            "\n".join(text if count == 1 else f"{text} {count} times" for text, count in increments.items()),
        )
    return result


def _print_left_out(plan: Mapping[str, Any], out: Console) -> None:
    for each in plan["unplaced"][:_LEFT_OUT]:
        why = "; ".join((*each["reasons"], *each["ways"]))
        out.print(f"not planned: {pluralize(each['count'], 'pod')} like {each['example']}: {why}", soft_wrap=True)
    if plan.get("limited"):
        out.print(plan["limited"]["text"], soft_wrap=True)
    for each in plan["incomplete_gangs"][:_LEFT_OUT]:
        out.print(f"not planned: gang {each['gang']} has {each['pods']} of {each['needed']} pods", soft_wrap=True)
    for each in plan["shortages"][:_LEFT_OUT]:
        out.print(left_out([Shortage.from_json(each)]), soft_wrap=True)


def groups_text(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{group}+{delta}" for group, delta in deltas.items())
