"""Taking a taint off a Node, with labels put on in the same write, whoever else writes that Node meanwhile."""

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
    """Takes taints of `key` off the Node and puts the labels on. Whether there was such a taint; False too where there
    is no such Node. Raises Conflict where others wrote it at the same time again and again.

    Taints are a list without keys. Where the taint is known to be at an `index` it is taken off there in one request,
    on condition that it is the one; else, and where it is not, the Node is read, and the whole list is written, on
    condition that the Node is still as it was read.
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
    """Of a v1.Node in JSON shape."""
    spec = mapping(document, "spec", "", [])
    return tuple(str(taint.get("key") or "") for taint, _ in members(spec, "taints", "", []))
