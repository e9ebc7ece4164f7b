"""Which nodes the autoscaler may scale down, so that the order of weights holds and no node comes up again for a
removed one: those whose pods all fit elsewhere on nodes of the same or a higher weight, wherever the scheduler puts
them. Pure. Nodes are annotated by `controller`; places are found by `relocation`. What is known of nodes is kept from
review to review: of one that has not changed nothing is found anew.

CA may remove several nodes at once, so the candidates may all go together: each one's pods are placed on what is left,
and count there when the next one is evaluated. The lowest weights go first, then the highest unused cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import inf

import numpy as np

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import RequestOwner, Reservations, merged
from cagrpc.cluster.spares import kept_free
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.scale_down.constraints import keys_kept_out_of
from cagrpc.controllers.scale_down.relocation import Pods, Relocation, Room, movable, reserve, seen_by_waiting
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.clock import MonotonicClock
from solver.model import CPU, MEMORY, PODS, Budget, DeviceClaim, PodSet, PodSpec, Resources
from solver.model.allocation import allocate
from solver.model.eligibility import on_nodes, without_preferences
from solver.reduction.node_columns import Bools, NodeColumns, amount_of

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""CA's taint on a node that it drains (upstream: utils/taints)."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node of the fleet."""

    node: ClusterNode
    group: str
    """The id of its node group."""
    used: float
    """CA's utilisation: of the GPUs where there are any, otherwise the larger of cpu and memory."""

    @property
    def name(self) -> str:
        return self.node.node.name


class ReviewedNodes:
    """All nodes as of the last update, and names of those of which something is so. For one thread."""

    def __init__(self, utilisation: float) -> None:
        """Below this utilisation CA may find a node underutilized."""
        self._utilisation = utilisation
        self.nodes: tuple[ClusterNode, ...] = ()
        self.of: dict[str, ClusterNode] = {}
        self.ours: dict[str, FleetNode] = {}
        """Nodes of the fleet."""
        self.low: set[str] = set()
        """Of these, nodes that CA may find underutilized."""
        self.leaving: set[str] = set()
        """Nodes that CA drains, or that are not Ready, which CA handles: their pods need other places."""
        self.held: set[str] = set()
        """Nodes with our start-up taint."""
        self.foreign: set[str] = set()
        """Nodes that somebody else has annotated."""
        self.marked: set[str] = set()
        """Nodes that we have."""
        self.keeping_out: set[str] = set()
        """Nodes with pods whose anti-affinity reaches beyond their node."""
        self._sets = (self.low, self.leaving, self.held, self.foreign, self.marked, self.keeping_out)
        self._group_of_instance: Mapping[str, str] = {}
        self._allocatable: dict[str, Resources] = {}
        """Of each group, what pods may use of a node."""
        self._measured: dict[str, tuple[tuple[str, int], ...]] = {}
        """Of each group, the amounts by which CA measures how much of a node is used."""

    def update(self, nodes: tuple[ClusterNode, ...], fleet: FleetSnapshot) -> AbstractSet[str]:
        """Bring it up to date, and return the names of nodes that are gone."""
        changed = [] if nodes is self.nodes else [each for each in nodes if self.of.get(each.node.name) is not each]
        now = {group: state.group.allocatable for group, state in fleet.groups.items()}
        groups = {group for group in {**now, **self._allocatable} if now.get(group) != self._allocatable.get(group)}
        if groups or fleet.group_of_instance is not self._group_of_instance:
            known = (each for each in nodes if self.of.get(each.node.name) is each)
            changed += [each for each in known if self._changes_group(each, fleet, groups)]
        self._measured.update((group, _measured(now[group])) for group in groups if group in now)
        for each in changed:
            self._learn(each, self._group(each, fleet))
        gone = self.of.keys() - {each.node.name for each in nodes} if len(self.of) > len(nodes) else frozenset()
        for name in gone:
            self._forget(name)
        self.nodes, self._allocatable, self._group_of_instance = nodes, now, fleet.group_of_instance
        return gone

    def named(self, instances: AbstractSet[str]) -> set[str]:
        """Return the names of the nodes of these instances."""
        return {name for name, each in self.of.items() if each.provider_id in instances} if instances else set()

    def _group(self, each: ClusterNode, fleet: FleetSnapshot) -> str:
        """Return the id of its node group; empty for a node that is not of the fleet."""
        group = fleet.group_of_instance.get(each.provider_id, "")
        return group if group in fleet.groups else ""

    def _changes_group(self, each: ClusterNode, fleet: FleetSnapshot, changed: AbstractSet[str]) -> bool:
        before, group = self.ours.get(each.node.name), self._group(each, fleet)
        return group in changed or group != (before.group if before is not None else "")

    def _learn(self, each: ClusterNode, group: str) -> None:
        name = each.node.name
        if name in self.of:
            self._forget(name)
        self.of[name] = each
        if group:
            free = each.node.free
            # CA leaves expendable pods out of what is used.
            more = Counter[str]()
            for pods in each.expendable:
                more.update({resource: asked * pods.count for resource, asked in pods.spec.requests})
            used = max(
                (1 - (free.get(resource, 0) + more[resource]) / amount for resource, amount in self._measured[group]),
                default=0.0,
            )
            self.ours[name] = FleetNode(each, group, used)
            if used < self._utilisation:
                self.low.add(name)
        if not each.ready or any(taint.key == TO_BE_DELETED for taint in each.node.taints):
            self.leaving.add(name)
        if each.held:
            self.held.add(name)
        if each.scale_down_disabled_by_us:
            self.marked.add(name)
        elif each.scale_down_disabled:
            self.foreign.add(name)
        specs = (pods.spec for pods in (*each.movable, *each.node.running))
        if any(keys_kept_out_of(spec) for spec in specs if spec.pod_anti_affinity):
            self.keeping_out.add(name)

    def _forget(self, name: str) -> None:
        self.of.pop(name, None)
        self.ours.pop(name, None)
        for names in self._sets:
            names.discard(name)


