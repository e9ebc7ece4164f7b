"""The carrier `pods`: a ReplicaSet of pause pods for each shape, at a priority at which the scheduler preempts them for
any other pod, and CA (any version) adds nodes for them and keeps these. The scheduler decides where they are.

A ReplicaSet whose template has changed is scaled to zero before its successor is created; otherwise CA would add nodes
for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cagrpc.api.core.slack import PRIORITY_CLASS
from cagrpc.controllers.slack.carriers.carrier import WritingCarrier
from cagrpc.controllers.slack.carriers.objects import (
    CarrierUpdate,
    Object,
    Place,
    Verb,
    Write,
    replica_set_body,
    shape_of,
)
from cagrpc.errors import NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import MonotonicClock, monotonic
from solver.slack.model import Placement, SlackShape

_PRIORITY_CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{PRIORITY_CLASS}"


def _next_writes(shapes: Sequence[SlackShape], existing: Mapping[str, Object], place: Place) -> CarrierUpdate:
    """Return the next writes that lead from the existing ReplicaSets, by name, to these shapes."""
    writes: list[Write] = []
    waits = False
    bodies = {shape.name: replica_set_body(shape, place) for shape in shapes}
    wanted = {body["metadata"]["name"]: body for body in bodies.values()}
    draining: set[str] = set()
    for name, found in existing.items():
        if name in wanted:
            continue
        shape = shape_of(found)
        if shape in bodies and _pods(found):
            draining.add(shape)
            waits = True
            if found["spec"].get("replicas"):
                writes.append(Write(Verb.PATCH, place.replica_sets(name), {"spec": {"replicas": 0}}))
        else:
            writes.append(Write(Verb.DELETE, place.replica_sets(name), uid=str(found["metadata"]["uid"])))
    for shape, body in bodies.items():
        name = body["metadata"]["name"]
        known = existing.get(name)
        if known is None and shape not in draining:
            writes.append(Write(Verb.CREATE, place.replica_sets(), body))
        elif known is not None and known["spec"].get("replicas") != body["spec"]["replicas"]:
            patch = {"spec": {"replicas": body["spec"]["replicas"]}}
            writes.append(Write(Verb.PATCH, place.replica_sets(name), patch))
    return CarrierUpdate(tuple(writes), waits)


def _pods(found: Object) -> bool:
    """Return whether it has pods, or may still create some."""
    status = found.get("status") or {}
    observed = int(status.get("observedGeneration") or 0) >= int(found["metadata"].get("generation") or 0)
    pods = status.get("replicas") or status.get("terminatingReplicas")
    return bool(found["spec"].get("replicas") or pods or not observed)


class PausePods(WritingCarrier):
    """The carrier `pods`."""

    def __init__(
        self,
        client: Client,
        place: Callable[[], Place],
        seen: Callable[[], Placement],
        *,
        timer: MonotonicClock = monotonic,
    ) -> None:
        """`seen` returns where pause pods are."""
        super().__init__(client, place, timer)
        self._seen = seen
        self._has_priority_class = False

    def placements(self) -> Placement:
        """Return the placement by the scheduler."""
        return self._seen()

    def _next(self, shapes: Sequence[SlackShape], place: Place) -> CarrierUpdate:
        if shapes and not self._has_priority_class:
            self._require_priority_class()
        return _next_writes(shapes, self._list(place.replica_sets()) or {}, place)

    def _require_priority_class(self) -> None:
        try:
            self._client.get(_PRIORITY_CLASS)
        except NotFound:
            raise Unavailable(
                f"there is no PriorityClass {PRIORITY_CLASS}, which pause pods need: kubectl apply -f deploy/slack.yaml"
            ) from None
        self._has_priority_class = True
