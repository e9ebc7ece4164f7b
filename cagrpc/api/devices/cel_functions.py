"""The functions of CEL expressions over devices: Kubernetes' quantity and semver libraries, its string functions, and
comparison of values of different types as Kubernetes' CEL compares what is typed dynamically (upstream:
apiserver/pkg/cel/library; cel-go ext/strings). Everything else that cel-python knows is not reachable."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering
from typing import Any

import re2
from celpy import celtypes
from celpy.evaluation import CELEvalError, base_functions

from cagrpc.errors import shown
from solver.model.quantities import parse_quantity

_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)
_LOOSE_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?((?:-[^+]*)?(?:\+.*)?)")
_INT64 = 2**63
_MOST_PATTERN_BYTES = 256 * 1024
"""The size of a compiled pattern, and of what RE2 keeps to match it faster: some thousand characters and small
classes."""
_LARGE_PARTS = re.compile(r"\\[pP]|\{")
_STEPS_PER_CLASS = 32
"""What compiling costs: for each class of Unicode (120 µs) and each repetition, beside one for each character."""
_INSTRUCTIONS_PER_STEP, _MATCHING_PER_STEP = 32, 1000
"""Instructions of the program that are made, and (times characters) that run, in the time of one step."""


@dataclass(frozen=True, slots=True)
class QuantityValue:
    """apimachinery's resource.Quantity, exact."""

    value: Fraction


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version; build metadata does not count (https://semver.org)."""

    numbers: tuple[int, int, int]
    pre_release: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Semver:
        """Read a semantic version. Raises ValueError for what is none."""
        found = _VERSION.fullmatch(text) if len(text) <= 256 else None
        if found is None:
            raise ValueError(f"{shown(text[:64])} is not a semantic version")
        return cls(
            (int(found[1]), int(found[2]), int(found[3])), tuple((found[4] or "").split(".")) if found[4] else ()
        )

    def __lt__(self, other: Semver) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[Any, ...]:
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre_release)
        return self.numbers, not self.pre_release, parts


def quantity(text: Any) -> QuantityValue:
    """Read a quantity. Raises ValueError for what is none."""
    if not isinstance(text, celtypes.StringType):
        raise TypeError("quantity() takes text")
    negative = text.startswith("-")
    value = parse_quantity(str(text[1:] if negative else text))
    return QuantityValue(-value if negative else value)


def _semver(text: Any, normalize: Any = False) -> Semver:
    if not isinstance(text, celtypes.StringType):
        raise TypeError("semver() takes text")
    said = str(text)
    if normalize and (found := _LOOSE_VERSION.fullmatch(said)):
        said = ".".join(str(int(number or 0)) for number in found.groups()[:3]) + (found[4] or "")
    return Semver.of(said)


def _whether(make: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*arguments: Any) -> Any:
        try:
            make(*arguments)
        except ValueError:
            return celtypes.BoolType(False)
        return celtypes.BoolType(True)

    return answer


