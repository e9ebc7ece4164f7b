"""Files of Kubernetes objects, YAML or JSON, to single documents with a place that people can find again. What the
documents mean is said in `manifests`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cagrpc.wire.resources import Problems, mapping

# In C where there is one: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """One Kubernetes object. `place` begins every problem with it: file, index in the file, kind and name."""

    place: str
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body.get("kind") or "")

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping(self.body, "metadata", "", [])

    @property
    def spec(self) -> Mapping[str, Any]:
        return mapping(self.body, "spec", "", [])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or self.metadata.get("generateName") or "")

    @property
    def identity(self) -> tuple[str, str, str]:
        """Kind, namespace and name: what an owner reference or an API server tells objects apart by."""
        return self.kind, self.namespace, self.name


def read_text(path: Path, problems: Problems) -> str | None:
    """The file's text, or None and a problem."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}")
    return None


def documents(path: Path, text: str, problems: Problems) -> Iterator[Document]:
    """Every object in a YAML (one or many documents) or JSON text, lists opened; empty documents are passed over."""
    try:
        bodies = _bodies(text)
    except yaml.YAMLError as error:
        problems.append(f"{path}: is not YAML: {' '.join(str(error).split())}")
        return
    except (ValueError, RecursionError) as error:  # json's errors; nesting beyond any manifest
        problems.append(f"{path}: is neither YAML nor JSON: {error}")
        return
    for index, body in enumerate(bodies):
        if body is not None:
            yield from _opened(f"{path}[{index}]", body, problems)


def _bodies(text: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text)]  # much faster than YAML, and what kubectl -o json writes
        except json.JSONDecodeError:
            pass  # YAML's flow style begins the same way
    return list(yaml.load_all(text, Loader=_LOADER))


def _opened(place: str, body: Any, problems: Problems) -> Iterator[Document]:
    if not isinstance(body, Mapping):
        problems.append(f"{place}: expected a Kubernetes object, found {body!r:.60}")
        return
    kind = body.get("kind")
    if not isinstance(kind, str) or not kind:
        problems.append(f"{place}: has no kind; expected a Kubernetes object with apiVersion, kind and metadata")
    elif kind.endswith("List") and isinstance(body.get("items"), list):
        for index, item in enumerate(body["items"]):
            if isinstance(item, Mapping) and kind != "List":
                item = {"kind": kind.removesuffix("List"), **item}  # noqa: PLW2901 - a PodList's items have no kind
            yield from _opened(f"{place}.items[{index}]", item, problems)
    else:
        document = Document(place, body)
        yield Document(f"{place} ({kind} {document.namespace}/{document.name})", body)
