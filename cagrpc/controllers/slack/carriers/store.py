"""Carriers that write to the cluster: they list their objects, write the difference, and repeat until there is none.
All state is in the cluster, so that another process can take over. What to write is decided in `buffers` and `pause`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from cagrpc.api.core.slack import PRIORITY_CLASS
from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.slack.carriers import buffers, pause
from cagrpc.controllers.slack.carriers.objects import SELECTOR, CarrierUpdate, Object, Place, Verb, Write
from cagrpc.errors import NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from solver.slack.model import Placement, SlackShape

LOOK_SECONDS = 10.0
"""How often the objects are compared while nothing new is wanted."""
_ROUNDS = 4
"""Of listing and writing, in one call."""
_PRIORITY_CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{PRIORITY_CLASS}"


class _WrittenObjects(ABC):
    """The loop of listing and writing. For one thread."""

    def __init__(self, client: Client, place: Callable[[], Place], timer: MonotonicClock = monotonic) -> None:
        """`place` may raise Unavailable."""
        self._client = client
        self._place = place
        self._timer = timer
        self._carried: tuple[SlackShape, ...] | None = None
        self._compare_at = 0.0

    def carry(self, state: SlackState) -> bool:
        """Write what differs from the state, and return whether all of it is carried now. Raises what the client
        raises."""
        shapes = tuple(shape for shape in state.shapes if shape.count)
        if shapes == self._carried and self._timer() < self._compare_at:
            return True
        self._carried = None
        if not self._settle(shapes):
            return False
        self._carried, self._compare_at = shapes, self._timer() + LOOK_SECONDS
        return True

    def withdraw(self) -> None:
        """Delete all that this carrier has written. Raises what the client raises."""
        self._carried = None
        self._settle(())

    def _settle(self, shapes: Sequence[SlackShape]) -> bool:
        place = self._place()
        for _ in range(_ROUNDS):
            todo = self._next(shapes, place)
            for write in todo.writes:
                self._write(write)
            if todo.done:
                return True
            if not todo.writes:
                break
        return False

    @abstractmethod
    def _next(self, shapes: Sequence[SlackShape], place: Place) -> CarrierUpdate: ...

    def _list(self, path: str) -> dict[str, Object] | None:
        """Return our objects by name; None where the cluster does not serve the kind."""
        try:
            found = self._client.get(path, {"labelSelector": SELECTOR})["items"]
        except NotFound:
            return None
        return {str(each["metadata"]["name"]): each for each in found}

    def _write(self, write: Write) -> None:
        match write.verb:
            case Verb.CREATE:
                self._client.create(write.path, write.body)
            case Verb.PATCH:
                self._client.patch(write.path, write.body)
            case Verb.DELETE:
                self._client.delete(write.path, uid=write.uid)


class Buffers(_WrittenObjects):
    """The carrier `buffer`."""

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

    def placements(self) -> None:
        """Return None: CA does not report where its pods are, so the slack's own placement applies."""

    def _next(self, shapes: Sequence[SlackShape], place: Place) -> CarrierUpdate:
        existing = self._list(place.buffers())
        if existing is None and shapes:
            raise Unavailable(
                "the cluster has no CapacityBuffers (autoscaling.x-k8s.io/v1beta1): install their definition"
                " (deploy/buffer-crds.yaml), or set slack.carrier to pods"
            )
        templates = self._list(place.templates()) or {}
        return buffers.next_writes(shapes, templates, existing or {}, place, self._now())


class PausePods(_WrittenObjects):
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
        return pause.next_writes(shapes, self._list(place.replica_sets()) or {}, place)

    def _require_priority_class(self) -> None:
        try:
            self._client.get(_PRIORITY_CLASS)
        except NotFound:
            raise Unavailable(
                f"there is no PriorityClass {PRIORITY_CLASS}, which pause pods need: kubectl apply -f deploy/slack.yaml"
            ) from None
        self._has_priority_class = True
