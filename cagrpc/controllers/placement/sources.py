"""What the release controller asks of the cluster view, and of who nominates pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from cagrpc.cluster.state import PendingPod
from cagrpc.runtime.progress import Progress


class HeldNodes(Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that releasing needs."""

    def held_nodes(self) -> Mapping[str, str]:
        """Return the names of all Nodes with our start-up taint, by provider id. Raises Unavailable while the cluster
        is unknown."""
        ...

    def held_at(self, name: str) -> int:
        """Return the index of the taint among those of this Node; -1 without it."""
        ...

    def in_use(self, name: str) -> bool:
        """Return whether pods are bound to this Node that would have to go elsewhere if it went."""
        ...

    def node_names(self) -> Mapping[str, str]:
        """Return the names of all Nodes, by provider id."""
        ...


class NominationProgress(Protocol):
    """The part of `controller.PlacementController` that releasing needs."""

    def begun(self, increments: AbstractSet[str]) -> bool:
        """Return whether every pod with a place has been nominated once; false until these ready increments were
        observed."""
        ...

    def expects(self, name: str) -> bool:
        """Return whether pods with a place on the Node of this name are still to be created."""
        ...

    def turn(self, name: str) -> tuple[int, float] | None:
        """Return the sort key of the first pod in the scheduler's queue with a place on this Node; None without any."""
        ...

    def progress(self) -> Progress:
        """Return how many pods were nominated or bound, and when the last one was."""
        ...

    def to_be_bound(self) -> int:
        """Return how many pods are to be nominated, and then bound."""
        ...

    def pods_of(self, name: str) -> Collection[PendingPod]:
        """Return the pending pods with a place on the Node of this name."""
        ...

    def rivals(self) -> bool:
        """Return whether pods without a place are pending."""
        ...

    def settled(self, increment_id: str, name: str) -> bool:
        """Return whether all pods with a place on the Node of this name are nominated to it, as far as they can be;
        false until the increment was observed."""
        ...
