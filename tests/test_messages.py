"""One voice: no message for people holds the number of a system's error, money in a form of its own or a Python repr,
and none says "1 nodes" or "is no number"."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = tuple(
    path for path in sorted((ROOT / "cagrpc").rglob("*.py")) if "gen" not in path.parts and "testing" not in path.parts
)
ANY = (*OURS, *sorted((ROOT / "solver").rglob("*.py")), *sorted((ROOT / "plugins").rglob("*.py")))
Find = Callable[[ast.AST], Iterator[int]]
FOR_PEOPLE = (*OURS, *sorted((ROOT / "plugins").rglob("*.py")), ROOT / "solver" / "model" / "quantities.py")
MONEY = ROOT / "solver" / "model" / "money.py"
_OF_THE_SYSTEM = {"OSError", "FileNotFoundError", "PermissionError", "ConnectionError"}


def handlers(tree: ast.AST) -> Iterator[tuple[ast.ExceptHandler, str]]:
    """Yield the handlers of the system's errors, with the name that they give them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
            caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
            if caught & _OF_THE_SYSTEM:
                yield node, node.name


def numbered(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where such an error is put into a text, or into the log, as it is: "[Errno 2] ..."."""
    for handler, name in handlers(tree):
        for node in ast.walk(handler):
            shown = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "log" in ast.unparse(node.func):
                shown = next((each for each in node.args if isinstance(each, ast.Name) and each.id == name), None)
            if isinstance(shown, ast.Name) and shown.id == name:
                yield shown.lineno


def dollars(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of f-strings that write a sign of money, or format a cost, themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [each.value for each in node.values if isinstance(each, ast.Constant)]
            values = [each for each in node.values if isinstance(each, ast.FormattedValue)]
            before = any(str(each).endswith("$") for each in texts)
            shown = [each.value for each in values if each.format_spec is not None]
            costs = [
                each for each in shown if isinstance(each, ast.Name | ast.Attribute) and "usd" in ast.unparse(each)
            ]
            if before or costs:
                yield node.lineno


def reprs(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of f-strings that show a value as Python writes it: "None", "True", "b'...'"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
            yield node.lineno


COUNTED = ("pod", "node", "instance", "increment", "request", "episode", "step", "placeholder", "offering", "warning")
_PLURAL = re.compile(rf"%d ({'|'.join(COUNTED)})s\b")
_AFTER = re.compile(rf" ({'|'.join(COUNTED)})s\b")
_FOREIGN = re.compile(r"\b(this|which|it|that) is no (?!longer|more)[a-z]|: is no |^is no |that could be read: ")


def plurals(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that count without `pluralize`: "1 nodes", "1000 pods"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLURAL.search(node.value):
            yield node.lineno
        for count, noun in itertools.pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
            is_plain = isinstance(count, ast.FormattedValue) and count.format_spec is None
            name = ast.unparse(count.value) if is_plain and isinstance(count, ast.FormattedValue) else ""
            counts = name.startswith("len(") or name in ("pods", "nodes", "instances", "steps")
            if counts and isinstance(noun, ast.Constant) and _AFTER.match(str(noun.value)):
                yield count.lineno


def foreign(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of what no native speaker would write."""
    documents = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documents else None
        if isinstance(node, ast.Constant) and isinstance(text, str) and _FOREIGN.search(text):
            yield node.lineno


LOOKED_FOR = [(numbered, ANY), (dollars, ANY), (reprs, FOR_PEOPLE), (plurals, OURS), (foreign, FOR_PEOPLE)]


@pytest.mark.parametrize(("find", "paths"), LOOKED_FOR)
def test_messages_are_written_for_people(find: Find, paths: tuple[Path, ...]) -> None:
    others = [path for path in paths if path != MONEY]
    assert others
    found = ((path, line) for path in others for line in find(ast.parse(path.read_text())))
    assert [f"{path.relative_to(ROOT)}:{line}" for path, line in found] == []


@pytest.mark.parametrize(
    ("code", "find"),
    [
        ("try: pass\nexcept OSError as error: raise Unavailable(f'{path}: {error}')", numbered),
        ("try: pass\nexcept (OSError, ValueError) as why: log.warning('%s', why)", numbered),
        ("f'{cost_usd_per_hour:.4f} an hour'", dollars),
        ("f'costs ${cost}'", dollars),
        ("f'{value!r:.40} is not a number'", reprs),
        ("log.info('%d nodes came', count)", plurals),
        ("f'{len(found)} pods wait'", plurals),
        ("f'{place}: is no number'", foreign),
    ],
)
def test_what_is_looked_for_is_found(code: str, find: Find) -> None:
    assert list(find(ast.parse(code)))
