"""What the constraints of a namespace's pods weigh, and its share of that: all states are made with all of them. Pods
beyond the share are left out, and tried again as others make room. Not thread-safe."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

from cagrpc.api.core.caps import coarse_terms
from cagrpc.api.core.selectors import selectors_of
from solver.model import HOSTNAME, HostPort, PodAffinityTerm, PodSelector, PodSpec

MOST_WEIGHT = 50_000
"""The share of one namespace: each distinct selector and anti-affinity term of its pods weighs one, each host port and
condition one, and so does each value and each namespace of these."""
_KEPT_KEYS = 10
"""Topology keys of the anti-affinity of pods beyond the share that count where they run."""
_TRIED_AT_ONCE = 100

BEYOND = (
    f"the constraints of its namespace's pods on other pods weigh more than the {MOST_WEIGHT:,} that planning handles;"
    " fewer distinct selectors, conditions or namespaces in them make room for it"
)

Constraint = PodSelector | PodAffinityTerm | HostPort


def constraints_of(spec: PodSpec) -> frozenset[Constraint]:
    """Return what counts: what all states are made with."""
    return frozenset((*selectors_of(spec), *spec.pod_anti_affinity, *spec.host_ports))


def room_for(pod: str) -> tuple[str, str]:
    """Return whether there is room for a pod in the share of its namespace, as what it is read with (`References`)."""
    return "share", pod


def weight(of: Constraint) -> int:
    if not isinstance(of, PodSelector):
        return 1
    return 1 + len(of.namespaces or ()) + sum(1 + len(each.values) for each in of.match_expressions or ())


def beyond_share(spec: PodSpec, namespace: str) -> PodSpec:
    """Return the spec of a pod that is left out: it takes what it requests where it runs, and keeps away whom it keeps
    away, and others with these."""
    of_all: dict[str, bool] = {}
    for term in spec.pod_anti_affinity:
        if term.selector.match_expressions is not None:
            elsewhere = term.selector.namespaces != (namespace,)
            of_all[term.topology_key] = of_all.get(term.topology_key, False) or elsewhere
    keys = sorted(of_all, key=lambda each: (each != HOSTNAME, not of_all[each], each))[:_KEPT_KEYS]
    terms = coarse_terms({key: of_all[key] for key in keys}, namespace)
    return PodSpec(requests=spec.requests, pod_anti_affinity=terms, unschedulable=BEYOND)


class ConstraintShares:
    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[Constraint]] = defaultdict(Counter)
        """How many pods of each namespace have which constraint."""
        self._weights: Counter[str] = Counter()
        self._left_out: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """Pods by namespace, those first that are tried next."""

    def admits(self, namespace: str, constraints: Iterable[Constraint]) -> bool:
        """Return whether a pod with these is within the share of its namespace."""
        there: Mapping[Constraint, int] = self._counts.get(namespace, {})
        more = sum(weight(each) for each in constraints if each not in there)
        return not more or self._weights[namespace] + more <= MOST_WEIGHT

    def add(self, namespace: str, constraints: Iterable[Constraint]) -> None:
        for each in constraints:
            if each not in self._counts[namespace]:
                self._weights[namespace] += weight(each)
            self._counts[namespace][each] += 1

    def remove(self, namespace: str, constraints: Iterable[Constraint]) -> bool:
        """Return whether that makes room."""
        room = False
        for each in constraints:
            counts = self._counts[namespace]
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
                self._weights[namespace] -= weight(each)
                room = True
            if not counts:
                del self._counts[namespace], self._weights[namespace]
        return room

    def leave_out(self, namespace: str, pod: str) -> None:
        self.forget(namespace, pod)
        self._left_out[namespace][pod] = None

    def forget(self, namespace: str, pod: str) -> bool:
        """Return whether that pod was left out."""
        found = self._left_out.get(namespace, {})
        if pod not in found:
            return False
        del found[pod]
        if not found:
            del self._left_out[namespace]
        return True

    def next(self, namespace: str) -> Iterable[str]:
        """Return the pods to try where there may be room now."""
        return list(islice(self._left_out.get(namespace, ()), _TRIED_AT_ONCE))

    @property
    def most_used(self) -> float:
        """What the namespace with the heaviest constraints uses of its share."""
        return max(self._weights.values(), default=0) / MOST_WEIGHT

    @property
    def left_out(self) -> int:
        """Return how many pods are left out."""
        return sum(map(len, self._left_out.values()))
