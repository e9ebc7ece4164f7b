"""The carrier `buffer`: a CapacityBuffer for each shape, of a strategy of our own whose status is written here, so that
an unmodified CA holds its pods in mind, opens nodes for them and keeps these. CA alone says where they are.

Source: CA's processors/capacitybuffer. It injects where the status names a PodTemplate in the generation that it has
now. So a PodTemplate is made first, then the status names it, and only then the one before it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
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
from cagrpc.errors import NotFound
from solver.slack.model import SlackShape


def next_writes(
    shapes: Sequence[SlackShape],
    templates: Mapping[str, Object],
    buffers: Mapping[str, Object],
    place: Place,
    now_seconds: float,
) -> CarrierUpdate:
    """From the objects of ours that are there, by name, towards these shapes."""
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


def served(get: Callable[[str], Mapping[str, object]]) -> bool:
    """Whether the cluster knows CapacityBuffers of the version that CA 1.36 has. Raises Unavailable where it cannot be
    asked; `get` is the client's."""
    try:
        found = get(f"/apis/{capacity_buffers.API_VERSION}")
    except NotFound:
        return False
    resources = found.get("resources")
    return isinstance(resources, list) and any(each["name"] == capacity_buffers.RESOURCE for each in resources)
