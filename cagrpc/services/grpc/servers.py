"""The two gRPC servers: what they listen on, their TLS, their threads and other limits, and how they stop.

Beside them are gRPC's standard services, health and reflection, whose streams last as long as clients like and hold a
thread each, so that their number is bounded. grpc_health's own servicer is not used: a watcher that leaves while the
status changes locks it up, and with it the server's one thread that takes calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore, Event
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from cagrpc.api.gen import expander_pb2, externalgrpc_pb2
from cagrpc.errors import InvalidInput, Unavailable, shown
from cagrpc.services.grpc import expander, interceptor, provider
from cagrpc.services.grpc.interceptor import CallGuard, ConnectedClients
from cagrpc.services.grpc.native import ConnectionLimits, Endpoint, NativeAnswers, NativeFront
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.status import CallContext, Method, Observe, generic_handler
from cagrpc.services.tls import LiveTls, TlsMaterial

log = logging.getLogger(__name__)

MOST_STREAMS = 2
"""How many streams of one kind a server has at once."""
_LOOK_EVERY_SECONDS = 1.0
_Status = health_pb2.HealthCheckResponse
STOP_SECONDS = 5.0
"""How long running calls may take to finish when the server stops: CA's own timeout."""
_LARGEST_REQUEST_BYTES = {
    # CA repeats every pod in every option: 2,000 pods of 1.5 kB in 11 options are 33 MB.
    expander.SERVICE: 128 * 1024 * 1024,
    # The largest are the nodes that CA deletes at once, a few, with their labels and annotations.
    provider.SERVICE: 16 * 1024 * 1024,
}
_AT_ONCE = {f"/{expander.SERVICE}/BestOptions": 2, f"/{health.SERVICE_NAME}/Check": 2}
"""How many calls are under way at once, by method. CA asks the expander one question at a time, and another one only
after it has given up the first."""
LIMITS = ConnectionLimits()
_IDENTITY_ONLY = 1  # a bit for each of core's compression algorithms, the first of which is none
_SERVICE_OF = {
    provider.SERVICE: externalgrpc_pb2.DESCRIPTOR.services_by_name["CloudProvider"],
    expander.SERVICE: expander_pb2.DESCRIPTOR.services_by_name["Expander"],
}


class Gate:
    """A service's methods, shut until `open`. Thread-safe."""

    def __init__(self, names: tuple[str, ...], why_shut: Callable[[], str]) -> None:
        """`why_shut` gives the message for callers."""
        self._why_shut = why_shut
        self._behind: Mapping[str, Method] | None = None
        self._names = names

    def methods(self) -> dict[str, Method]:
        """Return the methods by name, for `RpcServer`: they raise Unavailable while it is shut."""
        return {name: self._method(name) for name in self._names}

    def open(self, methods: Mapping[str, Method]) -> None:
        """Serve these methods from now on."""
        self._behind = methods

    def _method(self, name: str) -> Method:
        def method(data: bytes, call: CallContext) -> bytes:
            if self._behind is None:
                raise Unavailable(self._why_shut())
            return self._behind[name](data, call)

        return method


class _Streams:
    def __init__(self, what: str) -> None:
        self._what = what
        self._free = BoundedSemaphore(MOST_STREAMS)

    @contextmanager
    def one(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Wrap one stream; abort a call beyond the bound."""
        if not self._free.acquire(blocking=False):
            why = f"{MOST_STREAMS} {self._what} streams are open, the most at once; close one and try again"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        try:
            yield
        finally:
            self._free.release()


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # it has no types
    """Every service, and the whole server (""), is healthy while `why_not_ready` answers an empty text."""

    def __init__(self, services: Collection[str], why_not_ready: Callable[[], str]) -> None:
        self._names = {"", *services}
        self._why_not_ready = why_not_ready
        self._ended = Event()
        self._streams = _Streams("health")

    def end(self) -> None:
        """Report everything as not serving, and end the streams of watchers."""
        self._ended.set()

    def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802 - gRPC's name
        if request.service not in self._names:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {shown(request.service)}")
        return self._status(request.service)

    def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802 - gRPC's name
        told = None
        with self._streams.one(context):
            while context.is_active():
                ended = self._ended.is_set()
                status = self._status(request.service)
                if status != told:
                    yield status
                    told = status
                if ended:
                    return
                self._ended.wait(_LOOK_EVERY_SECONDS)

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in self._names:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        healthy = not self._ended.is_set() and not self._why_not_ready()
        return _Status(status=_Status.SERVING if healthy else _Status.NOT_SERVING)


class Reflection(reflection.ReflectionServicer):
    """Describes the server's services, for tools like grpcurl."""

    def __init__(self, services: Collection[str]) -> None:
        super().__init__(services)
        self._streams = _Streams("reflection")

    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        with self._streams.one(context):
            yield from super().ServerReflectionInfo(request_iterator, context)  # type: ignore[misc] # a generator


def method_names(service: str) -> tuple[str, ...]:
    """Return the names of the methods of one of our two services."""
    return tuple(method.name for method in _SERVICE_OF[service].methods)


class _Configurations:
    """Answers gRPC's question at each handshake: are there other certificates than those that it has?"""

    def __init__(self, tls: LiveTls, *, asks_clients: bool) -> None:
        self._tls = tls
        self._asks_clients = asks_clients
        self._given = tls.now

    def credentials(self) -> grpc.ServerCredentials:
        first = self._configuration(self._given)
        newer: Any = self._newer  # its stubs have no None, which is "no other"
        return grpc.dynamic_ssl_server_credentials(first, newer, require_client_authentication=self._asks_clients)

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        now = self._tls.now
        if now is self._given:
            return None
        self._given = now
        return self._configuration(now)

    def _configuration(self, tls: TlsMaterial) -> grpc.ServerCertificateConfiguration:
        authority = tls.authority if self._asks_clients else None
        return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], authority)


