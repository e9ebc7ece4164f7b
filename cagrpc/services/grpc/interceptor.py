"""Checks of every gRPC call before its service: the client's certificate (its name, its authority), the number of
concurrent calls, and that the request arrives in time. A client that is refused, or sends nothing, costs next to
nothing.

gRPC receives a request on the thread that will answer it, with no time limit of its own. So methods with one request
are served here as if they had a stream of them (on the wire it is the same): the checks come first, the request is
received second.

gRPC checks a client's certificate at the handshake only, and its connections last for days: whether a client that is
connected may still call after the authority of clients' certificates was replaced is decided here, too.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Any, NoReturn

import grpc
from cryptography import x509
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from cagrpc.runtime.log_once import LogOnce
from cagrpc.services.grpc.native import NativeFront
from cagrpc.services.grpc.status import Observe, abort
from cagrpc.services.tls import LiveTls

log = logging.getLogger(__name__)

_MOST_KNOWN = 1000

# What a certificate may be used for was checked at the handshake, as gRPC does; here it is who has signed it.
_CA_POLICY = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
_LEAF_POLICY = ExtensionPolicy.permit_all()

RECEIVE_SECONDS = 5.0
"""When a call is ended whose request is not there: CA's own timeout for a whole call."""
_NAMES = ("x509_common_name", "peer_dns", "peer_uri")
"""What gRPC calls a certificate's common name, and the DNS names and URIs of its alternative names."""
_LOOK_EVERY_SECONDS = 0.5
_MOST_REPORTED = 100  # clients that the log knows as refused


class ConnectedClients:
    """Checks the certificates of connections that began before a rotation. Thread-safe."""

    def __init__(self, tls: LiveTls) -> None:
        self._tls = tls
        self._known: dict[tuple[int, bytes], bool] = {}

    @property
    def authority_changes(self) -> int:
        """How often the authority was replaced: what `trusted` says holds until the next time."""
        return self._tls.authority_changes

    def trusted(self, peer: Mapping[str, Iterable[bytes]]) -> bool:
        """Return whether the present authority vouches for a connection's client; `peer` is its auth context."""
        changes = self._tls.authority_changes
        if not changes:
            return True
        chain = [pem for name in ("x509_pem_cert", "x509_pem_cert_chain") for pem in peer.get(name, ())]
        key = changes, hashlib.sha256(b"\n".join(chain)).digest()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {}
            known = self._known[key] = self._vouched_for(chain)
        return known

    def _vouched_for(self, chain: list[bytes]) -> bool:
        authority = self._tls.now.authority
        if not chain or authority is None:
            return False
        try:
            leaf = x509.load_pem_x509_certificate(chain[0])
            others = [each for pem in chain[1:] for each in x509.load_pem_x509_certificates(pem)]
            policy = (
                PolicyBuilder()
                .store(Store(x509.load_pem_x509_certificates(authority)))
                .extension_policies(ca_policy=_CA_POLICY, ee_policy=_LEAF_POLICY)
            )
            policy.build_client_verifier().verify(leaf, others)
        except (ValueError, VerificationError) as error:
            log.info("a connected client's certificate is not of the present authority: %s", error)
            return False
        return True


