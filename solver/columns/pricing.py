"""Pricing: is there a pattern worth more than its node costs? Asked of all kinds at once, on several threads. Says
nothing of where pod values come from; `generation` asks, `planning.search` decides when.

A compiled search (`knapsack`) answers first. What it leaves open CP-SAT answers: with three scarce resources Lagrangian
bounds stay some percent above the best pattern, which learning from conflicts finds and proves in a tenth of a second.
And a pattern that the relaxation uses is worth what its node costs, so that those that pay for the next pod values are
mostly an exchange of pods or two away from it, and found in a fraction of the time that a search from nothing takes
(local search for multidimensional knapsacks: Kellerer, Pferschy and Pisinger, Knapsack Problems, chapter 9).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import numpy as np
from ortools.sat.python import cp_model

from solver.columns.knapsack import best_patterns
from solver.columns.loops import assign, fits
from solver.columns.patterns import Pattern, pattern_of
from solver.compiled import Kernel, Threads, inner, kernel
from solver.reduction.reduced import Floats, Ints, Reduced, most_per_node
from solver.relaxation.cp_sat import Model, new_solver

_UNITS = 1_000_000
"""Values are counted in such a part of the threshold, rounded up, so that the bound holds."""
_LITTLE_MORE = 10
"""Units above the threshold from which on a pattern is of interest: that there is none at all takes far longer to
prove."""
_CLOSE = 1e-4
"""Relative difference between the best pattern and the bound at which the search ends."""


def best_or_none(
    requests: Ints, free: Ints, values: Floats, most: Ints, threshold: float, seconds: float
) -> tuple[list[Ints], float, float]:
    """Return patterns worth more than `threshold` (pods per item), the best first, an upper bound on the value of any,
    and how many of CP-SAT's deterministic seconds that took: at most `seconds`, more or less."""
    useful = np.flatnonzero((values > 0) & (most > 0))
    unit = max(threshold, float(values.max(initial=0.0))) / _UNITS
    if not useful.size or unit <= 0:
        return [], threshold, 0.0
    worth = np.ceil(values[useful] / unit).astype(np.int64)
    least = int(threshold / unit) + _LITTLE_MORE
    model = Model()
    pods = [model.new_int_var(0, int(each), "") for each in most[useful]]
    for resource, amount in enumerate(free.tolist()):
        model.add(cp_model.LinearExpr.weighted_sum(pods, requests[useful, resource].tolist()) <= amount)
    value = cp_model.LinearExpr.weighted_sum(pods, worth.tolist())
    model.add(value >= least)
    model.maximize(value)
    solver, found = new_solver(), _Patterns(pods)
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.relative_gap_limit = _CLOSE
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(model, found)
    took = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return [], least * unit, took
    patterns = []
    for chosen in reversed(found.patterns):
        pattern = np.zeros(len(values), dtype=np.int64)
        pattern[useful] = chosen
        if float(values @ pattern) > threshold:
            patterns.append(pattern)
    # A bound below what was asked for would be a proof that there is none.
    bound = solver.best_objective_bound
    return patterns, bound * unit if bound >= least else float("inf"), took


class _Patterns(cp_model.CpSolverSolutionCallback):
    """Keeps every pattern that CP-SAT finds: the relaxed master needs many."""

    def __init__(self, pods: list[cp_model.IntVar]) -> None:
        super().__init__()
        self._pods = pods
        self.patterns: list[list[int]] = []

    def on_solution_callback(self) -> None:
        self.patterns.append([self.value(each) for each in self._pods])


_MOST_EXCHANGES = 50
_MOST_STEPS = 2_000_000
"""Exchanges of one pattern that are looked at: some milliseconds. With thousands of items there are billions."""
_ROUNDING = 1e-9


@inner
def _change(requests: Ints, item: int, pods: int, room: Ints) -> None:
    """Take the room of so many pods of an item; -1 takes none."""
    if item >= 0:
        for r in range(len(room)):
            room[r] -= pods * requests[item, r]


@inner
def _put(requests: Ints, found: Ints, left: Ints, item: int, pods: int) -> None:
    """Put so many pods of an item into the pattern; -1 puts none."""
    if item >= 0:
        found[item] += pods
    _change(requests, item, pods, left)


def _steps(requests: Ints, *others: Ints) -> int:
    """Return how many steps `exchange` takes where it gains a few times."""
    items, resources = requests.shape
    pairs = (int(np.count_nonzero(others[-1])) + 1) ** 2
    return int(min(_MOST_STEPS, 4 * pairs * items * items) * resources)


@kernel(_steps)
def exchange(  # noqa: C901, PLR0912 - flat for speed
    requests: Ints, free: Ints, values: Floats, most: Ints, order: Ints, found: Ints
) -> float:
    """Exchange one or two pods of a pattern for one or two others, always the exchange that gains most, until none
    gains; return what the pattern, which is changed in place, is worth then. `order` has the items by value, the most
    valuable first."""
    items = len(values)
    left, room, rest = free.copy(), free.copy(), free.copy()
    worth, steps = 0.0, 0
    for j in range(items):
        worth += values[j] * found[j]
        _change(requests, j, found[j], left)
    for _ in range(_MOST_EXCHANGES):
        gain, out, out_too, into, into_too = _ROUNDING * worth, -1, -1, -1, -1
        for a in range(-1, items):
            if a >= 0 and found[a] == 0:
                continue
            for b in range(a, items):
                if steps > _MOST_STEPS or (b >= 0 and found[b] < (2 if b == a else 1)):
                    continue
                given = (values[a] if a >= 0 else 0.0) + (values[b] if b >= 0 else 0.0)
                assign(left, room)
                _change(requests, a, -1, room)
                _change(requests, b, -1, room)
                for index in range(items):
                    c = order[index]
                    steps += 1
                    if steps > _MOST_STEPS or 2 * values[c] - given <= gain:
                        break
                    if c in (a, b) or found[c] == most[c] or not fits(requests, c, room):
                        continue
                    if values[c] - given > gain:
                        gain, out, out_too, into, into_too = values[c] - given, a, b, c, -1
                    assign(room, rest)
                    _change(requests, c, 1, rest)
                    for other in range(index, items):
                        steps += 1
                        d = order[other]
                        if values[c] + values[d] - given <= gain:
                            break
                        if d not in (a, b) and found[d] + (d == c) < most[d] and fits(requests, d, rest):
                            gain, out, out_too, into, into_too = values[c] + values[d] - given, a, b, c, d
        if into < 0:
            break
        worth += gain
        _put(requests, found, left, out, -1)
        _put(requests, found, left, out_too, -1)
        _put(requests, found, left, into, 1)
        _put(requests, found, left, into_too, 1)
    return worth


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    units, free, one = np.ones((1, 2), dtype=np.int64), np.full(2, 2, dtype=np.int64), np.ones(1, dtype=np.int64)
    yield exchange, (units, free, np.ones(1), one, np.zeros(1, dtype=np.int64), one)


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
        asked: Container[int] | None = None,
    ) -> list[PricingResult]:
        """Per kind, of those `asked` where given, patterns worth more than `share` of its price (`prices` per kind); of
        as many kinds as there is time for. The same however many threads there are."""
        nodes = [node for kind, node in self._nodes.items() if asked is None or kind in asked]
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
