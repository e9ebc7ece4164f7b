"""What keeps placeholders from nodes beside resources: selectors and taints, and, of mirrors, host ports
and terms over other pods, running ones and placeholders alike. A part of `slack_placement`. Semantics are the planner's
(docs/reference/constraints.md), as placeholders are put one after the other; preferences are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from solver.model import HOSTNAME, Node, PodSpec, Toleration
from solver.model.eligibility import node_label_keys, ports_collide, read_node_names, why_not_eligible
from solver.reduction.terms import Sort, Term, is_host, terms_of
from solver.slack.model import SlackShape

NO_BOUND = 2**62
_EVERYTHING = (Toleration(operator="Exists"),)

_Effect = Sequence[tuple[str, Counter[str]]]
"""What a pod of one spec does to the counts, wherever it is: topology key, and the count over its domains."""


class Eligible:
    """Whether a shape may be on a node at all. Nodes that a shape cannot distinguish are checked once."""

    def __init__(self, shapes: Iterable[SlackShape]) -> None:
        self._keys = {shape.name: _keys(shape.spec) for shape in shapes}
        self._known: dict[object, bool] = {}

    def __call__(self, shape: SlackShape, node: Node) -> bool:
        keys, by_name = self._keys[shape.name]
        seen = tuple([node.labels.get(key) for key in keys])
        question = (shape.name, seen, node.taints, node.name if by_name else "")
        answer = self._known.get(question)
        if answer is None:
            answer = why_not_eligible(shape.spec, node.labels, node.taints, node.name) is None
            self._known[question] = answer
        return answer


def _keys(spec: PodSpec) -> tuple[tuple[str, ...], bool]:
    """Labels of nodes that the pod selects by, and whether it selects by their names."""
    return tuple(sorted(node_label_keys((spec,)))), read_node_names((spec,))


class PlaceholderCoLocation:
    """Who is where, as far as it concerns shapes. Only pods that run are there at first."""

    def __init__(self, shapes: Sequence[SlackShape], nodes: Sequence[Node]) -> None:
        self._shapes = {shape.name: shape for shape in shapes if _looked_at(shape.spec)}
        self._terms = {name: terms_of(shape.spec) for name, shape in self._shapes.items()}
        self._counted = {term: Counter[str]() for terms in self._terms.values() for term in terms}
        """Term of a shape -> domain -> pods that it counts."""
        self._carried: dict[Term, Counter[str]] = {}
        """Anti-affinity of anybody that counts a shape -> domain -> pods that carry it."""
        self._ports = {name: Counter[str]() for name, shape in self._shapes.items() if shape.spec.host_ports}
        """Shape with host ports -> node -> pods there that have one of them."""
        self._effects: dict[str, _Effect] = {}
        self._domains: dict[tuple[str, Term], Sequence[str]] = {}
        if not self._shapes:
            return
        self._learn(nodes)
        self._effects = {name: self._effect(shape.spec) for name, shape in self._shapes.items()}
        self._guards = {
            name: [term for term in self._carried if term.counts(shape.spec)] for name, shape in self._shapes.items()
        }
        for name, terms in self._terms.items():
            for term in terms:
                if term.sort is Sort.SPREAD and not is_host(term):
                    self._domains[name, term] = _domains(self._shapes[name].spec, term, nodes)

    def _learn(self, nodes: Iterable[Node]) -> None:
        """What runs. Equal specs are mostly one object, and hashing them would cost more than all the rest."""
        effects: dict[int, _Effect] = {}
        for node in nodes:
            for running in node.running:
                effect = effects.get(id(running.spec))
                if effect is None:
                    effect = effects[id(running.spec)] = self._effect(running.spec)
                if effect:
                    _apply(effect, node, running.count)

    def _effect(self, spec: PodSpec) -> _Effect:
        found = [(term.key, counter) for term, counter in self._counted.items() if term.counts(spec)]
        found += [
            (term.key, self._carried.setdefault(term, Counter()))
            for term in terms_of(spec)
            if term.sort is Sort.ANTI and any(term.counts(shape.spec) for shape in self._shapes.values())
        ]
        for name, counter in self._ports.items():
            mine = self._shapes[name].spec.host_ports
            if any(ports_collide(one, other) for one in mine for other in spec.host_ports):
                found.append((HOSTNAME, counter))
        return found

    def put(self, shape: SlackShape, node: Node, count: int) -> None:
        """So many more of the shape on the node, or fewer."""
        _apply(self._effects.get(shape.name, ()), node, count)

    def concerns(self, shape: SlackShape) -> bool:
        """Return whether the shape selects other pods, or they it."""
        return shape.name in self._shapes

    def most(self, shape: SlackShape, node: Node) -> int:
        """How many of the shape may come to those that are on the node."""
        if shape.name not in self._shapes:
            return NO_BOUND
        if any(_in_domain(self._carried[term], term, node) for term in self._guards[shape.name]):
            return 0
        bound = NO_BOUND
        if shape.name in self._ports:
            bound = 0 if self._ports[shape.name][node.name] else 1
        for term in self._terms[shape.name]:
            bound = min(bound, self._most_by(term, shape, node))
        return bound

    def _most_by(self, term: Term, shape: SlackShape, node: Node) -> int:
        counted = self._counted[term]
        own = term.counts(shape.spec)
        domain = _domain(term.key, node)
        if term.sort is Sort.ANTI:
            if domain is None:
                return NO_BOUND
            return 0 if counted[domain] else 1 if own else NO_BOUND
        if domain is None:
            return 0
        if term.sort is Sort.AFFINITY:
            first = own and not any(counted.values())  # the first of them may go anywhere
            return NO_BOUND if counted[domain] or first else 0
        spread = term.spread
        assert spread is not None
        others = [counted[other] for other in self._domains.get((shape.name, term), ()) if other != domain]
        if is_host(term) or len(others) + 1 < spread.min_domains:
            least = 0  # an empty host can always come
        elif others:
            least = min(others)
        else:
            return NO_BOUND
        room = spread.max_skew + least - counted[domain]
        return max(0, room) if own else (NO_BOUND if room >= 0 else 0)


def _looked_at(spec: PodSpec) -> bool:
    return bool(spec.namespace or spec.labels or spec.host_ports or terms_of(spec))


def _domain(key: str, node: Node) -> str | None:
    return node.name if key == HOSTNAME else node.labels.get(key)


def _in_domain(counts: Mapping[str, int], term: Term, node: Node) -> int:
    domain = _domain(term.key, node)
    return 0 if domain is None else counts.get(domain, 0)


def _apply(effect: _Effect, node: Node, count: int) -> None:
    for key, counter in effect:
        domain = _domain(key, node)
        if domain is not None:
            counter[domain] += count


def _domains(spec: PodSpec, term: Term, nodes: Iterable[Node]) -> Sequence[str]:
    """Where pods may be spread to."""
    spread = term.spread
    assert spread is not None
    affine = spread.honor_node_affinity
    asks = PodSpec(
        node_selector=spec.node_selector if affine else (),
        affinity=spec.affinity if affine else None,
        tolerations=spec.tolerations if spread.honor_node_taints else _EVERYTHING,
    )
    found: set[str] = set()
    for node in nodes:
        domain = node.labels.get(term.key)
        if domain is None or domain in found:
            continue
        if why_not_eligible(asks, node.labels, node.taints, node.name) is None:
            found.add(domain)
    return sorted(found)
