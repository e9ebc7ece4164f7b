"""What is wrong in a file, as sentences that begin with a path: one that cannot be read, and pydantic's errors. What is
valid is in `cagrpc.config.schema`.

`provisioners[2].requirements[0].operator: found "in", expected one of "In", "NotIn", ...`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cagrpc.errors import InvalidConfiguration, did_you_mean, reason_of, shown

_EXPECTED = {
    "string_type": "text; put it in quotes if it is meant as text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "nothing",
    "string_too_short": "text that is not empty",
}
_BOUNDS = {
    # kind: (the key of the bound in pydantic's context, the message)
    "greater_than_equal": ("ge", "{:g} or more"),
    "less_than_equal": ("le", "{:g} or less"),
    "greater_than": ("gt", "more than {:g}"),
    "less_than": ("lt", "less than {:g}"),
    "too_short": ("min_length", "at least {} of them"),
}


Location = tuple[int | str, ...]
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MOST_NEAR, _NEARNESS = 5, 0.7


def read_text(path: Path) -> str:
    """Return the text of a file. Raises InvalidConfiguration where it is not readable."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidConfiguration([f"{path}: cannot be read: {reason_of(error)}"]) from error
    except UnicodeDecodeError as error:
        raise InvalidConfiguration([f"{path}: is not UTF-8 text (byte {error.start})"]) from error
    except ValueError as error:  # a NUL in the name
        raise InvalidConfiguration([f"{shown(str(path))}: is not a file name: {error}"]) from error


def sentences(
    error: ValidationError,
    place: str,
    vocabulary: Iterable[str],
    is_known: Callable[[Location, str], bool] = lambda *_: True,
) -> list[str]:
    """Return one sentence for each error. `place` is the path of the validated value, "" for a whole file; `vocabulary`
    is the known fields, of which those are suggested that `is_known` at an error's location."""
    words, found = tuple(vocabulary), []
    for problem in error.errors(include_url=False):
        known = words
        if problem["type"] in _UNKNOWN:
            at, field = problem["loc"], str(problem["loc"][-1])
            near = get_close_matches(field, [each for each in words if each != field], _MOST_NEAR, _NEARNESS)
            known = (*(each for each in near if is_known(at, each)), *([field] if field in words else ()))
        found.append(f"{path(place, problem['loc'])}: {_sentence(problem, known)}")
    return found


def is_unknown(error: ValidationError, location: Location) -> bool:
    """Return whether there is no such field at a location."""
    return any(each["type"] in _UNKNOWN and each["loc"] == location for each in error.errors(include_url=False))


def path(place: str, location: Sequence[int | str]) -> str:
    """Return a location as `a.b[2]["k/e.y"]`, without pydantic's own parts (`<tag>` of a union, `[key]`)."""
    text = place
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.startswith("<") or part == "[key]":
            continue
        elif part.replace("_", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text or "the file"


def _sentence(problem: Any, vocabulary: Sequence[str]) -> str:
    kind, found, context = str(problem["type"]), problem["input"], problem.get("ctx") or {}
    return _of_kind(kind, problem, vocabulary) or f"found {shown(found)}, expected {_expected(kind, context, problem)}"


def _of_kind(kind: str, problem: Any, vocabulary: Sequence[str]) -> str:
    """Return the message for a kind that is not of the form found and expected; empty for the others."""
    if kind == "missing":
        return "is missing"
    if kind in _UNKNOWN:
        field = problem["loc"][-1]
        return f"unknown field{' here' * (field in vocabulary)}{did_you_mean(field, vocabulary)}"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    if kind == "invalid_key":
        return f"the key {shown(problem['input'])} is not text; put it in quotes"
    return ""


def _expected(kind: str, context: Mapping[str, Any], problem: Mapping[str, Any]) -> str:
    """Return what would be valid."""
    if kind in ("enum", "literal_error"):
        return f"one of {str(context['expected']).replace(chr(39), chr(34)).replace(' or ', ', ')}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return words.format(context[name])
    return _EXPECTED.get(kind, str(problem["msg"]))
