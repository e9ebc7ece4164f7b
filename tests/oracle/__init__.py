"""kube-scheduler's own word on a plan: a program over its plug-ins, which answers questions about objects in memory.

A question is one JSON object:

    {"nodes": [v1.Node], "bound": [v1.Pod], "objects": [Namespaces, PVs, PVCs, StorageClasses, CSINodes, DaemonSets, …],
     "placements": [{"pod": v1.Pod, "node": name, "nominated": bool}], "unplaced": [v1.Pod],
     "empty": [v1.Node of each allowed group], "standing": [names of nodes]}

and so is its answer:

    {"refused": [{"pod", "node", "plugin", "why"}], "undecided": n,
     "stuck": [{"pod", "order": [names], "plugin", "why", "instead": [names]}], "orders_tried": n,
     "takes": {"namespace/name": [node names]}, "scores": {pod: {node: {plugin: points}}}}

`refused` are placements that no order binds. Where `undecided` is not 0 it says how many of them might be bound in an
order that was not tried. `stuck` are placed pods that are left without a node where the scheduler goes its own way:
higher priorities first and else in any order, each pod on the node that it is nominated to or else on one of its own
choice, what does not fit again and again, with the unplaced pods in the queue (`instead` are those that have a node
then). `takes` are the nodes (planned, that
stand, empty) that would take a pod that is left out, after the placements. `scores` come with `--scores` alone.

Objects get the API server's defaults, and what its admission adds. DaemonSets among the objects have their pods on all
nodes that should run one and have none, but for those that are `standing`: as placements, where they fit as long as
nothing of the plan is there. What cannot be read is answered by `{"error": "…"}`. Device claims are read by the newer
of the two programs only.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.controlplane import binaries


def program(*, oldest: bool = False) -> Path:
    """Return the program, built now where it is not yet. Raises CannotBuild."""
    return binaries.build(binaries.OLDEST_ORACLE if oldest else binaries.ORACLE) / "oracle"


class KubeScheduler:
    """The program as a process that answers one question after the other, until it is closed."""

    def __init__(self, oracle: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(oracle), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises ValueError where the question cannot be read."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def pod(name: str, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a v1.Pod."""
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}
