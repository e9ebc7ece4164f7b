"""The composition root: builds all parts from settings, starts and stops them. What each does is its own module's;
flags, signals and printing are in `process`.

What many configurations do without is imported here, and in `leader`, where the settings have it: the Kubernetes client
and the controllers with a cluster, the planner by a thread of its own. tests/cli/test_imports.py keeps it so.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import solver
from cagrpc.config.schema.listen import Address
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidInput, reason_of
from cagrpc.fleet.journal import Journal, SqliteJournal
from cagrpc.replay.recorder import Recorder
from cagrpc.runtime.clock import SteadyClock, epoch
from cagrpc.runtime.controller import Json, JsonList, JsonPage
from cagrpc.runtime.health import readiness_lines
from cagrpc.runtime.loopback import is_loopback
from cagrpc.runtime.metrics import AtScrape, gauge
from cagrpc.runtime.runner import Runner
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from cagrpc.server import logs
from cagrpc.server.leader import Leader
from cagrpc.server.tls import WILDCARDS, Listeners, open_listeners
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc import expander, provider
from cagrpc.services.grpc.metrics import CallMetrics
from cagrpc.services.grpc.native import Endpoint, answers_of, load
from cagrpc.services.grpc.servers import Gate, RpcServer, method_names
from cagrpc.services.http.access import Anybody, Nobody, PageAccess, ThisMachine
from cagrpc.services.http.metrics import HttpMetrics, Metrics
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import Site

if TYPE_CHECKING:
    from cagrpc.demonstration.cluster import PlayedCluster
    from cagrpc.server.cluster import ClusterConnection
    from cagrpc.server.standby import Standby

log = logging.getLogger(__name__)

JOURNAL = "journal.sqlite"
_BY_NODE = {provider.SERVICE: provider.BY_NODE, expander.SERVICE: ()}
"""Methods whose answers are ready by node. The expander's are all decisions; it has the native front all the same."""

_EMPTY_PAGES: Mapping[str, JsonPage] = {
    **dict.fromkeys(
        ("/nodegroups", "/increments", "/nodes", "/history", "/plans", "/provisioningrequests", "/episodes"),
        JsonPage(lambda: JsonList(())),
    ),
    "/slack": JsonPage(dict),
    "/consolidation": JsonPage(dict),
}
"""Pages that exist without their controller too: in a standby, and where it is not configured."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of the servers, `host:port`."""

    provider: str
    """Empty without a provider."""
    expander: str
    http: str


