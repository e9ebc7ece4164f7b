"""Files of Kubernetes objects (YAML or JSON) to single documents, and CSV to rows, each with its location; a table of
pods, the input of `cagrpc plan` without manifests, to pod sets. Documents are interpreted in
`cagrpc.cluster.documents`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from cagrpc.api.core.selectors import DEFAULT_NAMESPACE
from cagrpc.api.encoding.json_documents import Problems, mapping
from cagrpc.api.files import lists, strict
from cagrpc.errors import attempt, reason_of, shown
from cagrpc.problems import read_text
from solver.model import CPU, MEMORY, PodSet, PodSpec
from solver.model.quantities import pluralize

# The C loader, where available, is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_LEVELS = 500
"""Far more than Kubernetes' types nest; the C parser would overflow its stack on hundreds of thousands."""
MOST_VALUES = 10_000_000
"""How many values a YAML document with aliases has, counting each use of one."""
_LARGE_BYTES = 8 * 1024 * 1024
"""Smaller files are read at once, and so that lines are named."""


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One Kubernetes object. `place` begins every problem with it: file, index in the file, kind and name."""

    place: str
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body.get("kind") or "")

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping(self.body, "metadata")

    @property
    def spec(self) -> Mapping[str, Any]:
        return mapping(self.body, "spec")

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or self.metadata.get("generateName") or "")

    @property
    def identity(self) -> tuple[str, str, str]:
        """Kind, namespace and name, as in an owner reference."""
        return self.kind, self.namespace, self.name


def rows(
    path: Path, required: Sequence[str], optional: Sequence[str], problems: Problems
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each non-empty row of a CSV file: its location (`file: line 2`) and its stripped cells by column."""
    text = attempt(problems, lambda: read_text(path))
    if text is None:
        return
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    expected = f"{','.join(required)}{''.join(f'[,{column}]' for column in optional)}"
    try:
        header = [column.strip() for column in next(reader, [])]
        missing = [column for column in required if column not in header]
        twice = [column for column in dict.fromkeys(header) if column and header.count(column) > 1]
        if missing:
            problems.append(f"{path}: line 1: no column {', '.join(missing)}; expected {expected}")
        problems.extend(f"{path}: line 1: the column {column} occurs twice" for column in twice)
        if missing or twice:
            return
        for cells in reader:
            place = f"{path}: line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) == len(header):
                yield place, dict(zip(header, (cell.strip() for cell in cells), strict=True))
            else:
                found = pluralize(len(cells), "cell")
                problems.append(f"{place}: has {found}, expected {len(header)}, one for each column")
    except csv.Error as error:
        problems.append(f"{path}: line {reader.line_num}: is not CSV: {error}")


def documents(path: Path, problems: Problems) -> Iterator[ManifestDocument]:
    """Yield every object in a file of YAML (one or many documents) or JSON, with lists expanded; empty documents are
    skipped. A large list in JSON is read object by object."""
    if path.suffix.lower() == ".json" and path.is_file() and path.stat().st_size > _LARGE_BYTES:
        try:
            with path.open("rb") as file:
                for index, (kind, body, duplicates) in enumerate(lists.items(file)):
                    problems.extend(f"{path}[0].items[{index}]: {each}" for each in duplicates)
                    yield from _opened_item(f"{path}[0]", index, kind, body, problems)
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path}: is not a JSON list of Kubernetes objects: {reason_of(error):.200}")
        return
    text = attempt(problems, lambda: read_text(path))
    if text is None:
        return
    for index, body in enumerate(values(str(path), text, problems)):
        if body is not None:
            yield from _opened(f"{path}[{index}]", body, problems)


