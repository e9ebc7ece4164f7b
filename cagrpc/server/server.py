"""The composition root: from settings to running servers. The one place that knows every part; what each does is its
own business. Flags, signals and printing are `serve`'s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cagrpc.config.load import Address, Settings, TlsFiles
from cagrpc.controllers.provisioning.writing import Outcome
from cagrpc.controllers.settings import Drive
from cagrpc.errors import CagrpcError, InvalidInput
from cagrpc.fleet.journal import Journal, SqliteJournal
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.kube.informer.informers import Informer, left_out, not_followed, still_to_come, told
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.lease import LeaderElection
from cagrpc.replay.recorder import Recorder
from cagrpc.runtime.clock import SteadyClock
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from cagrpc.server import certificates
from cagrpc.server.cluster import Cluster, Controllers
from cagrpc.server.leader import Leader
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc import expander, provider
from cagrpc.services.grpc.gate import Gate
from cagrpc.services.grpc.servers import RpcServer, ServerTls, method_names
from cagrpc.services.http.server import HttpServer, Site
from cagrpc.services.metrics import Metrics
from solver.planning.warm_up import warm_up

log = logging.getLogger(__name__)

_NOTHING = FleetSnapshot(version=0, groups={}, shown=(), group_of_instance={})

ELECTION_SECONDS = 0.5
TAKE_OVER_PATIENCE_SECONDS = 600.0
SERVICES = (provider.SERVICE, expander.SERVICE)

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the servers are reached, `host:port`."""

    provider: str
    expander: str
    http: str


