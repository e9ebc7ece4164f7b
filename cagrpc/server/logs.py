"""The format of logs on stderr: one JSON object a line, or short lines on a terminal. Messages are those of the modules
that log.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")
_TALKATIVE = ("botocore", "boto3", "urllib3", "kubernetes")
"""Libraries whose information is for their own developers: below warnings only with `debug`."""


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Configure logging of the whole process, at `level` and above."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(_Lines() if target.isatty() else _Json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(
            logging.NOTSET if level == "debug" else max(logging.WARNING, logging.root.level)
        )


class _Json(logging.Formatter):
    """`time`, `level`, `logger`, `message` or the fields of a structured message, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **(_structured(record) or {"message": record.getMessage()}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class _Lines(logging.Formatter):
    """Short lines for a terminal: a decision is its choice and reason."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        decision = (_structured(record) or {}).get("decision")
        if decision:
            record.message = f"chose {decision['chosen'] or 'nothing'}: {decision['reason']}"
        return super().formatMessage(record)


def _structured(record: logging.LogRecord) -> dict[str, Any] | None:
    """Return the fields of a message that is a JSON object, as decisions are."""
    message = record.getMessage()
    if not message.startswith("{"):
        return None
    try:
        fields = json.loads(message)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
