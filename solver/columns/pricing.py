"""Pricing: is there a pattern worth more than its node costs? Asked of all kinds at once, on several threads. Says
nothing of where pod values come from; `columns` asks, `search` decides when.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from solver.columns.exact import best_or_none
from solver.columns.knapsack import best_patterns
from solver.columns.patterns import Pattern, pattern_of
from solver.reduction.reduced import Floats, Ints, Reduced, most_per_node

_OPEN = 1 + 1e-4
"""An upper bound farther than this from the best pattern is worth a proof."""
_FIRST_ROUNDS, _ROUNDS = 300, 60
"""Of the subgradient method, the first time and when it starts from the last answer."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thorough a search is."""

    answers: int
    """Patterns per kind."""
    steps: int
    """Of search."""
    cells: int
    """Of a table of bounds."""
    proof: float = 0.0
    """Deterministic seconds of CP-SAT for a kind of which search leaves open what its best pattern is worth."""


@dataclass(frozen=True, slots=True)
class PricingResult:
    """The answer for one kind: patterns worth more than asked for, and an upper bound on what any pattern is worth."""

    kind: int
    patterns: Sequence[Pattern]
    bound: float
    proof: float = 0.0
    """Deterministic seconds of CP-SAT that it took."""


@dataclass(frozen=True, slots=True)
class _PricedNode:
    """What of the problem concerns one kind; `multipliers` change with every question."""

    kind: int
    specs: Ints
    requests: Ints
    most: Ints
    free: Ints
    multipliers: Floats


class Pricer:
    """Prices the patterns of some kinds, over and over; keeps multipliers between calls."""

    def __init__(
        self, reduced: Reduced, active: Ints, workers: int = 1, multipliers: dict[int, Floats] | None = None
    ) -> None:
        """`multipliers` are another pricer's of the same kinds, for other numbers of pods; they are shared."""
        self._workers = workers
        self.multipliers: dict[int, Floats] = {} if multipliers is None else multipliers
        self._nodes: list[_PricedNode] = []
        for kind, most in zip(active.tolist(), most_per_node(reduced, active), strict=True):
            specs, free = np.flatnonzero(most), reduced.free[kind].copy()
            known = self.multipliers.setdefault(kind, np.zeros(free.size))
            self._nodes.append(_PricedNode(kind, specs, reduced.requests[specs], most[specs], free, known))

    def offers(
        self,
        values: Floats,
        prices: Floats,
        share: float,
        effort: Effort,
        out_of_time: Callable[[], bool],
        kinds: Container[int] | None = None,
    ) -> list[PricingResult]:
        """Per kind (of `kinds`, where given) patterns worth more than `share` of its price (`prices` per kind); of as
        many kinds as there is time for. The same however many threads there are."""
        nodes = [node for node in self._nodes if kinds is None or node.kind in kinds]
        answers: list[PricingResult | None] = [None] * len(nodes)
        places = count()

        def work(_: int) -> None:
            while (place := next(places)) < len(nodes) and not out_of_time():
                answers[place] = self._offer(nodes[place], values, prices, share, effort)

        if self._workers == 1:
            work(0)
        else:
            with ThreadPoolExecutor(self._workers) as threads:
                list(threads.map(work, range(self._workers)))
        return [answer for answer in answers if answer is not None]

    def _offer(self, node: _PricedNode, values: Floats, prices: Floats, share: float, effort: Effort) -> PricingResult:
        if not node.specs.size:
            return PricingResult(node.kind, [], 0.0)
        price, rounds = float(prices[node.kind]), _ROUNDS
        if not node.multipliers.any():
            rounds = _FIRST_ROUNDS
            node.multipliers[:] = price * np.where(node.free > 0, 1.0 / np.maximum(node.free, 1), 0.0) / node.free.size
        found, bound = best_patterns(
            node.requests, node.free, values[node.specs], node.most, node.multipliers, rounds, price * share,
            effort.cells, effort.steps, effort.answers,
        )  # fmt: skip
        patterns = list(found)
        best = max([price * share, *(float(values[node.specs] @ pods) for pods in patterns)])
        proof = 0.0
        if effort.proof > 0 and bound > best * _OPEN:
            more, closer, proof = best_or_none(
                node.requests, node.free, values[node.specs], node.most, best, effort.proof
            )
            patterns, bound = [*more, *patterns], min(bound, max(best, closer))
        return PricingResult(node.kind, [pattern_of(node.kind, node.specs, pods) for pods in patterns], bound, proof)
