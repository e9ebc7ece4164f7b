"""Reading and validating files of provisioners, catalogues and prices, and collecting the problems of all of them.
Expanding what they contain is in `groups`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import rows
from cagrpc.config.groups import Written
from cagrpc.config.schema import karpenter, provisioners
from cagrpc.config.yaml_text import read_documents
from cagrpc.durations import duration_text
from cagrpc.errors import InvalidConfiguration, attempt, shown
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.fleet.prices import NodePlace, PriceList
from cagrpc.forms import OLD_NAMES, Form, OldName, Section, names_in_files
from cagrpc.problems import Location, is_unknown, sentences
from cagrpc.problems import path as place_of
from solver.model.validation import MAX_PRICE_USD_PER_HOUR

_T = TypeVar("_T")

_ENTRY: TypeAdapter[provisioners.ProvisionerEntry] = TypeAdapter(provisioners.ProvisionerEntry)


def _is_known(form: TypeAdapter[Any], raw: Any, context: Mapping[str, Any], at: Location, name: str) -> bool:
    """Return whether the unknown field at a location would be known by another name."""
    renamed = deepcopy(raw)
    holder = renamed
    for part in at[:-1]:
        try:
            holder = holder[part]
        except (KeyError, IndexError, TypeError):
            continue  # pydantic's own part: the name of a member of a union
    if not isinstance(holder, dict) or at[-1] not in holder:
        return False
    holder[name] = holder.pop(at[-1])
    try:
        form.validate_python(renamed, context={**context, OLD_NAMES: []})
    except ValidationError as error:
        return not is_unknown(error, (*at[:-1], name))
    return True


@dataclass(slots=True)
class FileReader:
    """Reads files and collects their problems and warnings."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    names: list[tuple[str, str, str]] = field(default_factory=list)
    """(kind, name, path) of every provisioner and explicit node group, valid or not."""
    _renamed: dict[str, str] = field(default_factory=dict)
    """Places of old names -> what to write instead."""

    def catalogue(self, written: Any, directory: Path) -> Catalogue | None:
        """Return the configured catalogue, by default the embedded one; None where it has problems."""
        if not isinstance(written, str) or written in ("", "embedded"):
            return embedded_catalogue()  # a value that is not text is reported with the other fields
        return attempt(self.problems, lambda: read_catalogue(directory / written), "catalogue: ")

    def prices(self, written: str | None, directory: Path, catalogue: Catalogue) -> PriceList | None:
        """Return the prices of a table over the catalogue's; None where there is no table, or it has problems."""
        if written is None:
            return None
        return attempt(self.problems, lambda: price_list(catalogue, directory / written), "expander.prices: ")

    def validated(self, form: TypeAdapter[_T], raw: Any, place: str, context: Mapping[str, Any]) -> _T | None:
        """Return the validated value; None where it has problems."""
        old_names: list[OldName] = []
        try:
            found = form.validate_python(raw, context={**context, OLD_NAMES: old_names})
        except ValidationError as error:
            self.problems.extend(
                sentences(error, place, _vocabulary(), lambda at, name: _is_known(form, raw, context, at, name))
            )
            return None
        places = _places_of_mappings(raw, ()) if old_names else {}
        for each in old_names:
            old, new = (place_of(place, (*places[id(each.mapping)], name)) for name in (each.old, each.new))
            was_number = isinstance(each.found, int | float)
            self._renamed[old] = f'{new}: "{duration_text(each.found)}"' if was_number else new
        return found

    def warn_of_old_names(self) -> None:
        """Add one warning for all that was validated under an old name since it was called last."""
        if self._renamed:
            pairs = ", ".join(f"{new} for {old}" for old, new in self._renamed.items())
            self.warnings.append(f"old names are still read, and durations as numbers of seconds: write {pairs}")
            self._renamed.clear()

    def opened(self, written: Iterable[Any], place: str, directory: Path, catalogue: Catalogue | None) -> list[Written]:
        """Return the entries of a configuration, with those of the files that they name. Problems of entries in the
        configuration itself are not collected again."""
        entries: list[Written] = []
        for index, raw in enumerate(written):
            path = f"{place}[{index}]"
            if isinstance(raw, Mapping) and isinstance(raw.get("file"), str) and raw["file"]:
                entries.extend(self.file_of_provisioners(directory / raw["file"], catalogue, f"{path}.file: "))
                continue
            entries += self._entry(FileReader(), raw, path, directory, catalogue)
        self.refuse_repeated_names()
        return entries

    def file_of_provisioners(self, path: Path, catalogue: Catalogue | None, named_by: str = "") -> list[Written]:
        """Return the entries of a file. `named_by` is a prefix for errors of reading it: where it is named."""
        documents = attempt(self.problems, lambda: read_documents(path), named_by)
        if documents is None:
            return []
        if not documents:
            self.problems.append(f"{path}: has no documents; expected provisioners")
        return self.entries_of(documents, str(path), path.parent, catalogue)

    def entries_of(
        self, documents: Iterable[Any], place: str, directory: Path, catalogue: Catalogue | None
    ) -> list[Written]:
        """Return the entries of documents that were found at `place`."""
        entries: list[Written] = []
        for at, raw in _flattened(documents, place):
            if isinstance(raw, Mapping) and raw.get("kind") in karpenter.UNREAD_KINDS:
                self.warnings.append(f"{at}: {raw['kind']} is not read; cagrpc takes instance types from its catalogue")
                continue
            if isinstance(raw, Mapping) and "file" in raw:
                self.note_names(at, raw)
                self.problems.append(f"{at}: names another file; give that one instead")
                continue
            if isinstance(raw, Mapping) and isinstance(raw.get("provisioners"), list) and "name" not in raw:
                self.problems.append(
                    f"{at}: is a whole configuration; expected NodePools, or its list of provisioners alone"
                )
                continue
            entries += self._entry(self, raw, at, directory, catalogue)
        self.warn_of_old_names()
        return entries

    def _entry(
        self, validating: FileReader, raw: Any, place: str, directory: Path, catalogue: Catalogue | None
    ) -> Iterator[Written]:
        """Yield an entry that is valid, and collect its name and warnings. What is wrong with it is `validating`'s."""
        self.note_names(place, raw)
        entry = validating.validated(_ENTRY, raw, place, provisioners.context(catalogue, directory))
        if entry is None or isinstance(entry, provisioners.ProvisionerFile | provisioners.UnknownDocument):
            return
        if isinstance(entry, karpenter.NodePool):
            self.warnings.extend(f"{place}.{warning}" for warning in entry.warnings())
        yield Written(place, entry, directory)

    def note_names(self, place: str, raw: Any) -> None:
        """Collect the names in an entry, for `refuse_repeated_names`."""
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
        """Add a problem for each duplicate name."""
        first: dict[tuple[str, str], str] = {}
        for what, name, place in self.names:
            before = first.setdefault((what, name), place)
            if before != place:
                self.problems.append(f"{place}: the {what} {shown(name)} is taken by {before}; each needs its own")


