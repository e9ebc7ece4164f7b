"""Projection of pods to what inter-pod constraints can select: labels that no selector reads would only make pods and
nodes distinct. Single selectors are in `selectors`; which pods exist is the callers'."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cagrpc.api.core.selectors import LabelChange, LabelProjection, PodIdentity, SelectorsByLabel, selectors_of
from solver.model import HostPort, PodAffinityTerm, PodSelector, PodSpec, RunningPods
from solver.model.eligibility import selects

Port = tuple[int, str]
"""Number and protocol."""


def port(of: HostPort) -> Port:
    return of.port, of.protocol


@dataclass(frozen=True, slots=True)
class PodChange:
    """What one projection sees of running pods and another does not."""

    labels: LabelChange
    ports: frozenset[Port]
    terms: frozenset[PodAffinityTerm]


class PodProjection:
    """Projects pending and running pods to what each other's constraints can select. `selectors` and `ports` are of
    pending pods; `terms` are the required anti-affinity terms of running pods that select a pending one. Other
    constraints of running pods are dropped: they held when those were placed."""

    def __init__(
        self, selectors: Iterable[PodSelector], ports: Iterable[Port], terms: Iterable[PodAffinityTerm]
    ) -> None:
        self._terms = frozenset(terms)
        self._ports = frozenset(ports)
        selectors = frozenset(selectors)
        self._of_planned = LabelProjection(selectors)
        self._of_all = LabelProjection(selectors | {term.selector for term in self._terms})
        self.number = self._of_all.number
        """Its own, as that of a `LabelProjection`."""

    def planned(self, spec: PodSpec, who: PodIdentity) -> PodSpec:
        return self._of_all.identified(spec, who)

    def runs(self, spec: PodSpec, who: PodIdentity) -> PodSpec | None:
        """Return what pending pods can select of a running one; None for nothing."""
        ports = tuple(each for each in spec.host_ports if port(each) in self._ports)
        terms = tuple(term for term in spec.pod_anti_affinity if term in self._terms)
        found = self._of_planned.identified_if_selected(PodSpec(host_ports=ports, pod_anti_affinity=terms), who)
        return None if found == _NOTHING and not self._of_planned.matches_unlabelled else found

    def since(self, before: PodProjection) -> PodChange:
        """Return of what running pods may be projected otherwise than before."""
        return PodChange(
            self._of_planned.since(before._of_planned),
            self._ports ^ before._ports,
            self._terms ^ before._terms,
        )

    def running(self, pods: Iterable[tuple[PodSpec, PodIdentity]]) -> tuple[RunningPods, ...]:
        """Return what pending pods can select of the pods that run on one node, with equal ones counted."""
        found = Counter(seen for spec, who in pods if (seen := self.runs(spec, who)) is not None)
        return tuple(RunningPods(spec, count) for spec, count in found.items())


_NOTHING = PodSpec()


def projection_of(planned: Sequence[tuple[PodSpec, PodIdentity]], running: Iterable[PodSpec]) -> PodProjection:
    """Return the projection of all pending pods, without namespace and labels yet, and all running ones."""
    terms = {term for each in {spec.pod_anti_affinity for spec in running} for term in each}
    wide = LabelProjection(term.selector for term in terms)
    named = {wide.identified(PodSpec(), who) for _, who in planned}
    by_selector: defaultdict[PodSelector, list[PodAffinityTerm]] = defaultdict(list)
    for term in terms:
        by_selector[term.selector].append(term)
    index = SelectorsByLabel(by_selector)
    who = [PodIdentity(pod.namespace, dict(pod.labels)) for pod in named]
    matching = {of for each in who for of in index.may_match(each) if selects(of, each.namespace, each.labels)}
    relevant = {term for of in matching for term in by_selector[of]}
    specs = {spec for spec, _ in planned}
    selectors = {selector for spec in specs for selector in selectors_of(spec)}
    return PodProjection(selectors, {port(each) for spec in specs for each in spec.host_ports}, relevant)
