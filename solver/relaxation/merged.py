"""The objective and limits of a merged relaxation, and the nodes that it may use: new kinds one by one, existing nodes
merged into clusters of similar shape. Solves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver.reduction.reduced import Bools, Floats, Ints, Reduced, most_per_node
from solver.relaxation.linear_program import INFINITY, LinearProgram

_MOST_CLUSTERS = 40

_MOST_GROUPS = 160
_MOST_SHARES = 64
"""Resources that are tried as those that pay for all."""
_ROUNDS = 12
_CLOSE = 2e-4
"""Relative difference between the merged optimum and the bound at which splitting stops."""
_KINDS_A_ROUND = 12
_PAYS = 1 + 1e-6
_FACTORS = (0.0, 1.0, 1000.0)
"""What nodes that another stage counts may cost in this one too, in terms of their price."""
_PENALTY = 10.0
"""In prices of the dearest node: what a pod that may not be left out costs where there is no room for it."""
_FINEST = 32
_GRAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Ask:
    """What is minimised, and what may not be exceeded. The problem's own limits need not be named."""

    node_cost: Floats
    """Per kind; zero for existing ones."""
    unserved_cost: Floats
    """Per demand index, per pod; infinite where none may be left out."""
    rows: Sequence[tuple[Floats, Floats, float]] = ()
    """(use per node of a kind, use per unserved pod of a demand, most)."""


@dataclass(frozen=True, slots=True)
class Supply:
    """New kinds one by one, then existing nodes merged into clusters, as rows of the same arrays."""

    kind: Ints
    """-1 for a cluster."""
    free: Floats
    most: Floats
    least: Floats
    cost: Floats
    use: Floats
    """Rows x (limits and rows of the ask)."""
    fits: Bools
    """Rows x specs."""


def supply_of(reduced: Reduced, active: Ints, ask: Ask) -> Supply:
    """Return the supply for an ask over the `active` kinds."""
    new = active[~reduced.existing[active]]
    old = active[reduced.existing[active]]
    nodes = np.array([reduced.kinds[k].most for k in old.tolist()], dtype=np.float64)
    cluster = _clusters(reduced.free[old])
    clusters = int(cluster.max(initial=-1)) + 1
    resources, specs = reduced.free.shape[1], len(reduced.wanted)
    free = np.zeros((clusters, resources))
    np.add.at(free, cluster, reduced.free[old] * nodes[:, None])
    fits = np.zeros((clusters, specs), dtype=bool)
    for c in range(clusters):
        fits[c] = reduced.fits[old[cluster == c]].any(axis=0)
    rows = len(reduced.limits) + len(ask.rows)
    use = np.zeros((len(new) + clusters, rows))
    use[: len(new), : len(reduced.limits)] = reduced.use[new]
    for column, (per_kind, _, _) in enumerate(ask.rows, len(reduced.limits)):
        use[: len(new), column] = per_kind[new]
    return Supply(
        np.concatenate([new, np.full(clusters, -1)]),
        np.concatenate([reduced.free[new].astype(np.float64), free]),
        np.concatenate([[float(reduced.kinds[k].most) for k in new], np.ones(clusters)]),
        np.concatenate([[float(reduced.kinds[k].least) for k in new], np.zeros(clusters)]),
        np.concatenate([ask.node_cost[new], np.zeros(clusters)]),
        use,
        np.concatenate([reduced.fits[new], fits]),
    )


def _clusters(free: Ints) -> Ints:
    """Return the cluster of each existing kind: by size and shape, as fine as leaves few clusters."""
    if not len(free):
        return np.zeros(0, dtype=np.int64)
    logs = np.log2(free + 1.0)
    step = 0.5
    while True:
        cluster = np.unique(np.round(logs / step).astype(np.int64), axis=0, return_inverse=True)[1].ravel()
        if cluster.max() < _MOST_CLUSTERS or step > 64:
            return np.asarray(cluster, dtype=np.int64)
        step *= 1.5


