"""The checker's part for constraints between pods, and for preferences: which places break which constraint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from solver.model import HOSTNAME, Node, NodeGroup, PodAffinityTerm, Problem, TaintEffect, TopologySpread
from solver.verify.affinity import serving_others, serving_own
from solver.verify.claims import CheckedConstraint, Rule
from solver.verify.places import CheckedNodes, CheckedPlaces, Domain
from solver.verify.tally import DomainTally


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
        self._tally = DomainTally(places, specs.values(), terms)
        self._others = serving_others(between, places, self._tally)
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
            serving = (self._own if own else self._others)[term]
            return lambda domain: domain in serving
        if constraint.rule is Rule.ANTI_AFFINITY:
            return lambda domain: sum(sums.get(domain, (0, 0))) - own <= 0
        assert constraint.spread is not None
        most = constraint.spread.max_skew + self._emptiest(constraint, constraint.spread, sums)
        return lambda domain: sum(sums.get(domain, (0, 0))) <= most

    def _emptiest(self, constraint: CheckedConstraint, spread: TopologySpread, sums: dict[Domain, list[int]]) -> int:
        """Return the number of counted pods in the emptiest domain."""
        if spread.topology_key == HOSTNAME:
            return 0  # a new node is always an empty domain
        domains = self._domains_of(constraint, spread)
        if len(domains) < spread.min_domains or len(sums) < len(domains):
            return 0
        return min((sum(sums.get(domain, (0, 0))) for domain in domains), default=0)

    def _domains_of(self, constraint: CheckedConstraint, spread: TopologySpread) -> frozenset[str]:
        """Return the domains of existing nodes and of groups below their maximum, less those that the spread's policies
        exclude."""
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
            able: list[NodeGroup | Node] = [g for g in self._problem.node_groups if g.target_size < g.max_size]
            able.extend(self._problem.nodes)
            sights = self._places.sights
            self._seen[key] = frozenset((sights.of(each), each.labels[key]) for each in able if key in each.labels)
        return self._seen[key]


def _pods(constraint: CheckedConstraint, place: CheckedNodes) -> int:
    return place.count * place.pods[constraint.pod_class]
