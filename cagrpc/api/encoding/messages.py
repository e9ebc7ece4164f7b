"""Protobuf bytes to messages and to plain dicts in the shape of Kubernetes' JSON, and back, with checks and repairs of
bytes before they are parsed. The dicts are interpreted in `cagrpc.api.core`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from cagrpc.api.encoding.json_documents import epoch_seconds
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput, shown

_FIXED = {1: 8, 5: 4}


def has_more_fields(data: bytes, most: int) -> bool:
    """Return whether the message and its direct children have more fields than `most`. Check this before parsing, which
    can turn two bytes into forty and blocks all other threads. Of malformed bytes, the part before the fault is
    counted."""
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


def _fields(view: memoryview) -> Iterator[memoryview]:
    """Yield the values of a message's fields; empty for those that hold no bytes."""
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
    except (IndexError, ValueError):
        return


def in_utf8(descriptor: Any, data: bytes) -> bytes:
    """Return the bytes of a message with invalid UTF-8 in its strings replaced by U+FFFD. Raises IndexError or
    ValueError for malformed bytes."""
    result, at = bytearray(), 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, begin = _varint(data, at)
                at = begin + length
                if at > len(data):
                    raise IndexError("a field that is longer than its message")
                field = descriptor.fields_by_number.get(tag >> 3)
                mended = data[begin:at] if field is None else _field_in_utf8(field, data[begin:at])
                result += data[start:begin] if len(mended) == length else _as_varint(tag) + _as_varint(len(mended))
                result += mended
                continue
            case other:
                raise ValueError(f"wire type {other}")
        result += data[start:at]
    return bytes(result)


def _field_in_utf8(field: FieldDescriptor, data: bytes) -> bytes:
    if field.type == FieldDescriptor.TYPE_STRING:
        return data.decode(errors="replace").encode()
    return data if field.message_type is None else in_utf8(field.message_type, data)


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the varint at `at` and the index after it. Raises IndexError at the end of the bytes, ValueError for more
    than 64 bits."""
    number = data[at]
    at += 1
    if number < 0x80:
        return number, at
    number &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")


def _as_varint(number: int) -> bytes:
    result = bytearray()
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


M = TypeVar("M", bound=Message)

_QUANTITY = kubernetes_pb2.Quantity.DESCRIPTOR
_TIME = kubernetes_pb2.Time.DESCRIPTOR
_VOLUME = kubernetes_pb2.Volume.DESCRIPTOR


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


def message_to_dict(message: Message) -> Any:
    """Return a message of `kubernetes.proto` as the dict of its JSON; a quantity is its string, a time the seconds
    since the epoch. Unset and default values are absent."""
    descriptor = message.DESCRIPTOR
    if descriptor is _QUANTITY:
        return message.string  # type: ignore[attr-defined]
    if descriptor is _TIME:
        return message.seconds  # type: ignore[attr-defined]
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def known_to_message(message_type: type[M], document: Any) -> M:
    """Return the message of a document in the shape of Kubernetes' JSON, without the fields that the message does not
    declare; times may be seconds, too. Raises InvalidInput with the path of what has another shape."""
    return message_type(**_known(message_type.DESCRIPTOR, document, ""))


def _known(descriptor: Any, document: Any, path: str) -> dict[str, Any]:
    """Return what the message's constructor takes."""
    if descriptor is _QUANTITY:
        if isinstance(document, bool) or not isinstance(document, str | int | float):
            raise _unlike(path, "a quantity", document)
        return {"string": str(document)}
    if descriptor is _TIME:
        is_number = isinstance(document, int) and not isinstance(document, bool)
        return {"seconds": document if is_number else epoch_seconds(document)}
    if not isinstance(document, Mapping):
        raise _unlike(path, "a mapping", document)
    if descriptor is _VOLUME and "volumeSource" not in document:  # which JSON has inline
        document = {"name": document.get("name"), "volumeSource": document}
    fields = descriptor.fields_by_name
    return {
        name: _known_value(fields[name], value, f"{path}.{name}".removeprefix("."))
        for name, value in document.items()
        if name in fields and value is not None
    }


def _known_value(field: FieldDescriptor, value: Any, path: str) -> Any:
    held = field.message_type
    if held is not None and held.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise _unlike(path, "a mapping", value)
        of = held.fields_by_name["value"]
        return {str(key): _one(of, item, f"{path}.{key}") for key, item in value.items()}
    if not field.is_repeated:
        return _one(field, value, path)
    if not isinstance(value, list | tuple):
        raise _unlike(path, "a list", value)
    return [_one(field, item, f"{path}[{index}]") for index, item in enumerate(value)]


def _one(field: FieldDescriptor, value: Any, path: str) -> Any:
    if field.message_type is not None:
        return _known(field.message_type, value, path)
    kind, what = _SCALARS[field.cpp_type] if field.type != FieldDescriptor.TYPE_BYTES else (bytes, "bytes")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _unlike(path, what, value)
    bits = _BITS.get(field.cpp_type, 0)
    if bits and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise _unlike(path, f"a whole number of {bits} bits", value)
    return value


_BITS = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}
_SCALARS: Mapping[int, tuple[type[Any], str]] = {
    FieldDescriptor.CPPTYPE_STRING: (str, "text"),
    FieldDescriptor.CPPTYPE_BOOL: (bool, "true or false"),
    FieldDescriptor.CPPTYPE_INT32: (int, "a whole number"),
    FieldDescriptor.CPPTYPE_INT64: (int, "a whole number"),
}


def _unlike(path: str, what: str, found: Any) -> InvalidInput:
    return InvalidInput(f"{path}: expected {what}, found {shown(found)}")


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        held = field.message_type.fields_by_name["value"]
        return dict(value) if held.message_type is None else {key: message_to_dict(value[key]) for key in value}
    return [message_to_dict(item) for item in value] if field.is_repeated else message_to_dict(value)
