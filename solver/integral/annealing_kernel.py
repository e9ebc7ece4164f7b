"""Simulated annealing over places of single units, compiled: a unit moves to another node or changes places with
another one, and each node becomes the cheapest kind that holds what is on it. It works on the arrays of
`annealing_state`; `annealing` reads the nodes back.

Energy is cost, less a reward for room that is left over on one node rather than on many: without it most moves neither
gain nor lose anything, as a node gets cheaper only once all of a size is free. The method is that of Kirkpatrick,
Gelatt and Vecchi, "Optimization by Simulated Annealing" (Science 220, 1983).
"""

from __future__ import annotations

import math

import numpy as np

from solver.compiled import aside, kernel, step
from solver.integral.annealing_state import Given, State, any_of, random_share, sort_by_key
from solver.reduction.reduced import Ints

_SWAPS, _MOVES, _OPENS = 0.55, 0.93, 0.97
"""Shares of the proposals, added up: two units change places, one moves to another's node, or to a node of its own or
one that stands. The rest move a node with all its units to another family of kinds."""
_NEAR, _ALIKE = 0.65, 0.9
"""Of proposals for two units, added up, where the other one is sought: among those that may be where this one may,
among those that rules do not tell from it, or among all."""
_REWARD = 0.5
"""Of a step between two sizes: what a node is rewarded with just before it becomes the smaller one."""
_OTHERS = 24
"""Nodes that a unit without a place is compared on before a new one is opened for it."""
_PROPOSAL = 100
"""Steps that a proposal takes, about."""


@step
def _cheapest(given: Given, state: State, family: int, now: int, usage: Ints) -> int:
    """The cheapest kind of the family that holds as much and may be opened, -1 for none. `now` is the node's
    present kind."""
    first, last = given.first_kind[family], given.first_kind[family + 1]
    for r in range(len(usage)):
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if given.peak[middle, r] < usage[r]:
                low = middle + 1
            else:
                high = middle
        first = max(first, low)
    for kind in range(first, last):
        holds = kind == now or state.room[kind] > 0
        for r in range(len(usage)):
            if given.free[kind, r] < usage[r]:
                holds = False
                break
        if holds:
            return kind
    return -1


@step
def energy_of(given: Given, kind: int, usage: Ints) -> float:
    """Of a new node."""
    near = 1.0
    for r in range(len(usage)):
        if given.nearer[kind, r] > 0.0:
            near = min(near, (given.free[kind, r] - usage[r]) * given.nearer[kind, r])
    return float(given.cost[kind] - _REWARD * given.step[kind] * near * near)


@step
def _row_in(given: Given, row: int, family: int) -> int:
    """The row by which a unit of this one may be on nodes of a family, -1 for none."""
    if given.eligible[family, row]:
        return row
    other = given.row_at[given.strain[row], given.site[family]]
    return other if other >= 0 and given.eligible[family, other] else -1


@step
def _valued(
    given: Given, state: State, node: int, family: int, added: int, without: int, usage: Ints
) -> tuple[int, float]:
    """Kind and energy of a node with a unit of the row `added` and less one of its units (-1 for none); kind -1 where
    it cannot be, -2 where nothing is left and it closes."""
    if added < 0 and not state.stays[node] and state.first[node] == without and state.following[without] < 0:
        return -2, 0.0
    row = state.row[without] if without >= 0 else -1
    for r in range(len(usage)):
        usage[r] = state.usage[node, r]
        if added >= 0:
            usage[r] += given.requests[added, r]
        if row >= 0:
            usage[r] -= given.requests[row, r]
    kind = state.place[node]
    if state.stays[node]:
        for r in range(len(usage)):
            if given.free[kind, r] < usage[r]:
                return -1, 0.0
        return kind, 0.0
    kind = _cheapest(given, state, family, kind, usage)
    return kind, 0.0 if kind < 0 else energy_of(given, kind, usage)


