"""The pool of node patterns and its linear relaxation: the master problem of column generation.

A column opens one node of a kind with one pattern. The relaxation prices pods (its duals) so that new columns can be
sought where they pay; `master` takes the integral decision over the same pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from solver.columns.patterns import Pattern, trimmed
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.colocation import CoLocation
from solver.reduction.objective import unavoidable_value
from solver.reduction.reduced import Floats, Ints, Reduced, most_per_node
from solver.relaxation.linear_program import INFINITY, LinearProgram


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

    @cached_property
    def _colocation(self) -> CoLocation:
        return CoLocation(self.reduced)

    def add(self, patterns: Iterable[Pattern], *, whole: bool = False) -> int:
        """Returns how many were new. What may not share a node is left out of a pattern first, unless they are known to
        be `whole`."""
        before = len(self.patterns)
        whole = whole or self._colocation.anything_goes
        for offered in patterns:
            pattern = offered if whole else trimmed(self._colocation, offered)
            if pattern not in self._known:
                self._known.add(pattern)
                self.patterns.append(pattern)
        return len(self.patterns) - before

    def kinds(self) -> Ints:
        """Return the kind of each column."""
        self._extend()
        return self._kinds

    def entries(self) -> Entries:
        """Return the entries of all columns as they are now."""
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
        return np.bincount(all_of.spec[:last], weights=amounts, minlength=len(self.reduced.rows)).astype(np.int64)


def entries(patterns: Sequence[Pattern], first: int = 0) -> Entries:
    """Columns are numbered from `first`."""
    sizes = [len(pattern.pods) for pattern in patterns]
    pairs = np.array([pair for pattern in patterns for pair in pattern.pods], dtype=np.int64).reshape(-1, 2)
    return Entries(np.repeat(np.arange(first, first + len(patterns)), sizes), pairs[:, 0], pairs[:, 1])


@dataclass(frozen=True, slots=True)
class Duals:
    """What things are worth to a fractional plan."""

    pods: Floats
    """Per row: what serving one more unit costs."""
    room: Floats
    """Per kind: what one more node that could be opened saves; zero for kinds that cannot run out."""
    limits: Floats
    """Per limit row: what a unit more saves."""

    def mixed(self, other: Duals, share: float) -> Duals:
        """`share` of the other's, and the rest of one's own."""
        pairs = ((self.pods, other.pods), (self.room, other.room), (self.limits, other.limits))
        return Duals(*((1 - share) * mine + share * theirs for mine, theirs in pairs))

    def prices(self, node_cost: Floats, reduced: Reduced) -> Floats:
        """Per kind: what a node costs with its share of room and limits that run short."""
        return np.asarray(node_cost + self.room + reduced.use @ self.limits, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """An optimal fractional plan over a pool."""

    objective: float
    nodes: Floats
    """Per column."""
    duals: Duals
    unserved: Mapping[int, float]
    """Per demand index."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """One price for everything, to guide the search; the exact order of objectives is `master`'s business."""

    node_cost: Floats
    """Per kind."""
    unserved_cost: Floats
    """Per demand index, per pod."""


_TIER_FACTOR = 100.0
_MOST_FACTOR = 1e6
_PRIORITY_FACTOR = 30.0
_NOISE = 1e-9
"""Of the largest dual: what the linear program leaves of zero. To pricing, a pod of no worth takes no room."""


def weighting(reduced: Reduced) -> Weighting:
    """A node of a lower tier costs 100 times as much as the same node one tier up, and leaving a pod out more than any
    node, one of the next higher priority as much as 30, or fewer where there are many priorities: with larger numbers
    the linear program could not tell what nodes cost."""
    steps = {weight: min(_TIER_FACTOR**rank, _MOST_FACTOR) for rank, weight in enumerate(reversed(reduced.tiers))}
    node_cost = np.array([0.0 if k.existing else k.price_micros * steps[k.weight] + 1.0 for k in reduced.kinds])
    dearest = float(node_cost.max(initial=1.0))
    ranks = {priority: rank for rank, priority in enumerate(reversed(reduced.priorities))}
    factor = min(_PRIORITY_FACTOR, _MOST_FACTOR ** (1 / max(1, len(ranks) - 1)))
    unserved = np.array([1.0 if d.placeholder else 2.0 * factor ** ranks[d.priority] for d in reduced.demands])
    return Weighting(node_cost, 2.0 * dearest * unserved)


