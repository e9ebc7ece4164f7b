"""The checker's part for constraints between pods and for preferences: sums over domains, and which places break what.

A required constraint must hold everywhere. A preference may be broken by pods that gave it up. A plan does not
distinguish which pods of a class these are, so there must be enough of them: pods that break a preference are among
those that gave up this one and all before it. Whether the scheduler gets there pod by pod is a question of `order`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from solver.model import (
    HOSTNAME,
    Node,
    NodeGroup,
    Plan,
    PodAffinityTerm,
    PodSpec,
    Problem,
    TaintEffect,
    TopologySpread,
)
from solver.verify.claims import CheckedConstraint, Rule, constraints_of
from solver.verify.order import hard_keys, includes, stuck
from solver.verify.places import CheckedNodes, CheckedPlaces, Domain


class DomainTally:
    """Counted pods by term and domain. Over hostnames a place stands for one of its nodes. Only the given terms can be
    asked about: pods that none of them counts are left out."""

    def __init__(self, places: CheckedPlaces, terms: Iterable[PodAffinityTerm]) -> None:
        self._places = places
        self._pods = pods = places.pods
        self._classes: dict[int, list[int]] = defaultdict(list)
        for index, spec in enumerate(places.specs):
            self._classes[pods.number(spec)].append(index)
        self._relevant = set[int]().union(*{pods.counted(term.selector) for term in terms})
        self._running = [
            (place.index, pods.number(running.spec), running.count)
            for place in (places.all if self._relevant else ())
            for running in place.running
            if pods.number(running.spec) in self._relevant
        ]
        self._present: dict[str, dict[int, dict[Domain, list[int]]]] = {}
        self._tallies: dict[PodAffinityTerm, dict[Domain, list[int]]] = {}

    def counts(self, term: PodAffinityTerm, spec: PodSpec) -> bool:
        """Return whether the term counts pods of a spec of the plan or of a running pod."""
        return self._pods.number(spec) in self._pods.counted(term.selector)

    def counted_classes(self, term: PodAffinityTerm) -> list[int]:
        """Return the indices of the classes whose pods the term counts."""
        return [index for number in self._pods.counted(term.selector) for index in self._classes[number]]

    def of(self, term: PodAffinityTerm) -> dict[Domain, list[int]]:
        """Return domain -> counted pods that are [planned, running] there, without domains that have none."""
        if term not in self._tallies:
            present = self._presence(term.topology_key)
            sums: dict[Domain, list[int]] = {}
            for number in self._pods.counted(term.selector):
                for domain, (planned, running) in present.get(number, {}).items():
                    total = sums.setdefault(domain, [0, 0])
                    total[0] += planned
                    total[1] += running
            self._tallies[term] = sums
        return self._tallies[term]

    def _presence(self, key: str) -> dict[int, dict[Domain, list[int]]]:
        if key not in self._present:
            found: dict[int, dict[Domain, list[int]]] = defaultdict(dict)
            domains = [place.domain(key) for place in self._places.all]
            for index, where in self._places.of_class.items():
                number = self._pods.number(self._places.specs[index])
                if number in self._relevant:
                    sums = found[number]
                    for place in where:
                        domain = domains[place.index]
                        if domain is not None:
                            times = 1 if key == HOSTNAME else place.count
                            sums.setdefault(domain, [0, 0])[0] += place.pods[index] * times
            for place_index, number, count in self._running:
                domain = domains[place_index]
                if domain is not None:
                    found[number].setdefault(domain, [0, 0])[1] += count
            self._present[key] = found
        return self._present[key]


def serving_own(
    constraints: Sequence[CheckedConstraint], places: CheckedPlaces, tally: DomainTally
) -> Mapping[PodAffinityTerm, set[Domain]]:
    """Return, for terms that count their own carriers, the domains where counted pods run, or else the one domain that
    the carriers are in. Where some gave the term up, that is the domain that lets most of the others keep it."""
    found: dict[PodAffinityTerm, set[Domain]] = {}
    keeping: dict[PodAffinityTerm, dict[Domain, int]] = defaultdict(lambda: defaultdict(int))
    for constraint in constraints:
        term, index = constraint.term, constraint.pod_class
        if term is None or constraint.rule is not Rule.AFFINITY or not tally.counts(term, places.specs[index]):
            continue
        if term not in found:
            found[term] = _running(term, tally)
        pods: dict[Domain, int] = defaultdict(int)
        for place in places.of_class[index]:
            domain = place.domain(term.topology_key)
            if domain is not None:
                # Over hostnames each node of a batch is a domain, and only one of them can serve.
                pods[domain] += place.pods[index] * (1 if domain == place.index else place.count)
        for domain, count in pods.items():
            keeping[term][domain] += min(count, constraint.kept)
    for term, domains in found.items():
        if not domains and keeping[term]:
            domains.add(max(keeping[term], key=lambda domain: (keeping[term][domain], str(domain))))
    return found


def _running(term: PodAffinityTerm, tally: DomainTally) -> set[Domain]:
    return {domain for domain, (_, running) in tally.of(term).items() if running}


class Judge:
    """Finds the places that break a constraint. `constraints` are those of all classes that the plan places."""

    def __init__(self, problem: Problem, places: CheckedPlaces, constraints: Sequence[CheckedConstraint]) -> None:
        self._problem, self._places = problem, places
        between = [constraint for constraint in constraints if constraint.term is not None]
        terms = {constraint.term for constraint in between if constraint.term is not None}
        specs = {id(running.spec): running.spec for place in places.all for running in place.running}
        self._guards = {number: spec for number, spec in specs.items() if spec.pod_anti_affinity}
        """Running pods with required anti-affinity."""
        terms.update(term for spec in self._guards.values() for term in spec.pod_anti_affinity)
        self._tally = DomainTally(places, terms)
        self._own = serving_own(between, places, self._tally)
        self._domains: dict[object, frozenset[str]] = {}
        self._seen: dict[str, frozenset[tuple[int, str]]] = {}
        self._discouraged = any(
            taint.effect is TaintEffect.PREFER_NO_SCHEDULE for place in places.all for taint in place.where.taints
        )

    def broken(self, constraint: CheckedConstraint) -> Iterator[tuple[CheckedNodes, int]]:
        """Yield places of the constraint's class, with how many of its pods break the constraint there."""
        where = self._places.of_class[constraint.pod_class]
        if constraint.term is None:
            if constraint.rule is Rule.NODES or self._discouraged:
                yield from self._broken_by_node(constraint, where)
            return
        allowed = self._allowed(constraint, constraint.term)
        verdicts: dict[Domain | None, bool] = {}
        key = constraint.term.topology_key
        for place in where:
            domain = place.domain(key)
            if domain not in verdicts:
                verdicts[domain] = allowed(domain) if domain is not None else constraint.rule is Rule.ANTI_AFFINITY
            if not verdicts[domain]:
                yield place, _pods(constraint, place)
            elif place.count > 1 and key == HOSTNAME and self.has_one_domain(constraint):
                yield place, _pods(constraint, place) - place.pods[constraint.pod_class]

    def has_one_domain(self, constraint: CheckedConstraint) -> bool:
        """Return whether all pods that keep the constraint must be in one domain, of their own choice."""
        return (
            constraint.rule is Rule.AFFINITY
            and constraint.term is not None
            and self._tally.counts(constraint.term, self._places.specs[constraint.pod_class])
            and not any(running for _, running in self._tally.of(constraint.term).values())
        )

    def of_running_pods(self) -> Iterator[str]:
        """Yield one sentence per domain in which planned pods break the anti-affinity of a running pod."""
        where: dict[int, list[CheckedNodes]] = defaultdict(list)
        for place in self._places.all if self._guards else ():
            for running in place.running:
                if id(running.spec) in self._guards:
                    where[id(running.spec)].append(place)
        for number, spec in self._guards.items():
            for term in spec.pod_anti_affinity:
                sums = self._tally.of(term)
                for place in where[number] if sums else ():
                    domain = place.domain(term.topology_key)
                    planned = sums[domain][0] if domain in sums else 0
                    if planned:
                        yield (
                            f"{planned} planned pods share a domain of {term.topology_key} with a pod that runs on"
                            f" {place} and does not allow it"
                        )

    def _broken_by_node(
        self, constraint: CheckedConstraint, where: Sequence[CheckedNodes]
    ) -> Iterator[tuple[CheckedNodes, int]]:
        """Yield places that break a preference about nodes."""
        sights = self._places.sights
        verdicts: dict[int, bool] = {}
        for place in where:
            sight = sights.of(place.where)
            if sight not in verdicts:
                if constraint.nodes is not None:
                    verdicts[sight] = sights.preferred(constraint.nodes, sight)
                else:
                    verdicts[sight] = sights.tolerated(constraint.pod_class, sight, TaintEffect.PREFER_NO_SCHEDULE)
            if not verdicts[sight]:
                yield place, _pods(constraint, place)

    def _allowed(self, constraint: CheckedConstraint, term: PodAffinityTerm) -> Callable[[Domain], bool]:
        """Return a predicate: the domains that satisfy the constraint."""
        own = self._tally.counts(term, self._places.specs[constraint.pod_class])
        sums = self._tally.of(term)
        if constraint.rule is Rule.AFFINITY:
            serving = self._own[term] if own else {domain for domain, pods in sums.items() if any(pods)}
            return lambda domain: domain in serving
        if constraint.rule is Rule.ANTI_AFFINITY:
            return lambda domain: sum(sums.get(domain, (0, 0))) - own <= 0
        assert constraint.spread is not None
        spread, spec = constraint.spread, self._places.specs[constraint.pod_class]
        found = self._spread_counts(term, spread, spec)
        most = spread.max_skew + self._emptiest(constraint, spread, found)
        return lambda domain: found.get(domain, 0) <= most

    def _spread_counts(self, term: PodAffinityTerm, spread: TopologySpread, spec: PodSpec) -> Mapping[Domain, int]:
        """Return the counted pods by domain, of nodes that count: planned ones, and running ones that stay."""
        found: Counter[Domain] = Counter()
        counted, keys = self._tally.counted_classes(term), hard_keys(spec)
        for place in self._places.all:
            domain = place.domain(term.topology_key)
            if domain is None or not includes(spread, spec, keys, place.where, place.name):
                continue
            nodes = 1 if domain == place.index else place.count
            found[domain] += nodes * sum(place.pods.get(index, 0) for index in counted)
            for running in place.running:
                if not running.ending and self._tally.counts(term, running.spec):
                    found[domain] += running.count
        return found

    def _emptiest(self, constraint: CheckedConstraint, spread: TopologySpread, sums: Mapping[Domain, int]) -> int:
        """Return the number of counted pods in the emptiest domain."""
        if spread.topology_key == HOSTNAME:
            return 0  # a new node is always an empty domain
        domains = self._domains_of(constraint, spread)
        return min((sums.get(domain, 0) for domain in domains), default=0)

    def _domains_of(self, constraint: CheckedConstraint, spread: TopologySpread) -> frozenset[str]:
        """Return the domains of existing nodes and of groups that may have one more node, less those that the spread's
        policies exclude."""
        spec = self._places.specs[constraint.pod_class]
        key = (
            spread.topology_key,
            (spec.node_selector, spec.affinity) if spread.honor_node_affinity else None,
            spec.tolerations if spread.honor_node_taints else None,
        )
        if key not in self._domains:
            sights = self._places.sights
            self._domains[key] = frozenset(
                domain
                for sight, domain in self._possible(spread.topology_key)
                if (not spread.honor_node_affinity or sights.selected(constraint.pod_class, sight))
                and (not spread.honor_node_taints or sights.tolerated(constraint.pod_class, sight))
            )
        return self._domains[key]

    def _possible(self, key: str) -> frozenset[tuple[int, str]]:
        """Return (number of the node in `Sights`, its domain)."""
        if key not in self._seen:
            able: list[NodeGroup | Node] = [each for each in self._problem.node_groups if self._may_grow(each)]
            able.extend(self._problem.nodes)
            sights = self._places.sights
            self._seen[key] = frozenset((sights.of(each), each.labels[key]) for each in able if key in each.labels)
        return self._seen[key]

    def _may_grow(self, group: NodeGroup) -> bool:
        return group.target_size < group.max_size and all(
            limit.used.get(name, 0) + amount <= limit.maxima.get(name, math.inf)
            for limit in self._problem.limits
            for name, amount in limit.counted(group).items()
            if amount
        )


