"""The limits of a gRPC server, over real sockets: how large and how many calls may be, how long a request may take to
arrive, and which certificates are accepted."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cagrpc.services.grpc import expander, interceptor, provider, servers
from cagrpc.services.grpc.native import ConnectionLimits
from cagrpc.services.grpc.servers import RpcServer
from cagrpc.services.grpc.status import CallContext, Method
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority
from tests.support.grpc_servers import PATHS, GrpcClient, rpc_server
from tests.support.waiting import AMPLE_SECONDS

_CHECK = "/grpc.health.v1.Health/Check"


def _answer(_: bytes, __: CallContext) -> bytes:
    return b""


_METHODS: dict[str, dict[str, Method]] = {
    expander.SERVICE: {"BestOptions": _answer},
    provider.SERVICE: {name: _answer for name in PATHS if name != "BestOptions"},
}
_A_METHOD = {expander.SERVICE: "BestOptions", provider.SERVICE: "Refresh"}
_BOTH = pytest.mark.parametrize("service", [expander.SERVICE, provider.SERVICE])


@contextmanager
def _served(service: str, methods: Mapping[str, Method] | None = None, **options: Any) -> Iterator[RpcServer]:
    server = rpc_server(service, methods or _METHODS[service], **options)
    server.start()
    try:
        yield server
    finally:
        server.stop(0.0)


def _channel(server: RpcServer) -> grpc.Channel:
    """With a connection of its own."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options)


def _code(channel: grpc.Channel, method: str) -> str:
    return GrpcClient(channel).code(method)[0]


@_BOTH
def test_a_request_has_a_largest_size(service: str) -> None:
    most = servers._LARGEST_REQUEST_BYTES[service]
    with _served(service) as server, _channel(server) as channel:
        call = GrpcClient(channel)
        assert call.raw(_A_METHOD[service], bytes(most))[0] == "OK"
        code, details, _ = call.raw(_A_METHOD[service], bytes(most + 1))
    assert (code, "larger than max" in details) == ("RESOURCE_EXHAUSTED", True)


@_BOTH
@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_request_is_refused_before_it_is_inflated(service: str, compression: grpc.Compression) -> None:
    """gRPC inflates it whole, and only then looks at how large it is."""
    with _served(service) as server, _channel(server) as channel:
        call = channel.unary_unary(PATHS[_A_METHOD[service]], None, None)
        with pytest.raises(grpc.RpcError, match=r"Compression algorithm '\w+' is disabled") as refused:
            call(bytes(1000), compression=compression, timeout=AMPLE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert call(bytes(1000), timeout=AMPLE_SECONDS) == b""


def test_one_best_options_too_many_is_refused_at_once_and_counted() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()
    seen: list[tuple[str, str]] = []

    def slow(_: bytes, __: CallContext) -> bytes:
        entered.release()
        assert leave.wait(AMPLE_SECONDS)
        return b""

    most = servers._AT_ONCE[PATHS["BestOptions"]]
    observe = lambda method, code, *_: seen.append((method, code))  # noqa: E731
    with _served(expander.SERVICE, {"BestOptions": slow}, observe=observe) as server, _channel(server) as channel:
        ask = channel.unary_unary(PATHS["BestOptions"], None, None)
        running = [ask.future(b"", timeout=AMPLE_SECONDS) for _ in range(most)]
        assert all(entered.acquire(timeout=AMPLE_SECONDS) for _ in range(most))
        assert GrpcClient(channel).code("BestOptions") == (
            "RESOURCE_EXHAUSTED", f"BestOptions: {most} calls are under way, the most at once; try again",
        )  # fmt: skip
        assert seen == [("BestOptions", "RESOURCE_EXHAUSTED")]
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS).status  # other calls go on
        leave.set()
        assert [each.result() for each in running] == [b""] * most
        assert _code(channel, "BestOptions") == "OK"


def _silent(channel: grpc.Channel, path: str, until: threading.Event) -> Any:
    """A call that is begun, and never says what it wants."""

    def nothing() -> Iterator[bytes]:
        until.wait(AMPLE_SECONDS)
        yield from ()

    return channel.stream_unary(path, None, None).future(nothing(), timeout=AMPLE_SECONDS)


@pytest.mark.parametrize(
    ("service", "path"),
    [
        (expander.SERVICE, PATHS["BestOptions"]),
        (expander.SERVICE, _CHECK),
        (expander.SERVICE, "/grpc.health.v1.Health/Watch"),
        (provider.SERVICE, PATHS["Refresh"]),
    ],
)
def test_callers_who_send_no_request_do_not_hold_the_threads(
    service: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "RECEIVE_SECONDS", 0.2)
    monkeypatch.setattr(interceptor, "_LOOK_EVERY_SECONDS", 0.02)
    until = threading.Event()
    with _served(service, threads=4) as server, _channel(server) as strange, _channel(server) as channel:
        silent = [_silent(strange, path, until) for _ in range(4)]
        codes = {each.code() for each in silent}  # waits for their ends, which they do nothing for
        assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert grpc.StatusCode.CANCELLED in codes
        # The client knows of the end a moment before the thread that waited does.
        assert any(_code(channel, _A_METHOD[service]) == "OK" for _ in range(1000))
        until.set()


