"""Remove a taint from a Node and set labels in the same write, safe against concurrent writers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cagrpc.api.core.resources import mapping, members
from cagrpc.errors import Conflict, InvalidInput, NotFound
from cagrpc.kube.client.client import METADATA_ONLY, Client, PatchKind

NODES = "/api/v1/nodes"

_ATTEMPTS = 5


def lift(client: Client, node: str, key: str, labels: Mapping[str, str] | None = None, *, index: int = -1) -> bool:
    """Remove taints of `key` from the Node and set the labels. Return whether there was such a taint; False also for an
    unknown Node. Raises Conflict where concurrent writes conflict again and again.

    Taints are a list without keys. With a known `index` the taint is removed there in one request, with a test of its
    key as precondition; otherwise, or where the test fails, the Node is read and the whole list is written with the
    resource version as precondition.
    """
    path = f"{NODES}/{node}"
    try:
        if index >= 0 and not labels:
            with suppress(InvalidInput):
                at = f"/spec/taints/{index}"
                operations = [{"op": "test", "path": f"{at}/key", "value": key}, {"op": "remove", "path": at}]
                client.patch(path, operations, PatchKind.JSON, accept=METADATA_ONLY)
                return True
        for _ in range(_ATTEMPTS):
            document = client.get(path)
            taints = document.get("spec", {}).get("taints", ())
            rest = [taint for taint in taints if taint["key"] != key]
            known = document["metadata"].get("labels") or {}
            missing = {name: value for name, value in (labels or {}).items() if known.get(name) != value}
            was_there = len(rest) < len(taints)
            if not (was_there or missing):
                return False
            metadata = {"resourceVersion": document["metadata"]["resourceVersion"], "labels": missing}
            try:
                client.patch(path, {"metadata": metadata, **({"spec": {"taints": rest}} if was_there else {})})
            except Conflict:
                continue
            return was_there
    except NotFound:
        return False
    raise Conflict(f"node {node}: taint {key} cannot be taken off: others write the node all the time")


def taint_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the taints of a v1.Node in JSON shape."""
    spec = mapping(document, "spec", "", [])
    return tuple(str(taint.get("key") or "") for taint, _ in members(spec, "taints", "", []))
