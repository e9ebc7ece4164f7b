"""The section `provisioners` in cagrpc's own form, with explicit node groups and `autoscaling` options. Karpenter's
forms are in `karpenter`.

The catalogue and the directory of files are in the validation context, so that an unknown instance type is reported
with its path beside all other errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, RootModel, Tag, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.config.schema import karpenter
from cagrpc.config.schema.recorded import read_recorded_groups
from cagrpc.controllers.settings import ProvisionerDisruption
from cagrpc.errors import attempt, did_you_mean, shown
from cagrpc.fleet.catalogue import DEFAULT_ZONE, Catalogue, Offering
from cagrpc.fleet.fields import (
    Allocatable,
    LabelKey,
    Labels,
    LabelValue,
    Limits,
    ObjectName,
    Requirements,
    Taints,
    Weight,
)
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.forms import DIRECTORY, FilePath, Form, Formerly, Text
from solver.model import CPU, MEMORY, PODS

CATALOGUE = "catalogue"
"""The key of the Catalogue in the validation context; without it, instance types are not checked."""

_LARGEST_SIZE = 2**31 - 1

_PostRegistrationLabels = Annotated[Labels, Formerly("late_labels")]


Pattern = Annotated[GroupPattern, Text(GroupPattern)]

Size = Annotated[int, Field(ge=0, le=_LARGEST_SIZE)]


def context(catalogue: Catalogue | None, directory: Path) -> dict[str, Any]:
    """Return the validation context."""
    return {CATALOGUE: catalogue, DIRECTORY: directory}


class TopologyDomainForm(Form):
    """A topology domain that is known, such as a rack."""

    labels: Annotated[Labels, Field(min_length=1)]
    """The labels of its nodes, by topology key."""
    max_nodes: Annotated[int, Field(ge=1, le=_LARGEST_SIZE)] | None = None
    """The most nodes that it has room for, of all node groups together. By default there is no limit."""
    domains: list[TopologyDomainForm] = Field(default_factory=list)
    """The domains within it, such as the racks of a block."""


class NewDomainsForm(Form):
    """Domains that come with the nodes."""

    keys: Annotated[list[LabelKey], Field(min_length=1)]
    """The topology keys, from the outermost to the innermost."""
    max_nodes: Annotated[int, Field(ge=1, le=_LARGEST_SIZE)] | None = None
    """The most nodes of one domain. By default there is no limit."""


class TopologyForm(Form):
    """Which topology labels nodes get beyond those of their group: give one of the two fields."""

    domains: list[TopologyDomainForm] = Field(default_factory=list)
    """Domains that are known: each becomes a node group of its own, and the backend has to create its nodes there."""
    new_domains: NewDomainsForm | None = None
    """The nodes of one increment come in a domain of their own (a placement group), or are hoped to: they are released
    once all of their Nodes have the labels, and rolled back where the nodes of a gang are not in one domain."""
    shared_fate: LabelKey | None = None
    """The topology key of domains of which all nodes go together: where one must go that a gang needs which asks for
    one domain, consolidation replaces the whole domain as one increment. By default only that node is replaced, within
    its domain, where the gang finds room there."""
    spares: Annotated[int, Field(ge=0, le=1_000)] = 0
    """How many nodes more come, without pods, with those of a gang that asks for one domain, in each of the innermost
    domains where there is room. They stay empty, and the pods of a node of their domain that must go move there
    first."""

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if bool(self.domains) is (self.new_domains is not None):
            raise ValueError("give either domains or new_domains")
        keys = sorted({*self.keys()})
        if self.shared_fate is not None and self.shared_fate not in keys:
            raise ValueError(f"shared_fate: found {shown(self.shared_fate)}, expected one of {', '.join(keys)}")
        return self

    @field_validator("domains")
    @classmethod
    def _told_apart(cls, domains: list[TopologyDomainForm]) -> list[TopologyDomainForm]:
        seen: set[tuple[tuple[str, str], ...]] = set()
        for labels in _labels_of(domains, {}):
            if labels in seen:
                raise ValueError(f"found {', '.join(f'{key}={value}' for key, value in labels)} twice")
            seen.add(labels)
        return domains

    def keys(self) -> Iterator[str]:
        """Yield the topology keys."""
        yield from self.new_domains.keys if self.new_domains is not None else ()
        for labels in _labels_of(self.domains, {}):
            yield from (key for key, _ in labels)


def _labels_of(domains: list[TopologyDomainForm], outer: dict[str, str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield the labels of each domain, those of the domains around it among them."""
    for each in domains:
        labels = {**outer, **each.labels}
        yield tuple(sorted(labels.items()))
        yield from _labels_of(each.domains, labels)


