"""The REST client: one request, its response or its error. Credentials are in `access`, errors in `failures`; lists and
watches are followed in `informers`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import urlencode

import urllib3
from urllib3.response import BaseHTTPResponse

from cagrpc.api.encoding.json_documents import json_value
from cagrpc.api.gen import api_pb2
from cagrpc.errors import Conflict, InvalidInput, NotFound, Unavailable, in_words, shown
from cagrpc.kube.client.access import Access, Session, from_kubeconfig, in_cluster
from cagrpc.kube.client.envelopes import Encoding, page
from cagrpc.kube.client.failures import RequestInfo, failure, request_info, status_of
from cagrpc.runtime.heartbeat import beat

USER_AGENT = "cagrpc"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
Query = Mapping[str, str]
Observe = Callable[[RequestInfo, int | None, float], None]
"""Called with each attempt: the request, the HTTP code of the answer (None without one), seconds."""

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 150.0
"""A watch without a byte for this long may be dead: the API server sends a bookmark about every minute, unless no
object of that kind has changed since it started."""
_PATIENCE_SECONDS = 10.0
"""The most that one call waits in total for Retry-After."""
_BUSY = 429


class PatchKind(StrEnum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    """A list of operations (RFC 6902), applied as a whole or not at all; a failed `test` is InvalidInput."""


class Stream:
    """A streamed response: iterate over its bytes as they come, close it from any thread."""

    def __init__(self, response: BaseHTTPResponse, name: str) -> None:
        self._response = response
        self._name = name
        self._lock = Lock()
        self._begun = False
        self._closed = False
        self.fell_silent = False
        """Whether it ended by a read timeout: either nothing happened, or the connection is dead."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield bytes until the server ends the response, nothing comes for too long, or `close` is called. Raises
        Unavailable where it breaks off."""
        with self._lock:
            if self._closed:
                return
            self._begun = True
        try:
            yield from self._response.stream(amt=None)
        except urllib3.exceptions.ReadTimeoutError:
            self.fell_silent = True
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # closing during a read causes the last two
            if not self._closed:
                raise Unavailable(f"{self._name} broke off: {in_words(error)}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._begun:
                self._response.close()
                return
        try:
            self._response.shutdown()  # wakes a reader, which closing alone does not
        except (ValueError, RuntimeError, OSError):
            return  # it has ended already


class Client:
    """A client of one cluster's API server. Thread-safe; connections are pooled. Every request has a timeout.

    Errors: Forbidden (403, an Unavailable), NotFound (404), Conflict (409), InvalidInput (the server found the request
    invalid), Unavailable (unreachable or overloaded). Retry-After of the server is honoured for up to 10 s within the
    call.
    """

    def __init__(
        self,
        access: Access,
        wait: Callable[[float], object] = time.sleep,
        *,
        answer_seconds: float = _ANSWER_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
        observe: Observe = lambda *_: None,
    ) -> None:
        self._access = access
        self._wait = wait
        self._answer_seconds = answer_seconds
        self._patience_seconds = patience_seconds
        self._observe = observe

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | None,
        context: str = "",
        *,
        pool_size: int = 16,
        observe: Observe = lambda *_: None,
    ) -> Self:
        """Return a client of the kubeconfig's context (the current one where empty); without a kubeconfig, of the
        service account of the pod that this process runs in. Up to `pool_size` idle connections are pooled. Makes no
        request. Raises InvalidInput for an invalid kubeconfig."""
        load = in_cluster() if kubeconfig is None else from_kubeconfig(kubeconfig, context)
        return cls(Access(load, pool_size), observe=observe)

    def hurried(self, answer_seconds: float) -> Client:
        """Return a client over the same connections with this request timeout, which raises Unavailable at once instead
        of waiting for Retry-After, so that the caller backs off on its own."""
        return Client(
            self._access, self._wait, answer_seconds=answer_seconds, patience_seconds=0.0, observe=self._observe
        )

    @property
    def server(self) -> str:
        return self._access.session.url

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return self._document("GET", path, query)

    def read(self, path: str, query: Query | None = None, encoding: Encoding = Encoding.PROTOBUF) -> bytes:
        """Return the response's body undecoded."""
        return self._send("GET", path, query, accept=encoding).data

    def items(self, path: str, at_once: int = 500) -> Iterator[Mapping[str, Any]]:
        """Yield all objects of a collection, so many in one response. Raises CagrpcError, also after some of them."""
        token = ""
        while True:
            query = {"limit": str(at_once), **({"continue": token} if token else {})}
            try:
                found = page(Encoding.JSON, self.read(path, query, Encoding.JSON))
            except InvalidInput as error:
                raise Unavailable(f"{self.server}{path}: {error}") from error
            yield from (each for each in found.items if isinstance(each, Mapping))
            token = found.continue_token
            if not token:
                return

    def stream(self, path: str, query: Query, encoding: Encoding) -> Stream:
        """Return a watch's response. Its frames are encoded like its objects."""
        accept = f"{encoding};stream=watch" if encoding is Encoding.PROTOBUF else str(encoding)
        response = self._send("GET", path, query, accept=accept, streamed=True)
        return Stream(response, f"{self.server}: {request_info('GET', path, query)}")

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST to a collection or a subresource."""
        return self._document("POST", path, None, body, "application/json")

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a PUT. Raises Conflict where the body's resourceVersion is outdated."""
        return self._document("PUT", path, None, body, "application/json")

    def patch(
        self,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        kind: PatchKind = PatchKind.MERGE,
        *,
        field_manager: str = "",
        accept: str = Encoding.JSON,
    ) -> dict[str, Any]:
        """Send a PATCH. `field_manager` owns the fields in the object's managed fields; by default the user agent does.
        With `accept` METADATA_ONLY the response has only the object's metadata, which is cheaper."""
        query = {"fieldManager": field_manager} if field_manager else None
        return self._document("PATCH", path, query, body, kind, accept)

    def delete(self, path: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """Delete the object. It is no error if it does not exist, nor, with `uid`, if another object has its name,
        which remains."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._document("DELETE", path, None, options, "application/json")
        except NotFound:
            return
        except Conflict:
            if not uid:
                raise

    def close(self) -> None:
        self._access.close()

    def _document(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Any = None,
        content_type: str = "",
        accept: str = Encoding.JSON,
    ) -> dict[str, Any]:
        data = self._send(method, path, query, body, content_type, accept).data
        try:
            document = json_value(data)
        except InvalidInput as error:
            raise Unavailable(
                f"{self.server}{path}: expected JSON of an API server, found {shown(data[:60])}"
            ) from error
        if not isinstance(document, dict):
            raise Unavailable(f"{self.server}{path}: expected a JSON object of an API server, found {shown(data[:60])}")
        return document

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content_type: str = "",
        accept: str = Encoding.JSON,
        *,
        streamed: bool = False,
    ) -> BaseHTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {"user-agent": USER_AGENT, "accept": accept}
        if content_type:
            headers["content-type"] = content_type
        target = f"{path}?{urlencode(query)}" if query else path
        request = request_info(method, path, query or {})
        waited = 0.0
        while True:
            beat(request)
            session = self._access.session
            silence = _SILENCE_SECONDS if streamed else self._answer_seconds
            begun, code = time.perf_counter(), None
            try:
                response = _exchange(session, method, target, data, headers, silence, streamed=streamed)
                code = response.status
            finally:
                self._observe(request, code, time.perf_counter() - begun)
            if response.status < 400:
                return response
            status = status_of(response.data)
            if response.status == 401 and self._access.renew(session):
                continue
            pause = _retry_after_seconds(method, response, status)
            if pause is None or waited + pause > self._patience_seconds:
                raise failure(session.url, request, response.status, status)
            self._wait(pause)
            waited += pause


def _exchange(
    session: Session,
    method: str,
    target: str,
    data: bytes | None,
    headers: Mapping[str, str],
    silence: float,
    *,
    streamed: bool,
) -> BaseHTTPResponse:
    try:
        response = session.pool.request(
            method,
            session.url + target,
            body=data,
            headers={**headers, **session.authorization()},
            timeout=urllib3.Timeout(connect=min(_CONNECT_SECONDS, silence), read=silence),
            retries=False,
            redirect=False,
            preload_content=not streamed,
        )
        if streamed and response.status >= 400:
            response.read(cache_content=True)  # what it says may break off as well
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"{session.url} cannot be reached: {in_words(error)}") from error
    return response


def _retry_after_seconds(method: str, response: BaseHTTPResponse, status: api_pb2.Status) -> float | None:
    """Return the seconds to wait before a retry; None where the server asked for none, or where the request may have
    been executed."""
    if response.status != _BUSY and (response.status < 500 or method != "GET"):
        return None
    given = response.headers.get("retry-after") or str(status.details.retryAfterSeconds or "")
    return max(1.0, float(given)) if given.isdecimal() else None
