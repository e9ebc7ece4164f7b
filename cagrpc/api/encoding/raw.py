"""Protobuf on the wire: checks and repairs of bytes before they are parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

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
