"""Provisioners and devices from files of their own, as commands name them: expanded, with all problems of all files at
once. They are read without the schema of the whole configuration, which takes as long to import as the rest; that is
`load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cagrpc.api.devices.objects import Device
from cagrpc.config.groups import Expanded, Written, expand_all
from cagrpc.config.reading import FileReader
from cagrpc.config.schema import devices
from cagrpc.config.yaml_text import read_documents
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import Catalogue
from solver.model import NodeGroup

_DEVICES: TypeAdapter[list[devices.DevicesForm]] = TypeAdapter(list[devices.DevicesForm])


def load_provisioners(paths: Sequence[Path], catalogue: Catalogue) -> Expanded:
    """Return the expanded provisioners of files: Karpenter documents, or ours, one or many in each. A file that is
    named twice is read once.

    Raises InvalidConfiguration with all problems of all files, duplicate names included.
    """
    reader = FileReader()
    entries = [entry for path in dict.fromkeys(paths) for entry in reader.file_of_provisioners(path, catalogue)]
    if not entries and not reader.problems:
        reader.problems.append(f"{', '.join(map(str, paths)) or 'no file'}: has no provisioners")
    return _expanded(entries, catalogue, reader)


def expand_documents(documents: Sequence[Any], place: str, catalogue: Catalogue) -> Expanded:
    """Return the expanded provisioners of documents that were found at `place`. Raises InvalidConfiguration."""
    reader = FileReader()
    return _expanded(reader.entries_of(documents, place, Path(), catalogue), catalogue, reader)


def _expanded(entries: Sequence[Written], catalogue: Catalogue, reader: FileReader) -> Expanded:
    reader.refuse_repeated_names()
    expanded = expand_all(entries, catalogue, reader.problems)
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    return replace(expanded, warnings=(*reader.warnings, *expanded.warnings))


def load_devices(path: Path, groups: Sequence[NodeGroup], catalogue: Catalogue) -> Mapping[str, tuple[Device, ...]]:
    """Return the devices of new nodes by node group, of a file with the section `devices`. Raises InvalidConfiguration
    with all problems."""
    reader = FileReader()
    raw = read_documents(path)
    sections = raw[0] if len(raw) == 1 and isinstance(raw[0], Mapping) else {}
    if "devices" not in sections:
        raise InvalidConfiguration([f"{path}: has no section devices"])
    written = reader.validated(_DEVICES, sections["devices"], f"{path}: devices", {})
    found = devices.devices_of_groups(written or (), groups, catalogue, reader.problems)
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    return found
