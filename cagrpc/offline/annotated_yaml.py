"""Settings as YAML of which every line ends with a comment that says where it comes from. Values and comments may be of
anybody who may write to the cluster: a value is quoted where it has to be, and a comment is one line of text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cagrpc.output import printable

ITEM = "-"
"""The last part of a setting's path: one more item of the list there."""
_IN_ONE_LINE = 80
"""Mappings and lists that are longer have a line for each of their members."""
_LONGEST_COMMENT = 400
_NOT_OF_YAML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class SourcedSetting:
    """A value of the configuration file, and where it comes from."""

    path: tuple[str, ...]
    value: Any
    """Plain data, as JSON has it."""
    source: str


def one_line(text: str) -> str:
    """Return text of untrusted origin as what a comment can have: one line, without what controls a terminal or is no
    YAML."""
    words = _NOT_OF_YAML.sub("\ufffd", printable(" ".join(text.split())))
    return words if len(words) <= _LONGEST_COMMENT else f"{words[:_LONGEST_COMMENT]}..."


def annotated(settings: Iterable[SourcedSetting], headings: Mapping[str, str]) -> list[str]:
    """Return the lines of a document with these settings, in their order. `headings` are the comments of sections, by
    their names."""
    root: dict[Any, Any] = {}
    for each in settings:
        node, (*parents, last) = root, each.path
        for name in parents:
            node = node.setdefault(name, {})
        node[len(node) if last == ITEM else last] = each
    return list(_members(root, headings))


def commented(lines: Iterable[str]) -> list[str]:
    """Return lines as a comment that becomes them again where `# ` is removed."""
    return [f"# {line}" for line in lines]


def _members(node: Mapping[Any, Any], headings: Mapping[str, str]) -> Iterator[str]:
    for key, child in node.items():
        prefix = ITEM if isinstance(key, int) else f"{_in_one_line(key)}:"
        if isinstance(child, SourcedSetting):
            yield from _block(prefix, child.value, one_line(child.source))
        else:
            heading = headings.get(key, "")
            yield f"{prefix}  # {heading}" if heading else prefix
            yield from _indented(_members(child, headings))


def _block(prefix: str, value: Any, source: str) -> Sequence[str]:
    whole = _in_one_line(value)
    if not isinstance(value, Mapping | list) or len(whole) <= _IN_ONE_LINE:
        return [f"{prefix} {whole}  # {source}"]
    if isinstance(value, Mapping):
        parts = [line for key, each in value.items() for line in _block(f"{_in_one_line(key)}:", each, source)]
    else:
        parts = [line for each in value for line in _block(ITEM, each, source)]
    if prefix == ITEM:
        return [f"{ITEM} {parts[0]}", *_indented(parts[1:])]
    return [f"{prefix}  # {source}", *_indented(parts)]


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _in_one_line(value: Any) -> str:
    text = _dumped(value, None)
    return _dumped(value, '"') if "\n" in text else text


def _dumped(value: Any, style: str | None) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, default_style=style, sort_keys=False, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")
