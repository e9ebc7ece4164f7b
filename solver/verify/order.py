"""The checker's part for what depends on the order in which pods are placed: required affinity and topology spread.

The kube-scheduler places one pod after the other, and looks at no pod that is not there yet. So a plan is played: pods
go where it has them, one at a time, higher priorities first, each as soon as the filters InterPodAffinity and
PodTopologySpread let it. What never gets its turn is stuck. Pods that these constraints only count come last, unless
others wait for them. Nominated pods count before they are there, so in the end each must be let in beside all others as
well (`docs/reference/constraints.md`), but for those of lower priorities: these count only on nodes that stand, for
pods whose nodes are still to come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from solver.model import (
    HOSTNAME,
    Node,
    NodeGroup,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Problem,
    TopologySpread,
)
from solver.verify.claims import required_affinity
from solver.verify.filters import HARD, is_selected, tolerated
from solver.verify.places import CheckedNodes, CheckedPlaces

_MOST_STEPS = 100_000
"""How often it is asked whether pods may be placed; beyond it the rest counts as placed: an order was found for so
many."""
_MOST_PRIORITIES = 8
"""Above it pods of lower priorities count as all others do."""
_MOST_UNITS = 20_000
"""Nodes that are told apart, beyond which a plan is not played."""

Domain = str | tuple[int, int]
"""A value of a topology key; over hostnames a place and the number of its node."""
Stuck = Mapping[tuple[int, int], int]
"""(class, index of the place) -> pods that no order gets there."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Nodes that are alike to all constraints: those of a place, or one of these where hostnames matter."""

    place: CheckedNodes
    copy: int
    nodes: int

    def domain(self, key: str) -> Domain | None:
        return (self.place.index, self.copy) if key == HOSTNAME else self.place.where.labels.get(key)


@dataclass(slots=True)
class _Tally:
    """Counted pods by domain; for a spread of all domains that there are, with the least of them."""

    of: dict[Domain, int] = field(default_factory=dict)
    least: int = 0
    _domains_with: Counter[int] = field(default_factory=Counter)

    def add(self, domain: Domain, pods: int) -> None:
        before = self.of.get(domain)
        self.of[domain] = after = (before or 0) + pods
        if before is not None:
            self._domains_with[before] -= 1
        self._domains_with[after] += 1

    def begin(self, domains: Sequence[Domain]) -> None:
        """Know these domains, with nobody in them."""
        self.of = dict.fromkeys(domains, 0)
        self.least, self._domains_with = 0, Counter({0: len(self.of)})

    def level(self) -> int:
        """Return the count of the emptiest domain; 0 without any."""
        if self.of and not self._domains_with[self.least]:
            self.least = min(self.of.values())
        return self.least


class _Affinity:
    """Terms of required affinity that the scheduler takes together: one selector over several keys."""

    def __init__(self, keys: tuple[str, ...], counted: frozenset[int], *, alone: bool) -> None:
        """`alone`: it is not the pod's own but of a claim that pods share."""
        self.keys, self.counted, self.alone = keys, counted, alone
        self.forget()

    def forget(self) -> None:
        """Count nobody."""
        self.tallies = {key: _Tally() for key in self.keys}
        self.started = False
        """Whether a pod that it counts runs."""
        self.unbound: dict[str, set[Domain]] = {key: set() for key in self.keys}
        """Domains of planned pods that it counts and does not bind."""

    def add(self, unit: _Unit, pods: int) -> None:
        for key, tally in self.tallies.items():
            domain = unit.domain(key)
            if domain is not None:
                tally.add(domain, pods)

    def note_unbound(self, unit: _Unit) -> None:
        """Note where there are pods that it counts and does not bind."""
        for key, domains in self.unbound.items():
            if (domain := unit.domain(key)) is not None:
                domains.add(domain)

    def allows(self, unit: _Unit, *, own: bool) -> int | None:
        """Return how many of its carriers may be placed there now, None for any number. `own`: it counts them."""
        domains = [(unit.domain(key), tally) for key, tally in self.tallies.items()]
        if any(domain is None for domain, _ in domains):
            return 0
        if all(tally.of.get(domain, 0) for domain, tally in domains if domain is not None):
            return None
        return int(own and not any(tally.of for tally in self.tallies.values()))

    def most_at_the_end(self, unit: _Unit, pods: int, *, own: bool) -> int:
        """Return how many of so many carriers that are there may be there beside all others. Pods that it counts and
        does not bind may come first, so that one of them has to be there if any is anywhere."""
        if own and not self.started and not self.alone:
            missing = (each and unit.domain(key) not in each for key, each in self.unbound.items())
            if any(missing):
                return 0
        others = {key: tally.of.get(unit.domain(key) or "", 0) - own for key, tally in self.tallies.items()}
        alone = own and all(sum(tally.of.values()) <= own for tally in self.tallies.values())
        return pods if self.alone or alone or all(count > 0 for count in others.values()) else 0


