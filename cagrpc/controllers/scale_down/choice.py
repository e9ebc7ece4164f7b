"""Which nodes the autoscaler may scale down, so that the order of weights holds and no node comes up again for a
removed one: those whose pods all fit elsewhere on nodes of the same or a higher weight, wherever the scheduler puts
them. Pure. Nodes are annotated by `controller`; places are found by `relocation` and `crowd`.

CA may remove several nodes at once, so the candidates may all go together: each one's pods are placed on what is left,
and count there when the next one is evaluated. The lowest weights go first, then the highest unused cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import ClusterCapacity, RequestOwner, Reservations, merged
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.scale_down.crowd import Crowd
from cagrpc.controllers.scale_down.relocation import Pods, Relocation, is_constrained_by_others, required
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.clock import MonotonicClock
from solver.model import CPU, MEMORY, Budget, Node, NodeGroup, PodSet, PodSpec

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""CA's taint on a node that it drains (upstream: utils/taints)."""

IN_USE = "in use: above the scale-down utilization threshold"
IN_FLIGHT = "an increment in flight counts on it"
AT_MINIMUM = "its node group would be below its minimum size"
NOT_YET = "not evaluated yet"
ENOUGH = "enough other nodes may go first"
CONSOLIDATED = "cagrpc consolidates: it takes nodes away by itself"
BOOKED = "booked for ProvisioningRequest"
BUDGET = "PodDisruptionBudget"
"""How the reasons of nodes that cannot be drained begin."""


def no_room(weight: int) -> str:
    """Return the reason of a node whose pods may not fit elsewhere."""
    return f"its pods, or pods that wait, are not sure to find room elsewhere on nodes of weight {weight} or above"


def no_room_with_slack(weight: int) -> str:
    """Return the same reason for a node with placeholders of the slack."""
    return f"its pods, or the slack on it, are not sure to find room elsewhere on nodes of weight {weight} or above"


def booked_for(request: str) -> str:
    """Return the reason of a node that is booked for a request (namespace/name)."""
    return f"{BOOKED} {request}"


@dataclass(frozen=True, slots=True)
class Bookings:
    """What is reserved on nodes beside the pods that run there."""

    reservations: Reservations = field(default_factory=dict)
    """Of ProvisioningRequests, for pods that are still to be created. They cannot be moved."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Booked nodes, which have to stay, with the ProvisioningRequest of each (namespace/name)."""
    slack: Reservations = field(default_factory=dict)
    """Placeholders on nodes. They may move, as pods may."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How much is evaluated in one round. Times in seconds."""

    utilisation: float = 0.5
    """CA's own --scale-down-utilization-threshold: nodes at or above it are not evaluated."""
    most: int = 30
    """Nodes with pods that may go at a time. CA drains fewer at once."""
    evaluations: int = 50
    """Nodes evaluated in one round beside those that may go already."""
    evaluation_seconds: float = 1.0
    """How long one round evaluates."""
    place_seconds: float = 0.1
    """The planner's budget for the pods of one node,"""
    waiting_seconds: float = 1.0
    """and for all pending pods."""

    @classmethod
    def for_thresholds(cls, thresholds: Iterable[float | None]) -> Rules:
        """Return the rules under which every node is evaluated that CA may find underutilized: `thresholds` are those
        of the node groups, None where one has CA's own."""
        return cls(utilisation=max([cls().utilisation, *(each or 0.0 for each in thresholds)]))


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What was decided of all nodes of the fleet that may be annotated, by name."""

    stay: Mapping[str, str]
    """The reason of each node that has to stay."""
    go: tuple[str, ...]
    low: frozenset[str]
    """Nodes that CA may find underutilized, whatever was decided of them."""
    refused: frozenset[str]
    """Nodes that were evaluated, in this sweep, and have to stay."""
    swept: bool
    """Whether all candidates have been evaluated in this sweep."""


@dataclass(frozen=True)
class _Ours:
    """A node of the fleet."""

    node: ClusterNode
    group: NodeGroup

    @property
    def name(self) -> str:
        return self.node.node.name

    @cached_property
    def used(self) -> float:
        """CA's utilisation: of the GPUs where there are any, otherwise the larger of cpu and memory."""
        allocatable = self.group.allocatable
        gpus = [name for name, amount in allocatable.items() if name.endswith("/gpu") and amount]
        resources = gpus or (CPU, MEMORY)
        free = self.node.node.free
        return max((1 - free.get(r, 0) / allocatable[r] for r in resources if allocatable.get(r)), default=0.0)


def choose(
    cluster: ClusterState,
    fleet: FleetSnapshot,
    before: AbstractSet[str],
    lately: AbstractSet[str],
    rules: Rules,
    clock: MonotonicClock,
    bookings: Bookings | None = None,
    undrainable: Mapping[str, str] | None = None,
) -> Verdicts:
    """Return which nodes may go and which have to stay. `cluster` is without the pods of increments in flight. `before`
    are the nodes that may go so far: they win ties, since CA waits 10 minutes before it removes a node. `lately` were
    evaluated in this sweep and refused. `undrainable` are nodes that cannot be drained now, with reasons: no other
    places are looked for their pods."""
    chosen = _ChoiceRound(cluster, fleet, rules, bookings or Bookings(), undrainable or {})
    return chosen.verdicts(before, lately, clock)


