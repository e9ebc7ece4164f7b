"""What compiled annealing (`annealing_kernel`) works on, as arrays: what never changes of rows, kinds and of what may
share a node (`Given`), and where each unit is (`State`); and random numbers and choices for its loops, the same on
every machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solver.compiled import aside, step
from solver.model import PODS
from solver.reduction.reduced import Bools, Floats, Ints, Kind, Links, Reduced

Words = npt.NDArray[np.uint64]


@step
def random_share(seed: Words) -> float:
    """A number from 0 to below 1 (xorshift; Marsaglia, 2003)."""
    word = seed[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    seed[0] = word
    return float(word >> np.uint64(11)) / 9007199254740992.0


@step
def any_of(seed: Words, items: Ints, first: Ints, key: int) -> int:
    """One of the items with this key, -1 where there are none."""
    start, end = first[key], first[key + 1]
    return items[start + int(random_share(seed) * (end - start))] if end > start else -1


@aside
def sort_by_key(keys: Ints, items: Ints, first: Ints) -> None:
    """Write the numbers of the items to `items`, sorted by key, and to `first` where those of each key begin. Items
    with a key below 0 are left out."""
    for key in range(len(first)):
        first[key] = 0
    for key in keys:
        if key >= 0:
            first[key + 1] += 1
    for key in range(1, len(first)):
        first[key] += first[key - 1]
    for item in range(len(keys) - 1, -1, -1):
        if keys[item] >= 0:
            first[keys[item] + 1] -= 1
            items[first[keys[item] + 1]] = item
    for key in range(len(first) - 1):
        first[key] = first[key + 1]
    first[len(first) - 1] = 0
    for key in keys:
        first[len(first) - 1] += key >= 0


_STEP = 0.95
"""Of what a node costs, at most, the next smaller one does."""
_SEED = 88172645463325252
"""Of the random numbers: the same plan every time."""


class Given(NamedTuple):
    """What never changes: rows, kinds of nodes in families, and what may share a node."""

    requests: Ints
    """Rows x resources."""
    caps: Ints
    """Per row: units on one node."""
    eligible: Bools
    """Families x rows: whether it may run there, apart from sizes."""
    strain: Ints
    """Per row: the rows that serve the same pods on other sites are of one strain."""
    row_at: Ints
    """Strains x sites: the row, -1 for none."""
    alike: Ints
    """Per strain: units of strains that are alike count the same in every rule, wherever they are."""
    site: Ints
    """Per family."""
    group: Ints
    """Per family: those of one group take the same rows, more or less."""
    first_kind: Ints
    """Per family, and one more: where its kinds begin, the cheapest first."""
    free: Ints
    """Kinds x resources."""
    nearer: Floats
    """Kinds x resources: how much nearer a unit less of what is used brings a node to the next smaller kind."""
    peak: Ints
    """Kinds x resources: the most that this kind and cheaper ones of the family have."""
    cost: Floats
    """Per kind."""
    step: Floats
    """Per kind: how much less the next smaller one costs."""
    use: Ints
    """Kinds x limits."""
    spare: Ints
    """Families x exclusions: counted pods that an exclusion allows beside a carrier."""
    first_link: Ints
    """Per row, and one more: where its links to exclusions begin, which are sorted by these."""
    exclusion: Ints
    carries: Bools
    counts: Ints
    """Per link: the exclusion, whether the row carries it, and the pods of a unit that it counts."""
    met: Bools
    """Families x needs: whether something that runs there meets it."""
    first_need: Ints
    """Per row, and one more: where its links to needs begin."""
    need: Ints
    helps: Bools
    """Per link: the need, and whether the row helps others with it (otherwise it has it)."""


class State(NamedTuple):
    """Units and nodes. The units of a node are a list in both directions."""

    row: Ints
    """Per unit."""
    node: Ints
    """Per unit; -1 where it has no place."""
    following: Ints
    preceding: Ints
    """Per unit: its neighbours in the list; -1 at the ends."""
    first: Ints
    """Per node: its first unit, -1 for none."""
    family: Ints
    """Per node; -1 where it is not open."""
    place: Ints
    """Per node: its kind."""
    stays: Bools
    """Per node: whether it is there in any case, as it is."""
    usage: Ints
    """Nodes x resources."""
    energy: Floats
    """Per node."""
    closed: Ints
    """Nodes that are not open: a stack, of which the first number says how many there are."""
    room: Ints
    """Per kind: nodes that may still be opened."""
    allowed: Ints
    """Per limit: what it still allows."""
    by_likeness: Ints
    """Units, sorted by what their strains are alike in."""
    first_alike: Ints
    """Per number of those, and one more: where its units begin."""
    present: Bools
    counted: Ints
    """For what is being compared, per link of a row: whether a node has a carrier, and the pods that are counted."""
    seed: Words
    """One word: what the next random number is made of."""


class Families:
    """Kinds of new nodes that only sizes and prices tell apart, the cheapest first; then existing nodes by kind."""

    def __init__(self, reduced: Reduced, node_cost: Floats) -> None:
        self.dense = reduced.resources.index(PODS) + 1
        """Resources proper: counters come after them, and are exclusions here."""
        found: dict[object, list[Kind]] = defaultdict(list)
        for kind in reduced.new_kinds:
            if kind.most or kind.least:
                found[kind.family, kind.free[self.dense :], kind.spare, kind.met].append(kind)
        self.new = [
            sorted(mine, key=lambda k: (node_cost[k.index], k.weight, k.price_micros, k.index))
            for mine in found.values()
        ]
        self.standing = [kind for kind in reduced.existing_kinds if kind.most]
        self.obliged = [(f, kind) for f, mine in enumerate(self.new) for kind in mine for _ in range(kind.least)]
        self.stay = sum(kind.most for kind in self.standing) + len(self.obliged)
        """Nodes that are there in any case."""
        self.order = np.array(
            [*(kind.index for mine in self.new for kind in mine), *(kind.index for kind in self.standing)],
            dtype=np.int64,
        )
        """The kinds of `Given`, as indices of the problem's."""
        self.first_kind = np.cumsum([0, *map(len, self.new), *[1] * len(self.standing)], dtype=np.int64)

    @property
    def firsts(self) -> list[Kind]:
        """One kind of each family."""
        return [*(mine[0] for mine in self.new), *self.standing]


