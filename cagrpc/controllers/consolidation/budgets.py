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

from cagrpc.controllers.settings import ConsolidationSettings, NodeBudget, share
from solver.consolidation.model import DisruptionReason

UNLIMITED = 2**31 - 1
MOST_UNHEALTHY_PERCENT = 20

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
