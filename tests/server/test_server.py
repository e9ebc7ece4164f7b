"""The server as an object: it stops also where its backend never answers."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cagrpc.api.gen.externalgrpc_pb2 import NodeGroupIncreaseSizeRequest
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.config.load import load_settings
from cagrpc.config.schema.listen import Address
from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.settings import ClusterSettings, Drive, JournalKind
from cagrpc.fleet.backend import Listing
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, InstanceState, Origin
from cagrpc.kube.lease import LeaderElection, LeaseTiming
from cagrpc.replay.recorder import Recorder
from cagrpc.replay.recording import read_recording
from cagrpc.server.certificates import load
from cagrpc.server.leader import Leader
from cagrpc.server.process import _fail_on_uncaught
from cagrpc.server.server import Server
from cagrpc.server.standby import Standby
from cagrpc.server.tls import in_state_directory
from tests.support.api_server import api_server
from tests.support.grpc_servers import GrpcClient, asking, option, pod
from tests.support.serving import SMALL, ask, configuration, kubeconfig_of, settings_of
from tests.support.waiting import AMPLE_SECONDS, assert_ends

pytestmark = pytest.mark.usefixtures("both_fronts")


@contextmanager
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose backend hangs in the middle of listing its instances."""
    monkeypatch.setattr("cagrpc.server.server.STOP_SECONDS", 0.1)
    settings = settings_of(tmp_path)
    server = Server(settings)
    entered, answer = threading.Event(), threading.Event()

    def hang(_: SimulatedBackend) -> Listing:
        entered.set()
        assert answer.wait(AMPLE_SECONDS)
        return Listing((), 0.0)

    monkeypatch.setattr(SimulatedBackend, "list_instances", hang)
    try:
        server.start()
        assert entered.wait(AMPLE_SECONDS)
        yield server
    finally:
        answer.set()
        server.stop()


def test_it_stops_while_the_backend_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(tmp_path, monkeypatch) as server:
        assert_ends(server.stop, "stopping while the backend hangs")


def test_a_backend_that_hangs_for_long_is_told_by_the_probe_of_liveness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.server.leader.FLEET_PATIENCE_SECONDS", 0.0)
    with hanging(tmp_path, monkeypatch) as server:
        status, text = ask(server, "/healthz")
        assert status == 503
        assert text.startswith("a step of the fleet makes no progress: in the middle of listing instances for")
        loops = json.loads(ask(server, "/status")[1])["loops"]
        assert loops["a step of the fleet"].startswith("in the middle of listing instances for")
        assert 'cagrpc_loop_last_step_timestamp_seconds{loop="a step of the fleet"}' in ask(server, "/metrics")[1]


