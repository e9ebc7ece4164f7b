"""Rows: the ways in which pods can be served, made so that rules over domains become sums over rows.

A class without constraints between pods is one row. One whose place matters to such a constraint is a row per *site*, a
site being the values of all topology keys that matter (hostnames apart); one with preferences is a row per variant (see
`terms`); and pods that must all share one node are *bundles*, rows of which one unit is several pods: which pods, and
which numbers of them, are tried. Equal rows of several classes are one.

Semantics: docs/reference/constraints.md. `inter_row` then finds the constraints between rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from solver.model import HOSTNAME, PODS, Devices, HostPort, Labels, PodSpec, Resources, RunningPods, Taint
from solver.model.eligibility import counts_domain, why_not_eligible, without_preferences
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import (
    RunningPodIndex,
    Sort,
    Term,
    Variant,
    avoids_any,
    helpers,
    is_host,
    soft_taints,
    variants,
)

_MOST_BUNDLES = 256
_MOST_ROTATED = 64
"""Of the bundles that are tried where these are too many, those without pods from some class on."""
_FEW = 8
"""Pods up to twice as many as which one more is left out at a time, and then an eighth more."""
_MANY = 32
"""Pods of a class up to which all numbers of them are tried together; above, so many numbers more."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Pods of one class in one variant; `spec` is the class's, with all its preferences."""

    spec: int
    """Index of `Layout.specs`."""
    variant: Variant
    pods: int = 1


def components(together: Mapping[Term, Sequence[tuple[int, RowPart]]]) -> list[list[tuple[int, RowPart]]]:
    """Members that terms bind to each other, directly or through others."""
    groups: list[list[tuple[int, RowPart]]] = []
    for members in together.values():
        touching = [group for group in groups if any(member in group for member in members)]
        merged = list(dict.fromkeys(member for group in (*touching, members) for member in group))
        groups = [group for group in groups if group not in touching] + [merged]
    return groups


def bundles_of(
    members: Sequence[tuple[int, RowPart]], pods: Sequence[int], requests: Sequence[Mapping[str, int]]
) -> tuple[list[tuple[tuple[int, RowPart], ...]], bool]:
    """Return pods that may share one node, fewer of them where not all fit, and whether these are all choices: every
    number of every class where that is not too much, otherwise ever fewer of them. `pods` is per demand, `requests` per
    class."""
    whole: dict[int, list[RowPart]] = defaultdict(list)
    for demand, part in members:
        whole[demand].append(replace(part, pods=pods[demand]))
    sizes = {demand: _sizes(pods[demand]) for demand in whole}
    ways = np.prod([len(parts) * len(sizes[demand]) + 1 for demand, parts in whole.items()], dtype=np.float64)
    if ways > _MOST_BUNDLES:
        # With all preferences, and with the fewest.
        ends = ([(demand, parts[end]) for demand, parts in whole.items()] for end in (0, -1))
        return list(dict.fromkeys(bundle for classes in ends for bundle in _ever_fewer(classes, requests))), False
    options = {d: [replace(part, pods=size) for part in parts for size in sizes[d]] for d, parts in whole.items()}
    choices = product(*([(demand, part) for part in (None, *parts)] for demand, parts in options.items()))
    chosen = (tuple((demand, part) for demand, part in choice if part is not None) for choice in choices)
    return [choice for choice in chosen if choice], all(len(sizes[demand]) == pods[demand] for demand in whole)


