"""A tracer that keeps spans in memory, and a collector that receives them by OTLP over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cagrpc.runtime import tracing
from cagrpc.server.opentelemetry import OpenTelemetry
from tests.support.fleet import FakeClock


class Spans:
    """What was traced so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def of(self, subject: tracing.Subject) -> list[ReadableSpan]:
        """Return the spans of its trace, by when they began."""
        found = [each for each in self.all() if _context(each).trace_id == subject.trace_id]
        return sorted(found, key=lambda each: (each.start_time or 0, each.end_time or 0))

    def seconds(self, subject: tracing.Subject) -> dict[str, tuple[float, float]]:
        """Return when each span of its trace began and ended, by name."""
        return {each.name: ((each.start_time or 0) / 1e9, (each.end_time or 0) / 1e9) for each in self.of(subject)}

    def one(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self.all() if each.name == name]
        return found


def _context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


@contextmanager
def traced(clock: FakeClock) -> Iterator[Spans]:
    """Trace this process by a clock."""
    exporter = InMemorySpanExporter()
    tracing.use(OpenTelemetry(SimpleSpanProcessor(exporter), instance="test", clock=clock))
    try:
        yield Spans(exporter)
    finally:
        tracing.use(None)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Receives spans on a port of this machine. Thread-safe."""

    def __init__(self) -> None:
        self._received: list[Any] = []
        self._resources: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server  # it has no types
        add(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that is to send its spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
        }

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - OTLP's name
        with self._lock:
            for each in request.resource_spans:
                self._resources.append({a.key: a.value.string_value for a in each.resource.attributes})
                self._received += [span for scope in each.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[Any]:
        with self._lock:
            return list(self._received)

    def resources(self) -> list[dict[str, str]]:
        with self._lock:
            return list(self._resources)

    def of(self, subject: tracing.Subject) -> dict[str, Any]:
        """Return the spans of a subject's trace, by name."""
        return {each.name: each for each in self.spans() if int.from_bytes(each.trace_id, "big") == subject.trace_id}

    def stop(self) -> None:
        self._server.stop(0).wait()


def attributes_of(span: Any) -> dict[str, Any]:
    """Return the attributes of a received span."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
