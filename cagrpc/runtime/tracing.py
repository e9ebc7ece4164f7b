"""What is under way, told to whoever traces it: spans, and the ids that log lines and spans share. Without a tracer,
which only `cagrpc.server.opentelemetry` makes, every call here does next to nothing; no library is imported here.

An increment and a planning round have one trace each, whose id follows from theirs: so each process that has the
increment goes on with the same trace, and who knows an id finds it. See docs/decisions/0030.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

Value = str | int | float | bool
Attributes = Mapping[str, Value]

_TRACE_BYTES, _SPAN_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Subject:
    """What has a trace of its own."""

    kind: str
    """`increment` or `plan`: also the name of the field in log lines, and of the attribute `cagrpc.<kind>`."""
    id: str

    @property
    def trace_id(self) -> int:
        return self._derived("trace", _TRACE_BYTES)

    def span_id(self, name: str) -> int:
        """Return the id of its span of this name; that of the whole has the name of its kind."""
        return self._derived(name, _SPAN_BYTES)

    @property
    def attributes(self) -> dict[str, Value]:
        return {f"cagrpc.{self.kind}": self.id}

    def _derived(self, what: str, size: int) -> int:
        digest = hashlib.sha256(f"cagrpc/{self.kind}/{self.id}/{what}".encode()).digest()
        return int.from_bytes(digest[:size], "big") or 1  # zero is no id


def increment(increment_id: str) -> Subject:
    return Subject("increment", increment_id)


def plan(plan_id: str) -> Subject:
    return Subject("plan", plan_id)


@dataclass(frozen=True, slots=True)
class Past:
    """A span of something that is over, in the trace of its subject. Times are seconds since the epoch."""

    of: Subject
    name: str
    began_at_seconds: float
    ended_at_seconds: float
    attributes: Attributes
    links: Sequence[Subject] = ()
    error: str = ""
    """Why it failed; empty where it did not."""


class Span(Protocol):
    """A span under way."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        ...

    def fail(self, error: str) -> None:
        """Mark it as failed."""
        ...


class Tracer(Protocol):
    """Makes spans."""

    def span(
        self,
        name: str,
        attributes: Attributes,
        *,
        headers: Mapping[str, str] | None = None,
        of: Subject | None = None,
        began_at_seconds: float | None = None,
    ) -> AbstractContextManager[Span]:
        """Return a span within the current one; with `headers` one of a call that was received, within its caller's
        (`traceparent`) where there is one; with `of` the first of a subject's trace. It begins now, or did before."""
        ...

    def child(self, name: str, began_at_seconds: float, ended_at_seconds: float) -> None:
        """Add a span that is over to the current one."""
        ...

    def past(self, span: Past) -> None:
        """Add a span that is over to its subject's trace."""
        ...

    def current(self) -> tuple[int, int] | None:
        """Return the ids of the current trace and span."""
        ...


class _NoSpan:
    def set(self, attributes: Attributes) -> None:
        pass

    def fail(self, error: str) -> None:
        pass


NOTHING = nullcontext[Span](_NoSpan())
"""The span of what is not traced."""
_subjects: ContextVar[Mapping[str, str]] = ContextVar("subjects", default=MappingProxyType({}))
"""What this thread is about: ids by kind."""
_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """Trace from now on, in the whole process; None ends it."""
    global _tracer  # noqa: PLW0603 - one of a process, as the root of `logging` is
    _tracer = tracer


def on() -> bool:
    """Return whether anything is traced."""
    return _tracer is not None


def span(
    name: str, attributes: Attributes | None = None, *, headers: Mapping[str, str] | None = None
) -> AbstractContextManager[Span]:
    """Return a span to run what is to be traced in."""
    tracer = _tracer  # another thread may end it meanwhile
    return NOTHING if tracer is None else tracer.span(name, attributes or {}, headers=headers)


@contextmanager
def about(subject: Subject, began_at_seconds: float | None = None) -> Iterator[Span]:
    """Run what is all about this subject: log lines of this thread carry its id, and a span with its kind's name begins
    its trace."""
    before, tracer = _subjects.set({**_subjects.get(), subject.kind: subject.id}), _tracer
    try:
        if tracer is None:
            yield NOTHING.enter_result
            return
        with tracer.span(subject.kind, subject.attributes, of=subject, began_at_seconds=began_at_seconds) as found:
            yield found
    finally:
        _subjects.reset(before)


def child(name: str, began_at_seconds: float, ended_at_seconds: float) -> None:
    """Add a span that is over to the current one. Times are seconds since the epoch."""
    if (tracer := _tracer) is not None:
        tracer.child(name, began_at_seconds, ended_at_seconds)


def past(span: Past) -> None:
    """Add a span that is over to its subject's trace."""
    if (tracer := _tracer) is not None:
        tracer.past(span)


def fields(line: Mapping[str, object]) -> dict[str, str]:
    """Return what a log line of these fields is to have, too: the ids of what its thread is about, and those of its
    trace, as W3C writes them: of the increment that it is about, or else of the span in which it was logged."""
    found = {kind: value for kind, value in _subjects.get().items() if kind not in line}
    if (tracer := _tracer) is None:
        return found
    known = line.get("increment")
    if isinstance(known, str) and known:
        return {**found, **_trace_of(known)}
    current = tracer.current()
    if current is None:
        return found
    return {**found, "trace_id": f"{current[0]:032x}", "span_id": f"{current[1]:016x}"}


def _trace_of(increment_id: str) -> dict[str, str]:
    return {"trace_id": f"{increment(increment_id).trace_id:032x}"}


def exemplar(increment_id: str) -> dict[str, str]:
    """Return the labels of an exemplar of a metric: the increment, and its trace where there is one."""
    return {"increment_id": increment_id, **(_trace_of(increment_id) if on() else {})}
