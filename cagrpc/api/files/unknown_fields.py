"""Fields that Kubernetes' own kinds do not have, in objects of files: the API server refuses them, as `kubectl apply`
asks it to. The schema is the models of Kubernetes' client, read as text: to import them takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.errors import did_you_mean
from cagrpc.problems import Location, path

_OF_A_SERVER = frozenset({"uid", "resourceVersion", "managedFields"})
_VERSION = re.compile(r"(?:(apps|batch|policy|[a-z]+\.k8s\.io)/)?v1")
_TABLE = re.compile(r"^    (openapi_types|attribute_map) = (\{.*?^    \})", re.MULTILINE | re.DOTALL)
_LIST, _DICT = "list[", "dict[str, "


def checked(
    documents: Iterable[ManifestDocument], kinds: AbstractSet[str], problems: Problems
) -> Iterator[ManifestDocument]:
    """Yield all documents, and add to `problems` the unknown fields of those of these kinds. What a server has kept is
    not looked at: it was valid there, and a newer one has fields that are not known here."""
    for each in documents:
        if each.kind in kinds and _OF_A_SERVER.isdisjoint(each.metadata):
            model = _model(str(each.body.get("apiVersion") or "v1"), each.kind)
            problems.extend(f"{each.place}: {problem}" for problem in _unknown(each.body, model, ()))
        yield each


def _model(version: str, kind: str) -> str:
    """Return the name of the model of a kind; empty where there is none."""
    found = _VERSION.fullmatch(version)
    group = (found[1] or "").partition(".")[0] if found else ""
    names = (f"V1{kind}", f"{group}V1{kind}") if found else ()
    return next((name for name in names if _fields(name)), "")


def _unknown(value: Any, of: str, at: Location) -> Iterator[str]:
    if of.startswith(_LIST) and isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unknown(each, of[len(_LIST) : -1], (*at, index))
    elif of.startswith(_DICT) and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _unknown(each, of[len(_DICT) : -1], (*at, str(key)))
    elif isinstance(value, Mapping) and (fields := _fields(of)):
        for key, each in value.items():
            if key in fields:
                yield from _unknown(each, fields[key], (*at, key))
            else:
                yield f"{path('', (*at, str(key)))}: unknown field{_meant(str(key), fields)}"


def _meant(found: str, fields: Mapping[str, str]) -> str:
    """Return which field is meant: one beside it, or else one of the mappings beside it."""
    inner = {name: f"{field}.{name}" for field, of in fields.items() for name in _fields(of)}
    near = get_close_matches(found, inner, n=1, cutoff=0.8)
    return did_you_mean(found, fields) or (f'; did you mean "{inner[near[0]]}"?' if near else "")


@cache
def _fields(model: str) -> Mapping[str, str]:
    """Return the type of each field of a model by its name in JSON; empty for what is no model."""
    source = _sources().get(model.lower())
    if source is None:
        return {}
    tables = {name: ast.literal_eval(table) for name, table in _TABLE.findall(source.read_text(encoding="utf-8"))}
    return {name: tables["openapi_types"][attribute] for attribute, name in tables["attribute_map"].items()}


@cache
def _sources() -> Mapping[str, Path]:
    """Return the file of each model, by its name in lower case."""
    package = find_spec("kubernetes")
    folders = (package.submodule_search_locations if package else None) or ()
    models = (path for folder in folders for path in Path(folder, "client", "models").glob("*.py"))
    return {each.stem.replace("_", ""): each for each in models}