def all_stay(cluster: ClusterState, fleet: FleetSnapshot) -> Verdicts:
    """Return that CA may take no node of the fleet, since consolidation does."""
    names = [name for name, each in _ours(cluster.nodes, fleet).items() if not _foreign(each.node)]
    return Verdicts(dict.fromkeys(names, CONSOLIDATED), (), frozenset(names), frozenset(), swept=True)


class _Allowance:
    """What is left in one round of what the rules allow."""

    def __init__(self, rules: Rules, clock: MonotonicClock) -> None:
        self._clock = clock
        self._left = rules.evaluations
        self._until = clock() + rules.evaluation_seconds
        # A node that may go already is not refused for lack of time, unless the round takes far too long.
        self._until_at_most = self._until + 3 * rules.evaluation_seconds
        self.most = rules.most
        """Nodes with pods that may still go."""

    def spend(self, *, known: bool) -> str:
        """Count the evaluation of a node with pods; `known` is one that may go already. Return why it has to wait;
        empty where it has not."""
        if not self.most:
            return ENOUGH
        late = self._clock() >= (self._until_at_most if known else self._until)
        if late or not (known or self._left):
            return NOT_YET
        self._left -= not known
        return ""


class _ChoiceRound:
    """One evaluation of all nodes, on one capacity that changes as nodes go."""

    def __init__(
        self,
        cluster: ClusterState,
        fleet: FleetSnapshot,
        rules: Rules,
        bookings: Bookings,
        undrainable: Mapping[str, str],
    ) -> None:
        self._rules = rules
        self._undrainable = undrainable
        self._booked, self._slack = bookings.nodes, bookings.slack
        self._ours = _ours(cluster.nodes, fleet)
        going = deleting_instances(fleet)
        self._leaving = {each.node.name for each in cluster.nodes if _leaves(each, going)}
        self._held = {
            each.node.name for each in cluster.nodes if each.held or each.provider_id in fleet.held_instances
        } - self._leaving
        self._spare = _spare(fleet)
        for name in self._leaving & self._ours.keys():
            if self._ours[name].node.provider_id not in going:
                self._spare[self._ours[name].group.id] -= 1
        self._low = {
            name for name, each in self._ours.items() if name not in self._leaving and each.used < rules.utilisation
        }
        foreign = {name for name, each in self._ours.items() if _foreign(each.node)}
        self._candidates = self._low - self._held - self._booked.keys() - undrainable.keys() - foreign
        if self._candidates:  # otherwise no pods are to be moved
            self._find_room(cluster, bookings)

    def _find_room(self, cluster: ClusterState, bookings: Bookings) -> None:
        """Learn what is left on nodes that stay, beside pods that wait."""
        away = self._leaving | self._held
        self._capacity = ClusterCapacity(
            (node for node in _as_pods_see_them(cluster, bookings.slack) if node.name not in away),
            merged(bookings.reservations, bookings.slack),
        )
        self._relocation = Relocation(self._capacity)
        self._crowd = Crowd(self._capacity.nodes)
        self._reserve(cluster)
        self._onto = self._preferred_targets(cluster.nodes)

    def _reserve(self, cluster: ClusterState) -> None:
        """Assume pending pods, and those of nodes that are being removed, on existing nodes. Gangs are not heeded:
        these nodes may be a part of what a gang gets."""
        sets = [replace(each.pod_set, gang=None) for each in cluster.waiting]
        homeless: Counter[PodSpec] = Counter()
        for each in cluster.nodes:
            if each.node.name in self._leaving:
                homeless.update(_pods(each))
        sets += [
            PodSet(f"of nodes that leave, {n}", required(s), count) for n, (s, count) in enumerate(homeless.items())
        ]
        if sets:
            names = [each.node.name for each in cluster.nodes]
            placed = self._relocation.place_sets(tuple(sets), names, Budget(self._rules.waiting_seconds))
            self._relocation.assume(placed)
            for pods in placed.pods.values():
                self._crowd.add(pods)

    def _preferred_targets(self, nodes: Sequence[ClusterNode]) -> tuple[tuple[str, float], ...]:
        """Return nodes with their weight: first those that stay anyway, then candidates, the most free first in each
        part. Nodes outside the fleet have no tier."""

        def key(each: ClusterNode) -> tuple[bool, int, str]:
            return each.node.name in self._candidates, -each.node.free.get(CPU, 0), each.node.name

        return tuple(
            (each.node.name, self._ours[each.node.name].group.weight if each.node.name in self._ours else inf)
            for each in sorted(nodes, key=key)
        )

    def verdicts(self, before: AbstractSet[str], lately: AbstractSet[str], clock: MonotonicClock) -> Verdicts:
        """Decide all nodes, in their order."""
        others = sorted(self._ours.keys() - self._leaving - self._candidates)
        stay = {name: self._why_not_considered(name) for name in others}
        go: list[str] = []
        refused: set[str] = set()
        allowance = _Allowance(self._rules, clock)
        for each in sorted((self._ours[name] for name in self._candidates), key=lambda each: _order(each, before)):
            known = each.name in before
            why = self._take(each, allowance, known=known, refused_lately=each.name in lately and not known)
            if not why:
                go.append(each.name)
                continue
            stay[each.name] = why
            if why == self._no_room(each):
                refused.add(each.name)
        go += sorted(self._leaving & self._ours.keys())
        annotated = {name for name, each in self._ours.items() if not _foreign(each.node)}
        return Verdicts(
            stay={name: why for name, why in stay.items() if name in annotated},
            go=tuple(name for name in go if name in annotated),
            low=frozenset(self._low),
            refused=frozenset(refused),
            swept=NOT_YET not in stay.values(),
        )

    def _why_not_considered(self, name: str) -> str:
        """Return why a node that is no candidate has to stay."""
        if name in self._held:
            return IN_FLIGHT
        if name in self._booked:
            return booked_for(self._booked[name])
        return self._undrainable.get(name, IN_USE) if name in self._low else IN_USE

    def _no_room(self, each: _Ours) -> str:
        return (no_room_with_slack if each.name in self._slack else no_room)(each.group.weight)

    def _pods_on(self, each: _Ours) -> Pods:
        """Return its own pods, placeholders, and pods assumed there; bookings cannot move."""
        found = Counter(_pods(each.node))
        for reservation in self._capacity[each.name].reservations:
            if not isinstance(reservation.owner, RequestOwner):
                found[reservation.spec] += reservation.count
        return found

    def _take(self, each: _Ours, allowance: _Allowance, *, known: bool, refused_lately: bool) -> str:
        """Remove the node from the capacity and assume its pods elsewhere, or return why it has to stay; empty where it
        can go."""
        has_pods = bool(self._pods_on(each))
        if self._spare[each.group.id] < 1:
            return AT_MINIMUM
        if has_pods:
            why = self._no_room(each) if refused_lately else allowance.spend(known=known)
            if why:
                return why
        own = _pods(each.node)
        if not self._crowd.has_room(own, each.name) or not self._move(each):
            return self._no_room(each)
        self._crowd.remove(each.name)
        self._crowd.add(own)
        self._capacity.remove(each.name)
        self._spare[each.group.id] -= 1
        allowance.most -= has_pods
        return ""

    def _move(self, each: _Ours) -> bool:
        """Assume its pods on other nodes, of their own tier first: pods that fit nowhere else may need the room
        above."""
        pods = self._pods_on(each)
        if not pods:
            return True
        lowest, others = each.group.weight, [(name, weight) for name, weight in self._onto if name != each.name]
        for highest in (lowest, inf):
            onto = [name for name, weight in others if lowest <= weight <= highest]
            placed = self._relocation.place(pods, onto, Budget(self._rules.place_seconds))
            if placed.all:
                self._relocation.assume(placed)
                return True
        return False


