"""How much work pods' constraints make, known before any of it is done, and who is left out where that is too much.

What planning takes grows with the entries that constraints come to: a row for each variant and site of a class, a term
for each variant that carries it, a row for each term that counts its pods. Here they are counted, from numbers alone.
Owners, which are namespaces, have equal shares of what planning handles at once; of one that exceeds its share the
heaviest classes are planned without their preferences until it does not, and where that is not enough, left out. Claims
on devices are counted by themselves (`device_work`).

Constraints over a topology key multiply the rows of all pods that any constraint over domains has part in, other
people's too: a row for each combination of the values of all such keys, compared with the nodes of each. Keys that
would tell too many domains apart are too fine. Keys with few values come first, and are never too fine; pods with
constraints over those that are bear it themselves.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import prod

from solver.model import HOSTNAME, PodSelector, PodSpec, Problem
from solver.model.domains import GANG_MARK
from solver.model.eligibility import node_label_keys, read_node_names, required_terms
from solver.reduction.device_work import beyond_share
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import Term, is_host, preferences, terms_of

_FEW_SITES = 16
"""Combinations of values that are told apart however many pods there are: zones, and some more."""


def terms_over_domains(spec: PodSpec) -> tuple[set[Term], set[Term]]:
    """Return the terms that a pod requires, and those that it prefers, but over hostnames."""
    preferred = {wish.term for wish in preferences(spec, soft_taints=False) if wish.term is not None}
    required = set(terms_of(spec))
    return {each for each in required if not is_host(each)}, {each for each in preferred if not is_host(each)}


def _asked_keys(spec: PodSpec) -> Iterator[str]:
    """Yield the topology keys of what a pod asks of other pods."""
    wishes = not spec.preferences_left_out
    yield from (term.topology_key for term in (*spec.pod_affinity, *spec.pod_anti_affinity))
    yield from (each.topology_key for each in spec.topology_spread if each.is_required or wishes)
    yield from (each.term.topology_key for each in spec.preferred_pods if wishes)


def too_fine(problem: Problem, specs: Sequence[PodSpec], most_steps: int) -> frozenset[str]:
    """Return the keys over which constraints cannot be planned, within so many steps for the rows of other pods."""
    keys = {key for spec in specs for key in _asked_keys(spec)} - {HOSTNAME}
    if not keys:
        return frozenset()
    labels = [*(group.labels for group in problem.node_groups), *(node.labels for node in problem.nodes)]
    telling = {key: count for key in keys if (count := len({here.get(key) for here in labels})) > 1}
    if prod(telling.values()) <= _FEW_SITES:
        return frozenset()
    others = _OtherRows(problem, specs, [set().union(*terms_over_domains(spec)) for spec in specs])
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
        """Return for each such pod its rows, and the keys of its own constraints."""
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


MOST_STEPS = 300_000
"""Of all constraints together, and as many of all claims on devices: about a second each."""
_PER_TERM = 4
_NODES_AT_ONCE = 16
"""Nodes that are compared with a condition in the time of one step, and"""
_PLACES_AT_ONCE = 256
"""places that are looked at all at once."""

TOO_MUCH = (
    f"the constraints of its namespace's pods on other pods and on nodes take more work than planning does at once"
    f" ({MOST_STEPS:,} steps for all namespaces); fewer preferences, or constraints that select fewer pods, make room"
    " for it, and so does planning the others first"
)
TOO_MUCH_PREFERRED = (
    f"the preferences of its namespace's pods take more work than planning does at once ({MOST_STEPS:,} steps for all"
    " namespaces); fewer of them, or such as select fewer pods, make room for it, and so does planning the others first"
)
TOO_MUCH_CLAIMED = (
    "its namespace's pods have more kinds of claims on devices than planning compares with each other and with nodes at"
    f" once ({MOST_STEPS:,} steps for all namespaces); fewer kinds make room for it, or planning the others first"
)
_FINE = (
    "nodes have so many values of {} that telling them apart for all pods concerned takes more work than planning does"
    f" at once ({MOST_STEPS:,} steps for all namespaces); kubernetes.io/hostname may have as many"
)
TOO_FINE = f"it has constraints over too many domains: {_FINE}"
TOO_FINE_PREFERRED = f"it has preferences over too many domains: {_FINE}"


def within_share(problem: Problem) -> dict[PodSpec, PodSpec]:
    """Return the specs whose pods make too much work, and what is planned instead: pods without preferences, or pods
    that no node can take."""
    names: dict[PodSpec, str] = {}
    for each in problem.pod_sets:
        if each.count and not each.spec.unschedulable:
            names[each.spec] = min(each.name, names.get(each.spec, each.name))
    claiming = beyond_share(problem, names, MOST_STEPS)
    specs = tuple(spec for spec in names if spec not in claiming)
    totals, share = _totals(problem, specs)
    lean = {
        spec: replace(spec, preferences_left_out=TOO_MUCH_PREFERRED)
        for total in totals
        for spec in total.without_preferences(share)
    }
    asked = {lean.get(spec, spec): spec for spec in specs}
    if lean:
        totals, share = _totals(problem, tuple(asked))
    out = {asked[spec] for total in totals for spec in total.left_out(share)}
    instead = lean | {spec: replace(spec, unschedulable=TOO_MUCH) for spec in out}
    instead |= {spec: replace(spec, unschedulable=TOO_MUCH_CLAIMED) for spec in claiming}
    return instead | _without_fine_keys(problem, {each: spec for each, spec in asked.items() if spec not in out})


def _without_fine_keys(problem: Problem, asked: Mapping[PodSpec, PodSpec]) -> dict[PodSpec, PodSpec]:
    """Return what is planned instead of specs with constraints over too fine topology keys; `asked` has what would be,
    and of what."""
    keys = too_fine(problem, tuple(asked), MOST_STEPS)
    found = {}
    for planned, spec in asked.items() if keys else ():
        required, preferred = ({term.key for term in terms} & keys for terms in terms_over_domains(planned))
        if required:
            found[spec] = replace(spec, unschedulable=TOO_FINE.format(", ".join(sorted(required))))
        elif preferred:
            found[spec] = replace(spec, preferences_left_out=TOO_FINE_PREFERRED.format(", ".join(sorted(preferred))))
    return found


def _totals(problem: Problem, specs: Sequence[PodSpec]) -> tuple[list[_Total], int]:
    """Return the work of each owner, and what each may have."""
    owners: dict[str, list[_Work]] = defaultdict(list)
    for each in _works(problem, specs):
        owners[each.spec.namespace].append(each)
    totals = [_Total(mine) for mine in owners.values()]
    return totals, _share([total.steps for total in totals])


def turns_of(owners: Iterable[str]) -> list[int]:
    """Return for each how many of the same owner come before it: sorted by that, owners take turns."""
    found, before = [], Counter[str]()
    for owner in owners:
        found.append(before[owner])
        before[owner] += 1
    return found


def replaced(problem: Problem, instead: Mapping[PodSpec, PodSpec]) -> Problem:
    """Return the problem with these specs instead of those."""
    sets = (replace(each, spec=instead.get(each.spec, each.spec)) for each in problem.pod_sets)
    return replace(problem, pod_sets=tuple(sets)) if instead else problem


def told_apart(planned: PodSpec, spec: PodSpec, before: dict[PodSpec, PodSpec]) -> PodSpec:
    """Note in `before` that a spec is planned instead of this one, and return it: with a label of its own that nobody
    selects, where it is planned for another one already."""
    while before.setdefault(planned, spec) != spec:
        planned = replace(planned, labels=tuple(sorted((*planned.labels, (f"{GANG_MARK} {len(before)}", "")))))
    return planned


def one_for_each(problem: Problem, instead: Mapping[PodSpec, PodSpec]) -> tuple[Problem, dict[PodSpec, PodSpec]]:
    """Return the problem with these specs instead of those, no two of which become one; and the specs that are asked
    for, by those that are planned."""
    before = {each.spec: each.spec for each in problem.pod_sets if each.spec not in instead}
    told = {spec: told_apart(planned, spec, before) for spec, planned in instead.items()}
    return replaced(problem, told), before


@dataclass(frozen=True, slots=True)
class _Work:
    """What the pods of one spec come to."""

    spec: PodSpec
    alone: int
    """Steps that no other pods have part in."""
    terms: Mapping[Term, int]
    """Steps of each term, which are taken once for all pods that carry it."""
    preferred: Collection[Term] = ()
    """Terms that only preferences ask for."""
    alone_without: int | None = None
    """As `alone`, without preferences; None where it has none."""


class _Total:
    """What all pods of one owner come to."""

    def __init__(self, works: Sequence[_Work]) -> None:
        self._works = works
        self._carriers = Counter(term for each in works for term in each.terms)
        self._of_term: dict[Term, int] = {}
        for each in works:
            for term, steps in each.terms.items():
                self._of_term[term] = max(steps, self._of_term.get(term, 0))
        self.steps = sum(each.alone for each in works) + sum(self._of_term.values())

    def left_out(self, share: int) -> Iterator[PodSpec]:
        """Yield the specs to leave out, the heaviest first, until the others are within the share."""
        for each in self._heaviest(share):
            self.steps -= each.alone
            self._drop(each.terms)
            yield each.spec

    def without_preferences(self, share: int) -> Iterator[PodSpec]:
        """Yield the specs to plan without preferences, the heaviest first, until all are within the share or none has
        any."""
        for each in self._heaviest(share):
            if each.alone_without is not None:
                self.steps -= each.alone - each.alone_without
                self._drop(each.preferred)
                yield each.spec

    def _heaviest(self, share: int) -> Iterator[_Work]:
        heaviest = sorted(self._works, key=self._part, reverse=True) if self.steps > share else ()
        return takewhile(lambda _: self.steps > share, heaviest)

    def _drop(self, terms: Iterable[Term]) -> None:
        for term in terms:
            self._carriers[term] -= 1
            if not self._carriers[term]:
                self.steps -= self._of_term[term]

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

    def alone(each: _AskedConstraints) -> int:
        sites = values.sites(each.keys)
        nodes = places if each.names else values.sites(each.node_keys)
        compared = each.conditions * (1 + nodes // _NODES_AT_ONCE)
        return sites * (each.levels + sum(each.carried.values())) + at_places * len(each.keys) + compared

    found = []
    for each in asked:
        sites = values.sites(each.keys)
        terms = {term: at_places + sites * (_PER_TERM + counted(term.selector)) for term in each.carried}
        if each.levels == 1:
            found.append(_Work(each.spec, alone(each), terms))
        else:
            lean = _AskedConstraints(replace(each.spec, preferences_left_out=TOO_MUCH_PREFERRED))
            found.append(_Work(each.spec, alone(each), terms, each.carried.keys() - lean.carried.keys(), alone(lean)))
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
        labels = [*(group.labels for group in problem.node_groups), *(node.labels for node in problem.nodes)]
        self._values = {key: len({here.get(key) for here in labels}) for key in keys}
        """None is a value, too."""

    def sites(self, keys: Collection[str]) -> int:
        """Return how many sites these keys make at most."""
        return min(math.prod(self._values[key] for key in keys), max(1, self._places))
