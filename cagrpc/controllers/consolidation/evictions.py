"""Draining nodes. Pods are evicted by the API that heeds PodDisruptionBudgets: one request for each pod, with its UID
as precondition, so that never another pod of the same name goes. Nodes are cordoned by `spec.unschedulable`, with an
annotation that says for which disruption; one that somebody else has cordoned stays as it is. Which pods and nodes go
when is `queue`'s to decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from cagrpc.cluster.markers import DISRUPTION
from cagrpc.cluster.view.view import ClusterView
from cagrpc.errors import CagrpcError, Conflict, NotFound
from cagrpc.fleet.model import DisruptedNode, PodMove
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden, TooManyRequests
from cagrpc.kube.nodes import change
from cagrpc.runtime.clock import MonotonicClock

log = logging.getLogger(__name__)

REFUSED_SECONDS = 5.0
"""How long after a refusal a pod is tried again, as `kubectl drain` does."""


class Evictions:
    """Evicts pods, and remembers whom the API server refused. For one thread."""

    def __init__(self, client: Client, clock: MonotonicClock) -> None:
        """`client` must not wait for Retry-After by itself (`Client.hurried`)."""
        self._client = client
        self._clock = clock
        self._again_at: dict[str, float] = {}
        self.gone: set[str] = set()
        """Pods (by UID) that were evicted or are gone, whether the view has seen that or not."""
        self._refusals: dict[str, str] = {}
        self.evicted = 0
        """How many pods went so far, of all disruptions."""
        self.refused = 0
        """How many requests a PodDisruptionBudget refused, or the API server in its place."""

    @property
    def problem(self) -> str:
        """What the API server said last of a pod that it does not let go; empty where it lets all go."""
        return next(reversed(self._refusals.values()), "")

    def is_due(self, uid: str) -> bool:
        """Return whether the pod was not refused a moment ago."""
        return self._clock() >= self._again_at.get(uid, float("-inf"))

    def is_refused(self, uid: str) -> bool:
        """Return whether the API server did not let the pod go when it was asked last."""
        return uid in self._refusals

    def evict(self, pods: Iterable[PodMove]) -> None:
        """Evict these pods. One that is gone, or whose name another has, is evicted; one that is refused is due again
        later. Raises Forbidden where the right is missing. Whatever else fails leaves the pod to a later try, and
        where the outcome of a request is unknown the view will show it."""
        for pod in pods:
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            }
            try:
                self._client.create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
            except (NotFound, Conflict):
                self._leave(pod.uid)
                continue
            except Forbidden:
                raise
            except CagrpcError as error:
                self.refused += isinstance(error, TooManyRequests)
                self._again_at[pod.uid] = self._clock() + REFUSED_SECONDS
                self._refusals.pop(pod.uid, None)
                self._refusals[pod.uid] = f"pod {pod.namespace}/{pod.name} is not evicted yet: {error}"
                continue
            log.info("pod %s/%s is evicted: its successor goes to %s", pod.namespace, pod.name, pod.target)
            self.evicted += 1
            self._leave(pod.uid)

    def forget(self) -> None:
        """Forget all pods: another disruption begins."""
        self._again_at.clear()
        self._refusals.clear()
        self.gone.clear()

    def _leave(self, uid: str) -> None:
        self._again_at.pop(uid, None)
        self._refusals.pop(uid, None)
        self.gone.add(uid)


class Cordons:
    """The cordons of the disruption under way. For one thread."""

    def __init__(self, client: Client, cluster: ClusterView) -> None:
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


def cordon(client: Client, node: str, disruption_id: str) -> None:
    """Cordon the Node, unless it is cordoned. It is no error if there is no such Node. Raises Conflict where others
    write the node all the time, and Unavailable."""

    def wanted(found: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
        if _is_cordoned(found) and _disruption_of(found) in (None, disruption_id):
            return None  # by somebody else, or done
        return {"metadata": {"annotations": {DISRUPTION: disruption_id}}, "spec": {"unschedulable": True}}

    change(client, node, "its cordon", wanted)


def uncordon(client: Client, node: str) -> None:
    """Lift a cordon of ours; one that somebody else has lifted meanwhile leaves only the annotation to remove. As
    `cordon` otherwise."""

    def wanted(found: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
        if _disruption_of(found) is None:
            return None
        lifted = {"spec": {"unschedulable": None}} if _is_cordoned(found) else {}
        return {"metadata": {"annotations": {DISRUPTION: None}}, **lifted}

    change(client, node, "its cordon", wanted)


def _is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _disruption_of(node: Mapping[str, Any]) -> str | None:
    found: str | None = (node["metadata"].get("annotations") or {}).get(DISRUPTION)
    return found
