"""Who is bound to which node, and why it may not be moved: what is asked for when nodes are to be replaced or drained.
PodDisruptionBudgets are kept here, pods are remembered in `pods`; what keeps a pod is `cagrpc.api.core.movability`'s.
Not thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from cagrpc.api.core.movability import (
    ORDINARY,
    SYSTEM_NAMESPACE,
    MovingRules,
    SharedFacts,
    StaysBecause,
    why_kept,
    why_unplanned,
)
from cagrpc.api.core.selectors import LabelProjection, PodIdentity, SelectorsByLabel, label_selector
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.state import PodsOnNode, ReschedulablePod, oldest_first
from cagrpc.cluster.view.classes import EquivalenceClass
from cagrpc.cluster.view.devices import DeviceTable
from cagrpc.cluster.view.nodes import NodeTable
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.pods import PodTable, RememberedPod
from cagrpc.cluster.view.shares import weight
from cagrpc.cluster.view.sinks import Values
from cagrpc.errors import InvalidInput
from solver.model import PodSelector, PodSpec, RunningPods
from solver.model.eligibility import selects

POD_DISRUPTION_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
MOST_COMPARED = 256
"""What the selectors weigh that are compared with pods of one class (`shares.weight`); budgets beyond that whose
selectors may select them count as if they did."""
_MOST_NAMED = 10
"""Budgets that cover pods of one class: two are enough to keep them."""

_numbers = count(1)
_NOTHING_SHARED = SharedFacts()


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget."""

    namespace: str
    selector: PodSelector
    allowed: int
    """How many of its pods may be evicted now (`status.disruptionsAllowed`)."""


def disruption_budget(data: bytes) -> Named[DisruptionBudget]:
    """Decode a policy/v1 PodDisruptionBudget. Without a selector it has no pods, with an empty one all of its
    namespace. Raises InvalidInput for an invalid one."""
    found = parse(kubernetes_pb2.PodDisruptionBudget, data)
    namespace, name = found.metadata.namespace, found.metadata.name
    problems: Problems = []
    selected = label_selector(message_to_dict(found.spec), "selector", "spec", problems)
    if problems:
        raise InvalidInput(f"PodDisruptionBudget {namespace}/{name}: {'; '.join(problems)}")
    selector = PodSelector(selected, (namespace,))
    return Named(f"{namespace}/{name}", DisruptionBudget(namespace, selector, found.status.disruptionsAllowed))


class _Covering:
    """Which budgets of one namespace cover which pods, for as long as their selectors stay as they are."""

    def __init__(self, budgets: Mapping[str, DisruptionBudget]) -> None:
        self.number = next(_numbers)
        """Its own, for whoever remembers what it answered."""
        self._names: defaultdict[PodSelector, list[str]] = defaultdict(list)
        for key, each in sorted(budgets.items()):
            names = self._names[each.selector]
            if len(names) < _MOST_NAMED:
                names.append(key)
        self._index = SelectorsByLabel(self._names)

    def of(self, who: PodIdentity) -> tuple[str, ...]:
        found: list[str] = []
        left = MOST_COMPARED
        for selector in self._index.may_match(who):
            left -= weight(selector)
            if left < 0 or selects(selector, who.namespace, who.labels):
                found += self._names[selector]
            if len(found) >= _MOST_NAMED:
                break
        return tuple(sorted(found)[:_MOST_NAMED])


class DisruptionBudgets(Values[DisruptionBudget]):
    """The table of PodDisruptionBudgets."""

    def __init__(self) -> None:
        super().__init__(self._put_budget)
        self._by_namespace: defaultdict[str, dict[str, DisruptionBudget]] = defaultdict(dict)
        self._covering: dict[str, _Covering] = {}
        """The budgets of each namespace, made anew once they are asked for after selectors have changed."""

    def _put_budget(self, key: str, before: DisruptionBudget | None, after: DisruptionBudget | None) -> None:
        namespace = key.partition("/")[0]
        there = self._by_namespace[namespace]
        there.pop(key, None)
        if after is not None:
            there[key] = after
        if not there:
            del self._by_namespace[namespace]
        if before is None or after is None or before.selector != after.selector:
            self._covering.pop(namespace, None)

    def undrainable(self, nodes: Iterable[tuple[str, Mapping[EquivalenceClass, int]]]) -> dict[str, str]:
        """Return the nodes that cannot be drained now, each with the reason. `nodes` are names, and the pods to be
        evicted by class.

        As the cluster-autoscaler decides: a budget that lets no pod go blocks the node, one that lets some go only
        makes the drain slower. A pod with two budgets cannot be evicted at all (upstream: the eviction subresource).
        """
        if not self.of:
            return {}
        found = {}
        for name, pods in nodes:
            why = next(filter(None, (self._why_not_evicted(self.covering(of)) for of in pods)), "")
            if why:
                found[name] = why
        return found

    def exhausted(self, covering: Iterable[str]) -> str:
        """Return the first of these budgets that allows no disruption now; empty where there is none."""
        return next((key for key in covering if self.of[key].allowed < 1), "")

    def covering(self, of: EquivalenceClass) -> tuple[str, ...]:
        """Return the budgets (`namespace/name`) that select pods of this class, ten at most."""
        who = of.identity
        budgets = self._by_namespace.get(who.namespace)
        if not budgets:
            return ()
        covering = self._covering.get(who.namespace)
        if covering is None:
            covering = self._covering[who.namespace] = _Covering(budgets)
        if of.covered_by[0] != covering.number:
            of.covered_by = covering.number, covering.of(who)
        return of.covered_by[1]

    def _why_not_evicted(self, covering: tuple[str, ...]) -> str:
        if len(covering) > 1:
            return f"PodDisruptionBudgets {' and '.join(covering)} cover the same pod, so it cannot be evicted"
        blocking = self.exhausted(covering)
        return f"PodDisruptionBudget {blocking} allows no disruption now" if blocking else ""


class _Class(NamedTuple):
    """What the bound pods of one class have in common."""

    spec: PodSpec
    priority: int
    gang: str | None
    shared: SharedFacts


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
        coming = ((name, f"{seen.ref.namespace}/{seen.ref.name}") for name, seen in pods.nominated())
        self._coming = dict(sorted(coming, reverse=True))  # of several the first by name, whenever they came
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
                found = replace(found, ending=min(found.ending or _name(each), _name(each)))
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
        return ReschedulablePod(each.ref, of.spec, of.priority, of.gang, kept, because, budgets)


def _class(of: EquivalenceClass, budgets: DisruptionBudgets, devices: DeviceTable, sight: LabelProjection) -> _Class:
    key, covering = of.key, budgets.covering(of)
    shared = SharedFacts(
        why_unplanned(key.shape.spec), covering, budgets.exhausted(covering), key.namespace == SYSTEM_NAMESPACE
    )
    shared = _NOTHING_SHARED if shared == _NOTHING_SHARED else shared
    return _Class(devices.elsewhere(of.whole(sight)), key.priority, key.gang.name if key.gang else None, shared)


def _name(each: RememberedPod) -> str:
    return f"{each.ref.namespace}/{each.ref.name}"
