"""Cordons of ours: `spec.unschedulable` with an annotation that says for which disruption. A node that somebody else
has cordoned stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from cagrpc.cluster.markers import DISRUPTION
from cagrpc.errors import Conflict, NotFound
from cagrpc.fleet.model import DisruptedNode
from cagrpc.kube.client.client import PatchKind

_TRIES = 5


class PatchableNodes(Protocol):
    """The part of `kube.client.Client` that cordoning needs."""

    def get(self, path: str) -> dict[str, Any]: ...

    def patch(self, path: str, body: Any, kind: PatchKind) -> dict[str, Any]: ...


class SeenCordons(Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that is needed here."""

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is known and takes no further pods."""
        ...


class Cordons:
    """The cordons of the disruption under way. For one thread."""

    def __init__(self, client: PatchableNodes, cluster: SeenCordons) -> None:
        self._client = client
        self._cluster = cluster
        self._written: dict[str, bool] = {}
        """What was written last, by node."""

    def write(self, nodes: Iterable[DisruptedNode], cordoned: AbstractSet[str], disruption_id: str) -> bool:
        """Cordon those of the nodes that are in `cordoned`, and lift our cordons of the others. Nothing is written
        twice: what others change afterwards stays. Return whether there was anything to write."""
        before = dict(self._written)
        for name in [each.name for each in nodes]:
            wanted = name in cordoned
            if self._written.get(name) is wanted:
                continue
            if wanted:
                cordon(self._client, name, disruption_id)
            else:
                uncordon(self._client, name)
            self._written[name] = wanted
        return self._written != before

    def are_seen(self, nodes: Iterable[DisruptedNode]) -> bool:
        """Return whether all of these nodes were cordoned here and are seen to be."""
        return all(self._written.get(each.name) and self._cluster.is_cordoned(each.name) for each in nodes)

    def are_as_written(self, nodes: Iterable[DisruptedNode]) -> bool:
        """Return whether those of the nodes are seen to be cordoned that were, and no others."""
        return all(self._cluster.is_cordoned(each.name) is self._written.get(each.name) for each in nodes)

    def forget(self) -> None:
        """Forget all nodes: another disruption begins."""
        self._written.clear()


def cordon(client: PatchableNodes, node: str, disruption_id: str) -> None:
    """Cordon the Node, unless it is cordoned. It is no error if there is no such Node. Raises Conflict where others
    write the node all the time, and Unavailable."""

    def wanted(cordoned: bool, mark: str | None) -> dict[str, Any] | None:
        if cordoned and mark in (None, disruption_id):
            return None  # by somebody else, or done
        return {"metadata": {"annotations": {DISRUPTION: disruption_id}}, "spec": {"unschedulable": True}}

    _change(client, node, wanted)


def uncordon(client: PatchableNodes, node: str) -> None:
    """Lift a cordon of ours; one that somebody else has lifted meanwhile leaves only the annotation to remove. As
    `cordon` otherwise."""

    def wanted(cordoned: bool, mark: str | None) -> dict[str, Any] | None:
        if mark is None:
            return None
        lifted = {"spec": {"unschedulable": None}} if cordoned else {}
        return {"metadata": {"annotations": {DISRUPTION: None}}, **lifted}

    _change(client, node, wanted)


def _change(client: PatchableNodes, node: str, wanted: Any) -> None:
    """Read the Node and patch what is wanted of it, with the resource version as precondition."""
    path = f"/api/v1/nodes/{node}"
    for _ in range(_TRIES):
        try:
            document = client.get(path)
            metadata, spec = document["metadata"], document.get("spec") or {}
            patch = wanted(bool(spec.get("unschedulable")), (metadata.get("annotations") or {}).get(DISRUPTION))
            if patch is None:
                return
            body = {**patch, "metadata": {**patch["metadata"], "resourceVersion": metadata["resourceVersion"]}}
            client.patch(path, body, PatchKind.MERGE)
        except Conflict:
            continue
        except NotFound:
            return
        return
    raise Conflict(f"node {node}: cannot be cordoned or uncordoned: others write the node all the time")
