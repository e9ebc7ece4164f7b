"""A case to the smallest one that shows the same: objects, fields and values are left out one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from bench.hunted.cases import LISTS, Case

Path = tuple[str | int, ...]
_KEPT = {
    *("accessModes", "allocatable", "apiVersion", "capacity", "claimName", "claimRef", "containerPort", "containers"),
    *("csi", "deviceClassName", "devices", "driver", "effect", "exactly", "id", "image", "key", "kind", "maxSkew"),
    *("metadata", "name", "namespace", "node_groups", "nodeID", "nodeName", "nodeSelectorTerms", "operator", "pool"),
    *("podAffinityTerm", "preference", "price_usd_per_hour", "provisioner", "requests", "resourceClaimTemplateName"),
    *("resources", "selector", "spec", "status", "template", "topologyKey", "values", "volumeHandle", "weight"),
    *("whenUnsatisfiable", "volumeName", "uid", "phase", "hostPort", "key"),
}
"""What the API server, or the configuration, refuses an object without. The last of a list of these stays as well."""


def shrunk(case: Case, still: Callable[[Case], bool], most: int = 250) -> dict[str, Any]:
    """Return the case without all that it is `still` the same without, after so many attempts at most."""
    best: dict[str, Any] = copy.deepcopy(dict(case))
    tried = 0
    changed = True
    while changed and tried < most:
        changed = False
        for path in list(_parts(best)):
            if tried >= most:
                break
            smaller = copy.deepcopy(best)
            if not _without(smaller, path):
                continue
            tried += 1
            if still(smaller):
                best, changed = smaller, True
    return best


def _parts(case: Case) -> Iterator[Path]:
    """Yield the places of everything that might go, the largest first."""
    for part in (*LISTS, "devices", "provisioners"):
        for index in reversed(range(len(case.get(part) or ()))):
            yield part, index
    for part in (*LISTS, "devices", "provisioners"):
        for index, each in enumerate(case.get(part) or ()):
            yield from _below(each, (part, index))


def _below(value: Any, path: Path) -> Iterator[Path]:
    keys: list[str | int] = []
    if isinstance(value, dict):
        keys = [key for key in value if key not in _KEPT]
    elif isinstance(value, list):
        keys = list(reversed(range(len(value)))) if len(value) > 1 or path[-1] not in _KEPT else []
    for key in keys:
        yield (*path, key)
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _below(value[key], (*path, key))


def _without(case: dict[str, Any], path: Path) -> bool:
    """Take away what is at the path, and answer whether there was anything."""
    where: Any = case
    for key in path[:-1]:
        try:
            where = where[key]
        except (KeyError, IndexError, TypeError):
            return False
    try:
        del where[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
