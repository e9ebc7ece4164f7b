"""The nodes of a disruption as they are now: which stand, which somebody needs, what has become of the new ones, and
whether targets can still take the pods that are to go there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.api.core.movability import Kept
from cagrpc.cluster.node_info import ClusterCapacity, PodOwner, Reservations, requested
from cagrpc.cluster.state import ClusterState, PodRef, PodsOnNode, ReschedulablePod
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.displaced import DisplacedPods
from cagrpc.controllers.assume_cache.placements import Placements
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.scale_down.constraints import is_constrained_by_others
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import DisruptedNode, Disruption, DisruptionPhase, IncrementStatus, Phase, PodMove
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.progress import DEADLINE_SECONDS, Turn
from solver.consolidation.model import FORCEFUL
from solver.model import CPU, MEMORY, Node
from solver.model.quantities import pluralize

_CAME = "was scheduled to a node that was to go, and has room nowhere else"


def standing_of(nodes: Iterable[DisruptedNode], state: ClusterState) -> list[DisruptedNode]:
    """Return those of these nodes that are there."""
    there = {each.node.name: each.provider_id for each in state.nodes}
    return [each for each in nodes if there.get(each.name) == each.instance_id]


def needed(snapshot: Snapshot, placements: Placements) -> AbstractSet[str]:
    """Return the names of nodes that somebody needs: a pod is there, ends or is to come, or room is reserved."""
    on = (name for name, pods in snapshot.cluster.bound.items() if _has_pods(pods))
    booked = (name for name, kept in snapshot.booked.reservations.items() if kept)
    return {*on, *placements.nodes().values(), *booked}


def pods_to_go(under_way: Disruption, state: ClusterState) -> dict[str, ReschedulablePod]:
    """Return the pods, by UID, that are on nodes that go, and those of gangs that move with them from others."""
    old, moved = {each.name for each in under_way.nodes}, {each.uid for each in under_way.moves}
    return {
        pod.ref.uid: pod
        for name, on in state.bound.items()
        for pod in on.reschedulable
        if name in old or pod.ref.uid in moved
    }


def may_be_evicted(pod: ReschedulablePod, under_way: Disruption) -> bool:
    """Return whether the pod may be evicted; a PodDisruptionBudget is the API server's to heed."""
    ending = pod.kept_by is Kept.UNTIL_IT_ENDS and under_way.reason in FORCEFUL
    return ending or pod.kept_by in (Kept.NOTHING, Kept.FOR_NOW)


def largest_first(moves: Iterable[PodMove], pods: Mapping[str, ReschedulablePod]) -> list[PodMove]:
    """Return the moves of these pods in the order to evict them: small ones fit into what large ones leave, wherever
    the scheduler binds those."""

    def size(move: PodMove) -> tuple[int, int]:
        room = requested([(pods[move.uid].spec, 1)])
        return -room.get(CPU, 0), -room.get(MEMORY, 0)

    return sorted(moves, key=size)


def obstacles(under_way: Disruption, state: ClusterState, pods: Mapping[str, ReschedulablePod]) -> dict[str, str]:
    """Return the nodes that have to stay, by name, and why: of their pods, which are not evicted yet, one may not be
    moved any more, or has come too late to move with the others. A gang moves whole as it was planned."""
    known = {move.uid for move in under_way.moves}
    found: dict[str, str] = {}
    for name, on in state.bound.items():
        for pod in on.reschedulable:
            if pod.ref.uid not in pods:
                continue
            if not may_be_evicted(pod, under_way):
                found.setdefault(name, f"pod {_name(pod.ref)} may not be moved any more: {pod.kept}")
            elif pod.ref.uid not in known and (pod.gang or under_way.phase is DisruptionPhase.MOVING):
                found.setdefault(name, f"pod {_name(pod.ref)} was scheduled to a node that was to go")
    return found


def with_those_that_came(
    under_way: Disruption, state: ClusterState, pods: Mapping[str, ReschedulablePod]
) -> Sequence[PodMove]:
    """Return its moves with those of pods that came to its nodes since; they have no target yet."""
    if under_way.reason in FORCEFUL:
        return under_way.moves
    staying, known = obstacles(under_way, state, pods), {move.uid for move in under_way.moves}
    came = (
        pod.ref
        for each in under_way.nodes
        if each.name not in staying
        for pod in state.bound.get(each.name, PodsOnNode()).reschedulable
        if pod.ref.uid not in known
    )
    return (*under_way.moves, *(PodMove(ref.uid, ref.namespace, ref.name, ref.workload, "") for ref in came))


def newest_pod_seconds(under_way: Disruption, state: ClusterState) -> int:
    """Return when the newest pod of the workloads was created."""
    workloads = {each.workload for each in under_way.moves}
    bound = (pod.ref for pods in state.bound.values() for pod in pods.reschedulable)
    waiting = (ref for each in state.waiting for ref in each.pods if not ref.is_expected)
    found = (ref.created_at_seconds for refs in (bound, waiting) for ref in refs if ref.workload in workloads)
    return max(found, default=0)


