"""The syntax of CEL: cel-python's grammar and lark's parser, with strings that are read in linear time (cel-python's
own take exponential time for a text that ends within one), and with small trees.

A level of the grammar that only passes its one operand on is no node of a tree, though it counts among its steps, and
equal parts of an expression are one. So a byte of text costs at most some 100 bytes of memory, and a token
(`tokens_in`, known before it is read) some 25 µs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import celpy
import lark
from celpy.celparser import CELParser

_PASSING_ON = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "primary", "member"}
)
"""Rules that only pass on what they have where they have one part; the last two where it is a literal."""
_STRINGS = {
    "STRING_LIT": (
        r'/[rR]"[^"\n]*"/',
        r"/[rR]'[^'\n]*'/",
        r'/"(?:[^"\\\n]|\\.)*"/',
        r"/'(?:[^'\\\n]|\\.)*'/",
    ),
    "MLSTRING_LIT": (
        r'/[rR]"""(?:[^"]|"(?!""))*"""/',
        r"/[rR]'''(?:[^']|'(?!''))*'''/",
        r'/"""(?:[^"\\]|\\(?:.|\n)|"(?!""))*"""/',
        r"/'''(?:[^'\\]|\\(?:.|\n)|'(?!''))*'''/",
    ),
}
"""Literals as cel-python has them, each character in one way only."""
_TOKEN = re.compile(r"""[A-Za-z0-9_]+|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\s+|.""")
_PARSING = Lock()


class SyntaxNode:
    """A part of an expression, to cel-python's evaluator a `lark.Tree`."""

    __slots__ = ("children", "data", "steps")

    class meta:  # noqa: N801 - as lark names it
        """Where errors look for a place."""

        line = column = None

    def __init__(self, data: str, children: tuple[Any, ...], steps: int) -> None:
        self.data, self.children, self.steps = data, children, steps

    def find_data(self, data: str) -> Iterator[SyntaxNode]:
        """Yield the nodes of this kind."""
        return (each for each in self.nodes() if each.data == data)

    def nodes(self) -> list[SyntaxNode]:
        """Return all nodes, each once."""
        found: dict[int, SyntaxNode] = {id(self): self}
        left = [self]
        while left:
            for each in left.pop().children:
                if isinstance(each, SyntaxNode) and id(each) not in found:
                    found[id(each)] = each
                    left.append(each)
        return list(found.values())


def tokens_in(text: str) -> int:
    """Return about how many tokens an expression has: what reading it takes, known before it is read."""
    return sum(1 for _ in _TOKEN.finditer(text))


def parsed(text: str) -> SyntaxNode:
    """Parse an expression. Raises lark.exceptions.LarkError."""
    with _PARSING:
        builder, parser = _parser()
        try:
            found: SyntaxNode = parser.parse(text)  # type: ignore[assignment]  # what the builder makes
        finally:
            builder.known.clear()
    return found


class _TreeBuilder:
    """Makes the nodes as the parser finds them."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Any] = {}

    def rule(self, data: str) -> Callable[[list[Any]], SyntaxNode]:
        def made(parts: list[Any]) -> SyntaxNode:
            if data in _PASSING_ON and len(parts) == 1:
                (only,) = parts
                if data not in ("primary", "member") or only.data == "literal":
                    return self._node(only.data, only.children, only.steps + 1)
            return self._node(data, tuple(map(self._token, parts)), 1)

        return made

    def _node(self, data: str, children: tuple[Any, ...], steps: int) -> SyntaxNode:
        key = (data, steps, *map(id, children))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = SyntaxNode(data, children, steps)
        return found

    def _token(self, part: Any) -> Any:
        if not isinstance(part, lark.Token):
            return part
        key = (part.type, str(part))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = lark.Token(part.type, str(part))
        return found


@cache
def _parser() -> tuple[_TreeBuilder, lark.Lark]:
    """Build the grammar's tables: half a second, once."""
    grammar = (Path(celpy.__file__).parent / "cel.lark").read_text()
    for name, ways in _STRINGS.items():
        found = re.search(rf"^{name}\s*:.*\n(?:\s+\|.*\n)*", grammar, re.MULTILINE)
        if found is None:
            raise LookupError(f"cel-python's grammar has no {name}; this is for another version of cel-python")
        grammar = f"{grammar[: found.start()]}{name}: {' | '.join(ways)}\n{grammar[found.end() :]}"
    builder = _TreeBuilder()
    rules = re.findall(r"^([a-z_]+)\s*:", grammar, re.MULTILINE)
    actions = type("Actions", (), {each: staticmethod(builder.rule(each)) for each in rules})()
    parser = lark.Lark(
        grammar,
        parser="lalr",
        start="expr",
        g_regex_flags=re.MULTILINE,
        lexer_callbacks={"IDENT": CELParser.ambiguous_literals},
        maybe_placeholders=False,
        priority="invert",
        transformer=actions,
    )
    return builder, parser