class RpcServer:
    """One gRPC server with one of our services, health and reflection."""

    def __init__(
        self,
        service: str,
        methods: Mapping[str, Method],
        endpoint: Endpoint,
        *,
        observe: Observe = lambda *_: None,
        why_not_ready: Callable[[], str] = lambda: "",
        ready: ReadyAnswers | None = None,
        threads: int = 8,
    ) -> None:
        """Its health is good while `why_not_ready` answers an empty text. Answers that are `ready` are given without
        asking `methods`, where that has a front for it. It does not serve before `start`. Raises Unavailable where it
        cannot listen."""
        if set(methods) != set(method_names(service)):
            raise AssertionError(f"{service} and the methods given for it differ")
        self._service = service
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=service.rpartition(".")[2])
        tls = endpoint.tls
        self._front = self._front_of(ready, endpoint)
        self._guard = CallGuard(
            service,
            client_names=endpoint.client_names,
            clients=ConnectedClients(tls) if tls is not None and endpoint.asks_clients else None,
            front=self._front,
            at_once=_AT_ONCE,
            observe=observe,
        )
        self._server = grpc.server(
            self._executor,
            interceptors=[self._guard],
            maximum_concurrent_rpcs=LIMITS.calls,
            options=[
                # Of a whole request. gRPC inflates a compressed one before it looks at its size; CA compresses none.
                ("grpc.max_receive_message_length", _LARGEST_REQUEST_BYTES[service]),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", LIMITS.calls),
                ("grpc.max_allowed_incoming_connections", LIMITS.connections),
                ("grpc.server_handshake_timeout_ms", int(1000 * LIMITS.handshake_seconds)),
                # A peer that is gone without a word does not count as a connection for ever.
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.so_reuseport", 0),  # two servers on one port are a mistake, not a feature
            ],
        )
        self._server.add_generic_rpc_handlers((generic_handler(service, methods, observe),))
        names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._health = Health(names, why_not_ready)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(Reflection(names), self._server)
        if self._front is None:
            self.port = self._listen(endpoint)
        else:
            self._server.add_insecure_port(self._front.behind)
            self.port = self._front.port
        """The port that it listens on."""
        if tls is None:
            log.warning("%s is served on %s without TLS", service, endpoint.address)

    def _front_of(self, ready: ReadyAnswers | None, endpoint: Endpoint) -> NativeFront | None:
        if not isinstance(ready, NativeAnswers):
            return None
        try:
            return NativeFront(ready, endpoint, LIMITS, interceptor.RECEIVE_SECONDS)
        except InvalidInput as error:
            log.warning("%s is answered by Python alone: %s", self._service, error)
            return None

    def _listen(self, endpoint: Endpoint) -> int:
        try:
            if endpoint.tls is not None:
                credentials = _Configurations(endpoint.tls, asks_clients=endpoint.asks_clients).credentials()
                return int(self._server.add_secure_port(endpoint.address, credentials))
            return int(self._server.add_insecure_port(endpoint.address))
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {endpoint.address}: {error}") from error

    def start(self) -> None:
        self._guard.start()
        self._server.start()
        if self._front is not None:
            self._front.start()

    def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Take no new calls, let running ones finish for at most `grace_seconds`, then end."""
        self._health.end()
        if self._front is not None:
            self._front.drain()
        self._server.stop(grace_seconds).wait()
        if self._front is not None:
            self._front.end()
        self._guard.stop()
        self._executor.shutdown(wait=True)
