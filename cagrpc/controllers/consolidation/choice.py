"""Which step is carried out next: the first of a plan of which the budgets let something go now. Pure.

Where they let only a part of it go, the question is asked again for this part alone; so it is in any case, as the
cluster has changed while the whole was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.budgets import NodeCounts, may_go, within
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot
from solver.consolidation.model import FORCEFUL, ConsolidationProblem, ConsolidationStep, DisruptionReason

LATER = "its step comes later"


class NodesThatMayGo:
    """What budgets let go at one moment."""

    def __init__(
        self,
        settings: ConsolidationSettings,
        snapshot: Snapshot,
        problem: ConsolidationProblem,
        now_seconds: float,
    ) -> None:
        self._settings, self._now = settings, now_seconds
        groups = snapshot.fleet.groups
        self.provisioners = {
            each.node.name: groups[each.node_group].group.provisioner
            for each in problem.nodes
            if each.node_group in groups
        }
        self.counts = _counts(snapshot.cluster, snapshot.fleet, problem)

    def of(self, step: ConsolidationStep) -> tuple[str, ...]:
        """Return the nodes of a step that may go now."""
        left = {name: self.left(name, step.reason) for name in set(self.provisioners.values())}
        return within(step.nodes, self.provisioners, left)

    def left(self, provisioner: str, reason: DisruptionReason) -> int:
        """Return how many nodes of a provisioner may go for a reason."""
        counts = self.counts.get(provisioner, NodeCounts())
        return may_go(self._settings, provisioner, counts, reason, self._now)


def _counts(state: ClusterState, snapshot: FleetSnapshot, problem: ConsolidationProblem) -> Mapping[str, NodeCounts]:
    going = deleting_instances(snapshot)
    bad = {each.node.name for each in problem.nodes if each.must_go is DisruptionReason.UNHEALTHY}
    registered: Counter[str] = Counter()
    disrupted: Counter[str] = Counter()
    unhealthy: Counter[str] = Counter()
    for each in state.nodes:
        group = snapshot.groups.get(snapshot.group_of_instance.get(each.provider_id, ""))
        if group is None or each.held:
            continue
        provisioner = group.group.provisioner
        registered[provisioner] += 1
        disrupted[provisioner] += not each.ready or each.provider_id in going
        unhealthy[provisioner] += each.node.name in bad
    return {name: NodeCounts(count, disrupted[name], unhealthy[name]) for name, count in registered.items()}


def candidates(
    steps: Iterable[ConsolidationStep], may: NodesThatMayGo, *, urgent_only: bool, without: AbstractSet[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the nodes to take away next, the best first: of each step those that budgets let go. `without` are nodes
    that are left alone for now."""
    for step in steps:
        if urgent_only and step.reason not in FORCEFUL:
            continue
        nodes = tuple(name for name in may.of(step) if name not in without)
        if nodes:
            yield nodes


def narrowed(
    problem: ConsolidationProblem, nodes: AbstractSet[str], without: AbstractSet[str] = frozenset()
) -> ConsolidationProblem:
    """Return the problem in which only these nodes may go, and those to which gangs of their pods reach, since a gang
    with a pod on a node that is kept does not move. Those that are left alone for now (`without`) are kept. A step
    takes away no more nodes than these, and no more than it may in any case."""
    gangs = {of.gang for each in problem.nodes if each.node.name in nodes for of in each.pods} - {None}
    standing = (
        each
        if each.kept
        or each.node.name in nodes
        or (each.node.name not in without and not gangs.isdisjoint(of.gang for of in each.pods))
        else replace(each, kept=LATER, must_go=None)
        for each in problem.nodes
    )
    most = min(problem.most_nodes_per_step, max(1, len(nodes)))
    return replace(problem, nodes=tuple(standing), most_nodes_per_step=most)
