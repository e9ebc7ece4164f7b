"""The validated settings of the Karpenter backend, as values: what its forms (`plugin`) become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field

from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.forms import Section
from solver.model import NodeGroup, Taint

UNAVAILABLE_OFFERINGS_SECONDS = 180.0
"""Karpenter's AWS provider launches nothing of an offering for so long after a shortage of it (its pkg/cache,
UnavailableOfferingsTTL). Azure's waits for an hour, for some errors longer."""
TERMINATION_GRACE_PERIOD_SECONDS = 600.0
"""As CA's own --max-graceful-termination-sec: a NodeClaim that is deleted is gone after so long at the latest."""


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
    """Of the provisioner; beside ours."""


@dataclass(frozen=True, slots=True)
class KarpenterSettings:
    """All of them."""

    fleet: str = "cagrpc"
    unavailable_offerings_seconds: float = UNAVAILABLE_OFFERINGS_SECONDS
    parameters: Mapping[str, Parameters] = field(default_factory=dict)
    """By node group id."""
    node_pools: frozenset[str] = frozenset()
    """The values of the label `karpenter.sh/nodepool` that its nodes carry."""


def node_pool(group: NodeGroup) -> str:
    """Return the value of the label `karpenter.sh/nodepool` of the group's nodes."""
    return group.labels.get(NODEPOOL_LABEL) or group.provisioner or group.id
