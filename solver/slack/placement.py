"""Where placeholders are: they stay where they are unless real pods push them out, and only those that were pushed out,
and the difference between wanted and held, move. How many there are is `slack.amount`'s business, opening nodes for
those that find no place the planner's.

Work grows with shapes x nodes, in arrays, and with what moves; never with pods x nodes. Everything is decided by the
names and contents of nodes, so their order does not matter. What keeps placeholders from nodes beside resources
(selectors and taints, and, of mirrors, host ports and terms over other pods) means what it means to the planner
(docs/reference/constraints.md); preferences are ignored, and devices are found only where any has claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from solver.model import HOSTNAME, PODS, DeviceClaim, Devices, Node, PodSpec
from solver.model.allocation import after_pods, allocate
from solver.model.eligibility import any_ports_collide, counts_domain
from solver.reduction.node_columns import NodeColumns
from solver.reduction.rows import Ints
from solver.reduction.terms import Sort, Term, is_host, terms_of
from solver.slack.model import Placement, Settled, SlackShape

NO_BOUND = 2**62

_Effect = Sequence[tuple[str, Counter[str]]]
"""What a pod of one spec does to the counts, wherever it is: topology key, and the count over its domains."""


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
            if any_ports_collide(self._shapes[name].spec, spec):
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
    """Return the domains that pods may be spread over."""
    spread = term.spread
    assert spread is not None
    found: set[str] = set()
    for node in nodes:
        domain = node.labels.get(term.key)
        if domain is None or domain in found:
            continue
        if counts_domain(spread, spec, node.labels, node.taints, node.name):
            found.add(domain)
    return sorted(found)


_Claims = tuple[DeviceClaim, ...]


class HeldDevices:
    """Claims of placeholders by node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._held: dict[int, Counter[_Claims]] = {}

    def put(self, claims: _Claims, row: int, count: int) -> None:
        """Put so many placeholders with the claims on a node; below 0, take them away."""
        if claims:
            self._held.setdefault(row, Counter())[claims] += count

    def most(self, claims: _Claims, row: int, wanted: int) -> int:
        """Return how many more of them find their devices there, of those that are wanted."""
        left = self._left(row)
        for number in range(wanted):
            found = allocate(left, claims)
            if found is None:
                return number
            left = found.left(left)
        return wanted

    def _left(self, row: int) -> tuple[Devices, ...]:
        held = self._held.get(row, Counter())
        return after_pods(self._nodes[row].devices, [claims for claims, n in held.items() for _ in range(n)])


def settle(wanted: Sequence[SlackShape], nodes: Sequence[Node], before: Placement) -> Settled:
    """Placeholders of the wanted shapes on the nodes, starting from where they were before.

    `free` of nodes is what real pods leave, placeholders not counted; it may be negative where these have more than
    there is. `running` has what mirrors are to see of other pods. Shapes come in the order of precedence: where not
    all fit, the first stay. Names of shapes and of nodes are unique.

    Wanted no more are taken from the emptiest nodes first, new ones go to the fullest that have room, so that empty
    nodes can go. "Full" is by the resources that placeholders ask for.
    """
    board = _Board(wanted, nodes, before)
    for shape in wanted:
        board.keep(shape)
    board.part()
    for shape in wanted:
        board.trim(shape)
    progress = True
    while progress:  # once, but for shapes that select other pods: one may open the way for another
        progress = sum(board.place(shape) for shape in wanted) > 0
    return board.result()