@aside
def _admits(  # noqa: C901, PLR0912 - flat for speed
    given: Given, state: State, node: int, family: int, row: int, without: int
) -> bool:
    """Whether exclusions and caps let one more unit of the row onto a node, less one of its units."""
    if given.caps[row] < 2**31:
        same, unit = 1, state.first[node]
        while unit >= 0:
            same += unit != without and state.row[unit] == row
            unit = state.following[unit]
        if same > given.caps[row]:
            return False
    first, last = given.first_link[row], given.first_link[row + 1]
    if first == last:
        return True
    present, counted = state.present, state.counted
    for link in range(first, last):
        present[link - first], counted[link - first] = given.carries[link], given.counts[link]
    unit = state.first[node]
    while unit >= 0:
        if unit != without:
            link, each, end = first, given.first_link[state.row[unit]], given.first_link[state.row[unit] + 1]
            while link < last and each < end:  # both are sorted: a node's links are looked at once, however many
                if given.exclusion[link] == given.exclusion[each]:
                    present[link - first] |= given.carries[each]
                    counted[link - first] += given.counts[each]
                    each += 1
                elif given.exclusion[link] < given.exclusion[each]:
                    link += 1
                else:
                    each += 1
        unit = state.following[unit]
    for link in range(first, last):
        if present[link - first] and counted[link - first] > given.spare[family, given.exclusion[link]]:
            return False
    return True


@aside
def _met(given: Given, state: State, node: int, need: int, added: int, without: int) -> bool:
    """Whether a need is met on a node, with a unit of the row `added` (-1 for none) and less one of its units."""
    having, helping = False, False
    unit, row = state.first[node], added
    while row >= 0 or unit >= 0:
        if row < 0:
            row = -1 if unit == without else state.row[unit]
            unit = state.following[unit]
        if row >= 0:
            for link in range(given.first_need[row], given.first_need[row + 1]):
                if given.need[link] == need:
                    having |= not given.helps[link]
                    helping |= given.helps[link]
        row = -1
    return helping or not having


@aside
def _helped(given: Given, state: State, node: int, family: int, added: int, without: int) -> bool:
    """Whether all needs on a node stay met, with a unit of the row `added` and less one of its units (-1 for none)."""
    if added >= 0:
        for link in range(given.first_need[added], given.first_need[added + 1]):
            need = given.need[link]
            alone = not given.helps[link] and not given.met[family, need]
            if alone and not _met(given, state, node, need, added, without):
                return False
    if without >= 0:
        row = state.row[without]
        for link in range(given.first_need[row], given.first_need[row + 1]):
            need = given.need[link]
            alone = given.helps[link] and not given.met[family, need]
            if alone and not _met(given, state, node, need, added, without):
                return False
    return True


@step
def _take(given: Given, state: State, unit: int) -> None:
    """Take a unit from its node."""
    node, row = state.node[unit], state.row[unit]
    before, after = state.preceding[unit], state.following[unit]
    if before >= 0:
        state.following[before] = after
    else:
        state.first[node] = after
    if after >= 0:
        state.preceding[after] = before
    for r in range(given.requests.shape[1]):
        state.usage[node, r] -= given.requests[row, r]
    state.node[unit] = -1


@step
def put(given: Given, state: State, unit: int, node: int, row: int) -> None:
    """Put a unit on a node, as one of this row."""
    after, state.row[unit] = state.first[node], row
    state.node[unit], state.preceding[unit], state.following[unit] = node, -1, after
    if after >= 0:
        state.preceding[after] = unit
    state.first[node] = unit
    for r in range(given.requests.shape[1]):
        state.usage[node, r] += given.requests[row, r]


@step
def become(given: Given, state: State, node: int, family: int, kind: int, energy: float) -> None:
    """Make a node one of another kind; -1 closes it."""
    old = state.place[node]
    if old != kind:
        if old >= 0:
            state.room[old] += 1
        if kind >= 0:
            state.room[kind] -= 1
        for limit in range(len(state.allowed)):
            if old >= 0:
                state.allowed[limit] += given.use[old, limit]
            if kind >= 0:
                state.allowed[limit] -= given.use[kind, limit]
        if kind < 0:
            state.closed[0] += 1
            state.closed[state.closed[0]] = node
        elif old < 0:
            state.closed[0] -= 1
    state.family[node] = family if kind >= 0 else -1
    state.place[node], state.energy[node] = kind, energy


