"""Events in which the cluster-autoscaler tells of its scale-ups (upstream:
processors/status/eventing_scale_up_processor.go): one on each pod that it scaled up for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cagrpc.api.encoding.json_documents import epoch_seconds, mapping
from cagrpc.cluster.view.workloads import EVENTS
from cagrpc.controllers.episodes.model import ScaleUp
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource

TRIGGERED = "reason=TriggeredScaleUp"
_MOST = 500
_SAME_SECONDS = 60.0
"""Pods are told of one increase within some seconds."""
_LONGEST_MESSAGE = 4_000
_INCREASE = re.compile(r"\{(\S{1,300}) (\d{1,6})->(\d{1,6}) \(max: \d{1,10}\)\}")


class ScaleUpEvents:
    """The sink: each increase once, however many pods were told of it. Later ones push the oldest out."""

    def __init__(self) -> None:
        self._found: tuple[ScaleUp, ...] = ()
        self._last: dict[tuple[str, str, str], float] = {}
        """When an increase was told of first, the last time that there was one between these sizes."""

    def informer(self, client: Client) -> Informer[tuple[tuple[tuple[str, str, str], ScaleUp], ...]]:
        """Return what follows them; a cluster may let nobody read Events."""
        resource = Resource(EVENTS, increases, Encoding.JSON, {"fieldSelector": TRIGGERED})
        return Informer(client, resource, self, needed=False)

    def latest(self) -> tuple[ScaleUp, ...]:
        return self._found

    def replaced(self, objects: Iterable[tuple[tuple[tuple[str, str, str], ScaleUp], ...]]) -> None:
        for each in objects:
            self.applied(each)

    def applied(self, obj: tuple[tuple[tuple[str, str, str], ScaleUp], ...]) -> None:
        for key, each in obj:
            if abs(each.at_seconds - self._last.get(key, -math.inf)) > _SAME_SECONDS:
                self._last.pop(key, None)
                self._last[key] = each.at_seconds
                self._found = (*self._found, each)[-_MOST:]
        while len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    def deleted(self, of: ObjectIdentity) -> None:
        """Events go after an hour; what they told stays so."""


def increases(event: Mapping[str, Any]) -> tuple[tuple[tuple[str, str, str], ScaleUp], ...]:
    """Return the increases that an Event tells of, each with what it is known by."""
    times = (event.get("firstTimestamp"), event.get("eventTime"), event.get("lastTimestamp"))
    at = next((seconds for each in times if (seconds := epoch_seconds(each))), 0)
    at = at or epoch_seconds(mapping(event, "metadata").get("creationTimestamp"))
    message = str(event.get("message") or "")[:_LONGEST_MESSAGE]
    found = (match.groups() for match in _INCREASE.finditer(message))
    return tuple(((name, before, after), ScaleUp(at, name, int(after) - int(before))) for name, before, after in found)
