"""The checker's part for pod affinity: which domains serve the carriers of a term. An end counts only if somebody can
be first (`docs/reference/constraints.md`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from solver.model import PodAffinityTerm
from solver.verify.claims import CheckedConstraint, Rule
from solver.verify.places import CheckedNodes, CheckedPlaces, Domain
from solver.verify.tally import DomainTally

Serving = Mapping[PodAffinityTerm, set[Domain]]
_Needs = Mapping[int, list[tuple[str, set[Domain]]]]
"""Class -> topology key and domains that serve."""


def serving_others(claims: Sequence[CheckedConstraint], places: CheckedPlaces, tally: DomainTally) -> Serving:
    """For terms that do not count their own carriers: domains with a counted pod that runs there, or is planned and
    does not wait for those that wait for it. Found by placing pods as long as one more can be placed: what this lets
    pass can be reached, whether or not the classes need each other in a circle elsewhere."""
    served: dict[PodAffinityTerm, set[Domain]] = {}
    waits: dict[int, list[tuple[str, set[Domain]]]] = defaultdict(list)
    for claim in claims:
        term = claim.term
        if term is None or claim.rule is not Rule.AFFINITY or tally.counts(term, places.specs[claim.pod_class]):
            continue
        if term not in served:
            served[term] = _running(term, tally)
        if claim.rank is None:  # nobody waits for the sake of a preference
            waits[claim.pod_class].append((term.topology_key, served[term]))
    helps: dict[int, list[tuple[str, set[Domain]]]] = defaultdict(list)
    for term, domains in served.items():
        for index in tally.counted_classes(term):
            helps[index].append((term.topology_key, domains))
    _place_all(waits, helps, places)
    return served


def _place_all(waits: _Needs, helps: _Needs, places: CheckedPlaces) -> None:
    """Adds to the domains in `helps` whatever pods can be placed one after the other."""
    left = [(index, place) for index in helps for place in places.of_class[index] if place.pods[index] > 0]
    while left:
        stuck: list[tuple[int, CheckedNodes]] = []
        for index, place in left:
            if all(place.domain(key) in domains for key, domains in waits.get(index, ())):
                for key, domains in helps[index]:
                    domain = place.domain(key)
                    if domain is not None:
                        domains.add(domain)
            else:
                stuck.append((index, place))
        if len(stuck) == len(left):
            return
        left = stuck


def serving_own(claims: Sequence[CheckedConstraint], places: CheckedPlaces, tally: DomainTally) -> Serving:
    """For terms that count their own carriers: the domains where counted pods run, or else the one domain in which the
    carriers are. Where some gave the term up, the one that lets most of the others keep it."""
    found: dict[PodAffinityTerm, set[Domain]] = {}
    keeping: dict[PodAffinityTerm, dict[Domain, int]] = defaultdict(lambda: defaultdict(int))
    for claim in claims:
        term, index = claim.term, claim.pod_class
        if term is None or claim.rule is not Rule.AFFINITY or not tally.counts(term, places.specs[index]):
            continue
        if term not in found:
            found[term] = _running(term, tally)
        pods: dict[Domain, int] = defaultdict(int)
        for place in places.of_class[index]:
            domain = place.domain(term.topology_key)
            if domain is not None:
                # Over hostnames the nodes of a batch are as many domains, and only one of them can be the one.
                pods[domain] += place.pods[index] * (1 if domain == place.index else place.count)
        for domain, count in pods.items():
            keeping[term][domain] += min(count, claim.kept)
    for term, domains in found.items():
        if not domains and keeping[term]:
            domains.add(max(keeping[term], key=lambda domain: (keeping[term][domain], str(domain))))
    return found


def _running(term: PodAffinityTerm, tally: DomainTally) -> set[Domain]:
    return {domain for domain, (_, running) in tally.of(term).items() if running}
