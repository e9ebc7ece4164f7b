"""Where placeholders are: they stay where they are unless real pods push them out, and only those that
were pushed out, and the difference between wanted and held, move. How many there are is `slack`'s business, opening
nodes for those that find no place the planner's.

Work grows with shapes x nodes, in arrays, and with what moves; never with pods x nodes. Everything is
decided by the names and contents of nodes, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from solver.model import PODS, Node
from solver.slack.colocation import Eligible, PlaceholderCoLocation
from solver.slack.devices import HeldDevices
from solver.slack.model import Placement, Settled, SlackShape

_Ints = npt.NDArray[np.int64]


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
        self._eligible = Eligible(wanted)
        self._colocation = PlaceholderCoLocation(wanted, self._nodes)
        self._devices = HeldDevices(self._nodes)
        empty = np.zeros(len(self._nodes), np.int64)
        self._kept = {shape.name: empty.copy() for shape in wanted}
        self._trimmed = {shape.name: empty.copy() for shape in wanted}
        self._placed = {shape.name: empty.copy() for shape in wanted}

    def keep(self, shape: SlackShape) -> None:
        """As many as still fit where they were."""
        there = self._before.get(shape.name, {})
        fit = self._fit(shape)
        for row in sorted(self._rows[name] for name in there if name in self._rows):
            count = min(there[self._nodes[row].name], int(fit[row]))
            if count > 0 and self._eligible(shape, self._nodes[row]):
                self._put(shape, row, count, self._kept)

    def part(self) -> None:
        """Those that may not be beside others any more go, until all may."""
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
            if not self._eligible(shape, node):
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

    def _put(self, shape: SlackShape, row: int, count: int, where: Mapping[str, _Ints]) -> None:
        where[shape.name][row] += count
        self._free[row] -= count * self._asked[shape.name]
        self._colocation.put(shape, self._nodes[row], count)
        self._devices.put(shape.spec.claims, row, count)

    def _fit(self, shape: SlackShape) -> _Ints:
        """How many of the shape have room on each node, as far as resources and devices go."""
        asked = self._asked[shape.name]
        columns = asked > 0
        fit: _Ints = np.maximum((self._free[:, columns] // asked[columns]).min(axis=1), 0)
        for row in np.flatnonzero(fit).tolist() if shape.spec.claims else ():
            fit[row] = self._devices.most(shape.spec.claims, row, int(fit[row]))
        return fit

    def _fullest_first(self) -> npt.NDArray[np.intp]:
        """Rows by the mean share that is free, then by name."""
        share = (self._free / self._size).mean(axis=1)
        return np.argsort(share, kind="stable")

    def _by_node(self, counts: _Ints) -> dict[str, int]:
        return {self._nodes[row].name: int(counts[row]) for row in np.flatnonzero(counts)}

    def _shown(self, counts: Mapping[str, _Ints]) -> Placement:
        shown = {name: self._by_node(each) for name, each in sorted(counts.items())}
        return {name: there for name, there in shown.items() if there}


def _table(amounts: Sequence[Mapping[str, int]], names: Sequence[str]) -> _Ints:
    rows = [[each.get(name, 0) for name in names] for each in amounts]
    return np.array(rows, np.int64).reshape(len(amounts), len(names))
