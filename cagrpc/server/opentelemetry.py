"""Spans by OpenTelemetry's SDK, sent by OTLP over gRPC. The one module that imports them: an optional dependency
(`pip install 'cagrpc[tracing]'`), imported where the configuration has `tracing` on. Where to and how much is said by
the standard's own environment variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME ...).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cagrpc.errors import InvalidInput, in_words
from cagrpc.runtime import tracing
from cagrpc.runtime.clock import EpochClock, SteadyClock
from cagrpc.runtime.log_once import LogOnce

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long the last spans may take to be sent when the process ends."""
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_NANOSECONDS = 1_000_000_000
_LONGEST_ERROR = 1000


class _Ids(RandomIdGenerator):
    """Ids of new spans: random ones, but where the span to be made has its own."""

    def __init__(self) -> None:
        self._next = threading.local()

    @contextmanager
    def given(self, trace_id: int, span_id: int) -> Iterator[None]:
        self._next.ids = (trace_id, span_id)
        try:
            yield
        finally:
            self._next.ids = None

    def generate_trace_id(self) -> int:
        ids = getattr(self._next, "ids", None)
        return super().generate_trace_id() if ids is None else int(ids[0])

    def generate_span_id(self) -> int:
        ids = getattr(self._next, "ids", None)
        return super().generate_span_id() if ids is None else int(ids[1])


class _Span:
    """A `tracing.Span` of OpenTelemetry."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, attributes: tracing.Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, error: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, error[:_LONGEST_ERROR]))


class OpenTelemetry:
    """`tracing.Tracer`. Its times are of one steady clock, as the journal's are."""

    def __init__(self, processor: SpanProcessor, *, instance: str, clock: EpochClock | None = None) -> None:
        """`processor` takes the spans; `instance` names this process."""
        self._clock = clock or SteadyClock()
        self._ids = _Ids()
        own = Resource({SERVICE_NAME: "cagrpc", SERVICE_VERSION: version("cagrpc"), SERVICE_INSTANCE_ID: instance})
        self._provider = TracerProvider(
            id_generator=self._ids, resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cagrpc")
        self._propagator = TraceContextTextMapPropagator()

    def span(
        self,
        name: str,
        attributes: tracing.Attributes,
        *,
        headers: Mapping[str, str] | None = None,
        of: tracing.Subject | None = None,
        began_at_seconds: float | None = None,
    ) -> AbstractContextManager[tracing.Span]:
        return self._run(name, attributes, headers, of, self._clock() if began_at_seconds is None else began_at_seconds)

    @contextmanager
    def _run(
        self,
        name: str,
        attributes: tracing.Attributes,
        headers: Mapping[str, str] | None,
        of: tracing.Subject | None,
        began_at: float,
    ) -> Iterator[tracing.Span]:
        if of is not None:
            with self._ids.given(of.trace_id, of.span_id(of.kind)):
                span = self._tracer.start_span(
                    name, contexts.Context(), attributes=attributes, start_time=_nanoseconds(began_at)
                )
        else:
            received = headers is not None
            span = self._tracer.start_span(
                name,
                self._propagator.extract(headers, contexts.Context()) if headers is not None else None,
                SpanKind.SERVER if received else SpanKind.INTERNAL,
                attributes,
                start_time=_nanoseconds(began_at),
            )
        token = contexts.attach(trace.set_span_in_context(span))
        found = _Span(span)
        try:
            yield found
        except BaseException as error:
            found.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            contexts.detach(token)
            span.end(_nanoseconds(max(self._clock(), began_at)))

    def child(self, name: str, began_at_seconds: float, ended_at_seconds: float) -> None:
        span = self._tracer.start_span(name, start_time=_nanoseconds(began_at_seconds))
        span.end(_nanoseconds(max(began_at_seconds, ended_at_seconds)))

    def past(self, span: tracing.Past) -> None:
        of, whole = span.of, span.name == span.of.kind
        context = contexts.Context()
        if not whole:
            # The span of the whole is made once all is over, perhaps by another process; its ids are known.
            context = trace.set_span_in_context(NonRecordingSpan(self._context(of)), context)
        links = [Link(self._context(each)) for each in span.links]
        began_at = span.began_at_seconds
        with self._ids.given(of.trace_id, of.span_id(span.name)):
            made = self._tracer.start_span(
                span.name, context, attributes=span.attributes, links=links, start_time=_nanoseconds(began_at)
            )
        if span.error:
            _Span(made).fail(span.error)
        made.end(_nanoseconds(max(began_at, span.ended_at_seconds)))

    def _context(self, of: tracing.Subject) -> SpanContext:
        """Return the context of the span of the whole, sampled as it will be or was: by its trace's id."""
        decision = self._provider.sampler.should_sample(None, of.trace_id, of.kind).decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(of.trace_id, of.span_id(of.kind), is_remote=True, trace_flags=flags)

    def current(self) -> tuple[int, int] | None:
        context = trace.get_current_span().get_span_context()
        return (context.trace_id, context.span_id) if context.is_valid else None

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Send what is left, for at most so long. What is left then is lost."""
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            log.warning("the last spans could not be sent within %g s", seconds)


def to_collector(instance: str) -> OpenTelemetry:
    """Return a tracer that sends spans as the environment says. Raises InvalidInput where that says what cannot be."""
    protocol, name = next(((os.environ[each], each) for each in _PROTOCOLS if os.environ.get(each)), ("grpc", ""))
    if protocol != "grpc":
        raise InvalidInput(f"{name}: found {protocol}, expected grpc, the one protocol that is spoken (port 4317)")
    try:
        exporter = _Reported(OTLPSpanExporter())
        return OpenTelemetry(BatchSpanProcessor(exporter), instance=instance)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"tracing: what OTEL_* say cannot be used: {in_words(error)}") from error


class _Reported(SpanExporter):
    """Says once that spans cannot be sent, and once that they can again: the exporter says so at every try."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._reported = LogOnce()
        self._why = _Why()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._reported.over():
                log.info("spans are sent again")
        elif self._reported.is_new("failed"):
            log.warning("spans are not sent; those that do not fit into the queue are lost: %s", self._why.latest)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Why(logging.Handler):
    """Takes what OpenTelemetry logs, of which the latest is kept; only with `debug` it is logged as well."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = "the log of opentelemetry has the reason"
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = logging.root.isEnabledFor(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        self.latest = record.getMessage()[:_LONGEST_ERROR]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
