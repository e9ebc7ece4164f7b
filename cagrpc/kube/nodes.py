"""Change a taint of a Node, and set labels in the same write, safe against concurrent writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, members
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
    at = f"/spec/taints/{index}"
    remove = {"op": "remove", "path": at}
    return _change(client, node, key, index, remove, lambda _: None, labels or {})


def set_value(client: Client, node: str, key: str, value: str, *, index: int = -1) -> bool:
    """Give taints of `key` on the Node this value. As `lift` otherwise."""
    add = {"op": "add", "path": f"/spec/taints/{index}/value", "value": value}
    return _change(client, node, key, index, add, lambda taint: {**taint, "value": value}, {})


def _change(
    client: Client,
    node: str,
    key: str,
    index: int,
    operation: Mapping[str, Any],
    become: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
    labels: Mapping[str, str],
) -> bool:
    """Apply the operation of a JSON patch to the taint at `index`, or where that is unknown let each taint of `key`
    `become` another, or None to remove it."""
    path = f"{NODES}/{node}"
    try:
        if index >= 0 and not labels:
            with suppress(InvalidInput):
                test = {"op": "test", "path": f"/spec/taints/{index}/key", "value": key}
                client.patch(path, [test, operation], PatchKind.JSON, accept=METADATA_ONLY)
                return True
        for _ in range(_ATTEMPTS):
            document = client.get(path)
            taints = document.get("spec", {}).get("taints", ())
            found = [become(taint) if taint["key"] == key else taint for taint in taints]
            changed = [taint for taint in found if taint is not None]
            known = document["metadata"].get("labels") or {}
            missing = {name: value for name, value in labels.items() if known.get(name) != value}
            was_there = any(taint["key"] == key for taint in taints)
            if changed == list(taints) and not missing:
                return was_there
            metadata = {"resourceVersion": document["metadata"]["resourceVersion"], "labels": missing}
            try:
                client.patch(path, {"metadata": metadata, **({"spec": {"taints": changed}} if was_there else {})})
            except Conflict:
                continue
            return was_there
    except NotFound:
        return False
    raise Conflict(f"node {node}: taint {key} cannot be changed: others write the node all the time")


def taint_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the taints of a v1.Node in JSON shape."""
    spec = mapping(document, "spec")
    return tuple(str(taint.get("key") or "") for taint, _ in members(spec, "taints"))
