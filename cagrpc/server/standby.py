"""A candidate's life: a standby, then the one writer, until it is stopped or has lost the Lease or the journal."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from cagrpc.errors import CagrpcError
from cagrpc.fleet.journal import Journal
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.lease import LeaderElection
from cagrpc.runtime.heartbeat import Heartbeat

log = logging.getLogger(__name__)

ELECTION_SECONDS = 0.5
TAKE_OVER_PATIENCE_SECONDS = 600.0


class LeaderCandidate(Protocol):
    """The server that stands for election."""

    def lead(self, journal: Journal) -> None:
        """Become the one writer, with this journal."""
        ...

    def fail(self, problem: str) -> None:
        """End the process: it leads no more, or cannot."""
        ...

    def stuck(self) -> str:
        """Return what does not go on, taking over included; empty where all does."""
        ...


class Standby:
    """Leads once the Lease is its own. Leadership that is lost does not come back: the process ends."""

    def __init__(self, candidate: LeaderCandidate, client: Client, election: LeaderElection, namespace: str) -> None:
        """`client` and `namespace` are those of the journal."""
        self.taking_over = Heartbeat("taking over the journal", TAKE_OVER_PATIENCE_SECONDS)
        self._candidate = candidate
        self._client = client
        self._election = election
        self._namespace = namespace
        self._stopping, self._stopped = threading.Event(), threading.Event()
        # Daemons: an API server that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    def start(self) -> None:
        """Stand for election from now on."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it stands for election, leads, or still has the Lease to give back."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stand no longer, or lead no longer; the Lease is still renewed."""
        self._stopping.set()

    def give_up(self, wait_seconds: float) -> None:
        """Give the Lease back, once all that leads was stopped. Waits at most so long."""
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
            while election.is_leader and not journal.closed_because and not self._stopping.wait(ELECTION_SECONDS):
                pass
            candidate.fail(election.problem or journal.closed_because)
        except CagrpcError as error:
            candidate.fail(str(error))
        except Exception as error:  # or it would hold the Lease for ever, and nobody lead
            log.exception("leading failed unexpectedly")
            candidate.fail(f"leading failed unexpectedly: {error!r:.200}")
        if self._renewing.is_alive():
            self._renewing.join()  # gives the Lease back once all is closed

    def _renew(self) -> None:
        self._election.keep(self._stopped, self._candidate.stuck)
        self._candidate.fail(self._election.problem)  # also where the leader hangs, and does not see that it is lost