def values(
    found: Relaxation, pool: Pool, reduced: Reduced, order: Sequence[ObjectiveStage]
) -> dict[ObjectiveStage, float]:
    """What a fractional plan comes to in each stage; waiting times at the demands' mean."""
    opened = np.bincount(pool.kinds(), weights=found.nodes, minlength=len(reduced.kinds))
    result: dict[ObjectiveStage, float] = {}
    for stage in order:
        result[stage] = float(unavoidable_value(stage, reduced)) + sum(
            stage.node_cost(kind.price_micros, kind.weight) * float(opened[kind.index]) for kind in reduced.new_kinds
        )
        for demand in reduced.counted.get(stage, ()):
            if demand.count and demand.index not in reduced.lost:
                waited_seconds = sum(age * count for age, count in demand.ages) / demand.count
                result[stage] += found.unserved[demand.index] * (waited_seconds if stage.goal is Goal.WAITING else 1)
    return result


class RelaxedMaster:
    """The linear relaxation over a pool, kept between solves: new columns and changed numbers of pods, nodes and
    limits start from the last basis."""

    def __init__(self, pool: Pool, weights: Weighting) -> None:
        self._pool, self._weights, self._loaded = pool, weights, 0
        reduced = pool.reduced
        self._program = program = LinearProgram()
        self._serve = program.add_rows(0.0, INFINITY, len(reduced.rows))
        self._limits = program.add_rows(-INFINITY, 0.0, len(reduced.limits))
        self._room = np.full(len(reduced.kinds), -1)
        self._left = program.add_variables(weights.unserved_cost)
        served = np.array([(demand.row, demand.index) for demand in reduced.live], dtype=np.int64).reshape(-1, 2)
        program.add_entries(self._serve[served[:, 0]], self._left[served[:, 1]], 1.0)
        self._nodes = np.zeros(0, dtype=np.int64)

    def _state(self, reduced: Reduced) -> None:
        program = self._program
        program.bound_rows(self._serve, reduced.wanted.astype(np.float64), INFINITY)
        # Most kinds can never run out: every pod could have a node of its own. Those have no row.
        most = np.array([kind.most for kind in reduced.kinds], dtype=np.float64)
        short = np.flatnonzero((self._room < 0) & (most < self._pool.reduced.enough))
        self._room[short] = program.add_rows(-INFINITY, 0.0, len(short))
        kinds = self._pool.kinds()[: self._loaded]
        columns = np.flatnonzero(np.isin(kinds, short))
        program.add_entries(self._room[kinds[columns]], self._nodes[columns], 1.0)
        bounded = np.flatnonzero(self._room >= 0)
        program.bound_rows(self._room[bounded], -INFINITY, most[bounded])
        program.bound_rows(self._limits, -INFINITY, np.array(reduced.limits, dtype=np.float64))
        left = [0 if demand.index in reduced.infeasible else demand.count for demand in reduced.demands]
        program.bound_variables(self._left, np.array(left, dtype=np.float64))

    def _columns(self) -> None:
        """The columns that the pool has gained."""
        pool, program, first = self._pool, self._program, self._loaded
        kinds, held = pool.kinds()[first:], pool.entries()
        added = program.add_variables(self._weights.node_cost[kinds])
        self._nodes, self._loaded = np.concatenate([self._nodes, added]), len(pool.patterns)
        start = int(np.searchsorted(held.column, first))
        program.add_entries(self._serve[held.spec[start:]], self._nodes[held.column[start:]], held.pods[start:])
        rooms = self._room[kinds]
        program.add_entries(rooms[rooms >= 0], added[rooms >= 0], 1.0)
        use = pool.reduced.use[kinds]
        column, limit = np.nonzero(use)
        program.add_entries(self._limits[limit], added[column], use[column, limit])

    def solve(self, seconds: float | None = None, reduced: Reduced | None = None) -> Relaxation | None:
        """Over the pool as it is now; `reduced`, where given, is the same problem in other numbers. None in case of
        time out."""
        now = reduced or self._pool.reduced
        self._state(now)
        self._columns()
        found = self._program.solve(seconds)
        if found is None:
            return None
        bounded = np.flatnonzero(self._room >= 0)
        room = np.zeros(len(now.kinds))
        room[bounded] = -found.duals[self._room[bounded]]
        pods = np.maximum(found.duals[self._serve], 0.0)
        pods[pods < _NOISE * pods.max(initial=0.0)] = 0.0
        duals = Duals(pods, room, -found.duals[self._limits])
        return Relaxation(
            found.objective,
            found.values[self._nodes],
            duals,
            dict(enumerate(found.values[self._left].tolist())),
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
