"""How much work pods' constraints make, known before any of it is done, and who is left out where that is too much.

What planning takes grows with the entries that constraints come to: a row for each variant and site of a class, a term
for each variant that carries it, a row for each term that counts its pods. Here they are counted, from numbers alone.
Owners, which are namespaces, have equal shares of what planning handles at once; of one that exceeds its share the
heaviest classes are left out until it does not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solver.model import PodSelector, PodSpec, Problem
from solver.model.eligibility import node_label_keys, read_node_names, required_terms
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import Term, is_host, preferences, terms_of

MOST_STEPS = 300_000
"""Of all constraints together: about a second."""
_PER_TERM = 4
_NODES_AT_ONCE = 16
"""Nodes that are compared with a condition in the time of one step, and"""
_PLACES_AT_ONCE = 256
"""places that are looked at all at once."""

TOO_MUCH = (
    f"the constraints of its namespace's pods on other pods and on nodes make more work than planning does at once"
    f" ({MOST_STEPS:,} steps for all namespaces); fewer preferences, and constraints that select fewer pods, make room"
    " for it, and so does planning the others"
)


def beyond_share(problem: Problem) -> frozenset[PodSpec]:
    """Return the specs whose pods are left out."""
    specs = tuple(dict.fromkeys(each.spec for each in problem.pod_sets if each.count and not each.spec.unschedulable))
    owners: dict[str, list[_Work]] = defaultdict(list)
    for each in _works(problem, specs):
        owners[each.spec.namespace].append(each)
    totals = [_Total(mine) for mine in owners.values()]
    share = _share([total.steps for total in totals])
    return frozenset(spec for total in totals for spec in total.beyond(share))


def without(problem: Problem, why: Mapping[PodSpec, str]) -> Problem:
    """Return the problem in which no node can take the pods of these specs, for these reasons."""
    instead = {spec: replace(spec, unschedulable=reason) for spec, reason in why.items()}
    sets = (replace(each, spec=instead.get(each.spec, each.spec)) for each in problem.pod_sets)
    return replace(problem, pod_sets=tuple(sets)) if why else problem


@dataclass(frozen=True, slots=True)
class _Work:
    """Of the pods of one spec."""

    spec: PodSpec
    alone: int
    """Steps that no other pods have part in."""
    terms: Mapping[Term, int]
    """Steps of each term, which are taken once for all pods that carry it."""


class _Total:
    """Of all pods of one owner."""

    def __init__(self, works: Sequence[_Work]) -> None:
        self._works = works
        self._carriers = Counter(term for each in works for term in each.terms)
        self._of_term: dict[Term, int] = {}
        for each in works:
            for term, steps in each.terms.items():
                self._of_term[term] = max(steps, self._of_term.get(term, 0))
        self.steps = sum(each.alone for each in works) + sum(self._of_term.values())

    def beyond(self, share: int) -> Iterator[PodSpec]:
        """Yield the specs to leave out, the heaviest first, until the others are within the share."""
        for each in sorted(self._works, key=self._part, reverse=True):
            if self.steps <= share:
                return
            self.steps -= each.alone
            for term in each.terms:
                self._carriers[term] -= 1
                if not self._carriers[term]:
                    self.steps -= self._of_term[term]
            yield each.spec

    def _part(self, of: _Work) -> float:
        return of.alone + sum(self._of_term[term] / self._carriers[term] for term in of.terms)


def _share(totals: Sequence[int]) -> int:
    """Return what each owner may have: those with less leave the others more."""
    left = MOST_STEPS
    for position, total in enumerate(sorted(totals)):
        share = left // (len(totals) - position)
        if total > share:
            return share
        left -= total
    return MOST_STEPS


def _works(problem: Problem, specs: Sequence[PodSpec]) -> list[_Work]:
    places = len(problem.node_groups) + len(problem.nodes)
    selecting, asked = PodsByLabel(enumerate(specs)), [_AskedConstraints(spec) for spec in specs]
    of_levels: dict[int, int] = defaultdict(int)
    for number, each in enumerate(asked):
        of_levels[each.levels] |= 1 << number
    rows_counted: dict[PodSelector, int] = {}

    def counted(selector: PodSelector) -> int:
        if selector not in rows_counted:
            mask = selecting.mask(selector)
            rows_counted[selector] = sum(levels * (mask & of).bit_count() for levels, of in of_levels.items())
        return rows_counted[selector]

    values = _Values(problem, {key for each in asked for key in (*each.keys, *each.node_keys)})
    at_places = 1 + places // _PLACES_AT_ONCE
    found = []
    for each in asked:
        sites = values.sites(each.keys)
        rows = sites * each.levels
        nodes = places if each.names else values.sites(each.node_keys)
        compared = each.conditions * (1 + nodes // _NODES_AT_ONCE)
        alone = rows + sites * sum(each.carried.values()) + at_places * len(each.keys) + compared
        terms = {term: at_places + sites * (_PER_TERM + counted(term.selector)) for term in each.carried}
        found.append(_Work(each.spec, alone, terms))
    return found


class _AskedConstraints:
    """What pods of a spec ask for, as numbers."""

    def __init__(self, spec: PodSpec) -> None:
        wishes, required = tuple(preferences(spec, soft_taints=False)), terms_of(spec)
        self.spec, self.levels = spec, 1 + len(wishes)
        self.carried = dict.fromkeys(required, self.levels)
        """Term -> variants that carry it."""
        nodes = [len(term.match_expressions) + len(term.match_fields) for term in required_terms(spec)]
        self.conditions = self.levels * (sum(nodes) + len(spec.tolerations) + len(spec.node_selector))
        for position, wish in enumerate(wishes, 1):
            if wish.term is not None:
                self.carried[wish.term] = max(position, self.carried.get(wish.term, 0))
            if wish.nodes is not None:
                more = len(wish.nodes.match_expressions) + len(wish.nodes.match_fields)
                self.conditions += position * max(1, len(spec.affinity or ())) * more
        wished = [replace(spec, affinity=tuple(wish.nodes for wish in wishes if wish.nodes is not None))]
        self.node_keys, self.names = node_label_keys([spec, *wished]), read_node_names([spec, *wished])
        self.keys = frozenset(term.key for term in self.carried if not is_host(term))


class _Values:
    """How many values topology keys have among groups and nodes."""

    def __init__(self, problem: Problem, keys: Collection[str]) -> None:
        self._places = len(problem.node_groups) + len(problem.nodes)
        having: dict[str, Counter[str]] = {key: Counter() for key in keys}
        labels = (*(group.labels for group in problem.node_groups), *(node.labels for node in problem.nodes))
        for here in labels if keys else ():
            for key in having.keys() & here.keys():
                having[key][here[key]] += 1
        self._values = {key: len(found) + (found.total() < self._places) for key, found in having.items()}
        """None is a value, too."""

    def sites(self, keys: Collection[str]) -> int:
        """Return how many sites these keys make at most."""
        return min(math.prod(self._values[key] for key in keys), max(1, self._places))
