"""Recording Events (events.k8s.io/v1) for controllers: a bounded queue with a writing thread, so that `event` never
blocks. Events are best effort: those beyond the queue or the rate are dropped. Their reasons and texts are the
controllers'.

The same note on the same object is written at most once in five minutes, and then as an increment of the series of the
first one. A warning in which only numbers have changed is the same for these five minutes, and an Event of its own
after them: the API server takes no other text for an Event that is there.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc import errors
from cagrpc.api.encoding.json_documents import micro_timestamp
from cagrpc.cluster.state import PodRef
from cagrpc.kube.client.client import Client
from cagrpc.output import printable
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.log_once import LogOnce

log = logging.getLogger(__name__)

WRITING_SECONDS = 0.5
"""How long one step begins to write further Events: a slow API server may take them no faster than the rate allows."""
STEP_SECONDS = 0.5
REPEAT_SECONDS = 300.0
_CACHED_NOTES = 4096
"""As many as client-go remembers of the Events that it has written (tools/record: maxLruCacheEntries)."""
_LONGEST_NOTE = 1024  # bytes; upstream's validation
_NUMBERS = re.compile(r"(?<![\w.:/-])\d+(?![\w:/-]|\.\d)")  # amounts; not those in names and times
_CLUSTER_SCOPED_NAMESPACE = "default"  # of Events on cluster-scoped objects, as upstream


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A reference to an object; `namespace` is empty where its kind is cluster-scoped."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def pod_object(pod: PodRef) -> ObjectRef:
    """Return the reference to a pod."""
    return ObjectRef("v1", "Pod", pod.namespace, pod.name, pod.uid)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is known of a reason: the type of its Events, what objects they are on, and what they say."""

    on: str
    says: str
    warning: bool = False


REASONS: Mapping[str, Meaning] = {
    "Accepted": Meaning("ProvisioningRequest", "the increment that is ordered for it, its nodes and their cost"),
    "AdmissionCheckUpdated": Meaning("Workload", "the new state of one of its checks, and why"),
    "BookingExpired": Meaning("ProvisioningRequest", "how many of its pods came while room was reserved", warning=True),
    "CapacityGone": Meaning(
        "Pod, ProvisioningRequest", "what was found for it is taken, expired or lost", warning=True
    ),
    "CapacityIsNotFound": Meaning(
        "ProvisioningRequest", "why it is not served, and when it is tried again", warning=True
    ),
    "CapacityIsShort": Meaning("ProvisioningRequest", "which shortage it waits out, and until when", warning=True),
    "CapacityRevoked": Meaning("ProvisioningRequest", "which nodes of it were lost", warning=True),
    "ClaimsAreNotReady": Meaning("ProvisioningRequest", "what volumes or claims of its pods lack", warning=True),
    "ConsolidationWaits": Meaning("Pod", "it holds up consolidation, and until when"),
    "ConsumesByHalf": Meaning("Pod", "one of the two annotations that consume a request is missing", warning=True),
    "Failed": Meaning("ProvisioningRequest", "why it has failed for good", warning=True),
    "FailedCreate": Meaning("Workload", "why its ProvisioningRequest cannot be created", warning=True),
    "MoreConsumersThanAskedFor": Meaning(
        "Pod, ProvisioningRequest", "more pods consume it than it asks for", warning=True
    ),
    "NamespaceShareIsUsed": Meaning("ProvisioningRequest", "its namespace has used up its share", warning=True),
    "NotPlanned": Meaning(
        "Pod",
        "why it has no place and what would serve it; or the fleet's refusal; or how many pods its gang lacks",
        warning=True,
    ),
    "Planned": Meaning("Pod", "the increment that it is planned for, or that there is room"),
    "Provisioned": Meaning("ProvisioningRequest", "its nodes are ready, or its pods fit on nodes that stand"),
    "ProvisioningClassDiffers": Meaning("Pod", "its annotation names another class than its request has", warning=True),
    "ProvisioningRequestCreated": Meaning("Workload", "the request that is made for it"),
    "ProvisioningRequestMissing": Meaning("Pod", "the request that it consumes does not exist", warning=True),
    "Refused": Meaning("AdmissionCheck", "why it is left to Kueue's own controller", warning=True),
    "TopologyNeedsNodes": Meaning(
        "AdmissionCheck", "flavors with a topology about which Kueue asks only once they have nodes", warning=True
    ),
}
"""Every reason of an Event that is written."""


@dataclass(frozen=True, slots=True)
class Note:
    """An Event to be written about an object."""

    about: ObjectRef
    reason: str
    """One of `REASONS`."""
    text: str
    increment: str = ""
    """The increment that it is about; a label of the Event."""
    plan: str = ""
    """The planning round that it is about; a label of the Event."""

    @property
    def warning(self) -> bool:
        return REASONS[self.reason].warning

    @property
    def labels(self) -> dict[str, str]:
        """By which increment and by which round Events are found."""
        return {f"cagrpc.io/{kind}": of for kind, of in (("increment", self.increment), ("plan", self.plan)) if of}

    @property
    def key(self) -> tuple[str, str]:
        """The object and the text, by which notes are the same; of a warning without its counts and amounts, which
        change from one round to the next."""
        return self.about.uid, _NUMBERS.sub("#", self.text) if self.warning else self.text


