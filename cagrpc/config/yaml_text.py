"""Parsing YAML, and JSON as a part of it, to plain values, with errors that give line and column.
Validation of the values is in `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cagrpc.api.files.strict import mistakes
from cagrpc.errors import InvalidConfiguration
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
            if wrong := mistakes(node, MOST_VALUES):
                raise InvalidConfiguration([f"{name}:{at.line + 1}:{at.column + 1}: {what}" for at, what in wrong])
            yield loader.construct_document(node)
    finally:
        loader.dispose()
