"""Attacks by a peer on a real server's sockets, on the loopback."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import grpc

from bench.faults.messages import http2_frame
from bench.hostile.meter import Meter
from tests.support.serving import Serving, serve, started_process

_FLOODS = 3
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _CONTINUATION, _END_OF_HEADERS = 1, 4, 9, 4
_METHODS = {
    "provider": "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/NodeGroups",
    "expander": "/grpc.health.v1.Health/Check",
}
_CALL_SECONDS, _CONNECT_SECONDS = 5.0, 10.0


@contextmanager
def server() -> Iterator[Serving]:
    """Run one, with the embedded configuration, and kill it."""
    with tempfile.TemporaryDirectory() as directory:
        serving = serve(Path(directory) / "state", start=started_process)
        try:
            yield serving
        finally:
            serving.process.kill()
            serving.process.wait()


def continuation(meter: Meter, seconds: float) -> None:
    """Sixty peers without a certificate send header frames that never end to the expander, three times so long."""
    with server() as serving:
        meter.look_at(serving.process.pid)
        flood(meter, serving, seconds)


def silence(meter: Meter, connections: int) -> None:
    """So many connections to the provider say nothing, and are made again when they are closed."""
    with server() as serving:
        meter.look_at(serving.process.pid)
        be_silent(meter, serving, connections, pause_seconds=1.5)


def flood(meter: Meter, serving: Serving, seconds: float, peers: int = 60) -> None:
    meter.note(f"before: {_calls(serving, 'expander', 3)}")
    for _ in range(_FLOODS):
        attacks = [Flood(serving, time.monotonic() + seconds) for _ in range(peers)]
        with meter.measuring(f"a flood for {seconds:g} s"):
            for each in attacks:
                each.start()
            meanwhile = _calls(serving, "expander", 5)
            for each in attacks:
                each.join()
        meter.note(f"{sum(each.sent for each in attacks):,} frames were sent; others: {meanwhile}")
    meter.note_memory("afterwards")


def _literal(name: bytes, value: bytes) -> bytes:
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


_REQUEST = b"\x83\x87" + b"".join(
    _literal(name, value)
    for name, value in (
        (b":path", _METHODS["expander"].encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)
_MORE = http2_frame(_CONTINUATION, 0, 1, _literal(b"x-aaaaaaaa", b"b" * 100) * 100)


class Flood(threading.Thread):
    """One peer, which connects again when its connection is closed."""

    def __init__(self, serving: Serving, until: float) -> None:
        super().__init__(daemon=True)
        host, _, port = serving.endpoints["expander"].rpartition(":")
        self._address, self._until = (host, int(port)), until
        self._tls = ssl.create_default_context(cafile=serving.certificates / "ca.crt")
        self._tls.set_alpn_protocols(["h2"])
        self.sent = 0

    def run(self) -> None:
        while True:
            with suppress(OSError):
                self._send()
            if time.monotonic() > self._until:
                return
            time.sleep(0.05)

    def _send(self) -> None:
        plain = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
        with plain, self._tls.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(_PREFACE + http2_frame(_SETTINGS, 0, 0, b"") + http2_frame(_HEADERS, 0, 1, _REQUEST))
            while True:
                connection.sendall(_MORE * 4)
                self.sent += 4
                if time.monotonic() > self._until:
                    return


def be_silent(meter: Meter, serving: Serving, connections: int, pause_seconds: float) -> None:
    meter.note(f"before: {_calls(serving, 'provider', 2)}")
    with meter.measuring(f"{connections} silent connections"), Silence(serving, connections) as silence:
        time.sleep(pause_seconds)
        answers = []
        for _ in range(6):
            answers += [f"with {len(silence.open)} open {_calls(serving, 'provider', 1)}"]
            time.sleep(pause_seconds)
    for each in answers:
        meter.note(each)
    time.sleep(pause_seconds)
    meter.note(f"afterwards: {_calls(serving, 'provider', 1)}")


class Silence:
    """Holds so many connections open."""

    def __init__(self, serving: Serving, connections: int, *, to: str = "provider") -> None:
        host, _, port = serving.endpoints[to].rpartition(":")
        self._address, self._count = (host, int(port)), connections
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self.open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for each in self.open:
            each.close()

    def _hold(self) -> None:
        while not self._stopped.wait(0.02):
            with suppress(OSError):
                while len(self.open) < self._count:
                    made = socket.create_connection(self._address, timeout=2.0)
                    made.setblocking(False)
                    self.open.append(made)
            for each in [each for each in self.open if _is_closed(each)]:
                each.close()
                self.open.remove(each)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _calls(serving: Serving, to: str, count: int) -> str:
    """Make calls as others do, each over a connection of its own; say what came of them."""
    return ", ".join(_call(serving, to) for _ in range(count))


def _call(serving: Serving, to: str) -> str:
    read = {each.name: each.read_bytes() for each in serving.certificates.iterdir()}
    of_client = (read["client.key"], read["client.crt"]) if to == "provider" else (None, None)
    credentials = grpc.ssl_channel_credentials(read["ca.crt"], *of_client)
    began = time.monotonic()
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(serving.endpoints[to], credentials, options=options) as channel:
        try:
            channel.unary_unary(_METHODS[to], None, None)(b"", timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            return f"{error.code().name} after {time.monotonic() - began:.2f} s"
    return f"answered in {time.monotonic() - began:.2f} s"
