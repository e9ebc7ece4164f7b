"""CapacityQuotas as limits of node groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cagrpc.api.capacity_quotas import LIMIT_PREFIX, CapacityQuota
from cagrpc.cluster.state import ClusterNode
from solver.model import NODES, Limit, NodeGroup
from solver.model.quantities import format_quantity, resource_words

_VIRTUAL = ("type", "virtual-kubelet")
"""The label of nodes that CA leaves out of its sums."""


def quota_limits(
    quotas: Mapping[str, CapacityQuota], groups: Iterable[NodeGroup], nodes: Iterable[ClusterNode]
) -> tuple[Limit, ...]:
    """Return quotas as limits of these node groups, by their names. The nodes are those that count beside the groups'
    target sizes: of each its capacity, where its Node says it."""
    groups = tuple(groups)
    counted = [each for each in nodes if each.node.labels.get(_VIRTUAL[0]) != _VIRTUAL[1]]
    limits = []
    for name, quota in sorted(quotas.items()):
        used: Counter[str] = Counter()
        for each in counted:
            if quota.counts(each.node.labels):
                for key in quota.maxima:
                    used[key] += 1 if key == NODES else each.capacity.get(key, each.node.allocatable.get(key, 0))
        ids = frozenset(each.id for each in groups if quota.counts(each.labels)) if quota.selector else None
        limits.append(Limit(f"{LIMIT_PREFIX}{name}", quota.maxima, dict(+used), ids, quota.selector))
    return tuple(limits)


def quotas_among(limits: Iterable[Limit]) -> list[Limit]:
    """Return those of the limits that are CapacityQuotas."""
    return [each for each in limits if each.name.startswith(LIMIT_PREFIX)]


def quota_words(limit: Limit) -> str:
    """Return how much of a quota is used, of each resource that it names: "cpu 12 of 16, nodes 3 of 5"."""
    return ", ".join(
        f"{resource_words(name)} {format_quantity(name, limit.used.get(name, 0))} of {format_quantity(name, most)}"
        for name, most in sorted(limit.maxima.items())
    )
