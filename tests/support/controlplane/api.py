"""The tests' own hand in the cluster: JSON requests that share no code with the client that they test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3


class ApiRefusal(Exception):  # noqa: N818 - named for what happened
    def __init__(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.headers = headers


class Api:
    """Any method raises ApiRefusal for a status from 400 on, and urllib3's errors where nobody answers."""

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._server = server
        self._pool = urllib3.PoolManager(ca_certs=str(authority), maxsize=8, retries=False, timeout=30)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def get(self, path: str, **query: str) -> Any:
        return self.ask("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Any]:
        return list(self.get(path, **query)["items"])

    def any(self, path: str, **query: str) -> bool:
        """Whether the collection has anything, however much that is."""
        return bool(self.items(path, limit="1", **query))

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.ask("POST", path, body)

    def ensure(self, path: str, body: Mapping[str, Any]) -> None:
        """Create it where there is none of that name."""
        try:
            self.create(path, body)
        except ApiRefusal as refused:
            if refused.status != 409:
                raise

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.ask("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str, **options: Any) -> None:
        """An object, or all of a collection; `options` are fields of DeleteOptions. Gone already is no error."""
        try:
            self.ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except ApiRefusal as refused:
            if refused.status != 404:
                raise

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        answer = self.answer(method, path, body, kind=kind, query=query)
        text = answer.data.decode()
        return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text

    def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """With its headers."""
        url = f"{self._server}{path}?{urlencode(query)}" if query else self._server + path
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": kind}
        answer = self._pool.request(method, url, body=content, headers=headers)
        if answer.status >= 400:
            raise ApiRefusal(answer.status, answer.data.decode(), answer.headers)
        return answer

    def close(self) -> None:
        self._pool.clear()
