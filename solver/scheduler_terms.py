"""What pods ask of other pods, as the kube-scheduler counts it: terms, what a pod adds to each, and what each class
asks of them. Names and amounts only; `scheduler_tables` lays them out over nodes.

Everything between pods is a count over the domains of a topology key: of pods that a selector matches, of pods that
carry a term, of host ports that collide. A pod is kept away by some, needs others, and likes or dislikes the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from solver.eligibility import ports_collide, required_affinity, selects
from solver.model import (
    HOSTNAME,
    HostPort,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    TopologySpread,
    WhenUnsatisfiable,
)

ZONE = "topology.kubernetes.io/zone"
_DEFAULT_SPREAD = ((HOSTNAME, 3), (ZONE, 5))
"""The scheduler's own constraints (topology key, maxSkew) for pods without any, all ScheduleAnyway."""
_REQUIRED_WEIGHT = 1
"""What a pod's required affinity counts as a preference of others (hardPodAffinityWeight)."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The nodes that a spread looks at: those that its pods may run on by affinity and by taints, as far as it honours
    them, with all of the labels. Equal for classes that look at the same ones."""

    affinity: object
    tolerations: object
    keys: tuple[str, ...]
    pod_class: int = field(compare=False)
    """An example."""


@dataclass(frozen=True, slots=True)
class Term:
    """Pods counted over the domains of `key`, on the nodes of `mask` only where there is one."""

    key: str
    mask: Mask | None
    adds: Mapping[int, int]
    """Member -> what one of its pods adds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a class asks of terms (their numbers)."""

    rejects: tuple[tuple[int], ...]
    needs: tuple[tuple[int], ...]
    first: bool
    """Whether it may go anywhere while no pod that it needs is anywhere."""
    hard: tuple[tuple[int, int, int, int], ...]
    """Term, maxSkew, minDomains, whether it counts itself."""
    soft: tuple[tuple[int, int], ...]
    """Term, maxSkew."""
    strict: bool
    """Whether nodes without all keys of `soft` are passed over."""
    likes: tuple[tuple[int, int], ...]
    """Term, weight."""


@dataclass(frozen=True, slots=True)
class Between:
    """All terms, and what each class asks."""

    terms: tuple[Term, ...]
    asked: tuple[Asked, ...]


def between(classes: Sequence[PodSpec], others: Sequence[PodSpec], *, default_spread: bool) -> Between:
    """`others` are pods that run already; with the classes they are the members, in this order. With `default_spread`
    each class is taken for the pods of one controller (a ReplicaSet, say), over which the scheduler spreads them."""
    members = _Members((*classes, *others))
    found = _Terms(members)
    rejected, liked = _of_others(members, found)
    asked = tuple(
        Asked(
            (*_rejects(spec, found), *rejected[number]),
            tuple((found.counting(t.selector, t.topology_key),) for t in required_affinity(spec)),
            all(selects(t.selector, spec.namespace, dict(spec.labels)) for t in required_affinity(spec)),
            tuple(_hard(number, spec, found)),
            tuple(_soft(number, spec, found, default_spread=default_spread)),
            bool(spec.topology_spread),
            (*_likes(spec, found), *liked[number]),
        )
        for number, spec in enumerate(classes)
    )
    return Between(tuple(found.all), asked)


def _rejects(spec: PodSpec, found: _Terms) -> Iterator[tuple[int]]:
    for term in spec.pod_anti_affinity:
        yield (found.counting(term.selector, term.topology_key),)
    for port in spec.host_ports:
        yield (found.port(port),)


def _likes(spec: PodSpec, found: _Terms) -> Iterator[tuple[int, int]]:
    for preferred in spec.preferred_pods:
        term = found.counting(preferred.term.selector, preferred.term.topology_key)
        yield term, -preferred.weight if preferred.anti else preferred.weight


def _hard(number: int, spec: PodSpec, found: _Terms) -> Iterator[tuple[int, int, int, int]]:
    for spread, selector, mask in _spreads(number, spec, WhenUnsatisfiable.DO_NOT_SCHEDULE):
        itself = selects(selector, spec.namespace, dict(spec.labels))
        yield found.counting(selector, spread.topology_key, mask), spread.max_skew, spread.min_domains, int(itself)


