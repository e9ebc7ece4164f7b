"""Projection of pods to what inter-pod constraints can select: labels that no selector reads would only make pods and
nodes distinct. Single selectors are in `selectors`; which pods exist is the callers'."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cagrpc.api.core.selectors import LabelChange, LabelProjection, PodIdentity
from solver.model import HostPort, PodAffinityTerm, PodSelector, PodSpec

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


_NOTHING = PodSpec()
