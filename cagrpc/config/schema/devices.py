"""The section `devices`: what the DRA drivers of new nodes will publish, per node group. Slices of nodes that stand
tell more and come first (`cagrpc.cluster.fleet_capacity`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, field_validator

from cagrpc.api.devices.objects import AttributeValue, Device, SemanticVersion, qualified
from cagrpc.errors import shown
from cagrpc.fleet.catalogue import Catalogue, gpu_resource
from cagrpc.forms import Form
from solver.model import NodeGroup
from solver.model.quantities import parse_quantity

MOST_DEVICES = 1024
"""Of one entry; a pool of one node hardly has more (upstream: 128 in a ResourceSlice)."""
_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]*")
_DRIVER = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")


def _driver(text: str) -> str:
    if not _DRIVER.fullmatch(text):
        raise ValueError(f'found {shown(text)}, expected the name of a DRA driver, such as "gpu.example.com"')
    return text


def _names(found: dict[str, Any]) -> dict[str, Any]:
    for name in found:
        if not _NAME.fullmatch(name):
            raise ValueError(f'found {shown(name)}, expected a name such as "model" or "example.com/model"')
    return found


class VersionForm(Form):
    """An attribute that is a semantic version."""

    version: str

    @field_validator("version")
    @classmethod
    def _semantic(cls, text: str) -> str:
        if not _VERSION.fullmatch(text):
            raise ValueError(f'found {shown(text)}, expected a semantic version, such as "1.2.3"')
        return text


AttributeForm = StrictBool | StrictInt | StrictStr | VersionForm


class DevicesForm(Form):
    """Devices that every new node of some node groups will have, all alike."""

    driver: Annotated[str, AfterValidator(_driver)]
    """The DRA driver that publishes them."""
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = None
    """How many each node has. The default is the number of GPUs that the catalogue gives for the instance type."""
    node_groups: Annotated[list[str], Field(min_length=1)] | None = None
    """The ids of the node groups that have them. The default is all node groups."""
    instance_types: Annotated[list[str], Field(min_length=1)] | None = None
    """The instance types that have them. The default is all instance types."""
    gpu_names: Annotated[list[str], Field(min_length=1)] | None = None
    """Only instance types with these GPUs of the catalogue have them. The default is any."""
    attributes: Annotated[dict[str, AttributeForm], AfterValidator(_names)] = Field(default_factory=dict)
    """The attributes as the driver publishes them. Names without a domain are in the driver's."""
    capacity: Annotated[dict[str, str | int], AfterValidator(_names)] = Field(default_factory=dict)
    """The quantities of each capacity."""

    @field_validator("capacity")
    @classmethod
    def _quantities(cls, found: dict[str, Any]) -> dict[str, Any]:
        for name, amount in found.items():
            try:
                parse_quantity(amount)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return found

    def devices(self, group: NodeGroup, catalogue: Catalogue, first: int = 0) -> tuple[Device, ...]:
        """Return those of a new node of the group, numbered from the first, as no two devices of a node share a
        name."""
        return tuple(
            Device(
                self.driver,
                f"{self.driver}-{number}",
                attributes=tuple(
                    sorted((qualified(name, self.driver), _value(of)) for name, of in self.attributes.items())
                ),
                capacity=tuple(sorted((qualified(name, self.driver), str(of)) for name, of in self.capacity.items())),
            )
            for number in range(first, first + self._count(group, catalogue))
        )

    def _count(self, group: NodeGroup, catalogue: Catalogue) -> int:
        if self.node_groups is not None and group.id not in self.node_groups:
            return 0
        if self.instance_types is not None and group.instance_type not in self.instance_types:
            return 0
        known = catalogue.instance_types.get(group.instance_type)
        if self.gpu_names is not None and (known is None or known.gpu_name not in self.gpu_names):
            return 0
        if self.count is not None:
            return self.count
        if known is None or not known.gpu_name:
            return 0
        return int(known.allocatable.get(gpu_resource(known.gpu_name), 0))


def _value(form: bool | int | str | VersionForm) -> AttributeValue:
    return SemanticVersion(form.version) if isinstance(form, VersionForm) else form


def devices_of_groups(
    written: Sequence[DevicesForm], groups: Iterable[NodeGroup], catalogue: Catalogue, problems: list[str]
) -> dict[str, tuple[Device, ...]]:
    """Return the devices of each node group that has any; add entries that fit no group to `problems`."""
    found: dict[str, tuple[Device, ...]] = {}
    used = set()
    for group in groups:
        for index, form in enumerate(written):
            others = found.get(group.id, ())
            if devices := form.devices(group, catalogue, first=len(others)):
                used.add(index)
                found[group.id] = (*others, *devices)
    for index, form in enumerate(written):
        if index not in used:
            problems.append(
                f"devices[{index}]: {form.driver}: no node group has such nodes; node_groups, instance_types and "
                "gpu_names are to name what provisioners expand to, and without count the catalogue has to say how many"
            )
    return found