def test_it_stops_while_the_api_server_hangs_and_orders_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen lists hang; with a time of its own for each it would take a minute, whatever the server has to stop."""
    monkeypatch.setattr("cagrpc.server.server.STOP_SECONDS", 0.1)
    settings = settings_of(tmp_path)
    stopped: list[str] = []
    for part in (PlanningController, Fleet):
        monkeypatch.setattr(part, name := _END[part], _noted(part, name, stopped))
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        kubeconfig = kubeconfig_of(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        cluster = ClusterSettings(kubeconfig, journal=JournalKind.SQLITE)
        settings = replace(settings, drive=Drive.PLAN, cluster=cluster)
        server = Server(settings)
        server.start()
        silent.settimeout(AMPLE_SECONDS)
        kept = [silent.accept() for _ in range(3)]
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 40  # it takes less than one, but on a busy machine
        assert stopped[:2] == ["PlanningController", "Fleet"]
        for connection, _ in kept:
            connection.close()


@pytest.mark.parametrize(("cluster", "journalled"), [(False, 1), (True, 0)])
def test_in_a_cluster_an_increase_is_for_pods_that_wait_there_whatever_was_named(
    tmp_path: Path, cluster: bool, journalled: int
) -> None:
    settings = settings_of(tmp_path)
    settings = replace(settings, requests=None)
    if cluster:
        kubeconfig = kubeconfig_of(tmp_path, "http://127.0.0.1:1")  # nobody answers, so nothing is known to wait
        settings = replace(settings, cluster=ClusterSettings(kubeconfig, journal=JournalKind.SQLITE))
    server = Server(settings)
    server.start()
    try:
        with grpc.insecure_channel(server.endpoints.expander) as channel:
            GrpcClient(channel).ok("BestOptions", asking(option("small", 1, [pod("named")])))
        with grpc.insecure_channel(server.endpoints.provider) as channel:
            GrpcClient(channel).ok("NodeGroupIncreaseSize", NodeGroupIncreaseSizeRequest(id="small", delta=1))
        with urllib.request.urlopen(f"http://{server.endpoints.http}/increments", timeout=AMPLE_SECONDS) as answer:
            (increment,) = json.loads(answer.read())
        assert "for 1 pod," in increment["reason"]
        assert increment["pods"] == journalled
    finally:
        server.stop()


def test_a_recording_has_every_call_also_those_whose_answers_could_be_ready(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl.gz"
    recorder = Recorder(path)
    server = Server(settings_of(tmp_path), recorder)
    server.start()
    with grpc.insecure_channel(server.endpoints.provider) as channel:
        answers = [GrpcClient(channel).raw("NodeGroups", b"") for _ in range(3)]
    server.stop()
    recorder.close()
    assert [(call.code, call.response) for call in read_recording(str(path))] == [(a[0], a[2]) for a in answers]


@pytest.mark.parametrize(("named", "code"), [("cluster-autoscaler", "OK"), ("another", "PERMISSION_DENIED")])
def test_the_provider_is_for_clients_of_a_name_and_the_development_certificate_has_one(
    tmp_path: Path, named: str, code: str
) -> None:
    one, names = [{"name": "one", "node_groups": [SMALL]}], {"client_names": [named]}
    settings = load_settings(configuration(tmp_path / "cagrpc.yaml", one, tls=names))
    anywhere = Address("127.0.0.1", 0)
    moved = in_state_directory(settings.tls, settings.state_directory, tmp_path / "state")
    settings = replace(settings, provider=anywhere, expander=anywhere, http=anywhere, tls=moved)
    server = Server(replace(settings, state_directory=tmp_path / "state"))
    server.start()
    try:
        client = load(*(tmp_path / "state" / "certs" / name for name in ("client.crt", "client.key", "ca.crt")))
        credentials = grpc.ssl_channel_credentials(client.authority, client.key, client.certificate)
        with grpc.secure_channel(server.endpoints.provider, credentials) as channel:
            assert GrpcClient(channel).code("NodeGroups")[0] == code
        credentials = grpc.ssl_channel_credentials(client.authority)
        with grpc.secure_channel(server.endpoints.expander, credentials) as channel:
            assert GrpcClient(channel).code("BestOptions")[0] == "OK"  # CA has no certificate to show there
    finally:
        server.stop()


_END = {PlanningController: "stop", Fleet: "close"}


def _noted(part: type, name: str, stopped: list[str]) -> Callable[..., None]:
    done = getattr(part, name)

    def noted(this: Any, *arguments: Any) -> None:
        if part.__name__ not in stopped:
            stopped.append(part.__name__)
        done(this, *arguments)

    return noted


class _Elected:
    """A candidate that leads at once; `kept` is set when it gives the Lease back."""

    identity = "this one"
    is_leader = True
    problem = ""

    def __init__(self) -> None:
        self.kept = threading.Event()

    def acquire(self, _: threading.Event) -> bool:
        return True

    def check(self) -> None:
        pass

    def keep(self, stop: threading.Event, stuck: Callable[[], str]) -> None:
        assert stop.wait(AMPLE_SECONDS)
        self.kept.set()


def test_who_cannot_lead_for_a_reason_nobody_thought_of_does_not_keep_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    told = threading.Event()
    server = Server(settings, on_failure=told.set)
    monkeypatch.setattr(Server, "lead", lambda *_: dict[str, Leader]()["nobody"])
    elected: Any = _Elected()
    nobody: Any = None
    server._standby = standby = Standby(server, nobody, elected, "cagrpc")
    standby.start()
    try:
        assert told.wait(AMPLE_SECONDS)
        assert server.failure == "leading failed unexpectedly: KeyError: 'nobody'"
    finally:
        server.stop()
    assert elected.kept.wait(AMPLE_SECONDS)
    standby.give_up(30)
    assert not standby._thread.is_alive()


LEASES = "/apis/coordination.k8s.io/v1/namespaces/cagrpc/leases"


def test_who_hangs_before_it_leads_gives_the_lease_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.server.standby.TAKE_OVER_PATIENCE_SECONDS", 0.0)
    settings = settings_of(tmp_path)
    told, answer = threading.Event(), threading.Event()
    server = Server(settings, on_failure=told.set)
    server._leader = None  # as in a standby
    monkeypatch.setattr(Server, "lead", lambda *_: answer.wait(AMPLE_SECONDS))
    with api_server(LEASES) as store:
        election = LeaderElection(store.client(), "cagrpc", identity="first", pace=LeaseTiming(renew=0.01))
        server._standby = standby = Standby(server, store.client(), election, "cagrpc")
        standby.start()
        try:
            assert told.wait(AMPLE_SECONDS)
            assert server.failure.startswith(
                "Lease cagrpc/cagrpc: given up by first: taking over the journal makes no progress"
            )
            assert LeaderElection(store.client(), "cagrpc", identity="second").step()
        finally:
            answer.set()
            server.stop()
            standby.give_up(30)
    assert not standby._thread.is_alive()


def test_what_went_wrong_first_is_why_it_ends_and_once(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    failures: list[str] = []
    server = Server(replace(settings), on_failure=lambda: failures.append(server.failure))
    server.fail("first")
    server.fail("second")
    server.stop()
    assert failures == ["first"]
    assert server.failure == "first"


def test_a_replay_need_not_wait_for_machines_that_boot(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"*": {"boot": "8m20s", "delete": "50s"}})
    server = Server(settings)
    try:
        leader, pass_time = server._leader, server.pass_time
        assert leader is not None
        assert pass_time is not None
        fleet = leader.fleet
        assert fleet is not None
        fleet.apply(IncrementSpec({"small": 2}, Origin.AUTOSCALER), refusal_wait_seconds=30)
        pass_time(400)
        assert {each.state for each in fleet.snapshot.groups["small"].instances} == {InstanceState.CREATING}
        pass_time(100)
        running = fleet.snapshot.groups["small"].instances
        assert [each.state for each in running] == [InstanceState.RUNNING] * 2
        fleet.delete_instances("small", [each.id for each in running])
        pass_time(0)
        pass_time(50)
        assert not fleet.snapshot.groups["small"].instances
    finally:
        server.stop()


def test_in_a_cluster_time_does_not_pass_at_once(tmp_path: Path) -> None:
    cluster = ClusterSettings(kubeconfig_of(tmp_path, "http://127.0.0.1:1"), journal=JournalKind.SQLITE)
    server = Server(replace(settings_of(tmp_path), cluster=cluster))
    try:
        assert server.pass_time is None
    finally:
        server.stop()


def test_a_thread_that_dies_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    before = threading.excepthook
    with _fail_on_uncaught(told.append):
        for error in (ZeroDivisionError("ours"), SystemExit(3)):
            thread = threading.Thread(target=_raise, args=(error,), name="informer-pods")
            thread.start()
            thread.join(AMPLE_SECONDS)
    assert threading.excepthook is before
    assert told == [
        "the thread informer-pods ended unexpectedly: ZeroDivisionError: ours",
        "the thread informer-pods ended unexpectedly: SystemExit: 3",
    ]
    assert "ZeroDivisionError" in caplog.text


def _raise(error: BaseException) -> None:
    raise error
