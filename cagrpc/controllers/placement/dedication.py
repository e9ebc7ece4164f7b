"""Dedicated nodes: a new node takes the pods that are planned there and no others, until they are bound. Its start-up
taint gets a value, and each of its pods a toleration of that value (upstream: "Taints and Tolerations", dedicated
nodes), so it does not matter in which order the scheduler tries pods. When a node is dedicated, and when it is open to
all pods, is `release`'s to decide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import Any

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.markers import PLACEMENT_FIELD_MANAGER
from cagrpc.cluster.state import PendingPod
from cagrpc.errors import Conflict, InvalidInput, NotFound
from cagrpc.kube.client.client import METADATA_ONLY, Client, PatchKind
from cagrpc.kube.client.failures import Forbidden
from cagrpc.kube.nodes import set_value
from cagrpc.runtime.log_once import LogOnce
from solver.model import TaintEffect

_log = logging.getLogger(__name__)

_LONGEST_VALUE = 63
"""Of a taint (upstream: a label's value)."""
_TOLERATIONS = "/spec/tolerations"


def taint_value(node: str) -> str:
    """Return the value of the start-up taint of a Node of this name while it is dedicated."""
    return node if len(node) <= _LONGEST_VALUE else sha256(node.encode()).hexdigest()[:_LONGEST_VALUE]


class Dedication:
    """Dedicates nodes, and remembers what was written. Thread-safe, except for one node from several threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admitted: dict[str, set[str]] = {}
        """The pods (UIDs) that tolerate its taint, by node that is dedicated."""
        self._reported = LogOnce()

    def admit(self, node: str, pods: Iterable[PendingPod], *, index: int = -1) -> bool:
        """Dedicate the Node, whose start-up taint is at `index`, and let these pods tolerate it. Return false where one
        must not be changed. Raises Unavailable where the API server is out of reach, Conflict where others write the
        Node again and again."""
        value = taint_value(node)
        if node not in self._admitted:
            set_value(self._client, node, START_UP_TAINT, value, index=index)
        admitted = self._admitted.setdefault(node, set())
        refused = [pod for pod in pods if not self._tolerate(pod, value, admitted)]
        return not refused

    def only(self, nodes: AbstractSet[str]) -> None:
        """Forget all other Nodes: they are open to all pods, or gone."""
        for name in self._admitted.keys() - nodes:
            del self._admitted[name]

    def _tolerate(self, pod: PendingPod, value: str, admitted: set[str]) -> bool:
        if value in pod.tolerated:  # let in by an earlier process
            admitted.add(pod.ref.uid)
        if pod.ref.uid in admitted:
            return True
        toleration = {
            "key": START_UP_TAINT,
            "operator": "Equal",
            "value": value,
            "effect": TaintEffect.NO_SCHEDULE.value,
        }
        try:
            try:
                self._patch(pod, [{"op": "add", "path": f"{_TOLERATIONS}/-", "value": toleration}])
            except InvalidInput:  # it has no tolerations yet
                test = {"op": "test", "path": _TOLERATIONS, "value": None}
                self._patch(pod, [test, {"op": "add", "path": _TOLERATIONS, "value": [toleration]}])
        except (NotFound, Conflict):  # gone, or changed since: the view will report it
            return True
        except (Forbidden, InvalidInput) as error:
            if self._reported.is_new(type(error).__name__):
                _log.warning("a node is open to all pods at once, as one of its own cannot be changed: %s", error)
            return False
        self._reported.over()
        admitted.add(pod.ref.uid)
        return True

    def _patch(self, pod: PendingPod, operations: Sequence[dict[str, Any]]) -> None:
        path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
        test = {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid}
        self._client.patch(
            path,
            [test, *operations],
            PatchKind.JSON,
            field_manager=PLACEMENT_FIELD_MANAGER,
            accept=METADATA_ONLY,
        )
