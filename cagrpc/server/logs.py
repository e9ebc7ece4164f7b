"""How logs are written to stderr: one JSON object a line, or short lines on a terminal. Modules and libraries log by
`logging`, as always; structlog renders what they log, all of it in one way. A line is about what `extra` says: `plan`,
`increment`, `request`, `decision` are fields of their own, and so are the ids of the trace it belongs to.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, plain_traceback

from cagrpc.output import printable
from cagrpc.runtime import tracing

_TALKATIVE = ("urllib3", "kubernetes")
"""Libraries whose information is for their own developers: below warnings only with `debug`."""

Fields = MutableMapping[str, Any]


class _Formatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Configure logging of the whole process, at `level` and above."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(_short_lines() if target.isatty() else _json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
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