class _Board:
    """Counts by shape and node, and what is free meanwhile."""

    def __init__(self, wanted: Sequence[SlackShape], nodes: Sequence[Node], before: Placement) -> None:
        self._wanted = wanted
        self._before = before
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._rows = {node.name: row for row, node in enumerate(self._nodes)}
        names = sorted({PODS, *(name for shape in wanted for name, _ in shape.spec.requests)})
        self._asked = {
            shape.name: np.array([{**dict(shape.spec.requests), PODS: 1}.get(name, 0) for name in names], np.int64)
            for shape in wanted
        }
        self._free = _table([node.free for node in self._nodes], names)
        self._size = np.maximum(_table([node.allocatable or node.free for node in self._nodes], names), 1)
        self._columns = NodeColumns(self._nodes)
        self._colocation = PlaceholderCoLocation(wanted, self._nodes)
        self._devices = HeldDevices(self._nodes)
        empty = np.zeros(len(self._nodes), np.int64)
        self._kept = {shape.name: empty.copy() for shape in wanted}
        self._trimmed = {shape.name: empty.copy() for shape in wanted}
        self._placed = {shape.name: empty.copy() for shape in wanted}

    def keep(self, shape: SlackShape) -> None:
        """Keep as many as still fit where they were."""
        there = self._before.get(shape.name, {})
        fit = self._fit(shape)
        for row in sorted(self._rows[name] for name in there if name in self._rows):
            count = min(there[self._nodes[row].name], int(fit[row]))
            if count > 0 and self._columns.why_not(shape.spec, row) is None:
                self._put(shape, row, count, self._kept)

    def part(self) -> None:
        """Remove those that may not be beside others any more, until all may."""
        shapes = [shape for shape in self._wanted if self._colocation.concerns(shape)]
        parted = True
        while parted:
            parted = False
            for shape in shapes:
                kept = self._kept[shape.name]
                for row in np.flatnonzero(kept):
                    count = int(kept[row])
                    self._colocation.put(shape, self._nodes[row], -count)
                    most = self._colocation.most(shape, self._nodes[row])
                    self._colocation.put(shape, self._nodes[row], count)
                    if most < count:
                        self._put(shape, int(row), most - count, self._kept)
                        parted = True

    def trim(self, shape: SlackShape) -> None:
        """No more than wanted, the emptiest nodes first."""
        kept = self._kept[shape.name]
        surplus = int(kept.sum()) - shape.count
        if surplus <= 0:
            return
        for row in self._fullest_first()[::-1]:
            if kept[row] and surplus:
                count = min(surplus, int(kept[row]))
                surplus -= count
                self._put(shape, int(row), -count, self._kept)
                self._trimmed[shape.name][row] += count

    def place(self, shape: SlackShape) -> bool:
        """What is lacking, the fullest nodes first. Returns whether others may have become free to be placed by it."""
        lacking = shape.count - int(self._kept[shape.name].sum()) - int(self._placed[shape.name].sum())
        if lacking <= 0:
            return False
        progress = False
        fit = self._fit(shape)
        order = self._fullest_first()
        for row in order[fit[order] > 0]:
            node = self._nodes[row]
            if self._columns.why_not(shape.spec, row) is not None:
                continue
            count = min(lacking, int(fit[row]), self._colocation.most(shape, node))
            if count:
                self._put(shape, int(row), count, self._placed)
                progress = True
                lacking -= count
                if not lacking:
                    break
        return progress and self._colocation.concerns(shape)

    def result(self) -> Settled:
        pushed_out, removed = {}, {}
        known = {shape.name for shape in self._wanted}
        for name, there in sorted(self._before.items()):
            if name not in known:
                removed[name] = dict(sorted(there.items()))
                continue
            stayed = self._kept[name] + self._trimmed[name]
            gone = {node: n - (int(stayed[self._rows[node]]) if node in self._rows else 0) for node, n in there.items()}
            pushed_out[name] = {node: count for node, count in sorted(gone.items()) if count > 0}
            removed[name] = self._by_node(self._trimmed[name])
        held = {name: self._kept[name] + self._placed[name] for name in self._kept}
        left = {shape.name: shape.count - int(held[shape.name].sum()) for shape in self._wanted}
        return Settled(
            held=self._shown(held),
            kept=self._shown(self._kept),
            placed=self._shown(self._placed),
            pushed_out={name: there for name, there in pushed_out.items() if there},
            removed={name: there for name, there in removed.items() if there},
            left={name: count for name, count in left.items() if count},
        )

    def _put(self, shape: SlackShape, row: int, count: int, where: Mapping[str, Ints]) -> None:
        where[shape.name][row] += count
        self._free[row] -= count * self._asked[shape.name]
        self._colocation.put(shape, self._nodes[row], count)
        self._devices.put(shape.spec.claims, row, count)

    def _fit(self, shape: SlackShape) -> Ints:
        """How many of the shape have room on each node, as far as resources and devices go."""
        asked = self._asked[shape.name]
        columns = asked > 0
        fit: Ints = np.maximum((self._free[:, columns] // asked[columns]).min(axis=1), 0)
        for row in np.flatnonzero(fit).tolist() if shape.spec.claims else ():
            fit[row] = self._devices.most(shape.spec.claims, row, int(fit[row]))
        return fit

    def _fullest_first(self) -> npt.NDArray[np.intp]:
        """Rows by the mean share that is free, then by name."""
        share = (self._free / self._size).mean(axis=1)
        return np.argsort(share, kind="stable")

    def _by_node(self, counts: Ints) -> dict[str, int]:
        return {self._nodes[row].name: int(counts[row]) for row in np.flatnonzero(counts)}

    def _shown(self, counts: Mapping[str, Ints]) -> Placement:
        shown = {name: self._by_node(each) for name, each in sorted(counts.items())}
        return {name: there for name, there in shown.items() if there}


def _table(amounts: Sequence[Mapping[str, int]], names: Sequence[str]) -> Ints:
    rows = [[each.get(name, 0) for name in names] for each in amounts]
    return np.array(rows, np.int64).reshape(len(amounts), len(names))