class NodeGroupForm(Form):
    """An explicit node group: of an instance type of the catalogue, or of a shape given by hand (`allocatable`)."""

    id: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[\x21-\x7e]+$")]
    allocatable: Allocatable | None = None
    """What pods may use of one node: cpu, memory, pods, and any other resource; `price_usd_per_hour` goes with it. The
    default of ephemeral-storage is that of the provisioner, or 17Gi."""
    arch: LabelValue | None = None
    """The architecture of a shape that is given by hand. The default is amd64."""
    price_usd_per_hour: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    """The price of one node. The default is the catalogue's."""
    instance_type: LabelValue | None = None
    zone: LabelValue | None = None
    capacity_type: LabelValue | None = None
    min_size: Size = 0
    max_size: Size | None = None
    """The most nodes that the group may have. By default there is no maximum."""
    labels: Labels = Field(default_factory=dict)
    post_registration_labels: _PostRegistrationLabels = Field(default_factory=dict)
    """Labels that a node gets only after it has registered, from feature discovery or a device plugin, say. Pods that
    require one are planned here, and a node counts as ready only with all of them."""
    taints: Taints = ()
    topology: TopologyForm | None = None
    """The default is the provisioner's."""
    autoscaling: AutoscalingOptions | None = None

    @field_validator("allocatable")
    @classmethod
    def _whole_shape(cls, allocatable: dict[str, Any] | None) -> dict[str, Any] | None:
        if allocatable is not None:
            absent = [resource for resource in (CPU, MEMORY, PODS) if not allocatable.get(resource)]
            if absent:
                raise ValueError(f"has no {' and no '.join(absent)}; a node needs cpu, memory and pods")
        return allocatable

    @field_validator("arch")
    @classmethod
    def _only_by_hand(cls, arch: str | None, info: ValidationInfo) -> str | None:
        if arch is not None and info.data.get("allocatable", ...) is None:
            raise ValueError("goes with allocatable; an instance type has its own")
        return arch

    @field_validator("instance_type")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        catalogue = _catalogue(info)
        if name is None or catalogue is None or info.data.get("allocatable", ...) is not None:
            return name
        if name not in catalogue.instance_types:
            hint = did_you_mean(name, catalogue.instance_types)
            raise ValueError(f"found {shown(name)}, which the catalogue does not have{hint}")
        return name

    @field_validator("max_size")
    @classmethod
    def _not_below_the_minimum(cls, size: int | None, info: ValidationInfo) -> int | None:
        if size is not None and size < info.data.get("min_size", 0):
            raise ValueError(f"found {size}, expected min_size ({info.data['min_size']}) or more")
        return size

    @model_validator(mode="after")
    def _of_a_type_or_by_hand(self, info: ValidationInfo) -> Self:
        if self.allocatable is not None:
            if self.price_usd_per_hour is None:
                raise ValueError("price_usd_per_hour is missing; a shape given by hand needs its price")
        elif self.instance_type is None:
            raise ValueError("give instance_type, or allocatable with price_usd_per_hour")
        elif (catalogue := _catalogue(info)) is not None:
            self.offering(catalogue)
        return self

    def offering(self, catalogue: Catalogue) -> Offering:
        """Return the offering of the group. Raises ValueError where none or more than one matches."""
        all_of_type = catalogue.offerings_of(self.instance_type or "")
        # A catalogue without zones allows any zone.
        zoneless = all(offering.zone == DEFAULT_ZONE for offering in all_of_type)
        fitting = [
            offering
            for offering in all_of_type
            if (self.zone is None or zoneless or offering.zone == self.zone)
            and (self.capacity_type is None or offering.capacity_type == self.capacity_type)
        ]
        if self.capacity_type is None and len(fitting) > 1:
            fitting = [offering for offering in fitting if offering.capacity_type == "on-demand"] or fitting
        if len(fitting) == 1:
            (found,) = fitting
            return Offering(found.instance_type, found.price_usd_per_hour, self.zone or found.zone,
                            found.capacity_type, found.available)  # fmt: skip
        places = ", ".join(f"{offering.zone}/{offering.capacity_type}" for offering in fitting or all_of_type)
        if fitting:
            raise ValueError(f"{self.instance_type} is offered in {places}; say which with zone and capacity_type")
        raise ValueError(f"{self.instance_type} is offered only in {places}")


