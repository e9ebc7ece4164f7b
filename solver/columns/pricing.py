"""Pricing: is there a pattern worth more than its node costs? Asked of all kinds at once, on several threads. Says
nothing of where pod values come from; `columns` asks, `search` decides when.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import numpy as np

from solver.columns.exact import best_or_none
from solver.columns.exchange import exchange
from solver.columns.knapsack import best_patterns
from solver.columns.patterns import Pattern, pattern_of
from solver.compiled import Threads
from solver.reduction.reduced import Floats, Ints, Reduced, most_per_node

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")

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
        self._nodes: dict[int, _PricedNode] = {}
        for kind, most in zip(active.tolist(), most_per_node(reduced, active), strict=True):
            specs, free = np.flatnonzero(most), reduced.free[kind].copy()
            known = self.multipliers.setdefault(kind, np.zeros(free.size))
            self._nodes[kind] = _PricedNode(kind, specs, reduced.requests[specs], most[specs], free, known)

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
        nodes = [node for node in self._nodes.values() if kinds is None or node.kind in kinds]
        return self._of_each(nodes, lambda node: self._offer(node, values, prices, share, effort), out_of_time)

    def near(
        self, patterns: Sequence[Pattern], values: Floats, least: Floats, out_of_time: Callable[[], bool]
    ) -> list[Pattern]:
        """Return patterns worth more than `least` (per kind) that exchanges of pods make of these; of as many as there
        is time for."""
        priced = [pattern for pattern in patterns if pattern.kind in self._nodes]
        found = self._of_each(priced, lambda each: self._near(each, values), out_of_time)
        return [pattern for pattern, value in found if value > least[pattern.kind]]

    def _near(self, pattern: Pattern, values: Floats) -> tuple[Pattern, float]:
        node, pods = self._nodes[pattern.kind], np.zeros(len(values), dtype=np.int64)
        specs, counts = np.array(pattern.pods, dtype=np.int64).reshape(-1, 2).T
        pods[specs] = counts
        pods, worth = np.minimum(pods[node.specs], node.most), values[node.specs]
        order = np.argsort(-worth, kind="stable")
        value = exchange(node.requests, node.free, worth, node.most, order, pods)
        return pattern_of(node.kind, node.specs, pods), value

    def _of_each(
        self, questions: Sequence[_Question], ask: Callable[[_Question], _Answer], out_of_time: Callable[[], bool]
    ) -> list[_Answer]:
        """Return the answers, in the order of the questions, of as many as there is time for."""
        answers: list[_Answer | None] = [None] * len(questions)
        places = count()

        def work(_: int) -> None:
            while (place := next(places)) < len(questions) and not out_of_time():
                answers[place] = ask(questions[place])

        if self._workers == 1:
            work(0)
        else:
            with Threads(self._workers) as threads:
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
