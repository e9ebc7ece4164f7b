"""Servers on real sockets over a real fleet, and a client with raw gRPC messages, for the tests of services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
import pytest
from google.protobuf.message import Message

from cagrpc.api.gen import expander_pb2, externalgrpc_pb2, kubernetes_pb2
from cagrpc.cluster.shortages import Shortages
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.fleet.fleet import Fleet
from cagrpc.runtime.clock import monotonic
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc import expander, native, provider
from cagrpc.services.grpc.expander import Expander, ExpanderSettings, Rank, Timing
from cagrpc.services.grpc.native import Endpoint
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.servers import RpcServer
from cagrpc.services.grpc.status import Method
from solver.planning.rank import rank
from tests.support.controlplane.binaries import required
from tests.support.fleet import FleetHarness
from tests.support.waiting import AMPLE_SECONDS

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for descriptor in (externalgrpc_pb2.DESCRIPTOR, expander_pb2.DESCRIPTOR)
    for service in descriptor.services_by_name.values()
    for method in service.methods
}
PATHS = {path.rpartition("/")[2]: path for path in METHODS}
FRONTS = ("python", pytest.param("native", marks=pytest.mark.cluster))
"""What listens: the Python server itself, or the native front before it, which takes cargo."""


@contextmanager
def fronted(by: str) -> Iterator[None]:
    """Let this listen for servers made meanwhile; skip the test where it is not built."""
    if by == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "load", lambda: None)
            yield
        return
    if native.load() is None:
        missing = "cagrpc-native is not built here: `make native`, which takes cargo"
        (pytest.fail if required() else pytest.skip)(missing)
    yield


def ready_answers(service: str = provider.SERVICE) -> ReadyAnswers:
    """For a server, and for what makes its answers."""
    return native.answers_of(native.load(), service, provider.BY_NODE)


def rpc_server(service: str, methods: Mapping[str, Method], address: str = "127.0.0.1:0", **options: Any) -> RpcServer:
    """The options are those of `RpcServer` and of its `Endpoint`."""
    of_endpoint = {name: options.pop(name) for name in ("tls", "asks_clients", "client_names") if name in options}
    endpoint = Endpoint(address, **{"tls": None, **of_endpoint})
    return RpcServer(service, methods, endpoint, **{"ready": ready_answers(service), **options})


class GrpcClient:
    """Calls methods by their short name, with messages or raw bytes, and returns codes instead of raising."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def raw(self, method: str, request: bytes, timeout: float | None = AMPLE_SECONDS) -> tuple[str, str, bytes]:
        """Return code, details and response."""
        try:
            response = self._channel.unary_unary(PATHS[method], None, None)(request, timeout=timeout)
        except grpc.RpcError as error:
            return error.code().name, error.details() or "", b""  # what a channel raises is a Call as well
        return "OK", "", response

    def code(
        self, method: str, request: Message | None = None, timeout: float | None = AMPLE_SECONDS
    ) -> tuple[str, str]:
        data = request.SerializeToString() if request is not None else b""
        return self.raw(method, data, timeout)[:2]

    def ok(self, method: str, request: Message | None = None, timeout: float | None = AMPLE_SECONDS) -> Any:
        """Return the response message; fail the test for any code but OK."""
        data = request.SerializeToString() if request is not None else b""
        code, details, response = self.raw(method, data, timeout)
        assert code == "OK", f"{method}: {code} {details}"
        return METHODS[PATHS[method]].output_type._concrete_class.FromString(response)


@dataclass
class House:
    """A fleet, its two services and a client of both; a context manager, so that no server outlives its test."""

    harness: FleetHarness
    gpu_label: str = "cagrpc.io/gpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    rank: Rank = rank
    timing: Timing | None = None
    refusal_wait_seconds: float = 2.0
    expander_options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Any = None

    def __enter__(self) -> Self:
        ready = ready_answers()
        self.harness.options = {**self.harness.options, "published": ready.advance}
        self.fleet: Fleet = self.harness.fleet()
        self.decisions = DecisionLog(self.harness.clock)
        self.expander = Expander(
            self.fleet,
            self.rank,
            self.decisions,
            ExpanderSettings(timing=self.timing or Timing(), **self.expander_options),
            self.cluster and AssumeCache(self.cluster, Shortages(600.0, self.harness.clock), monotonic),
            clock=self.harness.clock,
        )
        self.provider = Provider(
            self.fleet,
            options=self.options,
            gpu_label=self.gpu_label,
            take_choice=self.decisions.take_choice,
            refusal_wait_seconds=self.refusal_wait_seconds,
            ready=ready,
        )
        self._servers = [
            rpc_server(provider.SERVICE, self.provider.methods(), ready=ready),
            rpc_server(expander.SERVICE, self.expander.methods()),
        ]
        for server in self._servers:
            server.start()
        self._channels = [_channel(server.port) for server in self._servers]
        self.ca, self.advice = (GrpcClient(channel) for channel in self._channels)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            channel.close()
        for server in self._servers:
            server.stop(grace_seconds=0.0)
        self.expander.close()
        self.fleet.close()


def _channel(port: int) -> grpc.Channel:
    options = [("grpc.max_receive_message_length", 4 * 1024 * 1024)]  # as CA's provider client
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


@contextmanager
def serving(service: str, methods: Mapping[str, Method], threads: int = 8) -> Iterator[GrpcClient]:
    """Serve the methods of one service on a socket of their own."""
    server = rpc_server(service, methods, threads=threads)
    server.start()
    with _channel(server.port) as channel:
        yield GrpcClient(channel)
    server.stop(grace_seconds=0.0)


def pod(
    name: str, cpu: str = "1", *, namespace: str = "ns", priority: int = 0, scheduler: str = "", **annotations: str
) -> bytes:
    message = kubernetes_pb2.Pod()
    message.metadata.name, message.metadata.namespace, message.metadata.uid = name, namespace, f"uid-{name}"
    message.metadata.annotations.update(annotations)
    message.spec.containers.add().resources.requests["cpu"].string = cpu
    message.spec.priority = priority
    message.spec.schedulerName = scheduler
    return message.SerializeToString()


def option(group: str, count: int, pods: Sequence[bytes]) -> expander_pb2.Option:
    return expander_pb2.Option(nodeGroupId=group, nodeCount=count, podBytes=pods)


def asking(*options: expander_pb2.Option) -> expander_pb2.BestOptionsRequest:
    return expander_pb2.BestOptionsRequest(options=options)


def chosen(response: expander_pb2.BestOptionsResponse) -> str | None:
    """Return the id of the one option answered; None for a veto."""
    ids = [o.nodeGroupId for o in response.options]
    assert len(ids) <= 1
    return ids[0] if ids else None
