"""The base of every mapping that is read from a configuration file, for its sections wherever they are declared: most
in `config.schema`, a backend's own beside the backend. What a problem looks like to people is `config.problems`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler


class Form(BaseModel):
    """A mapping in a file: unknown fields are errors, and nothing is guessed (the text "3" is no number)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe each field by the docstring below it. Pydantic's `use_attribute_docstrings` would read the source of
        every form at every start, a sixth of what a server's takes; only the schema needs it."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, meaning in _docstrings(cls).items():
            field = cls.model_fields.get(name)
            described = properties.get((field and field.alias) or name)
            if described is not None:
                described.setdefault("description", meaning)
        return schema


def _docstrings(form: type[Form]) -> dict[str, str]:
    """Return the docstrings of the fields, inherited ones too."""
    found: dict[str, str] = {}
    for base in reversed(form.__mro__):
        written = _classes(base.__module__).get(base.__qualname__) if issubclass(base, Form) else None
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
