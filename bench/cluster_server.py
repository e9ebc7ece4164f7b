"""The API server of `bench.cluster_view`: lists `bench.cluster_objects` in pages, and sends changes of pods at a rate
that it is told. It is a process of its own, so that its memory and time are not the view's."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench import cluster_objects as objects
from cagrpc.api.gen import api_pb2

PAGE = 500
_pages: dict[str, list[bytes]] = {}
"""Of each list, made in advance."""
_orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
"""Changes to send: how many, how many a second, and the name of a pod to be created at the end."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def do_POST(self) -> None:
        _orders.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer(b"{}")

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if "watch" in query:
            self._watch(url.path)
        elif "podgroups" in url.path:
            self._answer(b"404 page not found", 404)
        else:
            self._answer(_pages.get(url.path, _NOTHING)[int(query.get("continue", "0"))])

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, path: str) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if path != "/api/v1/pods":
            time.sleep(3600)
        version = 1
        while True:
            order = _orders.get()
            started = time.monotonic()
            for number in range(order["changes"]):
                time.sleep(max(0.0, started + number / order["rate"] - time.monotonic()))
                version += 1
                self._send(change(version))
            self._send(_event("ADDED", objects.last(order["last"])))

    def _send(self, frame: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))


def change(version: int) -> bytes:
    """In turn: a pod is created, bound, tells of its state, and is deleted; and a running one tells of its state."""
    step, cycle = version % 5, version // 5
    index = objects.PODS + cycle
    if step == 0:
        return _event("ADDED", objects.pod(index, version, bound=False))
    if step == 1:
        return _event("MODIFIED", objects.pod(index - 20, version, bound=True))
    if step == 2:
        return _event("MODIFIED", objects.pod(index - 30, version, bound=True, note=str(version)))
    if step == 3:
        return _event("DELETED", objects.pod(index - 40, version, bound=True))
    running = objects.NODES * objects.DAEMONS + cycle * 7 % objects.OF_WORKLOADS
    return _event("MODIFIED", objects.pod(running, version, note=str(version)))


def _event(change: str, obj: bytes) -> bytes:
    event = api_pb2.WatchEvent(type=change, object=api_pb2.RawExtension(raw=_enveloped(obj))).SerializeToString()
    return len(event).to_bytes(4, "big") + event


def _enveloped(raw: bytes) -> bytes:
    return b"k8s\x00" + api_pb2.Unknown(raw=raw).SerializeToString()


def _made(count: int, build: Callable[[int], bytes]) -> list[bytes]:
    found = []
    for first in range(0, max(1, count), PAGE):
        last = min(first + PAGE, count)
        metadata = api_pb2.ListMeta(resourceVersion="1", continueToken=str(last // PAGE) if last < count else "")
        items = [build(index) for index in range(first, last)]
        found.append(_enveloped(api_pb2.List(metadata=metadata, items=items).SerializeToString()))
    return found


_NOTHING = _made(0, objects.node)


def main() -> None:
    """Prints its port once all is made, then serves until its standard input ends."""
    _pages["/api/v1/nodes"] = _made(objects.NODES, objects.node)
    _pages["/api/v1/pods"] = _made(objects.PODS, objects.pod)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