@dataclass(frozen=True, slots=True)
class Rate:
    """The token bucket that limits Events a second."""

    per_second: float = 10.0
    burst: int = 100


@dataclass(slots=True)
class _Written:
    """A note that was written: the Event's name and text, its count in the series, and when it was last written."""

    name: str
    text: str
    count: int
    at_seconds: float


@dataclass(frozen=True, slots=True)
class EventSource:
    """Who reports Events (events.k8s.io/v1)."""

    controller: str
    """`reportingController`, like `cagrpc.io/planner`."""
    action: str
    instance: str = "cagrpc"
    """`reportingInstance`."""


class EventRecorder(Controller):
    """Queues Events with `event`, which never blocks, and writes them in `step`. Thread-safe."""

    every_seconds = STEP_SECONDS

    def __init__(
        self,
        client: Client,
        source: EventSource,
        *,
        clock: EpochClock,
        still_so: Callable[[Note], bool] = lambda _: True,
        rate: Rate | None = None,
        most_queued: int = 10_000,
    ) -> None:
        """A warning for which `still_so` is false just before it is written is dropped."""
        self.name = f"writing Events of {source.controller}"
        self._client = client
        self._clock = clock
        self._source = source
        self._still_so = still_so
        self._rate = rate or Rate()
        self._tokens = float(self._rate.burst)
        self._filled_at = clock()
        self._most_queued = most_queued
        self._queue: OrderedDict[tuple[str, str], Note] = OrderedDict()
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()
        self._lock = threading.Lock()
        self._reported = LogOnce()

    def event(self, note: Note) -> None:
        """Queue a note, or drop it where the queue is full. A newer note of the same reason on the same object replaces
        an older one."""
        with self._lock:
            key = (note.about.uid, note.reason)
            known = self._written.get(note.key)
            if known is not None and self._clock() - known.at_seconds < REPEAT_SECONDS:
                return
            if key not in self._queue and len(self._queue) >= self._most_queued:
                return
            self._queue[key] = note

    def step(self) -> None:
        """Write what the rate allows now."""
        self.write_due()

    def write_due(self) -> int:
        """Write what the rate allows now, for `WRITING_SECONDS` at most, and return how many Events that were. What
        cannot be written is lost; the same problem is logged once."""
        written, until = 0, self._clock() + WRITING_SECONDS
        while self._clock() <= until and (note := self._next()) is not None:
            try:
                self._write(note)
            except errors.CagrpcError as error:
                if self._reported.is_new(str(error)):
                    log.warning("Events are not written: %s", error)
                return written
            except Exception:
                about = note.about
                log.exception("an Event on %s %s/%s was lost", about.kind, about.namespace, about.name)
            self._reported.over()
            written += 1
        return written

    def _next(self) -> Note | None:
        """Return the next note that still applies, and take a token for it."""
        now = self._clock()
        gained = max(0.0, now - self._filled_at) * self._rate.per_second
        self._tokens = min(self._rate.burst, self._tokens + gained)
        self._filled_at = now
        while self._tokens >= 1:
            with self._lock:
                if not self._queue:
                    return None
                _, note = self._queue.popitem(last=False)
            if not note.warning or self._still_so(note):
                self._tokens -= 1
                return note
        return None

    def _write(self, note: Note) -> None:
        now = self._clock()
        key = note.key
        path = f"/apis/events.k8s.io/v1/namespaces/{note.about.namespace or _CLUSTER_SCOPED_NAMESPACE}/events"
        with self._lock:
            known = self._written.get(key)
        if known is not None and known.text == note.text:
            series = {"count": known.count + 1, "lastObservedTime": micro_timestamp(now)}
            try:
                self._client.patch(f"{path}/{known.name}", {"series": series})
                self._cache(key, _Written(known.name, note.text, known.count + 1, now))
            except errors.NotFound:  # the API server keeps Events for an hour
                known = None
        if known is None or known.text != note.text:
            body = self._event(note, now)
            self._client.create(path, body)
            self._cache(key, _Written(body["metadata"]["name"], note.text, 1, now))

    def _event(self, note: Note, now: float) -> dict[str, Any]:
        about = note.about
        # Truncated to what a name may have with a unique suffix; a part of a name must not end in punctuation.
        name = f"{about.name[:230].rstrip('-.')}.{secrets.token_hex(8)}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": name,
                "namespace": about.namespace or _CLUSTER_SCOPED_NAMESPACE,
                **({"labels": note.labels} if note.labels else {}),
            },
            "eventTime": micro_timestamp(now),
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "action": self._source.action,
            "note": _shortened(printable(note.text)),
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
                **({"namespace": about.namespace} if about.namespace else {}),
            },
            "reportingController": self._source.controller,
            "reportingInstance": self._source.instance,
        }

    def _cache(self, key: tuple[str, str], written: _Written) -> None:
        with self._lock:
            self._written[key] = written
            self._written.move_to_end(key)
            while len(self._written) > _CACHED_NOTES:
                self._written.popitem(last=False)


def _shortened(text: str) -> str:
    data = text.encode()
    return text if len(data) <= _LONGEST_NOTE else f"{data[: _LONGEST_NOTE - 3].decode(errors='ignore')}..."
