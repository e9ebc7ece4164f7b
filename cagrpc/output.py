"""How every command prints: results to stdout (text, or one JSON or YAML document for machines), everything else to
stderr. Tables for people are `tables`'. What controls a terminal is written out (`printable`): names, messages and
expressions come from whoever may create objects.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cagrpc.errors import CagrpcError, reason_of

_YELLOW, _PLAIN = "\x1b[33m", "\x1b[0m"
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tabs and new lines, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what changes the direction of text, and other ends of lines
    "\ud800-\udfff]"  # halves of characters, which nothing can encode
)


class OutputError(CagrpcError):
    """What a command found out cannot be written, to a full disk for example."""


def printable(text: str) -> str:
    """Return text of untrusted origin for terminals, logs and Events: characters that would control whatever shows it
    are written out as JSON does (`\\u001b`)."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@contextmanager
def writing() -> Iterator[None]:
    """Turn errors of the system in it into OutputError, but not that a reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        what = error.filename or "the output"
        raise OutputError(f"{what} cannot be written: {reason_of(error)}") from error


def warn(*messages: str) -> None:
    """Print warnings for people, on stderr."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    label = f"{_YELLOW}warning: {_PLAIN}" if coloured else "warning: "
    with writing():
        for message in messages:
            print(f"{label}{printable(message)}", file=sys.stderr)


def complain(problem: str) -> None:
    """Print why a command fails, on stderr."""
    print(f"cagrpc: {printable(problem)}", file=sys.stderr)


def say(text: str, *, flush: bool = False) -> None:
    """Print text for people or machines."""
    with writing():
        print(printable(text), flush=flush)


def print_data(document: Any, form: str) -> None:
    """Print one document, as `form` says: json or yaml."""
    say(data_text(document, form).rstrip("\n"))


def data_text(document: Any, form: str) -> str:
    """Return plain data as indented JSON, or as YAML."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    assert form == "yaml", form
    import yaml  # noqa: PLC0415 - nobody else here needs it

    plain = json.loads(json.dumps(document))  # the same values, whatever types they had
    as_it_is = not _CONTROLS.search(json.dumps(plain, ensure_ascii=False))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=as_it_is, width=120))
