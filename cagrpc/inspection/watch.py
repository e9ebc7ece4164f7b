"""`cagrpc status --watch`: a server's pages again and again, redrawn on a terminal, and elsewhere one line for each
change. What a page looks like is `status`'s business."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.errors import Unavailable
from cagrpc.inspection.client import ServerAddress, get_json, get_list
from cagrpc.inspection.status import FINISHED, groups_text, print_status
from solver.model.plan import gap_words
from solver.model.quantities import pluralize

_EVERY_SECONDS = 2.0
Connect = Callable[[], AbstractContextManager[ServerAddress]]


@dataclass(frozen=True, slots=True)
class ServerPages:
    """What `cagrpc status` shows."""

    status: Mapping[str, Any]
    increments: list[Any]
    plans: list[Any]

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "increments": self.increments, "plans": self.plans}


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
                shown = _drawn(answer, out)
                live.update(Text.from_ansi(shown), refresh=True)
            else:
                live.update(Text.from_ansi(f"no answer: {answer}; this is the last one:\n{shown}"), refresh=True)


def _drawn(pages: ServerPages, out: Console) -> str:
    with out.capture() as captured:
        print_status(pages.status, pages.increments, pages.plans, out)
    return captured.get()


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
        cost = f"${each['planned_cost_per_hour']:.4f}/h, gap {gap_words(each['gap'], left_out)}"
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
