"""Writes to requests: their statuses, Events, and in the end their deletion. Statuses are patched by resource version:
after a conflict the request is observed again. What is written is `progress`'s."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cagrpc.api.provisioning.objects import ConditionParts, request_path, status_patch
from cagrpc.controllers.events import EventRecorder, Note
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.conditions import Change
from cagrpc.controllers.provisioning.consumers import request_object
from cagrpc.controllers.provisioning.model import OURS, ProvisioningRequest
from cagrpc.controllers.provisioning.observation import ManagedRequest
from cagrpc.controllers.provisioning.written import WrittenRequests
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.errors import CagrpcError, Conflict, NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.parallel import in_parallel

log = logging.getLogger(__name__)

_REFUSED_SECONDS = 30.0
"""How long a write is not tried again after the API server refused it,"""
_UNREACHED_SECONDS = 5.0
"""and how long after it did not answer: other requests come first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request, for metrics."""

    class_name: str
    behaviour: ClassBehaviour
    outcome: str
    """`provisioned`, `no-room`, `rolled-back`, `failed`, `booking-expired`, `capacity-revoked` or `cancelled`."""
    seconds: float
    """Since the request was created."""


class Writing:
    """Writes statuses and deletes requests. `write` and `delete` are for one thread, `counts` for any."""

    def __init__(
        self,
        client: Client,
        written: WrittenRequests,
        events: EventRecorder,
        observe: Callable[[Outcome], None],
        runtime: Runtime,
    ) -> None:
        """`observe` receives the outcome of each request."""
        self._client = client
        self._workers = runtime.writers
        self._written = written
        self._events = events
        self._observe = observe
        self._now, self._clock = runtime.now, runtime.clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[str, float]] = {}
        """Writes to try later, by UID: the resource version, and until when."""
        self._counts: Counter[tuple[str, str]] = Counter()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of requests by class and outcome, since the start."""
        with self._lock:
            return dict(self._counts)

    def write(self, changes: Iterable[tuple[ManagedRequest, Change]]) -> set[str]:
        """Write the changes. Return the UIDs of requests that were written. Raises Unavailable at the first request for
        which the API server is out of reach."""
        now = self._clock()
        with self._lock:
            self._left = {uid: each for uid, each in self._left.items() if now < each[1]}
        due = [each for each in changes if not self._is_left(each[0].request, now)]
        written = in_parallel("write", lambda each: self._write(*each), due, self._workers)
        return {uid for uid in written if uid}

    def delete(self, requests: Iterable[ProvisioningRequest]) -> None:
        """Delete the requests. Raises Unavailable where the API server is out of reach."""
        in_parallel("delete", self._delete, requests, self._workers)

    def note(self, each: ManagedRequest, outcome: str) -> None:
        """Count the outcome of a request."""
        request = each.request
        with self._lock:
            self._counts[request.class_name, outcome] += 1
        seconds = max(0.0, self._now() - request.created_at_seconds)
        self._observe(Outcome(request.class_name, each.service.behaviour, outcome, seconds))

    def _write(self, each: ManagedRequest, change: Change) -> str:
        request = each.request
        result = conditions.merged(request, change, self._now())
        body = status_patch(
            [
                ConditionParts(c.type, c.status, c.reason, c.message, c.since_seconds)
                for c in result.conditions.values()
                if c.type in OURS
            ],
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
        self._written.wrote(request.resource_version, replace(result, resource_version=version))
        if change.event:
            increment = result.details.get(conditions.INCREMENT, "")
            about = {"request": request.key, **({"increment": increment} if increment else {})}
            self._events.event(Note(request_object(request), change.event, change.text, change.warning, increment))
            log.info("%s: %s: %s", request.key, change.event, change.text, extra=about)
        if change.outcome:
            self.note(each, change.outcome)
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