def values(place: str, text: str, problems: Problems) -> Iterator[Any]:
    """Yield what each document of a text in YAML or JSON says, None for an empty one; problems begin with `place`."""
    try:
        yield from _bodies(place, text, problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        problems.append(f"{place}: is not YAML: {f'line {mark.line + 1}: ' if mark else ''}{what}")
    except yaml.YAMLError as error:
        problems.append(f"{place}: is not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        problems.append(f"{place}: is nested more deeply than any Kubernetes object")


def _bodies(place: str, text: str, problems: Problems) -> Iterator[Any]:
    if text.lstrip().startswith("{"):
        decoder = strict.JSONDecoder()
        try:
            body = decoder.decode(text)  # much faster than YAML, and what kubectl -o json writes
        except (ValueError, RecursionError):
            pass  # YAML's flow style begins the same way, and its reader reports lines
        else:
            duplicates = decoder.duplicates(body)
            problems.extend(f"{place}: {each}" for each in duplicates)
            yield None if duplicates else body
            return
    if line := _too_deep(text):
        problems.append(f"{place}: line {line}: is nested more deeply than any Kubernetes object")
        return
    loader = _LOADER(text)
    while loader.check_node():
        node: Any = loader.get_node()
        body = None
        if mistakes := strict.mistakes(node, MOST_VALUES):
            problems.extend(f"{place}: line {mark.line + 1}: {what}" for mark, what in mistakes)
        else:
            try:
                body = loader.construct_document(node)
            except (ValueError, OverflowError, TypeError) as error:  # 2024-13-45; a number of thousands of digits
                line = node.start_mark.line + 1
                problems.append(f"{place}: the document in line {line}: is not YAML: {error}")
        yield body


def _too_deep(text: str) -> int:
    """Return the line at which a YAML text nests too deeply; 0 where it does not. Nesting takes brackets that are not
    closed at once (as those of `emptyDir: {}` are) or indentation, so few texts need parsing."""
    opened = text.count("[") + text.count("{") - text.count("[]") - text.count("{}")
    if opened <= MOST_LEVELS and max(map(len, text.splitlines()), default=0) <= MOST_LEVELS:
        return 0
    level = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > MOST_LEVELS:
                return int(line)
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
    return 0


def _opened(place: str, body: Any, problems: Problems) -> Iterator[ManifestDocument]:
    if not isinstance(body, Mapping):
        problems.append(f"{place}: expected a Kubernetes object, found {shown(body)}")
        return
    kind = body.get("kind")
    if not isinstance(kind, str) or not kind:
        problems.append(f"{place}: has no kind; expected a Kubernetes object with apiVersion, kind and metadata")
    elif kind.endswith("List") and isinstance(body.get("items"), list):
        for index, item in enumerate(body["items"]):
            yield from _opened_item(place, index, kind, item, problems)
    else:
        document = ManifestDocument(place, body)
        yield ManifestDocument(f"{place} ({kind} {document.namespace}/{document.name})", body)


def _opened_item(place: str, index: int, kind: str, item: Any, problems: Problems) -> Iterator[ManifestDocument]:
    if isinstance(item, Mapping) and kind not in ("", "List"):
        item = {"kind": kind.removesuffix("List"), **item}  # a PodList's items have no kind
    yield from _opened(f"{place}.items[{index}]", item, problems)


NVIDIA_GPU = "nvidia.com/gpu"

_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu")
_MIB = 1024 * 1024
_MOST_DIGITS = 9  # a million cores, a pebibyte, a billion pods


def pods_of_table(path: Path, problems: Problems) -> list[PodSet]:
    """Return the pod sets of a table; rows of equal requests become one, named after the first."""
    found: dict[PodSpec, PodSet] = {}
    for place, row in rows(path, _COLUMNS, ("count",), problems):
        cpu_milli, memory_mib, gpus = (_number(place, row, column, problems) for column in _COLUMNS[1:])
        count = _number(place, row, "count", problems) if row.get("count") else 1
        requests = {CPU: cpu_milli, MEMORY: memory_mib * _MIB, NVIDIA_GPU: gpus}
        spec = PodSpec(tuple(sorted((resource, asked) for resource, asked in requests.items() if asked)))
        first = found.setdefault(spec, PodSet(f"{DEFAULT_NAMESPACE}/{row['name']}", spec, 0))
        found[spec] = replace(first, count=first.count + count)
    return [pod_set for pod_set in found.values() if pod_set.count]


def _number(place: str, row: Mapping[str, str], column: str, problems: Problems) -> int:
    text = row[column]
    # other scripts' digits are decimal too; a table should not hold them
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    problems.append(f"{place}: {column}: {shown(text)} is not a whole number from 0 to {10**_MOST_DIGITS - 1}")
    return 0
