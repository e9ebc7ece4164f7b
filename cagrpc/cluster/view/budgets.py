"""PodDisruptionBudgets: which nodes cannot be drained now. Scale-down asks; nodes and pods are counted in `nodes` and
`classes`. Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cagrpc.api.core.resources import Problems
from cagrpc.api.core.selectors import label_selector
from cagrpc.api.encoding.messages import parse, plain
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.classes import EquivalenceClass
from cagrpc.cluster.view.objects import Named
from cagrpc.errors import InvalidInput
from solver.model import PodSelector
from solver.model.eligibility import selects

POD_DISRUPTION_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget."""

    namespace: str
    name: str
    selector: PodSelector
    allowed: int
    """How many of its pods may be evicted now (`status.disruptionsAllowed`)."""


def disruption_budget(data: bytes) -> Named[DisruptionBudget]:
    """Decode a policy/v1 PodDisruptionBudget. Without a selector it has no pods, with an empty one all of its
    namespace. Raises InvalidInput for an invalid one."""
    found = parse(kubernetes_pb2.PodDisruptionBudget, data)
    namespace, name = found.metadata.namespace, found.metadata.name
    problems: Problems = []
    selected = label_selector(plain(found.spec), "selector", "spec", problems)
    if problems:
        raise InvalidInput(f"PodDisruptionBudget {namespace}/{name}: {'; '.join(problems)}")
    selector = PodSelector(selected, (namespace,))
    return Named(f"{namespace}/{name}", DisruptionBudget(namespace, name, selector, found.status.disruptionsAllowed))


class DisruptionBudgets:
    """The table of PodDisruptionBudgets."""

    def __init__(self) -> None:
        self._of: dict[str, DisruptionBudget] = {}
        self._by_namespace: dict[str, dict[str, DisruptionBudget]] = {}
        self._selectors_version = 0

    def keys(self) -> Iterable[str]:
        return list(self._of)

    def put(self, named: Named[DisruptionBudget]) -> None:
        before, budget = self._of.get(named.key), named.value
        self._of[named.key] = budget
        self._by_namespace.setdefault(budget.namespace, {})[named.key] = budget
        if before is None or before.selector != budget.selector:
            self._selectors_version += 1

    def drop(self, key: str) -> None:
        before = self._of.pop(key, None)
        if before is not None:
            self._by_namespace[before.namespace].pop(key)
            self._selectors_version += 1

    def undrainable(self, nodes: Iterable[tuple[str, Mapping[EquivalenceClass, int]]]) -> dict[str, str]:
        """Return the nodes that cannot be drained now, each with the reason. `nodes` are names, and the pods to be
        evicted by class.

        As the cluster-autoscaler decides: a budget that lets no pod go blocks the node, one that lets some go only
        makes the drain slower. A pod with two budgets cannot be evicted at all (upstream: the eviction subresource).
        """
        if not self._of:
            return {}
        found = {}
        for name, pods in nodes:
            why = next(filter(None, (self._why_not_evicted(self.covering(of)) for of in pods)), "")
            if why:
                found[name] = why
        return found

    def exhausted(self, covering: Iterable[str]) -> str:
        """Return the first of these budgets that lets none of its pods go now; empty where there is none."""
        return next((key for key in covering if self._of[key].allowed < 1), "")

    def covering(self, of: EquivalenceClass) -> tuple[str, ...]:
        """Return the budgets (`namespace/name`) that select pods of this class."""
        if of.covered_by[0] != self._selectors_version:
            who = of.identity
            found = self._by_namespace.get(who.namespace, {}).items()
            covering = tuple(sorted(key for key, each in found if selects(each.selector, who.namespace, who.labels)))
            of.covered_by = self._selectors_version, covering
        return of.covered_by[1]

    def _why_not_evicted(self, covering: tuple[str, ...]) -> str:
        if len(covering) > 1:
            return f"PodDisruptionBudgets {' and '.join(covering)} cover the same pod, so it cannot be evicted"
        blocking = self.exhausted(covering)
        return f"PodDisruptionBudget {blocking} lets none of its pods go now" if blocking else ""