class Server:
    """Everything that `cagrpc serve` runs. Built, it listens; it serves from `start` to `stop`. With a journal in a
    cluster it begins as a standby, and `failure` says why it must end where it has lost the Lease."""

    def __init__(
        self, settings: Settings, recorder: Recorder | None = None, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`on_failure` is called, once, when `failure` is set. Raises InvalidInput or Unavailable where a part
        cannot be had; then nothing is left open."""
        self.failure = ""
        self._all_known = False
        self._failing = threading.Lock()
        self._settings = settings
        self._on_failure = on_failure
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._leader: Leader | None = None
        self._taking_over = Heartbeat("taking over the journal", TAKE_OVER_PATIENCE_SECONDS)
        self._metrics = Metrics(
            self._snapshot,
            self._bookings,
            self._checks,
            self._slack,
            lambda: left_out(self._informers()),
            self._loops,
        )
        # Daemons: an API server that does not answer must not keep the process from ending.
        self._threads = [threading.Thread(target=_warm_up, name="warm-up", daemon=True)]
        with ExitStack() as undo:
            _make_directory(settings.state_directory)
            tls = load_tls(settings)
            exclusion = settings.slack.exclude if settings.slack is not None else None
            expects = settings.drive is Drive.PLAN and settings.planner.expected_pods
            access = settings.cluster
            self._cluster = Cluster(access, exclusion, expects=expects) if access is not None else None
            if self._cluster is not None:
                undo.callback(self._cluster.stop)
            pending = self._cluster.view.pending if self._cluster is not None else None
            self._decisions = DecisionLog(SteadyClock(), observe=self._metrics.observe_decision, pending=pending)
            self._gates = {name: Gate(method_names(name), self._why_not_ready) for name in SERVICES}
            if self._cluster is not None and self._cluster.election is not None:
                stand = partial(self._stand, self._cluster, self._cluster.election)
                self._threads.append(threading.Thread(target=stand, name="standby", daemon=True))
            else:
                # Before all else: whoever holds the journal is the one server of its state directory.
                self._lead(SqliteJournal(settings.state_directory / "journal.sqlite"))
            undo.callback(self._stop_leading)
            self._rpc_servers = self._listen(tls, recorder, undo)
            site = Site(
                self._snapshot,
                self._decisions,
                self._metrics,
                self._why_not_ready,
                lambda: self._leader.pages if self._leader is not None else {},
                self._plans,
                self._requests,
                self._slack,
                self._about,
                lambda: told(self._informers()),
                self._stuck,
            )
            self._http = HttpServer(settings.http.host, settings.http.port, site)
            undo.pop_all()
        ports = (*(server.port for server in self._rpc_servers), self._http.port)
        addresses = (settings.provider, settings.expander, settings.http)
        self.endpoints = Endpoints(*(_reached(a, port) for a, port in zip(addresses, ports, strict=True)))

    def start(self) -> None:
        if self._cluster is not None:
            self._cluster.start()
        if self._leader is not None:
            self._leader.start()
        for thread in self._threads:
            thread.start()
        for server in self._rpc_servers:
            server.start()
        self._http.start()

    def fail(self, problem: str) -> None:
        """Tells why the process must end; the first time, unless it is ending already."""
        with self._failing:
            if self.failure or self._stopping.is_set():
                return
            self.failure = problem
        self._on_failure()

    def stop(self) -> None:
        """Running calls finish, then everything is closed. The fleet stays as it is."""
        self._stopping.set()
        self._http.stop()
        for server in self._rpc_servers:
            server.stop()
        self._stop_leading()
        self._stopped.set()
        stop_all([thread.join for thread in self._threads if thread.is_alive()], STOP_SECONDS)
        if self._cluster is not None:
            self._cluster.stop()

    def _listen(self, tls: ServerTls | None, recorder: Recorder | None, undo: ExitStack) -> tuple[RpcServer, ...]:
        # CA's expander client has no certificate to show.
        tls_of = {provider.SERVICE: tls, expander.SERVICE: tls and ServerTls(tls.certificate, tls.key)}
        files = self._settings.tls
        names_of = {provider.SERVICE: files.client_names if files is not None else (), expander.SERVICE: ()}
        address_of = {provider.SERVICE: self._settings.provider, expander.SERVICE: self._settings.expander}
        servers = []
        for name, gate in self._gates.items():
            server = RpcServer(
                name,
                recorder.recorded(gate.methods()) if recorder is not None else gate.methods(),
                str(address_of[name]),
                tls=tls_of[name],
                observe=self._metrics.observe_call,
                why_not_ready=self._why_not_ready,
                client_names=names_of[name],
            )
            undo.callback(server.stop, 0.0)
            servers.append(server)
        return tuple(servers)

    def _stand(self, cluster: Cluster, election: LeaderElection) -> None:
        """A candidate's life: a standby, then the one writer, until it is stopped, or has lost the Lease or journal."""
        keeping = threading.Thread(target=self._keep, args=(election,), name="lease", daemon=True)
        try:
            if not election.acquire(self._stopping):
                return
            keeping.start()
            journal = ClusterJournal(
                cluster.client, election.identity, namespace=cluster.settings.namespace, check=election.check
            )
            with self._taking_over.step("reading it"):
                leader = self._lead(journal)
            leader.start()
            while election.is_leader and not journal.closed_because and not self._stopping.wait(ELECTION_SECONDS):
                pass
            self.fail(election.problem or journal.closed_because)
        except CagrpcError as error:
            self.fail(str(error))
        except Exception as error:  # or it would hold the Lease for ever, and nobody lead
            log.exception("leading failed unexpectedly")
            self.fail(f"leading failed unexpectedly: {error!r:.200}")
        if keeping.is_alive():
            keeping.join()  # gives the Lease back once all is closed

    def _keep(self, election: LeaderElection) -> None:
        election.keep(self._stopped, self._stuck)
        self.fail(election.problem)  # also where whoever leads hangs, and does not see that it is lost

    def _lead(self, journal: Journal) -> Leader:
        leader = Leader(self._settings, journal, self._decisions, self._cluster, self._observe)
        self._leader = leader
        self._gates[provider.SERVICE].open(leader.provider.methods())
        self._gates[expander.SERVICE].open(leader.expander.methods())
        return leader

    def _stop_leading(self) -> None:
        if self._leader is not None:
            self._leader.stop()

    def _snapshot(self) -> FleetSnapshot:
        return self._leader.fleet.snapshot if self._leader is not None else _NOTHING

    def _controllers(self) -> Controllers | None:
        return self._leader.controllers if self._leader is not None else None

    def _informers(self) -> tuple[Informer, ...]:
        """Of all that this process follows: a standby only what it needs to take over."""
        controllers = self._controllers()
        of_view = self._cluster.view.informers if self._cluster is not None else ()
        return (*of_view, *(controllers.informers() if controllers is not None else ()))

    def _still_to_come(self) -> str:
        """Why the leader does not know the cluster yet. Once all has been listed it stays known, as it was last: a
        watch that is lost, or a kind that comes later, does not take the servers away from the autoscaler."""
        controllers = self._controllers()
        if self._all_known or self._cluster is None or controllers is None:
            return ""
        why = still_to_come(self._cluster.view.informers) or controllers.still_to_come()
        self._all_known = not why
        return why

    def _plans(self) -> Sequence[Mapping[str, Any]]:
        controllers = self._controllers()
        return controllers.plans() if controllers is not None else ()

    def _requests(self) -> Sequence[Mapping[str, Any]]:
        controllers = self._controllers()
        return controllers.provisioning_requests() if controllers is not None else ()

    def _bookings(self) -> int:
        controllers = self._controllers()
        return controllers.bookings() if controllers is not None else 0

    def _checks(self) -> Mapping[str, int]:
        controllers = self._controllers()
        return controllers.checks() if controllers is not None else {}

    def _slack(self) -> Mapping[str, Any]:
        controllers = self._controllers()
        return controllers.slack() if controllers is not None else {}

    def _observe(self, outcome: Outcome) -> None:
        self._metrics.observe_request(outcome.class_name, outcome.outcome, outcome.seconds)

    def _loops(self) -> Sequence[Heartbeat]:
        return self._leader.loops if self._leader is not None else ()

    def _stuck(self) -> str:
        return self._leader.stuck if self._leader is not None else self._taking_over.problem

    def _about(self) -> Mapping[str, Any]:
        controllers = self._controllers()
        return {
            "drive": self._settings.drive.value,
            **(self._cluster.about() if self._cluster is not None else {}),
            **(controllers.about() if controllers is not None else {}),
            "not_followed": not_followed(self._informers()),
            "left_out": {name: count for name, count in left_out(self._informers()).items() if count},
            "loops": {each.name: _told(each) for each in self._loops()},
        }

    def _why_not_ready(self) -> str:
        if self._stopping.is_set():
            return "stopping"
        if self._leader is not None:
            return self.failure or self._still_to_come() or self._leader.problem
        election = self._cluster.election if self._cluster is not None else None
        return (election.problem if election is not None else "") or "starting"  # it leads, and reads the journal yet


def _told(loop: Heartbeat) -> str:
    failed = f", {loop.failed_steps} steps failed" if loop.failed_steps else ""
    return (loop.doing or f"{loop.seconds_since_step:.1f} s since a step") + failed


def _warm_up() -> None:
    try:
        warm_up()
    except Exception:  # those who need it try again
        log.exception("compiling failed unexpectedly")


def load_tls(settings: Settings) -> ServerTls | None:
    """The server's certificates, checked; development certificates are made in the state directory where the
    configuration names no others. Raises InvalidInput naming the file."""
    files = settings.tls
    if files is None:
        return None
    if makes_certificates(settings):
        hosts = [a.host for a in (settings.provider, settings.expander) if a.host not in WILDCARDS]
        made = certificates.ensure_certificates(development_directory(settings), hosts, keep_hosts=True)
        if made:
            log.info("made development certificates in %s: %s", files.directory, ", ".join(made))
    loaded = certificates.load(files.certificate, files.key, files.client_ca)
    return ServerTls(loaded.certificate, loaded.key, loaded.authority)


def makes_certificates(settings: Settings) -> bool:
    """Whether the certificates are ours to make: only those in the state directory are."""
    return settings.tls is not None and settings.tls.directory == development_directory(settings)


def development_directory(settings: Settings) -> Path:
    return settings.state_directory / "certs"


def in_state_directory(settings_tls: TlsFiles | None, before: Path, after: Path) -> TlsFiles | None:
    """The TLS files when the state directory moves: development certificates move with it."""
    if settings_tls is None or settings_tls.directory != before / "certs":
        return settings_tls
    kept = after / "certs"
    return replace(
        settings_tls,
        certificate=kept / "server.crt",
        key=kept / "server.key",
        client_ca=kept / "ca.crt",
        directory=kept,
    )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give a writable --state-dir") from error


def _reached(address: Address, port: int) -> str:
    host = "localhost" if address.host in WILDCARDS else address.host
    return str(Address(host, port))
