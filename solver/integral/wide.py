"""The merged fluid relaxation of a problem without rules, by stages of the objective, and a first plan along it.

For problems with thousands of specs or existing nodes this is the plan: neither all patterns nor all columns that pay
can be enumerated there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.columns.patterns import Pattern
from solver.columns.pool import Pool
from solver.integral import greedy
from solver.integral.master import Selection
from solver.integral.packing import Packing
from solver.model.budget import PROPOSE_SECONDS, RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.dominance import dominators
from solver.reduction.objective import unavoidable_value
from solver.reduction.reduced import Demand, Floats, Ints, Reduced
from solver.relaxation.merged import Ask, Fluid, MergedFluid

_MANY_NODES = 200
"""Kinds of standing nodes from which on they are merged in linear programs."""
_MOST_PRICED = 30_000
"""Pairs of specs and kinds up to which the patterns of all kinds are priced, which proves more than the fluid."""
_PAYS = 1 - 1e-6
_NEARLY_PAYS = 0.97
"""Of a node's cost, what it is worth in the fluid at most."""
_LEAST_VALUE = 0.05
"""Of what a pod's largest share of a node costs: what serving it is worth at least while nodes are filled."""


@dataclass(frozen=True)
class WideModel:
    """The merged fluid relaxation, minimised by stages of the objective."""

    reduced: Reduced
    active: Ints
    """Kinds that a plan may need, as of `dominance.needed_kinds`."""
    budget: RunningBudget

    @cached_property
    def over(self) -> Ints:
        return dominators(self.reduced, self.active)

    @property
    def tells_nodes_apart(self) -> bool:
        """Whether there are few enough kinds of existing nodes for columns of each."""
        return int(np.count_nonzero(self.reduced.existing[self.active])) <= _MANY_NODES

    def worth_pricing(self, fluid: Fluid) -> tuple[Ints, bool]:
        """Return kinds of which patterns may pay, and whether all others are proven not to, at any pod values, while
        the kinds that dominate them do not run out. Where there are too many for the time, return those close to
        paying."""
        kinds = (
            self.reduced.existing[self.active]
            | (self.over[self.active] == self.active)
            | (fluid.ratio[self.active] >= _PAYS)
        )
        found = self.active[kinds]
        if np.count_nonzero(self.reduced.wanted) * len(found) <= _MOST_PRICED:
            return found, True
        return found[self.reduced.existing[found] | (fluid.ratio[found] >= _NEARLY_PAYS)], False

    def minimise(self, stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int], fraction: float) -> float:
        """Return a lower bound on a stage where earlier stages have at most their `fixed` values, with what no plan can
        avoid."""
        avoidable = {other: most - unavoidable_value(other, self.reduced) for other, most in fixed.items()}
        unserved = self._per_pod(stage)
        rows = []
        for other, most in avoidable.items():
            if other.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS) and most <= 0:
                unserved[self._per_pod(other) > 0] = np.inf
            else:
                rows.append((self._per_node(other), self._per_pod(other), float(most)))
        ask = Ask(self._per_node(stage), unserved, rows)
        return self._solve(ask, fraction).bound + unavoidable_value(stage, self.reduced)

    def weighed(self, weights: Mapping[ObjectiveStage, float], fraction: float) -> Fluid:
        """Minimise all stages weighed into one objective."""
        nodes = np.sum([w * self._per_node(stage) for stage, w in weights.items()], axis=0)
        pods = np.sum([w * self._per_pod(stage) for stage, w in weights.items()], axis=0)
        return self._solve(Ask(np.asarray(nodes), np.asarray(pods)), fraction)

    def _solve(self, ask: Ask, fraction: float) -> Fluid:
        return MergedFluid(self.reduced, self.active, self.over, ask).solve(
            lambda: self._out_of_time(fraction), lambda: self.budget.wall_limit(fraction)
        )

    def _out_of_time(self, fraction: float) -> bool:
        self.budget.charge(PROPOSE_SECONDS)
        return self.budget.left_seconds(fraction) <= 0

    def _per_node(self, stage: ObjectiveStage) -> Floats:
        found = np.zeros(len(self.reduced.kinds))
        if stage.goal in (Goal.COST, Goal.NODES):
            new = self.reduced.new_kinds
            found[~self.reduced.existing] = [stage.node_cost(k.price_micros, k.weight) for k in new]
        return found

    def _per_pod(self, stage: ObjectiveStage) -> Floats:
        """Return the least of each demand's pods, which have waited for different times: a bound all the same."""
        found = np.zeros(len(self.reduced.demands))
        for demand in self.reduced.counted.get(stage, ()):
            waited = stage.goal is Goal.WAITING
            found[demand.index] = min(age for age, _ in demand.ages) if waited else 1.0
        return found


def can_pack(reduced: Reduced) -> bool:
    """Return whether no pod needs another one beside it."""
    return not reduced.needs


