"""Undoing a disruption: cordons are lifted where pods are left, and of the nodes without pods, old and new, those go
that nobody needs, once every pod that was evicted runs again; a node that is younger than the minimum age goes when it
is older, as any other empty one. Of one that evicted nothing only cordons are lifted; its new nodes are withdrawn, but
where some are there already.

Where consolidation is off and the journal has a disruption under way, it is undone as far as that goes without knowing
who is bound where, which the view remembers only for consolidation (`UnfinishedStep`). Nodes that are empty then are
the autoscaler's to take away again; pods that were evicted are the scheduler's and the planner's, as any others.

Rights: get and patch nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.evictions import Cordons, uncordon
from cagrpc.controllers.consolidation.targets import NewNodes, needed, standing_of
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.errors import FailedPrecondition, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import DisruptedNode, Disruption, DisruptionPhase, InstanceState, Phase
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.progress import DEADLINE_SECONDS, Turn
from solver.model.quantities import pluralize

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
"""How long it waits at least for the successors of pods that were evicted, which may need any node. After that, and
once the scheduler has passed them over or binds nobody any more, all nodes stay."""


WHY = "consolidation is off"


class Undoing:
    """For one thread."""

    def __init__(
        self,
        fleet: Fleet,
        cordons: Cordons,
        assumed: AssumeCache,
        new_nodes: NewNodes,
        settings: ConsolidationSettings,
        clock: MonotonicClock,
    ) -> None:
        self._fleet = fleet
        self._cordons = cordons
        self._assumed = assumed
        self._clock = clock
        self._new_nodes = new_nodes
        self._minimum_node_age_seconds = settings.minimum_node_age_seconds
        self._turn: Turn | None = None
        """Of the successors, with the scheduler."""

    def forget(self) -> None:
        """Forget how long it has taken: another disruption begins."""
        self._turn = None

    def withdraw(self, under_way: Disruption, why: str) -> bool:
        """Withdraw the new nodes, but where some are there already. Return whether none comes any more."""
        status = self._new_nodes.status(under_way)
        if status is not None and not self._new_nodes.may_be_withdrawn(status):
            return False
        if under_way.increment_id:
            self._fleet.withdraw(under_way.increment_id, why)
        return True

    def advance(self, under_way: Disruption, state: ClusterState) -> str:
        """Do what is due. Return what it waits for; empty once it is undone."""
        now = self._clock()
        scheduler = self._assumed.placements.scheduler
        self._turn = self._turn or Turn(now, scheduler.served)
        self._turn.before = max(self._turn.before, state.waiting_pods)
        patient = not self._turn.is_over(scheduler, DEADLINE_SECONDS, now, least_seconds=PATIENCE_SECONDS)
        status = self._new_nodes.status(under_way)
        coming = status is not None and status.phase in (Phase.PLANNED, Phase.CREATING)
        if coming and not self.withdraw(under_way, under_way.message):
            return "new nodes, the first of which are there"
        if status is not None and status.phase is Phase.READY:
            return "new nodes to be released"
        moved = under_way.moving_since_seconds is not None
        nodes = standing_of((*under_way.nodes, *under_way.new_nodes), state)
        empty: AbstractSet[str] = frozenset()
        if moved and patient:
            waiting = self._assumed.displaced.open_count
            if not waiting:
                taken = self._assumed.snapshot(self._fleet.snapshot, state)
                empty = self._running(nodes) - needed(taken, self._assumed.placements) - self._young(state)
            self._cordons.write(nodes, empty, under_way.id)
            if waiting:
                return f"{pluralize(waiting, 'evicted pod')} to run again"
            if not self._cordons.are_as_written([each for each in nodes if each.name in empty]):
                return "cordons to be seen"
        else:
            self._cordons.write(nodes, empty, under_way.id)
        self._end(under_way, [each for each in nodes if each.name in empty])
        return ""

    def _end(self, under_way: Disruption, empty: Iterable[DisruptedNode]) -> None:
        ended, doomed = replace(under_way, phase=DisruptionPhase.UNDONE), list(empty)
        try:
            self._fleet.disruptions.change(ended, delete=[each.instance_id for each in doomed])
        except FailedPrecondition as error:
            log.warning("disruption %s: its empty nodes stay: %s", under_way.id, error)
            self._cordons.write(doomed, frozenset(), under_way.id)
            self._fleet.disruptions.change(ended)

    def _young(self, state: ClusterState) -> set[str]:
        """Return the names of nodes that are younger than the minimum age."""
        since = self._fleet.disruptions.now() - self._minimum_node_age_seconds
        return {each.node.name for each in state.nodes if each.created_at_seconds > since}

    def _running(self, nodes: Iterable[DisruptedNode]) -> set[str]:
        """Return the names of those of the nodes whose instances run."""
        running = {
            instance.id
            for group in self._fleet.snapshot.groups.values()
            for instance in group.instances
            if instance.state is InstanceState.RUNNING
        }
        return {each.name for each in nodes if each.instance_id in running}


class UnfinishedStep(Controller):
    """Undoes what is under way. It may be repeated, so that a process that ends anywhere is continued by the next."""

    name = "a step of consolidation that is under way"
    every_seconds = 5.0

    def __init__(self, client: Client, fleet: Fleet, cluster: ClusterView) -> None:
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
