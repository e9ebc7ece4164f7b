"""Tables for people, on stdout unless another stream is given. What needs no table is `output`'s, which loads fast."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cagrpc.output import printable, writing

WIDTH_WITHOUT_TERMINAL = 140
"""Columns of a table that goes to a file or a pipe."""


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print text as it is, however long its lines are, and tables within the width."""
        options.setdefault("soft_wrap", all(isinstance(each, str) for each in objects))
        with writing():
            super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render whatever is printed as text, and the cells of tables."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """As everywhere else: `main` says what becomes of it."""
        raise BrokenPipeError


def console(stream: TextIO | None = None) -> Console:
    """Return the console of stdout, unless another stream is given. Markup is off: names come from users."""
    target = stream or sys.stdout
    width = None if target.isatty() else WIDTH_WITHOUT_TERMINAL
    return _Console(file=target, width=width, markup=False, highlight=False, emoji=False)


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table. The columns named in `right` are numbers."""
    aligned_right = set(right)
    result = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in aligned_right else "left", overflow="fold")
    return result
