"""The EC2 backend's plug-in: its fields in the configuration file, and how it is opened. Modules with behaviour, and
boto3, are imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cagrpc.backends.plugin import (
    BackendContext,
    BackendPlugin,
    CatalogueRequest,
    CatalogueSource,
    Configured,
    Inventory,
    OpenBackend,
    ReadCatalogue,
    unknown_names,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import Form
from cagrpc_ec2.parameters import (
    AllParameters,
    CapacityReservation,
    LaunchParameters,
    LaunchTemplate,
    is_karpenters,
    problems,
)
from cagrpc_ec2.rates import LAUNCHED_INSTANCES, TokenRate
from solver.model import NodeGroup

_MOST_TAGS = 40
"""Of the 50 that EC2 takes; the others are cagrpc's."""
_Text = Annotated[str, Field(min_length=1)]


class LaunchTemplateForm(Form):
    """An EC2 launch template, by `id` or by `name`."""

    id: Annotated[str, Field(pattern=r"^lt-[0-9a-f]+$")] | None = None
    name: Annotated[str, Field(min_length=3, max_length=128)] | None = None
    version: Annotated[int, Field(ge=1)] | Literal["$Default", "$Latest"] = "$Default"

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.id is None) == (self.name is None):
            raise ValueError("give one of id and name")
        return self

    def value(self) -> LaunchTemplate:
        """Return it as a value."""
        return LaunchTemplate(self.id, self.name, str(self.version))


class CapacityReservationForm(Form):
    """What node groups of capacity type `reserved` are launched into, by `id` or by the resource group that has it."""

    id: Annotated[str, Field(pattern=r"^cr-[0-9a-f]+$")] | None = None
    resource_group_arn: Annotated[str, Field(pattern=r"^arn:")] | None = None
    capacity_block: bool = False
    """Whether it is a capacity block for ML."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.id is None) == (self.resource_group_arn is None):
            raise ValueError("give one of id and resource_group_arn")
        return self

    def value(self) -> CapacityReservation:
        """Return it as a value."""
        return CapacityReservation(self.id, self.resource_group_arn, self.capacity_block)


class LaunchForm(Form):
    """What instances are launched with; the more special of node group, provisioner and section wins, by field."""

    launch_template: LaunchTemplateForm | None = None
    """The image, the instance profile, security groups, and user data whose kubelet joins the cluster and registers
    with the start-up taint. The instance type is the node group's."""
    subnets: dict[_Text, Annotated[str, Field(pattern=r"^subnet-[0-9a-f]+$")]] | None = None
    """The subnet of each zone. Left out, the launch template's network interfaces have it."""
    capacity_reservation: CapacityReservationForm | None = None
    tags: Annotated[dict[_Text, Annotated[str, Field(max_length=256)]], Field(max_length=_MOST_TAGS)] = Field(
        default_factory=dict
    )
    """Of instances and volumes, besides cagrpc's own."""

    @field_validator("tags")
    @classmethod
    def _nobody_elses(cls, tags: dict[str, str]) -> dict[str, str]:
        for tag in tags:
            if tag.startswith(("aws:", "cagrpc.io/")) or len(tag) > 128:
                raise ValueError(f"found the tag \"{tag[:128]}\", expected one that is neither AWS's nor cagrpc's own")
            if is_karpenters(tag):
                raise ValueError(f'found the tag "{tag}", by which Karpenter would terminate the instances as its own')
        return tags

    def value(self) -> LaunchParameters:
        """Return it as a value."""
        return LaunchParameters(
            self.launch_template.value() if self.launch_template is not None else None,
            self.subnets,
            self.capacity_reservation.value() if self.capacity_reservation is not None else None,
            self.tags,
        )


class Ec2Form(LaunchForm):
    """Plain EC2 (beta): instances from launch templates."""

    cluster_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """In a tag of all instances: the fleet's own are those of its name. Two fleets of one account need two names."""
    region: _Text | None = None
    """Default: that of the environment, as for every AWS SDK."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Default: AWS's. For an interface endpoint of a VPC."""
    launch_burst_instances: Annotated[int, Field(ge=1, le=1_000_000)] = int(LAUNCHED_INSTANCES.most)
    """How many instances the account may launch at once; EC2's documented default."""
    launch_instances_per_second: Annotated[float, Field(gt=0, le=10_000)] = LAUNCHED_INSTANCES.per_second
    """How fast this is regained."""
    provisioners: dict[_Text, LaunchForm] = Field(default_factory=dict)
    """By the provisioner's name."""
    node_groups: dict[_Text, LaunchForm] = Field(default_factory=dict)
    """By the node group's id."""


class Ec2Fields(Form):
    """In the section `backend`."""

    ec2: Ec2Form | None = None
    """Plain EC2 (the package `cagrpc-ec2`). Beta: tried on no real cloud yet."""


@dataclass(frozen=True, slots=True)
class Ec2Settings:
    """`BackendSettings` of EC2."""

    cluster_name: str
    region: str | None
    endpoint_url: str | None
    launched_instances: TokenRate
    parameters: AllParameters
    groups: tuple[NodeGroup, ...]

    def open(self, context: BackendContext) -> OpenBackend:
        opened: OpenBackend = import_module("cagrpc_ec2.opening").open_backend(
            context,
            cluster_name=self.cluster_name,
            region=self.region,
            endpoint_url=self.endpoint_url,
            launched_instances=self.launched_instances,
            parameters=self.parameters,
            groups=self.groups,
        )
        return opened


def _read_catalogue(wanted: CatalogueRequest) -> ReadCatalogue:
    read: ReadCatalogue = import_module("cagrpc_ec2.account").read_catalogue(wanted)
    return read


class Ec2Plugin(BackendPlugin):
    name = "ec2"
    backend_fields = Ec2Fields
    kubernetes_fields = None
    catalogue_source = CatalogueSource("aws", _read_catalogue)

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del kubernetes, directory  # it has no fields and no files there
        assert isinstance(backend, Ec2Fields)
        written = backend.ec2
        if written is None:
            raise InvalidConfiguration(["backend.ec2: found nothing, expected cluster_name and launch_template"])
        parameters = AllParameters(
            written.value(),
            {name: form.value() for name, form in written.provisioners.items()},
            {group_id: form.value() for group_id, form in written.node_groups.items()},
        )
        found = [
            *unknown_names("backend.ec2", written.provisioners, written.node_groups, inventory),
            *_problems(parameters, inventory),
        ]
        if found:
            raise InvalidConfiguration(found)
        rate = TokenRate(written.launch_burst_instances, written.launch_instances_per_second)
        return Configured(
            Ec2Settings(written.cluster_name, written.region, written.endpoint_url, rate, parameters, inventory.groups)
        )


def _problems(parameters: AllParameters, inventory: Inventory) -> Iterator[str]:
    """Yield each problem once, with the node groups that have it: an expanded provisioner may have thousands."""
    of_problem: dict[tuple[str, str], list[str]] = {}
    for group in inventory.groups:
        for problem in problems(group, parameters.of(group)):
            of_problem.setdefault(problem, []).append(group.id)
    for (field, text), ids in of_problem.items():
        others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f'backend.ec2{"." if field else ""}{field}: {text} (node group "{ids[0]}"{others})'


PLUGIN = Ec2Plugin()