@aside
def _within(given: Given, state: State, old: int, new: int, other_old: int, other_new: int) -> bool:
    """Whether limits and sizes of groups allow two nodes to become others; -1 for a node that is not open."""
    if new == other_new and new >= 0 and state.room[new] + (old == new) + (other_old == new) < 2:
        return False
    for limit in range(len(state.allowed)):
        use = 0
        for kind, sign in ((old, -1), (new, 1), (other_old, -1), (other_new, 1)):
            if kind >= 0:
                use += sign * given.use[kind, limit]
        if use > 0 and use > state.allowed[limit]:
            return False
    return True


@step
def _exchange(  # noqa: C901, PLR0911 - flat for speed
    given: Given, state: State, one: int, two: int, node: int, family: int, temperature: float, usage: Ints
) -> bool:
    """Try to let a unit go to a node, which becomes one of the family where it is not open, and a unit of that node
    (-1 for none) to where the first one is."""
    old, row, other = state.node[one], state.row[one], -1
    into = _row_in(given, row, family)
    if into < 0:
        return False
    if two >= 0:
        other = _row_in(given, state.row[two], state.family[old])
        if other < 0 or state.row[two] == row:
            return False
    # Rules see units of one site go to another one: as many of the same have to come back.
    moved = into != row or (two >= 0 and other != state.row[two])
    if moved and (two < 0 or given.alike[given.strain[row]] != given.alike[given.strain[other]]):
        return False
    kind, energy = _valued(given, state, node, family, into, two, usage)
    if kind < 0:
        return False
    old_kind, old_energy = _valued(given, state, old, state.family[old], other, one, usage)
    if old_kind == -1:
        return False
    old_kind = max(old_kind, -1)
    gain = state.energy[node] - energy + state.energy[old] - old_energy
    if gain < 0.0 and (temperature <= 0.0 or random_share(state.seed) >= math.exp(gain / temperature)):
        return False
    if not _admits(given, state, node, family, into, two) or not _helped(given, state, node, family, into, two):
        return False
    if two >= 0 and not _admits(given, state, old, state.family[old], other, one):
        return False
    if not _helped(given, state, old, state.family[old], other, one):
        return False
    if not _within(given, state, state.place[old], old_kind, state.place[node], kind):
        return False
    _take(given, state, one)
    if two >= 0:
        _take(given, state, two)
        put(given, state, two, old, other)
    put(given, state, one, node, into)
    become(given, state, old, state.family[old], old_kind, old_energy)
    become(given, state, node, family, kind, energy)
    return True


@aside
def _rehome(  # noqa: PLR0911 - flat for speed
    given: Given, state: State, node: int, family: int, temperature: float, usage: Ints
) -> bool:
    """Try to make a node one of another family, with all its units."""
    if state.stays[node] or family == state.family[node]:
        return False
    unit = state.first[node]
    while unit >= 0:
        if not given.eligible[family, state.row[unit]]:
            return False
        unit = state.following[unit]
    for r in range(len(usage)):
        usage[r] = state.usage[node, r]
    kind = _cheapest(given, state, family, -1, usage)
    if kind < 0:
        return False
    energy = energy_of(given, kind, usage)
    gain = state.energy[node] - energy
    if gain < 0.0 and (temperature <= 0.0 or random_share(state.seed) >= math.exp(gain / temperature)):
        return False
    unit = state.first[node]
    while unit >= 0:
        row = state.row[unit]
        if not _admits(given, state, node, family, row, unit) or not _helped(given, state, node, family, row, unit):
            return False
        unit = state.following[unit]
    if not _within(given, state, state.place[node], kind, -1, -1):
        return False
    become(given, state, node, family, kind, energy)
    return True


def _steps_of_insert(_: Given, state: State, units: Ints, families: int) -> int:
    return (2 * len(units) * (families + _OTHERS) + len(state.first)) * _PROPOSAL


