"""Inter-row constraints: on one node as counters, exclusions and needs; over larger domains as rules.

Semantics: docs/reference/constraints.md. A counter is a resource that constraints make: a node has one of each host
port, and as many pods of a spread over hostnames as its skew allows. It costs the algorithms nothing new, so
whatever a counter can express is one.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from solver.model import HostPort
from solver.model.eligibility import EVERY_ADDRESS
from solver.reduction.rows import Layout
from solver.reduction.rules import Apart, Beside, OneDomain, Rows, Rule, Spread, SpreadDomain, WithFirst
from solver.reduction.terms import Sort, Term, is_host


@dataclass(frozen=True, slots=True)
class Counter:
    """A resource of nodes that only constraints know."""

    name: str
    takes: Mapping[int, int]
    """Per row that takes any: units."""
    most: int
    """What an empty node has."""
    left: Mapping[int, int]
    """Per place with less than that: what it has."""

    def as_exclusion(self) -> NodeExclusion:
        """Return an exclusion that says the same."""
        return NodeExclusion(frozenset(self.takes), tuple(sorted(self.takes.items())), self.most, self.left)


@dataclass(frozen=True, slots=True)
class NodeExclusion:
    """On a node with any of `carriers`, at most so many counted pods."""

    carriers: frozenset[int]
    counted: Rows
    most: int
    """On an empty node."""
    left: Mapping[int, int]
    """Per place with less than that: what it allows; below 0 where more run than may."""


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """On a node with any of `carriers`, at least one of `helpers`, unless one that counts runs there."""

    carriers: frozenset[int]
    helpers: frozenset[int]
    met: frozenset[int]
    """Places where it does."""


def counters(layout: Layout) -> tuple[Counter, ...]:
    """Return those for host ports, and for anti-affinity and spread over hostnames among pods that own terms count."""
    return (*_ports(layout), *_shares(layout))


def _ports(layout: Layout) -> Iterator[Counter]:
    asked = _by_port((number, port) for number, spec in enumerate(layout.specs) for port in spec.host_ports)
    if not asked:
        return
    there = _by_port((number, port) for number, place in enumerate(layout.places) for port in place.ports)
    for (number, protocol), asking in sorted(asked.items()):
        having = there.get((number, protocol), [])
        ips = {ip for _, ip in (*asking, *having)}
        addresses = sorted({"" if ip in EVERY_ADDRESS else ip for ip in ips})
        for address in dict.fromkeys(("", *addresses)):  # "" stands for all of them
            takes = dict(layout.counted_rows(frozenset(spec for spec, ip in asking if _takes(ip, address))))
            taken = {place: 0 for place, ip in having if _takes(ip, address)}
            if takes:
                yield Counter(f"host port {protocol}/{number} {address}".strip(), takes, 1, taken)


def _by_port(ports: Iterable[tuple[int, HostPort]]) -> Mapping[tuple[int, str], list[tuple[int, str]]]:
    """Return who has each port, by number and protocol, and at which address."""
    found: defaultdict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
    for who, port in ports:
        found[port.port, port.protocol].append((who, port.ip))
    return found


def _takes(ip: str, address: str) -> bool:
    """All addresses take each address's counter; one address takes its own."""
    return ip in EVERY_ADDRESS or ip == address


def _shares(layout: Layout) -> Iterator[Counter]:
    """Of a term over hostnames: how many of its own carriers a node may have."""
    for term in _terms(layout, host=True):
        most = _most(layout, term)
        if most is None:
            continue
        takes: Counts[int] = Counts()
        for row, part in layout.carrying[term]:
            takes[row] += part.pods if layout.counts_itself(part, term) else 0
        running = layout.running(term)
        left = {place: max(0, most - count) for place, count in running.items()}
        yield Counter(f"{term.sort} over hostnames", +takes, most, left)


def _terms(layout: Layout, *, host: bool) -> list[Term]:
    return [term for term in layout.terms if is_host(term) is host]


def _most(layout: Layout, term: Term) -> int | None:
    """Counted pods that a node with a carrier, itself counted, may have."""
    if term.sort is Sort.SPREAD and term.spread is not None:
        return term.spread.max_skew + layout.least_on_nodes(term)
    return 1 if term.sort is Sort.ANTI else None


