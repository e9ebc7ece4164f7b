"""How every command prints: results to stdout (tables for people, one JSON document for machines), everything else to
stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cagrpc.errors import CagrpcError

WIDTH_WITHOUT_TERMINAL = 140
"""Columns of a table that goes to a file or a pipe."""


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


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        with writing():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """As everywhere else: `main` says what becomes of it."""
        raise BrokenPipeError


def console(stream: TextIO | None = None) -> Console:
    """Of stdout unless another stream is given. Markup is off: names come from users."""
    target = stream or sys.stdout
    width = None if target.isatty() else WIDTH_WITHOUT_TERMINAL
    return _Console(file=target, width=width, markup=False, highlight=False, emoji=False)


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table; the columns named in `right` are numbers."""
    aligned_right = set(right)
    result = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in aligned_right else "left", overflow="fold")
    return result


def warn(message: str) -> None:
    """One warning for people, on stderr."""
    console(sys.stderr).print(Text("warning: ", style="yellow") + Text(message), soft_wrap=True)


def say(text: str) -> None:
    """Text as it is, for people or machines."""
    with writing():
        print(text)


def print_json(document: Any) -> None:
    """One JSON document, indented."""
    say(json.dumps(document, indent=2))
