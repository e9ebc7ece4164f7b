"""CSIStorageCapacity: where a driver that keeps count has room for another volume, as conditions on nodes.

Semantics are those of the kube-scheduler's VolumeBinding (hasEnoughCapacity): of drivers whose CSIDriver says
`storageCapacity`, each claim alone is compared with what was published last. Volumes that are still to be made for
other claims are not subtracted; where they do not fit, the driver refuses, and the pod is scheduled anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import Problems, mapping
from cagrpc.api.core.selectors import label_selector
from solver.model import NodeSelectorTerm, Requirement
from solver.model.quantities import amount

Reach = tuple[NodeSelectorTerm, ...] | None
"""Terms of which a node must match one; none: no node. None in its place: all nodes."""


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A storage.k8s.io/v1 CSIStorageCapacity."""

    class_name: str
    topology: tuple[Requirement, ...] | None = None
    """What the labels of a node in reach match; None for no node."""
    largest: int | None = None
    """Of one volume, in bytes: `maximumVolumeSize`, else `capacity`; None where neither is known."""


def storage_capacity(document: Mapping[str, Any], problems: Problems) -> StorageCapacity:
    """Read a CSIStorageCapacity."""
    largest = None
    for name in ("maximumVolumeSize", "capacity"):
        if largest is None and document.get(name) is not None:
            try:
                largest = amount("storage", document[name], round_up=False)
            except (ValueError, TypeError) as error:
                problems.append(f"{name}: {error}")
    return StorageCapacity(
        str(document.get("storageClassName") or ""), label_selector(document, "nodeTopology", "", problems), largest
    )


def keeps_count(document: Mapping[str, Any], problems: Problems) -> bool:
    """Return whether a CSIDriver has the scheduler look at its CSIStorageCapacities."""
    return mapping(document, "spec", "", problems).get("storageCapacity") is True


def reach(capacities: Iterable[StorageCapacity], class_name: str, size: int) -> Reach:
    """Return where a volume of the class can be made, `size` bytes large."""
    found: dict[NodeSelectorTerm, None] = {}
    for each in capacities:
        enough = each.class_name == class_name and each.largest is not None and each.largest >= size
        if enough and each.topology is not None:
            if not each.topology:
                return None
            found[NodeSelectorTerm(each.topology)] = None
    return tuple(sorted(found, key=repr))
