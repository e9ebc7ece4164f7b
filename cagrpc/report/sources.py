"""Objects of a running cluster, which `cagrpc.offline.live` lists, or of files, kind by kind, however large: kubectl's
JSON lists are read object by object. Recordings are read in `recorded`."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import ManifestDocument, documents, pods_of_table, read_text
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.client import Client
from cagrpc.offline.live import OF_WAITING_PODS, ClusterObjects, read_resources
from solver.model import PodSet

_CHUNK_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 8 * 1024 * 1024
"""Smaller files are read at once, by the reader of `cagrpc plan`, which names lines."""
_LEFT_OUT = ("Event", "Secret", "ConfigMap", "Lease", "Endpoints", "EndpointSlice", "Service", "ServiceAccount")


@dataclass
class Objects(ClusterObjects):
    """What was read, in no order. Pods that wait are among the documents, those that have ended are not."""

    pod_sets: list[PodSet] = field(default_factory=list)
    """Of tables: pods without a node."""
    warnings: list[str] = field(default_factory=list)
    packed: bool = True
    """Whether it is known which pods are on which nodes."""

    def add(self, document: ManifestDocument) -> None:
        kind = document.kind
        if kind in _LEFT_OUT or self.bound.add(document):
            return
        has_ended = kind == "Pod" and document.spec.get("nodeName")
        if not has_ended:
            self.documents.append(document)


def read_cluster(kubeconfig: Path, context: str = "") -> Objects:
    """Return what the cluster of a kubeconfig's context has. Raises InvalidInput for an invalid kubeconfig, Unavailable
    where nodes or pods cannot be listed."""
    with closing(Client.connect(kubeconfig, context)) as client:
        return read_objects(client)


def read_objects(client: Client) -> Objects:
    """Return what the cluster has."""
    listed = read_resources(client, without=OF_WAITING_PODS)
    found = Objects(bound=listed.bound, unread=listed.unread, listed=listed.listed)
    for each in listed.documents:
        found.add(each)
    return found


def read_files(paths: Sequence[Path]) -> Objects:
    """Return the objects of Kubernetes YAML or JSON and of tables of pods (CSV). Raises InvalidInput with every
    problem."""
    found, problems = Objects(), Problems()
    for path in dict.fromkeys(paths):
        if path.suffix.lower() == ".csv":
            text = read_text(path, problems)
            found.pod_sets += [] if text is None else pods_of_table(path, text, problems)
            continue
        for document in _documents(path, problems):
            found.add(document)
    if problems:
        raise InvalidInput("\n".join(dict.fromkeys(problems)))
    return found


def _documents(path: Path, problems: Problems) -> Iterator[ManifestDocument]:
    try:
        large = path.stat().st_size > _LARGE_BYTES
    except (OSError, ValueError):
        large = False  # `read_text` says why
    if large and path.suffix.lower() == ".json":
        try:
            with path.open("rb") as file:
                yield from _of_list(path, file)
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path}: is no JSON list of Kubernetes objects: {error!s:.200}")
        return
    text = read_text(path, problems)
    if text is not None:
        yield from documents(path, text, problems)


def _of_list(path: Path, file: BinaryIO) -> Iterator[ManifestDocument]:
    """Yield the items of one v1.List or PodList in JSON, with at most a few megabytes of text at a time. Raises
    ValueError for anything else."""
    text = _Text(file)
    text.expect("{")
    kind, empty = "", text.accept("}")
    while not empty:
        name = text.value()
        text.expect(":")
        if name != "items":
            found = text.value()
            kind = found if name == "kind" and isinstance(found, str) else kind
        else:
            yield from _items(path, text, kind.removesuffix("List"))
        if text.accept("}"):
            break
        text.expect(",")


def _items(path: Path, text: _Text, kind: str) -> Iterator[ManifestDocument]:
    text.expect("[")
    if text.accept("]"):
        return
    index = 0
    while True:
        body = text.value()
        if not isinstance(body, Mapping):
            raise ValueError(f"items[{index}] is no object")  # noqa: TRY004 - of the file
        named = body if body.get("kind") else {**body, "kind": kind}
        if not named["kind"]:
            raise ValueError(f"items[{index}] has no kind")
        yield ManifestDocument(f"{path}.items[{index}]", named)
        index += 1
        if text.accept("]"):
            return
        text.expect(",")


class _Text:
    """JSON as it is read, value by value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._buffer = ""
        self._at = 0
        self._ended = False

    def value(self) -> Any:
        """Return the value that comes next."""
        while True:
            self._skip()
            try:
                found, end = self._json.raw_decode(self._buffer, self._at)
            except ValueError:
                if not self._more():
                    raise
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may go on
            self._at = end
            return found

    def expect(self, character: str) -> None:
        if not self.accept(character):
            shown = self._buffer[self._at : self._at + 20]
            raise ValueError(f"expected {character!r}, found {shown!r}")

    def accept(self, character: str) -> bool:
        self._skip()
        if self._buffer[self._at : self._at + 1] != character:
            return False
        self._at += 1
        return True

    def _skip(self) -> None:
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._buffer) or not self._more():
                return

    def _more(self) -> bool:
        """Read on; return whether there was anything."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK_BYTES)
        self._ended = not data
        self._buffer = self._buffer[self._at :] + self._decode.decode(data, final=self._ended)
        self._at = 0
        return not self._ended