def given_of(reduced: Reduced, node_cost: Floats, families: Families) -> Given:
    kinds, order = families.firsts, families.order
    free, cost = np.ascontiguousarray(reduced.free[order][:, : families.dense]), node_cost[order]
    peak, step, nearer = _sizes(free, cost, families)
    eligible = np.zeros((len(kinds), len(reduced.rows)), dtype=bool)
    for number, kind in enumerate(kinds):
        eligible[number] = np.frombuffer(kind.fits if kind.existing else reduced.families[kind.family], dtype=bool)
    links, needs = _links(reduced, families.dense), _needs(reduced)
    flat_needs = [link for mine in needs for link in mine]
    spare = np.array([[*kind.free[families.dense :], *kind.spare] for kind in kinds], dtype=np.int64)
    met = np.zeros((len(kinds), len(reduced.needs)), dtype=bool)
    for number, kind in enumerate(kinds):
        met[number, list(kind.met)] = True
    strain, row_at, alike = _strains(reduced, needs)
    return Given(
        requests=np.ascontiguousarray(reduced.requests[:, : families.dense]),
        caps=reduced.caps,
        eligible=eligible,
        strain=strain,
        row_at=row_at,
        alike=alike,
        site=_sites(reduced, eligible),
        group=_groups(eligible, len(families.new)),
        first_kind=families.first_kind,
        free=free,
        nearer=nearer,
        peak=peak,
        cost=cost,
        step=step,
        use=reduced.use[order],
        spare=spare.reshape(len(kinds), reduced.free.shape[1] - families.dense + len(reduced.exclusions)),
        first_link=links.first,
        exclusion=links.exclusion,
        carries=links.carries,
        counts=links.counts,
        met=met,
        first_need=np.cumsum([0, *map(len, needs)]),
        need=np.array([link[0] for link in flat_needs], dtype=np.int64),
        helps=np.array([link[1] for link in flat_needs], dtype=bool),
    )


def _sizes(free: Ints, cost: Floats, families: Families) -> tuple[Ints, Floats, Floats]:
    """Return `Given.peak`, `Given.step` and `Given.nearer`."""
    peak, step, smaller = free.copy(), cost.copy(), np.zeros_like(free)
    known: dict[object, slice] = {}
    for start, end in pairwise(families.first_kind[: len(families.new) + 1].tolist()):
        mine = slice(start, end)
        like = known.setdefault((free[mine].tobytes(), cost[mine].tobytes()), mine)
        if like is not mine:  # families mostly differ in where they are alone
            for each in (peak, step, smaller):
                each[mine] = each[like]
            continue
        peak[mine] = np.maximum.accumulate(free[mine], axis=0)
        for kind in range(start + 1, end):
            cheaper = int(np.searchsorted(cost[start:kind], _STEP * cost[kind], side="right"))
            found = np.flatnonzero((free[start : start + cheaper] <= free[kind]).all(axis=1))
            if found.size:
                step[kind] = cost[kind] - cost[start + found[-1]]
                smaller[kind] = free[start + found[-1]]
    span = free - smaller
    return peak, step, np.where(span > 0, 1.0 / np.maximum(span, 1), 0.0)


def _links(reduced: Reduced, dense: int) -> Links:
    """Return links to counters, and to exclusions, which are numbered after them. A counter is an exclusion that
    everything counted carries."""
    counters, known, numbers = reduced.requests[:, dense:], reduced.links, np.arange(len(reduced.rows) + 1)
    rows, counter = np.nonzero(counters)
    row = np.concatenate([rows, np.repeat(numbers[:-1], np.diff(known.first))])
    exclusion = np.concatenate([counter, known.exclusion + counters.shape[1]])
    carries = np.concatenate([np.ones(len(rows), dtype=bool), known.carries])
    counts = np.concatenate([counters[rows, counter], known.counts])
    order = np.lexsort((exclusion, row))
    return Links(np.searchsorted(row[order], numbers), exclusion[order], carries[order], counts[order])


