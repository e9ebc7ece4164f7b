"""Parsing YAML, and JSON as a part of it, to plain values, with errors that give line and column.

Stricter than YAML: duplicate keys are errors, and so are values that contain themselves or that aliases expand beyond
any configuration. Validation of the values is in `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cagrpc.errors import InvalidConfiguration, shown
from cagrpc.problems import read_text

MOST_VALUES = 200_000
"""More than any configuration has. Aliases count each time they are used."""


def read_documents(path: Path) -> list[Any]:
    """Return the documents of a file that are not empty. Raises InvalidConfiguration."""
    return parse_documents(read_text(path), str(path))


def parse_documents(text: str, name: str) -> list[Any]:
    """Return the documents of a text that are not empty. `name` stands for the file in errors. Raises
    InvalidConfiguration."""
    try:
        return [value for value in _documents(text, name) if value is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidConfiguration([f"{place}: is not YAML: {what}"]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"character {ord(text[error.position]):#x}" if error.position < len(text) else error.reason
        raise InvalidConfiguration([f"{name}:{line}: is not YAML: {found} is not allowed"]) from error
    except RecursionError as error:
        raise InvalidConfiguration([f"{name}: is nested too deeply for a configuration"]) from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:  # 2024-13-45; an integer beyond limits
        raise InvalidConfiguration([f"{name}: is not YAML: {error}"]) from error


def _documents(text: str, name: str) -> Iterator[Any]:
    # Not the loader in C, which has no guard against deep nesting; a configuration is small.
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            problems: list[str] = []
            if node is not None and _size(node, {}, name, problems) > MOST_VALUES:
                problems.append(f"{name}: has more than {MOST_VALUES} values, aliases counted each time")
            if problems:
                raise InvalidConfiguration(problems)
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int], name: str, problems: list[str]) -> int:
    """Return how many values the node has with its aliases expanded; add duplicate keys and cycles to `problems`."""
    if isinstance(node, yaml.ScalarNode):
        _join_surrogates(node, name, problems)
        return 1
    if id(node) in sizes:
        if not sizes[id(node)]:
            problems.append(f"{_place(node, name)}: contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    total = 1
    if isinstance(node, yaml.MappingNode):
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    problems.append(f'{_place(key, name)}: duplicate key "{key.value}", first in line '
                                    f"{first.start_mark.line + 1}")  # fmt: skip
            total += _size(key, sizes, name, problems) + _size(value, sizes, name, problems)
    else:
        total += sum(_size(item, sizes, name, problems) for item in node.value)
    sizes[id(node)] = total
    return total


def _join_surrogates(node: yaml.ScalarNode, name: str, problems: list[str]) -> None:
    """Join the halves of characters that JSON escapes one by one; half a character alone is no text."""
    if not any("\ud800" <= character <= "\udfff" for character in node.value):
        return
    try:
        node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        problems.append(f"{_place(node, name)}: has an incomplete character: {shown(node.value)}")


def _place(node: yaml.Node, name: str) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
