"""The servers: which clients are allowed, health, reflection, ports, and stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cagrpc.errors import Unavailable
from cagrpc.services.grpc import expander, provider, servers
from cagrpc.services.grpc.servers import MOST_STREAMS
from cagrpc.services.grpc.status import CallContext, Method
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority
from tests.support.grpc_servers import PATHS, rpc_server
from tests.support.waiting import AMPLE_SECONDS


def _answer(_: bytes, __: CallContext) -> bytes:
    return b""


_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_EXPANDER: dict[str, Method] = {"BestOptions": _answer}
_PROVIDER: dict[str, Method] = {name: _answer for name in PATHS if name != "BestOptions"}


_AUTHORITY, _STRANGER = Authority(), Authority()
_CERTIFICATE, _KEY = _AUTHORITY.issue("server")


def _refresh(channel: grpc.Channel, method: str = "Refresh") -> str:
    try:
        channel.unary_unary(PATHS[method], None, None)(b"", timeout=AMPLE_SECONDS)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def _credentials(authority: Authority | None) -> grpc.ChannelCredentials:
    certificate, key = authority.issue("client") if authority else (None, None)
    return grpc.ssl_channel_credentials(_AUTHORITY.certificate, key, certificate)


@pytest.mark.parametrize(
    ("client", "code"),
    [
        pytest.param(_AUTHORITY, "OK", id="a client of ours"),
        pytest.param(_STRANGER, "UNAVAILABLE", id="a client of another authority"),
        pytest.param(None, "UNAVAILABLE", id="a client without a certificate"),
    ],
)
def test_the_provider_lets_in_only_clients_with_a_certificate_of_its_authority(
    client: Authority | None, code: str
) -> None:
    tls = LiveTls(TlsMaterial(_CERTIFICATE, _KEY, authority=_AUTHORITY.certificate))
    server = rpc_server(provider.SERVICE, _PROVIDER, tls=tls, asks_clients=True)
    server.start()
    with grpc.secure_channel(f"127.0.0.1:{server.port}", _credentials(client)) as channel:
        assert _refresh(channel) == code
    server.stop(0.0)


def test_the_expander_lets_in_clients_without_a_certificate_over_tls_only() -> None:
    server = rpc_server(expander.SERVICE, _EXPANDER, tls=LiveTls(TlsMaterial(_CERTIFICATE, _KEY)))
    server.start()
    with grpc.secure_channel(f"127.0.0.1:{server.port}", _credentials(None)) as channel:
        assert _refresh(channel, "BestOptions") == "OK"
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert _refresh(channel, "BestOptions") == "UNAVAILABLE"
    server.stop(0.0)


def test_a_port_that_is_taken_is_refused() -> None:
    first = rpc_server(expander.SERVICE, _EXPANDER)
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{first.port}"):
        rpc_server(expander.SERVICE, _EXPANDER, f"127.0.0.1:{first.port}")
    first.stop(0.0)


def test_health_follows_readiness_for_the_server_and_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_LOOK_EVERY_SECONDS", 0.01)
    reasons = [""]
    server = rpc_server(expander.SERVICE, _EXPANDER, why_not_ready=lambda: reasons[-1])
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", expander.SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            watch = stub.Watch(request, timeout=AMPLE_SECONDS)
            for why_not, status in (("", _SERVING), ("no journal", _NOT_SERVING), ("", _SERVING)):
                reasons.append(why_not)
                assert stub.Check(request, timeout=AMPLE_SECONDS).status == status
                assert next(watch).status == status
            watch.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=AMPLE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=AMPLE_SECONDS)
        assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()
    server.stop(0.0)


def test_health_watchers_see_the_stop_and_do_not_delay_it() -> None:
    server = rpc_server(expander.SERVICE, _EXPANDER)
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS)
        assert next(watch).status == _SERVING
        server.stop(grace_seconds=30.0)
        assert [answer.status for answer in watch] == [_NOT_SERVING]


def test_reflection_lists_and_describes_the_service() -> None:
    server = rpc_server(provider.SERVICE, _PROVIDER)
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        questions = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=provider.SERVICE),
        ]
        listing, description = stub.ServerReflectionInfo(iter(questions), timeout=AMPLE_SECONDS)
    names = {service.name for service in listing.list_services_response.service}
    assert names == {provider.SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert description.file_descriptor_response.file_descriptor_proto
    server.stop(0.0)


def test_forgotten_streams_leave_threads_for_the_calls_that_matter() -> None:
    server = rpc_server(expander.SERVICE, _EXPANDER, threads=2 * MOST_STREAMS + 1)
    server.start()
    closed = threading.Event()

    def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        closed.wait(AMPLE_SECONDS)

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        health = health_pb2_grpc.HealthStub(channel)
        kinds: list[Callable[[], Any]] = [
            lambda: reflect(questions(), timeout=AMPLE_SECONDS),
            lambda: health.Watch(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS),
        ]
        forgotten = [kind() for kind in kinds for _ in range(MOST_STREAMS)]
        assert all(next(stream) for stream in forgotten)
        for kind in kinds:
            with pytest.raises(grpc.RpcError, match=rf"{MOST_STREAMS} (reflection|health) streams are open") as refused:
                next(kind())
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert _refresh(channel, "BestOptions") == "OK"
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS).status == _SERVING
        closed.set()
        assert list(forgotten[0]) == []
        assert next(kinds[0]())  # there is room again
    server.stop(0.0)


def test_a_running_call_finishes_before_the_server_stops() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(_: bytes, __: CallContext) -> bytes:
        entered.set()
        assert leave.wait(AMPLE_SECONDS)
        return b""

    server = rpc_server(expander.SERVICE, {"BestOptions": slow})
    server.start()
    codes: list[str] = []
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        worker = threading.Thread(target=lambda: codes.append(_refresh(channel, "BestOptions")))
        worker.start()
        assert entered.wait(AMPLE_SECONDS)
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        leave.set()
        worker.join()
        stopper.join()
    assert codes == ["OK"]


@pytest.mark.parametrize("timeout", [None, 1e7], ids=["no deadline", "months"])
def test_methods_learn_of_the_deadline_where_there_is_one(timeout: float | None) -> None:
    left: list[float | None] = []

    def note(_: bytes, call: CallContext) -> bytes:
        left.append(call.seconds_left)
        return b""

    server = rpc_server(provider.SERVICE, {**_PROVIDER, "Refresh": note})
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        channel.unary_unary(PATHS["Refresh"], None, None)(b"", timeout=timeout)
    server.stop(0)
    assert left == [timeout if timeout is None else pytest.approx(timeout, rel=0.01)]


def test_a_service_with_a_method_missing_is_not_served() -> None:
    with pytest.raises(AssertionError, match="methods given for it differ"):
        rpc_server(provider.SERVICE, _EXPANDER)