def _as_pods_see_them(cluster: ClusterState, slack: Reservations) -> Iterable[Node]:
    """Return nodes with the running pods that matter to pods that move. `Node.running` has those that matter to pending
    pods only."""
    specs = {pods.spec for each in cluster.nodes for pods in each.movable}
    specs |= {pods.spec for placeholders in slack.values() for pods in placeholders}
    if not any(each.host_ports or is_constrained_by_others(each) for each in specs):
        return (replace(each.node, running=()) if not cluster.waiting else each.node for each in cluster.nodes)
    return (replace(each.node, running=each.movable) for each in cluster.nodes)


def _ours(nodes: Iterable[ClusterNode], fleet: FleetSnapshot) -> dict[str, _Ours]:
    found = {}
    for node in nodes:
        state = fleet.groups.get(fleet.group_of_instance.get(node.provider_id, ""))
        if state is not None:
            found[node.node.name] = _Ours(node, state.group)
    return found


def _leaves(node: ClusterNode, going: AbstractSet[str]) -> bool:
    """Return whether CA or the fleet is removing the node, or it is not Ready, which CA handles: its pods need other
    places."""
    taken = any(taint.key == TO_BE_DELETED for taint in node.node.taints)
    return taken or not node.ready or node.provider_id in going


def _foreign(node: ClusterNode) -> bool:
    """Return whether somebody else has set the annotation."""
    return bool(node.scale_down_disabled) and not node.scale_down_disabled_by_us


def _spare(fleet: FleetSnapshot) -> Counter[str]:
    """Return how many nodes each group may lose. Targets are without instances that are being deleted."""
    return Counter({group_id: each.target_size - each.group.min_size for group_id, each in fleet.groups.items()})


def _pods(node: ClusterNode) -> Pods:
    found: Counter[PodSpec] = Counter()
    for each in node.movable:
        found[each.spec] += each.count
    return found


def _order(each: _Ours, before: AbstractSet[str]) -> tuple[int, bool, float, str]:
    unused = each.group.price_usd_per_hour * (1 - each.used)
    return each.group.weight, each.name not in before, -unused, each.name
