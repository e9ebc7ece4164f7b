"""Who gets which nodes of a plan, and which new nodes have to come together. Pure, and nothing in it is per pod.

Requests whose pods share a new node are one increment, whole or not at all. So nodes are handed out request by request,
whole ones first, that few are shared.
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
    """Every pod in its place."""

    on_nodes: Mapping[str, tuple[str, ...]]
    """UID -> names of nodes that stand, sorted. Only requests that have pods there."""
    new: tuple[NewNode, ...]


def assign(demands: Sequence[Demand], existing: Sequence[PlacedOnNode], nodes: Sequence[PlannedNodes]) -> Assignment:
    """`demands` in the order in which they are served, together all that the nodes hold. What stands goes to the
    first. New nodes for nobody in particular, there so that everybody lands, go with others of their group."""
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
    """Room on nodes that stand, class by class."""

    def __init__(self, existing: Sequence[PlacedOnNode]) -> None:
        self._room: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for placed in reversed(existing):  # taken from the end
            for who, count in placed.pods.items():
                self._room[who].append((placed.node, count))

    def take(self, need: Counter[int]) -> tuple[str, ...]:
        """The nodes' names; what they hold is taken off the need."""
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
    """New nodes that nobody has yet."""

    node_group: str
    pods: Mapping[int, int]
    """Of each."""
    left: int


@dataclass(slots=True)
class _Begun:
    """A new node that its first owner does not fill."""

    node_group: str
    room: Counter[int]
    uids: list[str] = field(default_factory=list)


class _Pool:
    """New nodes: alike ones together as long as nobody has them."""

    def __init__(self, nodes: Sequence[PlannedNodes]) -> None:
        found = [_Alike(each.node_group, each.pods, each.count) for each in nodes if each.pods]
        self._alike = sorted(found, key=lambda each: -sum(each.pods.values()))
        self.begun: list[_Begun] = []

    def whole(self, need: Counter[int]) -> Iterator[str]:
        """The group of every node that the need fills alone; what they hold is taken off it. The fullest come first, so
        that few pods are left for shared ones."""
        for each in self._alike:
            taken = min([each.left, *(need[who] // count for who, count in each.pods.items())])
            if taken:
                each.left -= taken
                need.subtract({who: taken * count for who, count in each.pods.items()})
                yield from [each.node_group] * taken

    def shared(self, uid: str, need: Counter[int]) -> None:
        """The rest of a need: on nodes that others have begun, then on new ones."""
        while any(need.values()):
            node = max(self.begun, key=lambda each: _common(each.room, need), default=None)
            if node is None or not _common(node.room, need):
                node = self._begin(need)
            taken = Counter({who: min(count, need[who]) for who, count in node.room.items()})
            node.room -= taken
            need.subtract(taken)
            node.uids.append(uid)

    def _begin(self, need: Mapping[int, int]) -> _Begun:
        """The node of which the need takes most, and leaves least to others."""
        open_ones = (each for each in self._alike if each.left)
        best = max(open_ones, key=lambda each: (_common(each.pods, need), -sum(each.pods.values())))
        best.left -= 1
        self.begun.append(_Begun(best.node_group, Counter(best.pods)))
        return self.begun[-1]


def _common(room: Mapping[int, int], need: Mapping[int, int]) -> int:
    return sum(min(count, need.get(who, 0)) for who, count in room.items())


def _spare(nodes: Sequence[PlannedNodes], new: Sequence[NewNode]) -> Iterator[NewNode]:
    """Nodes without pods, each as one more of whoever has the first of its group, or the first at all."""
    owners: dict[str, tuple[str, ...]] = {}
    for group_id, uids in new:
        owners.setdefault(group_id, uids)
    anybody = new[0][1] if new else ()
    for each in nodes:
        if not each.pods:
            yield from [(each.node_group, owners.get(each.node_group, anybody))] * each.count


def together(new: Sequence[NewNode]) -> list[tuple[NewNode, ...]]:
    """The smallest sets of new nodes that have no request in common."""
    owners = list(dict.fromkeys(uids for _, uids in new))  # as many as there are ways to share, not one per node
    part_of = {owners[position]: number for number, part in enumerate(connected(owners)) for position in part}
    found: defaultdict[int, list[NewNode]] = defaultdict(list)
    for node in new:
        found[part_of[node[1]]].append(node)
    return [tuple(found[number]) for number in sorted(found)]