def _measured(allocatable: Resources) -> tuple[tuple[str, int], ...]:
    """Return the amounts by which CA measures how much of such a node is used."""
    gpus = [name for name, amount in allocatable.items() if name.endswith("/gpu") and amount]
    amounts = ((name, allocatable.get(name, 0)) for name in gpus or (CPU, MEMORY))
    return tuple((name, amount) for name, amount in amounts if amount)


IN_USE = "in use: above the scale-down utilization threshold"
IN_FLIGHT = "an increment in flight counts on it"
AT_MINIMUM = "its node group would be below its minimum size"
SPARE = "it is a spare of its topology domain"
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
    """The planner's budget for the pods of one node."""
    waiting_seconds: float = 0.2
    """The planner's budget for all pending pods."""
    budget: Budget | None = None
    """Of each plan, instead of these."""
    step_seconds: float = 0.1
    """How long one step begins further parts of a round."""

    @classmethod
    def for_thresholds(cls, thresholds: Iterable[float | None], budget: Budget | None = None) -> Rules:
        """Return the rules under which every node is evaluated that CA may find underutilized: `thresholds` are those
        of the node groups, None where one has CA's own."""
        return cls(utilisation=max([cls().utilisation, *(each or 0.0 for each in thresholds)]), budget=budget)


Undrainable = Callable[[AbstractSet[str]], Mapping[str, str]]
"""Returns which of these nodes cannot be drained now, each with the reason."""


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


def choose(
    known: ReviewedNodes,
    snapshot: Snapshot,
    before: AbstractSet[str],
    lately: AbstractSet[str],
    rules: Rules,
    clock: MonotonicClock,
    undrainable: Undrainable,
) -> Generator[Verdicts, None, Verdicts]:
    """Return which nodes may go and which have to stay. `known` is up to date with the snapshot's cluster, which is
    without the pods of increments in flight. `before` are the nodes that may go so far: they win ties, since CA waits
    10 minutes before it removes a node. `lately` were evaluated in this sweep and refused. Of `undrainable` nodes no
    pods are placed.

    It pauses after each part of the work, with the verdicts on nodes that are not evaluated. Meanwhile `known` must not
    change, and the clock is to stand still. Raises StillStarting while it is not known what ProvisioningRequests
    hold."""
    held = merged(snapshot.reservations, snapshot.placeholders)  # first: which nodes are booked may not be known yet
    held = merged(held, kept_free(snapshot.spares, [each.node for each in known.nodes], snapshot.cluster))
    at_first = _AtFirst(known, snapshot, undrainable)
    yield at_first.verdicts
    if not at_first.candidates:  # no pods are to be moved
        return at_first.with_decided({}, (), ())
    room = Room(_in_order(known, at_first), held)
    yield at_first.verdicts
    removals = _Removals(known, snapshot.fleet, rules, at_first, room, snapshot.placeholders)
    for _ in removals.reserve(snapshot.cluster):
        yield at_first.verdicts
    stay: dict[str, str] = {}
    go: list[str] = []
    refused: set[str] = set()
    allowance = _Allowance(rules, clock)
    for each in sorted((known.ours[name] for name in at_first.candidates), key=lambda n: removals.order(n, before)):
        why = removals.take(each, allowance, said=each.name in before, refused_lately=each.name in lately)
        if why:
            stay[each.name] = why
        else:
            go.append(each.name)
        if why == removals.no_room(each):
            refused.add(each.name)
        yield at_first.verdicts
    return at_first.with_decided(stay, go, refused)


