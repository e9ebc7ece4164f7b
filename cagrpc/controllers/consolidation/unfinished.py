"""Where consolidation is off and the journal has a step under way: it is undone, as far as that goes without knowing
who is bound where, which the view remembers only for consolidation. Cordons are lifted, and new nodes withdrawn of
which none is there yet. Nodes that stand empty are the autoscaler's to take away again; pods that were evicted are the
scheduler's and the planner's, as any others.

Rights: get and patch nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from cagrpc.controllers.consolidation.cordons import PatchableNodes, uncordon
from cagrpc.errors import Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import Disruption, DisruptionPhase
from cagrpc.runtime.controller import Controller

log = logging.getLogger(__name__)

WHY = "consolidation is off"


class KnownNodes(Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that is needed here."""

    @property
    def problem(self) -> str | None: ...

    def node_names(self) -> Mapping[str, str]: ...


class UnfinishedStep(Controller):
    """Undoes what is under way. It may be repeated, so that a process that ends anywhere is continued by the next."""

    name = "a step of consolidation that is under way"
    every_seconds = 5.0

    def __init__(self, client: PatchableNodes, fleet: Fleet, cluster: KnownNodes) -> None:
        self._client = client
        self._fleet = fleet
        self._cluster = cluster

    def step(self) -> None:
        """Undo it. Raises Unavailable where cluster or journal are out of reach."""
        under_way = self._fleet.snapshot.disruption
        if under_way is None:
            return
        problem = self._cluster.problem
        if problem is not None:
            raise Unavailable(problem)
        self._fleet.disruptions.check()
        if not self._any_is_there(under_way):
            self._fleet.withdraw(under_way.increment_id, f"the disruption that it is for is undone: {WHY}")
        for each in (*under_way.nodes, *under_way.new_nodes):
            uncordon(self._client, each.name)
        self._fleet.disruptions.change(replace(under_way, phase=DisruptionPhase.UNDONE, message=WHY))
        log.warning("disruption %s is undone: %s", under_way.id, WHY, extra={"disruption": under_way.id})

    def _any_is_there(self, under_way: Disruption) -> bool:
        """Return whether there is a Node of its increment, or nothing to withdraw."""
        status = next((each for each in self._fleet.snapshot.increments if each.id == under_way.increment_id), None)
        known = self._cluster.node_names()
        return status is None or any(each.instance_id in known for each in status.nodes)
