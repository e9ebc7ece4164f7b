"""`--previous FILE`: reads the JSON that `cagrpc plan --output json` printed as a plan to start from.

The JSON identifies a class of pods only by example and requests. A class is matched to the pods of this run with the
same example and requests, or else to the only ones with these requests; of any other class only the requests are known.
Missing fields are taken as empty.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cagrpc.api.core.resources import amounts
from cagrpc.api.encoding.json_documents import Problems, mapping, members, whole
from cagrpc.errors import InvalidConfiguration, shown
from cagrpc.problems import read_text
from solver.model import (
    Certificate,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    PodSet,
    PodSpec,
    Status,
    Unplaced,
)

_MOST = 10**9
_PARTS = ("increments", "nodes", "existing", "unplaced", "pod_classes")
# A previous plan is only a starting point: its certificate no longer holds.
_NO_CERTIFICATE = Certificate(Status.FEASIBLE, 0.0, 0.0, (), 0.0)

_Requests = tuple[tuple[str, int], ...]


def read_previous(path: Path, pod_sets: Sequence[PodSet]) -> Plan:
    """Return the plan in the file, with its classes matched to `pod_sets` as far as possible. Raises
    InvalidConfiguration with every problem, each with file and path."""
    problems: Problems = []
    plan = _plan(_parsed(read_text(path), problems), pod_sets, problems)
    if problems:
        raise InvalidConfiguration([f"{path}: {problem}" for problem in problems])
    return plan


def _parsed(text: str, problems: Problems) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"is not JSON: {error!s:.100}")
        return {}
    if isinstance(document, Mapping) and any(part in document for part in _PARTS):
        return document
    problems.append("is not a plan; expected what `cagrpc plan --output json` prints")
    return {}


def _plan(document: Mapping[str, Any], pod_sets: Sequence[PodSet], problems: Problems) -> Plan:
    classes = _Classes(document, pod_sets, problems)
    increments = tuple(
        NodeGroupIncrease(_name(each, "node_group", at, problems), _count(each, "delta", at, problems))
        for each, at in members(document, "increments", "", problems)
    )
    nodes = tuple(
        PlannedNodes(
            _name(each, "node_group", at, problems),
            _count(each, "count", at, problems),
            classes.pods(each, at, problems),
        )
        for each, at in members(document, "nodes", "", problems)
    )
    existing = tuple(
        PlacedOnNode(_name(each, "node", at, problems), classes.pods(each, at, problems))
        for each, at in members(document, "existing", "", problems)
    )
    unplaced = tuple(
        Unplaced(classes.known(each.get("class"), f"{at}.class", problems), _count(each, "count", at, problems), ())
        for each, at in members(document, "unplaced", "", problems)
    )
    return Plan(classes.all, increments, nodes, existing, unplaced, _NO_CERTIFICATE, elapsed_seconds=0.0)


class _Classes:
    """The classes of a plan's JSON, matched to the pods of this run."""

    def __init__(self, document: Mapping[str, Any], pod_sets: Sequence[PodSet], problems: Problems) -> None:
        by_example = {(pod_set.name, pod_set.spec.requests): pod_set for pod_set in pod_sets}
        by_requests: defaultdict[_Requests, dict[PodSpec, PodSet]] = defaultdict(dict)
        for pod_set in pod_sets:
            by_requests[pod_set.spec.requests].setdefault(pod_set.spec, pod_set)
        found = []
        for each, at in members(document, "pod_classes", "", problems):
            asked = amounts(each, "requests", at, problems)
            requests = tuple(sorted((resource, amount) for resource, amount in asked.items() if amount))
            example = _name(each, "example", at, problems)
            alike = by_requests.get(requests, {})
            only = next(iter(alike.values())) if len(alike) == 1 else PodSet(example, PodSpec(requests), 0)
            same = by_example.get((example, requests), only)
            found.append(
                PodClass(
                    index=_count(each, "id", at, problems),
                    spec=same.spec,
                    count=_count(each, "count", at, problems),
                    example=example,
                    priority=same.priority,
                    gang=same.gang,
                    placeholder=same.placeholder,
                )
            )
        self.all = tuple(found)
        self._ids = {each.index for each in found}

    def pods(self, holder: Mapping[str, Any], path: str, problems: Problems) -> dict[int, int]:
        """Return `holder["pods"]`: pods by class."""
        by_class, at = mapping(holder, "pods", path, problems), f"{path}.pods"
        return {
            self.known(_index(key), at, problems): _count(by_class, key, at, problems) for key in map(str, by_class)
        }

    def known(self, index: Any, path: str, problems: Problems) -> int:
        """Return the id of a class; it must be one of the plan's."""
        if isinstance(index, int) and index in self._ids:
            return index
        problems.append(f"{path}: there is no class {shown(index)} in pod_classes")
        return 0


def _index(key: str) -> int | str:
    return int(key) if key.isdecimal() and len(key) <= len(str(_MOST)) else key


def _count(document: Mapping[str, Any], name: str, path: str, problems: Problems) -> int:
    return whole(document, name, path, problems, 0, _MOST)


def _name(document: Mapping[str, Any], name: str, path: str, problems: Problems) -> str:
    value = document.get(name)
    if isinstance(value, str) and value:
        return value
    problems.append(f"{path}.{name}: expected a name, found {shown(value)}")
    return ""
