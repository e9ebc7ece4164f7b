"""gRPC's standard services: health and reflection. Their streams last as long as clients like, and each holds a thread,
so their number is bounded. Health is decided by whoever creates the server.

grpc_health's own servicer is not used: a watcher that leaves while the status changes locks it up, and with it the
server's one thread that takes calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Event
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

MOST_STREAMS = 2
"""How many streams of one kind a server has at once."""

_LOOK_EVERY_SECONDS = 1.0
_Status = health_pb2.HealthCheckResponse


class _Streams:
    def __init__(self, what: str) -> None:
        self._what = what
        self._free = BoundedSemaphore(MOST_STREAMS)

    @contextmanager
    def one(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Wrap one stream; abort a call beyond the bound."""
        if not self._free.acquire(blocking=False):
            why = f"{MOST_STREAMS} {self._what} streams are open, which is the most; close one and try again"
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
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!a}")
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
