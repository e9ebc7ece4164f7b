"""What the native front answers by itself: the same as Python, to nobody whom Python has not let in, and nothing that
is no longer so. What both fronts have in common is in the other tests of this folder, which are run over both."""

from __future__ import annotations

import importlib
import logging
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import CagrpcError, InvalidInput, Unavailable
from cagrpc.runtime import tracing
from cagrpc.services.grpc import interceptor, native, provider, servers
from cagrpc.services.grpc.metrics import CallMetrics
from cagrpc.services.grpc.native import ConnectionLimits, NativeAnswers
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.servers import RpcServer
from cagrpc.services.grpc.status import CallContext, Method, status_of, with_name
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import FRONTS, PATHS, GrpcClient, House, fronted, ready_answers, rpc_server
from tests.support.waiting import AMPLE_SECONDS

READY = ("NodeGroups", "NodeGroupForNode", "NodeGroupTargetSize", "NodeGroupNodes", "NodeGroupGetOptions")
_AUTHORITY = Authority()
_CERTIFICATE, _KEY = _AUTHORITY.issue("server")


@pytest.fixture(autouse=True, params=FRONTS[1:])
def _front(request: pytest.FixtureRequest) -> Iterator[None]:
    """Instead of the folder's."""
    with fronted(request.param):
        yield


