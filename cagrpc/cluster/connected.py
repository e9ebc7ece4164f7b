"""Connected components of things that share names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


def connected(things: Sequence[Iterable[str]]) -> list[list[int]]:
    """Return the positions of things that share a name, directly or through others, as one list each. Lists and their
    members are in the order of the things."""
    leader = list(range(len(things)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    first: dict[str, int] = {}
    for number, names in enumerate(things):
        for name in names:
            leader[find(number)] = find(first.setdefault(name, number))
    found: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(len(things)):
        found[find(number)].append(number)
    return list(found.values())
