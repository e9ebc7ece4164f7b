"""Malformed messages over sockets: gRPC calls, connections that are none, and requests for pages; and what may be
answered."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Any

import grpc

from tests.api.decoders import hostile
from tests.api.decoders.registry import Decoder, decoders
from tests.support.grpc_servers import PATHS
from tests.support.serving import Serving

_AT_ONCE = 64
_CONNECTIONS_AT_ONCE = 16
LISTENERS = ("provider", "expander")
"""Those of gRPC."""
_PROPER = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Neither INTERNAL nor UNKNOWN."""
_ANSWER_SECONDS = 20.0
_QUIET_SECONDS = 0.3
"""A connection that is none is not answered, or is closed."""
_PAGE_SECONDS = 3.0
"""For a page; a request that does not end is not answered."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_HEADERS_FRAME, _RESET, _SETTING, _PING, _CONTINUATION, _END_OF_HEADERS = 1, 3, 4, 6, 9, 4
_REQUEST = b"\x83\x87\x04\x01/\x01\x01x"
"""A POST of / to x, as a header block."""
_PAGES = (
    "/", "/status", "/metrics", "/increments", "/plans", "/decisions", "/nodegroups", "/events", "/healthz", "/readyz",
    "/simulation", "/explain", "/%2e%2e/%2e%2e/etc/passwd", "/static/index.html", "*", "http://x/", "",
)  # fmt: skip
_METHODS = ("GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "\x00", "A" * 5_000)
_HEADERS = (
    "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked, chunked", "Host: x", "Host: \xff", "Origin: http://x.example", "Cookie: " + "a" * 9000,
    "Authorization: Bearer " + "x" * 3_000, "Range: bytes=0-1,5-", "Expect: 100-continue", "Connection: close",
    "Upgrade: websocket", "X: \x00", "Accept: application/openmetrics-text", "Last-Event-ID: -1", ": y", "no colon",
)  # fmt: skip
_BODIES = (
    b"",
    b"{}",
    b'{"*": {"boot": 1e999}}',
    b"5\r\nhello\r\n0\r\n\r\n",
    b"zz\r\n",
    b"[" * 5_000,
    b"\xff" * 64,
)


def http2_frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """Return a frame of HTTP/2, with a length that may not be its own."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@dataclass
class Hostile:
    """Where messages come from, and what was answered to them that must not be."""

    rng: Random
    wrong: list[str] = field(default_factory=list)
    _by_name: dict[str, Decoder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {each.name: each for each in decoders() if each.name in PATHS}

    def call(self) -> tuple[str, bytes]:
        """Return a method's path and a message for it, or for another one."""
        rng = self.rng
        name = rng.choice(sorted(self._by_name))
        seeds = self._by_name[name]
        match rng.randrange(8):
            case 0:
                data = rng.randbytes(rng.choice((1, 10, 100, 10_000)))
            case 1:
                data = hostile.broken(rng.choice(list(seeds.raw_seeds())), rng)
            case _:
                data = hostile.changed(rng.choice(seeds.seeds), rng)
        path = PATHS[rng.choice(sorted(self._by_name)) if rng.random() < 0.05 else name]
        return (f"{path}X" if rng.random() < 0.01 else path), data

    def request(self) -> bytes:
        """Return a request for a page, as bytes."""
        rng = self.rng
        headers = ["Host: 127.0.0.1", *rng.sample(_HEADERS, rng.choice((0, 0, 1, 3)))]
        method = "GET" if rng.random() < 0.6 else rng.choice(_METHODS)
        version = "HTTP/1.1" if rng.random() < 0.9 else rng.choice(("HTTP/1.0", "HTTP/9.9", "x"))
        line = f"{method} {rng.choice(_PAGES)} {version}"
        head = "\r\n".join([line, *headers, "Connection: close", "", ""]).encode("latin-1")
        data = head + rng.choice(_BODIES)
        return hostile.broken(data, rng) if rng.random() < 0.3 else data

    def connection(self) -> bytes:
        """Return what a connection begins with that is no gRPC."""
        rng = self.rng
        frames = b"".join(self._frame() for _ in range(rng.randint(0, 5)))
        match rng.randrange(6):
            case 0:
                return rng.randbytes(rng.choice((0, 1, 50, 5_000)))
            case 4 | 5:
                return _PREFACE + _SETTINGS + self._flood()
            case 1:
                return hostile.broken(_PREFACE + _SETTINGS + frames, rng)
            case _:
                return _PREFACE + _SETTINGS + frames

    def _flood(self) -> bytes:
        """Return as many frames of a kind as a peer sends who does not wait for an answer: headers that never end,
        streams that are begun and reset, pings, settings."""
        rng = self.rng
        count, header = rng.choice((10, 1_000)), rng.choice((b"\x82", _REQUEST))
        match rng.randrange(4):
            case 0:
                more = http2_frame(_CONTINUATION, 0, 1, rng.randbytes(rng.choice((0, 100))))
                return http2_frame(_HEADERS_FRAME, 0, 1, header) + more * count
            case 1:
                begun = (
                    http2_frame(_HEADERS_FRAME, _END_OF_HEADERS, 1 + 2 * number, header)
                    + http2_frame(_RESET, 0, 1 + 2 * number, bytes(4))
                    for number in range(count)
                )
                return b"".join(begun)
            case 2:
                return http2_frame(_PING, 0, 0, bytes(8)) * count
            case _:
                return http2_frame(_SETTING, 0, 0, rng.randbytes(6)) * count

    def _frame(self) -> bytes:
        """Return an HTTP/2 frame of any kind, with a length that may not be its own."""
        rng = self.rng
        payload = rng.randbytes(rng.choice((0, 4, 8, 60)))
        length = rng.choice((len(payload), len(payload), 0, 2**24 - 1))
        kind, flags, stream = rng.randrange(12), rng.randrange(256), rng.choice((0, 1, 2, 3, 2**31 - 1))
        return http2_frame(kind, flags, stream, payload, length)


def calls(serving: Serving, of: Hostile, count: int) -> Counter[str]:
    """Make calls to the provider and the expander, many at once; return the codes that were answered."""
    answers: Counter[str] = Counter()
    room, lock = threading.Semaphore(_AT_ONCE), threading.Lock()

    def done(path: str, data: bytes, call: Any) -> None:
        code = call.code()
        with lock:
            answers[f"calls answered with {code.name}"] += 1
            if code not in _PROPER:
                of.wrong.append(f"{path} {data[:200]!r}: {code.name} {call.details()}")
        room.release()

    with _channel(serving, "provider") as provider, _channel(serving, "expander") as expander:
        for _ in range(count):
            path, data = of.call()
            channel = expander if "Expander" in path else provider
            room.acquire()
            call = channel.unary_unary(path, None, None).future(data, timeout=_ANSWER_SECONDS)
            call.add_done_callback(partial(done, path, data))
        for _ in range(_AT_ONCE):
            room.acquire()
    return answers


def _channel(serving: Serving, listener: str) -> grpc.Channel:
    authority, key, certificate = (
        (serving.certificates / name).read_bytes() for name in ("ca.crt", "client.key", "client.crt")
    )
    return grpc.secure_channel(serving.endpoints[listener], grpc.ssl_channel_credentials(authority, key, certificate))


def connections(serving: Serving, of: Hostile, count: int) -> Counter[str]:
    """Open connections to the gRPC ports and send what is no gRPC, with and without TLS."""

    def send(listener: str, tls: bool, data: bytes) -> None:
        with suppress(OSError), _connected(serving, listener, tls=tls) as link:
            link.settimeout(_QUIET_SECONDS)
            link.sendall(data)
            while link.recv(65_536):
                continue

    drawn = [(of.rng.choice(LISTENERS), of.rng.random() < 0.7, of.connection()) for _ in range(count)]
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        for _ in pool.map(send, *zip(*drawn, strict=True)):
            pass
    return Counter({"connections that are no gRPC": count})


def pages(serving: Serving, of: Hostile, count: int) -> Counter[str]:
    """Ask for pages; return the statuses that were answered, 0 where there was no answer."""
    drawn = [of.request() for _ in range(count)]
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        statuses = list(pool.map(partial(_status, serving), drawn))
    of.wrong += [
        f"{data[:200]!r}: HTTP {status}"
        for data, status in zip(drawn, statuses, strict=True)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR
    ]
    return Counter(f"requests for pages answered with {status}" for status in statuses)


def _status(serving: Serving, data: bytes) -> int:
    host, _, port = serving.endpoints["http"].rpartition(":")
    found = b""
    with suppress(OSError), socket.create_connection((host, int(port)), _ANSWER_SECONDS) as link:
        link.settimeout(_PAGE_SECONDS)
        link.sendall(data)
        while b"\r\n" not in found and (more := link.recv(4096)):
            found += more
    words = found.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _connected(serving: Serving, listener: str, *, tls: bool) -> socket.socket:
    host, _, port = serving.endpoints[listener].rpartition(":")
    plain = socket.create_connection((host, int(port)), _ANSWER_SECONDS)
    if not tls:
        return plain
    context = ssl.create_default_context(cafile=str(serving.certificates / "ca.crt"))
    context.load_cert_chain(serving.certificates / "client.crt", serving.certificates / "client.key")
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    return context.wrap_socket(plain)
