"""Carriers of placeholders: the planner alone, CapacityBuffers, or pause pods; and switching between them. Those that
write list their objects, write the difference, and repeat until there is none: all state is in the cluster, so that
another process can take over.

For each shape there is one CapacityBuffer with its PodTemplate, or one ReplicaSet of pause pods. An object's name
identifies its shape. That of a PodTemplate or ReplicaSet also contains a hash of its content: it is replaced, never
changed, so that CA never observes a partial change."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.core.slack import PLACEHOLDER, PRIORITY, PRIORITY_CLASS, SHAPE
from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.slack.model import Carrier
from cagrpc.errors import NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from solver.slack.model import Placement, SlackShape

STRATEGY = "slack.cagrpc.io/placeholders"
"""The provisioningStrategy of our CapacityBuffers, which no other controller handles."""
SELECTOR = f"{PLACEHOLDER}=true"
"""Selects all objects of carriers, and their pods."""

_SET = "slack.cagrpc.io/set"
"""Label of pause pods: the name of their ReplicaSet."""
_LONGEST_SLUG = 36
_GRACE_SECONDS = 1
"""The least above 0, which would force deletion: room would be given away before it is free, and a scheduler that
preempts for several pods at once may miss that a victim is gone (observed with 1.36: one of the pods waits)."""
_PAUSE_USER = 65535

Object = Mapping[str, Any]
Writes = list[Callable[[], object]]
"""Requests to the API server, still to be made."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects are created, and their owner."""

    namespace: str
    image: str
    """Image of the pause pods."""
    owner: Mapping[str, Any]
    """metav1.OwnerReference of the Slack object, with which all of them are garbage-collected."""

    def templates(self, name: str = "") -> str:
        """Return the path of a PodTemplate, or of all."""
        return _path(f"/api/v1/namespaces/{self.namespace}/podtemplates", name)

    def replica_sets(self, name: str = "") -> str:
        """Return the path of a ReplicaSet, or of all."""
        return _path(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", name)

    def buffers(self, name: str = "", subresource: str = "") -> str:
        """Return the path of a CapacityBuffer, or of all."""
        return capacity_buffers.path(self.namespace, name, subresource)

    def head(self, api_version: str, kind: str, name: str, shape: str) -> dict[str, Any]:
        """Return type and metadata of an object for a shape."""
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {PLACEHOLDER: "true", "app.kubernetes.io/managed-by": "cagrpc"},
            "annotations": {SHAPE: shape},
            "ownerReferences": [dict(self.owner)],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def object_name(shape: str) -> str:
    """Return a unique name for the object of a shape, recognisable by the shape's own."""
    slug = re.sub(r"[^a-z0-9]+", "-", shape.lower())[:_LONGEST_SLUG].strip("-")
    return f"slack-{slug}-{_digest(shape)}"


def template_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """Return a v1.PodTemplate of the pods that CA injects, at a priority at which it schedules all other pods first."""
    template = _template(shape, place, {"priority": PRIORITY})
    return {
        **place.head("v1", "PodTemplate", f"{object_name(shape.name)}-{_digest(template)}", shape.name),
        "template": template,
    }


def buffer_body(shape: SlackShape, template: str, place: Place) -> dict[str, Any]:
    """Return a CapacityBuffer without its status, which is all that CA reads."""
    head = place.head(capacity_buffers.API_VERSION, capacity_buffers.KIND, object_name(shape.name), shape.name)
    return {**head, "spec": buffer_spec(shape, template)}


def buffer_spec(shape: SlackShape, template: str) -> dict[str, Any]:
    return {"provisioningStrategy": STRATEGY, "podTemplateRef": {"name": template}, "replicas": shape.count}


def replica_set_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """Return an apps/v1 ReplicaSet of pause pods, which terminate within a second."""
    template = _template(shape, place, {"priorityClassName": PRIORITY_CLASS})
    name = f"{object_name(shape.name)}-{_digest(template)}"
    template["metadata"]["labels"][_SET] = name
    selector = {"matchLabels": {PLACEHOLDER: "true", _SET: name}}
    spec = {"replicas": shape.count, "selector": selector, "template": template}
    return {**place.head("apps/v1", "ReplicaSet", name, shape.name), "spec": spec}


def shape_of(found: Object) -> str:
    """Return the name of the shape that an object carries; empty where the annotation is missing."""
    return str((found["metadata"].get("annotations") or {}).get(SHAPE, ""))


def _template(shape: SlackShape, place: Place, priority: Mapping[str, Any]) -> dict[str, Any]:
    pod = pod_body(shape.spec, place.image, place.namespace)
    pod["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return {
        "metadata": {
            "labels": {**dict(shape.spec.labels), PLACEHOLDER: "true"},
            "annotations": {SHAPE: shape.name},
        },
        "spec": {
            **pod,
            **priority,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _PAUSE_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _path(collection: str, name: str) -> str:
    return f"{collection}/{name}" if name else collection


LOOK_SECONDS = 10.0
"""How often the objects are compared while nothing new is wanted."""
_ROUNDS = 4
"""Of listing and writing, in one call."""
CHOOSE_SECONDS = 60.0
"""How often the carrier is chosen again."""


class PlaceholderCarrier:
    """A carrier of placeholders; by itself it is the carrier `virtual`, which writes nothing, since only the planner
    knows of placeholders. For one thread."""

    def carry(self, state: SlackState) -> bool:
        """Write what differs from the state, and return whether all of it is carried now. It is called again where not,
        and where it raises Unavailable or Conflict."""
        del state
        return True

    def placements(self) -> Placement | None:
        """Return the placement where another component decides it; None where the slack's own placement applies."""
        return None

    def withdraw(self) -> None:
        """Delete all that this carrier has written: called once another one carries. Raises Unavailable or Conflict; it
        is called again then."""


class WritingCarrier(PlaceholderCarrier, ABC):
    """The loop of listing and writing. For one thread."""

    def __init__(self, client: Client, place: Callable[[], Place], timer: MonotonicClock = monotonic) -> None:
        """`place` may raise Unavailable."""
        self._client = client
        self._place = place
        self._timer = timer
        self._carried: tuple[SlackShape, ...] | None = None
        self._compare_at = 0.0

    def carry(self, state: SlackState) -> bool:
        shapes = tuple(shape for shape in state.shapes if shape.count)
        if shapes == self._carried and self._timer() < self._compare_at:
            return True
        self._carried = None
        if not self._settle(shapes):
            return False
        self._carried, self._compare_at = shapes, self._timer() + LOOK_SECONDS
        return True

    def withdraw(self) -> None:
        self._carried = None
        self._settle(())

    def _settle(self, shapes: Sequence[SlackShape]) -> bool:
        place = self._place()
        for _ in range(_ROUNDS):
            writes, waits = self._next(shapes, place)
            for write in writes:
                write()
            if not writes:
                return not waits
        return False

    @abstractmethod
    def _next(self, shapes: Sequence[SlackShape], place: Place) -> tuple[Writes, bool]:
        """Return the writes that lead from the objects that there are to these shapes, and whether others have to do
        something before all are made. After any write more may follow."""

    def _list(self, path: str) -> dict[str, Object] | None:
        """Return our objects by name; None where the cluster does not serve the kind."""
        try:
            found = self._client.get(path, {"labelSelector": SELECTOR})["items"]
        except NotFound:
            return None
        return {str(each["metadata"]["name"]): each for each in found}

    def _deletion(self, path: str, found: Object) -> Callable[[], object]:
        return partial(self._client.delete, path, uid=str(found["metadata"]["uid"]))


def choose(configured: Carrier | None, *, planned: bool, serves_buffers: Callable[[], bool]) -> Carrier:
    """Return the configured carrier, or else the default: `planned` is whether the planner adds nodes, and
    `serves_buffers`, which may raise Unavailable, whether the cluster serves CapacityBuffers."""
    if configured is not None:
        return configured
    if planned:
        return Carrier.VIRTUAL
    return Carrier.BUFFER if serves_buffers() else Carrier.PODS


class Switching:
    """Delegates to the chosen carrier. The others are withdrawn once it carries everything, so that no slack is lost;
    this includes objects of an earlier process. For one thread, but for `name`."""

    def __init__(
        self,
        carriers: Mapping[Carrier, PlaceholderCarrier],
        choose: Callable[[], Carrier],
        *,
        timer: MonotonicClock = monotonic,
    ) -> None:
        """`choose` may raise Unavailable."""
        self._carriers = carriers
        self._choose = choose
        self._timer = timer
        self._choose_at: float = timer()
        self._alone = False
        self.carrier: Carrier | None = None
        """The chosen one; None before it is known."""

    @property
    def name(self) -> str:
        """The name of the chosen one; empty before it is known."""
        return self.carrier or ""

    def carry(self, state: SlackState) -> bool:
        """Carry with the chosen carrier, then withdraw the others."""
        carrier = self._chosen()
        if not self._carriers[carrier].carry(state):
            return False
        if not self._alone:
            for other in self._carriers:
                if other is not carrier:
                    self._carriers[other].withdraw()
            self._alone = True
        return True

    def placements(self) -> Placement | None:
        """Return the placement of the chosen carrier; None before it is known."""
        return None if self.carrier is None else self._carriers[self.carrier].placements()

    def _chosen(self) -> Carrier:
        now = self._timer()
        if self.carrier is None or now >= self._choose_at:
            chosen = self._choose()
            self._choose_at = now + CHOOSE_SECONDS
            if chosen is not self.carrier:
                self.carrier, self._alone = chosen, False
        return self.carrier


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
    """The carrier `buffer`: a CapacityBuffer for each shape, with our own provisioning strategy and a status that is
    written here, so that an unmodified CA simulates its pods, adds nodes for them and keeps these. CA does not report
    where its pods are, so the slack's own placement applies.

    Source: CA's processors/capacitybuffer. It injects pods where the status refers to a PodTemplate at its current
    generation. So a PodTemplate is created first, then the status refers to it, and only then the previous one is
    deleted.
    """

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

    def _next(self, shapes: Sequence[SlackShape], place: Place) -> tuple[Writes, bool]:
        existing = self._list(place.buffers())
        if existing is None and shapes:
            raise Unavailable(
                "the cluster has no CapacityBuffers (autoscaling.x-k8s.io/v1beta1): install their definition"
                " (deploy/buffer-crds.yaml), or set slack.carrier to pods"
            )
        buffers, templates = existing or {}, self._list(place.templates()) or {}
        writes: Writes = []
        in_use = {capacity_buffers.status(each).template for each in buffers.values()}
        for shape in shapes:
            template = template_body(shape, place)
            in_use.add(template["metadata"]["name"])
            made, buffer = templates.get(template["metadata"]["name"]), buffers.get(object_name(shape.name))
            if made is None:
                writes.append(partial(self._client.create, place.templates(), template))
            writes += self._next_of(shape, template["metadata"]["name"], made, buffer, place)
        named = {object_name(shape.name) for shape in shapes}
        writes += [self._deletion(place.buffers(name), buffers[name]) for name in buffers if name not in named]
        writes += [self._deletion(place.templates(name), templates[name]) for name in templates if name not in in_use]
        return writes, False

    def _next_of(
        self, shape: SlackShape, template: str, made: Object | None, buffer: Object | None, place: Place
    ) -> Writes:
        """Return the next write to the CapacityBuffer of a shape, whose PodTemplate of this name is `made` already."""
        name = object_name(shape.name)
        if buffer is None:
            return [partial(self._client.create, place.buffers(), buffer_body(shape, template, place))]
        spec = buffer_spec(shape, template)
        if any(buffer.get("spec", {}).get(key) != value for key, value in spec.items()):
            return [partial(self._client.patch, place.buffers(name), {"spec": spec})]
        if made is None:
            return []
        wanted = BufferStatus(template, int(made["metadata"].get("generation") or 0), shape.count)
        if capacity_buffers.status(buffer) == wanted:
            return []
        patch = capacity_buffers.status_patch(buffer, wanted, self._now())
        return [partial(self._client.patch, place.buffers(name, "status"), patch)]


_PRIORITY_CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{PRIORITY_CLASS}"


def _has_pods(found: Object) -> bool:
    """Return whether it has pods, or may still create some."""
    status = found.get("status") or {}
    observed = int(status.get("observedGeneration") or 0) >= int(found["metadata"].get("generation") or 0)
    pods = status.get("replicas") or status.get("terminatingReplicas")
    return bool(found["spec"].get("replicas") or pods or not observed)


class PausePods(WritingCarrier):
    """The carrier `pods`: a ReplicaSet of pause pods for each shape, at a priority at which the scheduler preempts them
    for any other pod, and CA (any version) adds nodes for them and keeps these. The scheduler decides where they are.

    A ReplicaSet whose template has changed is scaled to zero before its successor is created; otherwise CA would add
    nodes for both.
    """

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

    def _next(self, shapes: Sequence[SlackShape], place: Place) -> tuple[Writes, bool]:
        if shapes and not self._has_priority_class:
            self._require_priority_class()
        existing = self._list(place.replica_sets()) or {}
        bodies = {shape.name: replica_set_body(shape, place) for shape in shapes}
        wanted = {body["metadata"]["name"] for body in bodies.values()}
        writes: Writes = []
        draining: set[str] = set()
        for name, found in existing.items():
            if name in wanted:
                continue
            if shape_of(found) not in bodies or not _has_pods(found):
                writes.append(self._deletion(place.replica_sets(name), found))
                continue
            draining.add(shape_of(found))
            writes += self._scaled(found, 0, place)
        for shape, body in bodies.items():
            known = existing.get(body["metadata"]["name"])
            if known is not None:
                writes += self._scaled(known, body["spec"]["replicas"], place)
            elif shape not in draining:
                writes.append(partial(self._client.create, place.replica_sets(), body))
        return writes, bool(draining)

    def _scaled(self, found: Object, replicas: int, place: Place) -> Writes:
        if (found["spec"].get("replicas") or 0) == replicas:
            return []
        path = place.replica_sets(str(found["metadata"]["name"]))
        return [partial(self._client.patch, path, {"spec": {"replicas": replicas}})]

    def _require_priority_class(self) -> None:
        try:
            self._client.get(_PRIORITY_CLASS)
        except NotFound:
            raise Unavailable(
                f"there is no PriorityClass {PRIORITY_CLASS}, which pause pods need: kubectl apply -f deploy/slack.yaml"
            ) from None
        self._has_priority_class = True
