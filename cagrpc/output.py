"""How every command prints: results to stdout (text, or one JSON or YAML document for machines), everything else to
stderr. Tables for people are `tables`'.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cagrpc.errors import CagrpcError

_YELLOW, _PLAIN = "\x1b[33m", "\x1b[0m"


class OutputError(CagrpcError):
    """What a command found out cannot be written, to a full disk for example."""


@contextmanager
def writing() -> Iterator[None]:
    """An error of the system in here is an OutputError; a reader who has gone is not."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error


def warn(message: str) -> None:
    """One warning for people, on stderr."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    with writing():
        print(f"{_YELLOW}warning: {_PLAIN}{message}" if coloured else f"warning: {message}", file=sys.stderr)


def say(text: str) -> None:
    """Text as it is, for people or machines."""
    with writing():
        print(text)


def print_data(document: Any, form: str) -> None:
    """One document, as `form` says: json or yaml."""
    say(data_text(document, form).rstrip("\n"))


def data_text(document: Any, form: str) -> str:
    """Return plain data as indented JSON, or as YAML."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    assert form == "yaml", form
    import yaml  # noqa: PLC0415 - nobody else here needs it

    plain = json.loads(json.dumps(document))  # the same values, whatever types they had
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
