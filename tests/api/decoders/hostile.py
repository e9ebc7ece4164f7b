"""Objects as somebody would write them who wants to do harm: plausible ones, with hostile values anywhere in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

T = TypeVar("T")

_DIGITS = "9" * 5_000
"""More than Python's `int` reads."""
_LONG = "x" * 20_000
_HUGE_NUMBER = "@a number of many digits@"
"""Stands for what `json.dumps` cannot write."""
_MOST_CHANGES = 4
_MOST_LEVELS = 300

TEXTS = (
    "",
    "\0",
    " 1",
    "-1",
    "1_0",
    "²",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "0" * 40,
    _DIGITS,
    _LONG,
    "true",
    "None",
    "NaN",
    "inf",
    "1e999999999",
    "1e-999999999",
    "9" * 63 + "E",
    "-500m",
    "0.0000000000000000000000000001n",
    "18446744073709551616",
    "\N{PILE OF POO}",
    "../../x",
    "a/b/c",
    "{" * 200,
    "Gt",
    "Exists",
    "0=1,1=" + _DIGITS,
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-02-30T25:61:00Z",
)
NUMBERS = (0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    *NUMBERS,
    "\ud800",
    None,
    True,
    False,
    0.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e308,
    _HUGE_NUMBER,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"x": {"x": {"x": []}}},
)
BYTES = (b"", b"\xff", b"\x0a\xff\xff\xff\xff\x7f", b"\x08" + b"\xff" * 12, b"\x0a\x02\xff\xfe", b"\x00" * 50)


class Chooser(Protocol):
    """Where the choices come from: hypothesis, or a fuzzer's bytes."""

    def choice(self, of: Sequence[T], /) -> T: ...

    def randint(self, least: int, most: int, /) -> int: ...


def changed(seed: Any, chooser: Chooser) -> bytes:
    """A seed's bytes, with some of what it says changed."""
    if isinstance(seed, Message):
        return message(seed, chooser)
    return broken(seed, chooser) if isinstance(seed, bytes) else document(seed, chooser)


