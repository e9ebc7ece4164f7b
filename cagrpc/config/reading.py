"""Files of provisioners and catalogues, read and validated; every problem of every file is collected. What they
amount to is `groups`'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cagrpc.config.groups import Entry, Written
from cagrpc.config.problems import field_names, sentences, shown
from cagrpc.config.schema import karpenter, provisioners
from cagrpc.config.yaml_text import parse_documents, read_text
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.forms import Form

_T = TypeVar("_T")

_ENTRY: TypeAdapter[provisioners.ProvisionerEntry] = TypeAdapter(provisioners.ProvisionerEntry)


@dataclass(slots=True)
class FileReader:
    """Reads files and collects what is wrong with them."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    names: list[tuple[str, str, str]] = field(default_factory=list)
    """(what it names, name, path) of every provisioner and explicit node group, valid or not."""

    def catalogue(self, written: Any, directory: Path) -> Catalogue | None:
        if not isinstance(written, str) or written in ("", "embedded"):
            return embedded_catalogue()  # anything else than text is reported with the other fields
        try:
            return read_catalogue(directory / written)
        except InvalidConfiguration as error:
            self.problems.extend(f"catalogue: {problem}" for problem in error.problems)
            return None

    def validated(self, form: TypeAdapter[_T], raw: Any, place: str, context: Mapping[str, Any]) -> _T | None:
        try:
            return form.validate_python(raw, context=dict(context))
        except ValidationError as error:
            self.problems.extend(sentences(error, place, _vocabulary()))
            return None

    def opened(self, written: Iterable[Any], place: str, directory: Path, catalogue: Catalogue | None) -> list[Written]:
        """The entries of a configuration with their paths, files opened; problems of the entries themselves are known
        already."""
        entries: list[Written] = []
        for index, raw in enumerate(written):
            path = f"{place}[{index}]"
            if isinstance(raw, Mapping) and isinstance(raw.get("file"), str) and raw["file"]:
                entries.extend(self.file_of_provisioners(directory / raw["file"], catalogue, f"{path}.file: "))
                continue
            self.note_names(path, raw)
            try:
                entry = _ENTRY.validate_python(raw, context=provisioners.context(catalogue, directory))
            except ValidationError:
                continue
            if not isinstance(entry, provisioners.ProvisionerFile | provisioners.UnknownDocument):
                entries.append(Written(path, entry, directory))
                self.warn(path, entry)
        self.refuse_repeated_names()
        return entries

    def file_of_provisioners(self, path: Path, catalogue: Catalogue | None, named_by: str = "") -> list[Written]:
        """The file's entries. `named_by` begins what is said of a file that cannot be read: where its name stands."""
        try:
            documents = parse_documents(read_text(path), str(path))
        except InvalidConfiguration as error:
            self.problems.extend(f"{named_by}{problem}" for problem in error.problems)
            return []
        entries: list[Written] = []
        for place, raw in _unlisted(documents, str(path)):
            if isinstance(raw, Mapping) and raw.get("kind") in karpenter.UNREAD_KINDS:
                self.warnings.append(
                    f"{place}: {raw['kind']} is not read; cagrpc takes instance types from its catalogue"
                )
                continue
            self.note_names(place, raw)
            if isinstance(raw, Mapping) and "file" in raw:
                self.problems.append(f"{place}: names another file; give that one instead")
                continue
            entry = self.validated(_ENTRY, raw, place, provisioners.context(catalogue, path.parent))
            if entry is None or isinstance(entry, provisioners.ProvisionerFile | provisioners.UnknownDocument):
                continue
            entries.append(Written(place, entry, path.parent))
            self.warn(place, entry)
        if not documents:
            self.problems.append(f"{path}: has no documents; expected provisioners")
        return entries

    def note_names(self, place: str, raw: Any) -> None:
        if not isinstance(raw, Mapping):
            return
        metadata = raw.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else raw.get("name")
        if isinstance(name, str) and name:
            self.names.append(("name", name, place))
        groups = raw.get("node_groups")
        for index, group in enumerate(groups if isinstance(groups, list) else ()):
            if isinstance(group, Mapping) and isinstance(group.get("id"), str):
                self.names.append(("node group id", group["id"], f"{place}.node_groups[{index}]"))

    def refuse_repeated_names(self) -> None:
        first: dict[tuple[str, str], str] = {}
        for what, name, place in self.names:
            before = first.setdefault((what, name), place)
            if before != place:
                self.problems.append(f"{place}: the {what} {shown(name)} is taken by {before}; each needs its own")

    def warn(self, place: str, entry: Entry) -> None:
        if not isinstance(entry, provisioners.ProvisionerForm):
            self.warnings.extend(f"{place}.{warning}" for warning in entry.warnings())


def _unlisted(documents: Iterable[Any], place: str) -> list[tuple[str, Any]]:
    """Documents with their paths; lists (`kind: List`, or a plain list of ours) are opened."""
    found: list[tuple[str, Any]] = []
    for index, read in enumerate(documents):
        here = f"{place}[{index}]"
        if isinstance(read, Mapping) and isinstance(read.get("items"), list):
            found.extend((f"{here}.items[{i}]", item) for i, item in enumerate(read["items"]))
        elif isinstance(read, list):
            found.extend((f"{here}[{i}]", item) for i, item in enumerate(read))
        else:
            found.append((here, read))
    return found


@cache
def _vocabulary() -> frozenset[str]:
    """Every field of every section: what may have been meant by one that there is not."""
    return field_names(*_forms(Form))


def _forms(base: type[Form]) -> Iterator[type[Form]]:
    for form in base.__subclasses__():
        yield form
        yield from _forms(form)
