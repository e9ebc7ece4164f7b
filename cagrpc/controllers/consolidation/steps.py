"""A step of a consolidation plan in the cluster's own terms: which Nodes go, which come, and where each pod is to run.
Who makes one of a `solver.consolidation.model.ConsolidationStep` knows the state that was asked about; `queue` takes it
from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.cluster.state import ReschedulablePod
from cagrpc.fleet.model import DisruptedNode
from solver.consolidation.model import DisruptionReason


@dataclass(frozen=True, slots=True)
class MovedPod:
    """A pod, and the node that was planned for its successor."""

    pod: ReschedulablePod
    target: str
    """The name of a Node that stands; of a new one `node group/number`, numbers from 0 by group."""


@dataclass(frozen=True, slots=True)
class AssignedStep:
    """Nodes to replace, as a whole."""

    reason: DisruptionReason
    nodes: tuple[DisruptedNode, ...]
    """Those that go."""
    pods: tuple[MovedPod, ...] = ()
    """All pods of these nodes that need room elsewhere; those that may not be evicted (`Kept.BY_OWNER`) are waited
    for."""
    new_nodes: Mapping[str, int] = field(default_factory=dict)
    """How many come of which node group."""
    saving_usd_per_hour: float = 0.0
    cost_usd_per_hour: float | None = None
    """Of the new nodes."""