class NodeGroupFile(Form):
    """Node groups in a file: `{"groups": {id: {cpu_milli, memory_mib, pods, gpu, arch, price}}}`."""

    ids: Annotated[list[str], Field(min_length=1)] | None = None
    """The ids of the file's groups that are taken. The default is all."""
    file: FilePath

    @field_validator("file")
    @classmethod
    def _valid_file(cls, file: str, info: ValidationInfo) -> str:
        directory = (info.context or {}).get(DIRECTORY)
        if directory is not None:
            problems: list[str] = []
            recorded = attempt(problems, lambda: read_recorded_groups(directory / file))
            known = [each.id for each in recorded or ()]
            absent = [name for name in info.data.get("ids") or () if name not in known]
            problems = problems or [
                f'{directory / file}: has no group "{name}"{did_you_mean(name, known)}' for name in absent
            ]
            if problems:
                raise ValueError("; ".join(problems))
        return file


def _tagged(value: Any, otherwise: str) -> str:
    return "<file>" if isinstance(value, Mapping) and "file" in value else otherwise


NodeGroupEntry = Annotated[
    Annotated[NodeGroupFile, Tag("<file>")] | Annotated[NodeGroupForm, Tag("<group>")],
    Discriminator(lambda value: _tagged(value, "<group>")),
]


class ProvisionerForm(Form):
    """A provisioner in cagrpc's own form. Without node_groups it expands over the catalogue."""

    name: ObjectName
    weight: Weight | None = None
    """The weight, 1 to 100, or 0 where there is none. A higher one is strictly preferred; equal weights are one
    tier."""
    requirements: Requirements = ()
    labels: Labels = Field(default_factory=dict)
    post_registration_labels: _PostRegistrationLabels = Field(default_factory=dict)
    """Labels that a node gets only after it has registered, from feature discovery or a device plugin, say. Pods that
    require one are planned here, and a node counts as ready only with all of them."""
    taints: Taints = ()
    startup_taints: Taints = ()
    topology: TopologyForm | None = None
    """In which topology domains its nodes are, for gangs that ask for one."""
    limits: Limits = Field(default_factory=dict)
    """What its nodes may have together: nodes, cpu, memory, any resource, as Kubernetes quantities."""
    allocatable: Allocatable = Field(default_factory=dict)
    """What pods may use of each of its nodes besides what instance types and node groups say: ephemeral-storage (17Gi
    by default, of a disk of 20 GiB), huge pages (which are taken off the memory), and what device plugins offer."""
    node_groups: Annotated[list[NodeGroupEntry], Field(min_length=1)] | None = None
    groups: tuple[Pattern, ...] = ()
    """Regular expressions over the ids of node groups that the cluster-autoscaler has from a cloud provider of its own:
    these have the provisioner's weight. If empty, it matches groups that carry its labels and taints and meet its
    requirements. A provisioner with `groups` and without node_groups has no nodes of its own."""
    autoscaling: AutoscalingOptions | None = None
    disruption: ProvisionerDisruption | None = None
    """How consolidation may disrupt its nodes."""

    @field_validator("allocatable")
    @classmethod
    def _beside_the_types(cls, allocatable: dict[str, Any]) -> dict[str, Any]:
        if found := [resource for resource in (CPU, MEMORY, PODS) if resource in allocatable]:
            raise ValueError(f"found {' and '.join(found)}, which instance types and node groups say")
        return allocatable


class ProvisionerFile(Form):
    """Provisioners in a YAML file of their own: Karpenter documents, or ours; relative to this file."""

    file: FilePath


class UnknownDocument(RootModel[dict[str, Any]]):
    """A Kubernetes object that is no provisioner."""

    @model_validator(mode="after")
    def _refused(self) -> Self:
        found = f"apiVersion {shown(self.root.get('apiVersion'))}, kind {shown(self.root.get('kind'))}"
        raise ValueError(f"found {found}; expected {karpenter.SUPPORTED}")


def _provisioner_tag(value: Any) -> str:
    if not isinstance(value, Mapping) or not ("apiVersion" in value or "kind" in value):
        return _tagged(value, "<own>")
    match value.get("apiVersion"), value.get("kind"):
        case ((karpenter.V1 | karpenter.V1BETA1), "NodePool"):
            return "<nodepool>"
        case karpenter.V1ALPHA5, "Provisioner":
            return "<provisioner>"
    return "<unknown>"


ProvisionerEntry = Annotated[
    Annotated[ProvisionerForm, Tag("<own>")]
    | Annotated[ProvisionerFile, Tag("<file>")]
    | Annotated[karpenter.NodePool, Tag("<nodepool>")]
    | Annotated[karpenter.ProvisionerV1Alpha5, Tag("<provisioner>")]
    | Annotated[SkipJsonSchema[UnknownDocument], Tag("<unknown>")],
    Discriminator(_provisioner_tag),
]


def _catalogue(info: ValidationInfo) -> Catalogue | None:
    return (info.context or {}).get(CATALOGUE)
