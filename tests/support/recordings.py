"""The recorded conversations of an unmodified cluster-autoscaler, as tests read them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from solver.model import NodeGroup

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
CONVERSATIONS = (
    "three-deployments",
    "stockout",
    "rollback-and-startup-taint",
    "openb-1165-pods-best-options",
    # With cagrpc itself, `serve --record`, and access to the cluster.
    "gang-planned",
    "gang-assisted",
    "requests-assisted",
)


@dataclass(frozen=True, slots=True)
class Rpc:
    method: str
    request: bytes
    code: str
    response: bytes


@cache
def conversation(name: str) -> tuple[Rpc, ...]:
    return tuple(_lines(FOLDER / f"{name}.jsonl.gz"))


def _lines(path: Path) -> Iterator[Rpc]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            rpc = json.loads(line)
            yield Rpc(
                rpc["method"], base64.b64decode(rpc["request"]), rpc["code"], base64.b64decode(rpc["response"] or "")
            )


def node_groups(name: str) -> tuple[NodeGroup, ...]:
    """The node groups that the recorded provider served, as node groups of ours."""
    recorded = json.loads((FOLDER / f"{name}.groups.json").read_text())["groups"]
    return tuple(_node_group(group_id, group) for group_id, group in recorded.items())


def _node_group(group_id: str, group: dict[str, float | str]) -> NodeGroup:
    resources = {
        "cpu": int(group["cpu_milli"]),
        "memory": int(group["memory_mib"]) * 2**20,
        "pods": int(group["pods"]),
        **({"nvidia.com/gpu": int(group["gpu"])} if group["gpu"] else {}),
    }
    labels = {"kubernetes.io/arch": str(group["arch"]), "example.com/node-group": group_id}
    return NodeGroup(
        id=group_id,
        allocatable=resources,
        price_usd_per_hour=float(group["price"]),
        labels=labels,
        instance_type=group_id,
        zone="zone-a",
        max_size=500,  # as recorded
    )
