"""Evictions, by the API that heeds PodDisruptionBudgets: one request for each pod, with its UID as precondition, so
that never another pod of the same name goes. Which pods go when is `queue`'s to decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from cagrpc.errors import CagrpcError, Conflict, NotFound
from cagrpc.fleet.model import PodMove
from cagrpc.kube.client.failures import Forbidden, TooManyRequests
from cagrpc.runtime.clock import MonotonicClock

log = logging.getLogger(__name__)

REFUSED_SECONDS = 5.0
"""How long after a refusal a pod is tried again, as `kubectl drain` does."""


class Evictor(Protocol):
    """The part of `kube.client.Client` that evicting needs. It must not wait for Retry-After by itself
    (`Client.hurried`)."""

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class Evictions:
    """Evicts pods, and remembers whom the API server refused. For one thread."""

    def __init__(self, client: Evictor, clock: MonotonicClock) -> None:
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