def _sizes(count: int) -> list[int]:
    """The numbers of a class's pods that are tried, the largest first."""
    spaced = {-(-count * step // _MANY) for step in range(1, _MANY + 1)}
    return sorted({*range(1, min(count, _MANY) + 1), *spaced}, reverse=True)


def _ever_fewer(
    classes: Sequence[tuple[int, RowPart]], requests: Sequence[Mapping[str, int]]
) -> Iterator[tuple[tuple[int, RowPart], ...]]:
    """All pods; then without some of them, one more at a time as long as they are few: without the largest, by all
    resources and by each, or without those from some class on. And each class by itself."""
    amounts = Counter[str]()
    for _, part in classes:
        amounts.update({name: part.pods * amount for name, amount in requests[part.spec].items()})
    less, total = [0], sum(part.pods for _, part in classes)
    while less[-1] + (more := max(1, less[-1] // _FEW)) < total:
        less.append(less[-1] + more)

    def largest_first(*names: str) -> list[tuple[int, RowPart]]:
        def share(member: tuple[int, RowPart]) -> float:
            asked = requests[member[1].spec]
            return sum(asked.get(name, 0) / max(1, amounts[name]) for name in names)

        return sorted(classes, key=share, reverse=True)

    for order in (largest_first(*amounts), *map(largest_first, amounts)):
        yield from (_without(order, left_out) for left_out in less)
    rarely = less[::4]
    for first in range(0, len(classes), -(-len(classes) * len(rarely) // _MOST_ROTATED)):
        yield from (_without((*classes[first:], *classes[:first]), left_out) for left_out in rarely)
    yield from ((each,) for each in classes)


def _without(classes: Sequence[tuple[int, RowPart]], left_out: int) -> tuple[tuple[int, RowPart], ...]:
    """All but so many pods of the first classes, in order of demands."""
    found: list[tuple[int, RowPart]] = []
    for demand, part in classes:
        pods = max(0, part.pods - left_out)
        left_out -= part.pods - pods
        if pods:
            found.append((demand, replace(part, pods=pods)))
    return tuple(sorted(found, key=itemgetter(0)))


Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node that stands, or what a new node of a group would be."""

    name: str
    """Of the node; empty for a group."""
    labels: Labels
    taints: tuple[Taint, ...]
    running: tuple[RunningPods, ...]
    ports: frozenset[HostPort]
    """Taken already, by running pods or by the DaemonSets of a group."""
    can_hold: bool
    """False for a group that cannot grow."""
    devices: tuple[Devices, ...] = ()
    """Free ones."""
    room: Resources = field(default_factory=dict)
    """What a new node has for pods."""
    daemons: tuple[PodSpec, ...] = ()
    """DaemonSets' pods that a new node gets."""
    must_open: bool = False
    """Whether a group has to have more nodes."""


@dataclass(frozen=True, slots=True)
class Row:
    parts: tuple[RowPart, ...]
    site: int | None
    """Index of `Layout.sites`; None where it does not matter."""
    bundle: tuple[tuple[int, int], ...] = ()
    """(demand index, pods) of one unit; empty where a unit is one pod of whatever demand."""

    @property
    def given_up(self) -> int:
        """Preferences given up, over all pods of a unit."""
        return sum(len(part.variant.given_up) * part.pods for part in self.parts)


class _RowCollector:
    """Rows by identity."""

    def __init__(self, demands: int) -> None:
        self.rows: list[Row] = []
        self.of_demand: list[list[int]] = [[] for _ in range(demands)]
        self._numbers: dict[object, int] = {}

    def add(self, identity: object, row: Row, demands: Iterable[int]) -> None:
        if identity not in self._numbers:
            self._numbers[identity] = len(self.rows)
            self.rows.append(row)
        for demand in demands:
            if self._numbers[identity] not in self.of_demand[demand]:
                self.of_demand[demand].append(self._numbers[identity])


@dataclass(frozen=True, slots=True)
class _RowTable:
    rows: tuple[Row, ...]
    of_demand: tuple[tuple[int, ...], ...]
    """Per demand: the rows that serve it."""
    together: tuple[tuple[int, ...], ...]
    every_bundle: bool


class Layout:
    """Rows for classes over places. `demands` are (spec, pods) pairs, in the order of their indices."""

    def __init__(
        self, demands: Sequence[tuple[PodSpec, int]], places: Sequence[NodeTemplate], *, rules: bool = True
    ) -> None:
        """Without `rules` preferences and constraints over anything but hostnames are left out."""
        self.places = places
        self._rules, self.unbound_last = rules, False
        asked = [(_asked(spec, rules=rules), count) for spec, count in demands]
        self.specs = tuple(dict.fromkeys(spec for spec, _ in asked))
        number = {spec: index for index, spec in enumerate(self.specs)}
        self._demands = [(number[spec], count) for spec, count in asked]
        self._selecting = PodsByLabel((n, each) for n, each in enumerate(self.specs) if not each.unschedulable)
        self.helpers = helpers(self.specs, self._selecting)
        self._domains: dict[str, list[str | None]] = {}
        self._closed: dict[tuple[int, int], bytes] = {}
        self._domain_codes: dict[str, Ints] = {}
        self._included: dict[object, Bools] = {}
        self._key_of: dict[Term, str] = {}
        self._waited_for: dict[tuple[int, int], frozenset[tuple[int, int]]] = {}
        self._counted_keys: dict[str, list[str]] = {}
        self._open: dict[tuple[Term, bool, bool], Bools | None] = {}
        self._counted_rows: dict[frozenset[int], tuple[tuple[int, int], ...]] = {}
        self._least_on_nodes: dict[Term, int] = {}

    def in_order(self, *, unbound_last: bool) -> Layout:
        """Return the same rows, of which those come last that a required spread counts and does not bind, or may come
        first; what is found of the one is known of the other."""
        if unbound_last == self.unbound_last:
            return self
        other = copy(self)
        other.unbound_last = unbound_last
        return other

    # Which nodes count

    def included(self, term: Term) -> Bools:
        """Per place: whether a spread counts it."""
        spread, asked = term.spread, term.asked
        assert spread is not None
        assert asked is not None
        key = asked, spread.honor_node_affinity, spread.honor_node_taints, term.is_hard
        if key not in self._included:
            found = [counts_domain(spread, asked, each.labels, each.taints, each.name) for each in self.places]
            self._included[key] = np.array(found, dtype=bool)
        return self._included[key]

    def running(self, term: Term) -> Mapping[int, int]:
        """Place -> pods that the term counts there; places without any are left out."""
        counted = self.standing.counted(term)
        if term.sort is not Sort.SPREAD or not counted:
            return counted
        included = self.included(term)
        return {place: pods for place, pods in counted.items() if included[place]}

    def key_of(self, term: Term) -> str:
        """The topology key by whose domains planned pods are told apart: the term's own, unless some that it counts may
        be on nodes that it does not count."""
        if term.sort is not Sort.SPREAD or is_host(term):
            return term.key
        if term not in self._key_of:
            self._key_of[term] = self._counted_key(term)
        return self._key_of[term]

    def _counted_key(self, term: Term) -> str:
        if self.counted[term].issubset(self._carriers[term]):
            return term.key
        plain = self.domain(term.key)
        counted = [value if here else None for value, here in zip(plain, self.included(term), strict=True)]
        if counted == plain:
            return term.key
        key = next((each for each in self._counted_keys.get(term.key, ()) if self._domains[each] == counted), "")
        if not key:
            known = self._counted_keys.setdefault(term.key, [])
            key = f"{term.key} where it counts, {len(known)}"
            known.append(key)
            self._domains[key] = counted
        return key

    def can_start(self, term: Term, place: int) -> bool:
        """Whether some carrier of a spread could be on a new node of a group."""
        where = self.places[place]
        return where.can_hold and any(
            why_not_eligible(self.specs[spec], where.labels, where.taints) is None
            and all(where.room.get(name, 0) >= asked for name, asked in (*self.specs[spec].requests, (PODS, 1)))
            for spec in self._carriers[term]
        )

    @cached_property
    def _carriers(self) -> Mapping[Term, Sequence[int]]:
        """Term -> the classes that carry it, with all their preferences."""
        found: dict[Term, list[int]] = {term: [] for term in self.terms}
        for spec, versions in enumerate(self.variants):
            for term in versions[0].terms:
                found[term].append(spec)
        return found

    # What classes ask of each other and of what runs

    @cached_property
    def standing(self) -> RunningPodIndex:
        return RunningPodIndex([place.running for place in self.places])

    @cached_property
    def variants(self) -> list[tuple[Variant, ...]]:
        """Return the variants of each class."""
        soft = {t for place in self.places for t in soft_taints(place.taints)} if self._rules else set()
        known: dict[Term, Term] = {}
        return [variants(spec, known, soft_taints=avoids_any(spec, soft)) for spec in self.specs]

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Return the terms that any variant of a class carries."""
        return tuple(dict.fromkeys(t for versions in self.variants for variant in versions for t in variant.terms))

    @cached_property
    def guards(self) -> dict[Term, frozenset[int]]:
        """Anti-affinity of running pods against any of the classes, and the places of its carriers."""
        return {
            term: where
            for term, where in self.standing.guards().items()
            if (self._rules or is_host(term)) and self._selecting.selected(term.selector)
        }

    @cached_property
    def counted(self) -> dict[Term, frozenset[int]]:
        """Per term and guard: the classes that it counts."""
        return {term: self._selecting.selected(term.selector) for term in (*self.terms, *self.guards)}

    def bound(self, term: Term) -> AbstractSet[int]:
        """Return the classes that carry a term."""
        return frozenset(self._carriers[term])

    def others_come_last(self, term: Term) -> bool:
        """Return whether pods that a term counts and does not bind come after those that it binds."""
        return self.unbound_last and term.sort is Sort.SPREAD and term.is_hard

    @cached_property
    def counts_unbound(self) -> bool:
        """Return whether a required spread counts classes that it does not bind."""
        spreads = (term for term in self.terms if term.sort is Sort.SPREAD and term.is_hard)
        return any(not self.counted[term] <= self.bound(term) for term in spreads)

    @cached_property
    def _watched(self) -> frozenset[int]:
        """Return the classes that any term counts."""
        return frozenset(spec for counted in self.counted.values() for spec in counted)

    @cached_property
    def _guarded_places(self) -> Mapping[bytes, set[int]]:
        """The specs that guards keep out, by the places (a flag for each) that share a domain with the carriers: guards
        are many, but few differ in their places."""
        found = defaultdict[bytes, set[int]](set)
        for term, carriers in self.guards.items():
            found[self._sharing(term.key, carriers).tobytes()] |= self.counted[term]
        return found

    @cached_property
    def _guarded(self) -> frozenset[int]:
        """Return the classes that a guard counts."""
        return frozenset(spec for term in self.guards for spec in self.counted[term])

    # Sites

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Topology keys over which it matters where planned pods go."""
        between = {self.key_of(term) for term in self.terms if not is_host(term) and self._moves(term)}
        return tuple(sorted(between.union(*self.beside_daemons.values())))

    @cached_property
    def beside_daemons(self) -> Mapping[Term, tuple[str, str]]:
        """Anti-affinity over domains that counts a DaemonSet's pod of some new nodes: the keys that tell apart the
        domains of such nodes, and those of other new nodes. On nodes that stand its carriers are there first."""
        found: dict[Term, tuple[str, str]] = {}
        for term in self.terms:
            if term.sort is not Sort.ANTI or is_host(term) or not self._with_daemons(term).any():
                continue
            plain = self.domain(term.key)
            new = [value if place.can_hold and not place.name else None
                   for value, place in zip(plain, self.places, strict=True)]  # fmt: skip
            closed = self._with_daemons(term).tolist()
            with_one = [value if here else None for value, here in zip(new, closed, strict=True)]
            others = [None if here else value for value, here in zip(new, closed, strict=True)]
            if not {*with_one, None}.isdisjoint({*others} - {None}):
                names = (
                    f"{term.key} of new nodes with a DaemonSet's pod, {len(found)}",
                    f"{term.key} of others, {len(found)}",
                )
                found[term] = names
                self._domains.update(zip(names, (with_one, others), strict=True))
        return found

    @cached_property
    def sites(self) -> tuple[tuple[str | None, ...], ...]:
        """The values of these keys that places have together."""
        return tuple(sorted(set(self._site_of), key=repr)) if self.keys else ()

    @cached_property
    def _site_of(self) -> list[tuple[str | None, ...]]:
        """Return the site of each place."""
        values = [self.domain(key) for key in self.keys]
        return [tuple(of[place] for of in values) for place in range(len(self.places))]

    @cached_property
    def site_numbers(self) -> Ints:
        """Per place: the index of its site, -1 where there are none."""
        numbers = {site: number for number, site in enumerate(self.sites)}
        return np.array([numbers.get(site, -1) for site in self._site_of], dtype=np.int64)

    @cached_property
    def _moving(self) -> frozenset[Term]:
        """Return the terms over these keys."""
        return frozenset(term for term in self.counted if self.key_of(term) in self.keys)

    @cached_property
    def _moved(self) -> frozenset[int]:
        """Return the classes that they count."""
        return frozenset(spec for term in self._moving for spec in self.counted[term])

    # Rows

    @property
    def rows(self) -> tuple[Row, ...]:
        return self._table.rows

    @property
    def rows_of(self) -> tuple[tuple[int, ...], ...]:
        """Per demand: the rows that serve it."""
        return self._table.of_demand

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Bundles of which at most one unit can be served."""
        return self._table.together

    @property
    def every_bundle(self) -> bool:
        """Whether all bundles that are possible are among the rows."""
        return self._table.every_bundle

    @cached_property
    def holding(self) -> Mapping[int, Sequence[tuple[int, RowPart]]]:
        """Class -> the rows that serve it, with their part of it."""
        found: dict[int, list[tuple[int, RowPart]]] = {spec: [] for spec in range(len(self.specs))}
        for index, row in enumerate(self.rows):
            for part in row.parts:
                found[part.spec].append((index, part))
        return found

    def counted_rows(self, classes: frozenset[int]) -> tuple[tuple[int, int], ...]:
        """Return the rows with pods of the given classes, and how many a unit has."""
        if classes not in self._counted_rows:
            sums: Counter[int] = Counter()
            for spec in classes:
                for row, part in self.holding[spec]:
                    sums[row] += part.pods
            self._counted_rows[classes] = tuple(sorted(sums.items()))
        return self._counted_rows[classes]

    @cached_property
    def carrying(self) -> Mapping[Term, Sequence[tuple[int, RowPart]]]:
        """Term -> the rows with pods that carry it, with their part of it."""
        found: dict[Term, list[tuple[int, RowPart]]] = {term: [] for term in self.terms}
        for index, row in enumerate(self.rows):
            for part in row.parts:
                for term in part.variant.terms:
                    found[term].append((index, part))
        return found

    @cached_property
    def _table(self) -> _RowTable:
        rows = _RowCollector(len(self._demands))
        bound: dict[Term, list[tuple[int, RowPart]]] = defaultdict(list)
        for demand, (spec, _) in enumerate(self._demands):
            for part in (RowPart(spec, variant) for variant in self.variants[spec]):
                terms = [t for t in self._affinity(part.variant) if is_host(t) and self.starts_anywhere(part, t)]
                for term in terms:
                    bound[term].append((demand, part))
                for site in () if terms else self._sites([part]):
                    rows.add((self._identity(part), site), Row((part,), site), [demand])
        together, every_bundle = [], True
        requests = [dict(spec.requests) for spec in self.specs] if bound else []
        for members in components(bound):
            first = len(rows.rows)
            choices, complete = bundles_of(members, [count for _, count in self._demands], requests)
            every_bundle &= complete
            for choice in choices:
                parts = tuple(part for _, part in choice)
                bundle = tuple((demand, part.pods) for demand, part in choice)
                for site in self._sites(parts):
                    rows.add((choice, site), Row(parts, site, bundle), [demand for demand, _ in bundle])
            together.append(tuple(range(first, len(rows.rows))))
        return _RowTable(tuple(rows.rows), tuple(map(tuple, rows.of_demand)), tuple(together), every_bundle)

    def domain(self, key: str) -> list[str | None]:
        """Return the domain of each place by the key."""
        if key not in self._domains:
            self._domains[key] = [
                f"{number}" if key == HOSTNAME else place.labels.get(key) for number, place in enumerate(self.places)
            ]
        return self._domains[key]

    def counts_itself(self, part: RowPart, term: Term) -> bool:
        return part.spec in self.counted[term]

    @cached_property
    def own_carriers(self) -> Mapping[Term, frozenset[int]]:
        """Of each term of affinity: the specs that carry it and that it counts."""
        affinity = (term for term in self.terms if term.sort is Sort.AFFINITY)
        found = ((term, {part.spec for _, part in self.carrying[term]}) for term in affinity)
        return {term: frozenset(specs & self.counted[term]) for term, specs in found}

    @cached_property
    def own_terms(self) -> Mapping[int, Sequence[tuple[int, Term]]]:
        """Of each spec: the terms of affinity that it carries and that count it, with their positions."""
        found: dict[int, list[tuple[int, Term]]] = defaultdict(list)
        for position, term in enumerate(self.terms):
            for spec in self.own_carriers.get(term, ()):
                found[spec].append((position, term))
        return found

    def starts_anywhere(self, part: RowPart, term: Term) -> bool:
        """Whether the carrier's first pod may go anywhere and the others must follow it."""
        return self.counts_itself(part, term) and not self.has_started(term)

    def has_started(self, term: Term) -> bool:
        """Whether a pod runs that the term of affinity counts, on a node with any key of its carriers' terms."""
        counted = self.standing.counted(term)
        return any(self.domain(key)[place] is not None for key in term.keys or (term.key,) for place in counted)

    def domains_with(self, term: Term) -> frozenset[str]:
        """The domains in which a pod that the term counts runs."""
        domains = self.domain(term.key)
        return frozenset(value for value in (domains[p] for p in self.standing.counted(term)) if value is not None)

    def least_on_nodes(self, term: Term) -> int:
        """How many counted pods run on each node at least that a required spread over hostnames counts; 0 where one
        more node could come."""
        if term not in self._least_on_nodes:
            self._least_on_nodes[term] = self._found_least(term)
        return self._least_on_nodes[term]

    def _found_least(self, term: Term) -> int:
        if not term.is_hard or term.spread is None:
            return 0
        places = np.flatnonzero(self.included(term)).tolist()
        if any(not self.places[place].name and self.places[place].can_hold for place in places):
            return 0
        standing, running = [place for place in places if self.places[place].name], self.running(term)
        if len(standing) < term.spread.min_domains:
            return 0
        return min((running.get(place, 0) for place in standing), default=0)

    def _moves(self, term: Term) -> bool:
        """Whether what a term asks for depends on where planned pods go."""
        return term.sort is not Sort.ANTI or bool(self.counted[term])

    def _affinity(self, variant: Variant) -> Iterator[Term]:
        return (term for term in variant.terms if term.sort is Sort.AFFINITY)

    def _sites(self, parts: Sequence[RowPart]) -> Sequence[int | None]:
        moves = bool(self.beside_daemons) or any(
            part.spec in self._moved or not self._moving.isdisjoint(part.variant.terms) for part in parts
        )
        return range(len(self.sites)) if moves else (None,)

    def _identity(self, part: RowPart) -> object:
        """Return the identity of the row: rows of one are one row."""
        if part.variant.terms or part.spec in self._watched:
            return part.spec, len(part.variant.given_up)
        # No term selects by its labels, and its requests say what it takes for its volumes.
        return replace(part.variant, spec=replace(part.variant.spec, labels=(), namespace="", shared_volumes=()))

    def closed(self) -> tuple[Bools, Ints]:
        """Places x reasons: where what runs there, and in its domains, keeps pods out; and the reason of each row. The
        first one keeps nobody out."""
        columns: dict[bytes, int] = {bytes(len(self.places)): 0}
        of_row = np.zeros(len(self.rows), dtype=np.int64)
        for number, row in enumerate(self.rows):
            found = self._closed_to(row.parts[0].spec, row.parts[0].variant)
            if len(row.parts) > 1:
                masks = [np.frombuffer(self._closed_to(each.spec, each.variant), dtype=bool) for each in row.parts]
                found = np.logical_or.reduce(masks).tobytes()
            of_row[number] = columns.setdefault(found, len(columns))
        table = np.frombuffer(b"".join(columns), dtype=bool).reshape(len(columns), len(self.places))
        return np.ascontiguousarray(table.T), of_row

    def _closed_to(self, spec: int, variant: Variant) -> bytes:
        """Per place 1 where a pod may not be, on whatever site."""
        key = spec, len(variant.given_up)
        if key not in self._closed:
            open_to = np.ones(len(self.places), dtype=bool)
            for term in variant.terms:
                opened = self._open_by(RowPart(spec, variant), term)
                if opened is not None:
                    open_to &= opened
            for places, kept_out in self._guarded_places.items() if spec in self._guarded else ():
                if spec in kept_out:
                    open_to &= ~np.frombuffer(places, dtype=bool)
            self._closed[key] = (~open_to).tobytes()
        return self._closed[key]

    def _open_by(self, part: RowPart, term: Term) -> Bools | None:
        """The places that a term leaves open to its carrier, None for all."""
        own, running = self.counts_itself(part, term), self.running(term)
        alone = term.sort is Sort.AFFINITY and not own and not self._can_be_helped(part.spec, term)
        key = term, own, alone
        if key not in self._open:
            self._open[key] = self._opened(term, running, own=own, alone=alone)
        return self._open[key]

    def _can_be_helped(self, spec: int, term: Term) -> bool:
        if self.helpers(spec, term):
            return True
        # Those that wait for it need not where what they need runs.
        others = (each for other in self.counted[term] for each in self.variants[other][-1].terms)
        return not is_host(term) and any(each.sort is Sort.AFFINITY and self.domains_with(each) for each in others)

    def waits_for(self, who: tuple[int, int], for_whom: tuple[int, int]) -> bool:
        """Whether pods of a class on a site wait, over however many others, for those of another one: both are (index
        of the class, index of the site). Those whose affinity counts a pod that runs there wait for nobody."""
        known = self._waited_for
        if who not in known:
            seen: set[tuple[int, int]] = set()
            done: set[tuple[int, int]] = set()
            """Those whose own are seen, or come: what is known of one is so of all that it waits for."""
            ahead = [who]
            while ahead:
                each = ahead.pop()
                if each in done:
                    continue
                done.add(each)
                if each in known:
                    seen |= known[each]
                    done |= known[each]
                    continue
                new = [other for other in self._needed_by(*each) if other not in seen]
                seen.update(new)
                ahead.extend(sorted(new, key=known.__contains__))
            known[who] = frozenset(seen)
        return for_whom in self._waited_for[who]

    def _needed_by(self, spec: int, site: int) -> Iterator[tuple[int, int]]:
        for term in self.variants[spec][-1].terms:
            if term.sort is not Sort.AFFINITY or spec in self.counted[term]:
                continue
            alike = [site]
            if term.key in self.keys:
                at = self.keys.index(term.key)
                value = self.sites[site][at]
                if value in self.domains_with(term):
                    continue
                alike = [number for number, values in enumerate(self.sites) if values[at] == value]
            yield from ((other, number) for other in self.counted[term] for number in alike)

    def _opened(self, term: Term, running: Mapping[int, int], *, own: bool, alone: bool) -> Bools | None:
        if term.sort is Sort.ANTI:
            with_daemons = self._with_daemons(term)
            beside = self._sharing(term.key, running) | with_daemons
            certain = [number for number in np.flatnonzero(with_daemons).tolist() if self.places[number].must_open]
            if certain and not is_host(term):
                new = np.array([not place.name for place in self.places])
                beside |= new & self._sharing(term.key, certain)
            return ~beside if beside.any() else None
        result = None if is_host(term) else self._codes(term.key) >= 0
        if term.sort is Sort.AFFINITY:
            if alone or (own and self.has_started(term)):
                beside = self._sharing(term.key, running)
                result = beside if result is None else result & beside
        elif is_host(term) and term.spread is not None:
            most = term.spread.max_skew + self.least_on_nodes(term) - own
            full = [place for place, count in running.items() if count > most]
            result = ~self._sharing(term.key, full) if full else None
        return result

    def _with_daemons(self, term: Term) -> Bools:
        """Per place: whether a new node there gets a DaemonSet's pod that the term counts."""
        result = np.zeros(len(self.places), dtype=bool)
        for daemons, places in self._daemon_places.items():
            if any(term.counts(spec) for spec in daemons):
                result |= places
        return result if is_host(term) or not result.any() else result & (self._codes(term.key) >= 0)

    @cached_property
    def _daemon_places(self) -> Mapping[tuple[PodSpec, ...], Bools]:
        """Return the places by the DaemonSets' pods that new nodes there get."""
        found: dict[tuple[PodSpec, ...], Bools] = {}
        for number, place in enumerate(self.places):
            if place.daemons:
                found.setdefault(place.daemons, np.zeros(len(self.places), dtype=bool))[number] = True
        return found

    def _codes(self, key: str) -> Ints:
        """Per place: a number for its domain of the key, -1 where it is in none."""
        if key not in self._domain_codes:
            numbers: dict[str | None, int] = {None: -1}
            found = [numbers.setdefault(value, len(numbers) - 1) for value in self.domain(key)]
            self._domain_codes[key] = np.array(found, dtype=np.int64)
        return self._domain_codes[key]

    def _sharing(self, key: str, places: Iterable[int]) -> Bools:
        """Per place: whether it shares a domain with one of `places`."""
        result, chosen = np.zeros(len(self.places), dtype=bool), list(places)
        if key == HOSTNAME:
            result[chosen] = True
        elif chosen:
            codes = self._codes(key)
            shared = np.zeros(int(codes.max(initial=-1)) + 2, dtype=bool)
            shared[codes[chosen]] = True
            shared[-1] = False  # which is where -1 leads to
            result = shared[codes]
        return result


def _asked(spec: PodSpec, *, rules: bool) -> PodSpec:
    """What matters of a spec: nothing but its size where no node can take it; without `rules` what keeps pods apart on
    nodes, and neither what ties them together nor preferences."""
    if spec.unschedulable:
        return PodSpec(spec.requests, unschedulable=spec.unschedulable)
    if rules:
        return spec
    return replace(
        without_preferences(spec),
        pod_affinity=(),
        pod_anti_affinity=tuple(t for t in spec.pod_anti_affinity if t.topology_key == HOSTNAME),
        topology_spread=tuple(s for s in spec.topology_spread if s.topology_key == HOSTNAME and s.is_required),
    )
