"""A problem without its rules, smaller and easier: every plan of the problem is one of this too, at the same cost.

What keeps pods on sites, away from some and beside others is left out; counters stay. A demand may be served by any of
its rows, so it becomes one row: with the least that any of them takes, and wherever any of them may run. Most of these
are equal, and kinds that only sites tell apart become one.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from solver.model import PODS
from solver.reduction.reduced import Bools, Demand, Ints, Kind, Reduced
from solver.reduction.rows import Row

_UNLIMITED = int(np.iinfo(np.int64).max)
_WEAK = 0.1
"""Of what the counter that forces the dearest nodes comes to."""


def without_rules(reduced: Reduced) -> Reduced:
    """Return the relaxed problem. Expects one with a demand that some plan may serve, and without bundles, of which one
    unit is several pods."""
    live = reduced.live
    rows = np.concatenate([np.array(demand.rows, dtype=np.int64) for demand in live])
    start = np.cumsum([0, *(len(demand.rows) for demand in live[:-1])])
    requests = np.minimum.reduceat(reduced.requests[rows], start, axis=0)
    requests[:, _weak_counters(reduced, requests)] = 0
    caps = np.array([_cap(reduced, demand) for demand in live])
    runs = np.bitwise_or.reduceat(np.packbits(reduced.fits, axis=0).T[rows], start, axis=0)
    row_of = _numbers(live, requests, caps, runs)
    first = np.unique(row_of, return_index=True)[1]
    fits = np.unpackbits(runs[first].T, axis=0, count=len(reduced.kinds)).astype(bool)
    of_demand = dict(zip((demand.index for demand in live), row_of.tolist(), strict=True))
    return replace(
        reduced,
        rows=(Row((), None),) * len(first),
        requests=np.ascontiguousarray(requests[first]),
        caps=caps[first],
        exclusions=(),
        needs=(),
        rules=(),
        together=(),
        demands=tuple(replace(each, rows=(of_demand.get(each.index, 0),)) for each in reduced.demands),
        kinds=tuple(_merged(reduced.kinds, fits)),
        families=(),
    )


def _weak_counters(reduced: Reduced, requests: Ints) -> Ints:
    """Return counters, which are among the resources, that force few nodes: each makes more rows differ, and says next
    to nothing of the cost. `requests` are those of each demand's row."""
    counts = np.array([demand.count for demand in reduced.live])
    new = [kind for kind in reduced.new_kinds if kind.most]
    if not new:
        return np.zeros(0, dtype=np.int64)
    free, price = reduced.free[[kind.index for kind in new]], np.array([kind.price_micros for kind in new])
    forced = np.zeros(requests.shape[1])
    for counter in range(reduced.resources.index(PODS) + 1, len(forced)):
        takers = np.flatnonzero(requests[:, counter])
        least = requests[takers].min(axis=0, initial=np.iinfo(np.int64).max)
        holds = (free >= least).all(axis=1)
        if takers.size and holds.any():
            nodes = (requests[takers, counter] @ counts[takers]) / free[holds, counter].max()
            forced[counter] = nodes * price[holds].min()
    weak: Ints = np.flatnonzero(forced < _WEAK * forced.max())
    return weak[weak > reduced.resources.index(PODS)]


def _cap(reduced: Reduced, demand: Demand) -> int:
    """Return how many units of a demand may be on one node, which is of one site."""
    most: Counts[int | None] = Counts()
    for row in demand.rows:
        most[reduced.rows[row].site] += int(reduced.caps[row])
    anywhere = most.pop(None, 0)
    return min(anywhere + max(most.values(), default=0), _UNLIMITED)


def _numbers(live: Sequence[Demand], requests: Ints, caps: Ints, runs: Ints) -> Ints:
    """Return the row of each demand: equal ones share one, unless each may be on a node as often as its cap says."""
    numbers: dict[object, int] = {}
    found = np.zeros(len(live), dtype=np.int64)
    for at, demand in enumerate(live):
        apart = demand.rows if caps[at] < _UNLIMITED else ()
        key = requests[at].tobytes(), int(caps[at]), runs[at].tobytes(), apart
        found[at] = numbers.setdefault(key, len(numbers))
    return found


def _merged(kinds: Sequence[Kind], fits: Bools) -> Iterator[Kind]:
    """Yield kinds for the rows that `fits` has per kind; those that are now equal are one."""
    alike: dict[tuple[bool, tuple[int, ...], bytes, int, int, tuple[int, ...]], list[Kind]] = defaultdict(list)
    for kind, fitting in zip(kinds, fits, strict=True):
        alike[kind.existing, kind.free, fitting.tobytes(), kind.price_micros, kind.weight, kind.use].append(kind)
    for index, ((_, _, fitting, *_), mine) in enumerate(alike.items()):
        yield replace(
            mine[0],
            index=index,
            fits=fitting,
            least=sum(kind.least for kind in mine),
            most=sum(kind.most for kind in mine),
            limited=any(kind.limited for kind in mine),
            groups=tuple(name for kind in mine for name in kind.groups),
            nodes=tuple(name for kind in mine for name in kind.nodes),
            spare=(),
            met=frozenset(),
            previous=sum(kind.previous for kind in mine),
            family=-1,
        )
