"""Errors to gRPC codes, once; and gRPC methods from plain functions on bytes.

Generated service code is not used: it would turn unreadable requests into gRPC's own INTERNAL, while here they are
INVALID_ARGUMENT with the method and the message named, and ready answers go out as the bytes they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from cagrpc import errors
from cagrpc.api.encoding.messages import parse
from cagrpc.runtime import tracing

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[errors.CagrpcError], grpc.StatusCode], ...] = (
    (errors.InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.OutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.LimitExceeded, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Conflict, grpc.StatusCode.ABORTED),
    (errors.OutOfCapacity, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.QuotaExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.OrderRefused, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.DeadlineExpired, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.NotImplementedByDesign, grpc.StatusCode.UNIMPLEMENTED),
)

_TRACED = frozenset(
    ("BestOptions", "NodeGroupIncreaseSize", "NodeGroupDeleteNodes", "NodeGroupDecreaseTargetSize", "Refresh")
)
_TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""

_LONGEST_DETAILS_BYTES = 2000  # details travel in a header, which is limited to 8 KiB


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call's context beside its request."""

    method: str
    seconds_left: float | None = None
    """The time until the deadline, 0 or less where it has passed; None without a deadline."""
    increments: list[str] = field(default_factory=list)
    """Ids of what the call has made; the method adds them."""

    def check_not_expired(self) -> None:
        """Raise DeadlineExpired where the deadline has passed: nothing is to be started for it."""
        if self.seconds_left is not None and self.seconds_left <= 0:
            raise errors.DeadlineExpired("the call's deadline had passed before it was begun; nothing was changed")


Method = Callable[[bytes, CallContext], bytes]
"""A method on serialised messages; raises CagrpcError for anything but OK."""

Observe = Callable[[str, str, float, Sequence[str]], None]
"""Called with every finished call: method, gRPC code, seconds, ids of the increments that it made."""


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the gRPC code and details of an error; INTERNAL, without internals, for an unexpected one."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, _cut(str(error))
    return grpc.StatusCode.INTERNAL, f"unexpected {type(error).__name__}; the server's log has the traceback"


def with_name(method: str, details: str) -> str:
    """Return a status's details as a client gets them."""
    return f"{method}: {details}"


def _cut(details: str) -> str:
    """Cut details to the header's limit: gRPC encodes each byte that is no printable ASCII as three."""
    length = 0
    for index, character in enumerate(details):
        length += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if length > _LONGEST_DETAILS_BYTES:
            return details[:index]
    return details


def on_messages(request_type: type[M], function: Callable[[M, CallContext], Message | bytes]) -> Method:
    """Return `function` on messages as a method on bytes."""

    def method(data: bytes, call: CallContext) -> bytes:
        answer = function(parse(request_type, data), call)
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    return method


def generic_handler(
    service: str, methods: Mapping[str, Method], observe: Observe
) -> grpc.GenericRpcHandler[bytes, bytes]:
    """Return all methods of one service for `grpc.Server.add_generic_rpc_handlers`."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_served(service, name, m, observe)) for name, m in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)


def _served(
    service: str, name: str, method: Method, observe: Observe
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def serve(data: bytes, context: grpc.ServicerContext) -> bytes:
        started, call = time.perf_counter(), CallContext(name, _seconds_left(context))
        with _traced(service, name, context) as span:
            try:
                answer = method(data, call)
                code, details = grpc.StatusCode.OK, ""
            except Exception as error:  # this is where every error becomes a status
                code, details = status_of(error)
                if code is grpc.StatusCode.INTERNAL:
                    log.exception("%s failed unexpectedly", name)
                span.fail(details)
            span.set({"rpc.grpc.status_code": code.value[0]})
        observe(name, code.name, time.perf_counter() - started, call.increments)
        if code is not grpc.StatusCode.OK:
            abort(context, code, with_name(name, details))
        return answer

    return serve


def _traced(service: str, name: str, context: grpc.ServicerContext) -> AbstractContextManager[tracing.Span]:
    """Return the span of a call that decides or changes something. One that only reads, as CA does thousands of times a
    loop, has one within its caller's trace alone."""
    if not tracing.on():
        return tracing.NOTHING
    headers = {str(key): str(value) for key, value in context.invocation_metadata() if key in _TRACE_HEADERS}
    if not headers and name not in _TRACED:
        return tracing.NOTHING
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    return tracing.span(f"{service}/{name}", attributes, headers=headers)


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, details: str) -> NoReturn:
    """End a call with an error."""
    context.abort(code, details)
    raise AssertionError("grpc's abort always raises")


def _seconds_left(context: grpc.ServicerContext) -> float | None:
    if not context.is_active():
        return 0.0
    # Without a deadline gRPC says None, or how long it is until the end of its time, which nothing can wait for.
    left = context.time_remaining()
    return None if left is None or left > threading.TIMEOUT_MAX else float(left)
