"""How many nodes of each provisioner may go now: Karpenter's disruption budgets, and its limit to repairs. Pure.

As in Karpenter, percentages are of the provisioner's registered nodes and rounded up; the smallest budget that is
active and of the reason holds; nodes that are going already, or are not Ready, take from it. Nodes that their cloud
takes anyway are in no budget. Nodes that have gone bad are replaced whatever the budgets say, unless too many of a
provisioner are bad: then it is not the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.consolidation.question import MOST_UNHEALTHY_PERCENT, ConsolidationQuestion
from cagrpc.controllers.settings import ConsolidationSettings, NodeBudget, share
from cagrpc.fleet.model import FleetSnapshot
from solver.consolidation.model import ConsolidationProblem, ConsolidationStep, DisruptionReason

UNLIMITED = 2**31 - 1

_KARPENTERS_REASONS = {
    DisruptionReason.EMPTY: "Empty",
    DisruptionReason.UNDERUTILIZED: "Underutilized",
    DisruptionReason.BETTER_WEIGHT: "Underutilized",
}
"""Karpenter knows no move to a better weight; whoever limits moves of pods that run means this one, too."""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Nodes of one provisioner."""

    registered: int = 0
    disrupted: int = 0
    """Among them: those that are going, or are not Ready."""
    unhealthy: int = 0
    """Among them: those that have gone bad for long enough."""


def limit(budgets: Iterable[NodeBudget], reason: DisruptionReason, registered: int, now_seconds: float) -> int:
    """Return how many nodes of so many may be disrupted at once at a time (since the epoch)."""
    karpenters = _KARPENTERS_REASONS.get(reason)
    if karpenters is None:
        return UNLIMITED
    return min(
        (
            each.most_of(registered)
            for each in budgets
            if (each.reasons is None or karpenters in each.reasons) and each.active_at(now_seconds)
        ),
        default=UNLIMITED,
    )


def may_go(
    settings: ConsolidationSettings, provisioner: str, counts: NodeCounts, reason: DisruptionReason, now_seconds: float
) -> int:
    """Return how many further nodes of a provisioner may go for a reason."""
    if reason is DisruptionReason.INTERRUPTED:
        return UNLIMITED
    if reason is DisruptionReason.UNHEALTHY:
        return UNLIMITED if counts.unhealthy <= share(MOST_UNHEALTHY_PERCENT, counts.registered) else 0
    most = limit(settings.budgets_of(provisioner), reason, counts.registered, now_seconds)
    return most if most == UNLIMITED else max(0, most - counts.disrupted)


def within(nodes: Iterable[str], provisioners: Mapping[str, str], left: Mapping[str, int]) -> tuple[str, ...]:
    """Return the nodes that may go, the first ones of each provisioner. `provisioners` is by node, `left` by
    provisioner; one that is in neither has no budget."""
    taken: Counter[str] = Counter()
    found = []
    for node in nodes:
        provisioner = provisioners.get(node, "")
        if taken[provisioner] < left.get(provisioner, UNLIMITED):
            taken[provisioner] += 1
            found.append(node)
    return tuple(found)


class NodesThatMayGo:
    """What budgets let go at one moment."""

    def __init__(
        self,
        settings: ConsolidationSettings,
        asked: ConsolidationQuestion,
        now_seconds: float,
    ) -> None:
        self._settings, self._now = settings, now_seconds
        groups = asked.snapshot.fleet.groups
        self.provisioners = {
            each.node.name: groups[each.node_group].group.provisioner
            for each in asked.problem.nodes
            if each.node_group in groups
        }
        self.counts = _counts(asked.snapshot.cluster, asked.snapshot.fleet, asked.problem)

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
