"""Leader election of a server: a standby until it acquires the Lease, then the leader until it is stopped or loses the
Lease or the journal. What leads is in `leader`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from cagrpc.errors import CagrpcError, unexpected
from cagrpc.fleet.journal import Journal
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.lease import LeaderElection
from cagrpc.runtime.heartbeat import Heartbeat

log = logging.getLogger(__name__)

ELECTION_SECONDS = 0.5
TAKE_OVER_PATIENCE_SECONDS = 600.0
NODE_NAME = "NODE_NAME"
"""The environment variable that names it, from the downward API (`spec.nodeName`); without it nothing is known."""


class LeaderCandidate(Protocol):
    """The server that stands for election."""

    def lead(self, journal: Journal) -> None:
        """Become the leader, with this journal."""
        ...

    def fail(self, problem: str) -> None:
        """End the process: it no longer leads, or cannot."""
        ...

    def stuck(self) -> str:
        """Return what makes no progress, taking over included; empty where all does."""
        ...


class Standby:
    """Leads once it has acquired the Lease. Lost leadership is never regained: the process ends."""

    def __init__(
        self,
        candidate: LeaderCandidate,
        client: Client,
        election: LeaderElection,
        namespace: str,
        leaving: Callable[[], str] = str,
    ) -> None:
        """`client` and `namespace` are those of the journal; `leaving` returns why a leader is to hand over."""
        self.taking_over = Heartbeat("taking over the journal", TAKE_OVER_PATIENCE_SECONDS)
        self._candidate = candidate
        self._client = client
        self._election = election
        self._namespace = namespace
        self._leaving = leaving
        self._stopping, self._stopped = threading.Event(), threading.Event()
        # Daemons: an API server that does not respond must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    def start(self) -> None:
        """Stand for election from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop standing for election, or leading; the Lease is renewed until `give_up`."""
        self._stopping.set()

    def give_up(self, wait_seconds: float) -> None:
        """Release the Lease, once all that the leader runs is stopped. Waits at most so long."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        election, candidate = self._election, self._candidate
        try:
            if not election.acquire(self._stopping):
                return
            self._renewing.start()
            with self.taking_over.step("reading it"):
                journal = ClusterJournal(
                    self._client, election.identity, namespace=self._namespace, check=election.check
                )
                candidate.lead(journal)
            leaving = ""
            while election.is_leader and not journal.closed_because and not (leaving := self._leaving()):
                if self._stopping.wait(ELECTION_SECONDS):
                    break
            candidate.fail(election.problem or journal.closed_because or leaving)
        except CagrpcError as error:
            candidate.fail(str(error))
        except Exception as error:  # or it would hold the Lease for ever without leading
            log.exception("leading failed unexpectedly")
            candidate.fail(f"leading failed unexpectedly: {unexpected(error)}")
        if self._renewing.is_alive():
            self._renewing.join()  # releases the Lease once all is closed

    def _renew(self) -> None:
        self._election.keep(self._stopped, self._candidate.stuck)
        self._candidate.fail(self._election.problem)  # also where the leader hangs and does not notice the loss


class OwnNode:
    """Finds out that somebody is about to drain the node. For one thread."""

    def __init__(self, name: str, is_cordoned: Callable[[str], bool]) -> None:
        self._name = name
        self._is_cordoned = is_cordoned
        self._before: bool | None = None

    def leaving(self) -> str:
        """Return why a leader should not stay, once for each time that the node is cordoned; empty otherwise. On a node
        that is cordoned already it may lead: who started here was meant to, or has nobody to hand over to."""
        now = bool(self._name) and self._is_cordoned(self._name)
        before, self._before = self._before, now
        return f"the node {self._name} was cordoned: a standby takes over" if now and before is False else ""