def packed(
    model: WideModel, node_cost: Floats, fluid: Fluid, known: Mapping[Pattern, int] | None = None
) -> tuple[Pool, Selection]:
    """Return an integral plan along a fractional one: what must be opened, nodes `known` from before, existing nodes,
    the fractional plan's nodes, the rest."""
    reduced, new = model.reduced, _new_kinds(model)
    packing = Packing(reduced, node_cost, _values(model, new, node_cost, fluid.pod_values))
    packing.oblige([kind for kind in reduced.kinds if kind.least])
    packing.repeat(known or {})
    standing = reduced.existing_kinds
    packing.open_all(
        np.array([kind.index for kind in standing], dtype=np.int64),
        np.array([kind.most for kind in standing], dtype=np.int64),
    )
    if not known:
        packing.follow(fluid)
    packing.finish(new, fluid.ratio[new] + _LEAST_VALUE)
    pool = Pool(reduced)
    pool.add(packing.nodes)
    return pool, greedy.whole_gangs(pool, packing.left, dict(enumerate(packing.nodes.values())))


def packed_in_order(
    model: WideModel, node_cost: Floats, pod_values: Floats, *, gangs_first: bool
) -> tuple[Pool, Selection]:
    """Return a plan where not all pods can be served: the highest priorities first, within one the gangs that have
    waited longest, each whole or not at all. What is then left on their nodes is filled with whatever fits."""
    reduced, new = model.reduced, _new_kinds(model)
    packing = Packing(reduced, node_cost, _values(model, new, node_cost, pod_values))
    packing.oblige([kind for kind in reduced.kinds if kind.least])
    kinds = np.concatenate([np.array([k.index for k in reduced.existing_kinds], dtype=np.int64), new])
    gangs: dict[str, list[Demand]] = {}
    for demand in reduced.live:
        if demand.gang is not None:
            gangs.setdefault(demand.gang, []).append(demand)
    stocks = {name: _stock(reduced, members) for name, members in gangs.items()}
    packing.left -= _stock(reduced, [demand for members in gangs.values() for demand in members])
    served_in_turn: list[tuple[tuple[bool, int, bool, int], str | None, Ints]] = [
        ((False, -max(d.priority for d in members), not gangs_first, -_waited(members)), name, stocks[name])
        for name, members in gangs.items()
    ]
    single = [d for d in reduced.live if d.gang is None]
    for level in sorted({(d.placeholder, -d.priority) for d in single}):
        mine = [d for d in single if (d.placeholder, -d.priority) == level]
        served_in_turn.append(((*level, gangs_first, 0), None, _stock(reduced, mine)))
    for _, gang, stock in sorted(served_in_turn, key=lambda each: each[0]):
        saved = packing.save()
        if gang is not None:
            packing.left += stock
        if not packing.serve(kinds, stock) and gang is not None:
            packing.restore(saved)
        else:
            stocks.pop(gang or "", None)
    left = packing.left + _stock(reduced, [demand for gang in stocks for demand in gangs[gang]])
    pool = Pool(reduced)
    pool.add(packing.nodes)
    return pool, greedy.whole_gangs(pool, left, dict(enumerate(packing.nodes.values())), frozenset(stocks))


def _stock(reduced: Reduced, demands: Sequence[Demand]) -> Ints:
    """Return pods per spec."""
    stock = np.zeros(len(reduced.rows), dtype=np.int64)
    for demand in demands:
        stock[demand.row] += demand.count
    return stock


def _waited(demands: Sequence[Demand]) -> int:
    return max((age for demand in demands for age, _ in demand.ages), default=0)


def _new_kinds(model: WideModel) -> Ints:
    return model.active[~model.reduced.existing[model.active]]


def _values(model: WideModel, new: Ints, node_cost: Floats, pod_values: Floats) -> Floats:
    return at_least(pod_values, model.reduced, new[model.over[new] == new], node_cost)


def at_least(pod_values: Floats, reduced: Reduced, kinds: Ints, node_cost: Floats) -> Floats:
    """Return pod values per spec, never zero, for filling nodes of these kinds."""
    least = _LEAST_VALUE * dominant_shares(reduced, kinds, node_cost)
    return np.maximum(np.maximum(pod_values, least), 1e-6)


def dominant_shares(reduced: Reduced, kinds: Ints, node_cost: Floats) -> Floats:
    """Return quick pod values: of the cheapest kind, the price of the largest share of a node that a pod takes."""
    values = np.full(len(reduced.wanted), np.inf)
    requests = np.ascontiguousarray(reduced.requests.T, dtype=np.float64)
    for kind in kinds:
        shares = (requests / np.maximum(reduced.free[kind], 1)[:, None]).max(axis=0) * node_cost[kind]
        np.minimum(values, shares, out=values, where=reduced.fits[kind])
    return np.where(np.isfinite(values), values, 0.0)
