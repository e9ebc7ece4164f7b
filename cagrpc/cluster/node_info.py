"""Room on nodes, and who has it: a `NodeInfo` of one node, as in the kube-scheduler and Karpenter, and the
`ClusterCapacity` of many. What is not bound yet and has room somewhere is *assumed* there under a typed owner, so that
it can be forgotten again: pods with a place, bookings of ProvisioningRequests, placeholders of the resource slack, pods
that scale-down moves. Which nodes there are, and who is assumed where, is decided by controllers; constraints between
pods are the planner's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc.fleet.model import PodKey
from solver.model import Devices, Labels, Node, PodSpec, Resources, RunningPods, SharedVolume, Taint
from solver.model.allocation import after_pods, allocate
from solver.model.capacity import taken, unshared
from solver.model.eligibility import any_ports_collide, why_not_eligible


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A pod that is not bound yet and has a place."""

    pod: PodKey


@dataclass(frozen=True, slots=True)
class RequestOwner:
    """A ProvisioningRequest, for which a booking keeps room."""

    uid: str


@dataclass(frozen=True, slots=True)
class PlaceholderOwner:
    """Placeholders of one shape of the resource slack."""

    shape: str


@dataclass(frozen=True, slots=True)
class DisplacedOwner:
    """Pods that wait, or whose nodes go away: who in particular does not matter."""


@dataclass(frozen=True, slots=True)
class SpareOwner:
    """The gangs of a topology domain, for which a spare of it stays empty."""


