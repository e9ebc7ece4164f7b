"""The pool of node patterns and its linear relaxation: the master problem of column generation.

A column opens one node of a kind with one pattern. The relaxation prices pods (its duals) so that new columns can be
sought where they pay; `master` takes the integral decision over the same pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from solver.lp import INFINITY, LinearProgram
from solver.patterns import Pattern, best_for_values
from solver.reduce import Floats, Ints, Kind, Reduced


@dataclass
class Pool:
    """Distinct patterns, in the order they were found."""

    reduced: Reduced
    patterns: list[Pattern] = field(default_factory=list)
    _known: set[Pattern] = field(default_factory=set)

    def add(self, patterns: Iterable[Pattern]) -> int:
        """Returns how many were new."""
        before = len(self.patterns)
        for pattern in patterns:
            if pattern not in self._known:
                self._known.add(pattern)
                self.patterns.append(pattern)
        return len(self.patterns) - before

    def pods(self) -> Ints:
        """Columns x specs."""
        rows = [pattern.pods for pattern in self.patterns]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.reduced.specs))

    def kinds(self) -> Ints:
        """Per column: its kind."""
        return np.array([pattern.kind for pattern in self.patterns], dtype=np.int64)


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


def relax(pool: Pool, weights: Weighting, seconds: float | None = None) -> Relaxation | None:
    """Solves the linear relaxation over the pool; None in case of time out."""
    reduced = pool.reduced
    kinds, program = pool.kinds(), LinearProgram()
    nodes = program.add_variables(weights.node_cost[kinds])
    serve = program.add_rows(reduced.wanted.astype(np.float64), INFINITY, len(reduced.specs))
    pods = pool.pods()
    column, spec = np.nonzero(pods)
    program.add_entries(serve.start + spec, nodes.start + column, pods[column, spec])
    for demand in reduced.live:
        left = program.add_variables([weights.unserved_cost[demand.index]], upper=float(demand.count)).start
        program.add_entries(serve.start + demand.spec, left, 1.0)
    room = program.add_rows(-INFINITY, np.array([float(kind.most) for kind in reduced.kinds]), len(reduced.kinds))
    program.add_entries(room.start + kinds, np.array(nodes), 1.0)
    limits = program.add_rows(-INFINITY, np.array(reduced.limits, dtype=np.float64), len(reduced.limits))
    use = reduced.use.astype(np.float64)
    program.add_entries(np.array(limits)[None, :], np.array(nodes)[:, None], use[kinds])
    solution = program.solve(seconds)
    if solution is None:
        return None
    duals = solution.duals
    return Relaxation(
        solution.objective,
        solution.values[: len(kinds)],
        duals[serve.start : serve.stop],
        -duals[room.start : room.stop] - use @ duals[limits.start : limits.stop],
    )


def seed(pool: Pool, values: Floats, active: Ints, rng: np.random.Generator, samples: int) -> None:
    """First columns: greedy patterns for the fluid's pod values, and one of each spec alone on the kinds that serve it
    at the least cost, so that every pod that fits somewhere is in some column."""
    reduced = pool.reduced
    for index in active:
        kind = reduced.kinds[index]
        rows = best_for_values(reduced, kind, np.maximum(values, 1e-6), reduced.wanted, rng, samples)
        pool.add(Pattern(kind.index, tuple(row)) for row in rows.tolist())
    alone = _alone(reduced, active)
    prices = weighting(reduced).node_cost[active]
    for spec in np.flatnonzero(reduced.wanted):
        per_pod = np.where(alone[:, spec] > 0, prices / np.maximum(alone[:, spec], 1), INFINITY)
        for position in np.argsort(per_pod, kind="stable")[:3]:
            if np.isfinite(per_pod[position]):
                pods = [0] * len(reduced.specs)
                pods[spec] = int(alone[position, spec])
                pool.add([Pattern(int(active[position]), tuple(pods))])


def _alone(reduced: Reduced, active: Ints) -> Ints:
    """Kinds x specs: how many pods of the spec one empty node holds, at most as many as are wanted."""
    free = reduced.free[active][:, None, :]
    need = reduced.requests[None, :, :]
    fit = np.where(need > 0, free // np.maximum(need, 1), np.iinfo(np.int64).max).min(axis=2)
    return np.where(reduced.fits[active], np.minimum(fit, reduced.wanted), 0)


def improve(pool: Pool, found: Relaxation, weights: Weighting, active: Ints, rng: np.random.Generator) -> int:
    """Adds patterns that would lower the relaxation's cost, as the greedy finds them; returns how many were new."""
    reduced, added = pool.reduced, 0
    for index in active:
        kind: Kind = reduced.kinds[index]
        price = weights.node_cost[index] + found.kind_values[index]
        rows = best_for_values(reduced, kind, found.pod_values, reduced.wanted, rng, samples=12)
        worth = rows @ found.pod_values
        good = np.flatnonzero(worth > price * (1 + 1e-6) + 1e-6)
        best = good[np.argsort(-worth[good], kind="stable")[:3]]
        added += pool.add(Pattern(kind.index, tuple(row)) for row in rows[best].tolist())
    return added
