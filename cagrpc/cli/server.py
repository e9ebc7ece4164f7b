"""The composition root: from settings to running servers. The one place that knows every part; what each does is its
own business. Flags, signals and printing are `serve`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cagrpc.backends.simulated import SimulatedBackend
from cagrpc.cli import certificates, simulation
from cagrpc.config.load import Address, Settings, TlsFiles
from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.services import expander, provider
from cagrpc.services.decisions import Decisions
from cagrpc.services.http import HttpServer, Site
from cagrpc.services.metrics import Metrics
from cagrpc.services.servers import RpcServer, Tls
from solver.pricing import warm_up
from solver.rank import rank

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 1.0
STOP_SECONDS = 5.0
"""How long a stop waits for the step under way; what that leaves undone is found in the journal at the next start."""

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the servers are reached, `host:port`."""

    provider: str
    expander: str
    http: str


class Server:
    """Everything that `cagrpc serve` runs. Built, it listens; it serves from `start` to `stop`."""

    def __init__(self, settings: Settings) -> None:
        """Raises InvalidInput or Unavailable where a part cannot be had; then nothing is left open."""
        self._stopping = threading.Event()
        # A daemon: a backend that does not answer must not keep the process from ending.
        self._reconciler = threading.Thread(target=self._reconcile, name="reconcile", daemon=True)
        with ExitStack() as undo:
            _make_directory(settings.state_directory)
            tls = load_tls(settings)
            # First the journal: whoever holds it is the one server of this state directory.
            journal = SqliteJournal(settings.state_directory / "journal.sqlite")
            undo.callback(journal.close)
            backend = SimulatedBackend(settings.state_directory / "simulated.sqlite")
            undo.callback(backend.close)
            switches = simulation.configure(backend, settings.simulated, _names(settings))
            self._fleet = Fleet(
                settings.groups,
                settings.limits,
                backend,
                journal,
                shown=settings.shown,
                increment_deadline_seconds=settings.increment_deadline_seconds,
            )
            metrics = Metrics(lambda: self._fleet.snapshot)
            decisions = Decisions(time.time, observe=metrics.observe_decision)
            self._expander = expander.Expander(
                self._fleet, rank, decisions, clock=time.time, timing=_timing(settings.expander_budget_seconds)
            )
            undo.callback(self._expander.close)
            self._provider = provider.Provider(
                self._fleet,
                options=settings.options,
                gpu_label=settings.gpu_label,
                take_choice=decisions.take_choice,
            )
            self._rpc_servers = (
                RpcServer(
                    provider.SERVICE,
                    self._provider.methods(),
                    str(settings.provider),
                    tls=tls,
                    observe=metrics.observe_call,
                    why_not_ready=self._why_not_ready,
                ),
                RpcServer(
                    expander.SERVICE,
                    self._expander.methods(),
                    str(settings.expander),
                    tls=tls and Tls(tls.certificate, tls.key),  # CA's expander client has no certificate to show
                    observe=metrics.observe_call,
                    why_not_ready=self._why_not_ready,
                ),
            )
            for server in self._rpc_servers:
                undo.callback(server.stop, 0.0)
            site = Site(lambda: self._fleet.snapshot, decisions, metrics, self._why_not_ready, switches)
            self._http = HttpServer(settings.http.host, settings.http.port, site)
            self._undo = undo.pop_all()
        ports = (*(server.port for server in self._rpc_servers), self._http.port)
        addresses = (settings.provider, settings.expander, settings.http)
        self.endpoints = Endpoints(*(_reached(a, port) for a, port in zip(addresses, ports, strict=True)))

    def start(self) -> None:
        # The planner's compiled parts, beside everything else: small requests do not need them.
        threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
        self._reconciler.start()
        for server in self._rpc_servers:
            server.start()
        self._http.start()

    def stop(self) -> None:
        """Running calls finish, then everything is closed. The fleet stays as it is."""
        self._stopping.set()
        self._http.stop()
        for server in self._rpc_servers:
            server.stop()
        if self._reconciler.is_alive():
            self._reconciler.join(STOP_SECONDS)
        self._fleet.close()
        self._undo.close()

    def _reconcile(self) -> None:
        last_problem: str | None = None
        while not self._stopping.wait(RECONCILE_SECONDS):
            try:
                self._fleet.reconcile()
                last_problem = None
            except Unavailable as error:
                if str(error) != last_problem:  # once, not every second
                    log.warning("the fleet cannot be reconciled: %s", error)
                last_problem = str(error)
            except Exception:
                log.exception("a step of the fleet failed unexpectedly; the next one is tried")

    def _why_not_ready(self) -> str:
        return "stopping" if self._stopping.is_set() else self._fleet.problem or ""


def _names(settings: Settings) -> set[str]:
    """Of the node groups and instance types that there are."""
    groups = settings.groups
    return {*(g.id for g in groups), *(g.instance_type for g in groups), *settings.catalogue.instance_types}


def load_tls(settings: Settings) -> Tls | None:
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
    return Tls(loaded.certificate, loaded.key, loaded.authority)


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
    return TlsFiles(kept / "server.crt", kept / "server.key", kept / "ca.crt", directory=kept)


def _timing(budget_seconds: float) -> expander.Timing:
    """The configured time for an answer, shared out: most of the rest is the planner's."""
    return expander.Timing(
        answer_seconds=budget_seconds, decode_seconds=0.4 * budget_seconds, rank_seconds=0.6 * budget_seconds
    )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give a writable --state-dir") from error


def _reached(address: Address, port: int) -> str:
    host = "localhost" if address.host in WILDCARDS else address.host
    return str(Address(host, port))
