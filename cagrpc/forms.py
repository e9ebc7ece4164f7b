"""What is read from a configuration file, wherever it is declared. A `Section` is a frozen dataclass, which controllers
take as it is; a `Form` is a model, for what has to become something else first. What a problem looks like to people is
`cagrpc.problems`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import PydanticKnownError, PydanticOmit, core_schema

from cagrpc.durations import duration_seconds, duration_text
from cagrpc.errors import shown

DIRECTORY = "directory"
"""The key, in the validation context, of the directory that names of files are relative to."""

OLD_NAMES = "old_names"
"""The key of a list in the validation context, to which each `OldName` that is found is added."""


@dataclass(frozen=True, slots=True)
class OldName:
    """What is written in a file under the name that a field had before."""

    mapping: Mapping[str, Any]
    """In which it is written: its identity says where."""
    old: str
    new: str

    @property
    def found(self) -> Any:
        """Return what is written there."""
        return self.mapping[self.old]


@dataclass(frozen=True, slots=True)
class Duration:
    """Says of a `float` that it is written as a duration, "1m30s", within bounds. The attribute is named for its unit,
    `budget_seconds`, and the field of the file is not: `budget`."""

    shortest: str
    longest: str | None
    such_as: str
    name: str = ""
    """Of the field in a file, where it is another."""
    was_number: bool = False
    """Whether it was a number of seconds, under the attribute's name or the one that `Formerly` says, and is read so
    still."""
    never: str = ""
    """The word for none at all, which is None."""

    def named(self, attribute: str) -> str:
        """Return the name of the field in a file."""
        return self.name or attribute.removesuffix("_seconds").removesuffix("Seconds")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_plain_validator_function(
            self.read,
            metadata={"duration": self},
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda seconds: self.never if seconds is None else duration_text(seconds)
            ),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string"}

    def read(self, written: Any) -> float | None:
        """Return the seconds. Raises ValueError."""
        if self.never and written == self.never:
            return None
        seconds, found, where = None, written, ""
        if isinstance(written, OldName):
            found, where = written.found, f"{written.new}: "
            if written.new in written.mapping:
                raise ValueError(f"found together with {written.new}, as it is called now; expected that alone")
            if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e15:
                seconds = float(found)
        elif isinstance(written, str):
            seconds = duration_seconds(written)
        least, most = duration_seconds(self.shortest) or 0.0, duration_seconds(self.longest or "")
        if seconds is None or not least <= seconds <= (seconds if most is None else most):
            bounds = f'from "{self.shortest}"' + ("" if self.longest is None else f' to "{self.longest}"')
            raise ValueError(f"found {shown(found)}, expected {where}a duration {bounds}, such as {self.such_as}")
        return seconds


@dataclass(frozen=True, slots=True)
class Formerly:
    """Says of a field that it had another name, under which it is still read."""

    name: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(
            lambda value: value, handler(source), metadata={"formerly": self.name}
        )


def _lenient(schema: Any, handler: GetCoreSchemaHandler) -> None:
    """Let a mapping be a dataclass, a list a tuple or a set, and a text a member of an enumeration."""
    if isinstance(schema, dict):
        found: Any = handler.resolve_ref_schema(schema) if schema.get("type") == "definition-ref" else schema
        if found.get("type") in ("dataclass", "tuple", "frozenset", "enum"):
            found["strict"] = False
        if found is schema:
            for key, part in schema.items():
                if key not in ("metadata", "default"):
                    _lenient(part, handler)
    elif isinstance(schema, list):
        for part in schema:
            _lenient(part, handler)


def _fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the schema of a model or a dataclass by attribute."""
    while schema["type"] not in ("dataclass-args", "model-fields"):
        if "schema" not in schema:
            return
        schema = schema["schema"]
    fields = schema["fields"]
    yield from fields.items() if isinstance(fields, dict) else ((field["name"], field) for field in fields)


def _metadata(schema: Any) -> dict[str, Any]:
    """Return what is known of a field, through defaults and validators."""
    found = dict(schema.get("metadata", {}))
    while "schema" in schema:
        schema = schema["schema"]
        found |= schema.get("metadata", {})
    return found


def _duration(schema: Any) -> Duration | None:
    found: Duration | None = _metadata(schema).get("duration")
    return found


@dataclass(frozen=True, slots=True)
class Text:
    """Says of a value that it is written as text, which a function reads that raises ValueError."""

    read: Callable[[str], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self.read, core_schema.str_schema(strict=True))


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Says of a value of which unit it is made that is read from the file."""

    form: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.form))


class _InDirectory:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def resolved(text: str, info: ValidationInfo) -> Path:
            directory: Path = (info.context or {}).get(DIRECTORY, Path())
            return directory / text

        return core_schema.with_info_after_validator_function(
            resolved, core_schema.str_schema(min_length=1, strict=True)
        )


File = Annotated[Path, _InDirectory()]
"""Written relative to the file that it stands in."""


class NotWritten:
    """Says of a field that no file has it: it is set by what else is written."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def refuse(_: Any) -> None:
            raise PydanticKnownError("unexpected_keyword_argument")

        return core_schema.no_info_plain_validator_function(refuse)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        raise PydanticOmit


