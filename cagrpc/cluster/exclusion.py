"""Whose pods the resource slack passes over."""

from __future__ import annotations

from dataclasses import dataclass

from cagrpc.fleet.fields import DnsLabel, Selector
from cagrpc.forms import Section
from solver.model import Labels
from solver.model.eligibility import selects


@dataclass(frozen=True, slots=True)
class Exclusion(Section):
    """Pods for whose size no room is reserved (databases, of which no hot standby is wanted), beside those with the
    annotation slack.cagrpc.io/exclude: "true". They count towards what is requested all the same."""

    namespaces: frozenset[DnsLabel] = frozenset()
    selector: Selector | None = None

    def covers(self, namespace: str, labels: Labels) -> bool:
        if namespace in self.namespaces:
            return True
        return self.selector is not None and selects(self.selector, namespace, labels)
