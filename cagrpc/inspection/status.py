"""`cagrpc status`: a server's `/status`, `/increments` and `/plans`, printed once; or again and again (`--watch`),
redrawn on a terminal, and elsewhere one line for each change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cagrpc.api.core.gangs import incomplete
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.shortages import Shortage, backed_off
from cagrpc.errors import Unavailable
from cagrpc.inspection.client import ServerAddress, get_json, get_list
from cagrpc.tables import table
from solver.explanation.model import NOT_YET, sentence
from solver.model.money import hourly
from solver.model.plan import gap_words
from solver.model.quantities import pluralize

FINISHED = ("done", "rolled-back")
_ROUNDS = 5
_LEFT_OUT = 10
_STAYS = 5
_EVERY_SECONDS = 2.0
Connect = Callable[[], AbstractContextManager[ServerAddress]]


def print_status(
    status: Mapping[str, Any], increments: Sequence[Mapping[str, Any]], plans: Sequence[Mapping[str, Any]], out: Console
) -> None:
    """Print the status, increments in flight, and the last planning rounds."""
    out.print("ready" if status["ready"] else f"not ready: {status['why_not_ready']}")
    for name, value in status.items():
        if name == "consolidation":
            _print_consolidation(value, out)
        elif name not in ("ready", "why_not_ready", "increments_in_flight") and value not in (None, "", {}):
            shown = (
                ", ".join(f"{what}: {each}" for what, each in value.items()) if isinstance(value, Mapping) else value
            )
            out.print(f"{name.replace('_', ' ')}: {shown}")
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
    out.print(f"consolidation: {shown['mode']}; {_what_it_does(shown)}")
    if plan is not None:
        out.print(
            f"  {hourly(plan['cost_usd_per_hour'])} now, {hourly(plan['cost_after_usd_per_hour'])} after"
            f" {pluralize(plan['steps_planned'], 'step')}, {hourly(plan['least_usd_per_hour'])} at least,"
            f" {hourly(plan['least_if_all_moved_usd_per_hour'])} if all could be moved"
        )
        for each in plan["stays"][:_STAYS]:
            out.print(f"  {each['reason']}: {pluralize(each['nodes'], 'node')}")
    if under_way is None and shown["last"] is not None:
        last, at = shown["last"], timestamp(shown["last"]["finished_at_seconds"])
        out.print(f"  last step: {last['phase']}, {at}: {last['message']}")


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
    numbers = ("pods", "nodes", "planned cost", "gap", "seconds")
    result = table("Planning rounds", "at", *numbers, "increments", right=numbers)
    for each in plans:
        increments = Counter(f"{groups_text(i['node_groups'])} ({i['phase']})" for i in each["increments"])
        result.add_row(
            timestamp(each["at_seconds"]),
            str(each["pods"]),
            str(each["nodes"]),
            hourly(each["planned_cost_per_hour"]),
            gap_words(each["gap"], sum(one["count"] for one in each["unplaced"])),
            f"{each['elapsed_seconds']:.2f}",
            "\n".join(text if count == 1 else f"{text} {count} times" for text, count in increments.items()),
        )
    return result


def _print_left_out(plan: Mapping[str, Any], out: Console) -> None:
    for each in plan["unplaced"][:_LEFT_OUT]:
        why = sentence("; ".join(each["reasons"]), each["ways"] or (NOT_YET,))  # earlier servers may have none
        out.print(f"not planned: {pluralize(each['count'], 'pod')} like {each['example']}: {why}")
    if plan.get("limited"):
        out.print(plan["limited"]["text"])
    for each in plan["incomplete_gangs"][:_LEFT_OUT]:
        out.print(f"not planned: {incomplete(each['gang'], each['pods'], each['needed'])}")
    for each in plan["shortages"][:_LEFT_OUT]:
        out.print(backed_off([Shortage.from_json(each)]))


def groups_text(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{group}+{delta}" for group, delta in deltas.items())


@dataclass(frozen=True, slots=True)
class ServerPages:
    """What `cagrpc status` shows."""

    status: Mapping[str, Any]
    increments: list[Any]
    plans: list[Any]

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "increments": self.increments, "plans": self.plans}

    def print(self, out: Console) -> None:
        print_status(self.status, self.increments, self.plans, out)


Answer = ServerPages | Unavailable
"""What a server has said, or why it has not."""


def pages_of(server: ServerAddress) -> ServerPages:
    """Return the pages. Raises Unavailable."""
    return ServerPages(get_json(server, "/status"), get_list(server, "/increments"), get_list(server, "/plans"))


def answers(connect: Connect, wait: Callable[[float], object] = time.sleep) -> Iterator[Answer]:
    """Yield what the server says, without end. It is connected anew where it stopped responding, since it may have been
    replaced and tokens expire. Raises Unavailable where it has never responded."""
    answered = False
    while True:
        try:
            with connect() as server:
                while True:
                    found = pages_of(server)
                    answered = True
                    yield found
                    wait(_EVERY_SECONDS)
        except Unavailable as error:
            if not answered:
                raise
            yield error
        wait(_EVERY_SECONDS)


def redraw(found: Iterator[Answer], out: Console) -> None:
    """Draw over what was drawn before, on a terminal. What does not fit on it is cut off below."""
    shown = ""
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        for answer in found:
            if isinstance(answer, ServerPages):
                with out.capture() as captured:
                    answer.print(out)
                shown = captured.get()
                live.update(Text.from_ansi(shown), refresh=True)
            else:
                live.update(Text.from_ansi(f"no answer: {answer}; this is the last one:\n{shown}"), refresh=True)


def changes(
    found: Iterator[Answer],
    now: Callable[[], float] = time.time,  # noqa: TID251 - for people
) -> Iterator[str]:
    """Yield a line for each change, with its time: of readiness, of an increment, and for each planning round. What had
    ended before is left out."""
    known: dict[str, str] | None = None
    for answer in found:
        facts = _facts(answer)
        for key, fact in facts.items():
            new = _worth_telling(answer, key) if known is None else known.get(key) != fact
            if new:
                yield f"{timestamp(now())} {fact}"
        known = {**(known or {}), **facts}


def _facts(answer: Answer) -> dict[str, str]:
    if isinstance(answer, Unavailable):
        return {"server": f"no answer: {answer}"}
    status = answer.status
    facts = {"server": "ready" if status["ready"] else f"not ready: {status['why_not_ready']}"}
    for each in answer.increments:
        said = f"increment {each['id']} {each['phase']}: {groups_text(each['deltas'])}"
        facts[f"increment {each['id']}"] = f"{said}: {each['message']}" if each["message"] else said
    for each in answer.plans:
        left_out = sum(one["count"] for one in each["unplaced"])
        cost = f"{hourly(each['planned_cost_per_hour'])}, gap {gap_words(each['gap'], left_out)}"
        planned = f"planned {pluralize(each['pods'], 'pod')} on {pluralize(each['nodes'], 'new node')}: {cost}"
        facts[f"plan {each['at_seconds']}"] = planned + (
            f"; {pluralize(left_out, 'pod')} without a place" * bool(left_out)
        )
    return facts


def _worth_telling(answer: Answer, key: str) -> bool:
    """Return whether a first answer's fact is of now."""
    assert isinstance(answer, ServerPages)
    flying = {f"increment {each['id']}" for each in answer.increments if each["phase"] not in FINISHED}
    return key == "server" or key in flying


def documents(found: Iterator[Answer]) -> Iterator[dict[str, Any]]:
    """Yield the pages as often as they have changed, for machines."""
    last: dict[str, Any] | None = None
    for answer in found:
        if isinstance(answer, ServerPages) and (document := answer.as_json()) != last:
            last = document
            yield document