def all_stay(known: ReviewedNodes) -> Verdicts:
    """Return that CA may take no node of the fleet, since consolidation does."""
    names = known.ours.keys() - known.foreign
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

    def spend(self, *, said: bool) -> str:
        """Count the evaluation of a node with pods; `said` is whether it may go already. Return why it has to wait;
        empty where it has not."""
        if not self.most:
            return ENOUGH
        late = self._clock() >= (self._until_at_most if said else self._until)
        if late or not (said or self._left):
            return NOT_YET
        self._left -= not said
        return ""


class _AtFirst:
    """What is decided before any pods are placed, and of which nodes it is not."""

    def __init__(self, known: ReviewedNodes, snapshot: Snapshot, undrainable: Undrainable) -> None:
        fleet, booked_nodes = snapshot.fleet, snapshot.requests.nodes
        deleting = deleting_instances(fleet)
        self.leaving = known.leaving | known.named(deleting)
        held = (known.held | known.named(fleet.held_instances)) - self.leaving
        self.away = self.leaving | held
        """Nodes that take no pods."""
        self.spare = Counter({group: each.target_size - each.group.min_size for group, each in fleet.groups.items()})
        """How many nodes each group may lose. Targets are without instances that are being deleted."""
        ours = [known.ours[name] for name in self.leaving if name in known.ours]
        self.spare.subtract(each.group for each in ours if each.node.provider_id not in deleting)
        self._go = sorted(each.name for each in ours if each.name not in known.foreign)
        low = frozenset(known.low - self.leaving)
        kept = {name: why for name, why in undrainable(low).items() if name in low} if low else {}
        spares = snapshot.spares
        self.candidates = low - held - booked_nodes.keys() - kept.keys() - spares - known.foreign
        stay = dict.fromkeys(known.ours.keys() - self.leaving - self.candidates - known.foreign, IN_USE)
        booked = {name: booked_for(request) for name, request in booked_nodes.items()}
        for reasons in (kept, dict.fromkeys(spares, SPARE), booked, dict.fromkeys(held, IN_FLIGHT)):
            stay.update((name, why) for name, why in reasons.items() if name in stay)
        self.verdicts = Verdicts(stay, (), low, frozenset(), swept=False)

    def with_decided(self, stay: Mapping[str, str], go: Sequence[str], refused: Iterable[str]) -> Verdicts:
        """Return the verdicts on all nodes, with those on the candidates."""
        return Verdicts(
            {**self.verdicts.stay, **stay},
            (*go, *self._go),
            self.verdicts.low,
            frozenset(refused),
            swept=NOT_YET not in stay.values(),
        )


def _in_order(known: ReviewedNodes, at_first: _AtFirst) -> list[ClusterNode]:
    """Return the nodes that take pods in the order in which they are preferred: first those that stay anyway, then
    candidates, the most free first in each part."""
    nodes = sorted((each for each in known.nodes if each.node.name not in at_first.away), key=lambda n: n.node.name)
    free = NodeColumns([each.node for each in nodes]).free(CPU)
    candidates = np.array([each.node.name in at_first.candidates for each in nodes])
    return [nodes[at] for at in np.lexsort((-free, candidates))]