def _pods(constraint: CheckedConstraint, place: CheckedNodes) -> int:
    return place.count * place.pods[constraint.pod_class]


def faults_between_pods(problem: Problem, plan: Plan, places: CheckedPlaces) -> Iterator[str]:
    """Yield one sentence per broken constraint, and per class that keeps fewer preferences than the plan reports."""
    yield from faults_in_the_end(problem, plan, places)
    for (index, at), pods in stuck(problem, places, [cls.priority for cls in plan.pod_classes]).items():
        constraints = constraints_of(index, places.specs[index], places.placed[index], ())
        asked = ", ".join(str(each) for each in constraints if each.rank is None)
        yield f"{places.all[at]}: no order of placing pods gets {pods} of class {index} there, which has {asked}"


def faults_in_the_end(problem: Problem, plan: Plan, places: CheckedPlaces) -> Iterator[str]:
    """Yield the same, but for required spreads and affinity: whether the scheduler gets there is another question."""
    given_up: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for relaxed in plan.relaxed:
        given_up[relaxed.pod_class].append((len(relaxed.preferences), relaxed.count))
    constraints = {
        index: constraints_of(index, spec, places.placed[index], given_up.get(index, ()))
        for index, spec in enumerate(places.specs)
        if places.placed[index] > 0
    }
    yield from _relaxed(places, constraints, given_up)
    judge = Judge(problem, places, [constraint for mine in constraints.values() for constraint in mine])
    for index, mine in constraints.items():
        for constraint in mine:
            if constraint.rank is None and constraint.rule is Rule.ANTI_AFFINITY:
                for place, _ in judge.broken(constraint):
                    yield f"{place}: class {index} breaks its {constraint}"
        yield from _preferences(
            places.placed[index], [constraint for constraint in mine if constraint.rank is not None], judge
        )
    yield from judge.of_running_pods()


