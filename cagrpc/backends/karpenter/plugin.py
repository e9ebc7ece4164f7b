"""The Karpenter backend's plug-in: its fields in the configuration file, the settings that they become, and how it is
opened. Modules with behaviour are imported only then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from cagrpc.backends.plugin import (
    BackendPlugin,
    Configured,
    Inventory,
    OpenedLater,
    SectionSource,
    later,
    unknown_names,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import DEFAULT_ZONE
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.forms import Duration, Form, NotWritten, Section
from solver.model import NodeGroup, Taint

UNAVAILABLE_OFFERINGS_SECONDS = 180.0
"""Karpenter's AWS provider launches nothing of an offering for so long after a shortage of it (its pkg/cache,
UnavailableOfferingsTTL). Azure's waits for an hour, for some errors longer."""
TERMINATION_GRACE_PERIOD_SECONDS = 600.0
"""A NodeClaim that is deleted is gone after so long at the latest, as with CA's own --max-graceful-termination-sec."""

_KARPENTERS = "karpenter.sh/"


def _one_segment(text: str) -> str:
    if "/" in text:
        raise ValueError(f'found "{text}", expected an API group without its version, such as "karpenter.k8s.aws"')
    return text


@dataclass(frozen=True, slots=True)
class NodeClass(Section):
    """A NodeClass, the provider's part of a node: images, subnets, disks, identities."""

    group: Annotated[str, Field(min_length=1), AfterValidator(_one_segment)]
    """The group of its API, without the version: `karpenter.k8s.aws` or `karpenter.azure.com`."""
    kind: Annotated[str, Field(min_length=1)]
    """The kind: `EC2NodeClass` or `AKSNodeClass`."""
    name: Annotated[str, Field(min_length=1, max_length=253)]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What NodeClaims of a node group have beside what the group says."""

    node_class: NodeClass
    termination_grace_period_seconds: float = TERMINATION_GRACE_PERIOD_SECONDS
    startup_taints: tuple[Taint, ...] = ()
    """Taints of the provisioner, beside ours."""


def node_pool(group: NodeGroup) -> str:
    """Return the value of the label `karpenter.sh/nodepool` of the group's nodes."""
    return group.labels.get(NODEPOOL_LABEL) or group.provisioner or group.id


@dataclass(frozen=True, slots=True)
class WrittenParameters(Section):
    """What NodeClaims have beside what their node group says."""

    node_class: NodeClass | None = None
    termination_grace_period_seconds: Annotated[float, Duration("1s", "24h", '"10m"', was_number=True)] | None = None
    """How long it takes at most until a deleted NodeClaim is gone, whatever disruption budgets or do-not-disrupt say.
    The default is 10m, as of CA's --max-graceful-termination-sec."""


@dataclass(frozen=True, slots=True)
class KarpenterSettings(WrittenParameters):
    """Creates nodes by Karpenter's NodeClaims in the cluster of the section `kubernetes`."""

    fleet: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")] = "cagrpc"
    """The name that marks this server's NodeClaims, so that two servers can share a cluster."""
    unavailable_offerings_seconds: Annotated[float, Duration("0s", "24h", '"3m"', was_number=True)] = (
        UNAVAILABLE_OFFERINGS_SECONDS
    )
    """How long Karpenter's provider launches nothing of an offering after a shortage of it: 3m with AWS, 1h with
    Azure."""
    provisioners: Mapping[str, WrittenParameters] = field(default_factory=dict)
    """Parameters by the name of the provisioner."""
    node_groups: Mapping[str, WrittenParameters] = field(default_factory=dict)
    """Parameters by the id of the node group, which come before those of its provisioner."""
    parameters: Annotated[Mapping[str, Parameters], NotWritten()] = field(default_factory=dict)
    """Those of each node group, by its id."""
    node_pools: Annotated[frozenset[str], NotWritten()] = frozenset()
    """The values of the label `karpenter.sh/nodepool` that its nodes carry."""


class KarpenterFields(Form):
    """In the section `backend`."""

    karpenter: KarpenterSettings | None = None


class KarpenterPlugin(BackendPlugin):
    name = "karpenter"
    backend_fields = KarpenterFields
    kubernetes_fields = None
    cluster_source = SectionSource("node-pools", later("cagrpc.backends.karpenter.importing", "read"))

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del directory  # it names no files
        assert isinstance(backend, KarpenterFields)
        form = backend.karpenter or KarpenterSettings()
        problems = list(_problems(form, inventory))
        if kubernetes is None:
            problems.insert(0, "kubernetes: is missing; NodeClaims are objects of the cluster that it names")
        parameters: dict[str, Parameters] = {}
        classless: dict[str, None] = {}
        for group in inventory.groups:
            found = _parameters(form, group, inventory)
            if found is None:
                classless.setdefault(group.provisioner or group.id)
            else:
                parameters[group.id] = found
        problems += [
            f'backend.karpenter.node_class: is missing; the nodes of provisioner "{name}" need one, here or in'
            f' backend.karpenter.provisioners["{name}"]'
            for name in classless
        ]
        if problems:
            raise InvalidConfiguration(problems)
        node_pools = frozenset(node_pool(group) for group in inventory.groups)
        settings = replace(form, parameters=parameters, node_pools=node_pools)
        return Configured(OpenedLater("cagrpc.backends.karpenter.backend", settings), list(_warnings(inventory)))


def _parameters(form: KarpenterSettings, group: NodeGroup, inventory: Inventory) -> Parameters | None:
    """Return those of a group, the more special ones first; None without a NodeClass."""
    layers = [form.node_groups.get(group.id), form.provisioners.get(group.provisioner), form]
    given = [layer for layer in layers if layer is not None]
    node_class = next((layer.node_class for layer in given if layer.node_class is not None), None)
    seconds = (layer.termination_grace_period_seconds for layer in given)
    if node_class is None:
        return None
    return Parameters(
        node_class,
        next((found for found in seconds if found is not None), TERMINATION_GRACE_PERIOD_SECONDS),
        inventory.startup_taints.get(group.provisioner, ()),
    )


def _problems(form: KarpenterSettings, inventory: Inventory) -> Iterator[str]:
    yield from unknown_names("backend.karpenter", form.provisioners, form.node_groups, inventory)
    for group in inventory.groups:
        if not group.instance_type:
            yield (
                f'provisioners: node group "{group.id}" has no instance_type, which backend.karpenter needs: a'
                " NodeClaim is of one type"
            )
        restricted = [
            key
            for key in group.labels
            if key == "kubernetes.io/hostname"
            or (key.startswith(_KARPENTERS) and key not in (NODEPOOL_LABEL, "karpenter.sh/capacity-type"))
        ]
        if restricted:
            yield f'provisioners: node group "{group.id}" has labels of Karpenter\'s own: {", ".join(restricted)}'


def _warnings(inventory: Inventory) -> Iterator[tuple[tuple[str, ...], str]]:
    zoneless = [group.id for group in inventory.groups if group.zone in ("", DEFAULT_ZONE)]
    if zoneless:
        rest = f" and {len(zoneless) - 1} more" if len(zoneless) > 1 else ""
        message = (
            f'node group "{zoneless[0]}"{rest} has no zone, so Karpenter chooses one for each node; give zones in the'
            " catalogue or in node_groups"
        )
        yield ("backend", "karpenter"), message