class _Counts:
    """Pods that spreads count, by domain: of all spreads that count the same pods on the same nodes."""

    def __init__(self, spread: TopologySpread, spec: PodSpec, keys: frozenset[str], counted: frozenset[int]) -> None:
        """`keys` are those of all required spreads of the pod."""
        self._spread, self._spec, self._keys, self.counted = spread, spec, keys, counted
        self.tally = _Tally()
        self._included: dict[int, bool] = {}

    def domain(self, unit: _Unit) -> Domain | None:
        """Return the domain as which a node counts; None where it does not."""
        where = unit.place.where
        if id(where) not in self._included:
            self._included[id(where)] = includes(self._spread, self._spec, self._keys, where, unit.place.name)
        return unit.domain(self._spread.topology_key) if self._included[id(where)] else None

    def add(self, unit: _Unit, pods: int) -> None:
        domain = self.domain(unit)
        if domain is not None:
            self.tally.add(domain, pods)


class _Spread:
    """A spread of pods that ask for the same nodes."""

    def __init__(self, spread: TopologySpread, counts: _Counts) -> None:
        self.spread, self.counts = spread, counts
        self.counted, self.tally = counts.counted, counts.tally

    def _slack(self, unit: _Unit) -> int | None:
        """Return how many more pods the domain of a node may have, negative where it has too many; None where the node
        is in none."""
        domain = unit.domain(self.spread.topology_key)
        if domain is None:
            return None
        level = 0 if len(self.tally.of) < self.spread.min_domains else self.tally.level()
        return self.spread.max_skew + level - self.tally.of.get(domain, 0)

    def allows(self, unit: _Unit, *, own: bool) -> int | None:
        slack = self._slack(unit)
        if own or slack is None:
            return max(0, slack or 0)
        return 0 if slack < 0 else None

    def most_at_the_end(self, unit: _Unit, pods: int, *, own: bool) -> int:
        slack = self._slack(unit)
        if slack is None:
            return 0
        return pods if slack >= 0 else max(0, pods + slack) if own else 0

    def height(self, unit: _Unit) -> int:
        """Return how far a domain is above the emptiest one."""
        domain = unit.domain(self.spread.topology_key)
        return 0 if domain is None else self.tally.of.get(domain, 0) - self.tally.level()


_Constraint = _Affinity | _Spread


def hard_keys(spec: PodSpec) -> frozenset[str]:
    """Return the topology keys of all required spreads of a pod: a node without one of them counts for none."""
    return frozenset(each.topology_key for each in spec.topology_spread if each.is_required)


def includes(spread: TopologySpread, spec: PodSpec, keys: frozenset[str], where: NodeGroup | Node, name: str) -> bool:
    """Return whether a spread of the pod counts a node at all. `keys` are the pod's `hard_keys`."""
    if spread.is_required and not where.labels.keys() >= keys - {HOSTNAME}:
        return False
    if spread.honor_node_affinity and not is_selected(spec, where.labels, name):
        return False
    return not spread.honor_node_taints or tolerated(spec.tolerations, where.taints, HARD)


@dataclass(slots=True)
class _Pending:
    """Pods of one class for one unit."""

    pod_class: int
    unit: _Unit
    pods: int