def test_a_call_that_ends_without_a_request_is_refused() -> None:
    with _served(provider.SERVICE) as server, _channel(server) as channel:
        call = channel.stream_unary(PATHS["Refresh"], None, None)
        with pytest.raises(grpc.RpcError, match="Refresh: there is no request") as refused:
            call(iter(()), timeout=AMPLE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@_BOTH
def test_calls_and_connections_are_counted(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LIMITS", ConnectionLimits(connections=3, calls=2))
    until = threading.Event()

    def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        until.wait(AMPLE_SECONDS)

    with _served(service) as server, _channel(server) as first, _channel(server) as second:
        reflect = reflection_pb2_grpc.ServerReflectionStub(first).ServerReflectionInfo
        streams = [reflect(questions(), timeout=AMPLE_SECONDS) for _ in range(2)]
        assert all(next(stream) for stream in streams)
        code, details, _ = GrpcClient(second).raw(_A_METHOD[service], b"")
        assert (code, details) == ("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!")
        with socket.create_connection(("127.0.0.1", server.port)) as third:
            assert third.recv(1)  # it is greeted
            with socket.create_connection(("127.0.0.1", server.port)) as fourth:
                _wait_for_the_end_of_one(third, fourth)  # of the new one, or of one that had said nothing
        until.set()


def _wait_for_the_end_of_one(*connections: socket.socket) -> None:
    while True:
        readable, _, _ = select.select(connections, [], [], AMPLE_SECONDS)
        assert readable
        if not all(each.recv(1000) for each in readable):
            return


_AUTHORITY = Authority()
_CERTIFICATE, _KEY = _AUTHORITY.issue("server")
_SPIFFE = "spiffe://cluster.local/ns/kube-system/sa/cluster-autoscaler"


@contextmanager
def _client(server: RpcServer, name: str, *alternatives: x509.GeneralName) -> Iterator[grpc.Channel]:
    certificate, key = _AUTHORITY.issue(name, *alternatives)
    credentials = grpc.ssl_channel_credentials(_AUTHORITY.certificate, key, certificate)
    with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
        yield channel


def _for(*names: str) -> dict[str, Any]:
    tls = LiveTls(TlsMaterial(_CERTIFICATE, _KEY, authority=_AUTHORITY.certificate))
    return {"tls": tls, "asks_clients": True, "client_names": names}


@pytest.mark.parametrize(
    ("allowed", "name", "alternatives", "code"),
    [
        pytest.param((), "anybody", (), "OK", id="without a list any certificate will do"),
        pytest.param(("ca", "it"), "it", (), "OK", id="common name"),
        pytest.param(("it.example",), "x", (x509.DNSName("it.example"),), "OK", id="DNS name"),
        pytest.param((_SPIFFE,), "", (x509.UniformResourceIdentifier(_SPIFFE),), "OK", id="URI"),
        pytest.param(("it",), "that", (x509.DNSName("it.example"),), "PERMISSION_DENIED", id="another"),
        pytest.param(("it",), "it.example", (), "PERMISSION_DENIED", id="a longer one"),
        pytest.param(("it@b",), "x", (x509.RFC822Name("it@b"),), "PERMISSION_DENIED", id="a name of another kind"),
        pytest.param(("it",), "", (), "PERMISSION_DENIED", id="no name"),
    ],
)
def test_the_service_is_for_clients_with_a_name_of_the_list(
    allowed: tuple[str, ...], name: str, alternatives: tuple[x509.GeneralName, ...], code: str
) -> None:
    with _served(provider.SERVICE, **_for(*allowed)) as server, _client(server, name, *alternatives) as channel:
        assert _code(channel, "Refresh") == code
        assert _code(channel, "NodeGroups") == code


def test_a_refused_client_learns_why_and_the_log_has_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "cagrpc.services.grpc.interceptor")
    with _served(provider.SERVICE, **_for("cluster-autoscaler")) as server, _client(server, "prometheus") as channel:
        why = "the client's certificate is for prometheus, which is not among tls.client_names"
        for _ in range(3):
            code, details = GrpcClient(channel).code("NodeGroupIncreaseSize")
            assert (code, details) == ("PERMISSION_DENIED", f"NodeGroupIncreaseSize: {why}")
        # What says and changes nothing of the fleet is for whoever got so far.
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS).status
            == health_pb2.HealthCheckResponse.SERVING
        )
    reported = "refused to a client with a certificate for prometheus; allowed: cluster-autoscaler"
    assert caplog.messages == [f"{PATHS['NodeGroupIncreaseSize']}: {reported}"]
