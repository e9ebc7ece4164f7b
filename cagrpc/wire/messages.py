"""Protobuf bytes to messages and to plain dicts in the shape of Kubernetes' JSON, and back. What the dicts mean is said
in `pods`, `nodes` and `manifests`; nothing here knows planning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from cagrpc.errors import InvalidInput
from cagrpc.wire.gen import kubernetes_pb2

M = TypeVar("M", bound=Message)

_QUANTITY = kubernetes_pb2.Quantity.DESCRIPTOR
_TIME = kubernetes_pb2.Time.DESCRIPTOR


def parse(message_type: type[M], data: bytes) -> M:
    """`data` as a message; unknown fields are kept. Raises InvalidInput with the message's full name."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidInput(f"these {len(data)} bytes are not a {name} message: {error}") from error


def discard_unknown_fields(message: Message) -> None:
    """All that its proto file does not declare, also of the messages in it."""
    message.DiscardUnknownFields()  # type: ignore[attr-defined] # protobuf's stubs do not know it


def has_more_fields(data: bytes, most: int) -> bool:
    """Whether the message, and those right in it, have more fields than that. Looked at before parsing: that may make
    forty bytes of every two, and holds every other thread up. Of malformed bytes what comes before the fault counts."""
    view, fields = memoryview(data), 0
    for outer in _fields(view):
        fields += 1
        for _ in _fields(outer):
            fields += 1
            if fields > most:
                return True
        if fields > most:
            return True
    return False


_FIXED = {1: 8, 5: 4}


def _fields(view: memoryview) -> Iterator[memoryview]:
    """The values of a message's fields; empty for those that hold no bytes."""
    at, end = 0, len(view)
    try:
        while at < end:
            tag, at = _varint(view, at)
            if tag & 7 == 2:
                length, at = _varint(view, at)
                yield view[at : at + length]
                at += length
                continue
            if tag & 7 == 0:
                _, at = _varint(view, at)
            at += _FIXED.get(tag & 7, 0)
            yield view[:0]
    except IndexError:
        return


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    byte = view[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while byte >= 128 and shift < 64:
        byte = view[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    return value, at


def plain(message: Message) -> Any:
    """A message of `kubernetes.proto` as the dict (a quantity: as the string, a time: as seconds since the epoch) that
    the same object's JSON has. Unset and default values are absent."""
    descriptor = message.DESCRIPTOR
    if descriptor is _QUANTITY:
        return message.string  # type: ignore[attr-defined]
    if descriptor is _TIME:
        return message.seconds  # type: ignore[attr-defined]
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def packed(message_type: type[M], document: Mapping[str, Any]) -> M:
    """The message that `plain` gives `document` of. Raises `KeyError` for a field that it has not."""
    message = message_type()
    _fill(message, document)
    return message


def known(message_type: type[Message], document: Any) -> Any:
    """What of a document in the shape of Kubernetes' JSON the message has fields for. Raises TypeError or
    AttributeError for a document of another shape."""
    return _known(message_type.DESCRIPTOR, document)


def _known(descriptor: Any, document: Any) -> Any:
    if descriptor is _QUANTITY:
        return str(document)
    fields = descriptor.fields_by_name
    return {
        name: _known_value(fields[name], value)
        for name, value in document.items()
        if name in fields and value is not None
    }


def _known_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is None:
        return value
    if field.message_type.GetOptions().map_entry:
        held = field.message_type.fields_by_name["value"].message_type
        return value if held is None else {key: _known(held, item) for key, item in value.items()}
    return (
        [_known(field.message_type, item) for item in value] if field.is_repeated else _known(field.message_type, value)
    )


def _fill(message: Message, value: Any) -> None:
    if message.DESCRIPTOR is _QUANTITY:
        message.string = value  # type: ignore[attr-defined]
    elif message.DESCRIPTOR is _TIME:
        message.seconds = value  # type: ignore[attr-defined]
    else:
        for name, inner in value.items():
            _fill_field(message, message.DESCRIPTOR.fields_by_name[name], inner)


def _fill_field(message: Message, field: FieldDescriptor, value: Any) -> None:
    if field.message_type is None and not field.is_repeated:
        setattr(message, field.name, value)
        return
    held = getattr(message, field.name)
    if field.message_type is None:
        held.extend(value)
    elif not field.message_type.GetOptions().map_entry:
        for item in value if field.is_repeated else [value]:
            _fill(held.add() if field.is_repeated else held, item)
    elif field.message_type.fields_by_name["value"].message_type is None:
        held.update(value)
    else:
        for key, item in value.items():
            _fill(held[key], item)


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        held = field.message_type.fields_by_name["value"]
        return dict(value) if held.message_type is None else {key: plain(value[key]) for key in value}
    return [plain(item) for item in value] if field.is_repeated else plain(value)