class _Removals:
    """Candidates one after the other, in a room that changes as they go."""

    def __init__(
        self,
        known: ReviewedNodes,
        fleet: FleetSnapshot,
        rules: Rules,
        at_first: _AtFirst,
        room: Room,
        slack: Reservations,
    ) -> None:
        self._known, self._rules, self._room, self._slack = known, rules, room, slack
        self._groups = {group: each.group for group, each in fleet.groups.items()}
        self._spare, self._leaving = at_first.spare, at_first.leaving
        self._crowd = Crowd(room.columns)
        watching = (known.of[name] for name in known.keeping_out - at_first.away)
        specs = {id(p.spec): p.spec for each in watching for p in (*each.movable, *each.node.running)}
        self._keeping_out = [spec for spec in specs.values() if keys_kept_out_of(spec)]
        ours = (known.ours.get(each.node.name) for each in room.nodes)
        self._weights = np.array([inf if each is None else self._groups[each.group].weight for each in ours])
        """Nodes outside the fleet have no tier."""

    def reserve(self, cluster: ClusterState) -> Generator[None, None, None]:
        """Assume pending pods, and those of nodes that are being removed, on existing nodes. Gangs are not heeded:
        these nodes may be a part of what a gang gets."""
        sets = [
            replace(each.pod_set, spec=without_preferences(each.pod_set.spec), gang=None) for each in cluster.waiting
        ]
        homeless: Counter[PodSpec] = Counter()
        for name in self._leaving:
            for spec, count in _pods(self._known.of[name]).items():
                homeless[without_preferences(spec)] += count
        sets += [PodSet(f"of nodes that leave, {n}", *each) for n, each in enumerate(homeless.items())]
        relocation = Relocation(self._room, self._keeping_out, movable if homeless else seen_by_waiting)
        budget = self._rules.budget or Budget(self._rules.waiting_seconds)
        self._crowd.add((yield from reserve(self._room, relocation, sets, budget)))
        self._relocation = Relocation(self._room, self._keeping_out)

    def order(self, each: FleetNode, before: AbstractSet[str]) -> tuple[int, bool, float, str]:
        """Return a key to sort candidates by."""
        group = self._groups[each.group]
        unused = group.price_usd_per_hour * (1 - each.used)
        return group.weight, each.name not in before, -unused, each.name

    def no_room(self, each: FleetNode) -> str:
        """Return the reason of a node whose pods may not fit elsewhere."""
        return (no_room_with_slack if each.name in self._slack else no_room)(self._groups[each.group].weight)

    def take(self, each: FleetNode, allowance: _Allowance, *, said: bool, refused_lately: bool) -> str:
        """Remove the node from the room and assume its pods elsewhere, or return why it has to stay; empty where it
        can go. `said` is whether it may go already."""
        position = self._room.position[each.name]
        pods = self._pods_on(each, position)
        if self._spare[each.group] < 1:
            return AT_MINIMUM
        if pods:
            why = self.no_room(each) if refused_lately and not said else allowance.spend(said=said)
            if why:
                return why
        own = _pods(each.node)
        if not self._crowd.has_room(own, position) or not self._move(pods, each, position):
            return self.no_room(each)
        self._crowd.remove(position)
        self._crowd.add(own)
        self._spare[each.group] -= 1
        allowance.most -= bool(pods)
        return ""

    def _pods_on(self, each: FleetNode, position: int) -> Pods:
        """Return its own pods, placeholders, and pods assumed there; bookings cannot move."""
        found = _pods(each.node)
        for reservation in self._room.reservations(position):
            if not isinstance(reservation.owner, RequestOwner):
                found[reservation.spec] += reservation.count
        return found

    def _move(self, pods: Pods, each: FleetNode, position: int) -> bool:
        """Drop the node, and assume its pods on other nodes, of its own tier first: pods that fit on no other node may
        need the room above."""
        self._room.remove(position)
        if not pods:
            return True
        lowest = self._groups[each.group].weight
        own_tier, any_tier = self._weights == lowest, self._weights >= lowest
        budget = self._rules.budget or Budget(self._rules.place_seconds)
        for onto in (own_tier, any_tier) if np.any(own_tier != any_tier) else (any_tier,):
            placed = self._relocation.place(pods, onto, budget)
            if placed.all:
                self._relocation.assume(placed)
                return True
        self._room.put_back(position)
        return False


def _pods(node: ClusterNode) -> Counter[PodSpec]:
    """Return the pods that need other places if the node goes: all but the expendable ones."""
    found: Counter[PodSpec] = Counter()
    for each in node.movable:
        found[each.spec] += each.count
    for each in node.expendable:
        found[each.spec] -= each.count
    return +found