def _needs(reduced: Reduced) -> list[list[tuple[int, bool]]]:
    """Per row: the needs that it has, and those that it helps others with."""
    needs: list[list[tuple[int, bool]]] = [[] for _ in reduced.rows]
    for index, need in enumerate(reduced.needs):
        for row in need.carriers:
            needs[row].append((index, False))
        for row in need.helpers:
            needs[row].append((index, True))
    return needs


def _sites(reduced: Reduced, eligible: Bools) -> Ints:
    """Return the site of each family."""
    site = np.zeros(len(eligible), dtype=np.int64)
    of_row = np.array([-1 if row.site is None else row.site for row in reduced.rows], dtype=np.int64)
    for number, rows in enumerate(eligible):
        site[number] = of_row[rows].max(initial=0)
    return site


def _groups(eligible: Bools, new: int) -> Ints:
    """Return each family's group: of a standing node, that of the first of the `new` ones that takes all it takes."""
    group = np.arange(len(eligible))
    for number in range(new, len(eligible)):
        takes = (eligible[:new] >= eligible[number]).all(axis=1)
        group[number] = takes.argmax() if takes.any() else number
    return group


def _strains(reduced: Reduced, needs: Sequence[Sequence[tuple[int, bool]]]) -> tuple[Ints, Ints, Ints]:
    """Return the strain of each row, the row of each strain on each site, and a number for each strain that those have
    in common whose units count the same in every rule."""
    member: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, rule in enumerate(reduced.rules):
        for part, rows in enumerate(rule.parts()):
            for row, pods in rows:
                member[row].append((number, part, pods))
    sites = max((row.site for row in reduced.rows if row.site is not None), default=0) + 1
    numbers: dict[object, int] = {}
    strain = np.zeros(len(reduced.rows), dtype=np.int64)
    for row, each in enumerate(reduced.rows):
        parts = tuple((part.spec, len(part.variant.given_up), part.pods) for part in each.parts)
        strain[row] = numbers.setdefault(parts, len(numbers))
    row_at = np.full((len(numbers), sites), -1, dtype=np.int64)
    asks = [tuple(sorted(need for need, helps in mine if not helps)) for mine in needs]
    seen: list[list[object]] = [[] for _ in numbers]
    for row, each in enumerate(reduced.rows):
        row_at[strain[row], slice(None) if each.site is None else each.site] = row
        seen[strain[row]].append((each.site, tuple(member[row]), asks[row], len(each.bundle)))
    kinds: dict[object, int] = {}
    return strain, row_at, np.array([kinds.setdefault(tuple(each), len(kinds)) for each in seen], dtype=np.int64)


def state_of(reduced: Reduced, families: Families, given: Given, row: Ints) -> State:
    """Return units of these rows, without a place, and the nodes that are there in any case."""
    units, stay = len(row), families.stay
    nodes = stay + units
    first_standing = len(families.new)
    family = np.full(nodes, -1, dtype=np.int64)
    place = np.full(nodes, -1, dtype=np.int64)
    room = np.array([reduced.kinds[k].most for k in families.order.tolist()], dtype=np.int64)
    allowed = np.array(reduced.limits, dtype=np.int64)
    where = {kind: position for position, kind in enumerate(families.order.tolist())}
    node = 0
    for number, kind in enumerate(families.standing, first_standing):
        family[node : node + kind.most], place[node : node + kind.most] = number, where[kind.index]
        room[where[kind.index]] -= kind.most
        node += kind.most
    for number, kind in families.obliged:
        family[node], place[node] = number, where[kind.index]
        room[where[kind.index]] -= 1
        allowed -= reduced.use[kind.index]
        node += 1
    likeness = given.alike[given.strain[row]]
    alike = np.bincount(likeness, minlength=int(given.alike.max(initial=-1)) + 1)
    closed = np.zeros(units + 1, dtype=np.int64)
    closed[0] = units
    closed[1:] = np.arange(nodes - 1, stay - 1, -1)
    none = np.full(units, -1, dtype=np.int64)
    links = int(np.diff(given.first_link).max(initial=0))
    return State(
        row=row,
        node=none,
        following=none.copy(),
        preceding=none.copy(),
        first=np.full(nodes, -1, dtype=np.int64),
        family=family,
        place=place,
        stays=np.arange(nodes) < stay,
        usage=np.zeros((nodes, given.requests.shape[1]), dtype=np.int64),
        energy=np.zeros(nodes),
        closed=closed,
        room=room,
        allowed=allowed,
        by_likeness=np.argsort(likeness, kind="stable"),
        first_alike=np.concatenate([[0], np.cumsum(alike)]),
        present=np.zeros(links, dtype=bool),
        counted=np.zeros(links, dtype=np.int64),
        seed=np.array([_SEED], dtype=np.uint64),
    )
