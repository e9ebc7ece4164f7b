"""Encodings of lists, watch events and their frames, in protobuf or JSON. Objects in them are opaque: bytes (protobuf)
or dicts (JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cagrpc.api.encoding.json_documents import json_value, mapping, whole_number
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import api_pb2
from cagrpc.errors import InvalidInput, shown

_MAGIC = b"k8s\x00"
_LENGTH_BYTES = 4
_LONGEST_FRAME = 64 * 1024 * 1024  # etcd's limit is 1.5 MB; a larger length is invalid


class Encoding(StrEnum):
    PROTOBUF = "application/vnd.kubernetes.protobuf"
    """The encoding of built-in resources; several times cheaper than JSON on both sides."""
    JSON = "application/json"
    """The encoding of custom resources, which have no other."""


class WatchEventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list."""

    items: Iterable[Any]
    resource_version: str
    continue_token: str
    """Empty on the last page."""


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """UID, namespace and name of an object."""

    uid: str
    namespace: str
    """Empty for a cluster-scoped object."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


NOBODY = ObjectIdentity("", "", "")


@dataclass(frozen=True, slots=True)
class WatchEvent:
    change: WatchEventType
    item: Any
    """The object; for ERROR the Status, as in the body of an error response."""
    resource_version: str
    of: ObjectIdentity = NOBODY


def enveloped(data: bytes) -> bytes | None:
    """Return the content of a protobuf envelope; None where `data` is none."""
    if not data.startswith(_MAGIC):
        return None
    return parse(api_pb2.Unknown, data[len(_MAGIC) :]).raw


def is_older(version: str, other: str) -> bool:
    """Return whether a resource version is lower than another one of the same resource. They are numbers that grow
    (KEP-5504); of what is none, neither is older."""
    one, two = whole_number(version), whole_number(other)
    return one is not None and two is not None and one < two


def page(encoding: Encoding, body: bytes) -> ListPage:
    """Decode a page of a list. Raises InvalidInput for anything else."""
    if encoding is Encoding.PROTOBUF:
        found = parse(api_pb2.List, _opened(body))
        return ListPage(found.items, found.metadata.resourceVersion, found.metadata.continueToken)
    document = _json(body)
    metadata = mapping(document, "metadata")
    items = document.get("items")
    if not isinstance(items, list):
        raise InvalidInput(f"expected a list with items, found {shown(body[:60])}")
    return ListPage(items, str(metadata.get("resourceVersion") or ""), str(metadata.get("continue") or ""))


def event(encoding: Encoding, frame: bytes) -> WatchEvent:
    """Decode a watch event. Raises InvalidInput for anything else."""
    if encoding is Encoding.PROTOBUF:
        message = parse(api_pb2.WatchEvent, frame)
        change = _change(message.type)
        if change is WatchEventType.ERROR:
            return WatchEvent(change, message.object.raw, "")
        item = _opened(message.object.raw)
        metadata = parse(api_pb2.Object, item).metadata
        return WatchEvent(change, item, metadata.resourceVersion, _identity(metadata))
    document = _json(frame)
    change = _change(document.get("type"))
    found = document.get("object")
    if not isinstance(found, dict):
        raise InvalidInput(f"a watch event without an object: {shown(frame[:60])}")
    if change is WatchEventType.ERROR:
        return WatchEvent(change, json.dumps(found).encode(), "")
    version = mapping(found, "metadata").get("resourceVersion")
    return WatchEvent(change, found, str(version or ""), identity(encoding, found))


def identity(encoding: Encoding, item: Any) -> ObjectIdentity:
    """Return the identity of an object of a list or watch, even if the rest is invalid. Raises InvalidInput where that
    is invalid too."""
    if encoding is Encoding.PROTOBUF:
        return _identity(parse(api_pb2.Object, item).metadata)
    if not isinstance(item, Mapping):
        raise InvalidInput(f"expected an object, found {shown(item)}")
    metadata = mapping(item, "metadata")
    return ObjectIdentity(*(str(metadata.get(each) or "") for each in ("uid", "namespace", "name")))


def _identity(metadata: api_pb2.ObjectMeta) -> ObjectIdentity:
    return ObjectIdentity(metadata.uid, metadata.namespace, metadata.name)


def frames(encoding: Encoding, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the events in a watch's bytes, however these are chunked: each prefixed by its length (protobuf: four
    bytes, big-endian), or one a line (JSON). An incomplete rest is dropped. Raises InvalidInput for anything else."""
    cut = _prefixed if encoding is Encoding.PROTOBUF else _line
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        start = 0
        while (found := cut(buffer, start)) is not None:
            begin, end = found
            start = end if encoding is Encoding.PROTOBUF else end + 1
            if end > begin:
                yield bytes(buffer[begin:end])
        del buffer[:start]


def _prefixed(buffer: bytearray, start: int) -> tuple[int, int] | None:
    begin = start + _LENGTH_BYTES
    if len(buffer) < begin:
        return None
    length = int.from_bytes(buffer[start:begin], "big")
    if length > _LONGEST_FRAME:
        raise InvalidInput(f"a frame of {length} bytes in a watch; this is not a stream of watch events")
    return (begin, begin + length) if len(buffer) >= begin + length else None


def _line(buffer: bytearray, start: int) -> tuple[int, int] | None:
    end = buffer.find(b"\n", start)
    return None if end < 0 else (start, end)


def _opened(data: bytes) -> bytes:
    raw = enveloped(data)
    if raw is None:
        raise InvalidInput(f"expected protobuf of the API server, found {shown(data[:60])}")
    return raw


def _json(data: bytes) -> dict[str, Any]:
    document = json_value(data)
    if not isinstance(document, dict):
        raise InvalidInput(f"expected a JSON object, found {shown(data[:60])}")
    return document


def _change(found: Any) -> WatchEventType:
    try:
        return WatchEventType(found)
    except ValueError as error:
        raise InvalidInput(f"a watch event of type {shown(found)}") from error