def document(seed: Any, chooser: Chooser) -> bytes:
    """The JSON text of the seed with some of it changed."""
    found = {"": deepcopy(seed)}
    changes = chooser.randint(1, _MOST_CHANGES)
    for _ in range(changes):
        _change(found, chooser, _MOST_LEVELS // changes)
    text = json.dumps(found[""])
    return text.replace(json.dumps(_HUGE_NUMBER), _DIGITS).encode()


def _change(document: dict[str, Any], chooser: Chooser, most_levels: int) -> None:
    """Something at a place that is chosen on the way down."""
    holder: Any = document
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and chooser.randint(0, 6):
        holder = holder[key]
        key = chooser.choice(list(holder)) if isinstance(holder, dict) else chooser.randint(0, len(holder) - 1)
    match chooser.randint(0, 6):
        case 0 if holder is not document:
            del holder[key]
        case 1 if isinstance(holder, dict) and holder is not document:
            holder[chooser.choice(TEXTS)] = holder[key]
        case 2:
            holder[key] = [holder[key]] * chooser.randint(0, 8)
        case 3:
            for _ in range(chooser.randint(1, most_levels)):
                holder[key] = [holder[key]] if chooser.randint(0, 1) else {"x": holder[key]}
        case _:
            holder[key] = deepcopy(chooser.choice(VALUES))


def message(seed: Message, chooser: Chooser) -> bytes:
    """The bytes of the seed with some of its fields set, and perhaps some of the bytes changed."""
    found = type(seed)()
    found.CopyFrom(seed)
    for _ in range(chooser.randint(1, 6)):
        if chooser.randint(0, 1):
            _change_what_is_there(found, chooser)
        else:
            _set_somewhere(found, chooser)
    data = found.SerializeToString()
    return broken(data, chooser) if chooser.randint(0, 3) == 0 else data


def broken(data: bytes, chooser: Chooser) -> bytes:
    """Some of the bytes changed."""
    found = bytearray(data)
    for _ in range(chooser.randint(1, 4)):
        at = chooser.randint(0, len(found))
        match chooser.randint(0, 2):
            case 0:
                del found[at : at + chooser.randint(1, 8)]
            case 1:
                found[at:at] = chooser.choice(BYTES)
            case _:
                found[at : at + 1] = bytes([chooser.randint(0, 255)])
    return bytes(found)


def _change_what_is_there(holder: Message, chooser: Chooser) -> None:
    """Most that a decoder reads is in seeds already."""
    places = list(_places(holder))
    if places:
        of, field, key = chooser.choice(places)
        held = field.message_type
        value = _scalar(field if held is None else held.fields_by_name["value"], chooser)
        if key is None:
            setattr(of, field.name, value)
        else:
            getattr(of, field.name)[key] = value


def _places(holder: Message) -> Iterator[tuple[Any, FieldDescriptor, Any]]:
    """Where there is a value: the message, the field, and of several ones the index or key."""
    for field, value in holder.ListFields():
        inner = field.message_type
        if inner is None:
            yield from ((holder, field, key) for key in (range(len(value)) if field.is_repeated else (None,)))
        elif not inner.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                yield from _places(each)
        elif inner.fields_by_name["value"].message_type is None:
            yield from ((holder, field, key) for key in sorted(value))
        else:
            for key in sorted(value):
                yield from _places(value[key])


def _set_somewhere(holder: Message, chooser: Chooser) -> None:
    while holder.DESCRIPTOR.fields:
        field = chooser.choice(list(holder.DESCRIPTOR.fields))
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            break
        if not field.is_repeated:
            holder = getattr(holder, field.name)
            holder.SetInParent()
        else:
            holder = _member(getattr(holder, field.name), chooser)
    else:
        return
    if field.is_repeated:
        _extend(getattr(holder, field.name), field, chooser)
    else:
        setattr(holder, field.name, _scalar(field, chooser))


def _member(of: Any, chooser: Chooser) -> Message:
    """One that is there, or a new one."""
    there = len(of)
    if there and chooser.randint(0, 1):
        found: Message = of[chooser.randint(0, there - 1)]
        return found
    added: Message = of.add()
    return added


def _extend(held: Any, field: FieldDescriptor, chooser: Chooser) -> None:
    entry = field.message_type
    for _ in range(chooser.randint(1, 3)):
        if entry is None:
            held.append(_scalar(field, chooser))
            continue
        value = entry.fields_by_name["value"]
        known = sorted(held) if chooser.randint(0, 2) else []  # most that is read is in maps
        key = chooser.choice(known or [*TEXTS, *_KEYS])
        if value.message_type is None:
            held[key] = _scalar(value, chooser)
        else:
            held[key].string = chooser.choice(TEXTS)  # a quantity


_KEYS = ("cpu", "memory", "pods", "nvidia.com/gpu")


def _scalar(field: FieldDescriptor, chooser: Chooser) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chooser.choice(BYTES)
    return chooser.choice(_SCALARS.get(field.cpp_type, (0, 1, 5)))


_SCALARS: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -1.0, 1e308, float("nan"), float("inf")),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 5, 2**31 - 1, -(2**31)),
}


# ---- more of the same


def grown(seed: Any, chooser: Chooser, times: int) -> bytes:
    """The bytes of a seed, of which one list has each of its members so many times, or one map as many more keys."""
    if isinstance(seed, Message):
        found = type(seed)()
        found.CopyFrom(seed)
        lists = list(_lists(found))
        if lists:
            of, field = chooser.choice(lists)
            value = getattr(of, field.name)
            inner = field.message_type
            if inner is None or not inner.GetOptions().map_entry:
                value.extend(list(value) * times)
            elif inner.fields_by_name["value"].message_type is None:
                first = next(iter(value.values()))
                value.update({f"k{number}": first for number in range(times)})
        return found.SerializeToString()
    document = deepcopy(json.loads(seed)) if isinstance(seed, bytes) else deepcopy(seed)
    found_in = [each for each in _values(document) if isinstance(each, dict | list) and each]
    holder = chooser.choice(found_in)
    if isinstance(holder, list):
        holder.extend(deepcopy(holder) * times)
    else:
        first = next(iter(holder.values()))
        holder.update({f"k{number}": deepcopy(first) for number in range(times)})
    return json.dumps(document).encode()


def _lists(holder: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field, value in holder.ListFields():
        inner = field.message_type
        if field.is_repeated:
            yield holder, field
        if inner is not None and not inner.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                yield from _lists(each)


def _values(of: Any) -> Iterator[Any]:
    yield of
    for each in of.values() if isinstance(of, dict) else of if isinstance(of, list) else ():
        yield from _values(each)