class _Counted:
    """Methods that answer with their request, and how often each was entered."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.methods: Mapping[str, Method] = {name: self._answer for name in PATHS if name != "BestOptions"}

    def _answer(self, data: bytes, call: CallContext) -> bytes:
        self.entered.append(call.method)
        return data


@contextmanager
def _served(**options: Any) -> Iterator[tuple[RpcServer, ReadyAnswers, _Counted]]:
    ready, counted = ready_answers(), _Counted()
    ready.put(0, "NodeGroupTargetSize", b"\x0a\x01a", b"ready")
    server = rpc_server(provider.SERVICE, counted.methods, **{"ready": ready, **options})
    server.start()
    try:
        yield server, ready, counted
    finally:
        server.stop(0.0)


def _channel(server: RpcServer, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{server.port}"
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def _grown() -> House:
    return House(FleetHarness(groups=[group("a", max_size=5), group("b", max_size=5)]))


def _grow(house: House) -> str:
    house.ca.ok("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="a", delta=2))
    house.fleet.reconcile()
    return house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances[0].id  # type: ignore[no-any-return]


def test_every_instance_is_ready_after_one_question_and_others_after_the_first() -> None:
    with _grown() as house:
        instance = _grow(house)
        ready = house.provider._ready
        asked = [pb.NodeGroupForNodeRequest(node=pb.ExternalGrpcNode(providerID=each)) for each in (instance, "alien")]
        for request, times in ((asked[0], 3), (asked[1], 3)):
            for _ in range(times):
                house.ca.ok("NodeGroupForNode", request)
        counted = {each.method: sum(each.by_bucket) for each in ready.calls()}
        assert counted["NodeGroupForNode"] == 3 + 2


def test_an_answer_is_gone_before_the_change_that_made_it_wrong_returns() -> None:
    with _grown() as house:
        target = pb.NodeGroupTargetSizeRequest(id="a")
        for expected in range(5):
            for _ in range(3):
                assert house.ca.ok("NodeGroupTargetSize", target).targetSize == expected
            house.ca.ok("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="a", delta=1))
        given_ = {each.method: sum(each.by_bucket) for each in house.provider._ready.calls()}
        assert given_["NodeGroupTargetSize"] == 2 * 5


@pytest.fixture(name="house", scope="module")
def _house() -> Iterator[House]:
    with fronted("native"), _grown() as house:
        _grow(house)
        yield house


def _requests(house: House) -> st.SearchStrategy[tuple[str, bytes]]:
    """Requests that are nearly right: whole ones, and such with bytes lost, added or changed."""
    ids = st.sampled_from(["a", "b", "c", "", "ä", *house.fleet.snapshot.group_of_instance])
    texts = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
    nodes = st.builds(pb.ExternalGrpcNode, providerID=ids, name=ids, labels=texts, annotations=texts)
    messages = st.one_of(
        st.builds(pb.NodeGroupForNodeRequest, node=nodes).map(lambda m: ("NodeGroupForNode", m)),
        st.builds(pb.NodeGroupTargetSizeRequest, id=ids).map(lambda m: ("NodeGroupTargetSize", m)),
        st.builds(pb.NodeGroupNodesRequest, id=ids).map(lambda m: ("NodeGroupNodes", m)),
        st.builds(pb.NodeGroupAutoscalingOptionsRequest, id=ids).map(lambda m: ("NodeGroupGetOptions", m)),
        st.just(("NodeGroups", pb.NodeGroupsRequest())),
    )
    whole = messages.map(lambda asked: (asked[0], asked[1].SerializeToString()))

    def cut(asked: tuple[str, bytes], at: int, less: int, more: bytes) -> tuple[str, bytes]:
        name, data = asked
        at = min(at, len(data))
        return name, data[:at] + more + data[at + less :]

    damaged = st.builds(cut, whole, st.integers(0, 40), st.integers(0, 3), st.binary(max_size=4))
    twice = st.builds(lambda one, other: (one[0], one[1] + other[1]), whole, whole)
    return st.one_of(whole, damaged, twice, st.tuples(st.sampled_from(READY), st.binary(max_size=20)))


@given(data=st.data())
def test_the_same_is_answered_as_by_python_at_once_and_from_then_on(house: House, data: st.DataObject) -> None:
    name, request = data.draw(_requests(house))
    try:
        expected = "OK", "", house.provider.methods()[name](request, CallContext(name))
    except CagrpcError as error:
        code, details = status_of(error)
        expected = code.name, with_name(name, details), b""
    for _ in range(2):
        assert house.ca.raw(name, request) == expected


def test_a_request_of_any_size_is_answered() -> None:
    with _grown() as house:
        instance = _grow(house)
        for size in (60_000, 64 * 1024, 70_000, 1_000_000):
            node = pb.ExternalGrpcNode(providerID=instance, labels={"long": "x" * size})
            assert house.ca.ok("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node)).nodeGroup.id == "a"


def test_ready_calls_count_with_the_others() -> None:
    with _served() as (server, ready, counted), _channel(server) as channel:
        metrics = CallMetrics(ready.calls)
        metrics.observe("NodeGroupTargetSize", "OK", 10.0)
        client = GrpcClient(channel)
        assert [client.raw("NodeGroupTargetSize", b"\x0a\x01a") for _ in range(3)] == [("OK", "", b"ready")] * 3
        assert counted.entered == []
        text = Metrics(metrics.collectors).exposition()[1].decode()
    samples = {
        (each.name, each.labels["method"], each.labels["code"], each.labels.get("le")): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    of_target = ("NodeGroupTargetSize", "OK")
    assert samples["cagrpc_rpc_total", *of_target, None] == 4
    assert samples["cagrpc_rpc_duration_seconds_count", *of_target, None] == 4
    assert samples["cagrpc_rpc_duration_seconds_bucket", *of_target, "5.0"] == 3
    assert samples["cagrpc_rpc_duration_seconds_bucket", *of_target, "+Inf"] == 4
    assert 10.0 < samples["cagrpc_rpc_duration_seconds_sum", *of_target, None] < 20.0


def _credentials(name: str) -> grpc.ChannelCredentials:
    certificate, key = _AUTHORITY.issue(name)
    return grpc.ssl_channel_credentials(_AUTHORITY.certificate, key, certificate)


def _guarded() -> dict[str, Any]:
    tls = LiveTls(TlsMaterial(_CERTIFICATE, _KEY, authority=_AUTHORITY.certificate))
    return {"tls": tls, "asks_clients": True, "client_names": ["cluster-autoscaler"]}


def test_nobody_gets_a_ready_answer_whom_python_has_not_let_in() -> None:
    with _served(**_guarded()) as (server, _, counted):
        with _channel(server, _credentials("cluster-autoscaler")) as allowed:
            answers = [GrpcClient(allowed).raw("NodeGroupTargetSize", b"\x0a\x01a") for _ in range(3)]
            assert answers == [("OK", "", b"\x0a\x01a"), ("OK", "", b"ready"), ("OK", "", b"ready")]
            with _channel(server, _credentials("stranger")) as refused:
                # Whatever it claims of itself, also what only the front may say.
                ask = refused.unary_unary(PATHS["NodeGroupTargetSize"], None, None)
                for metadata in (None, (("cagrpc-connection", "1"),), (("cagrpc-connection", "1"),) * 2):
                    with pytest.raises(grpc.RpcError, match=r"not among tls\.client_names") as error:
                        ask(b"\x0a\x01a", timeout=AMPLE_SECONDS, metadata=metadata)
                    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert GrpcClient(allowed).raw("NodeGroupTargetSize", b"\x0a\x01a")[2] == b"ready"
        assert counted.entered == ["NodeGroupTargetSize"]


def test_a_change_of_the_authority_has_everybody_checked_again() -> None:
    options, successor = _guarded(), Authority("its successor")
    with _served(**options) as (server, _, counted), _channel(server, _credentials("cluster-autoscaler")) as channel:
        client = GrpcClient(channel)
        assert [client.code("NodeGroupTargetSize")[0] for _ in range(2)] == ["OK", "OK"]
        both = _AUTHORITY.certificate + successor.certificate
        for authority, code in ((both, "OK"), (successor.certificate, "UNAUTHENTICATED"), (both, "OK")):
            options["tls"].replace(TlsMaterial(_CERTIFICATE, _KEY, authority=authority))
            counted.entered.clear()
            answers = [client.raw("NodeGroupTargetSize", b"\x0a\x01a") for _ in range(2)]
            assert [answer[0] for answer in answers] == [code, code]
            assert len(counted.entered) == (code == "OK")


def test_a_call_of_a_trace_is_seen_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Tracer:
        def span(self, *_: Any, **__: Any) -> Any:
            return nullcontext(SimpleNamespace(set=lambda _: None, fail=lambda _: None))

    tracing.use(_Tracer())  # type: ignore[arg-type] # as much of it as a call needs
    try:
        with _served() as (server, _, counted), _channel(server) as channel:
            ask = channel.unary_unary(PATHS["NodeGroupTargetSize"], None, None)
            assert ask(b"\x0a\x01a", timeout=AMPLE_SECONDS) == b"ready"
            traced = (("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),)
            assert ask(b"\x0a\x01a", timeout=AMPLE_SECONDS, metadata=traced) == b"\x0a\x01a"
            assert counted.entered == ["NodeGroupTargetSize"]
    finally:
        tracing.use(None)


def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "RECEIVE_SECONDS", 0.2)
    until = threading.Event()

    def nothing() -> Iterator[bytes]:
        until.wait(AMPLE_SECONDS)
        yield from ()

    with _served() as (server, _, counted), _channel(server) as channel:
        call = channel.stream_unary(PATHS["NodeGroupTargetSize"], None, None).future(nothing(), timeout=AMPLE_SECONDS)
        assert call.code() is grpc.StatusCode.CANCELLED
        until.set()
        assert counted.entered == []


def test_a_connection_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LIMITS", ConnectionLimits(handshake_seconds=0.2))
    for options in ({}, _guarded()):
        with _served(**options) as (server, _, _), socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.settimeout(10)
            while silent.recv(100):
                pass


@pytest.mark.parametrize("says", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)])
def test_connections_without_calls_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    monkeypatch.setattr(servers, "LIMITS", ConnectionLimits(connections=6, connections_of_one_peer=4))
    with _served() as (server, _, _), ExitStack() as opened:

        def connect(peer: str) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", server.port), AMPLE_SECONDS, source_address=(peer, 0))
            opened.enter_context(made)
            made.sendall(says)
            if says:
                assert made.recv(9), "it has been let in"
            return made

        of_one = [connect("127.0.0.2") for _ in range(5)]
        _wait_for_the_end(of_one[0])
        honest = GrpcClient(opened.enter_context(_channel(server)))
        assert honest.raw("NodeGroupNodes", b"1")[2] == b"1"
        for number in range(3, 7):  # of one peer each
            connect(f"127.0.0.{number}")
        for each in of_one[1:-1]:
            _wait_for_the_end(each)  # who has the most makes room first
        assert honest.raw("NodeGroupNodes", b"2")[2] == b"2"


def _wait_for_the_end(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while connection.recv(1000):
            pass


def test_no_more_is_kept_than_there_is_room_for() -> None:
    with _served() as (server, ready, counted), _channel(server) as channel:
        for key in range(80):
            ready.put(0, "NodeGroupNodes", str(key).encode(), bytes(1024 * 1024))
        client = GrpcClient(channel)
        for key in (0, 79):
            client.raw("NodeGroupNodes", str(key).encode())
        assert counted.entered == ["NodeGroupNodes"]


def test_a_wheel_that_is_missing_or_of_another_version_is_told_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cagrpc.services.grpc.native")

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    for found, told in (
        (missing, "No module named 'cagrpc_native'"),
        (lambda _: SimpleNamespace(INTERFACE=0), f"(interface 0, not {native.INTERFACE})"),
    ):
        caplog.clear()
        monkeypatch.setattr(importlib, "import_module", found)
        assert type(native.answers_of(native.load(), provider.SERVICE, provider.BY_NODE)) is ReadyAnswers
        assert len(caplog.messages) == 1
        assert told in caplog.messages[0]


def _of_a_large_curve() -> tuple[bytes, bytes]:
    """A certificate that gRPC serves and the front does not."""
    key = ec.generate_private_key(ec.SECP521R1())
    found = x509.load_pem_x509_certificate(_CERTIFICATE)
    made = (
        x509.CertificateBuilder(found.issuer, found.subject, key.public_key(), 1)
        .not_valid_before(found.not_valid_before_utc)
        .not_valid_after(found.not_valid_after_utc)
        .sign(key, hashes.SHA512())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(pem), private


def test_a_certificate_that_the_front_cannot_serve_is_served_by_python(caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = _of_a_large_curve()
    with _served(tls=LiveTls(TlsMaterial(certificate, key))) as (server, _, _):
        credentials = grpc.ssl_channel_credentials(certificate)
        options = [("grpc.ssl_target_name_override", "127.0.0.1")]
        with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options):
            assert "is answered by Python alone: the native front cannot serve the certificates" in caplog.text
            assert server._front is None


def test_a_newer_one_that_it_cannot_serve_is_refused_and_the_old_one_stays() -> None:
    options = _guarded()
    with _served(**options) as (server, _, _):
        with pytest.raises(InvalidInput, match="the native front cannot serve the certificates"):
            options["tls"].replace(TlsMaterial(*_of_a_large_curve(), _AUTHORITY.certificate))
        assert options["tls"].now.certificate == _CERTIFICATE
        with _channel(server, _credentials("cluster-autoscaler")) as channel:
            assert GrpcClient(channel).code("Refresh")[0] == "OK"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::]"])
def test_it_listens_where_grpc_does(host: str) -> None:
    ready = ready_answers()
    server = rpc_server(provider.SERVICE, _Counted().methods, f"{host}:0", ready=ready)
    server.start()
    reached = host if host in {"127.0.0.1", "localhost"} else "127.0.0.1"
    with grpc.insecure_channel(f"{reached}:{server.port}") as channel:
        assert GrpcClient(channel).code("Refresh")[0] == "OK"
    server.stop(0.0)
    assert isinstance(ready, NativeAnswers)


def test_a_directory_that_is_too_long_for_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(Unavailable, match=r"cannot listen on .*too long for the path of a socket; TMPDIR names"):
        rpc_server(provider.SERVICE, _Counted().methods, ready=ready_answers())
    assert not list(long.iterdir())
