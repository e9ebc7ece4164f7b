"""Small clusters as kubectl would list them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TYPES = {
    "m7i.xlarge": ("3920m", "14162Mi"),
    "m7i.4xlarge": ("15890m", "57691Mi"),
    "r7i.4xlarge": ("15890m", "118312Mi"),
}
Document = dict[str, Any]


def node(name: str, kind: str = "m7i.xlarge", zone: str = "zone-1", pool: str = "general", **more: Any) -> Document:
    cpu, memory = TYPES.get(kind, ("4", "16Gi"))
    labels = {
        "node.kubernetes.io/instance-type": kind,
        "topology.kubernetes.io/zone": zone,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "karpenter.sh/nodepool": pool,
        **more.pop("labels", {}),
    }
    allocatable = {"cpu": cpu, "memory": memory, "pods": "58"}
    metadata = {"name": name, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": more,
        "status": {"allocatable": allocatable},
    }


def pod(name: str, on: str, cpu: str = "1", memory: str = "1Gi", app: str = "web", **more: Any) -> Document:
    owner, created, started = more.pop("owner", "ReplicaSet"), more.pop("created", ""), more.pop("started", "")
    spec = {
        "nodeName": on,
        "containers": [{"name": "c", "image": "i", "env": [{"name": "SECRET", "value": "hunter2"}]}],
    }
    spec["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": memory}}  # type: ignore[index]
    metadata = {
        "name": name,
        "namespace": more.pop("namespace", "shop"),
        "uid": f"uid-{name}",
        "labels": {"app": app},
        "annotations": more.pop("annotations", {}),
        "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": app, "uid": "u", "controller": True}],
    }
    if created:
        metadata["creationTimestamp"] = created
    status = {"phase": "Running", **({"startTime": started} if started else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **more}, "status": status}


def budget(name: str, app: str, allowed: int, namespace: str = "shop") -> Document:
    """A PodDisruptionBudget."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"selector": {"matchLabels": {"app": app}}, "minAvailable": 1},
        "status": {"disruptionsAllowed": allowed},
    }


def daemons(nodes: list[Document]) -> list[Document]:
    return [
        pod(
            f"cni-{each['metadata']['name']}",
            each["metadata"]["name"],
            "100m",
            "128Mi",
            "cni",
            owner="DaemonSet",
            namespace="kube-system",
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": [each["metadata"]["name"]]}
                                ]
                            }
                        ]
                    }
                }
            },
        )
        for each in nodes
    ]


def apart(app: str) -> Document:
    """No two pods of an app on one node."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def half_empty() -> list[Document]:
    """Six nodes of 4 cores: one empty, four with one pod of 1 core each, and one with three pods that keep apart from
    each other; and one large node that is nearly empty."""
    nodes = [node(f"n{index}", zone=f"zone-{index % 2}") for index in range(6)] + [node("large", "r7i.4xlarge")]
    pods = [pod(f"web-{index}", f"n{index}") for index in range(1, 5)]
    pods += [pod(f"db-{index}", on, app="db", affinity=apart("db")) for index, on in enumerate(("n5", "n4", "large"))]
    return [*nodes, *pods, *daemons(nodes)]


def written(path: Path, items: list[Document]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path