class Server:
    """Everything that `cagrpc serve` runs. It listens once built, and serves from `start` to `stop`. With a journal in
    a cluster it starts as a standby; without a provider there is no journal, and it leads. `failure` is why the process
    must end; empty where it need not."""

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder | None = None,
        on_failure: Callable[[], None] = lambda: None,
        played: PlayedCluster | None = None,
    ) -> None:
        """`on_failure` is called once, when `failure` is set; `played` is the cluster of a demonstration, instead of
        the configuration's. Raises InvalidInput or Unavailable where a part cannot be built; then nothing is left
        open."""
        self.failure = ""
        self._synced = False
        self._failing = threading.Lock()
        self._settings = settings
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._why_plans_wait: Callable[[], str] = str
        self._runner = Runner()
        self._leader: Leader | None = None
        self._standby: Standby | None = None
        self._cluster: ClusterConnection | None = None
        self._imported = threading.Event()
        # A daemon: importing must not keep the process from ending.
        self._loading = threading.Thread(target=self._load_planner, name="planner", daemon=True)
        with ExitStack() as undo:
            make_state_directory(settings.state_directory)
            listeners = open_listeners(settings, epoch)
            if listeners.rotation is not None:
                self._runner.add(listeners.rotation)
            pending = None
            if settings.cluster is not None:
                from cagrpc.server.cluster import ClusterConnection

                self._cluster = cluster = ClusterConnection(
                    settings.cluster, settings, played.client if played is not None else None
                )
                undo.callback(cluster.client.close)
                self._runner.add(cluster.view)
                pending = cluster.view.pending
            self._decisions = DecisionLog(SteadyClock(), pending=pending)
            front = load() if recorder is None else None  # a recording has every call, so Python has to see each
            addresses = _addresses(settings)
            self._ready = {name: answers_of(front, name, _BY_NODE[name]) for name in addresses}
            of_provider = self._ready.get(provider.SERVICE)
            self._calls, self._web = CallMetrics(of_provider.calls if of_provider is not None else list), HttpMetrics()
            self._process = ProcessCollector(registry=None)
            self._gates = {name: Gate(method_names(name), self._why_not_ready) for name in addresses}
            if self._cluster is not None and self._cluster.election is not None:
                from cagrpc.server.standby import NODE_NAME, OwnNode, Standby

                namespace = self._cluster.settings.namespace
                node = OwnNode(os.environ.get(NODE_NAME, ""), self._cluster.view.is_cordoned)
                self._standby = Standby(self, self._cluster.client, self._cluster.election, namespace, node.leaving)
            elif settings.provider is None:
                self._become_leader(None)
            else:
                # Before all else: the process that holds the journal is the only server of its state directory.
                self._become_leader(SqliteJournal(settings.state_directory / JOURNAL))
            undo.callback(self._stop_leading)
            self._rpc_servers = self._listen(addresses, listeners, recorder, undo)
            site = Site(
                Metrics(self._collectors),
                lambda: {**self._decisions.pages(), **_EMPTY_PAGES, **logs.pages(), **self._runner.pages()},
                self._why_not_ready,
                self.stuck,
                self._status,
                lambda: readiness_lines(self._runner.informers()),
            )
            access = _access(settings, self._cluster)
            self._http = HttpServer(
                settings.http.host, settings.http.port, site, access, listeners.http, self._web.observe
            )
            undo.pop_all()
        self.endpoints = self._reached_at(addresses)

    def start(self) -> None:
        """Serve from now on, and lead or stand for election. The page comes first; calls are answered, and this
        returns, once the planner is imported: the first question is worth as good an answer as any."""
        self._runner.start()
        if self._standby is not None:
            self._standby.start()
        self._http.start()
        self._loading.start()
        self._imported.wait()
        for server in self._rpc_servers:
            server.start()

    def lead(self, journal: Journal) -> None:
        """Become the leader in a cluster. Raises InvalidInput and Unavailable."""
        self._become_leader(journal)
        self._runner.start()

    def play(self, played: PlayedCluster) -> None:
        """Let the cluster of a demonstration be played from `start` on, with the switches of the simulated machines."""
        played.simulate = self._runner.pages()["/simulation"].put or played.simulate
        self._runner.add(played)

    def fail(self, problem: str) -> None:
        """Set `failure` to why the process must end; ignored where it is set, or where the process is ending."""
        with self._failing:
            if self.failure or self._stopping.is_set():
                return
            self.failure = problem
        self._on_failure()

    @property
    def pass_time(self) -> Callable[[float], None] | None:
        """Makes it so many seconds later at once; None where machines or a cluster take their own time."""
        return self._leader.pass_time if self._leader is not None and self._leader.time_can_pass else None

    def stuck(self) -> str:
        """Return what makes no progress; empty where all does."""
        return self._runner.stuck or (self._standby.taking_over.problem if self._standby is not None else "")

    def stop(self) -> None:
        """Finish running calls, then close everything. The fleet stays as it is."""
        self._stopping.set()
        if self._standby is not None:
            self._standby.stop()
        self._http.stop()
        for server in self._rpc_servers:
            server.stop()
        self._stop_leading()
        threads = [self._loading.join] if self._loading.is_alive() else []
        stop_all([*([self._standby.give_up] if self._standby is not None else []), *threads], STOP_SECONDS)
        if self._cluster is not None:
            self._cluster.client.close()

    def _reached_at(self, addresses: Mapping[str, Address]) -> Endpoints:
        servers = zip(addresses.items(), self._rpc_servers, strict=True)
        reached = {name: _reached(address, server.port) for (name, address), server in servers}
        http = _reached(self._settings.http, self._http.port)
        return Endpoints(reached.get(provider.SERVICE, ""), reached[expander.SERVICE], http)

    def _listen(
        self, addresses: Mapping[str, Address], listeners: Listeners, recorder: Recorder | None, undo: ExitStack
    ) -> tuple[RpcServer, ...]:
        files = self._settings.tls
        names_of = {provider.SERVICE: files.client_names if files is not None else (), expander.SERVICE: ()}
        servers = []
        for name, address in addresses.items():
            gate = self._gates[name]
            server = RpcServer(
                name,
                recorder.recorded(gate.methods()) if recorder is not None else gate.methods(),
                Endpoint(
                    str(address),
                    listeners.grpc,
                    asks_clients=name == provider.SERVICE,
                    client_names=names_of[name],
                ),
                observe=self._calls.observe,
                why_not_ready=self._why_not_ready,
                ready=self._ready[name],
            )
            undo.callback(server.stop, 0.0)
            servers.append(server)
        return tuple(servers)

    def _become_leader(self, journal: Journal | None) -> None:
        leader = self._leader = Leader(
            self._settings, journal, self._decisions, self._cluster, self._ready.get(provider.SERVICE)
        )
        self._runner.add(*leader.controllers)
        if leader.provider is not None:
            self._gates[provider.SERVICE].open(leader.provider.methods())
        self._gates[expander.SERVICE].open(leader.expander.methods())

    def _stop_leading(self) -> None:
        """Stop the controllers and close the leader. Steps under way may finish; a plan under way is dropped."""
        self._runner.stop(STOP_SECONDS)
        if self._leader is not None:
            self._leader.close()

    def _still_to_come(self) -> str:
        """Return what the leader has not synced yet. Once all is synced it stays so: a lost watch, or a kind that is
        installed later, does not make the servers unready for the autoscaler."""
        if self._synced or self._cluster is None:
            return ""
        why = self._runner.still_to_come()
        self._synced = not why
        return why

    def _load_planner(self) -> None:
        """Import the planner, and let it be compiled where that is still to be done."""
        try:
            _ = solver.rank  # imports it
            from solver.planning.warm_up import in_background, why_wait
        finally:
            self._imported.set()
        self._why_plans_wait = why_wait
        try:
            in_background()
        except OSError:  # it is compiled when it is needed
            log.exception("no process can be started that compiles the planner")

    def _status(self) -> Json:
        own = {"increments_in_flight": 0, "drive": self._settings.drive.value}
        return {**own, **({"compiling": why} if (why := self._why_plans_wait()) else {}), **self._runner.status()}

    def _collectors(self) -> tuple[Collector, ...]:
        of_requests = self._cluster.requests.collectors() if self._cluster is not None else ()
        own = (AtScrape(self._metrics), self._process, *self._calls.collectors(), *self._web.collectors(), *of_requests)
        return (*own, *self._decisions.collectors(), *self._runner.collectors())

    def _metrics(self) -> Iterator[Metric]:
        yield InfoMetricFamily("cagrpc_build", "The version of cagrpc.", value={"version": _version()})
        yield gauge("cagrpc_ready", "1 while `/readyz` answers 200.", not self._why_not_ready())
        leads = "1 for the leader; without a Lease every server leads."
        yield gauge("cagrpc_leader", leads, self._leader is not None)

    def _why_not_ready(self) -> str:
        if self._stopping.is_set():
            return "stopping"
        if self._leader is not None:
            loading = "" if self._imported.is_set() else "starting"
            return self.failure or loading or self._still_to_come() or self._leader.problem
        election = self._cluster.election if self._cluster is not None else None
        return (election.problem if election is not None else "") or "starting"  # it leads, and still reads the journal


def _access(settings: Settings, cluster: ClusterConnection | None) -> PageAccess:
    if not settings.http_is_secured:
        if is_loopback(settings.http.host) and settings.http_access.insecure is None:
            return ThisMachine()
        log.warning("HTTP is served on %s without TLS, to whoever reaches it", settings.http)
        return Anybody()
    if cluster is None:
        log.warning("HTTP on %s has probes only: without a cluster nobody says who may read the rest", settings.http)
        return Nobody()
    from cagrpc.services.http.access import Readers

    return Readers(cluster.client, settings.http_access.audiences)


def _addresses(settings: Settings) -> Mapping[str, Address]:
    """Return where each gRPC service listens."""
    own = {provider.SERVICE: settings.provider} if settings.provider is not None else {}
    return {**own, expander.SERVICE: settings.expander}


def make_state_directory(path: Path) -> None:
    """Make a state directory, where there is none. Raises InvalidInput."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{path}: {reason_of(error)}; give a writable --state-dir") from error


def _reached(address: Address, port: int) -> str:
    host = "localhost" if address.host in WILDCARDS else address.host
    return str(Address(host, port))


@cache
def _version() -> str:
    try:
        return version("cagrpc")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
