"""Writes to requests: their statuses, Events, and in the end their deletion; and metrics of what became of them.
Statuses are patched by resource version: after a conflict the request is observed again. What is written is
`progress`'s. The store is told of our own writes, so that nothing is done twice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from cagrpc.api.provisioning.objects import request_path, status_patch
from cagrpc.controllers.events import EventRecorder, Note
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.conditions import Change
from cagrpc.controllers.provisioning.consumers import request_object
from cagrpc.controllers.provisioning.model import OURS, ProvisioningRequest
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.runtime import Runtime
from cagrpc.errors import CagrpcError, Conflict, NotFound, Unavailable
from cagrpc.kube.client.parallel import in_parallel

_SECONDS_BUCKETS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)
"""From capacity that stands to a day in the queue."""


log = logging.getLogger(__name__)
_REFUSED_SECONDS = 30.0
"""How long a write is not tried again after the API server refused it."""
_UNREACHED_SECONDS = 5.0
"""How long it is not tried again after the API server did not answer: other requests come first."""


class RequestMetrics:
    """Counters of outcomes, and the number of bookings at the time of the scrape."""

    def __init__(self, bookings: Callable[[], int]) -> None:
        """`bookings` returns the number of requests with a reservation."""
        self._outcomes = Counter(
            "cagrpc_provisioning_requests",
            "What became of ProvisioningRequests, by class and outcome.",
            ("class", "outcome"),
            registry=None,
        )
        self._seconds = Histogram(
            "cagrpc_provisioning_request_duration_seconds",
            "How long it took from the creation of a ProvisioningRequest until it was provisioned, by class.",
            ("class",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._bookings = Gauge("cagrpc_bookings", "ProvisioningRequests with reserved capacity.", registry=None)
        self._bookings.set_function(bookings)

    def observe(self, class_name: str, outcome: str, seconds: float) -> None:
        """Count what became of a request of a class, so long after it was created."""
        self._outcomes.labels(class_name, outcome).inc()
        if outcome == "provisioned":
            self._seconds.labels(class_name).observe(seconds)

    def collectors(self) -> tuple[Collector, ...]:
        return self._outcomes, self._seconds, self._bookings


class Writing:
    """Writes statuses and deletes requests. For one thread."""

    def __init__(
        self,
        store: RequestStore,
        events: EventRecorder,
        metrics: RequestMetrics,
        runtime: Runtime,
    ) -> None:
        self._store, self._client = store, store.client
        self._workers = runtime.writers
        self._events = events
        self._metrics = metrics
        self._now, self._clock = runtime.now, runtime.clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[str, float]] = {}
        """Writes to try later, by UID: the resource version, and until when."""

    def write(self, changes: Iterable[tuple[ProvisioningRequest, Change]]) -> set[str]:
        """Write the changes. Return the UIDs of requests that were written. Raises Unavailable at the first request for
        which the API server is out of reach."""
        now = self._clock()
        with self._lock:
            self._left = {uid: each for uid, each in self._left.items() if now < each[1]}
        due = [each for each in changes if not self._is_left(each[0], now)]
        written = in_parallel("write", lambda each: self._write(*each), due, self._workers)
        return {uid for uid in written if uid}

    def delete(self, requests: Iterable[ProvisioningRequest]) -> None:
        """Delete the requests. Raises Unavailable where the API server is out of reach."""
        in_parallel("delete", self._delete, requests, self._workers)

    def note(self, request: ProvisioningRequest, outcome: str) -> None:
        """Count the outcome of a request: `provisioned`, `no-room`, `rolled-back`, `failed`, `booking-expired`,
        `capacity-revoked` or `cancelled`."""
        seconds = max(0.0, self._now() - request.created_at_seconds)
        self._metrics.observe(request.class_name, outcome, seconds)

    def _write(self, request: ProvisioningRequest, change: Change) -> str:
        result = conditions.merged(request, change, self._now())
        body = status_patch(
            [each for each in result.conditions.values() if each.type in OURS],
            result.details,
            others=request.others,
            details_before=request.details,
            resource_version=request.resource_version,
            generation=request.generation,
        )
        try:
            path = request_path(request.namespace, request.name, "status")
            answer = self._client.patch(path, body)
        except (Conflict, NotFound):
            return ""
        except Unavailable:  # of this one alone, perhaps
            self._leave(request, _UNREACHED_SECONDS)
            raise
        except CagrpcError as error:
            log.warning("the status of %s cannot be written: %s", request.key, error, extra={"request": request.key})
            self._leave(request, _REFUSED_SECONDS)
            return ""
        version = str(answer.get("metadata", {}).get("resourceVersion", ""))
        self._store.wrote(request.resource_version, replace(result, resource_version=version))
        if change.event:
            increment = result.details.get(conditions.INCREMENT, "")
            about = {"request": request.key, **({"increment": increment} if increment else {})}
            self._events.event(Note(request_object(request), change.event, change.text, increment))
            log.info("%s: %s: %s", request.key, change.event, change.text, extra=about)
        if change.outcome:
            self.note(request, change.outcome)
        return request.uid

    def _delete(self, request: ProvisioningRequest) -> None:
        self._client.delete(request_path(request.namespace, request.name), uid=request.uid)
        log.info("%s: deleted, since it was finished long enough ago", request.key, extra={"request": request.key})

    def _is_left(self, request: ProvisioningRequest, now: float) -> bool:
        version, until = self._left.get(request.uid, ("", 0.0))
        return version == request.resource_version and now < until

    def _leave(self, request: ProvisioningRequest, seconds: float) -> None:
        with self._lock:
            self._left[request.uid] = request.resource_version, self._clock() + seconds
