"""How logs are written to stderr: one JSON object a line, or short lines on a terminal. Modules and libraries log by
`logging`, as always; structlog renders what they log, all of it in one way. A line is about what `extra` says: `plan`,
`increment`, `request`, `decision` are fields of their own, and so are the ids of the trace it belongs to.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, plain_traceback

from cagrpc.output import printable
from cagrpc.runtime import tracing
from cagrpc.runtime.controller import Json, JsonList, JsonPage

_TALKATIVE = ("urllib3", "kubernetes")
"""Libraries whose information is for their own developers: below warnings only with `debug`."""

_HAPPENED = ("cagrpc.controllers.", "cagrpc.fleet.")
"""Whose information is about what happened to pods and nodes; of others only warnings are."""
_MOST_RECENT, _LONGEST_LINE = 200, 4000

Fields = MutableMapping[str, Any]


class _Recent(logging.Handler):
    """Keeps the last lines about what happened."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: deque[Json] = deque(maxlen=_MOST_RECENT)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and not record.name.startswith(_HAPPENED):
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - whoever logs what cannot be said goes on all the same
            self.handleError(record)
            return
        line = {"at_seconds": record.created, "level": record.levelname.lower(), "text": text[:_LONGEST_LINE]}
        about = {name: str(record.__dict__[name]) for name in _ABOUT if name in record.__dict__}
        self.lines.append({**line, "about": about})


_ABOUT = ("increment", "plan", "disruption", "request", "decision")
_RECENT = _Recent()


def pages() -> Mapping[str, JsonPage]:
    """Return `/log`: what happened last in this process, oldest first."""
    return {"/log": JsonPage(lambda: JsonList([*_RECENT.lines]))}


class _Formatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Configure logging of the whole process, at `level` and above."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(_short_lines() if target.isatty() else _json())
    handler.setLevel(level.upper())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    own = logging.getLogger("cagrpc")
    own.setLevel(min(logging.INFO, logging.root.level))  # the page has them also where stderr does not
    if _RECENT not in own.handlers:
        own.addHandler(_RECENT)
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(
            logging.NOTSET if level == "debug" else max(logging.WARNING, logging.root.level)
        )


def _json() -> logging.Formatter:
    """Return what makes one JSON object a line: `time`, `level`, `logger`, `message`, the fields of the line,
    `traceback`."""
    return _Formatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _add_ids,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.EventRenamer("message"),
            structlog.processors.format_exc_info,
            _traceback,
            structlog.processors.JSONRenderer(default=str),
        ],
    )


def _short_lines() -> logging.Formatter:
    """Return what makes a line of time, level and message. What the fields say that matters to people is in the
    message."""
    columns = [
        Column("time", lambda _, value: str(value)),
        Column("level", lambda _, value: f"{str(value).upper():<7}"),
        Column("event", lambda _, value: str(value)),
        Column("", lambda _key, _value: ""),
    ]
    return _Formatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="time"),
            structlog.stdlib.add_log_level,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            ConsoleRenderer(columns=columns, exception_formatter=plain_traceback),
        ],
    )


def _add_ids(_logger: object, _method: str, fields: Fields) -> Fields:
    fields.update(tracing.fields(fields))
    return fields


def _traceback(_logger: object, _method: str, fields: Fields) -> Fields:
    if "exception" in fields:
        fields["traceback"] = fields.pop("exception")
    return fields
