"""Who is bound to which node, and why it may not be moved: what is asked for when nodes are to be replaced. Pods are
remembered in `pods`, budgets in `budgets`; what keeps a pod is `cagrpc.api.core.movability`'s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cagrpc.api.core.movability import (
    ORDINARY,
    SYSTEM_NAMESPACE,
    MovingRules,
    SharedFacts,
    StaysBecause,
    kept_by,
    why_kept,
    why_unplanned,
)
from cagrpc.api.core.selectors import LabelProjection
from cagrpc.cluster.state import PodsOnNode, ReschedulablePod, oldest_first
from cagrpc.cluster.view.budgets import DisruptionBudgets
from cagrpc.cluster.view.classes import EquivalenceClass
from cagrpc.cluster.view.devices import DeviceTable
from cagrpc.cluster.view.nodes import NodeTable
from cagrpc.cluster.view.pods import PodTable, RememberedPod
from solver.model import PodSpec, RunningPods


class _Class(NamedTuple):
    """What the bound pods of one class have in common."""

    spec: PodSpec
    priority: int
    gang: str | None
    shared: SharedFacts


_NOTHING_SHARED = SharedFacts()


class BoundSnapshot:
    """What is bound at one moment, as the tables have it. It is made while they do not change, and laid out (`shown`)
    whatever becomes of them."""

    def __init__(
        self,
        pods: PodTable,
        nodes: NodeTable,
        budgets: DisruptionBudgets,
        devices: DeviceTable,
        sight: LabelProjection,
        now_seconds: float,
    ) -> None:
        self._now_seconds = now_seconds
        self._fixed = nodes.fixed(sight)
        self._coming = {name: f"{seen.ref.namespace}/{seen.ref.name}" for name, seen in pods.nominated()}
        classes: dict[EquivalenceClass, _Class] = {}
        self._pods: defaultdict[str, list[tuple[_Class, RememberedPod]]] = defaultdict(list)
        for node, of, each in pods.bound():
            found = classes.get(of)
            if found is None:
                found = classes[of] = _class(of, budgets, devices, sight)
            self._pods[node].append((found, each))

    def shown(self, rules: MovingRules) -> Mapping[str, PodsOnNode]:
        """Return them by node that stands."""
        return {name: self._on_node(name, others, rules) for name, others in self._fixed.items()}

    def _on_node(self, name: str, others: tuple[RunningPods, ...], rules: MovingRules) -> PodsOnNode:
        found = PodsOnNode(others=others, coming=self._coming.get(name, ""))
        pods: list[ReschedulablePod] = []
        for of, each in self._pods.get(name, ()):
            if not each.eviction.ends_at_seconds:
                pods.append(self._reschedulable(of, each, rules))
            elif each.eviction.is_ending(self._now_seconds):
                found = replace(found, ending=_name(each))
        return replace(found, reschedulable=tuple(sorted(pods, key=lambda pod: oldest_first(pod.ref))))

    def _reschedulable(self, of: _Class, each: RememberedPod, rules: MovingRules) -> ReschedulablePod:
        if each.eviction is ORDINARY and of.shared is _NOTHING_SHARED and not each.request:  # as of most pods
            return ReschedulablePod(each.ref, of.spec, of.priority, of.gang)
        kept, because = why_kept(
            _name(each),
            each.eviction,
            of.shared,
            rules,
            self._now_seconds,
            created_at_seconds=each.ref.created_at_seconds,
            request=each.request,
        )
        budgets = of.shared.budgets if because in (StaysBecause.BUDGET, StaysBecause.BUDGETS) else ()
        return ReschedulablePod(
            each.ref, of.spec, of.priority, of.gang, kept, kept_by(because), because=because, budgets=budgets
        )


def _class(of: EquivalenceClass, budgets: DisruptionBudgets, devices: DeviceTable, sight: LabelProjection) -> _Class:
    key, covering = of.key, budgets.covering(of)
    shared = SharedFacts(
        why_unplanned(key.shape.spec), covering, budgets.exhausted(covering), key.namespace == SYSTEM_NAMESPACE
    )
    shared = _NOTHING_SHARED if shared == _NOTHING_SHARED else shared
    return _Class(devices.elsewhere(of.whole(sight)), key.priority, key.gang.name if key.gang else None, shared)


def _name(each: RememberedPod) -> str:
    return f"{each.ref.namespace}/{each.ref.name}"