def _carriers(layout: Layout, term: Term, *, counted: bool) -> frozenset[int]:
    """Rows that carry the term and whose carriers it counts, or does not count."""
    return frozenset(row for row, part in layout.carrying[term] if layout.counts_itself(part, term) is counted)


def exclusions(layout: Layout) -> tuple[NodeExclusion, ...]:
    """Return the exclusions that counters do not express already, each once."""
    found: dict[object, NodeExclusion] = {}

    def note(term: Term, carriers: frozenset[int], counted: Rows, most: int) -> None:
        left = {place: most - running for place, running in layout.running(term).items()}
        key = carriers, id(counted), most, tuple(left.items())
        found.setdefault(key, NodeExclusion(carriers, counted, most, left))

    for term in _terms(layout, host=True):
        most = _most(layout, term)
        if most is None or layout.others_come_last(term):
            continue
        counted = layout.counted_rows(layout.counted[term])
        mine, others = _carriers(layout, term, counted=True), _carriers(layout, term, counted=False)
        if mine and len(counted) > len(mine):
            note(term, mine, counted, most)
        if others and counted:
            note(term, others, counted, 0 if term.sort is Sort.ANTI else most)
    return tuple(found.values())


def needs(layout: Layout) -> tuple[NodeNeed, ...]:
    found: dict[tuple[Term, frozenset[int]], set[int]] = defaultdict(set)
    for term in _terms(layout, host=True):
        if term.sort is Sort.AFFINITY:
            for row, part in layout.carrying[term]:
                if not layout.counts_itself(part, term):
                    found[term, layout.helpers(part.spec, term)].add(row)
    return tuple(
        NodeNeed(
            frozenset(carriers),
            frozenset(row for row, _ in layout.counted_rows(classes)),
            frozenset(layout.standing.counted(term)),
        )
        for (term, classes), carriers in found.items()
        if classes
    )


def rules(layout: Layout) -> tuple[Rule, ...]:
    """Over every key but the hostname; the rows of the layout have sites where these need them."""
    return tuple(rule for term in _terms(layout, host=False) for rule in _RULES[term.sort](layout, term))


def _by_domain(layout: Layout, term: Term, rows: Rows) -> dict[str, Rows]:
    """The rows in each domain of the term's key."""
    return _by_value(layout, layout.key_of(term), rows)


def _by_value(layout: Layout, key: str, rows: Rows) -> dict[str, Rows]:
    if key not in layout.keys:
        return {}
    position = layout.keys.index(key)
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, pods in rows:
        site = layout.rows[number].site
        value = None if site is None else layout.sites[site][position]
        if value is not None:
            found[value].append((number, pods))
    return {value: tuple(mine) for value, mine in sorted(found.items())}


def _units(rows: Iterable[int]) -> Rows:
    return tuple((row, 1) for row in sorted(rows))


def _apart(layout: Layout, term: Term) -> Iterator[Rule]:
    counted = _by_domain(layout, term, layout.counted_rows(layout.counted[term]))
    for itself in (True, False):
        mine = _by_domain(layout, term, _units(_carriers(layout, term, counted=itself)))
        for value, carriers in mine.items():
            if value in counted:
                yield Apart(carriers, counted[value], 1 if itself else 0)
    if term in layout.beside_daemons:
        # A new node comes with whatever pods are on it, and its DaemonSet's pod with the node.
        with_one, others = layout.beside_daemons[term]
        there = _by_value(layout, with_one, _units(range(len(layout.rows))))
        for value, carriers in _by_value(layout, others, _units(row for row, _ in layout.carrying[term])).items():
            if value in there:
                yield Apart(carriers, there[value], 0)


def _together(layout: Layout, term: Term) -> Iterator[Rule]:
    running = layout.domains_with(term)
    if not layout.has_started(term):
        starting = _starting_together(layout, term)
        if starting and starting[0] is term:
            together = frozenset(row for each in starting for row in _carriers(layout, each, counted=True))
            mine = _by_domain(layout, term, _units(together))
            if len(mine) > 1:
                yield OneDomain(tuple(mine.values()))
        yield from _with_first(layout, term)
    waiting: dict[frozenset[int], set[int]] = defaultdict(set)
    partly: list[tuple[int, int]] = []
    for row, part in layout.carrying[term]:
        if layout.counts_itself(part, term):
            continue
        helping = layout.helpers(part.spec, term)
        if helping == layout.counted[term]:
            waiting[helping].add(row)
        else:
            partly.append((row, part.spec))
    yield from _beside_others(layout, term, partly)
    for classes, rows in waiting.items():
        helping_rows = _by_domain(layout, term, layout.counted_rows(classes))
        for value, mine_here in _by_domain(layout, term, _units(rows)).items():
            if value not in running:
                yield Beside(mine_here, helping_rows.get(value, ()))


