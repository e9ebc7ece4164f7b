"""The carrier `pods`: a ReplicaSet of pause pods for each shape, at a priority that makes the scheduler take their room
for whoever comes, and CA (any version of it) open nodes for them and keep these. The scheduler says where they are.

A ReplicaSet whose pods have to be others is emptied before its successor is made. The other way round CA would open
nodes for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cagrpc.controllers.slack.carriers.objects import (
    CarrierUpdate,
    Object,
    Place,
    Verb,
    Write,
    replica_set_body,
    shape_of,
)
from solver.slack.model import SlackShape


def next_writes(shapes: Sequence[SlackShape], there: Mapping[str, Object], place: Place) -> CarrierUpdate:
    """From the ReplicaSets of ours that are there, by name, towards these shapes."""
    writes: list[Write] = []
    waits = False
    bodies = {shape.name: replica_set_body(shape, place) for shape in shapes}
    wanted = {body["metadata"]["name"]: body for body in bodies.values()}
    unready: set[str] = set()
    for name, found in there.items():
        if name in wanted:
            continue
        shape = shape_of(found)
        if shape in bodies and _pods(found):
            unready.add(shape)
            waits = True
            if found["spec"].get("replicas"):
                writes.append(Write(Verb.PATCH, place.replica_sets(name), {"spec": {"replicas": 0}}))
        else:
            writes.append(Write(Verb.DELETE, place.replica_sets(name), uid=str(found["metadata"]["uid"])))
    for shape, body in bodies.items():
        name = body["metadata"]["name"]
        known = there.get(name)
        if known is None and shape not in unready:
            writes.append(Write(Verb.CREATE, place.replica_sets(), body))
        elif known is not None and known["spec"].get("replicas") != body["spec"]["replicas"]:
            patch = {"spec": {"replicas": body["spec"]["replicas"]}}
            writes.append(Write(Verb.PATCH, place.replica_sets(name), patch))
    return CarrierUpdate(tuple(writes), waits)


def _pods(found: Object) -> bool:
    """Whether it has pods, or may make some yet."""
    status = found.get("status") or {}
    seen = int(status.get("observedGeneration") or 0) >= int(found["metadata"].get("generation") or 0)
    there = status.get("replicas") or status.get("terminatingReplicas")
    return bool(found["spec"].get("replicas") or there or not seen)
