"""`cagrpc status`: a server's `/status`, `/nodegroups`, `/increments` and `/plans` in one screen, or all of them with
`--verbose`; once, or again and again (`--watch`), redrawn on a terminal, and elsewhere one line for each change."""

from __future__ import annotations

import io
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
from cagrpc.output import printable
from cagrpc.services.http.overview.digest import warnings_of
from cagrpc.tables import console, paragraph, table
from solver.explanation.model import NOT_YET, sentence
from solver.model.money import hourly, monthly
from solver.model.plan import gap_words
from solver.model.quantities import pluralize

FINISHED = ("done", "rolled-back")
_ROUNDS = 5
_LEFT_OUT = 10
_FEW = 5
_CAUSES = 2
_STAYS = 5
_STATES = ("creating", "running", "deleting", "failed")
_SAID = frozenset(
    {"ready", "why_not_ready", "increments_in_flight", "consolidation", "compiling", "backend_problem", "orphans"}
    | {"certificates_problem", "left_out", "not_followed", "waiting_pods"}
)
"""Of the status, what is printed already: by name, or as a warning."""
_EVERY_SECONDS = 2.0
Connect = Callable[[], AbstractContextManager[ServerAddress]]


def print_status(pages: ServerPages, out: Console, *, verbose: bool = False) -> None:
    """Print what nodes there are and what they cost, which pods wait and why, what is under way, and what somebody
    should look at; with `verbose` all of the status, and the last planning rounds."""
    status, plans = pages.status, pages.plans
    out.print("ready" if status["ready"] else f"not ready: {status['why_not_ready']}", style="bold")
    in_flight = [each for each in pages.increments if each["phase"] not in FINISHED]
    out.print(_headline(pages, len(in_flight)))
    if any(_has_nodes(each) for each in pages.groups):
        out.print(_nodes(pages.groups))
    if plans:
        _print_waiting(plans[-1], out, _LEFT_OUT if verbose else _FEW)
    if in_flight:
        out.print(_increments(in_flight if verbose else in_flight[:_LEFT_OUT]))
        if not verbose and len(in_flight) > _LEFT_OUT:
            out.print(f"and {pluralize(len(in_flight) - _LEFT_OUT, 'more increment')}: --verbose shows them")
    if status.get("consolidation"):
        _print_consolidation(status["consolidation"], out, verbose=verbose)
    warnings = [*warnings_of(status), *(plans[-1].get("warnings", ()) if plans else ())]
    for warning in warnings if verbose else warnings[:_FEW]:
        _say(out, f"warning: {warning}", style="yellow")
    if not verbose and len(warnings) > _FEW:
        out.print(f"and {pluralize(len(warnings) - _FEW, 'more warning')}: --verbose shows them")
    if verbose:
        _print_rest(status, out)
        if plans:
            out.print(_rounds(plans[-_ROUNDS:]))


def _headline(pages: ServerPages, in_flight: int) -> str:
    """Return the state of things in a line."""
    nodes = sum(each["target_size"] for each in pages.groups)
    cost = sum(map(_cost, pages.groups))
    priced = f" for {hourly(cost)} ({monthly(cost)})" if nodes else ""
    pods = pages.status.get("waiting_pods")
    waiting = "" if pods is None else f"; {pluralize(pods, 'pending pod') if pods else 'no pending pod'}"
    flying = pluralize(in_flight, "increment") if in_flight else "no increment"
    return f"{pluralize(nodes, 'node')}{priced}{waiting}; {flying} in flight"


def _cost(group: Mapping[str, Any]) -> float:
    return float(group["price_usd_per_hour"] * group["target_size"])


def _has_nodes(group: Mapping[str, Any]) -> bool:
    return bool(group["target_size"] or group["instances"])


