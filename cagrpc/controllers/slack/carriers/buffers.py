"""The carrier `buffer`: a CapacityBuffer for each shape, with our own provisioning strategy and a status that is
written here, so that an unmodified CA simulates its pods, adds nodes for them and keeps these.

Source: CA's processors/capacitybuffer. It injects pods where the status refers to a PodTemplate at its current
generation. So a PodTemplate is created first, then the status refers to it, and only then the previous one is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
from cagrpc.controllers.slack.carriers.carrier import WritingCarrier
from cagrpc.controllers.slack.carriers.objects import (
    CarrierUpdate,
    Object,
    Place,
    Verb,
    Write,
    buffer_body,
    buffer_spec,
    object_name,
    template_body,
)
from cagrpc.errors import NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from solver.slack.model import SlackShape


def _next_writes(
    shapes: Sequence[SlackShape],
    templates: Mapping[str, Object],
    buffers: Mapping[str, Object],
    place: Place,
    now_seconds: float,
) -> CarrierUpdate:
    """Return the next writes that lead from the existing objects, by name, to these shapes."""
    writes: list[Write] = []
    in_use = {capacity_buffers.status(each).template for each in buffers.values()}
    for shape in shapes:
        name, template = object_name(shape.name), template_body(shape, place)
        template_name = template["metadata"]["name"]
        in_use.add(template_name)
        made, buffer = templates.get(template_name), buffers.get(name)
        if made is None:
            writes.append(Write(Verb.CREATE, place.templates(), template))
        if buffer is None:
            writes.append(Write(Verb.CREATE, place.buffers(), buffer_body(shape, template_name, place)))
            continue
        wanted_spec = buffer_spec(shape, template_name)
        if any(buffer.get("spec", {}).get(key) != value for key, value in wanted_spec.items()):
            writes.append(Write(Verb.PATCH, place.buffers(name), {"spec": wanted_spec}))
        elif made is not None:
            wanted = BufferStatus(template_name, int(made["metadata"].get("generation") or 0), shape.count)
            if capacity_buffers.status(buffer) != wanted:
                patch = capacity_buffers.status_patch(buffer, wanted, now_seconds)
                writes.append(Write(Verb.PATCH, place.buffers(name, "status"), patch))
    named = {object_name(shape.name) for shape in shapes}
    gone = [(place.buffers(name), found) for name, found in buffers.items() if name not in named]
    gone += [(place.templates(name), found) for name, found in templates.items() if name not in in_use]
    writes += [Write(Verb.DELETE, path, uid=str(found["metadata"]["uid"])) for path, found in gone]
    return CarrierUpdate(tuple(writes))


def served(client: Client) -> bool:
    """Return whether the cluster serves CapacityBuffers in the version of CA 1.36. Raises Unavailable where the cluster
    is not reachable."""
    try:
        found = client.get(f"/apis/{capacity_buffers.API_VERSION}")
    except NotFound:
        return False
    resources = found.get("resources")
    return isinstance(resources, list) and any(each["name"] == capacity_buffers.RESOURCE for each in resources)


class Buffers(WritingCarrier):
    """The carrier `buffer`. CA does not report where its pods are, so the slack's own placement applies."""

    def __init__(
        self,
        client: Client,
        place: Callable[[], Place],
        *,
        timer: MonotonicClock = monotonic,
        now: EpochClock = epoch,
    ) -> None:
        super().__init__(client, place, timer)
        self._now = now

    def _next(self, shapes: Sequence[SlackShape], place: Place) -> CarrierUpdate:
        existing = self._list(place.buffers())
        if existing is None and shapes:
            raise Unavailable(
                "the cluster has no CapacityBuffers (autoscaling.x-k8s.io/v1beta1): install their definition"
                " (deploy/buffer-crds.yaml), or set slack.carrier to pods"
            )
        templates = self._list(place.templates()) or {}
        return _next_writes(shapes, templates, existing or {}, place, self._now())