Owner = PodOwner | RequestOwner | PlaceholderOwner | DisplacedOwner | SpareOwner


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for so many pods of a spec, kept for an owner on one node."""

    owner: Owner
    spec: PodSpec
    count: int = 1


Reservations = Mapping[str, Sequence[Reservation]]
"""Reservations by node name."""


def merged(one: Reservations, other: Reservations) -> Reservations:
    """Return the reservations of both."""
    return {name: (*one.get(name, ()), *other.get(name, ())) for name in {**one, **other}}


def requested(pods: Iterable[tuple[PodSpec, int]]) -> dict[str, int]:
    """Return what so many pods of each spec request in all, the pods themselves included, and each volume that they
    share once."""
    return taken(pods)


class NodeInfo:
    """A node with what is free on it, less what is assumed there. Costs next to nothing until something is assumed. Not
    for several threads."""

    __slots__ = ("_assumed", "_base", "_devices", "_free", "_node", "_volumes")
    _devices: tuple[Devices, ...] | None

    def __init__(self, node: Node) -> None:
        """`node.free` is without what pods that run there have requested."""
        self._base = node
        self._assumed: dict[Owner, list[tuple[PodSpec, int]]] = {}
        self._reset()

    @property
    def name(self) -> str:
        return self._base.name

    @property
    def labels(self) -> Labels:
        return self._base.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self._base.taints

    @property
    def free(self) -> Resources:
        """What is left; below 0 where more is assumed than there is."""
        return self._base.free if self._free is None else self._free

    @property
    def devices(self) -> tuple[Devices, ...]:
        """Those that are left; an owner whose claims find none takes none."""
        if self._devices is None:
            assumed = (pods for owned in self._assumed.values() for pods in owned)
            self._devices = after_pods(self._base.devices, (spec.claims for spec, n in assumed for _ in range(n)))
        return self._devices

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """Everything that is assumed here, by owner and spec."""
        return tuple(
            Reservation(owner, spec, count) for owner in self._assumed for spec, count in self.assumed(owner).items()
        )

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Everybody who is assumed here, in the order in which they came."""
        return tuple(self._assumed)

    def assumed(self, owner: Owner) -> dict[PodSpec, int]:
        """Return how many pods of which spec the owner has here."""
        return _by_spec(self._assumed.get(owner, ()))

    def assume(self, owner: Owner, spec: PodSpec, count: int = 1) -> None:
        """Give room for so many pods to the owner, whether there is enough or not."""
        self._assumed.setdefault(owner, []).append((spec, count))
        self._give_back(spec, -count)

    def forget(self, owner: Owner) -> None:
        """Free all room of the owner."""
        for spec, count in self._assumed.pop(owner, ()):
            self._give_back(spec, count)
        if not self._assumed:  # nor is anything left of resources that the node does not have
            self._reset()

    def _reset(self) -> None:
        self._free: dict[str, int] | None = None  # as the node has it
        self._devices = self._base.devices
        self._volumes: Counter[SharedVolume] = Counter()
        """By volume that pods share: how many use it of those that are assumed."""
        self._node: Node | None = _without_debts(self._base)

    def _give_back(self, spec: PodSpec, count: int) -> None:
        """Give room of so many pods back; where `count` is below 0, take it."""
        if self._free is None:
            self._free = {**self._base.free}
        for name, amount in unshared(spec):
            self._free[name] = self._free.get(name, 0) + amount * count
        for volume in spec.shared_volumes:
            before = self._volumes[volume] > 0
            self._volumes[volume] -= count
            if volume not in self._base.volumes:
                self._free[volume[0]] = self._free.get(volume[0], 0) + before - (self._volumes[volume] > 0)
        if spec.claims:
            self._devices = None
        self._node = None

    def _attached_for(self, spec: PodSpec) -> Counter[str]:
        """Return what the first of such pods takes for volumes that it shares with others and that no pod here uses."""
        new = (each for each in spec.shared_volumes if each not in self._base.volumes and self._volumes[each] <= 0)
        return Counter(resource for resource, _ in new)

    def most(self, spec: PodSpec) -> int:
        """Return how many such pods have room here, by resources, devices and host ports."""
        if spec.host_ports and self._has_port_of(spec):
            return 0
        free, first = self.free, self._attached_for(spec)
        if any(free.get(name, 0) < count for name, count in first.items()):
            return 0
        room = min((free.get(name, 0) - first[name]) // amount for name, amount in unshared(spec) if amount)
        room = max(0, min(room, 1) if spec.host_ports else room)
        return self._served(spec, room) if spec.claims else room

    def has_room(self, spec: PodSpec) -> bool:
        """Return whether one such pod has room here, by resources, devices and host ports."""
        free, needs = self.free, self._attached_for(spec)
        needs.update(dict(unshared(spec)))
        if any(free.get(name, 0) < amount for name, amount in needs.items() if amount):
            return False
        if spec.claims and not self._served(spec, 1):
            return False
        return not (spec.host_ports and self._has_port_of(spec))

    def admits(self, spec: PodSpec) -> bool:
        """Return whether such a pod may run here, by the node's name, labels and taints."""
        return why_not_eligible(spec, self.labels, self.taints, self.name) is None

    def fits(self, spec: PodSpec) -> bool:
        """Return whether one such pod has room and may run here. Constraints between pods are not considered."""
        return self.has_room(spec) and self.admits(spec)

    def copy(self) -> NodeInfo:
        """Return the same node with the same pods assumed, that changes apart from this one."""
        other = NodeInfo(self._base)
        other._assumed = {owner: [*pods] for owner, pods in self._assumed.items()}
        other._free, other._node = None if self._free is None else {**self._free}, self._node
        other._devices, other._volumes = self._devices, self._volumes.copy()
        return other

    def node(self) -> Node:
        """Return the planner's node: pods that are assumed run there, and nothing free is below 0."""
        if self._node is None:
            pods = _by_spec(pods for assumed in self._assumed.values() for pods in assumed)
            running = (*self._base.running, *(RunningPods(spec, count) for spec, count in pods.items()))
            there = self._base.volumes.union(*(spec.shared_volumes for spec in pods))
            self._node = _without_debts(
                replace(self._base, free={**self.free}, running=running, devices=self.devices, volumes=there)
            )
        return self._node

    def _served(self, spec: PodSpec, most: int) -> int:
        """Return how many such pods, up to `most`, find their devices here."""
        left = self.devices
        for number in range(most):
            found = allocate(left, spec.claims)
            if found is None:
                return number
            left = found.left(left)
        return most

    def _has_port_of(self, spec: PodSpec) -> bool:
        there = (
            *(each.spec for each in self._base.running),
            *(other for assumed in self._assumed.values() for other, _ in assumed),
        )
        return any(any_ports_collide(each, spec) for each in there)


def _without_debts(node: Node) -> Node:
    """Return the node with nothing free below 0."""
    if min(node.free.values(), default=0) >= 0:
        return node
    return replace(node, free={name: max(0, amount) for name, amount in node.free.items()})


def _by_spec(pods: Iterable[tuple[PodSpec, int]]) -> dict[PodSpec, int]:
    found: dict[PodSpec, int] = {}
    for spec, count in pods:
        found[spec] = found.get(spec, 0) + count
    return found


class ClusterCapacity:
    """Nodes by name. Costs next to nothing for those that nothing is asked of. Not for several threads."""

    def __init__(self, nodes: Iterable[Node], reservations: Reservations | None = None) -> None:
        """`reservations` are assumed at once."""
        self._nodes = {node.name: node for node in nodes}
        self._infos: dict[str, NodeInfo] = {}
        """The nodes that were asked for."""
        self.assume(reservations or {})

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[NodeInfo]:
        return (self[name] for name in self._nodes)

    def __getitem__(self, name: str) -> NodeInfo:
        """Return a node. Raises KeyError for one that is not there."""
        info = self._infos.get(name)
        if info is None:
            info = self._infos[name] = NodeInfo(self._nodes[name])
        return info

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, in the order in which they came."""
        return tuple(self._nodes)

    def get(self, name: str) -> NodeInfo | None:
        return self[name] if name in self._nodes else None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The planner's, in the order in which they came."""
        infos = self._infos
        return tuple(
            infos[name].node() if name in infos else _without_debts(node) for name, node in self._nodes.items()
        )

    @property
    def reservations(self) -> Reservations:
        """Everything that is assumed, by the nodes that have any of it."""
        infos = self._infos
        return {name: infos[name].reservations for name in self._nodes if name in infos and infos[name].owners}

    def assume(self, reservations: Reservations) -> None:
        """Give room to the owners; those of nodes that are not there are passed over."""
        for name, kept in reservations.items():
            if name in self._nodes:
                for each in kept:
                    self[name].assume(each.owner, each.spec, each.count)

    def forget(self, owner: Owner) -> None:
        """Free all room of the owner, on whatever nodes it is."""
        for info in self._infos.values():
            info.forget(owner)
