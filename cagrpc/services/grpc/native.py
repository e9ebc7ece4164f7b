"""The native front of a gRPC server, where the wheel `cagrpc-native` is installed: sockets, TLS and ready answers are
its business, everything else is forwarded to the server here, over a socket in a directory of its own. See
docs/decisions/0035."""

from __future__ import annotations

import importlib
import logging
import socket
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from cagrpc.errors import InvalidInput, Unavailable, in_words, reason_of
from cagrpc.runtime import tracing
from cagrpc.services.grpc.metrics import SECONDS_BUCKETS
from cagrpc.services.grpc.ready import ReadyAnswers, ReadyCalls
from cagrpc.services.tls import LiveTls, TlsMaterial

log = logging.getLogger(__name__)

INTERFACE = 3
"""The interface of the wheel's module that this one uses."""

_CONNECTION = "cagrpc-connection"
"""The header in which the front says on which of its connections a call came."""
_BACKLOG = 4096  # as gRPC's
_LAST_WORDS_SECONDS = 1.0
_MOST_KNOWN = 256
_LONGEST_DIRECTORY = 90  # the system's limit for a socket's path is 107 bytes


def load() -> Any:
    """Return the wheel's module; None, and a line in the log, where there is none to be used."""
    try:
        module = importlib.import_module("cagrpc_native")
    except ImportError as error:
        log.info("calls are answered by Python alone, without the native front (cagrpc-native): %s", error)
        return None
    if module.INTERFACE != INTERFACE:
        was, what = (
            module.INTERFACE,
            "calls are answered by Python alone: cagrpc-native is of another version of cagrpc",
        )
        log.warning("%s (interface %s, not %s); install the one that came with it", what, was, INTERFACE)
        return None
    return module


def answers_of(module: Any, service: str, by_node: Iterable[str]) -> ReadyAnswers:
    """Return what `RpcServer` gives a front; without a module there is none. Requests of the methods `by_node` are told
    apart by the id of their node, all others by their bytes."""
    return ReadyAnswers() if module is None else NativeAnswers(module, service, by_node)


class NativeAnswers(ReadyAnswers):
    """Kept where the front finds them."""

    keeps = True

    def __init__(self, module: Any, service: str, by_node: Iterable[str]) -> None:
        self.module = module
        self.native = module.Answers(service, list(by_node), list(SECONDS_BUCKETS))

    def advance(self, version: int) -> None:
        self.native.advance(version)

    def put(self, version: int, method: str, key: bytes, answer: bytes) -> None:
        self.native.put(version, method, key, answer)

    def fill(self, version: int, method: str, answer_of: Mapping[str, str], answers: Mapping[str, bytes]) -> None:
        self.native.fill(version, method, dict(answer_of), dict(answers))

    def calls(self) -> Iterable[ReadyCalls]:
        return [ReadyCalls(method, tuple(buckets), seconds) for method, buckets, seconds in self.native.counts()]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and for whom."""

    address: str
    """`host:port`; port 0 is any free one."""
    tls: LiveTls | None
    """None is plaintext, only ever on purpose."""
    asks_clients: bool = False
    """Whether it serves clients with a certificate of `tls.authority` only (mTLS): so the provider; CA's expander
    client has none to show."""
    client_names: Collection[str] = ()
    """With these the server's own service is for clients whose certificate has one of them."""

    @property
    def guarded(self) -> bool:
        """Whether clients are looked at before they are answered."""
        return (self.tls is not None and self.asks_clients) or bool(self.client_names)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one server takes on."""

    connections: int = 256
    connections_of_one_peer: int = 64
    calls: int = 100
    """How many calls are under way at once."""
    handshake_seconds: float = 10.0


class NativeFront:
    """The front of one server. Thread-safe."""

    def __init__(
        self,
        answers: NativeAnswers,
        endpoint: Endpoint,
        limits: ConnectionLimits,
        receive_seconds: float,
    ) -> None:
        """Listen. Where the endpoint is guarded calls of a connection have ready answers once `admit` has let it in.
        A request has `receive_seconds` to arrive. Raises Unavailable where it cannot listen, and InvalidInput for
        certificates that it cannot serve."""
        self._asks_clients = endpoint.asks_clients
        self._directory = _own_directory(endpoint.address)
        self.behind = f"unix:{Path(self._directory.name) / 'behind.sock'}"
        """The address of the server that it forwards to."""
        try:
            listening = _listen(endpoint.address)
            self.port: int = listening[0].getsockname()[1]
            self._front = answers.module.Front(
                answers.native,
                [each.detach() for each in listening],
                self.behind.removeprefix("unix:"),
                guarded=endpoint.guarded,
                traced=tracing.on(),
                connections=limits.connections,
                connections_of_one_peer=limits.connections_of_one_peer,
                calls=limits.calls,
                handshake_seconds=limits.handshake_seconds,
                receive_seconds=receive_seconds,
            )
            if endpoint.tls is not None:
                endpoint.tls.follow(self._use)
        except BaseException:
            self._directory.cleanup()
            raise

    def start(self) -> None:
        self._front.start()

    def drain(self) -> None:
        """Take no new connections and calls; those under way may end."""
        self._front.drain()

    def end(self) -> None:
        """End, once what was answered has been sent."""
        self._front.end(_LAST_WORDS_SECONDS)
        self._directory.cleanup()

    def peer(self, context: grpc.ServicerContext) -> Mapping[str, Iterable[bytes]]:
        """Return the auth context of a call's client, as gRPC has it."""
        return _auth_context(tuple(self._front.chain(_connection(context))))

    def admit(self, context: grpc.ServicerContext, authority_changes: int) -> None:
        """Let a call's connection have ready answers, until the authority changes once more."""
        self._front.admit(_connection(context), authority_changes)

    def _use(self, tls: TlsMaterial, authority_changes: int) -> None:
        authority = tls.authority if self._asks_clients else None
        try:
            self._front.use_tls(tls.certificate, tls.key, authority, authority_changes)
        except ValueError as error:
            raise InvalidInput(f"the native front cannot serve the certificates: {error}") from error


