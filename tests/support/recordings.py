"""The recorded conversations of an unmodified cluster-autoscaler, as tests read them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from cagrpc.replay.recording import Call, read_recording
from solver.model import NodeGroup

_ROOT = Path(__file__).parents[2]
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


def recorded(name: str) -> Path:
    """Return a file of a recording: one comes with cagrpc, the others are the tests'."""
    ours = _ROOT / "tests" / "data" / "recordings" / name
    return ours if ours.exists() else _ROOT / "cagrpc" / "data" / "recordings" / name


@cache
def conversation(name: str) -> tuple[Call, ...]:
    return read_recording(str(recorded(f"{name}.jsonl.gz")))


def node_groups(name: str) -> tuple[NodeGroup, ...]:
    """The node groups that the recorded provider served, as node groups of ours."""
    groups = json.loads(recorded(f"{name}.groups.json").read_text())["groups"]
    return tuple(_node_group(group_id, group) for group_id, group in groups.items())


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
