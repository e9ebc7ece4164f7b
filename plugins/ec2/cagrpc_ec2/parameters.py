"""What instances of a node group are launched with: launch template, subnet, capacity reservation, tags. The more
special of node group, provisioner and whole section wins, field by field; how a call is made of it is in `launches`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cagrpc.forms import ReadAs, Section
from solver.model import NodeGroup

ON_DEMAND = "on-demand"
"""Where neither a node group nor the catalogue says another one."""
SPOT = "spot"
RESERVED = "reserved"
"""Karpenter's capacity type for capacity reservations and capacity blocks."""
CAPACITY_TYPES = (ON_DEMAND, SPOT, RESERVED)

CLUSTER_TAG = "cagrpc.io/cluster"
"""Whose instances these are: the fleet lists, and may terminate, those of its own name alone."""
NODE_GROUP_TAG = "cagrpc.io/node-group"
TOKEN_TAG = "cagrpc.io/token"  # noqa: S105 - the fleet's name of an instance
"""The token of the first instance of a call; with its index in the call (`AmiLaunchIndex`) it names each."""
LONGEST_GROUP_ID = 200
"""A tag's value has at most 256 characters, and a token has its node group's id in it."""


def is_karpenters(tag: str) -> bool:
    """Return whether a tag is one of those by which Karpenter's AWS provider knows its instances; it terminates those
    that have no NodeClaim."""
    return tag.startswith(("karpenter.sh/", "karpenter.k8s.aws/")) or tag == "eks:eks-cluster-name"


@dataclass(frozen=True, slots=True)
class LaunchTemplate(Section):
    """An EC2 launch template, by `id` or by `name`."""

    id: Annotated[str, Field(pattern=r"^lt-[0-9a-f]+$")] | None = None
    name: Annotated[str, Field(min_length=3, max_length=128)] | None = None
    version: Annotated[str, ReadAs(Annotated[int, Field(ge=1)] | Literal["$Default", "$Latest"], str)] = "$Default"

    def __post_init__(self) -> None:
        if (self.id is None) == (self.name is None):
            raise ValueError("give one of id and name")

    @property
    def request(self) -> dict[str, str]:
        """Return it as parameters of EC2's API."""
        which = {"LaunchTemplateId": self.id} if self.id is not None else {"LaunchTemplateName": self.name or ""}
        return {**which, "Version": self.version}

    def __str__(self) -> str:
        return f"{self.id or self.name} (version {self.version})"


@dataclass(frozen=True, slots=True)
class CapacityReservation(Section):
    """What node groups of capacity type `reserved` are launched into, by `id` or by the resource group that has it."""

    id: Annotated[str, Field(pattern=r"^cr-[0-9a-f]+$")] | None = None
    resource_group_arn: Annotated[str, Field(pattern=r"^arn:")] | None = None
    capacity_block: bool = False
    """Whether it is a capacity block for ML."""

    def __post_init__(self) -> None:
        if (self.id is None) == (self.resource_group_arn is None):
            raise ValueError("give one of id and resource_group_arn")


def _nobody_elses(tags: Mapping[str, str]) -> Mapping[str, str]:
    for tag in tags:
        if tag.startswith(("aws:", "cagrpc.io/")) or len(tag) > 128:
            raise ValueError(f"found the tag \"{tag[:128]}\", expected one that is neither AWS's nor cagrpc's own")
        if is_karpenters(tag):
            raise ValueError(f'found the tag "{tag}", by which Karpenter would terminate the instances as its own')
    return tags


_Text = Annotated[str, Field(min_length=1)]
_MOST_TAGS = 40
"""Of the 50 that EC2 takes; the others are cagrpc's."""


@dataclass(frozen=True, slots=True)
class LaunchParameters(Section):
    """What instances are launched with; the more special of node group, provisioner and section wins, by field."""

    launch_template: LaunchTemplate | None = None
    """The image, the instance profile, security groups, and user data whose kubelet joins the cluster and registers
    with the start-up taint. The instance type is the node group's."""
    subnets: dict[_Text, Annotated[str, Field(pattern=r"^subnet-[0-9a-f]+$")]] | None = None
    """The subnet of each zone. Without it the launch template's network interfaces have to have one."""
    capacity_reservation: CapacityReservation | None = None
    tags: Annotated[
        dict[_Text, Annotated[str, Field(max_length=256)]], Field(max_length=_MOST_TAGS), AfterValidator(_nobody_elses)
    ] = field(default_factory=dict)
    """Tags of instances and volumes, besides cagrpc's own."""

    def over(self, general: LaunchParameters) -> LaunchParameters:
        """Return these parameters, and the general ones where these have none."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}
        left = {each.name: getattr(general, each.name) for each in fields(self)}
        return LaunchParameters(**{**left, **own, "tags": {**general.tags, **self.tags}})


@dataclass(frozen=True, slots=True)
class AllParameters:
    """Of the section, of provisioners by name and of node groups by id."""

    general: LaunchParameters
    provisioners: Mapping[str, LaunchParameters] = field(default_factory=dict)
    node_groups: Mapping[str, LaunchParameters] = field(default_factory=dict)

    def of(self, group: NodeGroup) -> LaunchParameters:
        """Return what instances of the group are launched with."""
        nothing = LaunchParameters()
        of_provisioner = self.provisioners.get(group.provisioner, nothing).over(self.general)
        return self.node_groups.get(group.id, nothing).over(of_provisioner)


def capacity_type(group: NodeGroup) -> str:
    """Return the group's capacity type; on demand where it has none."""
    return group.capacity_type or ON_DEMAND


def problems(group: NodeGroup, parameters: LaunchParameters) -> Sequence[tuple[str, str]]:
    """Return why instances of the group cannot be launched, each with the field that is wrong."""
    found = []
    if not group.instance_type:
        found.append(("", "a node group of a shape given by hand has no instance type, and EC2 launches nothing else"))
    if len(group.id) > LONGEST_GROUP_ID:
        found.append(("", f"the id of a node group has at most {LONGEST_GROUP_ID} characters, for EC2's tags"))
    if parameters.launch_template is None:
        found.append(("launch_template", "is missing"))
    if parameters.subnets is not None and group.zone not in parameters.subnets:
        known = ", ".join(sorted(parameters.subnets)) or "none"
        found.append(("subnets", f'has no subnet for zone "{group.zone}"; it has those of {known}'))
    kind = capacity_type(group)
    if kind not in CAPACITY_TYPES:
        found.append(("", f'found capacity type "{kind}", expected one of {", ".join(CAPACITY_TYPES)}'))
    if kind == RESERVED and parameters.capacity_reservation is None:
        found.append(("capacity_reservation", f'is missing; capacity type "{RESERVED}" is launched into one'))
    return found