@dataclass(frozen=True, slots=True)
class Fluid:
    """A proven bound, the pod values that go with it, and a fractional plan close to it."""

    bound: float
    pod_values: Floats
    """Per spec."""
    kinds: Ints
    """New kinds that the fractional plan uses; none where time ran out."""
    placed: Floats
    """`kinds` x specs: pods."""
    prices: Floats
    """`kinds` x resources: what the nodes' resources are worth."""
    ratio: Floats
    """Per kind of the problem, what its best pattern is worth at most, for its cost; 0 where it was not computed."""


@dataclass(frozen=True, slots=True)
class _Solved:
    objective: float
    opened: Floats
    """Per chosen row."""
    placed: Floats
    """Chosen rows x groups."""
    prices: Floats
    """Chosen rows x resources."""
    group_values: Floats
    row_values: Floats
    """Per limit or row of the ask; not negative."""


class MergedFluid:
    """The model for one ask. `active` are the kinds that a plan may need; `over` is, per kind, an active one whose
    patterns are worth as much and cost no more (`dominance.dominators`): the others are considered only once that one
    is worth more than it costs, which is when it runs out."""

    def __init__(self, reduced: Reduced, active: Ints, over: Ints, ask: Ask) -> None:
        self._reduced = reduced
        self._requests = reduced.requests.astype(np.float64)
        self._wanted = reduced.wanted.astype(np.float64)
        demands = [d for d in reduced.live if d.count]
        index = np.array([d.index for d in demands], dtype=np.int64)
        self._spec = np.array([d.row for d in demands], dtype=np.int64)
        self._count = np.array([d.count for d in demands], dtype=np.float64)
        self._cost = ask.unserved_cost[index]
        limits = len(reduced.limits)
        self._use = np.zeros((len(index), limits + len(ask.rows)))
        for column, (_, use, _) in enumerate(ask.rows, limits):
            self._use[:, column] = use[index]
        self._allowed = np.array([*reduced.limits, *(most for _, _, most in ask.rows)], dtype=np.float64)
        self._supply = supply_of(reduced, active, ask)
        kind = self._supply.kind
        row = np.zeros(len(reduced.kinds), dtype=np.int64)
        row[kind[kind >= 0]] = np.flatnonzero(kind >= 0)
        self._over = np.where(kind >= 0, row[over[kind]], np.arange(len(kind)))
        self._core = np.flatnonzero(self._over == np.arange(len(kind)))
        self._per_node = np.zeros((len(kind), len(self._wanted)))
        self._counted_rows = np.zeros(len(kind), dtype=bool)
        self._unit = float(max(ask.node_cost.max(initial=0.0), 1.0))

    def solve(self, out_of_time: Callable[[], bool], seconds: Callable[[], float | None]) -> Fluid:
        """Solve and split until the bound is close to the optimum or time is up. There is always a bound, before the
        first question for the time: prices in proportion to nodes' sizes prove one (`_guessed`)."""
        supply = self._supply
        new = self._core[supply.kind[self._core] >= 0]
        prices, preferred = self._first_prices(new, supply.cost)
        values = self._values(prices, new)[0]
        nothing = np.zeros((0, len(values)))
        worth, unpaid = self._worth(prices, values), np.zeros(len(self._allowed))
        ratio = self._per_kind(self._ratio(worth, unpaid))
        bound = max(self._bound(values, worth, self._left_out(values, unpaid)), self._guessed(new))
        best = Fluid(bound, values, np.zeros(0, np.int64), nothing, prices[:0], ratio)
        if not self._wanted.any():
            return best
        group: Ints | None = None
        chosen = np.flatnonzero((supply.kind < 0) | (supply.least > 0))
        chosen = np.unique(np.concatenate([chosen, *preferred]))
        for _ in range(_ROUNDS):
            if out_of_time():
                break
            if group is None:  # only now: finding groups takes about as long as all before
                group = _renumbered(self._first_groups(preferred[0]))
            found = self._program(group, chosen, seconds())
            if found is None:
                break
            values, prefers = self._values(found.prices, chosen)
            alone = np.bincount(group[group >= 0])[group] == 1
            values = np.where(alone & (group >= 0), found.group_values[group], values)
            worth = self._worth(found.prices, values, chosen)
            bound = self._bound(values, worth, found.row_values)
            ratio = self._ratio(worth, found.row_values)
            if bound > best.bound or not best.kinds.size:
                best = self._fluid(max(bound, best.bound), values, group, chosen, found, ratio)
            entering = self._entering(ratio, chosen)
            split = _renumbered(np.where(group >= 0, group * (len(supply.kind) + 1) + prefers + 1, -1))
            if found.objective - bound <= _CLOSE * abs(found.objective) or (
                not entering.size and split.max(initial=-1) == group.max(initial=-1)
            ):
                break
            group, chosen = split, np.unique(np.concatenate([chosen, entering]))
        return best

    def _guessed(self, new: Ints) -> float:
        """Return the best bound that guesses prove, beside the simplest one, in a few passes over specs and rows."""
        supply, limits = self._supply, len(self._reduced.limits)
        if not supply.cost.any():
            return max((self._bound(*guess) for guess in self._by_room()), default=0.0)
        found = float(supply.least @ supply.cost)  # of nodes that have to be opened, though pods are worth nothing
        # Nodes whose cost another stage limits are free here, as dear as there, or as good as not to be had.
        counted = np.flatnonzero(supply.use[:, limits:].any(axis=0)) + limits
        for factor in _FACTORS if counted.size else (0.0,):
            rows = np.zeros(len(self._allowed))
            rows[counted] = factor
            cost = supply.cost + supply.use @ rows
            costly = new[cost[new] > 0]
            if factor == 0.0 and len(costly) == len(new):
                continue
            prices = self._first_prices(costly, cost)[0]
            values = self._values(prices, costly)[0]
            found = max(found, self._bound(values, self._worth(prices, values), self._left_out(values, rows)))
        return found

    def _by_room(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield, where no node costs anything, values of pods, worth of nodes and values of rows that show how many
        pods there is no room for: by each resource alone, of which everybody pays the same for a unit."""
        for resource in range(self._requests.shape[1]):
            asked = self._requests[self._spec, resource]
            room, rows = self._room(resource)
            if float(asked @ self._count) <= room:
                continue
            # What is certain to be served takes its room first; of others, those that it costs least to leave out wait.
            certain = ~np.isfinite(self._cost)
            room -= float(asked[certain] @ self._count[certain])
            may_wait = np.flatnonzero(~certain & (asked > 0))
            for column in range(len(self._reduced.limits), len(self._allowed)):
                mine = may_wait[self._use[may_wait, column] > 0]
                if mine.size and not self._supply.use[:, column].any():
                    order = mine[np.argsort(-asked[mine] / self._use[mine, column], kind="stable")]
                    taken = self._use[order, column] * self._count[order]
                    left = np.clip(self._allowed[column] - (np.cumsum(taken) - taken), 0.0, taken)
                    room -= float(((taken - left) / self._use[order, column]) @ asked[order])
                    may_wait = np.setdiff1d(may_wait, mine)
            order = may_wait[np.argsort(-self._cost[may_wait] / asked[may_wait], kind="stable")]
            beyond = np.flatnonzero(np.cumsum(asked[order] * self._count[order]) > room)
            if not beyond.size:
                continue
            price = self._cost[order[beyond[0]]] / asked[order[beyond[0]]]
            prices = np.zeros((1, self._requests.shape[1]))
            prices[0, resource] = price
            values = np.where(self._wanted > 0, price * self._requests[:, resource], 0.0)
            yield values, self._worth(prices, values), self._left_out(values, price * rows)

    def _room(self, resource: int) -> tuple[float, Floats]:
        """Return how much there is of a resource at most, and what that is by: values of limits that make the nodes
        under them worth no more, for a price of one."""
        supply, rows = self._supply, np.zeros(len(self._allowed))
        free, most = supply.free[:, resource], supply.most
        paid = np.zeros(len(most), dtype=bool)
        for limit in range(len(self._reduced.limits)):
            under = np.flatnonzero((supply.use[:, limit] > 0) & (free > 0) & ~paid)
            if under.size:
                each = float((free[under] / supply.use[under, limit]).max())
                if self._allowed[limit] * each < float(free[under] @ most[under]):
                    rows[limit], paid[under] = each, True
        return float(free[~paid] @ most[~paid] + self._allowed @ rows), rows

    def _left_out(self, values: Floats, rows: Floats) -> Floats:
        """Return the values of rows, those that allow so many pods to be left out included: so high that these are the
        pods worth most."""
        found, open_ = rows.copy(), np.isfinite(self._cost)
        for column in range(len(self._reduced.limits), len(self._allowed)):
            mine = np.flatnonzero(open_ & (self._use[:, column] > 0))
            if mine.size and not self._supply.use[:, column].any():
                use = self._use[mine, column]
                saved = (values[self._spec[mine]] - self._cost[mine]) / use
                order = np.argsort(-saved, kind="stable")
                beyond = np.flatnonzero(np.cumsum((use * self._count[mine])[order]) > self._allowed[column])
                found[column] = max(0.0, float(saved[order[beyond[0]]])) if beyond.size else 0.0
                open_[mine] = False
        return found

    def _first_prices(self, new: Ints, cost: Floats) -> tuple[Floats, list[Ints]]:
        """Return prices that spread the cost of these rows' nodes over their resources in the best of some fixed
        shares, and per choice of shares the row that serves each spec at the least price."""
        supply = self._supply
        resources = self._requests.shape[1]
        best: tuple[float, Floats] = (-1.0, np.zeros((len(new), resources)))
        preferred: list[Ints] = []
        for shares in (*self._single_shares(), np.ones(resources)):
            usable = (supply.free[new] > 0) * shares
            total = np.maximum(usable.sum(axis=1, keepdims=True), _GRAIN)
            prices = cost[new, None] * usable / total / np.maximum(supply.free[new], 1.0)
            values, prefers = self._values(prices, new)
            preferred.insert(0, prefers)
            worth = float(values @ self._wanted)
            if worth > best[0]:
                best = (worth, prices)
        return best[1], [rows[(self._wanted > 0) & (rows >= 0)] if i else rows for i, rows in enumerate(preferred)]

    def _single_shares(self) -> Iterator[Floats]:
        """Yield the choices of one resource that pays for all: where there are many, those that are asked for most."""
        asked = self._wanted @ self._requests / np.maximum(self._supply.free.max(axis=0, initial=0.0), 1.0)
        most = np.sort(np.argsort(-asked[:-1], kind="stable")[:_MOST_SHARES])
        for resource in most.tolist():
            shares = np.zeros(len(asked))
            shares[resource] = 1.0
            yield shares

    def _values(self, prices: Floats, rows: Ints) -> tuple[Floats, Ints]:
        """Return per spec its worth at the prices of the given rows, and the row where it is cheapest (-1 for none)."""
        if not rows.size:
            return np.zeros(len(self._wanted)), np.full(len(self._wanted), -1)
        paid = np.where(self._supply.fits[rows], prices @ self._requests.T, INFINITY)
        at = paid.argmin(axis=0)
        values = paid[at, np.arange(len(at))]
        fits = np.isfinite(values)
        return np.where(fits & (self._wanted > 0), values, 0.0), np.where(fits, rows[at], -1)

    def _bound(self, values: Floats, worth: Floats, rows: Floats) -> float:
        """Return the bound that the prices prove. Where a node would be worth more than it costs, all prices are also
        tried lowered until none is."""
        cost = self._supply.cost + self._supply.use @ rows
        new = (self._supply.kind >= 0) & (worth > 0) & (cost > 0)
        share = float(np.minimum(1.0, cost[new] / worth[new]).min(initial=1.0))
        return max(0.0, *(self._counted(values * s, worth * s, rows * s) for s in {1.0, share}))

    def _counted(self, values: Floats, worth: Floats, rows: Floats) -> float:
        """Return the Lagrangian bound: pods at their values or at the cost of leaving them out, less what nodes are
        worth beyond their cost, less the value of the limits."""
        supply = self._supply
        surplus = supply.cost + supply.use @ rows - worth
        nodes = np.where(surplus < 0, supply.most, supply.least) * surplus
        pods = self._count * np.minimum(values[self._spec], self._cost + self._use @ rows)
        return float(pods.sum() + nodes.sum() - self._allowed @ rows)

    def _worth(self, prices: Floats, values: Floats, chosen: Ints | None = None) -> Floats:
        """Return per row of the supply an upper bound on the worth of its best pattern: its resources at any one of the
        given price vectors, plus what pods are worth beyond those."""
        rows = self._core if chosen is None else np.union1d(self._core, chosen)
        if not len(prices):
            prices = np.zeros((1, self._requests.shape[1]))
        beyond = np.maximum(0.0, values - prices @ self._requests.T)
        beyond[beyond <= _GRAIN * values] = 0.0
        specs = np.flatnonzero(beyond.any(axis=0))
        worth = np.zeros(len(self._supply.kind))
        alone = self._most_per_node(rows)[:, specs] if specs.size else np.zeros((len(rows), 0))
        # What is left out above, a billionth of a value, is no more than what is added here.
        found = (self._supply.free[rows] @ prices.T + alone @ beyond[:, specs].T).min(axis=1)
        worth[rows] = found * (1 + 10 * _GRAIN)
        merged = np.flatnonzero(self._supply.kind < 0)
        worth[merged] = np.minimum(worth[merged], self._supply.fits[merged] @ (values * self._wanted))
        known = np.zeros(len(worth), dtype=bool)
        known[rows] = True
        return np.where(known, worth, worth[self._over])

    def _most_per_node(self, rows: Ints) -> Floats:
        """Return rows x specs: pods of a spec alone on one node; in a cluster all that are wanted."""
        missing = rows[~self._counted_rows[rows]]
        new = missing[self._supply.kind[missing] >= 0]
        self._per_node[new] = most_per_node(self._reduced, self._supply.kind[new])
        merged = missing[self._supply.kind[missing] < 0]
        self._per_node[merged] = self._supply.fits[merged] * self._wanted
        self._counted_rows[missing] = True
        return self._per_node[rows]

    def _ratio(self, worth: Floats, rows: Floats) -> Floats:
        """Return worth over cost per row of the supply."""
        return np.asarray(worth / np.maximum(self._supply.cost + self._supply.use @ rows, 1.0))

    def _per_kind(self, ratio: Floats) -> Floats:
        per_kind = np.zeros(len(self._reduced.kinds))
        new = self._supply.kind >= 0
        per_kind[self._supply.kind[new]] = ratio[new]
        return per_kind

    def _entering(self, ratio: Floats, chosen: Ints) -> Ints:
        """Return the rows that would pay, a limited number at a time."""
        out = ratio.copy()
        out[chosen] = 0.0
        best = np.argsort(-out, kind="stable")[: max(_KINDS_A_ROUND, len(chosen) // 2)]
        return np.asarray(best[out[best] > _PAYS])

    def _first_groups(self, preferred: Ints) -> Ints:
        """Return the group of each spec, -1 where none of it is wanted: by the mix of resources, as fine as leaves few
        groups, and by where it may run."""
        supply, live = self._supply, self._wanted > 0
        if np.count_nonzero(live) <= _MOST_GROUPS:
            return np.where(live, np.arange(len(live)), -1)
        scale = 1.0 / np.maximum(supply.free[supply.kind >= 0].mean(axis=0) if (supply.kind >= 0).any() else 1.0, 1.0)
        mix = self._requests * scale
        mix /= np.maximum(mix.sum(axis=1, keepdims=True), _GRAIN)
        runs = np.unique(np.packbits(supply.fits, axis=0).T, axis=0, return_inverse=True)[1].ravel()
        grain = _FINEST
        while True:
            keys = np.column_stack([np.round(mix * grain).astype(np.int64), preferred, runs])
            group = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
            if grain <= 2 or len(np.unique(group[live])) <= _MOST_GROUPS:
                return np.where(live, group, -1)
            grain //= 2
            if grain <= 4:
                runs = np.zeros_like(runs)

    def _program(self, group: Ints, chosen: Ints, seconds: float | None) -> _Solved | None:
        supply, program = self._supply, LinearProgram()
        groups, resources = int(group.max(initial=-1)) + 1, self._requests.shape[1]
        live = np.flatnonzero(group >= 0)
        wanted: Floats = np.bincount(group[live], self._wanted[live], minlength=groups).astype(np.float64)
        requests = np.column_stack(
            [
                np.bincount(group[live], self._wanted[live] * self._requests[live, r], minlength=groups) / wanted
                for r in range(resources)
            ]
        )
        misfits = np.zeros((groups, len(chosen)), dtype=np.int64)
        np.add.at(misfits, group[live], ~supply.fits[np.ix_(chosen, live)].T)
        # In units of the dearest node: GLOP works best with numbers around one.
        opened = program.add_variables(supply.cost[chosen] / self._unit, supply.most[chosen], supply.least[chosen])
        group_of, row_of = np.nonzero(misfits == 0)
        placed = program.add_variables(np.zeros(len(group_of)))
        serve = program.add_rows(wanted, INFINITY, groups)
        program.add_entries(serve[group_of], placed, 1.0)
        scale = 1.0 / np.maximum(supply.free[chosen], 1.0)
        capacity = program.add_rows(-INFINITY, 0.0, len(chosen) * resources).reshape(len(chosen), resources)
        program.add_entries(capacity[row_of], placed[:, None], requests[group_of] * scale[row_of])
        program.add_entries(capacity, opened[:, None], -supply.free[chosen] * scale)
        self._whole_pods(program, group, chosen, opened, placed, group_of, row_of)
        limits = program.add_rows(-INFINITY, self._allowed, len(self._allowed))
        program.add_entries(limits, opened[:, None], supply.use[chosen])
        left = program.add_variables(np.minimum(self._cost / self._unit, _PENALTY), most=self._count)
        program.add_entries(serve[group[self._spec]], left, 1.0)
        program.add_entries(limits, left[:, None], self._use)
        solution = program.solve(seconds)
        if solution is None:
            return None
        amounts = np.zeros((len(chosen), groups))
        amounts[row_of, group_of] = solution.values[placed]
        return _Solved(
            solution.objective * self._unit,
            solution.values[opened],
            amounts,
            np.maximum(-solution.duals[capacity] * scale, 0.0) * self._unit,
            np.maximum(solution.duals[serve], 0.0) * self._unit,
            np.maximum(-solution.duals[limits], 0.0) * self._unit,
        )

    def _whole_pods(
        self,
        program: LinearProgram,
        group: Ints,
        chosen: Ints,
        opened: Ints,
        placed: Ints,
        group_of: Ints,
        row_of: Ints,
    ) -> None:
        """Allow no more of one spec than whole pods fit, for specs that are groups of their own."""
        supply = self._supply
        only = np.full(int(group.max(initial=-1)) + 1, -1)
        members = np.bincount(group[group >= 0])
        live = np.flatnonzero(group >= 0)
        only[group[live]] = live
        spec = only[group_of]
        new = (members[group_of] == 1) & (supply.kind[chosen[row_of]] >= 0)
        need = np.maximum(self._requests[spec], 1.0)
        ratio = np.where(self._requests[spec] > 0, supply.free[chosen[row_of]] / need, INFINITY).min(axis=1)
        whole = np.minimum(np.floor(ratio + _GRAIN), self._reduced.caps[spec])
        tight = np.flatnonzero(new & (whole < ratio - _GRAIN))
        rows = program.add_rows(-INFINITY, 0.0, len(tight))
        program.add_entries(rows, placed[tight], 1.0)
        program.add_entries(rows, opened[row_of[tight]], -whole[tight])

    def _fluid(self, bound: float, values: Floats, group: Ints, chosen: Ints, found: _Solved, ratio: Floats) -> Fluid:
        kind = self._supply.kind[chosen]
        used = np.flatnonzero((kind >= 0) & (found.opened > _GRAIN))
        live = group >= 0
        total = np.bincount(group[live], self._wanted[live])
        share = np.where(live, self._wanted / np.maximum(total[group], 1.0), 0.0)
        placed = found.placed[used][:, group] * share
        return Fluid(bound, values, kind[used], placed, found.prices[used], self._per_kind(ratio))


def _renumbered(group: Ints) -> Ints:
    """Return groups numbered from 0 without gaps; -1 stays."""
    numbers = np.unique(group, return_inverse=True)[1].ravel()
    return np.asarray(numbers - (group.min(initial=0) < 0), dtype=np.int64)
