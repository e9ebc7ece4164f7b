"""Protobuf bytes as they are, without parsing them: what has to be known, or mended, before that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_FIXED = {1: 8, 5: 4}


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
    except (IndexError, ValueError):
        return


def in_utf8(descriptor: Any, data: bytes) -> bytes:
    """The bytes of a message with U+FFFD for what is no UTF-8 in its texts. Raises IndexError or ValueError for bytes
    that are no message."""
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
    """The number there, and where it ends. Raises IndexError at the end of the bytes, ValueError for more than 64
    bits."""
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