def _flattened(documents: Iterable[Any], place: str) -> list[tuple[str, Any]]:
    """Return documents with their paths, those in lists (`kind: List`, or a plain list) one by one."""
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


def _places_of_mappings(raw: Any, place: Sequence[int | str]) -> dict[int, Sequence[int | str]]:
    """Return where each mapping is in a document, by identity."""
    found: dict[int, Sequence[int | str]] = {}
    if isinstance(raw, Mapping):
        found[id(raw)] = place
    parts = raw.items() if isinstance(raw, Mapping) else enumerate(raw) if isinstance(raw, list) else ()
    for key, part in parts:
        found |= _places_of_mappings(part, (*place, key))
    return found


@cache
def _vocabulary() -> frozenset[str]:
    """Return the fields of all sections, for suggestions."""
    return frozenset(name for base in (Form, Section) for name in names_in_files(base))


_PLACE = ("zone", "capacity_type")


def price_list(catalogue: Catalogue, path: Path | None) -> PriceList:
    """Return the prices of a table (the columns instance_type, usd_per_hour and, optionally, zone and capacity_type)
    over the catalogue's. Raises InvalidConfiguration with every problem of the table."""
    if path is None:
        return PriceList(catalogue)
    problems: Problems = []
    table: dict[NodePlace, float] = {}
    for place, row in rows(path, ("instance_type", "usd_per_hour"), _PLACE, problems):
        price = _dollars(row["usd_per_hour"])
        if price is None:
            found = row["usd_per_hour"][:40]
            most = MAX_PRICE_USD_PER_HOUR
            problems.append(
                f"{place}: usd_per_hour: found {shown(found)}, expected US dollars per hour from 0 to {most}"
            )
            continue
        key = NodePlace(row["instance_type"], row.get("zone", ""), row.get("capacity_type", ""))
        if key in table:
            problems.append(f"{place}: there is a price of {'/'.join(filter(None, key))} above")
        table[key] = price
    if problems:
        raise InvalidConfiguration(problems)
    return PriceList(catalogue, table)


def _dollars(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found <= MAX_PRICE_USD_PER_HOUR else None
