"""Which request gets which nodes of a plan, and which new nodes are one increment. Pure, and nothing in it is per pod.

Requests whose pods share a new node are one increment, whole or not at all. So nodes are assigned request by request,
whole ones first, so that few are shared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cagrpc.cluster.connected import connected
from solver.model import PlacedOnNode, PlannedNodes

Demand = tuple[str, Mapping[int, int]]
"""A request's UID and its pods, class -> pods."""

NewNode = tuple[str, tuple[str, ...]]
"""A new node's group, and the requests that have pods there."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The nodes of every request."""

    on_nodes: Mapping[str, tuple[str, ...]]
    """UID -> names of existing nodes, sorted. Only requests with pods there."""
    new: tuple[NewNode, ...]


def assign(demands: Sequence[Demand], existing: Sequence[PlacedOnNode], nodes: Sequence[PlannedNodes]) -> Assignment:
    """Assign nodes to `demands`, which are in the order in which they are served and together fill the nodes. Existing
    nodes go to the first. New nodes without pods go with others of their group."""
    standing, pool = _Standing(existing), _Pool(nodes)
    on_nodes: dict[str, tuple[str, ...]] = {}
    new: list[NewNode] = []
    for uid, pods in demands:
        need = Counter(pods)
        used = standing.take(need)
        if used:
            on_nodes[uid] = used
        new.extend((group_id, (uid,)) for group_id in pool.whole(need))
        pool.shared(uid, need)
    new.extend((each.node_group, tuple(each.uids)) for each in pool.begun)
    return Assignment(on_nodes, (*new, *_spare(nodes, new)))


class _Standing:
    """Room on existing nodes, class by class."""

    def __init__(self, existing: Sequence[PlacedOnNode]) -> None:
        self._room: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for placed in reversed(existing):  # taken from the end
            for who, count in placed.pods.items():
                self._room[who].append((placed.node, count))

    def take(self, need: Counter[int]) -> tuple[str, ...]:
        """Return the names of nodes with room for the need, and subtract from it what fits there."""
        names: set[str] = set()
        for who in need:
            room = self._room[who]
            while room and need[who]:
                name, count = room.pop()
                taken = min(count, need[who])
                need[who] -= taken
                names.add(name)
                if taken < count:
                    room.append((name, count - taken))
        return tuple(sorted(names))


@dataclass(slots=True)
class _Alike:
    """Equal new nodes that are not assigned yet."""

    node_group: str
    pods: Mapping[int, int]
    """On each of them."""
    left: int


@dataclass(slots=True)
class _Begun:
    """A new node that its first owner does not fill."""

    node_group: str
    room: Counter[int]
    uids: list[str] = field(default_factory=list)


class _Pool:
    """New nodes; equal ones are together until they are assigned."""

    def __init__(self, nodes: Sequence[PlannedNodes]) -> None:
        found = [_Alike(each.node_group, each.pods, each.count) for each in nodes if each.pods]
        self._alike = sorted(found, key=lambda each: -sum(each.pods.values()))
        self.begun: list[_Begun] = []

    def whole(self, need: Counter[int]) -> Iterator[str]:
        """Yield the group of every node that the need fills alone, and subtract its pods from the need. The fullest
        come first, so that few pods are left for shared nodes."""
        for each in self._alike:
            taken = min([each.left, *(need[who] // count for who, count in each.pods.items())])
            if taken:
                each.left -= taken
                need.subtract({who: taken * count for who, count in each.pods.items()})
                yield from [each.node_group] * taken

    def shared(self, uid: str, need: Counter[int]) -> None:
        """Assign the rest of a need: to nodes that others have begun, then to new ones."""
        while any(need.values()):
            node = max(self.begun, key=lambda each: _common(each.room, need), default=None)
            if node is None or not _common(node.room, need):
                node = self._begin(need)
            taken = Counter({who: min(count, need[who]) for who, count in node.room.items()})
            node.room -= taken
            need.subtract(taken)
            node.uids.append(uid)

    def _begin(self, need: Mapping[int, int]) -> _Begun:
        """Begin the node of which the need takes most, and leaves least to others."""
        open_ones = (each for each in self._alike if each.left)
        best = max(open_ones, key=lambda each: (_common(each.pods, need), -sum(each.pods.values())))
        best.left -= 1
        self.begun.append(_Begun(best.node_group, Counter(best.pods)))
        return self.begun[-1]


def _common(room: Mapping[int, int], need: Mapping[int, int]) -> int:
    return sum(min(count, need.get(who, 0)) for who, count in room.items())


def _spare(nodes: Sequence[PlannedNodes], new: Sequence[NewNode]) -> Iterator[NewNode]:
    """Yield nodes without pods, each for the requests of the first node of its group, or of the first node at all; none
    where nobody gets a new node, as minimum sizes are the fleet's."""
    if not new:
        return
    owners: dict[str, tuple[str, ...]] = {}
    for group_id, uids in new:
        owners.setdefault(group_id, uids)
    for each in nodes:
        if not each.pods:
            yield from [(each.node_group, owners.get(each.node_group, new[0][1]))] * each.count


def together(new: Sequence[NewNode]) -> list[tuple[NewNode, ...]]:
    """Return the smallest sets of new nodes that have no request in common."""
    owners = list(dict.fromkeys(uids for _, uids in new))  # as many as there are ways to share, not one per node
    part_of = {owners[position]: number for number, part in enumerate(connected(owners)) for position in part}
    found: defaultdict[int, list[NewNode]] = defaultdict(list)
    for node in new:
        found[part_of[node[1]]].append(node)
    return [tuple(found[number]) for number in sorted(found)]
