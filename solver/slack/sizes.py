"""Cutting capacity into placeholders: even parts that fit a node and are no bigger than the biggest pod, of sizes that
stay where they can. Plain amounts of resources; what they are amounts of is `slack`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver.model import PODS, Resources

Size = Mapping[str, int]
"""What one placeholder requests; without zeros and without `pods`."""
Parts = Sequence[tuple[Size, int]]
"""Sizes, each with its number."""

_NEGLIGIBLE = 50
"""Parts are rounded up where that adds at most a fiftieth to all of them."""
_MOST_OVER = 1.1
"""Sizes are kept while they hold at most so much of what is wanted."""


def fits(size: Size, room: Resources) -> bool:
    """Whether one pod of that size fits into the room, which counts `pods` too."""
    return room.get(PODS, 0) >= 1 and all(room.get(name, 0) >= amount for name, amount in size.items())


def needed(rooms: Sequence[Resources], sizes: Sequence[Size]) -> list[Resources]:
    """The rooms without those that are unnecessarily large: all pods of these sizes that fit there fit a smaller
    room. A room is smaller that has less of something and more of nothing. All rooms have the same resources."""
    if not rooms:
        return []
    names = sorted(rooms[0])
    room = np.array([[each[name] for name in names] for each in rooms], np.int64)
    size = np.array([[1 if name == PODS else each.get(name, 0) for name in names] for each in sizes], np.int64)
    size = size.reshape(len(sizes), len(names))
    within = np.ones((len(rooms), len(rooms)), np.bool_)  # [one, other]: one has more of nothing
    fitting = np.ones((len(sizes), len(rooms)), np.bool_)
    for column, amounts in enumerate(room.T):  # by resource: three dimensions at once would be large
        within &= amounts[:, None] <= amounts[None, :]
        fitting &= size[:, column][:, None] <= amounts[None, :]
    smaller = within & ~within.T
    elsewhere = fitting.astype(np.float32) @ smaller.astype(np.float32) > 0  # counted in floats: much faster
    least = ~np.any(smaller, axis=0)
    only_here = np.any(fitting & ~elsewhere, axis=0)
    return [rooms[int(row)] for row in np.flatnonzero(least | only_here)]


def capped(room: Resources, most: Size | None) -> Resources:
    """The room as far as a pod of the size `most` needs it; None for no such bound."""
    if most is None:
        return room
    return {PODS: room.get(PODS, 0), **{name: min(room.get(name, 0), amount) for name, amount in most.items()}}


def parts(total: Size, count: int, rooms: Sequence[Resources]) -> Parts:
    """`total` in `count` even parts; in more, as few as can be, where these would fit no room; in fewer, where there is
    less than one unit for each.

    Parts are alike but for what cannot be cut evenly (7 GPUs in 5 parts): there the first have one unit more. Empty
    where no room has all that `total` is made of.
    """
    total = {name: amount for name, amount in sorted(total.items()) if amount > 0}
    least = min((needed for room in rooms if (needed := _fewest(total, room)) is not None), default=None)
    if not total or least is None:
        return []
    number = max(least, min(count, *total.values()), 1)
    shares = {name: divmod(amount, number) for name, amount in total.items()}
    rounded = {name for name, (_, rest) in shares.items() if rest and (number - rest) * _NEGLIGIBLE <= total[name]}
    ends = sorted({number, *(rest for name, (_, rest) in shares.items() if rest and name not in rounded)})
    found: list[tuple[Size, int]] = []
    start = 0
    for end in ends:
        size = {name: share + (name in rounded or start < rest) for name, (share, rest) in shares.items()}
        found.append(({name: amount for name, amount in size.items() if amount}, end - start))
        start = end
    return found


def _fewest(total: Size, room: Resources) -> int | None:
    """In how many parts it has to be cut to fit; None where no number would do."""
    if room.get(PODS, 0) < 1 or any(room.get(name, 0) <= 0 for name in total):
        return None
    return max((-(-amount // room[name]) for name, amount in total.items()), default=1)


def keep_sizes(before: Parts, now: Parts, total: Size, rooms: Sequence[Resources]) -> Parts:
    """`now`, or the sizes before in as large a number as is needed for `total`, where these still fit a room, hold
    hardly more than is wanted, and are about as many: a size that follows every pod would move every placeholder."""
    names = {name for name, amount in total.items() if amount > 0}
    if (
        not before
        or list(before) == list(now)
        or any(not any(fits(size, room) for room in rooms) for size, _ in before)
    ):
        return now
    if len(before) == 1:
        size = before[0][0]
        if size.keys() != names:
            return now
        number = max(-(-total[name] // amount) for name, amount in size.items())
        formula = sum(count for _, count in now)
        if not formula <= 2 * number <= 4 * formula:
            return now
        before = [(size, number)]
    held = {name: sum(size.get(name, 0) * count for size, count in before) for name in names}
    known = {name for size, _ in before for name in size}
    as_wanted = known == names and all(total[name] <= held[name] <= _MOST_OVER * total[name] for name in names)
    return before if as_wanted else now
