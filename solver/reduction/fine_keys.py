"""Topology keys that would tell too many domains apart.

Constraints over a key multiply the rows of all pods that any constraint over domains has part in, other people's too: a
row for each combination of the values of all such keys, compared with the nodes of each. Keys with few values come
first, and are never too fine; pods with constraints over those that are bear it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from solver.model import HOSTNAME, PodSpec, Problem
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import Term, is_host, preferences, terms_of

_FEW_SITES = 16
"""Combinations of values that are told apart however many pods there are: zones, and some more."""


def terms_over_domains(spec: PodSpec) -> tuple[set[Term], set[Term]]:
    """Return the terms that a pod requires, and those that it prefers, but over hostnames."""
    preferred = {wish.term for wish in preferences(spec, soft_taints=False) if wish.term is not None}
    required = set(terms_of(spec))
    return {each for each in required if not is_host(each)}, {each for each in preferred if not is_host(each)}


def too_fine(problem: Problem, specs: Sequence[PodSpec], most_steps: int) -> frozenset[str]:
    """Return the keys over which constraints cannot be planned, within so many steps for the rows of other pods."""
    carried = [set().union(*terms_over_domains(spec)) for spec in specs]
    keys = {term.key for terms in carried for term in terms}
    if not keys:
        return frozenset()
    labels = [*(group.labels for group in problem.node_groups), *(node.labels for node in problem.nodes)]
    values: dict[str, set[str | None]] = {key: set() for key in keys}
    lacking = dict.fromkeys(keys, len(labels))
    for here in labels:
        for key in values.keys() & here.keys():
            values[key].add(here[key])
            lacking[key] -= 1
    telling = {key: count for key in keys if (count := len(values[key]) + bool(lacking[key])) > 1}
    if prod(telling.values()) <= _FEW_SITES:
        return frozenset()
    others = _OtherRows(problem, specs, carried)
    sites, site = 1, [0] * len(labels)
    found = set()
    for key in sorted(telling, key=lambda each: (telling[each], each)):
        numbers: dict[tuple[int, str | None], int] = {}
        divided = [numbers.setdefault((of, here.get(key)), len(numbers)) for of, here in zip(site, labels, strict=True)]
        if sites < len(numbers) > _FEW_SITES and others.of(key) * len(numbers) ** 2 > most_steps:
            found.add(key)
        else:
            sites, site = len(numbers), divided
    return frozenset(found)


class _OtherRows:
    """How many rows on each site those pods make that constraints over domains have part in, and that have none over a
    certain key: what that key costs its own pods is counted where these are."""

    def __init__(self, problem: Problem, specs: Sequence[PodSpec], carried: Sequence[set[Term]]) -> None:
        self._problem, self._specs, self._carried = problem, specs, carried

    def of(self, key: str) -> int:
        return sum(rows for rows, keys in self._concerned if key not in keys)

    @cached_property
    def _concerned(self) -> list[tuple[int, set[str]]]:
        """Of each such pod: its rows, and the keys of its own constraints."""
        selectors = {term.selector for terms in self._carried for term in terms}
        for running in {each.spec for node in self._problem.nodes for each in node.running}:
            selectors.update(term.selector for term in running.pod_anti_affinity if term.topology_key != HOSTNAME)
        selecting, counted = PodsByLabel(enumerate(self._specs)), 0
        for selector in selectors:
            counted |= selecting.mask(selector)
        return [
            (1 + sum(1 for _ in preferences(spec, soft_taints=False)), {term.key for term in terms})
            for number, (spec, terms) in enumerate(zip(self._specs, self._carried, strict=True))
            if terms or counted >> number & 1
        ]