def _has_pods(pods: PodsOnNode) -> bool:
    return bool(pods.reschedulable or pods.coming or pods.ending)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How a step has to change, since the scheduler bound successors elsewhere than was planned, or others came."""

    targets: Mapping[str, str] = field(default_factory=dict)
    """By UID of a pod that is not evicted yet: the node that has room for it in place of the planned one."""
    staying: Mapping[str, str] = field(default_factory=dict)
    """By node whose pods stay after all: why. One of its pods may not be moved, or, as one that was evicted, finds room
    on no other node. Nodes that do not go are among them where a gang that moves whole has pods there."""

    def __bool__(self) -> bool:
        return bool(self.targets or self.staying)

    def summary(self) -> str:
        """Return it for people."""
        stays = "; ".join(f"node {name} stays: {why}" for name, why in self.staying.items())
        return f"{pluralize(len(self.targets), 'pod')} with another target{'; ' if stays else ''}{stays}"


class MoveTargets:
    """Ready nodes that take pods, with what is free beside the reservations of others."""

    def __init__(
        self,
        under_way: Disruption,
        state: ClusterState,
        others: Reservations,
        displaced: DisplacedPods,
        pods: Mapping[str, ReschedulablePod],
    ) -> None:
        """`pods` are those that are not evicted yet, by UID: their room is free in the end, also on nodes that stay
        (pods of gangs that move whole)."""
        self._old = {each.name for each in under_way.nodes}
        self._new = {each.name for each in under_way.new_nodes}
        planned = {each.target for each in under_way.moves}
        self._there = {each.node.name: each for each in state.nodes if each.node.name not in self._old - planned}
        ready = (self._as_it_will_be(each.node, state, pods) for each in self._there.values() if each.ready)
        self._capacity = ClusterCapacity(ready, others)
        self._left = ClusterCapacity(each.node for each in state.nodes if each.node.name in self._old)
        self._on = {uid: name for name, on in state.bound.items() for uid in _uids(on) if uid in pods}
        self._displaced = displaced

    def _as_it_will_be(self, node: Node, state: ClusterState, pods: Mapping[str, ReschedulablePod]) -> Node:
        leaving = [pod.spec for pod in state.bound.get(node.name, PodsOnNode()).reschedulable if pod.ref.uid in pods]
        if not leaving:
            return node
        room = requested((spec, 1) for spec in leaving)
        return replace(node, free={name: node.free.get(name, 0) + room.get(name, 0) for name in {**node.free, **room}})

    def on(self, uid: str) -> str:
        """Return the node of a pod that is not evicted yet."""
        return self._on.get(uid, "")

    def lost(self, pods: Iterable[PodMove]) -> str:
        """Return why one of these pods, which are not evicted yet, cannot be moved: its target is gone or not Ready.
        Empty where all are there."""
        for move in pods:
            if move.target and self._capacity.get(move.target) is None:
                return f"pod {_name(move)} was to go to node {move.target}, which is gone or not Ready"
        return ""

    def adjustment(self, pods: Sequence[PodMove], obstacles: Mapping[str, str]) -> Adjustment:
        """Return what has to change so that each of these pods, which are not evicted yet, and each successor that
        waits has room: another target where there is one, else its old node stays, as those do that have `obstacles`.
        Pods of one gang stay together."""
        staying: dict[str, str] = {}
        for name, why in obstacles.items():
            self._stay(name, why, pods, staying)
        going = [each for each in pods if self.on(each.uid) not in staying]
        waiting = [each for each in self._displaced.waiting_for() if not self._take_planned(each)]
        displaced = [each for each in going if not self._take_planned(each)]
        targets: dict[str, str] = {}
        for move in waiting:
            if not self._take_any(move):
                self._reopen(move, pods, staying)
        for move in displaced:
            if self.on(move.uid) in staying:
                continue
            target = self._take_any(move, self._new)
            if target:
                targets[move.uid] = target
            else:
                was = f"was to go to node {move.target}, which has no room for it any more" if move.target else _CAME
                self._stay(self.on(move.uid), f"pod {_name(move)} {was}", pods, staying)
        left = {uid: target for uid, target in targets.items() if self.on(uid) not in staying}
        return Adjustment(left, staying)

    def _take_planned(self, move: PodMove) -> bool:
        info, spec = self._capacity.get(move.target), self._displaced.spec(move.uid)
        if spec is None or (info is None and move.target):
            return True  # nothing is known of it
        if info is None:
            return False
        if not info.has_room(spec):
            return False
        info.assume(PodOwner(move.uid), spec)
        return True

    def _take_any(self, move: PodMove, held: AbstractSet[str] = frozenset()) -> str:
        """Take the fullest node that has room, so that larger pods find theirs. Return its name; empty where there is
        none, and for pods that see others, which stay where they were planned. Of nodes that are held only those are
        taken whose turn is to come before the pod goes."""
        spec = self._displaced.spec(move.uid)
        if spec is None or is_constrained_by_others(spec):
            return ""
        found = [
            info
            for info in self._capacity
            if info.name not in self._old
            and (info.name in held or (not self._there[info.name].held and info.admits(spec)))
            and info.has_room(spec)
        ]
        if not found:
            return ""
        best = min(found, key=lambda info: (info.free.get(CPU, 0), info.free.get(MEMORY, 0), info.name))
        best.assume(PodOwner(move.uid), spec)
        return best.name

    def _reopen(self, move: PodMove, pods: Iterable[PodMove], staying: dict[str, str]) -> None:
        """Keep the old node that has room for a pod that waits, one that stays anyway first. One without pods goes all
        the same: the planner may have opened another by now."""
        spec, full = self._displaced.spec(move.uid), Counter(self._on.values())
        with_room = [info for info in self._left if full[info.name] and spec is not None and info.has_room(spec)]
        if spec is None or not with_room:
            return
        best = min(with_room, key=lambda info: (info.name not in staying, -full[info.name], info.name))
        best.assume(PodOwner(move.uid), spec)
        self._stay(best.name, f"a pod in place of {_name(move)} finds room nowhere else", pods, staying)

    def _stay(self, node: str, why: str, pods: Iterable[PodMove], staying: dict[str, str]) -> None:
        """Keep a node, and others that have pods of its gangs; the room of their pods elsewhere is free again."""
        if node in staying:
            return
        staying[node] = why
        all_pods = list(pods)
        for each in all_pods:
            if self.on(each.uid) == node:
                self._capacity.forget(PodOwner(each.uid))
                for other in all_pods:
                    if each.gang and other.gang == each.gang:
                        self._stay(self.on(other.uid), why, all_pods, staying)

    def is_open(self, move: PodMove) -> bool:
        """Return whether the scheduler may bind the pod there: the start-up taint is gone, and others that young nodes
        have for a while."""
        node, info = self._there.get(move.target), self._capacity.get(move.target)
        spec = self._displaced.spec(move.uid)
        return node is not None and not node.held and info is not None and (spec is None or info.admits(spec))


def _uids(on: PodsOnNode) -> Iterable[str]:
    return (pod.ref.uid for pod in on.reschedulable)


def _name(pod: PodMove | PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"


@dataclass(frozen=True, slots=True)
class Coming:
    """What has become of ordered nodes."""

    lost: str = ""
    """Why they do not come; empty where they may."""
    waits_for: str = ""
    """Empty once all are ready."""
    nodes: Mapping[str, DisruptedNode] = field(default_factory=dict)
    """All of them, by `IncrementNode.name`, once they are ready."""


class NewNodes:
    """The nodes that the disruption under way has ordered. For one thread, but for `status`."""

    def __init__(
        self,
        fleet: Fleet,
        cluster: ClusterView,
        placements: Placements,
        clock: MonotonicClock,
        minimum_node_age_seconds: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._minimum_node_age_seconds = minimum_node_age_seconds
        self._cluster = cluster
        self._placements = placements
        self._clock = clock
        self._turn: Turn | None = None
        """Of the pods that are planned for other nodes, since these here are ready."""

    def forget(self) -> None:
        """Forget since when they are ready: another disruption begins."""
        self._turn = None

    def status(self, under_way: Disruption) -> IncrementStatus | None:
        """Return their increment; None without one, or where it is not known any more."""
        found = (each for each in self._fleet.snapshot.increments if each.id == under_way.increment_id)
        return next(found, None)

    def may_be_withdrawn(self, status: IncrementStatus) -> bool:
        """Return whether no node of it is there yet: one that is stays for the minimum age, as any other."""
        known = self._cluster.node_names() if self._minimum_node_age_seconds else {}
        return not any(each.instance_id in known for each in status.nodes)

    def coming(self, under_way: Disruption) -> Coming:
        """Return what has become of them."""
        status = self.status(under_way)
        if not under_way.increment_id:
            return Coming()
        if status is None or status.phase in (Phase.DONE, Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return Coming(f"its new nodes did not come: {status.message if status else 'nothing is known of them'}")
        if status.phase is not Phase.READY:
            return Coming(waits_for=f"new nodes: {status.message}")
        if len(status.held) < sum(status.increment.deltas.values()):
            return Coming("a new node is gone")
        return self._ready(status)

    def _ready(self, status: IncrementStatus) -> Coming:
        known, now = self._cluster.node_names(), self._clock()
        if any(each.instance_id not in known for each in status.held):
            return Coming(waits_for="new nodes to be seen")
        planned = self._fleet.snapshot.in_flight_pods | self._placements.nodes().keys()
        self._turn = self._turn or Turn(now, self._placements.scheduler.served)
        self._turn.before = max(self._turn.before, len(planned))
        # The scheduler would bind those here.
        if planned and not self._turn.is_over(self._placements.scheduler, DEADLINE_SECONDS, now):
            return Coming(waits_for="pods that are planned for other nodes to be bound")
        return Coming(
            nodes={
                each.name: DisruptedNode(known[each.instance_id], each.instance_id, each.node_group)
                for each in status.held
            }
        )
