"""Change a Node, safe against concurrent writers: its labels, annotations, cordon and taints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, members
from cagrpc.errors import Conflict, InvalidInput, NotFound
from cagrpc.kube.client.client import METADATA_ONLY, Client, PatchKind

NODES = "/api/v1/nodes"

_ATTEMPTS = 5


def change(
    client: Client,
    node: str,
    what: str,
    wanted: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, Any]] | None],
    attempts: int = _ATTEMPTS,
) -> bool:
    """Read the Node and merge into it what is `wanted` of it as it is, nothing where that is None. The resource version
    is a precondition, so that nobody else's write is lost; after another write the Node is read again. Return whether
    there is such a Node. Raises Conflict where others write it all the time; `what` of it cannot be changed then."""
    path = f"{NODES}/{node}"
    for _ in range(attempts):
        try:
            found = client.get(path)
            patch = wanted(found)
            if patch is not None:
                metadata = {**patch.get("metadata", {}), "resourceVersion": found["metadata"]["resourceVersion"]}
                client.patch(path, {**patch, "metadata": metadata})
        except Conflict:
            continue
        except NotFound:
            return False
        return True
    raise Conflict(f"node {node}: {what} cannot be changed: others write the node all the time")


def lift(client: Client, node: str, key: str, labels: Mapping[str, str] | None = None, *, index: int = -1) -> bool:
    """Remove taints of `key` from the Node and set the labels. Return whether there was such a taint; False also for an
    unknown Node. Raises Conflict as `change` does.

    Taints are a list without keys. With a known `index` the taint is removed there in one request, with a test of its
    key as precondition; otherwise, or where the test fails, the whole list is written.
    """
    remove = {"op": "remove", "path": f"/spec/taints/{index}"}
    return _change_taint(client, node, key, index, remove, lambda _: None, labels or {})


def set_value(client: Client, node: str, key: str, value: str, *, index: int = -1) -> bool:
    """Give taints of `key` on the Node this value. As `lift` otherwise."""
    add = {"op": "add", "path": f"/spec/taints/{index}/value", "value": value}
    return _change_taint(client, node, key, index, add, lambda taint: {**taint, "value": value}, {})


def _change_taint(
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
    if index >= 0 and not labels:
        test = {"op": "test", "path": f"/spec/taints/{index}/key", "value": key}
        try:
            with suppress(InvalidInput):
                client.patch(f"{NODES}/{node}", [test, operation], PatchKind.JSON, accept=METADATA_ONLY)
                return True
        except NotFound:
            return False
    was_there = False

    def wanted(found: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
        nonlocal was_there
        taints = list(found.get("spec", {}).get("taints", ()))
        was_there = any(taint["key"] == key for taint in taints)
        changed = [become(taint) if taint["key"] == key else taint for taint in taints]
        left = [taint for taint in changed if taint is not None]
        known = found["metadata"].get("labels") or {}
        missing = {name: value for name, value in labels.items() if known.get(name) != value}
        if left == taints and not missing:
            return None
        return {"metadata": {"labels": missing}, **({"spec": {"taints": left}} if was_there else {})}

    return change(client, node, f"taint {key}", wanted) and was_there


def taint_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the taints of a v1.Node in JSON shape."""
    spec = mapping(document, "spec")
    return tuple(str(taint.get("key") or "") for taint, _ in members(spec, "taints"))