def _two(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two quantities, or two versions, to compare."""
    if isinstance(one, QuantityValue) and isinstance(other, QuantityValue):
        return one.value, other.value
    if isinstance(one, Semver) and isinstance(other, Semver):
        return one, other
    raise TypeError("compares two quantities or two versions")


def _compared(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: answer(*_two(one, other))


def _of_quantity(value: Any) -> Fraction:
    if not isinstance(value, QuantityValue):
        raise TypeError("takes a quantity")
    return value.value


def _term(value: Any) -> Fraction:
    if isinstance(value, celtypes.IntType):
        return Fraction(int(value))
    return _of_quantity(value)


def _is_integer(value: Any) -> Any:
    found = _of_quantity(value)
    return celtypes.BoolType(found.denominator == 1 and -_INT64 <= found < _INT64)


def _as_integer(value: Any) -> Any:
    found = _of_quantity(value)
    if found.denominator != 1:
        raise ValueError("the quantity is not a whole number")
    return celtypes.IntType(int(found))


def _sign(value: Any) -> Any:
    found = _of_quantity(value)
    return celtypes.IntType((found > 0) - (found < 0))


def _part_of_version(index: int) -> Callable[[Any], Any]:
    def part(value: Any) -> Any:
        if not isinstance(value, Semver):
            raise TypeError("takes a version")
        return celtypes.IntType(value.numbers[index])

    return part


def _text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of text that takes nothing else in its first place."""

    def checked(text: Any, *arguments: Any) -> Any:
        if not isinstance(text, celtypes.StringType):
            raise TypeError("takes text")
        return function(str(text), *arguments)

    return checked


def _replace(text: str, old: Any, new: Any) -> Any:
    if not old or len(text) * (len(new) + 1) > 1_000_000:
        raise ValueError("replaces too much")
    return celtypes.StringType(text.replace(str(old), str(new)))


def _split(text: str, separator: Any) -> Any:
    return celtypes.ListType(
        [celtypes.StringType(part) for part in (text.split(str(separator)) if separator else text)]
    )


def _substring(text: str, start: Any, end: Any = None) -> Any:
    last = len(text) if end is None else int(end)
    if not 0 <= int(start) <= last <= len(text):
        raise ValueError("beyond the text")
    return celtypes.StringType(text[int(start) : last])


def _pattern(take: Callable[[int], None], pattern: Any, text: str) -> Any:
    """Return a compiled pattern, once the steps are taken that compiling it and looking for it in the text cost. RE2
    itself remembers the last 128 patterns, of at most `_MOST_PATTERN_BYTES` each."""
    source = str(pattern)
    take(len(source) + _STEPS_PER_CLASS * len(_LARGE_PARTS.findall(source)))
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MOST_PATTERN_BYTES
    try:
        found = re2.compile(source, options)
    except re2.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    size = found.programsize + found.reverseprogramsize
    take(size // _INSTRUCTIONS_PER_STEP + len(text) * size // _MATCHING_PER_STEP)
    return found


def _find(take: Callable[[int], None], text: Any, pattern: Any) -> Any:
    if not isinstance(text, celtypes.StringType):
        raise TypeError("takes text")
    found = _pattern(take, pattern, text).search(str(text))
    return celtypes.StringType(found.group(0) if found else "")


def _matches(take: Callable[[int], None], text: Any, pattern: Any) -> Any:
    if not isinstance(text, celtypes.StringType):
        raise TypeError("takes text")
    return celtypes.BoolType(_pattern(take, pattern, text).search(str(text)) is not None)


def _includes(holder: Any, item: Any) -> Any:
    """Return whether a list has the item, or a single value is it (upstream: the function of list attributes)."""
    values = holder if isinstance(holder, celtypes.ListType) else [holder]
    return celtypes.BoolType(any(_same(each, item) for each in values))


def _number(value: Any) -> bool:
    return isinstance(value, (celtypes.IntType, celtypes.UintType, celtypes.DoubleType))


def _same(one: Any, other: Any) -> bool:
    if _number(one) and _number(other):
        return _plain(one) == _plain(other)
    if isinstance(one, celtypes.ListType) and isinstance(other, celtypes.ListType):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, celtypes.MapType) and isinstance(other, celtypes.MapType):
        return set(one.keys()) == set(other.keys()) and all(_same(one[key], other[key]) for key in one.keys())  # noqa: SIM118 - noted reads
    if type(one) is not type(other):
        return False
    return bool(one == other)


def _of_values(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an operator that fails as its operands do."""

    def checked(one: Any, other: Any) -> Any:
        failed = [each for each in (one, other) if isinstance(each, CELEvalError)]
        return failed[0] if failed else function(one, other)

    return checked


def _ordered(compare: Callable[[Any, Any], bool], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a comparison that takes numbers of different types, too."""

    def compared(one: Any, other: Any) -> Any:
        if _number(one) and _number(other):
            return celtypes.BoolType(compare(_plain(one), _plain(other)))
        return otherwise(one, other)

    return compared


def _plain(number: Any) -> int | float:
    return float(number) if isinstance(number, float) else int(number)


@_of_values
def _in(item: Any, holder: Any) -> Any:
    if isinstance(holder, celtypes.MapType):
        return celtypes.BoolType(item in holder)
    if isinstance(holder, celtypes.ListType):
        return celtypes.BoolType(any(_same(item, each) for each in holder))
    raise TypeError("in takes a list or a map")


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that takes numbers alone: to Python, text modulo a value is a format."""

    @_of_values
    def checked(one: Any, other: Any) -> Any:
        if not (_number(one) and _number(other)):
            raise TypeError("takes numbers")
        return function(one, other)

    return checked


@_of_values
def _added(one: Any, other: Any) -> Any:
    """Return the sum of two numbers, texts or lists: to Python that of two of its subclasses is none of these."""
    if _number(one) and _number(other):
        return base_functions["_+_"](one, other)
    if isinstance(one, celtypes.StringType) and isinstance(other, celtypes.StringType):
        return celtypes.StringType(str.__add__(one, other))
    if isinstance(one, celtypes.BytesType) and isinstance(other, celtypes.BytesType):
        return celtypes.BytesType(bytes.__add__(one, other))
    if isinstance(one, celtypes.ListType) and isinstance(other, celtypes.ListType):
        return celtypes.ListType([*one, *other])
    raise TypeError("takes two numbers, texts or lists")


def either(one: Any, other: Any) -> Any:
    """Return whether one of two holds; what fails does not matter where the other holds."""
    return _decided(one, other, decides=True)


def both(one: Any, other: Any) -> Any:
    """Return whether both of two hold; what fails does not matter where the other does not hold."""
    return _decided(one, other, decides=False)


def _decided(one: Any, other: Any, *, decides: bool) -> Any:
    for each in (one, other):
        if isinstance(each, celtypes.BoolType) and bool(each) == decides:
            return each
    for each in (one, other):
        if not isinstance(each, celtypes.BoolType):
            return each if isinstance(each, CELEvalError) else CELEvalError("no such overload", TypeError, None)
    return celtypes.BoolType(not decides)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        name: base_functions[name]
        for name in ("size", "contains", "startsWith", "endsWith", "bool", "double", "int", "string", "uint", "type")
    },
    "_==_": _of_values(lambda one, other: celtypes.BoolType(_same(one, other))),
    "_!=_": _of_values(lambda one, other: celtypes.BoolType(not _same(one, other))),
    "_in_": _in,
    "_+_": _added,
    "_||_": either,
    "_&&_": both,
    **{name: _of_numbers(base_functions[name]) for name in ("_-_", "_*_", "_/_", "_%_")},
    **{
        name: _ordered(compare, base_functions[name])
        for name, compare in (("_<_", operator.lt), ("_<=_", operator.le), ("_>_", operator.gt), ("_>=_", operator.ge))
    },
    "quantity": quantity,
    "isQuantity": _whether(quantity),
    "semver": _semver,
    "isSemver": _whether(_semver),
    "compareTo": _compared(lambda one, other: celtypes.IntType((one > other) - (one < other))),
    "isGreaterThan": _compared(lambda one, other: celtypes.BoolType(one > other)),
    "isLessThan": _compared(lambda one, other: celtypes.BoolType(one < other)),
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda value: celtypes.DoubleType(float(_of_quantity(value))),
    "sign": _sign,
    "add": lambda one, other: QuantityValue(_of_quantity(one) + _term(other)),
    "sub": lambda one, other: QuantityValue(_of_quantity(one) - _term(other)),
    "major": _part_of_version(0),
    "minor": _part_of_version(1),
    "patch": _part_of_version(2),
    "includes": _includes,
    "lowerAscii": _text(lambda text: celtypes.StringType("".join(c.lower() if c.isascii() else c for c in text))),
    "upperAscii": _text(lambda text: celtypes.StringType("".join(c.upper() if c.isascii() else c for c in text))),
    "trim": _text(lambda text: celtypes.StringType(text.strip())),
    "indexOf": _text(lambda text, part: celtypes.IntType(text.find(str(part)))),
    "replace": _text(_replace),
    "split": _text(_split),
    "substring": _text(_substring),
}
"""Functions by name, for calls as functions and as methods; operators have the names that cel-python gives them."""
FUNCTIONS_OF_PATTERNS: Mapping[str, Callable[..., Any]] = {"find": _find, "matches": _matches}
"""Functions that first take how to count the steps that they cost."""
MACROS = frozenset({"has", "dyn", "all", "exists", "exists_one", "map", "filter", "bind"})
"""What looks like a call and is none."""
