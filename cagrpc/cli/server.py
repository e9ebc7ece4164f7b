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

from cagrpc.cli import certificates
from cagrpc.cli.leader import Leader
from cagrpc.cli.recorder import Recorder
from cagrpc.config.load import Address, Settings, TlsFiles
from cagrpc.errors import InvalidInput
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.services import expander, provider
from cagrpc.services.decisions import Decisions
from cagrpc.services.gate import Gate
from cagrpc.services.http import HttpServer, Site
from cagrpc.services.metrics import Metrics
from cagrpc.services.servers import RpcServer, Tls, method_names
from solver.pricing import warm_up

log = logging.getLogger(__name__)

_NOTHING = FleetSnapshot(version=0, groups={}, shown=(), group_of_instance={})

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the servers are reached, `host:port`."""

    provider: str
    expander: str
    http: str


class Server:
    """Everything that `cagrpc serve` runs. Built, it listens; it serves from `start` to `stop`."""

    def __init__(self, settings: Settings, recorder: Recorder | None = None) -> None:
        """Raises InvalidInput or Unavailable where a part cannot be had; then nothing is left open."""
        self._stopping = threading.Event()
        self._leader: Leader | None = None
        metrics = Metrics(self._snapshot)
        decisions = Decisions(time.time, observe=metrics.observe_decision)
        with ExitStack() as undo:
            _make_directory(settings.state_directory)
            tls = load_tls(settings)
            # First the journal: whoever holds it is the one server of this state directory.
            leader = Leader(settings, SqliteJournal(settings.state_directory / "journal.sqlite"), decisions)
            undo.callback(leader.stop)
            # CA's expander client has no certificate to show.
            tls_of = {provider.SERVICE: tls, expander.SERVICE: tls and Tls(tls.certificate, tls.key)}
            address_of = {provider.SERVICE: settings.provider, expander.SERVICE: settings.expander}
            self._gates = {name: Gate(method_names(name), self._why_not_ready) for name in tls_of}
            self._rpc_servers = tuple(
                RpcServer(
                    name,
                    recorder.recorded(gate.methods()) if recorder is not None else gate.methods(),
                    str(address_of[name]),
                    tls=tls_of[name],
                    observe=metrics.observe_call,
                    why_not_ready=self._why_not_ready,
                )
                for name, gate in self._gates.items()
            )
            for server in self._rpc_servers:
                undo.callback(server.stop, 0.0)
            site = Site(self._snapshot, decisions, metrics, self._why_not_ready, lambda: leader.switches)
            self._http = HttpServer(settings.http.host, settings.http.port, site)
            self._lead(leader)
            undo.pop_all()
        ports = (*(server.port for server in self._rpc_servers), self._http.port)
        addresses = (settings.provider, settings.expander, settings.http)
        self.endpoints = Endpoints(*(_reached(a, port) for a, port in zip(addresses, ports, strict=True)))

    def start(self) -> None:
        # The planner's compiled parts, beside everything else: small requests do not need them.
        threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
        if self._leader is not None:
            self._leader.start()
        for server in self._rpc_servers:
            server.start()
        self._http.start()

    def stop(self) -> None:
        """Running calls finish, then everything is closed. The fleet stays as it is."""
        self._stopping.set()
        self._http.stop()
        for server in self._rpc_servers:
            server.stop()
        if self._leader is not None:
            self._leader.stop()

    def _lead(self, leader: Leader) -> None:
        self._leader = leader
        self._gates[provider.SERVICE].open(leader.provider.methods())
        self._gates[expander.SERVICE].open(leader.expander.methods())

    def _snapshot(self) -> FleetSnapshot:
        return self._leader.fleet.snapshot if self._leader is not None else _NOTHING

    def _why_not_ready(self) -> str:
        if self._stopping.is_set():
            return "stopping"
        return self._leader.problem if self._leader is not None else "not the one writer yet"


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


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give a writable --state-dir") from error


def _reached(address: Address, port: int) -> str:
    host = "localhost" if address.host in WILDCARDS else address.host
    return str(Address(host, port))