def _nodes(groups: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table of what each provisioner has, highest weight first."""
    columns = ("weight", "nodes", *_STATES, "cost")
    result = table("Nodes", "provisioner", *columns, right=columns)
    found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for each in groups:
        if _has_nodes(each):
            found.setdefault((-each["weight"], each["provisioner"]), []).append(each)
    for (weight, provisioner), mine in sorted(found.items()):
        states = (sum(each["instances"].get(state, 0) for each in mine) for state in _STATES)
        numbers = (sum(each["target_size"] for each in mine), *states)
        result.add_row(provisioner, str(-weight), *map(str, numbers), hourly(sum(map(_cost, mine))))
    return result


def _print_rest(status: Mapping[str, Any], out: Console) -> None:
    """Print all of the status that is not said yet, a line for each thing."""
    for name, value in status.items():
        if name in _SAID or value in (None, "", {}, [], 0):
            continue
        if isinstance(value, Mapping):
            shown = ", ".join(f"{what}: {each}" for what, each in value.items())
        elif name == "certificates":
            shown = ", ".join(_certificate(each) for each in value)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        out.print(f"{name.replace('_', ' ')}: {shown}")


def _certificate(each: Mapping[str, Any]) -> str:
    return f"{each['certificate']} of {each['listener']} until {timestamp(each['expires_seconds'])}"


def _say(out: Console, text: str, indent: str = "", style: str | None = None) -> None:
    out.print(paragraph(text, out.width, indent, f"{indent}  "), style=style)


def _print_consolidation(shown: Mapping[str, Any], out: Console, *, verbose: bool) -> None:
    plan, under_way, last = shown["plan"], shown["under_way"], shown["last"]
    said = f"consolidation ({shown['mode']}): {_what_it_does(shown)}"
    if plan is not None:
        now, after = plan["cost_usd_per_hour"], plan["cost_after_usd_per_hour"]
        saved = f"{pluralize(plan['steps_planned'], 'step')} would save {hourly(now - after)} ({monthly(now - after)})"
        if now > 0:
            said += f"; {saved if plan['steps_planned'] else 'no step would save anything'} of {hourly(now)}"
    _say(out, said)
    if plan is not None and verbose:
        least, all_moved = plan["least_usd_per_hour"], plan["least_if_all_moved_usd_per_hour"]
        _say(out, f"proven: {hourly(least)} at least, {hourly(all_moved)} if every pod could be moved", "  ")
        for each in plan["stays"][:_STAYS]:
            _say(out, f"{each['reason']}: {pluralize(each['nodes'], 'node')}", "  ")
    if under_way is None and last is not None and verbose:
        at = timestamp(last["finished_at_seconds"])
        _say(out, f"last step: {last['phase']}, {at}: {last['message']}", "  ")


def _what_it_does(shown: Mapping[str, Any]) -> str:
    under_way = shown["under_way"]
    if under_way is None:
        return str(shown["waits_for"] or "nothing to do")
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


def _print_waiting(plan: Mapping[str, Any], out: Console, most: int) -> None:
    """Print a line for each cause for which pods of the last round wait still, those of most pods first."""
    causes: dict[str, list[Mapping[str, Any]]] = {}
    for each in plan["unplaced"]:
        if each.get("waiting", each["count"]):
            why = sentence("; ".join(each["reasons"][:_CAUSES]), each["ways"] or (NOT_YET,))
            causes.setdefault(why, []).append(each)
    found = [(sum(one.get("waiting", one["count"]) for one in mine), why, mine) for why, mine in causes.items()]
    found.sort(key=lambda each: -each[0])
    for pods, why, mine in found[:most]:
        others = f" and {pluralize(len(mine) - 1, 'other kind')}" if len(mine) > 1 else ""
        _say(out, f"{pluralize(pods, 'pod')} like {mine[0]['example']}{others}: {why}")
    if len(found) > most:
        rest = sum(each[0] for each in found[most:])
        out.print(f"and {pluralize(rest, 'pod')} for {pluralize(len(found) - most, 'other cause')}: see /plans")
    if plan.get("limited"):
        _say(out, plan["limited"]["text"])
    for each in plan["incomplete_gangs"][:most]:
        _say(out, incomplete(each["gang"], each["pods"], each["needed"]))
    for each in plan["shortages"][:most]:
        _say(out, backed_off([Shortage.from_json(each)]))


def print_round(plan: Mapping[str, Any], out: Console) -> None:
    """Print a planning round: what it came to, its increments, and why pods wait."""
    left_out = sum(each["count"] for each in plan["unplaced"])
    cost, gap = hourly(plan["planned_cost_per_hour"]), gap_words(plan["gap"], left_out)
    out.print(f"Round {plan['id']}, at {timestamp(plan['at_seconds'])}: {plan['why']}", style="bold")
    _say(
        out,
        f"{pluralize(plan['pods'], 'pod')} planned: {pluralize(plan['nodes'], 'new node')} for {cost} (gap {gap}),"
        f" {plan['on_existing']} on existing nodes, {left_out} without a place",
    )
    for each in plan["increments"]:
        said = f"increment {each['id'] or '(none)'} {each['phase']}: {groups_text(each['node_groups'])}"
        _say(out, f"{said}: {each['message']}" if each["message"] else said, "  ")
    _print_waiting(plan, out, _LEFT_OUT)


def groups_text(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{group}+{delta}" for group, delta in deltas.items())


@dataclass(frozen=True, slots=True)
class ServerPages:
    """What `cagrpc status` shows."""

    status: Mapping[str, Any]
    increments: list[Any]
    plans: list[Any]
    groups: list[Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status, "increments": self.increments, "plans": self.plans, "node_groups": self.groups
        }  # fmt: skip


Answer = ServerPages | Unavailable
"""What a server has said, or why it has not."""


def pages_of(server: ServerAddress) -> ServerPages:
    """Return the pages. Raises Unavailable."""
    lists = (get_list(server, path) for path in ("/increments", "/plans", "/nodegroups"))
    return ServerPages(get_json(server, "/status"), *lists)


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


def redraw(found: Iterator[Answer], out: Console, *, verbose: bool = False) -> None:
    """Draw on the terminal's other screen, each time all of it: what does not fit is cut off below. The last drawing
    stays when that ends."""
    shown = ""
    try:
        with Live(console=out, auto_refresh=False, screen=True) as live:
            for answer in found:
                problem = ""
                if isinstance(answer, ServerPages):
                    shown = _drawn(answer, out, verbose=verbose)
                else:
                    why = printable(f"no answer: {answer}; this is the last one:")
                    problem = f"{paragraph(why, out.width)}\n"
                live.update(Text.from_ansi(f"{problem}{shown}".rstrip("\n")), refresh=True)
    finally:
        out.print(Text.from_ansi(shown))


def _drawn(pages: ServerPages, out: Console, *, verbose: bool) -> str:
    """Return what is printed, with its styles. Not by the console that draws: what that prints goes above it."""
    stream = io.StringIO()
    copy = console(stream, like=out)
    print_status(pages, copy, verbose=verbose)
    return stream.getvalue()


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
