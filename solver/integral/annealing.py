"""A plan improved by simulated annealing (`annealing_kernel`): every unit has a place of its own, and moves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from solver.columns.patterns import Pattern
from solver.columns.pool import Pool, Weighting
from solver.compiled import Kernel, Threads
from solver.integral.annealing_kernel import anneal, become, energy_of, insert, put
from solver.integral.annealing_state import Families, Given, given_of, state_of
from solver.integral.master import Selection
from solver.model import PODS, NodeGroup, PodSet, PodSpec, Problem
from solver.model.budget import RunningBudget
from solver.reduction.objective import Units, rounded_cost
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Floats, Ints, Reduced

HOT, _COLD = 0.2, 0.01
"""The first temperature and the last one, in what a usual unit costs."""
_CHUNKS = 100
"""Temperatures, at least."""
_FEW = 2000
"""Moves at one temperature, at least."""
SECONDS_PER_MOVE = 0.5e-6
"""What a move is charged under a deterministic budget."""

_LEAST_MOVES = 300
"""Of each unit: with fewer, rounding by trial is better."""
_MOST_OF_A_CLASS = 16
"""Pods of a class on average: with more, columns repeat, and time is better spent on them and on their bound."""
_HOT = (0.01, 0.3)
"""First temperatures, in what a usual unit costs: one keeps most of the plan, one little but its nodes. Either may be
the better one."""


class Annealing:
    """Units of rows, and nodes that hold them."""

    def __init__(self, reduced: Reduced, node_cost: Floats, units: Units) -> None:
        """`units` are those to be placed, with their rows chosen."""
        self._reduced = reduced
        self._families = Families(reduced, node_cost)
        self._given = given_of(reduced, node_cost, self._families)
        chosen = [(*which, count) for which, count in sorted(units.items()) if _counted_by(reduced, *which)]
        demands, rows, counts = (np.array(part, dtype=np.int64) for part in zip(*chosen, strict=True))
        self._demand = np.repeat(demands, counts)
        self._state = state_of(reduced, self._families, self._given, np.repeat(rows, counts))
        self._scale = _usual_cost(self._given, self._state.row)
        kinds = reduced.kinds
        self._micros = np.array([0 if each.existing else each.price_micros for each in kinds], dtype=np.int64)
        self._owed = np.array([each.least for each in kinds], dtype=np.int64)

    def place_all(self) -> int:
        """Give every unit without a place the one that costs least, the largest first, up to the first that finds none.
        Return how many have none."""
        state, given = self._state, self._given
        waiting = np.flatnonzero(state.node < 0)
        size = (given.requests / np.maximum(given.free.max(axis=0, initial=1), 1)).max(axis=1, initial=0.0)
        needy = _depth(self._reduced)
        rows = state.row[waiting]
        order = np.lexsort((waiting, -size[rows], needy[rows]))
        insert(given, state, waiting[order], len(self._families.new))
        return int(np.count_nonzero(state.node < 0))

    def place_as(self, nodes: Mapping[Pattern, int]) -> None:
        """Open so many nodes of each pattern, with units that have no place yet."""
        state, given, families = self._state, self._given, self._families
        waiting: dict[int, list[int]] = defaultdict(list)
        for unit in np.flatnonzero(state.node < 0)[::-1].tolist():
            waiting[int(state.row[unit])].append(unit)
        there: dict[int, list[int]] = defaultdict(list)
        for node in range(families.stay - 1, -1, -1):
            there[int(state.place[node])].append(node)
        places = {kind: place for place, kind in enumerate(families.order.tolist())}
        for pattern, count in nodes.items():
            place = places[pattern.kind]
            family = int(np.searchsorted(given.first_kind, place, side="right")) - 1
            for _ in range(count):
                units = [
                    (waiting[row].pop(), row) for row, pods in pattern.pods for _ in range(min(pods, len(waiting[row])))
                ]
                is_there = bool(there[place])
                node = there[place].pop() if is_there else int(state.closed[state.closed[0]])
                if not units:
                    continue
                for unit, row in units:
                    put(given, state, unit, node, row)
                if not is_there:
                    energy = energy_of(given, place, state.usage[node])
                    become(given, state, node, family, place, energy)

    @property
    def cost_micros(self) -> int:
        """What the new nodes cost an hour, those that are owed in any case included."""
        state = self._state
        used = self._families.order[state.place[(state.family >= 0) & (state.first >= 0)]]
        opened = np.bincount(used, minlength=len(self._micros))
        return int(np.maximum(opened, self._owed) @ self._micros)

    def improve(
        self,
        budget: RunningBudget,
        fraction: float,
        least: int,
        bound_micros: Callable[[], float] = lambda: 0.0,
        hot: float = HOT,
    ) -> None:
        """Anneal until the first `fraction` of the budget is gone, by `least` moves in any case; no further than to a
        cost of `bound_micros`, below which there is no plan. `hot` is the first temperature."""
        began = left = budget.left_seconds(fraction)
        few = moves = max(_FEW, least // _CHUNKS)
        made = 0
        while (
            self.cost_micros > bound_micros() and (todo := max(left / max(began, 1e-9), 1 - made / max(least, 1))) > 0
        ):
            self.anneal(moves, hot * (_COLD / hot) ** (1 - todo))
            budget.charge(moves * SECONDS_PER_MOVE)
            made, now = made + moves, budget.left_seconds(fraction)
            most = max(few, int(moves * began / _CHUNKS / max(left - now, 1e-9)))
            moves, left = min(most, 2 * moves), now
        self.anneal(len(self._state.row), 0.0)

    def anneal(self, moves: int, temperature: float) -> None:
        """Propose so many changes at a temperature, in what a usual unit costs."""
        families = self._families
        anneal(self._given, self._state, moves, temperature * self._scale, len(families.new), families.stay)

    def nodes(self) -> dict[Pattern, int]:
        """Return the nodes as patterns."""
        state, kind_of = self._state, self._families.order
        order = np.lexsort((state.row, state.node))
        order = order[state.node[order] >= 0]
        nodes, rows = state.node[order], state.row[order]
        ends = np.flatnonzero(np.diff(nodes, append=-1))
        found: Counter[Pattern] = Counter()
        start = 0
        for end in (ends + 1).tolist():
            held = Counter(rows[start:end].tolist())
            kind = int(kind_of[state.place[nodes[start]]])
            found[Pattern(kind, tuple(sorted(held.items())))] += 1
            start = end
        return dict(found)

    def units(self) -> dict[tuple[int, int], int]:
        """Return the units that have a place by demand and row: rules let some be on other sites than before."""
        has_place = self._state.node >= 0
        found = Counter(zip(self._demand[has_place].tolist(), self._state.row[has_place].tolist(), strict=True))
        for (demand, row), count in list(found.items()):
            found.update({(other, row): count for other, _ in self._reduced.rows[row].bundle if other != demand})
        return dict(found)


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    pods = PodSet("warm/up", PodSpec((("cpu", 1),)), 2)
    reduced = reduce(Problem((pods,), (NodeGroup("warm-up", {"cpu": 2, PODS: 2}, 1.0),)))
    families = Families(reduced, np.ones(len(reduced.kinds)))
    given = given_of(reduced, np.ones(len(reduced.kinds)), families)
    state = state_of(reduced, families, given, np.zeros(1, dtype=np.int64))
    yield insert, (given, state, np.zeros(1, dtype=np.int64), 1)
    yield anneal, (given, state, 1, 0.0, 1, 0)


def _counted_by(reduced: Reduced, demand: int, row: int) -> bool:
    """Whether a unit of the row is this demand's to count: of those in a bundle, the first's."""
    return demand == next((first for first, _ in reduced.rows[row].bundle), demand)


def _usual_cost(given: Given, row: Ints) -> float:
    """Return what a unit costs on average: its largest share of a node, where the price of that is least."""
    requests, shape = np.unique(given.requests, axis=0, return_inverse=True)
    new = np.flatnonzero(given.cost > 0)
    largest = np.zeros((len(new), len(requests)))
    for resource in range(requests.shape[1]):
        free = np.maximum(given.free[new, resource, None], 1)
        np.maximum(largest, requests[:, resource] / free, out=largest)
    cost = (largest * given.cost[new, None]).min(axis=0, initial=np.inf)
    usual = np.where(np.isfinite(cost), cost, 0.0)[shape[row]]
    return float(usual.mean()) if len(row) else 1.0


def _depth(reduced: Reduced) -> Ints:
    """Return per row how many others have to be placed before it, one needing the next."""
    depth = np.zeros(len(reduced.rows), dtype=np.int64)
    for _ in reduced.needs:
        before = depth.copy()
        for need in reduced.needs:
            carriers, helpers = list(need.carriers), list(need.helpers)
            if helpers:
                depth[carriers] = np.maximum(depth[carriers], depth[helpers].min() + 1)
        if (before == depth).all():
            break
    return depth


def pays(reduced: Reduced, seconds: float) -> bool:
    """Return whether so many seconds let every unit move often enough: of pods that have no rules."""
    ruled = reduced.rules or reduced.exclusions or reduced.needs or reduced.resources[-1] != PODS
    if ruled or any(row.site is not None for row in reduced.rows) or (reduced.caps < reduced.wanted).any():
        return False
    units = sum(demand.count for demand in reduced.live)
    if units > _MOST_OF_A_CLASS * len(reduced.live):
        return False
    return 0 < units * _LEAST_MOVES * len(_HOT) * SECONDS_PER_MOVE <= seconds


def polished(
    pool: Pool,
    start: Selection,
    weights: Weighting,
    budget: RunningBudget,
    fraction: float,
    least_cost_micros: float,
) -> Selection:
    """Return the best plan found from `start` within the first `fraction` of the budget, which may end where it began.
    Adds its columns."""
    reduced = pool.reduced
    if any(start.unserved.values()):
        return start
    units = {(demand.index, demand.row): demand.count for demand in reduced.live if demand.count}
    nodes = {pattern: count for pattern, count in zip(pool.patterns, start.nodes, strict=True) if count}
    bound = rounded_cost(least_cost_micros, reduced)
    as_it_is, *tries = (Annealing(reduced, weights.node_cost, units) for _ in range(1 + len(_HOT)))
    as_it_is.place_as(nodes)

    def improve(number: int, until: float) -> None:
        tries[number].place_as(nodes)
        tries[number].improve(budget, until, 0, lambda: bound, _HOT[number])

    if budget.deterministic or budget.granted.workers == 1:
        for number in range(len(_HOT)):
            improve(number, budget.part_of_left(fraction, 1 / (len(_HOT) - number)))
    else:
        with Threads(len(_HOT)) as threads:
            list(threads.map(improve, range(len(_HOT)), np.full(len(_HOT), fraction).tolist()))
    found = min((*tries, as_it_is), key=lambda each: each.cost_micros).nodes()
    pool.add(found, whole=True)
    return Selection(tuple(found.get(pattern, 0) for pattern in pool.patterns), start.unserved)
