"""Tables of pods (CSV) to pod sets, the input of `cagrpc plan` without manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cagrpc.api.core.resources import Problems
from cagrpc.api.core.selectors import DEFAULT_NAMESPACE
from cagrpc.api.files.documents import rows
from solver.model import CPU, MEMORY, PodSet, PodSpec

NVIDIA_GPU = "nvidia.com/gpu"

_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu")
_MIB = 1024 * 1024
_MOST_DIGITS = 9  # a million cores, a pebibyte, a billion pods


def pods_of_table(path: Path, text: str, problems: Problems) -> list[PodSet]:
    """Return the pod sets of a table; rows of equal requests become one, named after the first."""
    found: dict[PodSpec, PodSet] = {}
    for place, row in rows(path, text, _COLUMNS, ("count",), problems):
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
    problems.append(f"{place}: {column}: {_shown(text)} is not a whole number from 0 to {10**_MOST_DIGITS - 1}")
    return 0


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