_Alike = tuple[PodSpec, tuple[DeviceClaim, ...]]
"""What pods may be on the same nodes by: their `on_nodes`, and their claims."""
_Requests = Mapping[str, int]
_AT_FIRST = 512
"""How many nodes are looked at before all others: mostly they are enough."""


class Crowd:
    """Pods that are scheduled at the same time, and the nodes with what is free before any of them is bound, by
    position: whether all pods fit, whichever nodes the scheduler chooses.

    There is a way to place them all. The scheduler has another, and could leave fragments that are too small for the
    last pod: then a node would come up again for it. So the condition is stricter: no order and no choice of nodes may
    leave a pod without room. A node with room for a pod is closed to it only after so many other pods have been bound
    there that too little is left; where closing all nodes takes more pods than there are, one stays open.
    """

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._there: Bools = np.ones(len(columns), dtype=bool)
        self._count = 0
        self._largest: dict[str, int] = {PODS: 1}
        self._hardest: dict[_Alike, tuple[_Requests, ...]] = {}
        """Of pods that may be on the same nodes the requests that no other ones exceed: where these fit, all do."""
        self._served: dict[tuple[DeviceClaim, ...], dict[int, bool]] = {}

    def add(self, pods: Pods) -> None:
        """Add pods to be scheduled."""
        self._count, self._largest, self._hardest = self._with(pods)

    def remove(self, position: int) -> None:
        """Remove a node."""
        self._there[position] = False

    def has_room(self, pods: Pods, without: int) -> bool:
        """Return whether all pods, these included, are sure to fit if the node `without` goes. Constraints between pods
        are ignored."""
        count, largest, hardest = self._with(pods)
        self._there[without], there = False, self._there[without]
        try:
            return all(
                self._stays_open(alike, requests, largest, count)
                for alike, several in hardest.items()
                for requests in several
            )
        finally:
            self._there[without] = there

    def _with(self, pods: Pods) -> tuple[int, dict[str, int], dict[_Alike, tuple[_Requests, ...]]]:
        """Return the number of pods, the largest request of each resource, and the hardest to place, these included."""
        largest, hardest = {**self._largest}, {**self._hardest}
        for spec in pods:
            requests = {PODS: 1, **dict(spec.requests)}
            for resource, amount in requests.items():
                largest[resource] = max(largest.get(resource, 0), amount)
            alike = _on_nodes(spec), spec.claims
            others = hardest.get(alike, ())
            if not any(_exceeds(other, requests) for other in others):
                hardest[alike] = (*(other for other in others if not _exceeds(requests, other)), requests)
        return self._count + sum(pods.values()), largest, hardest

    def _stays_open(self, alike: _Alike, requests: _Requests, largest: _Requests, count: int) -> bool:
        """Return whether it takes at least so many pods, of the largest size in every resource, to leave no node with
        room for this one."""
        spec, claims = alike
        open_to = self._there & self._columns.admits(spec)
        takes = 0
        for part in (slice(0, _AT_FIRST), slice(_AT_FIRST, None)):
            open_ = open_to[part]
            comers = np.full(len(open_), np.iinfo(np.int64).max)
            for resource in requests:
                left = self._columns.free(resource)[part] - amount_of(requests, resource)
                open_ &= left >= 0
                comers = np.minimum(comers, left // max(1, amount_of(largest, resource)) + 1)
            if claims:  # whichever pod is bound first may have the devices
                found = (position + (part.start or 0) for position in np.flatnonzero(open_).tolist())
                serving = (position for position in found if self._serves(claims, position))
                takes += sum(1 for _ in islice(serving, count - takes))
            else:
                takes += int(comers[open_].sum())
            if takes >= count:
                return True
        return False

    def _serves(self, claims: tuple[DeviceClaim, ...], position: int) -> bool:
        """Return whether a node has the devices for these claims."""
        answers = self._served.setdefault(claims, {})
        if position not in answers:
            answers[position] = allocate(self._columns.nodes[position].devices, claims) is not None
        return answers[position]


def _exceeds(one: _Requests, other: _Requests) -> bool:
    """Return whether one asks for at least as much of everything as the other."""
    return all(one.get(resource, 0) >= amount for resource, amount in other.items())


_on_nodes = lru_cache(maxsize=10_000)(on_nodes)
