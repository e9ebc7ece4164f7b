"""The pool of node patterns and its linear relaxation: the master problem of column generation.

A column opens one node of a kind with one pattern. The relaxation prices pods (its duals) so that new columns can be
sought where they pay; `master` takes the integral decision over the same pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from ortools.math_opt.python import mathopt

from solver.company import Company
from solver.lp import INFINITY
from solver.objectives import Goal, Stage, hopeless_value
from solver.patterns import Pattern, trimmed
from solver.reduce import Floats, Ints, Reduced, most_per_node


@dataclass(frozen=True, slots=True)
class Entries:
    """What patterns hold, as parallel arrays sorted by column: `pods` pods of `spec` in `column` of the pool."""

    column: Ints
    spec: Ints
    pods: Ints


@dataclass
class Pool:
    """Distinct patterns, in the order they were found."""

    reduced: Reduced
    patterns: list[Pattern] = field(default_factory=list)
    _known: set[Pattern] = field(default_factory=set)
    _entries: Entries = field(default_factory=lambda: entries([]))
    _kinds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, patterns: Iterable[Pattern]) -> int:
        """Returns how many were new. What may not share a node is left out of a pattern first."""
        before = len(self.patterns)
        company = Company(self.reduced)
        for offered in patterns:
            pattern = offered if company.anything_goes else trimmed(company, offered)
            if pattern not in self._known:
                self._known.add(pattern)
                self.patterns.append(pattern)
        return len(self.patterns) - before

    def kinds(self) -> Ints:
        """Per column: its kind."""
        self._extend()
        return self._kinds

    def entries(self) -> Entries:
        """Of all columns as they are now."""
        self._extend()
        return self._entries

    def _extend(self) -> None:
        first = len(self._kinds)
        if first < len(self.patterns):
            new = self.patterns[first:]
            self._kinds = np.concatenate([self._kinds, np.array([pattern.kind for pattern in new], dtype=np.int64)])
            known, more = self._entries, entries(new, first)
            self._entries = Entries(
                np.concatenate([known.column, more.column]),
                np.concatenate([known.spec, more.spec]),
                np.concatenate([known.pods, more.pods]),
            )

    def serves(self, nodes: Ints) -> Ints:
        """Per spec: room for pods on `nodes` nodes per column; columns that `nodes` does not reach are not opened."""
        all_of = self.entries()
        last = int(np.searchsorted(all_of.column, len(nodes)))
        amounts = (all_of.pods[:last] * nodes[all_of.column[:last]]).astype(np.float64)
        return np.bincount(all_of.spec[:last], weights=amounts, minlength=len(self.reduced.specs)).astype(np.int64)


def entries(patterns: Sequence[Pattern], first: int = 0) -> Entries:
    """Columns are numbered from `first`."""
    sizes = [len(pattern.pods) for pattern in patterns]
    pairs = np.array([pair for pattern in patterns for pair in pattern.pods], dtype=np.int64).reshape(-1, 2)
    return Entries(np.repeat(np.arange(first, first + len(patterns)), sizes), pairs[:, 0], pairs[:, 1])


@dataclass(frozen=True, slots=True)
class Relaxation:
    """An optimal fractional plan over a pool."""

    objective: float
    nodes: Floats
    """Per column."""
    pod_values: Floats
    """Per spec: what serving one more pod costs."""
    kind_values: Floats
    """Per kind: what one node costs beyond its price, for its share of room and limits that run short."""
    unserved: Mapping[int, float]
    """Per demand index."""
    steered: Floats
    """Per spec: pods bought (or sold, negative) at the edge of what `steer` allows; zero for a true optimum."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """One price for everything, to guide the search; the exact order of objectives is `master`'s business."""

    node_cost: Floats
    """Per kind."""
    unserved_cost: Floats
    """Per demand index, per pod."""


_TIER_FACTOR = 100.0
_MOST_FACTOR = 1e6


def weighting(reduced: Reduced) -> Weighting:
    """A node of a lower tier costs 100 times as much as the same node one tier up, and leaving a pod out more than any
    node, higher priorities more than lower."""
    steps = {weight: min(_TIER_FACTOR**rank, _MOST_FACTOR) for rank, weight in enumerate(reversed(reduced.tiers))}
    node_cost = np.array([0.0 if k.existing else k.price_micros * steps[k.weight] + 1.0 for k in reduced.kinds])
    dearest = float(node_cost.max(initial=1.0))
    ranks = {priority: rank for rank, priority in enumerate(reversed(reduced.priorities))}
    unserved = np.array([1.0 if d.placeholder else 2.0 + min(ranks[d.priority], 8) for d in reduced.demands])
    return Weighting(node_cost, 2.0 * dearest * unserved)


def values(found: Relaxation, pool: Pool, reduced: Reduced, order: Sequence[Stage]) -> dict[Stage, float]:
    """What a fractional plan comes to in each stage; waiting times at the demands' mean."""
    opened = np.bincount(pool.kinds(), weights=found.nodes, minlength=len(reduced.kinds))
    result: dict[Stage, float] = {}
    for stage in order:
        result[stage] = float(hopeless_value(stage, reduced)) + sum(
            stage.node_cost(kind.price_micros, kind.weight) * float(opened[kind.index]) for kind in reduced.new_kinds
        )
        for demand in reduced.live:
            if stage.counts(demand) and demand.count:
                waited_seconds = sum(age * count for age, count in demand.ages) / demand.count
                result[stage] += found.unserved[demand.index] * (waited_seconds if stage.goal is Goal.WAITING else 1)
    return result


