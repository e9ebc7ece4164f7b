"""Leader election by a Lease (coordination.k8s.io/v1), acquired, renewed and released as client-go does.

No wall clock is trusted. A candidate waits until the Lease has not changed for its whole duration by the candidate's
own monotonic clock; a leader steps down well before that, whatever the API server says. What a leader does is not here.
A process that was paused in the middle of a write may briefly still believe that it leads: the journal's root keeps it
from writing (`cagrpc.kube.journal.root`)."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cagrpc import errors
from cagrpc.api.encoding.json_documents import micro_timestamp
from cagrpc.errors import unexpected
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import is_older
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic

_log = logging.getLogger(__name__)

LEASE = "cagrpc"


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """In seconds. A standby leads at most `duration` and two waits after the last renewal of a killed leader."""

    duration: int = 12
    """How long a Lease that is not renewed keeps others away."""
    renew: float = 2.0
    retry: float = 1.0
    """Between two tries of a standby, or of a leader that could not renew."""
    answer: float = 3.5
    """Request timeout: a renewal that hangs leaves time for another one over a new connection."""
    give_up: float = 10.0
    """A leader steps down when it has not renewed for so long; less than `duration`, since clocks drift."""


def new_identity() -> str:
    """Return an identity of this process alone: the host's name (in a cluster the pod's) and something random."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


