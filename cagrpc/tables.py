"""Tables and paragraphs for people, on stdout unless another stream is given. What needs neither is `output`'s, which
loads fast."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cagrpc.output import printable, writing

WIDTH_WITHOUT_TERMINAL = 100
"""Columns of what goes to a file or a pipe; a name that is longer is not broken there."""


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print text as it is, however long its lines are, and tables within the width, with no name broken as far as
        there is room."""
        options.setdefault("soft_wrap", all(isinstance(each, str) for each in objects))
        for each in objects:
            if isinstance(each, Table):
                least = _fit(each, self.width)
                if not self.is_terminal and least > self.width:
                    self.width = least
        with writing():
            super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render whatever is printed as text, and the cells of tables."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Leave it to `main` to say what becomes of it, as everywhere else."""
        raise BrokenPipeError


def _fit(table: Table, width: int) -> int:
    """Give every column the room that its longest word needs, and what is left to those with the least more to say
    first. Return the width that this takes at least; where it is more than `width`, words are broken."""
    cells = [[printable(str(cell)) for cell in (column.header, *column.cells)] for column in table.columns]
    words = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    lines = [max((cell_len(line) for cell in column for line in cell.splitlines()), default=0) for column in cells]
    least = sum(words) + 3 * len(cells) + 1  # with lines and spaces around
    left = width - least
    if left < 0:
        return least
    columns = sorted(zip(table.columns, words, lines, strict=True), key=lambda each: each[2] - each[1])
    for before, (column, word, line) in enumerate(columns):
        more = min(line - word, left // (len(columns) - before))
        column.width, left = word + more, left - more
    return least


def paragraph(text: str, width: int, indent: str = "", hanging: str = "") -> str:
    """Return text in lines of so many columns, all but the first with `hanging` before them; no word is broken."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=hanging or indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def console(stream: TextIO | None = None, *, like: Console | None = None) -> Console:
    """Return the console of stdout, unless another stream is given; `like` another one, as wide and with its colours.
    Markup is off: names come from users."""
    target = stream or sys.stdout
    width = like.width if like is not None else None if target.isatty() else WIDTH_WITHOUT_TERMINAL
    terminal = like.is_terminal if like is not None else None
    return _Console(file=target, width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False)


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table. The columns named in `right` are numbers."""
    aligned_right = set(right)
    result = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in aligned_right else "left", overflow="fold")
    return result
