"""An API server of which every answer is written beforehand, for faults that a real one does not make on demand; and
its answers, protobuf and JSON."""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import Configuration

from cagrpc.api.gen import api_pb2, kubernetes_pb2
from cagrpc.kube.client.access import Access
from cagrpc.kube.client.client import Client
from tests.support.http_server import serving
from tests.support.waiting import AMPLE_SECONDS

PROTOBUF = "application/vnd.kubernetes.protobuf"


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ScriptedAnswer:
    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] | None = None
    """Instead of a body: sent one after the other."""
    cut: bool = False
    """After the chunks the connection breaks."""
    until: Event | None = None
    """After the chunks nothing happens before this is set."""


@dataclass
class FakeApi:
    url: str
    answers: deque[ScriptedAnswer] = field(default_factory=deque)
    """What is left to be answered; then every request gets a 500."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    version: str = ""
    """That of a list of one object, by which an informer finds out whether the API server was restored. It is neither
    of the answers nor of the requests."""

    def client(self, waits: list[float] | None = None, **options: Any) -> Client:
        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Client(Access(load, pool_size=2), (waits if waits is not None else []).append, **options)


@contextmanager
def fake_api(*answers: ScriptedAnswer, tls: Path | None = None) -> Iterator[FakeApi]:
    """`tls` is a directory with `server.crt` and `server.key`, for https."""
    with serving(_ScriptHandler) as (server, plain):
        url = plain
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
            url = plain.replace("http:", "https:")
        api = FakeApi(url, deque(answers))
        server.api = api  # type: ignore[attr-defined]
        yield api


class _ScriptHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _tell_version(self, version: str) -> None:
        body = json.dumps({"metadata": {"resourceVersion": version}, "items": []}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> None:
        api: FakeApi = self.server.api  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if ("limit", "1") in parse_qsl(url.query):
            self._tell_version(api.version)
            return
        api.requests.append(ReceivedRequest(self.command, url.path, dict(parse_qsl(url.query)), headers, body))
        answer = api.answers.popleft() if api.answers else ScriptedAnswer(b"nothing is left to be said", 500)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.chunks is None:
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in answer.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if answer.until:
            answer.until.wait(AMPLE_SECONDS)
        if answer.cut:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            with suppress(ConnectionError):  # nobody may be there any more
                self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of the base class


def enveloped(raw: bytes) -> bytes:
    return b"k8s\x00" + api_pb2.Unknown(raw=raw).SerializeToString()


def pod(name: str, version: str = "1") -> kubernetes_pb2.Pod:
    return kubernetes_pb2.Pod(
        metadata=kubernetes_pb2.ObjectMeta(name=name, namespace="default", resourceVersion=version)
    )


def listed(*pods: kubernetes_pb2.Pod, version: str, token: str = "") -> ScriptedAnswer:
    found = api_pb2.List(
        metadata=api_pb2.ListMeta(resourceVersion=version, continueToken=token),
        items=[each.SerializeToString() for each in pods],
    )
    return ScriptedAnswer(enveloped(found.SerializeToString()))


def watch_event(change: str, item: bytes) -> bytes:
    event = api_pb2.WatchEvent(type=change, object=api_pb2.RawExtension(raw=enveloped(item))).SerializeToString()
    return len(event).to_bytes(4, "big") + event


def changed(change: str, item: kubernetes_pb2.Pod) -> bytes:
    return watch_event(change, item.SerializeToString())


def gone_event() -> bytes:
    return watch_event("ERROR", api_pb2.Status(code=410, reason="Expired", message="too old").SerializeToString())


def refused(code: int, message: str = "", *, cause: str = "", protobuf: bool = False, **headers: str) -> ScriptedAnswer:
    if protobuf:
        details = api_pb2.StatusDetails(causes=[api_pb2.StatusCause(reason=cause)] if cause else [])
        body = enveloped(api_pb2.Status(code=code, message=message, details=details).SerializeToString())
    else:
        causes = {"details": {"causes": [{"reason": cause}]}} if cause else {}
        body = json.dumps({"kind": "Status", "code": code, "message": message, **causes}).encode()
    return ScriptedAnswer(body, code, {name.replace("_", "-"): value for name, value in headers.items()})


def watched(*chunks: bytes, cut: bool = False) -> ScriptedAnswer:
    return ScriptedAnswer(chunks=chunks, cut=cut)
