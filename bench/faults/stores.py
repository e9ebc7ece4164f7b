"""Where the journal of an episode is: a file on a disk that can be full, or custom resources of an API server that can
be slow, away, or restored from a backup. Processes open it and die; it stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

from urllib3.response import BaseHTTPResponse

from bench.faults.disk import Disk
from cagrpc import errors
from cagrpc.fleet.journal import Journal, SqliteJournal
from cagrpc.fleet.records import Changes, Contents
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS, unpack
from cagrpc.kube.journal.root import ConfirmPolicy
from cagrpc.kube.lease import LEASE, LeaderElection
from tests.support.api_server import ApiRequest, ApiServer, Fault, api_server
from tests.support.clocks import any_clock
from tests.support.fleet import FakeClock
from tests.support.kills import SteppedJournal, Steps

NAMESPACE = "cagrpc"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
Backup = Any
"""What one store has copied of itself."""


@dataclass(slots=True)
class Opened:
    """A journal that a process has open."""

    journal: Journal
    crash: Callable[[], None]
    """Let go of it as a killed process does."""
    election: LeaderElection | None = None
    closed_because: Callable[[], str] = str


class Store(Protocol):
    several: bool
    """Whether a second process can stand by, and an old one go on."""

    def open(self, steps: Steps, wall: Callable[[], float]) -> Opened | None:
        """Return the journal for a new process; None as long as others have it. Raises what the journal raises."""
        ...

    def trouble(self, rng: Random) -> str:
        """Let something go wrong from now on; return what."""
        ...

    def heal(self) -> None: ...

    def backup(self) -> Backup: ...

    def restore(self, backup: Backup) -> None:
        """Be as then. No process has it open."""
        ...

    def writer(self) -> str:
        """Return who wrote last, where several may."""
        ...

    def leftovers(self) -> list[str]:
        """Return what is stored and means nothing, once a process is at rest."""
        ...


class FileStore:
    several = False

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / "journal.sqlite"
        self._files = (self._path, self._path.with_name("journal.sqlite-wal"))
        self._disk = disk
        self._open: Journal | None = None

    def open(self, steps: Steps, wall: Callable[[], float]) -> Opened | None:
        del wall
        self._open = _OnDisk(SqliteJournal(self._path, busy_seconds=0.0), self._disk, self._files)
        return Opened(SteppedJournal(self._open, steps), self._crash)

    def _crash(self) -> None:
        """Closing tidies up: of a killed process the write-ahead log stays as it is."""
        if self._open is not None:
            found = self.backup()
            self._open.close()
            self._open = None
            self._write(found)

    def trouble(self, rng: Random) -> str:
        self._disk.fill(rng.choice((0, 0, 4096, 30_000)))
        return "the disk is full"

    def heal(self) -> None:
        self._disk.empty()

    def backup(self) -> Backup:
        return {path: path.read_bytes() for path in self._files if path.exists()}

    def restore(self, backup: Backup) -> None:
        was_full = self._disk.full
        self._disk.empty()
        self._write(backup)
        if was_full:
            self._disk.fill(0)

    def writer(self) -> str:
        return ""

    def leftovers(self) -> list[str]:
        return []

    def _write(self, found: Backup) -> None:
        for path in self._files:
            path.unlink(missing_ok=True)
        for path, data in found.items():
            path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """A journal on a disk that may be full."""

    journal: Journal
    disk: Disk
    files: tuple[Path, ...]

    def read(self) -> Contents:
        return self.journal.read()

    def commit(self, changes: Changes) -> None:
        with self.disk.writing(*self.files):
            self.journal.commit(changes)

    def probe(self) -> None:
        with self.disk.writing(*self.files):
            self.journal.probe()

    def check(self) -> None:
        self.journal.check()

    def close(self) -> None:
        self.journal.close()


class _SteppedClient(Client):
    """A client of a process that may end before and after each of its requests."""

    steps: Steps

    def _send(self, method: str, path: str, *arguments: Any, **more: Any) -> BaseHTTPResponse:
        what = f"{method} {path.split('/')[4]}"
        answer: BaseHTTPResponse = self.steps.around(what, super()._send)(method, path, *arguments, **more)
        return answer


@dataclass(slots=True)
class ApiWeather:
    faults: float = 0.0
    """Share of requests that one of the API server's faults meets."""
    away: bool = False
    slow_seconds: tuple[float, float] = (0.0, 0.0)
    """The range of what a request takes longer."""