class LeaderElection:
    """One candidate. `acquire` blocks until it leads, `keep` blocks as long as it does; `is_leader` and `check` may be
    asked by any thread and wait for nobody. Leadership that was lost does not come back: the process is to end, since
    others may have written, and its supervisor starts a new candidate.

        if election.acquire(stop):
            …                                       # read the journal, serve
            threading.Thread(target=election.keep, args=(stop,), name="lease", daemon=True).start()
            while election.is_leader and not stop.wait(1.0): …
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        identity: str | None = None,
        pace: LeaseTiming | None = None,
        clock: MonotonicClock = monotonic,
        wall_clock: EpochClock = epoch,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.identity = identity or new_identity()
        self._pace = pace or LeaseTiming()
        self._client = client.hurried(self._pace.answer)
        self._namespace = namespace
        self._clock = clock
        self._wall_clock = wall_clock
        self._wait = wait
        self._lock = threading.Lock()
        self._seen: dict[str, Any] | None = None
        self._seen_changed_at = 0.0
        self._renewed_at: float | None = None
        self._lost = False
        self._given_up = ""
        self._problem = ""

    @property
    def is_leader(self) -> bool:
        """False for good once it was not renewed in time, or somebody else holds the Lease."""
        with self._lock:
            if self._renewed_at is None or self._lost:
                return False
            if self._clock() - self._renewed_at >= self._pace.give_up:
                self._lost = True
            return not self._lost

    @property
    def problem(self) -> str:
        """Return why it does not lead, for people; empty where it does."""
        if self.is_leader:
            return ""
        if self._given_up:
            return f"{self._name}: given up by {self.identity}: {self._given_up}"
        if self._lost:
            return f"{self._name}: lost by {self.identity}"
        return self._problem or f"{self._name}: not asked for yet"

    def check(self) -> None:
        """Raise `errors.Unavailable` where this is not the leader. To be called before every write."""
        if not self.is_leader:
            raise errors.Unavailable(f"not the one writer: {self.problem}")

    def acquire(self, stop: threading.Event) -> bool:
        """Block until it leads (True) or `stop` is set (False). Raises what only a person can put right: `NotFound` for
        a namespace that does not exist, `InvalidInput`; and `FailedPrecondition` where the API server was restored from
        an older backup."""
        while not stop.is_set():
            if self._try():
                return True
            self._wait(stop, self._pace.retry)
        return False

    def keep(self, stop: threading.Event, stuck: Callable[[], str] = str) -> None:
        """Renew until `stop` is set, and release the Lease then; or until it is lost. A leader whose work does not go
        on (`stuck` says why) gives it back too: whoever does nothing must not keep others from doing it."""
        pause = self._pace.renew
        while not self._wait(stop, pause):
            if why := stuck():
                self._give_up(why)
                return
            renewed = self.is_leader and self._try()
            if not self.is_leader:
                _log.error("%s; this process must not write any more", self.problem)
                return
            pause = self._pace.renew if renewed else self._pace.retry
        self.release()

    def _give_up(self, why: str) -> None:
        self._given_up = why
        self.release()
        _log.error("%s; this process must not write any more", self.problem)

    def release(self) -> None:
        """Step down and release the Lease, so that a standby need not wait. Idempotent."""
        led = self.is_leader
        with self._lock:
            self._lost = True
            seen = self._seen
        if led and seen is not None:
            try:
                self._client.replace(self._path, self._body(seen, holder=""))
            except errors.CagrpcError as error:
                _log.warning("%s: not released, others acquire it when it expires: %s", self._name, error)

    def step(self) -> bool:
        """Try once to acquire or renew the Lease; return whether it is held now. Raises the API server's errors."""
        asked_at = self._clock()
        try:
            seen = self._look()
            holder = "" if seen is None else str(seen["spec"].get("holderIdentity") or "")
            if self._renewed_at is not None and not self._may_renew(holder, asked_at):
                return False
            if seen is None:
                lease = self._client.create(self._collection, self._body(None, self.identity))
            elif holder in ("", self.identity) or asked_at >= self._seen_changed_at + self._duration(seen):
                lease = self._client.replace(self._path, self._body(seen, self.identity))
            else:
                self._stand_by(holder)
                return False
        except errors.Conflict:  # somebody was faster; the next try sees who
            return False
        with self._lock:
            if self._renewed_at is None:
                _log.info("%s: became leader as %s", self._name, self.identity)
            self._seen, self._seen_changed_at = lease, asked_at
            self._renewed_at = asked_at  # as the time of asking: others count from a later one
        return True

    def _may_renew(self, holder: str, now: float) -> bool:
        """Return whether a leader may renew: the Lease is still its own, and was all the time."""
        with self._lock:
            renewed_at = self._renewed_at
            self._lost = (
                self._lost or holder != self.identity or renewed_at is None or now - renewed_at >= self._pace.give_up
            )
            return not self._lost

    def _try(self) -> bool:
        """Take a `step`; log once where the API server is out of reach."""
        try:
            held = self.step()
        except Exception as error:
            # A leader tries again as long as it leads, whatever it was: without that nobody would know why it is lost.
            if self._renewed_at is None and not isinstance(error, errors.Unavailable):
                raise
            known = isinstance(error, errors.CagrpcError)
            problem = str(error) if known else f"failed unexpectedly: {unexpected(error)}"
            if problem != self._problem:
                _log.warning("%s: %s", self._name, problem, exc_info=not known)
            self._problem = problem
            return False
        if held:
            self._problem = ""
        return held

    def _look(self) -> dict[str, Any] | None:
        try:
            found = self._client.get(self._path)
        except errors.NotFound:
            return None
        if self._seen is not None and is_older(_version(found), _version(self._seen)):
            self._restored()
        if self._seen is None or _version(found) != _version(self._seen):
            self._seen, self._seen_changed_at = found, self._clock()
        return found

    def _restored(self) -> None:
        """End, also as a standby. The Lease is written every few seconds, so it shows what no watch does: that the API
        server was restored from an older backup. Watches go on from versions that come again there, for minutes without
        an event; what is known of the cluster is not so any more, and is to be listed by a new process."""
        with self._lock:
            self._lost = True
            self._given_up = "the API server was restored from an older backup, and has to be read anew"
        raise errors.FailedPrecondition(self.problem)

    def _stand_by(self, holder: str) -> None:
        problem = f"{self._name}: held by {holder}"
        if problem != self._problem:
            _log.info("standing by; %s", problem)
        self._problem = problem

    def _body(self, seen: dict[str, Any] | None, holder: str) -> dict[str, Any]:
        now = micro_timestamp(self._wall_clock())
        before = {} if seen is None else seen["spec"]
        same = bool(holder) and before.get("holderIdentity") == holder
        spec = {
            **before,
            "holderIdentity": holder,
            "leaseDurationSeconds": self._pace.duration,
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if same else now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (0 if same or seen is None or not holder else 1),
        }
        metadata = {"name": LEASE, "namespace": self._namespace} if seen is None else seen["metadata"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _duration(self, lease: dict[str, Any]) -> float:
        return float(lease["spec"].get("leaseDurationSeconds") or self._pace.duration)

    @property
    def _collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._collection}/{LEASE}"

    @property
    def _name(self) -> str:
        return f"Lease {self._namespace}/{LEASE}"


def _version(lease: dict[str, Any]) -> str:
    return str(lease["metadata"]["resourceVersion"])
