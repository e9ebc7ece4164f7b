"""The checker's part for pods and other pods, and for preferences: which places break which claim of a class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from solver.model import HOSTNAME, Node, NodeGroup, PodAffinityTerm, Problem, TaintEffect, TopologySpread
from solver.verify.affinity import serving_others, serving_own
from solver.verify.claims import CheckedConstraint, Rule
from solver.verify.places import CheckedNodes, CheckedPlaces, Domain
from solver.verify.tally import DomainTally


class Judge:
    """Says which places break a claim. `claims` are those of all classes that the plan places."""

    def __init__(self, problem: Problem, places: CheckedPlaces, claims: Sequence[CheckedConstraint]) -> None:
        self._problem, self._places = problem, places
        between = [claim for claim in claims if claim.term is not None]
        terms = {claim.term for claim in between if claim.term is not None}
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

    def broken(self, claim: CheckedConstraint) -> Iterator[tuple[CheckedNodes, int]]:
        """Places of the claim's class, and how many of its pods do not keep the claim there."""
        where = self._places.of_class[claim.pod_class]
        if claim.term is None:
            if claim.rule is Rule.NODES or self._discouraged:
                yield from self._broken_by_node(claim, where)
            return
        allowed = self._allowed(claim, claim.term)
        verdicts: dict[Domain | None, bool] = {}
        key = claim.term.topology_key
        for place in where:
            domain = place.domain(key)
            if domain not in verdicts:
                verdicts[domain] = allowed(domain) if domain is not None else claim.rule is Rule.ANTI_AFFINITY
            if not verdicts[domain]:
                yield place, _pods(claim, place)
            elif place.count > 1 and key == HOSTNAME and self.has_one_domain(claim):
                yield place, _pods(claim, place) - place.pods[claim.pod_class]

    def has_one_domain(self, claim: CheckedConstraint) -> bool:
        """Whether all pods that keep the claim are in one domain, and choose which one."""
        return (
            claim.rule is Rule.AFFINITY
            and claim.term is not None
            and self._tally.counts(claim.term, self._places.specs[claim.pod_class])
            and not any(running for _, running in self._tally.of(claim.term).values())
        )

    def of_running_pods(self) -> Iterator[str]:
        """Planned pods in a domain that a running pod keeps for itself."""
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
        self, claim: CheckedConstraint, where: Sequence[CheckedNodes]
    ) -> Iterator[tuple[CheckedNodes, int]]:
        """Preferences about nodes."""
        sights = self._places.sights
        verdicts: dict[int, bool] = {}
        for place in where:
            sight = sights.of(place.where)
            if sight not in verdicts:
                if claim.nodes is not None:
                    verdicts[sight] = sights.preferred(claim.nodes, sight)
                else:
                    verdicts[sight] = sights.tolerated(claim.pod_class, sight, TaintEffect.PREFER_NO_SCHEDULE)
            if not verdicts[sight]:
                yield place, _pods(claim, place)

    def _allowed(self, claim: CheckedConstraint, term: PodAffinityTerm) -> Callable[[Domain], bool]:
        """Which domains keep the claim."""
        own = self._tally.counts(term, self._places.specs[claim.pod_class])
        sums = self._tally.of(term)
        if claim.rule is Rule.AFFINITY:
            serving = (self._own if own else self._others)[term]
            return lambda domain: domain in serving
        if claim.rule is Rule.ANTI_AFFINITY:
            return lambda domain: sum(sums.get(domain, (0, 0))) - own <= 0
        assert claim.spread is not None
        most = claim.spread.max_skew + self._emptiest(claim, claim.spread, sums)
        return lambda domain: sum(sums.get(domain, (0, 0))) <= most

    def _emptiest(self, claim: CheckedConstraint, spread: TopologySpread, sums: dict[Domain, list[int]]) -> int:
        """Counted pods of the emptiest domain."""
        if spread.topology_key == HOSTNAME:
            return 0  # an empty node can always be had
        domains = self._domains_of(claim, spread)
        if len(domains) < spread.min_domains or len(sums) < len(domains):
            return 0
        return min((sum(sums.get(domain, (0, 0))) for domain in domains), default=0)

    def _domains_of(self, claim: CheckedConstraint, spread: TopologySpread) -> frozenset[str]:
        """Domains of nodes that stand and of groups below their maximum, less those that the spread's policies pass
        over."""
        spec = self._places.specs[claim.pod_class]
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
                if (not spread.honor_node_affinity or sights.selected(claim.pod_class, sight))
                and (not spread.honor_node_taints or sights.tolerated(claim.pod_class, sight))
            )
        return self._domains[key]

    def _possible(self, key: str) -> frozenset[tuple[int, str]]:
        """(What is to be seen of a node, its domain)."""
        if key not in self._seen:
            able: list[NodeGroup | Node] = [g for g in self._problem.node_groups if g.target_size < g.max_size]
            able.extend(self._problem.nodes)
            sights = self._places.sights
            self._seen[key] = frozenset((sights.of(each), each.labels[key]) for each in able if key in each.labels)
        return self._seen[key]


def _pods(claim: CheckedConstraint, place: CheckedNodes) -> int:
    return place.count * place.pods[claim.pod_class]
