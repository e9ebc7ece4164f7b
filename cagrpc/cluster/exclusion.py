"""Whose pods the resource slack passes over."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model import Labels, PodSelector
from solver.model.eligibility import selects


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Pods whose size no room is kept for ([R6]), beside those that say so themselves."""

    namespaces: frozenset[str] = frozenset()
    selector: PodSelector | None = None
    """None excludes nobody."""

    def covers(self, namespace: str, labels: Labels) -> bool:
        if namespace in self.namespaces:
            return True
        return self.selector is not None and selects(self.selector, namespace, labels)
