"""The checker's part for pod affinity: which domains serve the carriers of a term. An end counts only if the scheduler
can reach it pod by pod (`docs/reference/constraints.md`)."""

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


def serving_others(constraints: Sequence[CheckedConstraint], places: CheckedPlaces, tally: DomainTally) -> Serving:
    """Return, for terms that do not count their own carriers, the domains with a counted pod that runs there, or is
    planned and does not wait for those that wait for it. They are found by placing pods as long as one more can be
    placed: what passes here can be reached, whether or not classes need each other in a circle elsewhere."""
    served: dict[PodAffinityTerm, set[Domain]] = {}
    waits: dict[int, list[tuple[str, set[Domain]]]] = defaultdict(list)
    for constraint in constraints:
        term = constraint.term
        if (
            term is None
            or constraint.rule is not Rule.AFFINITY
            or tally.counts(term, places.specs[constraint.pod_class])
        ):
            continue
        if term not in served:
            served[term] = _running(term, tally)
        if constraint.rank is None:  # preferences make no pod wait
            waits[constraint.pod_class].append((term.topology_key, served[term]))
    helps: dict[int, list[tuple[str, set[Domain]]]] = defaultdict(list)
    for term, domains in served.items():
        for index in tally.counted_classes(term):
            helps[index].append((term.topology_key, domains))
    _place_all(waits, helps, places)
    return served


def _place_all(waits: _Needs, helps: _Needs, places: CheckedPlaces) -> None:
    """Add to the domains in `helps` every pod that can be placed one after the other."""
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


def serving_own(constraints: Sequence[CheckedConstraint], places: CheckedPlaces, tally: DomainTally) -> Serving:
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
