"""The EC2 backend's plug-in: its fields in the configuration file, and how it is opened. Modules with behaviour, and
boto3, are imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cagrpc.backends.plugin import (
    BackendPlugin,
    CatalogueSource,
    Configured,
    Inventory,
    OpenedLater,
    later,
    unknown_names,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import Form
from cagrpc_ec2.parameters import AllParameters, LaunchParameters, problems
from cagrpc_ec2.rates import LAUNCHED_INSTANCES, TokenRate
from solver.model import NodeGroup

_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Section(LaunchParameters):
    """Plain EC2 (beta): instances from launch templates."""

    cluster_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """The value of a tag of all instances: the fleet owns those with its name. Two fleets of one account need two
    names."""
    region: _Text | None = None
    """The region. The default is that of the environment, as for every AWS SDK."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The URL of EC2's endpoint, such as an interface endpoint of a VPC. The default is AWS's own."""
    launch_burst_instances: Annotated[int, Field(ge=1, le=1_000_000)] = int(LAUNCHED_INSTANCES.most)
    """How many instances the account may launch at once; EC2's documented default."""
    launch_instances_per_second: Annotated[float, Field(gt=0, le=10_000)] = LAUNCHED_INSTANCES.per_second
    """How fast this is regained."""
    provisioners: dict[_Text, LaunchParameters] = field(default_factory=dict)
    """Launch parameters by the name of the provisioner."""
    node_groups: dict[_Text, LaunchParameters] = field(default_factory=dict)
    """Launch parameters by the id of the node group."""


class Ec2Fields(Form):
    """In the section `backend`."""

    ec2: Ec2Section | None = None
    """The settings of plain EC2 (the package `cagrpc-ec2`). This backend is beta: it was not tried on a real cloud
    yet."""


@dataclass(frozen=True, slots=True)
class Ec2Settings:
    """What the backend is opened with."""

    cluster_name: str
    region: str | None
    endpoint_url: str | None
    launched_instances: TokenRate
    parameters: AllParameters
    groups: tuple[NodeGroup, ...]


class Ec2Plugin(BackendPlugin):
    name = "ec2"
    backend_fields = Ec2Fields
    kubernetes_fields = None
    catalogue_source = CatalogueSource("aws", later("cagrpc_ec2.account", "read_catalogue"))

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del kubernetes, directory  # it has no fields and no files there
        assert isinstance(backend, Ec2Fields)
        written = backend.ec2
        if written is None:
            raise InvalidConfiguration(["backend.ec2: found nothing, expected cluster_name and launch_template"])
        parameters = AllParameters(written, written.provisioners, written.node_groups)
        wrong = [
            *unknown_names("backend.ec2", written.provisioners, written.node_groups, inventory),
            *_problems(parameters, inventory),
        ]
        if wrong:
            raise InvalidConfiguration(wrong)
        rate = TokenRate(written.launch_burst_instances, written.launch_instances_per_second)
        found = Ec2Settings(
            written.cluster_name, written.region, written.endpoint_url, rate, parameters, inventory.groups
        )
        return Configured(OpenedLater("cagrpc_ec2.opening", found))


def _problems(parameters: AllParameters, inventory: Inventory) -> Iterator[str]:
    """Yield each problem once, with the node groups that have it: an expanded provisioner may have thousands."""
    of_problem: dict[tuple[str, str], list[str]] = {}
    for group in inventory.groups:
        for problem in problems(group, parameters.of(group)):
            of_problem.setdefault(problem, []).append(group.id)
    for (where, text), ids in of_problem.items():
        others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f'backend.ec2{"." if where else ""}{where}: {text} (node group "{ids[0]}"{others})'


PLUGIN = Ec2Plugin()