def _soft(number: int, spec: PodSpec, found: _Terms, *, default_spread: bool) -> Iterator[tuple[int, int]]:
    for spread, selector, mask in _spreads(number, spec, WhenUnsatisfiable.SCHEDULE_ANYWAY):
        # Over hostnames the scheduler counts whatever is on the node.
        seen = None if spread.topology_key == HOSTNAME else mask
        yield found.counting(selector, spread.topology_key, seen), spread.max_skew
    if default_spread and not spec.topology_spread:
        for key, skew in _DEFAULT_SPREAD:
            yield found.own(number, key), skew


def _spreads(
    number: int, spec: PodSpec, when: WhenUnsatisfiable
) -> Iterator[tuple[TopologySpread, PodSelector, Mask]]:  # fmt: skip
    """Only pods of the carrier's own namespace are counted."""
    spreads = [spread for spread in spec.topology_spread if spread.when_unsatisfiable is when]
    keys = tuple(sorted({spread.topology_key for spread in spreads}))
    for spread in spreads:
        affinity = (spec.node_selector, spec.affinity) if spread.honor_node_affinity else None
        tolerations = spec.tolerations if spread.honor_node_taints else None
        selector = replace(spread.selector, namespaces=(spec.namespace,))
        yield spread, selector, Mask(affinity, tolerations, keys, number)


def _of_others(
    members: _Members, found: _Terms
) -> tuple[dict[int, list[tuple[int]]], dict[int, list[tuple[int, int]]]]:
    """What pods that are there ask of those that come: anti-affinity keeps them away, the rest is liked or disliked."""
    guards: dict[PodAffinityTerm, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    wishes: dict[PodAffinityTerm, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, spec in enumerate(members.specs):
        for term in spec.pod_anti_affinity:
            guards[term][number] += 1
        for term in spec.pod_affinity:
            wishes[term][number] += _REQUIRED_WEIGHT
        for preferred in spec.preferred_pods:
            wishes[preferred.term][number] += -preferred.weight if preferred.anti else preferred.weight
    rejected: dict[int, list[tuple[int]]] = defaultdict(list)
    liked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for term, carriers in guards.items():
        for number in members.selected(term.selector):
            rejected[number].append((found.carrying("guards", term, carriers),))
    for term, carriers in wishes.items():
        for number in members.selected(term.selector):
            liked[number].append((found.carrying("wishes", term, carriers), 1))
    return rejected, liked


class _Members:
    """All pods that can be counted. Those that no selector can tell apart are asked once."""

    def __init__(self, specs: Sequence[PodSpec]) -> None:
        self.specs = specs
        self._alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
        for number, spec in enumerate(specs):
            self._alike[spec.namespace, spec.labels].append(number)
        self.selected: Callable[[PodSelector], tuple[int, ...]] = cache(self._selected)

    def _selected(self, selector: PodSelector) -> tuple[int, ...]:
        chosen = (
            mine for (namespace, labels), mine in self._alike.items() if selects(selector, namespace, dict(labels))
        )
        return tuple(number for mine in chosen for number in mine)


class _Terms:
    """Every term once."""

    def __init__(self, members: _Members) -> None:
        self.all: list[Term] = []
        self._members = members
        self._numbers: dict[Hashable, int] = {}

    def counting(self, selector: PodSelector, key: str, mask: Mask | None = None) -> int:
        return self._number(
            (selector, key, mask), key, mask, lambda: dict.fromkeys(self._members.selected(selector), 1)
        )

    def port(self, port: HostPort) -> int:
        """Pods that hold a port which collides with this one."""
        specs = self._members.specs
        return self._number(
            port,
            HOSTNAME,
            None,
            lambda: {n: 1 for n, spec in enumerate(specs) if any(ports_collide(port, p) for p in spec.host_ports)},
        )

    def own(self, number: int, key: str) -> int:
        return self._number((number, key), key, None, lambda: {number: 1})

    def carrying(self, what: str, term: PodAffinityTerm, carriers: Mapping[int, int]) -> int:
        return self._number((what, term), term.topology_key, None, lambda: carriers)

    def _number(self, name: Hashable, key: str, mask: Mask | None, adds: Callable[[], Mapping[int, int]]) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.all)
            self.all.append(Term(key, mask, adds()))
        return self._numbers[name]
