"""CSIDrivers and CSIStorageCapacities: where there is room for a volume of a class and size, as these change.
Capacities are published whenever a volume is made; pods are read again only where that changes an answer. Not
thread-safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import Problems, mapping
from cagrpc.api.core.storage_capacity import Reach, StorageCapacity, keeps_count, reach, storage_capacity
from cagrpc.api.core.volumes import StorageClass
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.workloads import Values
from cagrpc.errors import InvalidInput, in_one_line

CAPACITIES = "/apis/storage.k8s.io/v1/csistoragecapacities"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"


@dataclass(frozen=True, slots=True)
class CsiDriver:
    name: str
    keeps_count: bool
    """Whether its CSIStorageCapacities are looked at."""


def read_capacity(document: dict[str, Any]) -> Named[StorageCapacity]:
    """Raises InvalidInput for an invalid CSIStorageCapacity."""
    problems: Problems = []
    metadata = mapping(document, "metadata", "", problems)
    key = f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"
    found = storage_capacity(document, problems)
    if problems:
        raise InvalidInput(f"CSIStorageCapacity {key}: {in_one_line(problems)}")
    return Named(key, found)


def read_driver(document: dict[str, Any]) -> Named[CsiDriver]:
    """Raises InvalidInput for an invalid CSIDriver."""
    problems: Problems = []
    name = str(mapping(document, "metadata", "", problems).get("name") or "")
    found = CsiDriver(name, keeps_count(document, problems))
    if problems:
        raise InvalidInput(f"CSIDriver {name}: {in_one_line(problems)}")
    return Named(name, found)


class StorageRoom:
    """The tables, and `reach`, once both have been listed: before, there is room everywhere."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.capacities: Values[StorageCapacity] = Values(
            lambda *both: self._changed(each and each.class_name for each in both)
        )
        self.drivers: Values[CsiDriver] = Values(lambda *_: self._changed(self._classes()))
        self._unlisted = {CAPACITIES, DRIVERS}
        self._answers: dict[tuple[StorageClass, int], Reach] = {}
        self._unsettled: set[str] = set()
        """Classes of which the answers have to be found anew."""

    def listed(self, path: str) -> None:
        """From now on what is not in the table is not in the cluster."""
        if path in self._unlisted:
            self._unlisted.discard(path)
            self._changed(self._classes())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it is not looked at whether there is room, where it is not."""
        names = ", ".join(sorted(path.rpartition("/")[2] for path in self._unlisted))
        return (f"whether storage has room for volumes is not looked at: {names} cannot be listed",) if names else ()

    def reach(self, of: StorageClass, size: int) -> tuple[Reach, Reference]:
        """Return where a volume of the class can be made, and what to refer to for that."""
        asked = of, size
        if asked not in self._answers:
            self._answers[asked] = self._now(of, size)
        return self._answers[asked], _reference(of, size)

    def settle(self) -> None:
        """Tell of the answers that have changed."""
        for (of, size), before in list(self._answers.items() if self._unsettled else ()):
            if not self._references.is_read(_reference(of, size)):
                del self._answers[of, size]
            elif of.name in self._unsettled and (now := self._now(of, size)) != before:
                self._answers[of, size] = now
                self._references.changed(_reference(of, size))
        self._unsettled.clear()

    def _now(self, of: StorageClass, size: int) -> Reach:
        driver = None if self._unlisted else self.drivers.of.get(of.provisioner)
        if driver is None or not driver.keeps_count:
            return None
        return reach(self.capacities.of.values(), of.name, size)

    def _classes(self) -> Iterator[str]:
        return (of.name for of, _ in self._answers)

    def _changed(self, classes: Any) -> None:
        self._unsettled.update(each for each in classes if each)


def _reference(of: StorageClass, size: int) -> Reference:
    return "room", f"{of.name} {size}"
