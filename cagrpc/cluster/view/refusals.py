"""What the API server says where a controller may not create a pod. ReplicaSets and Deployments have it in a condition;
of Jobs and StatefulSets only Events say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import Problems, mapping
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.cluster.view.objects import Named
from cagrpc.errors import InvalidInput

EVENTS = "/api/v1/events"
FAILED_CREATE = "reason=FailedCreate"
"""The field selector of Events that are read."""

_REFUSALS = (" is forbidden: ", " denied the request", " is invalid: ")
"""Of admission (quotas, policies, webhooks, namespaces that end) and of validation: the same pod would be refused
again."""
_FOR_A_MOMENT = ("error looking up service account", "status unknown for quota", "not yet ready to handle request")
"""Of a namespace, or an API server, that is younger than its controllers' work: the next attempt succeeds."""


def is_refusal(message: str) -> bool:
    """Return whether this is why a pod must not be created, rather than why it could not be at that moment: conflicts,
    time-outs, webhooks that cannot be reached."""
    return any(each in message for each in _REFUSALS) and not any(each in message for each in _FOR_A_MOMENT)


@dataclass(frozen=True, slots=True)
class FailedCreate:
    """An Event of a workload's controller."""

    workload: str
    """`kind/namespace/name`."""
    at_seconds: int
    """When it was seen last; since the epoch."""
    refused: bool


def failed_create(document: dict[str, Any]) -> Named[FailedCreate]:
    """Decode an Event. Raises InvalidInput for an invalid one."""
    problems: Problems = []
    metadata, about = mapping(document, "metadata", "", problems), mapping(document, "involvedObject", "", problems)
    series = mapping(document, "series", "", problems)
    times = (document.get("lastTimestamp"), series.get("lastObservedTime"), document.get("eventTime"))
    if problems:
        raise InvalidInput(f"Event {metadata.get('namespace')}/{metadata.get('name')}: {'; '.join(problems)}")
    found = FailedCreate(
        "/".join(str(about.get(each) or "") for each in ("kind", "namespace", "name")),
        max(map(epoch_seconds, times)),
        is_refusal(str(document.get("message") or "")),
    )
    return Named(f"{metadata.get('namespace')}/{metadata.get('name')}", found)


class FailedCreates:
    """The table of these Events: none is kept, each is told of once it comes or is seen again."""

    def __init__(self, refused: Callable[[str, int], object]) -> None:
        """`refused` takes the workload, and when the API server refused a pod of it, in seconds since the epoch."""
        self._refused = refused

    def keys(self) -> Iterable[str]:
        return ()

    def put(self, named: Named[FailedCreate]) -> None:
        if named.value.refused:
            self._refused(named.value.workload, named.value.at_seconds)

    def drop(self, key: str) -> None:
        pass