def _with_new_names(numbers: Mapping[str, str], renamed: Mapping[str, str]) -> Callable[[Any, ValidationInfo], Any]:
    """Return what puts new names for old ones into a mapping, before it is validated. Durations that are `numbers` keep
    the old one, with an `OldName` that says so to `Duration.read`."""
    old = {**numbers, **renamed}

    def with_new_names(written: Any, info: ValidationInfo) -> Any:
        if not isinstance(written, Mapping):
            return written
        found = [OldName(written, name, old[name]) for name in old if name in written]
        (info.context or {}).get(OLD_NAMES, []).extend(found)
        values = {key: value for key, value in written.items() if key not in old}
        for each in found:
            if each.old in numbers:
                values.pop(each.new, None)
                values[each.old] = each
            elif each.new in values:
                raise ValueError(f"found {each.old} together with {each.new}, as it is called now; expected that alone")
            else:
                values[each.new] = each.found
        return values

    return with_new_names


class _Read:
    """How fields are read, and what the schema says of them."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Give durations the names that they have in a file, and let lists and texts become what dataclasses have
        instead, tuples, sets and enumerations; nothing else is converted."""
        schema = handler(source)
        _lenient(schema, handler)
        numbers, renamed = {}, {}
        for name, field in _fields(handler.resolve_ref_schema(schema)):
            before = _metadata(field["schema"]).get("formerly")
            if (duration := _duration(field["schema"])) is not None:
                alias = field.get("validation_alias", name)
                new = alias[0][0] if isinstance(alias, list) else duration.named(alias)
                field["serialization_alias"] = new
                field["validation_alias"] = [[new], [before or name]] if duration.was_number else new
                if duration.was_number:
                    numbers[before or name] = new
            elif before is not None:
                renamed[before] = name
        if numbers or renamed:
            whole: Any = handler.resolve_ref_schema(schema)
            while whole["type"] not in ("dataclass", "model"):
                whole = whole["schema"]
            if not whole["schema"].get("metadata", {}).get(OLD_NAMES):  # else it is one that was made before
                whole["schema"] = core_schema.with_info_before_validator_function(
                    _with_new_names(numbers, renamed), whole["schema"], metadata={OLD_NAMES: True}
                )
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe each field by the docstring below it. Pydantic's `use_attribute_docstrings` would read the source of
        every form at every start, a sixth of what a server's takes; only the schema needs it."""
        described = handler(schema)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        meanings = _docstrings(cls)
        for name, field in _fields(schema):
            alias = field.get("validation_alias", name)
            new = alias[0][0] if isinstance(alias, list) else alias
            written = properties.get(new)
            if written is not None and name in meanings:
                written.setdefault("description", meanings[name])
            if written is not None and _duration(field["schema"]) is not None:
                written["title"] = new.replace("_", " ").title()
                if isinstance(seconds := written.get("default"), float):
                    written["default"] = duration_text(seconds)
            for each in (written, *written.get("anyOf", ())) if written is not None else ():
                each.pop("uniqueItems", None)  # nothing is wrong about saying a thing twice
            if isinstance(alias, list):
                number = {"type": "number", "deprecated": True, "description": f"Now `{new}`, a duration."}
                properties[alias[1][0]] = number
            elif written is not None and (before := _metadata(field["schema"]).get("formerly")) is not None:
                titled = {"title": before.replace("_", " ").title(), "description": f"Now `{new}`."}
                properties[before] = {**written, **titled, "deprecated": True}
        return described


_CONFIG = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Section(_Read):
    """The base of dataclasses that are read from a file: unknown fields are errors, and nothing is guessed."""

    __slots__ = ()
    __pydantic_config__ = _CONFIG


class Form(_Read, BaseModel):
    """A mapping in a file: unknown fields are errors, and nothing is guessed (the text "3" is not a number)."""

    model_config = _CONFIG


def names_in_files(base: type) -> Iterator[str]:
    """Yield the names that the fields of a class and of all its subclasses have in a file."""
    if issubclass(base, Form):
        written = [(info.alias or name, info.metadata) for name, info in base.model_fields.items()]
    else:
        hints = get_type_hints(base, include_extras=True) if is_dataclass(base) else {}
        written = [(name, list(getattr(hint, "__metadata__", ()))) for name, hint in hints.items()]
    for name, metadata in written:
        durations = (found.named(name) for found in metadata if isinstance(found, Duration))
        yield next(durations, name)
    subclasses: list[type] = base.__subclasses__()
    for derived in subclasses:
        yield from names_in_files(derived)


def _docstrings(form: type) -> dict[str, str]:
    """Return the docstrings of the fields, inherited ones too."""
    found: dict[str, str] = {}
    for base in reversed(form.__mro__):
        written = _classes(base.__module__).get(base.__qualname__) if issubclass(base, _Read) else None
        if written is None:  # made at run time
            continue
        for field, below in pairwise([*written.body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found.pop(field.target.id, None)
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes that a module's source defines, by qualified name. To ask `inspect` for the source of each of
    them would read all of it each time: seconds for the whole schema."""
    found: dict[str, ast.ClassDef] = {}

    def look(body: Iterable[ast.stmt], before: str) -> None:
        for each in body:
            if isinstance(each, ast.ClassDef):
                found[before + each.name] = each
                look(each.body, f"{before}{each.name}.")
            elif isinstance(each, ast.FunctionDef):
                look(each.body, f"{before}{each.name}.<locals>.")

    try:
        look(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    except OSError:  # it has no source
        return {}
    return found


FilePath = Annotated[str, Field(min_length=1)]
"""Relative to the file that it stands in."""