def _relaxed(
    places: CheckedPlaces,
    constraints: Mapping[int, Sequence[CheckedConstraint]],
    given_up: Mapping[int, Sequence[tuple[int, int]]],
) -> Iterator[str]:
    """Yield what is inconsistent in the reported relaxations."""
    for index, reported in given_up.items():
        most = sum(constraint.rank is not None for constraint in constraints.get(index, ()))
        for depth, count in reported:
            if count < 1 or not 1 <= depth <= most:
                yield f"relaxed: {count} pods of class {index} give up {depth} of {most} preferences"
        if sum(count for _, count in reported) > places.placed[index]:
            yield f"relaxed: more pods of class {index} than are placed"


def _preferences(placed: int, preferences: Sequence[CheckedConstraint], judge: Judge) -> Iterator[str]:
    """Check `preferences`, which are in the order in which they are given up."""
    last: dict[int, tuple[int, CheckedConstraint]] = {}
    """Place -> pods there, the last preference that they cannot keep."""
    for constraint in preferences:
        broken = [(place, pods) for place, pods in judge.broken(constraint)]
        given_up = placed - constraint.kept
        if given_up and judge.has_one_domain(constraint):
            # The plan does not report which domain serves: only the number of pods can be checked.
            if sum(pods for _, pods in broken) > given_up:
                yield _too_few(constraint, sum(pods for _, pods in broken), given_up)
            continue
        for place, pods in broken:
            last[place.index] = (pods, constraint)
    for constraint in preferences:
        losing = [(pods, deepest) for pods, deepest in last.values() if (deepest.rank or 0) >= (constraint.rank or 0)]
        needed = sum(pods for pods, _ in losing)
        if needed > placed - constraint.kept:
            yield _too_few(losing[0][1], needed, placed - constraint.kept)


def _too_few(constraint: CheckedConstraint, needed: int, given_up: int) -> str:
    return (
        f"class {constraint.pod_class}: {needed} pods cannot keep their {constraint}, or a later preference,"
        f" but only {given_up}"
        " are reported to have given up so much"
    )
