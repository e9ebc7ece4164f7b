"""What YAML and JSON let pass and no file means: a key that is there twice, which the API server refuses (its field
validation is strict by default), and in YAML a value that contains itself, or that aliases expand beyond any use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import yaml

from cagrpc.errors import shown

_MERGE = "tag:yaml.org,2002:merge"


def mistakes(root: Any, most_values: int) -> list[tuple[Any, str]]:
    """Return where a YAML document is wrong, and how. Halves of characters, as JSON escapes them, are joined."""
    found: list[tuple[Any, str]] = []
    sizes: dict[int, int] = {}  # 0 while in progress

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            try:
                if not node.value.isascii():
                    node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                found.append((node.start_mark, f"has an incomplete character: {shown(node.value)}"))
            return 1
        if id(node) in sizes:
            if not sizes[id(node)]:
                found.append((node.start_mark, "contains itself"))
            return sizes[id(node)]
        sizes[id(node)] = 0
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            found.extend(_duplicates(key for key, _ in parts if isinstance(key, yaml.ScalarNode)))
            parts = chain.from_iterable(parts)
        sizes[id(node)] = 1 + sum(map(size, parts))
        if sizes[id(node)] > most_values:
            found.append((node.start_mark, f"stands for more than {most_values} values, aliases written out"))
            sizes[id(node)] = 1  # told once, and not of whatever contains it
        return sizes[id(node)]

    size(root)
    return found


def _duplicates(keys: Iterable[yaml.ScalarNode]) -> Iterator[tuple[Any, str]]:
    seen: dict[tuple[str, str], yaml.ScalarNode] = {}
    for key in keys:
        first = seen.setdefault((key.tag, key.value), key)
        if first is not key and key.tag != _MERGE:
            yield key.start_mark, f"duplicate key {shown(key.value)}, first in line {first.start_mark.line + 1}"


class JSONDecoder(json.JSONDecoder):
    """Decodes JSON, and finds the keys that an object has twice."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object)
        self._twice: list[tuple[dict[str, Any], list[str]]] = []

    def duplicates(self, value: Any) -> list[str]:
        """Return the keys that are there twice in the value that was decoded last, each with its path."""
        twice, self._twice = self._twice, []
        return list(_told(value, "", {id(found): keys for found, keys in twice})) if twice else []

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self._twice.append((found, [key for key, count in counts.items() if count > 1]))
        return found


def _told(value: Any, path: str, twice: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for key in twice.get(id(value), ()):
        yield f"{path}: duplicate key {shown(key)}".removeprefix(": ")
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _told(part, f"{path}.{key}".removeprefix("."), twice)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _told(part, f"{path}[{index}]", twice)
