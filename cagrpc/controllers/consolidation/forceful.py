"""Nodes that are replaced whatever that costs: those that their cloud takes soon, and those that have gone bad, as
Karpenter repairs nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.state import ClusterNode, NodeCondition
from cagrpc.controllers.settings import ConsolidationSettings, RepairRule, share
from cagrpc.fleet.model import FleetSnapshot
from solver.consolidation.model import DisruptionReason

MOST_UNHEALTHY_PERCENT = 20
"""Of the nodes of a provisioner: where more are bad it is hardly the nodes."""


@dataclass(frozen=True, slots=True)
class ForcefulDisruption:
    """A node that must go."""

    reason: DisruptionReason
    """INTERRUPTED or UNHEALTHY."""
    why: str
    """For people: the taint, or the condition."""


@dataclass(frozen=True, slots=True)
class ForcefulDisruptions:
    """Nodes of the fleet that must go, by name."""

    nodes: Mapping[str, ForcefulDisruption] = field(default_factory=dict)
    spared: Mapping[str, str] = field(default_factory=dict)
    """Nodes that have gone bad and stay, since so many of their provisioner's are bad that it is hardly the nodes: by
    name, why, for people."""


def must_go(
    nodes: Iterable[ClusterNode], snapshot: FleetSnapshot, settings: ConsolidationSettings, now_seconds: float
) -> ForcefulDisruptions:
    """Return which nodes of the fleet must go, of those that nobody removes already; conditions last since their last
    transition. `now_seconds` is since the epoch."""
    ours = list(_ours(nodes, snapshot))
    registered, bad = Counter(provisioner for _, provisioner in ours), Counter[str]()
    found: dict[str, ForcefulDisruption] = {}
    for each, provisioner in ours:
        bad[provisioner] += any(_holds(rule, said) for rule in settings.repair for said in each.conditions)
        interrupted = _why_interrupted(each, settings)
        unhealthy = _why_unhealthy(each, settings.repair, now_seconds)
        if interrupted:
            why = f"its cloud takes it: {interrupted}"
            found[each.node.name] = ForcefulDisruption(DisruptionReason.INTERRUPTED, why)
        elif unhealthy:
            found[each.node.name] = ForcefulDisruption(DisruptionReason.UNHEALTHY, unhealthy)
    spared = {
        name: (
            f"{found[name].why}; but {bad[provisioner]} of the {registered[provisioner]} nodes of provisioner"
            f" {provisioner} are bad, more than {MOST_UNHEALTHY_PERCENT} %"
        )
        for name, provisioner in ((each.node.name, provisioner) for each, provisioner in ours)
        if bad[provisioner] > share(MOST_UNHEALTHY_PERCENT, registered[provisioner])
        and name in found
        and found[name].reason is DisruptionReason.UNHEALTHY
    }
    return ForcefulDisruptions({name: each for name, each in found.items() if name not in spared}, spared)


def _ours(nodes: Iterable[ClusterNode], snapshot: FleetSnapshot) -> Iterator[tuple[ClusterNode, str]]:
    """Yield the nodes of the fleet that are not on their way out, with their provisioners."""
    going = deleting_instances(snapshot)
    for each in nodes:
        group = snapshot.groups.get(snapshot.group_of_instance.get(each.provider_id, ""))
        if group is not None and each.provider_id not in going:
            yield each, group.group.provisioner


def _holds(rule: RepairRule, condition: NodeCondition) -> bool:
    return (condition.type, condition.status) == (rule.condition, rule.status)


def _why_interrupted(node: ClusterNode, settings: ConsolidationSettings) -> str:
    """Return which taint or condition says that it is taken soon; empty where none does."""
    taints = (f"taint {each.key}" for each in node.node.taints if each.key in settings.interruption_taints)
    conditions = (
        f"condition {each.type}"
        for each in node.conditions
        if each.type in settings.interruption_conditions and each.status == "True"
    )
    return next(taints, "") or next(conditions, "")


def _why_unhealthy(node: ClusterNode, rules: Iterable[RepairRule], now_seconds: float) -> str:
    """Return which condition has lasted longer than its rule tolerates; empty where none has. One that does not say
    since when has lasted since the Node is there."""
    for rule in rules:
        for each in node.conditions:
            since = each.since_seconds or node.created_at_seconds
            if _holds(rule, each) and since and now_seconds >= since + rule.toleration_seconds:
                return f"it has gone bad: condition {each.type} is {each.status} since {timestamp(since)}"
    return ""