@kernel(_steps_of_insert)
def insert(  # noqa: C901 - flat for speed
    given: Given, state: State, units: Ints, families: int
) -> int:
    """Place units one after the other where that costs least: among some nodes that are open, and a new one of each of
    the first `families`. Where none of these will do all nodes are tried, as many for all units together as those that
    are compared. Stop at the first unit that finds no place so. Return how many are placed."""
    usage, placed, nodes = np.zeros(given.requests.shape[1], np.int64), 0, len(state.first)
    left = len(units) * (families + _OTHERS) + nodes
    for unit in units:
        row = state.row[unit]
        best, best_family, best_kind, best_energy, least = -1, -1, -1, 0.0, np.inf
        for turn in range(families + _OTHERS + nodes):
            if turn < families:
                node, family = state.closed[state.closed[0]] if state.closed[0] > 0 else -1, turn
            elif turn >= families + _OTHERS:
                if best >= 0 or left <= 0:
                    break
                left -= 1
                node = turn - families - _OTHERS
            elif turn % 4 == 0:
                node = int(random_share(state.seed) * nodes)
            else:
                node = state.node[int(random_share(state.seed) * len(state.node))]
            if turn >= families:
                family = state.family[node] if node >= 0 else -1
            if node < 0 or family < 0 or not given.eligible[family, row]:
                continue
            kind, energy = _valued(given, state, node, family, row, -1, usage)
            cost = energy - state.energy[node]
            if kind < 0 or cost >= least or not _within(given, state, state.place[node], kind, -1, -1):
                continue
            if _admits(given, state, node, family, row, -1) and _helped(given, state, node, family, row, -1):
                best, best_family, best_kind, best_energy, least = node, family, kind, energy, cost
        if best < 0:
            break
        become(given, state, best, best_family, best_kind, best_energy)
        put(given, state, unit, best, row)
        placed += 1
    return placed


def _steps_of_anneal(_: Given, state: State, moves: int, *__: float) -> int:
    return moves * _PROPOSAL + 3 * (len(state.row) + len(state.first))


@kernel(_steps_of_anneal)
def anneal(  # noqa: C901, PLR0912 - flat for speed
    given: Given, state: State, moves: int, temperature: float, families: int, stay: int
) -> int:
    """Propose so many changes, and keep those that gain or lose little for the temperature. Return how many. New nodes
    are of the first `families`; the first nodes `stay`."""
    units, nodes, kept = len(state.row), len(state.first), 0
    usage = np.zeros(given.requests.shape[1], np.int64)
    groups = 0
    for group in given.group:
        groups = max(groups, group + 1)
    of_node, of_unit = np.full(nodes, -1, np.int64), np.full(units, -1, np.int64)
    for node in range(nodes):
        if state.family[node] >= 0:
            of_node[node] = given.group[state.family[node]]
    for unit in range(units):
        if state.node[unit] >= 0:
            of_unit[unit] = of_node[state.node[unit]]
    near_nodes, near_units = np.empty(nodes, np.int64), np.empty(units, np.int64)
    first_node, first_unit = np.empty(groups + 1, np.int64), np.empty(groups + 1, np.int64)
    sort_by_key(of_node, near_nodes, first_node)
    sort_by_key(of_unit, near_units, first_unit)
    for _ in range(moves):
        one = int(random_share(state.seed) * units)
        old = state.node[one]
        if old < 0:
            continue
        what, where = random_share(state.seed), random_share(state.seed)
        if what >= _OPENS:
            kept += _rehome(given, state, old, int(where * families), temperature, usage)
            continue
        two, node, group = -1, -1, given.group[state.family[old]]
        if what < _SWAPS:
            if where < _NEAR:
                two = any_of(state.seed, near_units, first_unit, group)
            elif where < _ALIKE:
                alike = given.alike[given.strain[state.row[one]]]
                two = any_of(state.seed, state.by_likeness, state.first_alike, alike)
            else:
                two = int(random_share(state.seed) * units)
            node = state.node[two] if two >= 0 else -1
        elif what < _MOVES:
            if where < _NEAR:
                node = any_of(state.seed, near_nodes, first_node, group)
            else:
                node = near_nodes[int(random_share(state.seed) * first_node[groups])]
            if state.family[node] < 0:
                continue
        elif stay > 0 and where < 0.5:
            node = int(random_share(state.seed) * stay)
        elif state.closed[0] > 0 and (state.first[old] != one or state.following[one] >= 0):
            node = state.closed[state.closed[0]]
        if node < 0 or node == old:
            continue
        family = state.family[node]
        if family < 0:
            family = int(random_share(state.seed) * families)
        kept += _exchange(given, state, one, two, node, family, temperature, usage)
    return kept
