"""Choosing rows: how many pods each domain, variant or bundle gets, so that what is left is a problem without rules.

Each class is distributed over its rows, the least flexible first, to where a fractional guide has most of it left or,
where spread rules count it, to the emptiest domain. That satisfies nearly every rule as it goes; `claims.settle`
repairs the rest. The problem with rows chosen is a `Reduced` in which each demand has one row, so that patterns, column
generation and greedy packing need to know no rule. Nor need nodes know from which of several rows a pod is that only
rules tell apart: these are planned as one row, and the plan is split again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile

import numpy as np

from solver.columns.patterns import Pattern
from solver.reduction.reduced import Demand, Ints, Reduced
from solver.reduction.rules import Apart, Beside, OneDomain, Rule, Spread, value_of
from solver.relaxation.claims import Claims, completed, nobody, settle, units_of, unserved_of

_NO_END = 2**60
_TRIMS = 10
_DUST = 1e-6


def chosen(
    reduced: Reduced, claimed: Claims, guide: Sequence[float] | None = None, room: Sequence[int] | None = None
) -> list[int]:
    """Return a value for every variable of the demand side that satisfies all rules, with as many pods served as they
    allow. `guide` has fractional values, from a relaxation; `room`, where given, how many units of each row nodes have
    room for."""
    dealt = _dealt(reduced, claimed, guide, room)
    if guide is not None and (left := _unserved(claimed, dealt)):
        # Rounded up, what the guide has may break a rule, and is reduced then.
        even = _dealt(reduced, claimed, None, room)
        if _unserved(claimed, even) < left:
            return even
    return dealt


def _unserved(claimed: Claims, values: Sequence[int]) -> int:
    return sum(unserved_of(claimed, values).values())


def _dealt(reduced: Reduced, claimed: Claims, guide: Sequence[float] | None, room: Sequence[int] | None) -> list[int]:
    dealt = _Dealing(reduced, claimed, guide, room).values()
    for _ in range(_TRIMS):
        if claimed.linear.kept(dealt):
            return dealt
        dealt = _trimmed(reduced, claimed, dealt)
    space = [constant + value_of(terms, dealt) for terms, constant in claimed.needed]
    return settle(reduced, claimed, space, nobody(claimed))


def _trimmed(reduced: Reduced, claimed: Claims, values: Sequence[int]) -> list[int]:
    """Reduce units where a rule has too many: of every sum above its bound, the lowest priorities first."""
    units, unserved = units_of(claimed, values), unserved_of(claimed, values)
    pods = {d.index: d for d in reduced.live}
    behind: dict[int, tuple[int, int]] = {variable: key for key, variable in claimed.units.items()}
    for terms, _, upper in claimed.linear.rows:
        over = 0 if upper is None else value_of(terms, values) - upper
        if over <= 0:
            continue
        mine = [(behind[v], c) for v, c in terms if v in behind and c > 0]
        for key, per_unit in sorted(mine, key=lambda each: _claim(pods[each[0][0]])):
            less = min(units.get(key, 0), -(-over // per_unit))
            if less > 0:
                units[key] -= less
                over -= less * per_unit
                for demand, each in reduced.rows[key[1]].bundle or ((key[0], 1),):
                    unserved[demand] += less * each
                    units[demand, key[1]] = units[key]
    return _whole_gangs(reduced, claimed, units, unserved)


def _claim(demand: Demand) -> tuple[bool, int]:
    """Return a key that sorts demands, those of the lowest claim first."""
    return not demand.placeholder, demand.priority


def _whole_gangs(
    reduced: Reduced, claimed: Claims, units: dict[tuple[int, int], int], unserved: dict[int, int]
) -> list[int]:
    broken = {d.gang for d in reduced.live if d.gang is not None and unserved[d.index]}
    for demand in reduced.live:
        if demand.gang is not None and demand.gang in broken:
            unserved[demand.index] = demand.count
            for row in demand.rows:
                units.pop((demand.index, row), None)
    return completed(claimed, unserved, units)


class _Dealing:
    """The distribution of pods over rows, with what the rules count so far."""

    def __init__(
        self, reduced: Reduced, claimed: Claims, guide: Sequence[float] | None, room: Sequence[int] | None
    ) -> None:
        self._reduced, self._claimed = reduced, claimed
        self._left = dict(enumerate(room)) if room is not None else {}
        self._guide = {key: guide[variable] for key, variable in claimed.units.items()} if guide is not None else {}
        self._guided_to: dict[int, float] = defaultdict(float)
        """Row -> pods that the guide has there."""
        for (_, row), amount in self._guide.items():
            self._guided_to[row] += amount
        self._counts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Row -> (tally, pods that a unit adds to it)."""
        self._levels: dict[int, list[int]] = defaultdict(list)
        """Row -> tallies of spread rules that count it."""
        self._skew: dict[int, int] = {}
        """Row -> by how much it may be above the emptiest domain of these."""
        self._caps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Row -> (tally, at most)."""
        self._empty: dict[int, list[int]] = defaultdict(list)
        """Row -> tallies that must be zero for it."""
        self._filled: dict[int, list[int]] = defaultdict(list)
        """Row -> tallies that must not be zero for it."""
        self._tallies: list[int] = []
        self._closed: set[int] = set()
        self._drawn: Counter[int | None] = Counter()
        """Site -> pods that have been drawn to it."""
        self._pods_of: Counter[int] = Counter()
        """Row -> pods that it could serve."""
        for demand in reduced.live:
            for row in demand.rows:
                self._pods_of[row] += demand.count
        for rule in reduced.rules:
            self._read(rule)

    def _tally(self, rows: Sequence[tuple[int, int]], running: int = 0) -> int:
        self._tallies.append(running)
        for row, pods in rows:
            self._counts[row].append((len(self._tallies) - 1, pods))
        return len(self._tallies) - 1

    def _read(self, rule: Rule) -> None:
        match rule:
            case Spread():
                for domain in rule.domains:
                    tally = self._tally(domain.counted, domain.running)
                    for row, _ in domain.counted:
                        self._levels[row].append(tally)
                        self._skew[row] = min(rule.max_skew, self._skew.get(row, rule.max_skew))
            case Apart():
                self._read_apart(rule)
            case Beside():
                tally = self._tally(rule.helpers)
                for row, _ in rule.carriers:
                    self._filled[row].append(tally)
            case OneDomain():
                best = max(rule.domains, key=self._drawn_to)
                self._closed.update(row for rows in rule.domains if rows is not best for row, _ in rows)
                self._drawn[self._reduced.rows[best[0][0]].site] += self._could_be(best)

    def _read_apart(self, rule: Apart) -> None:
        together, mine = self._tally(rule.counted), self._tally(rule.carriers)
        for row, _ in rule.carriers:
            self._caps[row].append((together, rule.most))
        carriers = {row for row, _ in rule.carriers}
        for row, _ in rule.counted:
            if row not in carriers:
                self._empty[row].append(mine)

    def _drawn_to(self, rows: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Return how many pods the guide has in a domain, or could be there; of equal ones, the domain with fewer pods
        that have been drawn to it before comes first."""
        if self._guide:
            return sum(self._guided_to.get(row, 0.0) for row in dict(rows)), 0
        return self._could_be(rows), -self._drawn[self._reduced.rows[rows[0][0]].site]

    def _could_be(self, rows: Sequence[tuple[int, int]]) -> int:
        return sum(self._pods_of[row] for row, _ in rows)

    def values(self) -> list[int]:
        units: dict[tuple[int, int], int] = {}
        unserved = unserved_of(self._claimed, nobody(self._claimed))
        ways = {d.index: [r for r in d.rows if (d.index, r) in self._claimed.units] for d in self._reduced.live}
        for bundles in self._reduced.together:
            self._bundle(bundles, units, unserved)
        # Demands that need others come last; of the rest, those with the fewest ways come first.
        order = sorted(
            (d for d in self._reduced.live if ways[d.index]),
            key=lambda d: (any(self._filled.get(r) for r in ways[d.index]), len(ways[d.index]), -d.count, d.index),
        )
        more = True
        while more:  # demands that need others are served once the others are
            before = sum(unserved.values())
            for demand in order:
                self._deal_out(demand, ways[demand.index], unserved, units)
            more = 0 < sum(unserved.values()) < before
        for demand in (d for d in self._reduced.live if not ways[d.index]):
            least = self._left.get(demand.rows[0], demand.count)
            unserved[demand.index] = max(0, demand.count - least)
            self._take(demand.rows[0], demand.count - unserved[demand.index])
        return _whole_gangs(self._reduced, self._claimed, units, unserved)

    def _deal_out(
        self, demand: Demand, ways: Sequence[int], unserved: dict[int, int], units: dict[tuple[int, int], int]
    ) -> None:
        """Distribute the unserved pods of the demand, giving up as few preferences as possible."""
        if not unserved[demand.index]:
            return
        rows = self._reduced.rows
        alone = [row for row in ways if not rows[row].bundle and row not in self._closed]
        levels: defaultdict[int, list[int]] = defaultdict(list)
        for row in alone:
            levels[rows[row].given_up].append(row)
        # First as the guide has it, which knows limits and sizes; then everything that is left.
        parts = [(levels[level], most) for level, most in sorted(self._guided(demand, levels).items())]
        if any(row in self._skew for row in alone):
            # Rows that keep a preference need not be in all of the domains that are to be even.
            parts.append((alone, demand.count))
        else:
            parts += [(levels[level], demand.count) for level in sorted(levels)]
        for some, most in parts:
            unserved[demand.index] -= self._deal(demand, some, min(unserved[demand.index], most), units)

    def _deal(self, demand: Demand, rows: list[int], count: int, units: dict[tuple[int, int], int]) -> int:
        """Distribute up to `count` pods and return how many found a row."""
        left = count
        want = {row: self._guide.get((demand.index, row), 0.0) for row in rows}
        given_up = {row: self._reduced.rows[row].given_up for row in rows}
        # What keeps the most preferences may be as far above the emptiest domain as is allowed.
        least = min(given_up.values(), default=0)
        ahead = {row: self._skew.get(row, 1) - 1 if given_up[row] == least else 0 for row in rows}

        def level(row: int) -> int:
            return max((self._tallies[tally] for tally in self._levels.get(row, ())), default=0) - ahead[row]

        while left:
            levels = {row: level(row) for row in rows}
            ranked = sorted(
                rows, key=lambda row: (levels[row], given_up[row], -want[row], units.get((demand.index, row), 0), row)
            )
            rows = list(dropwhile(lambda row: self._room(row) <= 0, ranked))
            if not rows:
                break
            row, *others = rows
            amount = min(left, self._room(row), self._step(row, others, want, left, levels))
            units[demand.index, row] = units.get((demand.index, row), 0) + amount
            want[row] -= amount
            left -= amount
            self._take(row, amount)
        return count - left

    def _guided(self, demand: Demand, levels: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Return how many pods, by preferences given up, the guide has; nothing where there is none."""
        if not self._guide:
            return {}
        return {
            level: math.ceil(sum(self._guide.get((demand.index, row), 0.0) for row in rows) - _DUST)
            for level, rows in levels.items()
        }

    def _take(self, row: int, units: int) -> None:
        for tally, pods in self._counts.get(row, ()):
            self._tallies[tally] += units * pods
        if row in self._left:
            self._left[row] -= units

    def _step(
        self, row: int, others: Sequence[int], want: dict[int, float], left: int, levels: Mapping[int, int]
    ) -> int:
        """Return how many pods go to a row before the next one is considered."""
        if not others:
            return left
        if self._levels.get(row):
            above = [levels[other] - levels[row] for other in others]
            return max(1, min([left // (1 + above.count(0)), *(gap for gap in above if gap > 0)]))
        return max(1, int(want[row])) if self._guide else max(1, left // (len(others) + 1))

    def _room(self, row: int) -> int:
        if any(self._tallies[t] for t in self._empty.get(row, ())):
            return 0
        if not all(self._tallies[t] for t in self._filled.get(row, ())):
            return 0
        left = self._left.get(row, _NO_END)
        return min([left, *(most - self._tallies[tally] for tally, most in self._caps.get(row, ()))])

    def _bundle(self, bundles: Sequence[int], units: dict[tuple[int, int], int], unserved: dict[int, int]) -> None:
        """Serve the largest bundle that fits somewhere and that no rule excludes."""
        rows = self._reduced.rows
        fitting = [b for b in bundles if (rows[b].bundle[0][0], b) in self._claimed.units and b not in self._closed]
        best = max(
            (b for b in fitting if self._room(b) > 0),
            key=lambda b: (sum(pods for _, pods in rows[b].bundle), -rows[b].given_up, -b),
            default=None,
        )
        if best is None:
            return
        for demand, pods in rows[best].bundle:
            units[demand, best] = 1
            unserved[demand] -= pods
        self._take(best, 1)


def pinned(reduced: Reduced, claimed: Claims, values: Sequence[int]) -> Reduced:
    """Return the problem in which each demand is split over the rows that `values` (per variable of the demand side)
    choose. Pods that are not served in it are left out."""
    demands: list[Demand] = []
    units = units_of(claimed, values)
    bundled: set[int] = set()
    for demand in reduced.live:
        if len(demand.rows) == 1 and (demand.index, demand.rows[0]) not in claimed.units:
            demands.append(replace(demand, index=len(demands)))
            continue
        for row in demand.rows:
            count = units.get((demand.index, row), 0)
            if count and row not in bundled:
                if reduced.rows[row].bundle:
                    bundled.add(row)
                whole = count == demand.count and not reduced.rows[row].bundle
                ages = demand.ages if whole else ((0, count),)
                demands.append(replace(demand, index=len(demands), rows=(row,), count=count, ages=ages))
    return replace(reduced, demands=tuple(demands), infeasible=frozenset(), rules=(), together=())


def first_alike(reduced: Reduced) -> Ints:
    """Return, per row, the first one that nodes do not tell from it. Bundles, and rows that exclude or need others or
    each other on a node, are like no other."""
    told_apart = {row for row, each in enumerate(reduced.rows) if each.bundle}
    told_apart.update(np.flatnonzero(reduced.caps < np.iinfo(np.int64).max).tolist())
    told_apart.update(np.flatnonzero(np.diff(reduced.links.first)).tolist())
    for need in reduced.needs:
        told_apart.update(need.carriers, need.helpers)
    fits = np.packbits(reduced.fits, axis=0).T
    first: dict[object, int] = {}
    found = np.arange(len(reduced.rows))
    for row in range(len(found)):
        if row not in told_apart:
            found[row] = first.setdefault((reduced.requests[row].tobytes(), fits[row].tobytes()), row)
    return found


def as_one(reduced: Reduced, first: Ints) -> Reduced:
    """Return the problem in which each demand's one row is the first of those alike."""
    demands = tuple(replace(each, rows=(int(first[each.row]),)) for each in reduced.demands)
    return replace(reduced, demands=demands)


def split(reduced: Reduced, first: Ints, nodes: Mapping[Pattern, int]) -> dict[Pattern, int]:
    """Return the nodes of a plan for rows that are one (`as_one`) with the pods of `reduced`'s own rows, those first of
    which most are left; room for more pods than there are is dropped."""
    left: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in np.flatnonzero(reduced.wanted).tolist():
        left[int(first[row])][row] = int(reduced.wanted[row])
    found: Counter[Pattern] = Counter()
    for pattern, count in nodes.items():
        copies = count
        while copies > 0:
            pods = [taken for row, units in pattern.pods for taken in _most_left(left[row], units)]
            alike = min([copies, *(left[int(first[row])][row] // units for row, units in pods)])
            for row, units in pods:
                left[int(first[row])][row] -= units * alike
            found[Pattern(pattern.kind, tuple(sorted(pods)))] += alike
            copies -= alike
    return dict(found)


def _most_left(left: Mapping[int, int], units: int) -> list[tuple[int, int]]:
    """Return the rows and pods to take `units` from."""
    taken = []
    for row, pods in sorted(left.items(), key=lambda each: -each[1]):
        if units > 0 and pods > 0:
            taken.append((row, min(units, pods)))
            units -= taken[-1][1]
    return taken
