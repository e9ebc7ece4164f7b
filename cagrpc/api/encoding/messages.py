"""Protobuf bytes to messages and to plain dicts in the shape of Kubernetes' JSON, and back. The dicts are interpreted
in `pods`, `nodes` and `manifests`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from cagrpc.api.encoding.raw import in_utf8
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput

M = TypeVar("M", bound=Message)

_QUANTITY = kubernetes_pb2.Quantity.DESCRIPTOR
_TIME = kubernetes_pb2.Time.DESCRIPTOR


def parse(message_type: type[M], data: bytes) -> M:
    """Parse `data`; unknown fields are preserved. Invalid UTF-8 in strings is read as U+FFFD, as in the API server's
    JSON, because that server passes on what clients wrote in protobuf. Raises InvalidInput with the message's full
    name."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        try:
            return message_type.FromString(in_utf8(message_type.DESCRIPTOR, data))
        except (DecodeError, IndexError, ValueError):
            name = message_type.DESCRIPTOR.full_name
            raise InvalidInput(f"these {len(data)} bytes are not a {name} message: {error}") from error


def discard_unknown_fields(message: Message) -> None:
    """Discard the fields that the proto file does not declare, also of nested messages."""
    message.DiscardUnknownFields()  # type: ignore[attr-defined] # protobuf's stubs do not know it


def plain(message: Message) -> Any:
    """Return a message of `kubernetes.proto` as the dict of its JSON; a quantity is its string, a time the seconds
    since the epoch. Unset and default values are absent."""
    descriptor = message.DESCRIPTOR
    if descriptor is _QUANTITY:
        return message.string  # type: ignore[attr-defined]
    if descriptor is _TIME:
        return message.seconds  # type: ignore[attr-defined]
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def packed(message_type: type[M], document: Mapping[str, Any]) -> M:
    """Return the message of which `plain` gives `document`. Raises `KeyError` for an unknown field."""
    message = message_type()
    _fill(message, document)
    return message


def packed_known(message_type: type[M], document: Any) -> M:
    """Return the message of a document in the shape of Kubernetes' JSON, without the fields that the message does not
    declare; times may be seconds, too. Raises InvalidInput for a document of another shape."""
    try:
        return packed(message_type, _known(message_type.DESCRIPTOR, document))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"expected a {message_type.DESCRIPTOR.name}: {error!r:.200}") from error


def _known(descriptor: Any, document: Any) -> Any:
    if descriptor is _QUANTITY:
        if not isinstance(document, str | int | float):
            raise TypeError(f"expected a quantity, found {document!r:.40}")
        return str(document)
    if descriptor is _TIME:
        return epoch_seconds(document) if isinstance(document, str) else int(document)
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
        if not field.is_repeated:
            held.SetInParent()  # an empty selector selects everything, one that is not there nothing
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