class _Play:
    def __init__(self, problem: Problem, places: CheckedPlaces, priorities: Sequence[int], *, all_count: bool) -> None:
        self._all_count = all_count
        self._priorities, self._problem = priorities, problem
        self._places = places
        self._known: dict[object, _Constraint] = {}
        self._counts: dict[tuple[object, frozenset[int]], _Counts] = {}
        self._asked: dict[int, list[tuple[_Constraint, bool]]] = {}
        """Class -> its constraints, and whether each counts it."""
        for index in sorted(places.of_class):
            if found := [*self._made(places.specs[index])]:
                self._asked[index] = [(each, self._number(index) in each.counted) for each in found]
        self._counting: Counter[int] = Counter()
        """How many constraints count pods, by the number of what selectors see of them."""
        self._adding: defaultdict[int, list[_Affinity | _Counts]] = defaultdict(list)
        """By the same: where they are counted."""
        for each in self._known.values():
            self._counting.update(each.counted)
        affinity = (each for each in self._known.values() if isinstance(each, _Affinity))
        tallies: list[_Affinity | _Counts] = [*affinity, *self._counts.values()]
        for tally in tallies:
            for number in tally.counted:
                self._adding[number].append(tally)
        of_several = {id(each) for asked in self._asked.values() if len(asked) > 1 for each, _ in asked}
        self._bound = {
            index: asked
            for index, asked in self._asked.items()
            if len(asked) > 1 or isinstance(asked[0][0], _Affinity) or id(asked[0][0]) in of_several
        }
        """Of these: classes whose order matters. One spread alone, of pods that have nothing else, can be kept in some
        order wherever it is kept in the end: the emptiest domains first."""
        self._apart = any(HOSTNAME in _keys(each) for each in self._known.values())
        self._placed_with: dict[int, int] = {}
        """By class: the priority with whose pods the last of its own found their places, its own or a lower one."""
        self.stuck: Counter[tuple[int, int]] = Counter()
        units = len(problem.nodes) + sum(place.count if self._apart else 1 for place in places.all)
        self.is_needed = bool(self._known) and units <= _MOST_UNITS
        if self.is_needed:
            self._count_running(problem, places)

    def _number(self, index: int) -> int:
        return self._places.pods.number(self._places.specs[index])

    def _made(self, spec: PodSpec) -> Iterator[_Constraint]:
        """Yield a pod's constraints that depend on the order, those that other pods have, too, as one."""
        terms: dict[tuple[bool, PodSelector | PodAffinityTerm], list[PodAffinityTerm]] = defaultdict(list)
        for term in required_affinity(spec):
            terms[term.alone, term if term.alone else term.selector].append(term)
        for mine in terms.values():
            keys = tuple(sorted({term.topology_key for term in mine}))
            selector, alone = mine[0].selector, mine[0].alone
            if (keys, selector, alone) not in self._known:
                self._known[keys, selector, alone] = _Affinity(keys, self._places.pods.counted(selector), alone=alone)
            yield self._known[keys, selector, alone]
        hard = hard_keys(spec)
        for spread in (each for each in spec.topology_spread if each.is_required):
            by_affinity = (spec.node_selector, spec.affinity) if spread.honor_node_affinity else None
            of_nodes = spread.topology_key, by_affinity, spec.tolerations if spread.honor_node_taints else None, hard
            if (spread, spec.namespace, of_nodes) not in self._known:
                counted = self._places.pods.counted(PodSelector(spread.selector.match_expressions, (spec.namespace,)))
                counts = self._counts.setdefault((of_nodes, counted), _Counts(spread, spec, hard, counted))
                self._known[spread, spec.namespace, of_nodes] = _Spread(spread, counts)
            yield self._known[spread, spec.namespace, of_nodes]

    def _count_running(self, problem: Problem, places: CheckedPlaces) -> None:
        there = {id(place.where) for place in places.all}
        bare = [CheckedNodes(-1 - n, node, 1, {}) for n, node in enumerate(problem.nodes) if id(node) not in there]
        units = [*self._units((*places.all, *bare))]
        domains: dict[object, list[Domain]] = {}
        for (of_nodes, _), counts in self._counts.items():
            if of_nodes not in domains:
                found = dict.fromkeys(map(counts.domain, units))
                domains[of_nodes] = [each for each in found if each is not None]
            counts.tally.begin(domains[of_nodes])
        for unit in units:
            for running in unit.place.running:
                for tally in self._adding[self._places.pods.number(running.spec)]:
                    if not (running.ending and isinstance(tally, _Counts)):
                        tally.add(unit, running.count)
                        self._start(tally, unit)

    @staticmethod
    def _start(tally: _Affinity | _Counts, unit: _Unit) -> None:
        if isinstance(tally, _Affinity):
            tally.started |= any(unit.domain(key) is not None for key in tally.keys)

    def _units(self, places: Sequence[CheckedNodes]) -> Iterator[_Unit]:
        for place in places:
            if self._apart:
                yield from (_Unit(place, copy, 1) for copy in range(place.count))
            else:
                yield _Unit(place, 0, place.count)

    def run(self, places: CheckedPlaces) -> None:
        involved = [i for i in places.of_class if i in self._asked or self._number(i) in self._counting]
        waiting: list[_Pending] = []
        units = [*self._units(places.all)]
        self._steps = 0
        for priority in sorted({self._priorities[index] for index in involved}, reverse=True):
            mine = {index for index in involved if self._priorities[index] == priority}
            waiting += [
                _Pending(index, unit, unit.place.pods[index] * unit.nodes)
                for unit in units
                for index in unit.place.pods
                if index in mine
            ]
            waiting = self._settled(waiting)
            left = {each.pod_class for each in waiting}
            self._placed_with.update(
                (i, priority)
                for i in self._asked
                if self._priorities[i] >= priority and i not in left and i not in self._placed_with
            )
        for each in waiting:
            self.stuck[each.pod_class, each.unit.place.index] += each.pods
        if not waiting and self._steps < _MOST_STEPS:
            self._check_end(places, units, involved)

    def _check_end(self, places: CheckedPlaces, units: Sequence[_Unit], involved: Sequence[int]) -> None:
        """A pod that is nominated counts as if it were there already, so what lets a pod in must do so beside all
        others of the plan, too. Those of lower priorities count for none but may be there first where they have nodes
        already."""
        asking = set(self._placed_with.values())
        least = min((self._priorities[index] for index in involved), default=0)
        if self._all_count or asking <= {least} or len(asking) > _MOST_PRIORITIES:
            self._check_beside(units, frozenset(self._asked))
            return
        for priority in sorted(asking):
            mine = frozenset(index for index, level in self._placed_with.items() if level == priority)
            for stands in (True, False):
                asked = [
                    each for each in units if stands is bool(each.place.name) and not mine.isdisjoint(each.place.pods)
                ]
                if asked:
                    if priority > least:
                        self._count_anew(places, units, priority, beside_standing=not stands)
                    self._check_beside(asked, mine)

    def _count_anew(
        self, places: CheckedPlaces, units: Sequence[_Unit], priority: int, *, beside_standing: bool
    ) -> None:
        """Count the pods of this priority and of higher ones alone, and those of others on nodes that stand."""
        for each in self._known.values():
            if isinstance(each, _Affinity):
                each.forget()
        self._count_running(self._problem, places)
        for unit in units:
            for index, pods in unit.place.pods.items():
                there = self._priorities[index] >= priority or (beside_standing and bool(unit.place.name))
                if there:
                    self._place(_Pending(index, unit, 0), pods * unit.nodes)

    def _check_beside(self, units: Sequence[_Unit], mine: AbstractSet[int]) -> None:
        """Note which pods of these classes are not let in beside those that are counted now."""
        for unit in units:
            for index, pods in unit.place.pods.items():
                for constraint, own in self._asked.get(index, ()) if index in mine else ():
                    most = constraint.most_at_the_end(unit, pods * unit.nodes, own=own)
                    if most < pods * unit.nodes:
                        self.stuck[index, unit.place.index] += pods * unit.nodes - most
                        break

    def _settled(self, waiting: list[_Pending]) -> list[_Pending]:
        """Place all that can be; return the others."""
        while True:
            free = [each for each in waiting if each.pod_class not in self._bound]
            bound = self._placed([each for each in waiting if each.pod_class in self._bound])
            helpful = next((each for each in free if bound and self._helps(each, bound)), None)
            if helpful is None:
                for each in free:
                    self._place(each, each.pods)
                # Pods that nothing keeps are placed in any case, and may be what others have waited for.
                return self._placed(bound) if free else bound
            self._place(helpful, 1)
            waiting = [each for each in (*free, *bound) if each.pods]

    def _helps(self, each: _Pending, bound: Sequence[_Pending]) -> bool:
        """Return whether a pod that nothing keeps would bring one of those that wait nearer to its place."""
        self._steps += len(bound)
        return any(
            self._number(each.pod_class) in constraint.counted and _brings_nearer(constraint, each.unit, other.unit)
            for other in bound
            for constraint, _ in self._bound[other.pod_class]
        )

    def _placed(self, bound: list[_Pending]) -> list[_Pending]:
        """Place pods with constraints as long as one can be; return the others."""
        moved = True
        while moved and bound:
            moved = False
            self._steps += len(bound)
            if self._steps >= _MOST_STEPS:
                return []
            for each in sorted(bound, key=self._turn):
                if most := self._allowed(each):
                    self._place(each, most)
                    moved = True
            bound = [each for each in bound if each.pods]
        return bound

    def _turn(self, each: _Pending) -> tuple[int, int, int, int]:
        """Return a key: those come first that may only start while others are not there, then the emptiest domains."""
        asked = self._bound[each.pod_class]
        starts = sum(own for constraint, own in asked if isinstance(constraint, _Affinity))
        heights = [constraint.height(each.unit) for constraint, _ in asked if isinstance(constraint, _Spread)]
        counted_by = self._counting[self._number(each.pod_class)]
        return -starts, counted_by, max(heights, default=0), sum(heights)

    def _allowed(self, each: _Pending) -> int:
        most, several = each.pods, 0
        for constraint, own in self._bound[each.pod_class]:
            several += isinstance(constraint, _Spread)
            allowed = constraint.allows(each.unit, own=own)
            most = most if allowed is None else min(most, allowed)
        return min(most, 1) if several > 1 else most

    def _place(self, each: _Pending, pods: int) -> None:
        each.pods -= pods
        asked = self._asked.get(each.pod_class, ())
        for tally in self._adding[self._number(each.pod_class)]:
            tally.add(each.unit, pods)
            if isinstance(tally, _Affinity) and all(tally is not mine for mine, _ in asked):
                tally.note_unbound(each.unit)


def _brings_nearer(constraint: _Constraint, unit: _Unit, to: _Unit) -> bool:
    if isinstance(constraint, _Affinity):
        return any(unit.domain(key) is not None and unit.domain(key) == to.domain(key) for key in constraint.keys)
    at = constraint.counts.domain(unit)
    return at is not None and at != constraint.counts.domain(to) and constraint.tally.of[at] == constraint.tally.level()


def _keys(constraint: _Constraint) -> tuple[str, ...]:
    return constraint.keys if isinstance(constraint, _Affinity) else (constraint.spread.topology_key,)


def may_be_played(problem: Problem) -> bool:
    """Return whether no plan of a problem has so many nodes that it is not played."""
    return len(problem.nodes) + sum(each.count for each in problem.pod_sets) <= _MOST_UNITS


def stuck(problem: Problem, places: CheckedPlaces, priorities: Sequence[int], *, all_count: bool = False) -> Stuck:
    """Return the pods that are not placed by the order in which they are played. `priorities` are per class; with
    `all_count` those of lower ones count in the end as all others do."""
    play = _Play(problem, places, priorities, all_count=all_count)
    if play.is_needed:
        play.run(places)
    return +play.stuck
