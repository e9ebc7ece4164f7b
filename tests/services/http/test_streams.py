"""Responses that come piece by piece: they outlast the time of a request as long as their client takes them."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.types import Receive, Scope, Send

from cagrpc.services.http import server as http_server
from cagrpc.services.http.server import Listener
from tests.support.controlplane.processes import wait_for
from tests.support.waiting import AMPLE_SECONDS

PIECE = b"x" * 100_000


@contextmanager
def _streaming(pieces: int, pause_seconds: float) -> Iterator[tuple[Listener, tuple[str, int]]]:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await asyncio.sleep(pause_seconds)
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = Listener(application, listening, None)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        yield server, listening.getsockname()
    finally:
        server.stop()
        thread.join()
        listening.close()


def test_a_stream_goes_on_while_its_client_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_SECONDS", 0.05)
    with _streaming(20, 0.02) as (_, address):
        connection = http.client.HTTPConnection(*address, timeout=AMPLE_SECONDS)
        connection.request("GET", "/")
        assert len(connection.getresponse().read()) == 20 * len(PIECE)
        connection.close()


def test_a_client_that_takes_nothing_of_a_stream_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_SECONDS", 0.2)
    with (
        _streaming(1000, 0.0) as (server, address),
        socket.create_connection(address, timeout=AMPLE_SECONDS) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: bool(server._open), "it is sent")
        wait_for(lambda: not server._open, "it is ended")
        taken = 0
        try:
            while found := client.recv(1_000_000):
                taken += len(found)
                assert taken < 100 * len(PIECE), "it is sent without end"
        except ConnectionResetError:
            pass
