"""Taking a taint off a Node, and nothing else, whoever else writes that Node meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cagrpc.errors import Conflict, NotFound
from cagrpc.kube.client import Client

NODES = "/api/v1/nodes"

_ATTEMPTS = 5


def lift(client: Client, node: str, key: str) -> bool:
    """Reads the Node and takes taints of `key` off it. Whether there was one; False too where there is no such Node.
    Raises Conflict where others wrote it at the same time again and again.

    Taints are a list without keys, so the whole list is written, on condition that the Node is still as it was read.
    """
    path = f"{NODES}/{node}"
    try:
        for _ in range(_ATTEMPTS):
            document = client.get(path)
            taints = document.get("spec", {}).get("taints", ())
            rest = [taint for taint in taints if taint["key"] != key]
            if len(rest) == len(taints):
                return False
            version = document["metadata"]["resourceVersion"]
            try:
                client.patch(path, {"metadata": {"resourceVersion": version}, "spec": {"taints": rest}})
            except Conflict:
                continue
            return True
    except NotFound:
        return False
    raise Conflict(f"node {node}: taint {key} cannot be taken off: others write the node all the time")


def taint_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a v1.Node in JSON shape."""
    return tuple(taint["key"] for taint in document.get("spec", {}).get("taints", ()))