_KINDS = [Fault.CUT, Fault.LOST, Fault.LATE, Fault.ERROR, Fault.ERROR_DONE, Fault.BUSY, Fault.REFUSED]


@dataclass
class ClusterStore:
    api: ApiServer
    clock: FakeClock
    rng: Random
    told: Counter[str]
    several: bool = True
    weather: ApiWeather = field(default_factory=ApiWeather)
    _standby: LeaderElection | None = None
    _numbers: int = 0

    def __post_init__(self) -> None:
        self.api.fault = self._fault
        self.api.before = self._before

    def open(self, steps: Steps, wall: Callable[[], float]) -> Opened | None:
        election = self._standby or self._candidate(wall)
        self._standby = election
        try:
            if not election.step():
                return None
        except errors.FailedPrecondition:  # it ends, and its supervisor starts another one
            self._standby = None
            raise
        self._standby = None
        client = _SteppedClient(self.api.access(), self.clock.advance)
        client.steps = steps
        patience = ConfirmPolicy(7.0, any_clock(self.clock), self.clock.advance)
        journal = ClusterJournal(
            client, election.identity, namespace=NAMESPACE, check=election.check, patience=patience
        )
        return Opened(SteppedJournal(journal, steps), client.close, election, lambda: journal.closed_because)

    def _candidate(self, wall: Callable[[], float]) -> LeaderElection:
        self._numbers += 1
        return LeaderElection(
            self.api.client(wait=self.clock.advance),
            NAMESPACE,
            identity=f"process-{self._numbers}",
            clock=any_clock(self.clock),
            wall_clock=any_clock(wall),
        )

    def trouble(self, rng: Random) -> str:
        match rng.randrange(3):
            case 0:
                self.weather.faults = rng.choice((0.03, 0.1, 0.3))
                return "requests to the API server fail"
            case 1:
                self.weather.away = True
                return "the API server is away"
            case _:
                self.weather.slow_seconds = rng.choice(((0.1, 0.5), (0.5, 3.0), (2.0, 9.0)))
                return "the API server is slow"

    def heal(self) -> None:
        self.weather = ApiWeather()

    def backup(self) -> Backup:
        return self.api.backup()

    def restore(self, backup: Backup) -> None:
        """As etcd restores by itself, or as its manual advises."""
        self.api.restore(backup, higher_versions=self.rng.random() < 0.5)

    def writer(self) -> str:
        return str(self.api.objects[f"{FLEET_RECORDS}/journal"]["spec"]["writer"])

    def leftovers(self) -> list[str]:
        """Objects of Increments that the root does not name, and parts that nobody names."""
        root = self.api.objects[f"{FLEET_RECORDS}/journal"]
        content = root["spec"]["content"]
        if content.startswith("parts:"):
            return []  # none of an episode is so large
        named = set(unpack(content)["increments"])
        found = {path.rpartition("/")[2] for path in self.api.objects if path.startswith(f"{INCREMENTS}/")}
        parts = [path for path in self.api.objects if "/part-" in path]
        return [*sorted(found ^ named), *parts]

    def _before(self, _: str) -> None:
        least, most = self.weather.slow_seconds
        if most:
            self.clock.advance(self.rng.uniform(least, most))

    def _fault(self, request: ApiRequest) -> Fault:
        if self.weather.away:
            return Fault.CUT
        if self.rng.random() >= self.weather.faults:
            return Fault.NONE
        # Nobody has a webhook for Leases.
        kind = self.rng.choice(_KINDS if LEASE not in request.path else _KINDS[:-1])
        self.told[f"requests with the fault {kind.name}"] += 1
        return kind


@contextmanager
def cluster_store(clock: FakeClock, rng: Random, told: Counter[str]) -> Iterator[ClusterStore]:
    with (
        patch("cagrpc.kube.journal.journal._WORKERS", 1),  # requests in the same order each time
        api_server(INCREMENTS, FLEET_RECORDS, LEASES) as api,
    ):
        yield ClusterStore(api, clock, rng, told)