def _with_first(layout: Layout, term: Term) -> Iterator[Rule]:
    """Pods that the term counts without binding them may be there before its carriers, or nominated, which counts."""
    own = {part.spec for _, part in layout.carrying[term] if layout.counts_itself(part, term)}
    others = layout.counted_rows(layout.counted[term] - own)
    by_domain = _by_domain(layout, term, others)
    anywhere = tuple(each for rows in by_domain.values() for each in rows)
    mine = _by_domain(layout, term, _units(_carriers(layout, term, counted=True))) if anywhere else {}
    domains = ((carriers, by_domain.get(value, ())) for value, carriers in mine.items())
    found = tuple(each for each in domains if each[1] != anywhere)
    if found:
        yield WithFirst(found, anywhere)


def _starting_together(layout: Layout, term: Term) -> list[Term]:
    """The terms over the same key of which each counts the carriers of all others, so that whichever pod comes first
    decides for all of them; the term among them."""

    mine = layout.own_carriers[term]
    if not mine:
        return []
    met = {each for spec in layout.counted[term] for each in layout.own_terms.get(spec, ())}
    return [
        each
        for _, each in sorted(met, key=lambda one: one[0])
        if each is term
        or (each.key == term.key and not layout.has_started(each) and not layout.counted[each].isdisjoint(mine))
    ]


def _beside_others(layout: Layout, term: Term, carriers: Sequence[tuple[int, int]]) -> Iterator[Rule]:
    """For carriers (row and class) that some of those that they need wait for: those that do so elsewhere help all the
    same."""
    counted = _by_domain(layout, term, layout.counted_rows(layout.counted[term])) if carriers else {}
    started = layout.domains_with(term) if carriers else frozenset()
    for row, spec in carriers:
        site = layout.rows[row].site
        for value, mine in _by_domain(layout, term, _units([row])).items():
            if value in started or site is None:
                continue
            helping = []
            for number, pods in counted.get(value, ()):
                there, parts = layout.rows[number].site, layout.rows[number].parts
                if there is not None and not any(layout.waits_for((each.spec, there), (spec, site)) for each in parts):
                    helping.append((number, pods))
            yield Beside(mine, tuple(helping))


def _spread(layout: Layout, term: Term) -> Iterator[Rule]:
    spread = term.spread
    if spread is None:
        return
    carriers = layout.carrying[term]
    mine = _by_domain(layout, term, _units({row for row, _ in carriers}))
    counted = _by_domain(layout, term, layout.counted_rows(layout.counted[term]))
    kept = counted
    if layout.others_come_last(term):
        kept = _by_domain(layout, term, layout.counted_rows(layout.counted[term] & layout.bound(term)))
    running: dict[str | None, int] = defaultdict(int)
    for place, pods in layout.running(term).items():
        running[layout.domain(term.key)[place]] += pods
    values = _spread_domains(layout, term)
    domains = (SpreadDomain(mine.get(v, ()), counted.get(v, ()), kept.get(v, ()), running[v]) for v in values)
    yield Spread(tuple(domains), spread.max_skew, len(values) < spread.min_domains)


def _spread_domains(layout: Layout, term: Term) -> tuple[str, ...]:
    """The domains that a spread counts, by what its carriers require: a preference they keep narrows none. A group
    counts while it can grow; for a required spread only one on whose nodes carriers could be."""
    found: set[str] = set()
    included, values = layout.included(term), layout.domain(term.key)
    for place in sorted(range(len(values)), key=lambda each: not layout.places[each].name):
        value, where = values[place], layout.places[place]
        if value is None or value in found or not included[place] or not where.can_hold:
            continue
        if where.name or not term.is_hard or layout.can_start(term, place):
            found.add(value)
    return tuple(sorted(found))


_RULES: dict[Sort, Callable[[Layout, Term], Iterator[Rule]]] = {
    Sort.ANTI: _apart,
    Sort.AFFINITY: _together,
    Sort.SPREAD: _spread,
}