class RelaxedMaster:
    """The linear relaxation over a pool, kept between solves: new columns and changed numbers of pods, nodes and
    limits start from the last basis."""

    def __init__(self, pool: Pool, weights: Weighting) -> None:
        self._pool, self._weights = pool, weights
        reduced = pool.reduced
        self._model = model = mathopt.Model()
        self._serve = [model.add_linear_constraint(lb=0.0) for _ in reduced.specs]
        self._room: dict[int, mathopt.LinearConstraint] = {}
        self._limits = [model.add_linear_constraint(ub=0.0) for _ in reduced.limits]
        self._nodes: list[mathopt.Variable] = []
        self._left = {d.index: model.add_variable(lb=0.0) for d in reduced.demands}
        for demand in reduced.demands:
            self._serve[demand.spec].set_coefficient(self._left[demand.index], 1.0)
        costs = {self._left[d.index]: float(weights.unserved_cost[d.index]) for d in reduced.demands}
        model.minimize(mathopt.LinearSum(variable * cost for variable, cost in costs.items()))
        # Pods sold and bought at prices near a guess: they keep the duals there (see `steer`).
        self._bought = [model.add_variable(lb=0.0, ub=0.0) for _ in reduced.specs]
        self._sold = [model.add_variable(lb=0.0, ub=0.0) for _ in reduced.specs]
        for row, bought, sold in zip(self._serve, self._bought, self._sold, strict=True):
            row.set_coefficient(bought, 1.0)
            row.set_coefficient(sold, -1.0)
        self._state(reduced)
        self._solver = mathopt.IncrementalSolver(model, mathopt.SolverType.GLOP)

    def _state(self, reduced: Reduced) -> None:
        for row, wanted in zip(self._serve, reduced.wanted.tolist(), strict=True):
            row.lower_bound = float(wanted)
        for kind in reduced.kinds:
            # Most kinds can never run out: every pod could have a node of its own. Those have no row.
            if kind.index not in self._room and kind.most < self._pool.reduced.enough[kind.index]:
                self._room[kind.index] = row = self._model.add_linear_constraint(ub=0.0)
                for pattern, variable in zip(self._pool.patterns, self._nodes, strict=False):
                    if pattern.kind == kind.index:
                        row.set_coefficient(variable, 1.0)
            if kind.index in self._room:
                self._room[kind.index].upper_bound = float(kind.most)
        for row, allowed in zip(self._limits, reduced.limits, strict=True):
            row.upper_bound = float(allowed)
        for demand in reduced.demands:
            self._left[demand.index].upper_bound = 0.0 if demand.index in reduced.hopeless else float(demand.count)

    def _columns(self) -> None:
        """The columns that the pool has gained."""
        for pattern in self._pool.patterns[len(self._nodes) :]:
            variable = self._model.add_variable(lb=0.0)
            self._nodes.append(variable)
            self._model.objective.set_linear_coefficient(variable, float(self._weights.node_cost[pattern.kind]))
            if pattern.kind in self._room:
                self._room[pattern.kind].set_coefficient(variable, 1.0)
            for spec, pods in pattern.pods:
                self._serve[spec].set_coefficient(variable, float(pods))
            for row, use in zip(self._limits, self._pool.reduced.kinds[pattern.kind].use, strict=True):
                if use:
                    row.set_coefficient(variable, float(use))

    def steer(self, low: Floats, high: Floats) -> None:
        """Keep every pod value between `low` and `high`, at the price of an objective that is not the problem's: what
        is bought or sold there is told by `Relaxation.steered`. Duals that swing from one solve to the next make
        column generation slow; near a good guess they cannot (du Merle et al., Stabilized column generation, 1999)."""
        objective = self._model.objective
        wanted = self._pool.reduced.wanted.tolist()
        for spec, (bought, sold) in enumerate(zip(self._bought, self._sold, strict=True)):
            objective.set_linear_coefficient(bought, float(high[spec]))
            objective.set_linear_coefficient(sold, -float(low[spec]))
            bought.upper_bound = math.inf
            sold.upper_bound = float(wanted[spec]) if low[spec] > 0 else 0.0

    def release(self) -> None:
        """Steer no more."""
        for variable in (*self._bought, *self._sold):
            variable.upper_bound = 0.0

    def solve(self, seconds: float | None = None, reduced: Reduced | None = None) -> Relaxation | None:
        """Over the pool as it is now; `reduced`, where given, is the same problem in other numbers. None in case of
        time out."""
        self._state(reduced or self._pool.reduced)
        self._columns()
        parameters = mathopt.SolveParameters(threads=1)
        if seconds is not None:
            parameters.time_limit = timedelta(seconds=max(seconds, 0.001))
        result = self._solver.solve(params=parameters)
        if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
            return None
        room = np.zeros(len(self._pool.reduced.kinds))
        for kind, row in self._room.items():
            room[kind] = result.dual_values(row)
        limits = np.array(result.dual_values(self._limits), dtype=np.float64)
        return Relaxation(
            result.objective_value(),
            np.array(result.variable_values(self._nodes), dtype=np.float64),
            np.array(result.dual_values(self._serve), dtype=np.float64),
            -room - self._pool.reduced.use @ limits,
            {index: result.variable_values(variable) for index, variable in self._left.items()},
            np.array(result.variable_values(self._bought)) - np.array(result.variable_values(self._sold)),
        )


def alone(pool: Pool, active: Ints, weights: Weighting) -> None:
    """One column for each spec alone, on the kind that serves it at the least cost, so that every pod that fits
    somewhere is in some column."""
    reduced = pool.reduced
    fit = most_per_node(reduced, active)
    per_pod = np.where(fit > 0, weights.node_cost[active][:, None] / np.maximum(fit, 1), INFINITY)
    for spec in np.flatnonzero(reduced.wanted):
        position = int(np.argmin(per_pod[:, spec]))
        if fit[position, spec]:
            pool.add([Pattern(int(active[position]), ((int(spec), int(fit[position, spec])),))])
