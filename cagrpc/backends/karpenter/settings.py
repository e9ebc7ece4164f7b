"""The validated settings of the Karpenter backend, as values: what its forms (`plugin`) become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from solver.model import NodeGroup, Taint

UNAVAILABLE_OFFERINGS_SECONDS = 180.0
"""Karpenter's AWS provider launches nothing of an offering for so long after a shortage of it (its pkg/cache,
UnavailableOfferingsTTL). Azure's waits for an hour, for some errors longer."""
TERMINATION_GRACE_PERIOD_SECONDS = 600.0
"""As CA's own --max-graceful-termination-sec: a NodeClaim that is deleted is gone after so long at the latest."""


@dataclass(frozen=True, slots=True)
class NodeClass:
    """A reference to a NodeClass."""

    group: str
    kind: str
    name: str


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
