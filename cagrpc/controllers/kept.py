"""Where a controller keeps what has to outlive the process, and is neither the journal's nor any other object's: in a
ConfigMap where there is a cluster, else in a file of the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cagrpc.errors import NotFound

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.kube.client.client import Client


class Keeping(Protocol):
    """Where it is kept: a boundary with two implementations."""

    def read(self) -> str:
        """Return what was written last; empty where nothing was."""
        ...

    def write(self, text: str) -> None: ...


class InFile:
    """Keeps it in the state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def write(self, text: str) -> None:
        beside = self._path.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._path)


class InConfigMap:
    """Keeps it in the namespace of cagrpc, under one key of a ConfigMap of its own."""

    def __init__(self, client: Client, namespace: str, name: str, key: str) -> None:
        self._client = client
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name, self._key = name, key

    def read(self) -> str:
        try:
            found = self._client.get(f"{self._collection}/{self._name}")
        except NotFound:
            return ""
        return str((found.get("data") or {}).get(self._key, ""))

    def write(self, text: str) -> None:
        data = {"data": {self._key: text}}
        try:
            self._client.patch(f"{self._collection}/{self._name}", data)
        except NotFound:
            self._client.create(
                self._collection, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}, **data}
            )
