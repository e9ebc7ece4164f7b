"""What a step of the scale-down controller costs in the clusters of `bench.scale_steps`, which prints it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from bench import scale_objects as objects
from cagrpc.backends.simulated.nodes.controller import node_name
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US
from cagrpc.cluster.shortages import Shortages
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.scale_down.choice import IN_USE, Rules
from cagrpc.controllers.scale_down.controller import REVIEW_SECONDS, ScaleDownController
from cagrpc.runtime.clock import MonotonicSeconds, epoch

MARKED = {SCALE_DOWN_DISABLED: "true", SCALE_DOWN_DISABLED_BY_US: IN_USE}
REVIEWS = 5
LITTLE_USED = 200
KEPT = 3
"""Pods of a node that is little used."""
WAITING = 20


class Cluster(Protocol):
    """What `bench.scale_steps.View` is."""

    standing: list[objects.Standing]

    def put(self, each: objects.Standing, node: str) -> None: ...

    def drop(self, each: objects.Standing) -> None: ...

    def annotate(self, instance_id: str, annotations: Mapping[str, str]) -> None: ...


class _Nodes:
    """Nodes as an API server has them; the view sees what is written once `show` is called."""

    def __init__(self, cluster: Cluster, instances: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._instances = {node_name(each): each for each in instances}
        self._annotations: dict[str, dict[str, str]] = {}
        self._unseen: set[str] = set()

    def get(self, path: str) -> dict[str, Any]:
        kept = self._annotations.get(path.rpartition("/")[2], MARKED)
        return {"metadata": {"resourceVersion": "1", "annotations": kept}}

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        merged = {**self._annotations.get(name, MARKED), **body["metadata"]["annotations"]}
        self._annotations[name] = {key: value for key, value in merged.items() if value is not None}
        self._unseen.add(name)
        return {}

    def show(self) -> None:
        for name in self._unseen:
            self._cluster.annotate(self._instances[name], self._annotations[name])
        self._unseen.clear()


class _Steps:
    """The controller, a step each second of a clock that goes with this process's CPU within steps."""

    def __init__(self, cluster: Any, fleet: Any, instances: Mapping[str, str]) -> None:
        nodes: Any = _Nodes(cluster, instances)
        self._nodes: _Nodes = nodes
        self._seconds = 0.0
        self.controller = ScaleDownController(
            cluster,
            fleet,
            nodes,
            AssumeCache(cluster, Shortages(300.0, epoch), self._clock),
            Rules(),
            self._clock,
        )

    def _clock(self) -> MonotonicSeconds:
        return MonotonicSeconds(self._seconds + time.process_time())

    def longest(self, before: Callable[[], object] = lambda: None) -> float:
        """CPU milliseconds of the longest step of some reviews, with `before` ahead of each; the first review, which
        may have to make what later ones reuse, is not among them."""
        longest = 0.0
        for review in range(REVIEWS + 1):
            before()
            for _ in range(int(REVIEW_SECONDS) + 1):
                began = time.process_time()
                self.controller.step()
                took = 1000 * (time.process_time() - began)
                longest = max(longest, took if review else 0.0)
                self._seconds += 1.0
                self._nodes.show()
        return longest


def measured(
    cluster: Cluster, fleet: Any, instances: Mapping[str, str], move: Callable[[], object]
) -> Iterator[tuple[str, float]]:
    """`move` lets ten pods move."""
    steps = _Steps(cluster, fleet, instances)
    what = "the longest step of scale-down"
    yield f"{what} when nothing may go and nothing has changed", steps.longest()
    yield f"{what} after ten pods have moved", steps.longest(move)
    names = list(dict.fromkeys(each.node for each in cluster.standing))
    little_used = set(names[:: max(1, len(names) // LITTLE_USED)][:LITTLE_USED])
    on: Counter[str] = Counter()
    left: list[objects.Standing] = []
    for each in cluster.standing:
        on[each.node] += 1
        if each.node in little_used and on[each.node] > KEPT:
            cluster.drop(each)
        else:
            left.append(each)
    cluster.standing = left
    for workload in range(WAITING):
        cluster.put(objects.Standing(workload, f"waits-for-scale-down-{workload}", ""), "")
    yield f"{what} with {LITTLE_USED} nodes little used and {WAITING} pods that wait", steps.longest(move)
