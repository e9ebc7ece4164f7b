"""Nodes replaced one by one: each by a new one of the cheapest group that holds all of its pods. No pods are packed
anew, so that thousands of full nodes change their weight or their shape in no time. Plain pods of no gang only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from solver.consolidation.cluster import Cluster, Pods
from solver.consolidation.eligible import DomainSpread, NewNodeEligibility
from solver.model import Limit, NodeGroup
from solver.model.capacity import limits_broken


class OneForOne:
    """Groups that may replace nodes, in the order in which they are better."""

    def __init__(
        self, cluster: Cluster, spread: DomainSpread, plain: Sequence[bool], open_to: Iterable[str] | None
    ) -> None:
        self._cluster, self._spread, self._plain = cluster, spread, plain
        allowed = set(cluster.groups) if open_to is None else set(open_to)
        groups = [group for group in cluster.groups.values() if group.id in allowed]
        # The highest weight first: what is opened there costs nothing in the tiers below.
        self._new = NewNodeEligibility(
            cluster, sorted(groups, key=lambda each: (-each.weight, cluster.micros[each.id], each.id))
        )

    def found(self, nodes: Iterable[int]) -> tuple[list[int], list[tuple[str, Pods]]]:
        """Return those of the nodes that have a cheaper or better group, and (group, pods) in their places."""
        cluster = self._cluster
        used = [dict(limit.used) for limit in cluster.limits()]
        limits = [replace(limit, used=of) for limit, of in zip(cluster.limits(), used, strict=True)]
        opened: Counter[str] = Counter()
        left = Counter(cluster.target)
        going: list[int] = []
        result: list[tuple[str, Pods]] = []
        for node in nodes:
            pods, mine = cluster.pods[node], cluster.group_of[node]
            if not pods or left[mine] <= cluster.least[mine] or not all(self._plain[k] for k in pods):
                continue
            need = sum(cluster.requests[k] * count for k, count in pods.items())
            for index in np.flatnonzero((self._new.room >= need).all(axis=1)).tolist():
                group = self._new.groups[index]
                if not self._is_better(group, node):
                    continue
                if cluster.target[group.id] + opened[group.id] >= group.max_size or limits_broken(limits, group, 1):
                    continue
                if self._takes(index, node, pods):
                    opened[group.id] += 1
                    left[mine] -= 1
                    _count(limits, used, group)
                    going.append(node)
                    result.append((group.id, Counter(pods)))
                    break
        return going, result

    def _is_better(self, group: NodeGroup, node: int) -> bool:
        weight, micros = self._cluster.weight_of(node), self._cluster.micros_of(node)
        return group.weight > weight or (group.weight == weight and self._cluster.micros[group.id] < micros)

    def _takes(self, index: int, node: int, pods: Pods) -> bool:
        for k in pods:
            domains = self._spread.stay_in(k, node)
            if domains is None or not self._new.take(k, domains)[index]:
                return False
        return True


def _count(limits: Sequence[Limit], used: Sequence[dict[str, int]], group: NodeGroup) -> None:
    for limit, of in zip(limits, used, strict=True):
        if limit.node_groups is None or group.id in limit.node_groups:
            for name, amount in group.counted_capacity.items():
                of[name] = of.get(name, 0) + amount
