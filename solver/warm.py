"""What a previous plan is worth to the next one: its nodes, as patterns of the problem as it is now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from solver.model import Plan
from solver.patterns import Pattern
from solver.reduce import Reduced


def known_nodes(reduced: Reduced) -> dict[Pattern, int]:
    """The previous plan's nodes, standing ones among them, with those of their pods that are still asked for; how many
    of each. Groups, nodes and classes that are gone are passed over, and so are nodes that what runs there has become
    too small for. Of a problem in which every demand has one row."""
    previous = reduced.problem.previous
    if previous is None:
        return {}
    row_of = {demand.pod: demand.spec for demand in reduced.live}
    rows = {cls.index: row_of[cls.spec] for cls in previous.pod_classes if cls.spec in row_of}
    kind_of = {name: kind.index for kind in reduced.kinds for name in (*kind.groups, *kind.nodes)}
    nodes: Counter[Pattern] = Counter()
    for name, count, pods in _nodes(previous):
        held: Counter[int] = Counter()
        for cls, number in pods.items():
            if cls in rows:
                held[rows[cls]] += number
        if held and name in kind_of and _fits(reduced, kind_of[name], held):
            nodes[Pattern(kind_of[name], tuple(sorted(held.items())))] += count
    return dict(nodes)


def _nodes(plan: Plan) -> Iterator[tuple[str, int, Mapping[int, int]]]:
    """(group or node, how many, pods of each)."""
    for new in plan.nodes:
        yield new.node_group, new.count, new.pods
    for standing in plan.existing:
        yield standing.node, 1, standing.pods


def _fits(reduced: Reduced, kind: int, held: Mapping[int, int]) -> bool:
    rows, units = list(held), np.array(list(held.values()), dtype=np.int64)
    return bool(
        reduced.fits[kind, rows].all()
        and (units <= reduced.caps[rows]).all()
        and (units @ reduced.requests[rows] <= reduced.free[kind]).all()
    )