def _own_directory(address: str) -> tempfile.TemporaryDirectory[str]:
    """Make a directory for a socket that is nobody else's (mode 0700). Raises Unavailable."""
    try:
        made = tempfile.TemporaryDirectory(prefix="cagrpc-")
    except OSError as error:
        why = f"there is no directory for a socket of its own ({in_words(error)}); TMPDIR names one"
        raise Unavailable(f"cannot listen on {address}: {why}") from error
    if len(made.name) > _LONGEST_DIRECTORY:
        made.cleanup()
        why = f"{made.name} is too long for the path of a socket; TMPDIR names another directory"
        raise Unavailable(f"cannot listen on {address}: {why}")
    return made


def _connection(context: grpc.ServicerContext) -> int:
    (connection,) = (value for key, value in context.invocation_metadata() if key == _CONNECTION)
    return int(connection)


@lru_cache(_MOST_KNOWN)
def _auth_context(chain: Sequence[bytes]) -> Mapping[str, Iterable[bytes]]:
    if not chain:
        return {}
    certificates = [x509.load_der_x509_certificate(each) for each in chain]
    pems = [each.public_bytes(Encoding.PEM) for each in certificates]
    subject = certificates[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        names = certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns, uris = names.get_values_for_type(x509.DNSName), names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        dns, uris = [], []
    return {
        "x509_common_name": [str(each.value).encode() for each in subject[:1]],
        "peer_dns": [each.encode() for each in dns],
        "peer_uri": [each.encode() for each in uris],
        "x509_pem_cert": pems[:1],
        "x509_pem_cert_chain": [b"".join(pems)],
    }


def _listen(address: str) -> list[socket.socket]:
    """Listen as gRPC does: on every address of a name, and on a wildcard of either family for both. Raises
    Unavailable."""
    host, _, text = address.rpartition(":")
    host, port = host.strip("[]"), int(text)
    listening: list[socket.socket] = []
    try:
        if host in {"", "0.0.0.0", "::"} and socket.has_dualstack_ipv6():  # noqa: S104 - what was configured
            listening.append(
                socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
            )
        else:
            for family, _, _, _, found in dict.fromkeys(
                socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            ):
                at = (found[0], port or (listening[0].getsockname()[1] if listening else 0))
                listening.append(socket.create_server(at, family=family, backlog=_BACKLOG))
    except OSError as error:
        for each in listening:
            each.close()
        raise Unavailable(f"cannot listen on {address}: {reason_of(error)}") from error
    for each in listening:
        each.setblocking(False)
    return listening