class CallGuard(grpc.ServerInterceptor):  # type: ignore[type-arg] # it is generic for the type checker alone
    """Guards the calls of one server. Thread-safe."""

    def __init__(
        self,
        service: str,
        *,
        client_names: Collection[str] = (),
        clients: ConnectedClients | None = None,
        front: NativeFront | None = None,
        at_once: Mapping[str, int],
        observe: Observe = lambda *_: None,
    ) -> None:
        """With `client_names` the methods of `service` are for clients with a certificate of one of these names; other
        services, which say and change nothing of ours, are for everybody who has come so far. With `clients` they are
        for those whom the present authority vouches for, also on old connections. A `front` knows the clients, and is
        told which of them may call. `at_once` bounds calls under way by method (`/service/method`). `observe`
        is told of calls of `service` that are refused."""
        self._prefix = f"/{service}/"
        self._client_names = frozenset(client_names)
        self._clients = clients
        self._front = front
        self._free = {method: BoundedSemaphore(most) for method, most in at_once.items()}
        self._at_once = at_once
        self._observe = observe
        self._receiving = _Receiving()
        self._guarded: dict[str, Any] = {}
        self._reported = LogOnce(most=_MOST_REPORTED)

    def start(self) -> None:
        self._receiving.start()

    def stop(self) -> None:
        self._receiving.stop()

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        """Return the guarded handler of a call (gRPC's interface)."""
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler  # no such method; or reflection, whose streams are counted where they are served
        method = handler_call_details.method
        if method not in self._guarded:
            self._guarded[method] = self._guard(method, handler)
        return self._guarded[method]

    def _guard(self, method: str, handler: Any) -> Any:
        is_ours = method.startswith(self._prefix)
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }

        @contextmanager
        def received(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if is_ours and (self._client_names or self._clients is not None):
                self._check_client(method, context)
            with self._one_of(method, context, is_ours):
                with self._receiving.call(context):
                    request = next(requests, None)
                if request is None:
                    self._refuse(
                        method, context, grpc.StatusCode.INVALID_ARGUMENT, "there is no request", is_ours=is_ours
                    )
                yield request

        if handler.response_streaming:

            def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
                with received(requests, context) as request:
                    yield from handler.unary_stream(request, context)

            return grpc.stream_stream_rpc_method_handler(stream, **codecs)

        def serve(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with received(requests, context) as request:
                return handler.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(serve, **codecs)

    def _check_client(self, method: str, context: grpc.ServicerContext) -> None:
        # Of the connection: a peer's address may be another's a moment later. (Its stubs are wrong about the type.)
        own: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]
        known = own if self._front is None else self._front.peer(context)
        authority_changes = 0 if self._clients is None else self._clients.authority_changes
        if self._clients is not None and not self._clients.trusted(known):
            who = _named(names := _names(known))
            if self._reported.is_new("authority", about=names):
                log.warning("%s: refused to %s: its certificate is not of the present authority", method, who)
            why = f"the certificate of {who} is not of the present authority (tls.client_ca); connect with a new one"
            self._refuse(method, context, grpc.StatusCode.UNAUTHENTICATED, why)
        if self._client_names and (names := _names(known)).isdisjoint(self._client_names):
            who = _named(names)
            if self._reported.is_new(names, about=names):
                allowed = ", ".join(sorted(self._client_names))
                log.warning("%s: refused to a client with a certificate for %s; allowed: %s", method, who, allowed)
            why = f"the client's certificate is for {who}, which is not among tls.client_names"
            self._refuse(method, context, grpc.StatusCode.PERMISSION_DENIED, why)
        if self._front is not None:
            self._front.admit(context, authority_changes)

    @contextmanager
    def _one_of(self, method: str, context: grpc.ServicerContext, is_ours: bool) -> Iterator[None]:
        free = self._free.get(method)
        if free is None:
            yield
            return
        if not free.acquire(blocking=False):
            why = f"{self._at_once[method]} calls are under way, the most at once; try again"
            self._refuse(method, context, grpc.StatusCode.RESOURCE_EXHAUSTED, why, is_ours=is_ours)
        try:
            yield
        finally:
            free.release()

    def _refuse(
        self,
        method: str,
        context: grpc.ServicerContext,
        code: grpc.StatusCode,
        why: str,
        *,
        is_ours: bool = True,
    ) -> NoReturn:
        name = method.rpartition("/")[2]
        if is_ours:
            self._observe(name, code.name, 0.0, ())
        abort(context, code, f"{name}: {why}")


def _names(peer: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    return frozenset(name.decode(errors="replace") for key in _NAMES for name in peer.get(key, ()))


def _named(names: Collection[str]) -> str:
    return ", ".join(sorted(names))[:300] or "no name"


class _Receiving:
    """Cancels calls whose request does not arrive in time."""

    def __init__(self) -> None:
        self._since: dict[grpc.ServicerContext, float] = {}
        self._lock = Lock()
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="receiving", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    @contextmanager
    def call(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Wrap the wait for a request."""
        with self._lock:
            self._since[context] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._since[context]

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_SECONDS):
            late = time.monotonic() - RECEIVE_SECONDS
            with self._lock:
                ended = [context for context, since in self._since.items() if since < late]
            for context in ended:
                context.cancel()  # type: ignore[no-untyped-call]
