"""The new nodes of a plan while it is being realised: how many of which group, in which wave they are let go, and which
pods are bound to them before. Values only; `realise` changes them, `scheduler` simulates them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from solver.model import Increment, NodeGroup, Plan
from solver.objectives import dollars
from solver.reduce import Bools, Ints

PLANNED = -1


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Nodes that no simulation can tell apart."""

    group: int
    """Its index among the problem's groups."""
    stage: int = PLANNED
    """Or, where it is of the reserve, the layer after which it is let go, for pods that are left over."""
    bound: tuple[tuple[int, int], ...] = ()
    """(class, pods) per node that are bound to it before the scheduler sees it."""


@dataclass(frozen=True)
class Fleet:
    """How many nodes of each slot there are, all at least 1."""

    nodes: Mapping[Slot, int]

    def changed(self, slot: Slot, by: int) -> Fleet:
        nodes = {**self.nodes, slot: self.nodes.get(slot, 0) + by}
        return Fleet({each: count for each, count in sorted(nodes.items()) if count})

    def more(self, increments: Iterable[Increment], number: Mapping[str, int], stage: int = PLANNED) -> Fleet:
        fleet = self
        for increment in increments:
            fleet = fleet.changed(Slot(number[increment.node_group], stage), increment.delta)
        return fleet

    @property
    def total(self) -> int:
        return sum(self.nodes.values())

    def first_of_slot(self, first: int) -> dict[Slot, int]:
        """The number of the first node of each slot; new nodes are numbered from `first` on."""
        return dict(zip(self.nodes, accumulate(self.counts, initial=first), strict=False))

    def joined(self, other: Fleet) -> Fleet:
        fleet = self
        for slot, count in other.nodes.items():
            fleet = fleet.changed(slot, count)
        return fleet

    def deltas(self) -> Counter[int]:
        """Group -> new nodes."""
        total: Counter[int] = Counter()
        for slot, count in self.nodes.items():
            total[slot.group] += count
        return total

    def groups(self) -> Ints:
        """The group of each node, slot by slot."""
        return np.repeat(np.array([slot.group for slot in self.nodes], dtype=np.int64), self.counts)

    def bound(self, first: int) -> Ints:
        """Rows (class, node, pods); new nodes are numbered from `first` on."""
        slots = (slot for slot, count in self.nodes.items() for _ in range(count))
        rows = [(who, node, pods) for node, slot in enumerate(slots, first) for who, pods in slot.bound]
        return np.array(rows, dtype=np.int64).reshape(len(rows), 3)

    def cost(self, groups: Sequence[NodeGroup]) -> tuple[float, ...]:
        """Per tier, from the lowest weight to the highest: fleets are compared by it."""
        weights = sorted({group.weight for group in groups})
        deltas = self.deltas()
        return tuple(
            dollars(groups[g].price_usd_per_hour * count for g, count in deltas.items() if groups[g].weight == weight)
            for weight in weights
        )

    @property
    def counts(self) -> list[int]:
        return list(self.nodes.values())


def fleet_of(plan: Plan, number: Mapping[str, int], may_bind: Mapping[int, int]) -> Fleet:
    """A plan's new nodes. `may_bind`: class -> pods that are bound to the nodes they are planned for, in the plan's
    order."""
    left = Counter(may_bind)
    found: Counter[Slot] = Counter()
    for nodes in plan.nodes:
        for bound, count in _bindings(nodes.pods, nodes.count, left):
            found[Slot(number[nodes.node_group], bound=bound)] += count
    return Fleet(dict(sorted(found.items())))


def _bindings(
    pods: Mapping[int, int], count: int, left: Counter[int]
) -> Iterator[tuple[tuple[tuple[int, int], ...], int]]:  # fmt: skip
    """What is bound to each of `count` equal nodes, as (pods of a node, nodes); takes it from `left`."""
    while count:
        bound = tuple((who, min(asked, left[who])) for who, asked in sorted(pods.items()) if left[who] > 0)
        times = min([count, *(left[who] // taken for who, taken in bound)])
        for who, taken in bound:
            left[who] -= taken * times
        yield bound, times
        count -= times


def layers_of(fleet: Fleet, holds: Bools, most: int) -> Mapping[int, int]:
    """Group -> layer, of the planned nodes; at most so many. Nodes that only some pods fit come before those that these
    and others fit, so that the latter keep their room for the others.

    `holds`: groups x classes, whether a pod fits."""
    layer: dict[int, int] = {}
    groups = {slot.group for slot in fleet.nodes if slot.stage == PLANNED}
    for group in sorted(groups, key=lambda g: (int(holds[g].sum()), g)):
        within = (g for g in layer if (holds[g] <= holds[group]).all() and (holds[g] != holds[group]).any())
        layer[group] = max((layer[g] + 1 for g in within), default=0)
    merged = max(0, max(layer.values(), default=0) + 1 - most)
    return {group: max(0, number - merged) for group, number in layer.items()}


def waves_of(fleet: Fleet, holds: Bools, most: int) -> Ints:
    """In which wave each node is let go (slot by slot): layer by layer, after each of them its reserve. Waves to spare
    are shared out to layers with most nodes: of fewer nodes at a time more are filled to the brim, rather than all of
    them a little."""
    layers = layers_of(fleet, holds, most)
    layer = [layers[slot.group] if slot.stage == PLANNED else slot.stage for slot in fleet.nodes]
    nodes = Counter[int](dict.fromkeys(layers.values(), 0))
    for number, (slot, count) in zip(layer, fleet.nodes.items(), strict=True):
        nodes[number] += count * (slot.stage == PLANNED)
    waves = dict.fromkeys(sorted(nodes), 1)
    for _ in range(most - len(waves) if nodes else 0):
        fullest = max(waves, key=lambda number: nodes[number] / waves[number])
        waves[fullest] += nodes[fullest] > waves[fullest]
    first = dict(zip(waves, accumulate((count + 1 for count in waves.values()), initial=0), strict=False))
    return np.array(
        [
            first[number] + (waves[number] if slot.stage != PLANNED else position * waves[number] // count)
            for number, (slot, count) in zip(layer, fleet.nodes.items(), strict=True)
            for position in range(count)
        ],
        dtype=np.int64,
    )
