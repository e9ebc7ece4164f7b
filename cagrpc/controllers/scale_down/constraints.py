"""What pods require of other pods, as far as it decides where pods that move may go. Pure.

A constraint over hostnames is decided by each node by itself; the others are the planner's (`solver.reduction`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from cagrpc.api.core.selectors import PodIdentity, SelectorsByLabel
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, PodSpec, TopologySpread
from solver.model.eligibility import any_ports_collide, selects

_UNLIMITED = 10**9
"""More pods than any node has room for."""


def is_constrained_by_others(spec: PodSpec) -> bool:
    """Return whether it has required pod affinity or anti-affinity, or any topology spread, a `ScheduleAnyway` one too.
    Of specs without preferences only `DoNotSchedule` ones are left."""
    return bool(spec.pod_affinity or spec.pod_anti_affinity or spec.topology_spread)


def decided_by_node(spec: PodSpec) -> bool:
    """Return whether each node by itself decides if a spec's required constraints between pods let it in: it has none,
    or only such over hostnames that keep pods apart."""
    return not spec.pod_affinity and not domain_keys([spec])


def domain_keys(specs: Iterable[PodSpec]) -> set[str]:
    """Return the topology keys of the terms of specs without preferences, but for hostnames."""
    found: set[str] = set()
    for each in specs:
        found.update(term.topology_key for term in (*each.pod_affinity, *each.pod_anti_affinity))
        found.update(spread.topology_key for spread in each.topology_spread)
    return found - {HOSTNAME}


def keys_kept_out_of(spec: PodSpec) -> set[str]:
    """Return the topology keys of its anti-affinity, without hostnames."""
    return {term.topology_key for term in kept_out_of_domains(spec)}


def kept_out_of_domains(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    """Yield its anti-affinity that reaches beyond its own node."""
    return (term for term in spec.pod_anti_affinity if term.topology_key != HOSTNAME)


def most_beside(spec: PodSpec, running: Sequence[tuple[PodSpec, int]], assumed: Sequence[tuple[PodSpec, int]]) -> int:
    """Return how many pods of the spec a node takes beside these, by constraints over hostnames and by host ports. The
    topology spread of pods that run does not keep others out; that of pods that are assumed does, since these may be
    bound later."""
    if any(keep_apart(spec, other) for other, _ in (*running, *assumed)):
        return 0
    most = 1 if keep_apart(spec, spec) else _UNLIMITED
    for spread in _over_hosts(spec):
        there = _counted(spread, spec, running) + _counted(spread, spec, assumed)
        if counts(spread, spec, spec):
            most = min(most, spread.max_skew - there)
        elif there > spread.max_skew:
            return 0
    for other, _ in assumed:
        for spread in _over_hosts(other):
            if counts(spread, other, spec):
                there = _counted(spread, other, running) + _counted(spread, other, assumed)
                most = min(most, spread.max_skew - there)
    return max(0, most)


def full_at(spec: PodSpec) -> Iterator[tuple[TopologySpread, int]]:
    """Yield the topology spread over hostnames of a spec, each with how many counted pods leave no room on a node."""
    for spread in _over_hosts(spec):
        yield spread, spread.max_skew + (not counts(spread, spec, spec))


def has_partners(spec: PodSpec) -> bool:
    """Return whether it has affinity over hostnames."""
    return any(term.topology_key == HOSTNAME for term in spec.pod_affinity)


def is_partner(other: PodSpec, spec: PodSpec) -> bool:
    """Return whether that affinity selects the other."""
    return any(term.topology_key == HOSTNAME and _selects(term, other) for term in spec.pod_affinity)


def keep_apart(one: PodSpec, other: PodSpec) -> bool:
    """Return whether two pods cannot share a node, by anti-affinity or host ports."""
    if not (one.pod_anti_affinity or other.pod_anti_affinity or one.host_ports):
        return False
    return (
        any(term.topology_key == HOSTNAME and _selects(term, other) for term in one.pod_anti_affinity)
        or any(term.topology_key == HOSTNAME and _selects(term, one) for term in other.pod_anti_affinity)
        or any_ports_collide(one, other)
    )


def _over_hosts(spec: PodSpec) -> Iterator[TopologySpread]:
    for each in spec.topology_spread:
        if each.topology_key == HOSTNAME and each.is_required:
            yield each


def _counted(spread: TopologySpread, carrier: PodSpec, pods: Iterable[tuple[PodSpec, int]]) -> int:
    return sum(count for other, count in pods if counts(spread, carrier, other))


def counts(spread: TopologySpread, carrier: PodSpec, other: PodSpec) -> bool:
    """Return whether the carrier's topology spread counts the other: only pods of the carrier's namespace are."""
    return carrier.namespace == other.namespace and _matches(PodSelector(spread.selector.match_expressions), other)


def _selects(term: PodAffinityTerm, other: PodSpec) -> bool:
    return _matches(term.selector, other)


def _matches(selector: PodSelector, spec: PodSpec) -> bool:
    if selector.namespaces is not None and spec.namespace not in selector.namespaces:
        return False
    return selects(selector, spec.namespace, dict(spec.labels))


def identity_of(spec: PodSpec) -> PodIdentity:
    """Return the pod as selectors see it, as far as its spec says."""
    return PodIdentity(spec.namespace, dict(spec.labels))


class Relevance:
    """Which of the pods that run can make a difference to where pods of some specs without preferences may go."""

    def __init__(self, specs: Collection[PodSpec]) -> None:
        self._specs = specs
        self._selectors = SelectorsByLabel(
            term.selector for each in specs for term in (*each.pod_affinity, *each.pod_anti_affinity)
        )
        self._with: dict[tuple[str, str], list[PodSpec]] = defaultdict(list)
        """Specs by label."""
        for each in specs:
            for spread in each.topology_spread:
                self._selectors.add(PodSelector(spread.selector.match_expressions, (each.namespace,)))
            for label in each.labels:
                self._with[label].append(each)
        self._known: dict[int, bool] = {}

    def of(self, spec: PodSpec) -> bool:
        """Return whether a pod of this spec, which must stay in memory, does."""
        if id(spec) not in self._known:
            self._known[id(spec)] = (
                self._selectors.is_matched(identity_of(spec)) or self._keeps_out(spec) or self._takes_port(spec)
            )
        return self._known[id(spec)]

    def _keeps_out(self, spec: PodSpec) -> bool:
        for term in spec.pod_anti_affinity:
            label = _label_of_all(term.selector)
            if any(_selects(term, other) for other in (self._specs if label is None else self._with.get(label, ()))):
                return True
        return False

    def _takes_port(self, spec: PodSpec) -> bool:
        return bool(spec.host_ports) and any(any_ports_collide(spec, other) for other in self._specs)


def _label_of_all(selector: PodSelector) -> tuple[str, str] | None:
    """Return a label that all pods of the selector have, where it names one."""
    for each in selector.match_expressions or ():
        if each.operator is Operator.IN and len(each.values) == 1:
            return each.key, each.values[0]
    return None
