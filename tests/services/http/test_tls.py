"""TLS of the HTTP side: a new certificate is shown from the next connection on and no request fails, what is no TLS
ends, and connections that never end their handshake keep nobody out."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.errors import InvalidInput
from cagrpc.services.http import server as http_server
from cagrpc.services.http.access import Anybody
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import Site
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority
from tests.support.waiting import AMPLE_SECONDS


class _Https:
    def __init__(self) -> None:
        self.authority = Authority()
        self.live = LiveTls(TlsMaterial(*self.authority.issue("first")))
        self.server = HttpServer("127.0.0.1", 0, Site(Metrics(tuple)), Anybody(), self.live)
        self.server.start()
        self.trusted = ssl.create_default_context(cadata=self.authority.certificate.decode())

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=AMPLE_SECONDS, context=self.trusted)

    def shown(self) -> str:
        """The name in the certificate of a new connection, of which a request is answered."""
        connection = self.connection()
        try:
            assert ask(connection) == 200
            assert isinstance(connection.sock, ssl.SSLSocket)
            found: Any = connection.sock.getpeercert()
            return str(dict(pair for (pair,) in found["subject"])["commonName"])
        finally:
            connection.close()


def ask(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.fixture(name="https")
def _https() -> Iterator[_Https]:
    https = _Https()
    yield https
    https.server.stop()


def test_a_new_certificate_is_shown_and_old_connections_go_on(https: _Https) -> None:
    kept = https.connection()
    assert ask(kept) == 200
    before = kept.sock
    assert https.shown() == "first"
    https.live.replace(TlsMaterial(*https.authority.issue("second")))
    assert https.shown() == "second"
    assert ask(kept) == 200
    assert kept.sock is before
    kept.close()


def test_no_request_fails_while_certificates_are_replaced(https: _Https) -> None:
    done = threading.Event()
    seen: list[str] = []
    failed: list[Exception] = []

    def read() -> None:
        while not done.is_set():
            try:
                seen.append(https.shown())
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failed request
                failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(10):
        https.live.replace(TlsMaterial(*https.authority.issue(f"number {number}")))
        at = len(seen)
        while len(seen) < at + 3 and not failed:
            done.wait(0.005)
    done.set()
    thread.join()
    assert not failed
    assert seen[-1] == "number 9"


def test_what_openssl_refuses_leaves_the_certificate_before(
    https: _Https, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(_: TlsMaterial) -> ssl.SSLContext:
        raise InvalidInput("its certificate and key cannot be used for TLS: EE_KEY_TOO_SMALL")

    monkeypatch.setattr(http_server, "_context", refuses)
    https.live.replace(TlsMaterial(*https.authority.issue("second")))
    assert https.shown() == "first"
    assert https.shown() == "first"
    assert caplog.text.count("EE_KEY_TOO_SMALL") == 1


def test_old_versions_are_refused(https: _Https) -> None:
    https.trusted.set_ciphers("DEFAULT:@SECLEVEL=0")
    https.trusted.maximum_version = ssl.TLSVersion.TLSv1_2
    assert https.shown() == "first"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        https.trusted.minimum_version = https.trusted.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        https.shown()


def test_plain_http_is_not_answered_and_others_are(https: _Https) -> None:
    with socket.create_connection(("127.0.0.1", https.server.port), timeout=AMPLE_SECONDS) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(1000)
    assert https.shown() == "first"


def test_handshakes_that_never_end_are_few_and_end(https: _Https, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 4)
    address = ("127.0.0.1", https.server.port)
    silent = [socket.create_connection(address, timeout=AMPLE_SECONDS) for _ in range(12)]
    try:
        assert https.shown() == "first"
        for each in silent[:8]:
            assert each.recv(1) == b""  # the oldest went first
        monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.1)
        with socket.create_connection(address, timeout=AMPLE_SECONDS) as late:
            assert late.recv(1) == b""
        assert https.shown() == "first"
    finally:
        for each in silent:
            each.close()
