"""The pods that a disruption displaces: room on its targets is kept for them until they are evicted, and then for the
successors that their workloads create. Nobody says which pod succeeds which; of one workload one is as good as another,
so they are counted: as many as went have to run again. A workload that has none that waits, and of whose kind none has
come for a time, wants no more: it was scaled down. The view expects those of kinds that it knows; the controller of
another may serve many, one after the other.

Everything follows from the disruption's record and the cluster, so it survives a restart, but for specs of pods that
went without a successor before it: no room is kept for these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Lock

from cagrpc.cluster.node_info import PodOwner, Reservation, Reservations
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.placements import Placements
from cagrpc.fleet.model import Disruption, DisruptionPhase, FleetSnapshot, PodKey, PodMove
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.progress import DEADLINE_SECONDS, Progress, Turn
from solver.consolidation.model import FORCEFUL
from solver.model import PodSpec


@dataclass(slots=True)
class _Workload:
    """What has become of the pods of one workload."""

    open: list[PodMove] = field(default_factory=list)
    """Pods that went and whose successors are not bound."""
    bound: int = 0
    """Successors that are bound."""
    waiting: int = 0
    """Pods that wait, or are expected."""
    turn: Turn = field(default_factory=lambda: Turn(0.0, 0))
    """Of its next pod, with the controller of its kind."""

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.open), self.bound, self.waiting


class DisplacedPods:
    """Pods that the present disruption displaces. `begin` and `observe` are for one thread, `reservations` for any."""

    def __init__(self, placements: Placements, cluster: ClusterView, clock: MonotonicClock) -> None:
        self._placements = placements
        self._cluster = cluster
        self._clock = clock
        self._lock = Lock()
        self._id = ""
        self._open_nodes: tuple[str, frozenset[str]] = "", frozenset()
        """The disruption, and names of its new nodes whose turn to take pods has come; replaced, never changed."""
        self._specs: dict[str, PodSpec] = {}
        """Of pods that move, by UID."""
        self._of: dict[str, _Workload] = {}
        self._progress: defaultdict[str, Progress] = defaultdict(Progress)
        """With the pods of workloads, by their kind."""
        self._still_there: tuple[PodMove, ...] = ()
        self._assumed: set[PodKey] = set()
        """Pods that have got a place here once; one that has lost it is the planner's."""

    def forget(self) -> None:
        """Forget everything: no disruption is under way."""
        with self._lock:
            self._begin("")

    def open_nodes(self, under_way: Disruption) -> frozenset[str]:
        """Return the names of new nodes whose turn to take pods has come. After a restart it begins anew: those that
        have lost their start-up taint by then take pods all the same."""
        of, names = self._open_nodes
        return names if of == under_way.id else frozenset()

    def open(self, under_way: Disruption, names: frozenset[str]) -> None:
        """Let these new nodes take pods."""
        self._open_nodes = under_way.id, names

    def instances_to_hold(self, under_way: Disruption | None) -> frozenset[str]:
        """Return the instances of new nodes whose turn to take pods has not come yet."""
        if under_way is None or under_way.phase is not DisruptionPhase.MOVING or under_way.reason in FORCEFUL:
            return frozenset()
        known = self.open_nodes(under_way)
        return frozenset(each.instance_id for each in under_way.new_nodes if each.name not in known)

    def begin(self, disruption: Disruption, specs: Mapping[str, PodSpec]) -> None:
        """Keep the room of a disruption that has just been planned, of whose pods (by UID) these are the specs."""
        with self._lock:
            self._begin(disruption.id)
            self._specs, self._still_there = dict(specs), disruption.moves

    def observe(self, disruption: Disruption, state: ClusterState, there: AbstractSet[str]) -> None:
        """Take in the state, with bound pods. `there` are UIDs of pods that are not evicted yet."""
        with self._lock:
            if self._id != disruption.id:
                self._begin(disruption.id)
            before = self._of
            self._of = self._went(disruption, there)
            self._still_there = tuple(each for each in disruption.moves if each.uid in there)
            self._note_bound(disruption, state)
            self._assign(state)
            now, waits = self._clock(), sum(len(each.open) for each in self._of.values())
            for key, each in self._of.items():
                known, progress = before.get(key), self._progress[_kind(key)]
                if known is not None and known.counts == each.counts:
                    each.turn = known.turn
                else:
                    progress.serve(now)
                    each.turn = Turn(now, progress.served)
                each.turn.before = max(each.turn.before, waits)

    def leave(self, uids: AbstractSet[str]) -> None:
        """Take in that these pods were evicted. A planner may see their successors before the next `observe`."""
        with self._lock:
            for move in self._still_there:
                if move.uid in uids and move.workload in self._of:
                    self._of[move.workload].open.append(move)
            self._still_there = tuple(each for each in self._still_there if each.uid not in uids)

    @property
    def open_count(self) -> int:
        """How many pods went and do not run again; without those that their workloads want no more."""
        with self._lock:
            now = self._clock()
            return sum(
                min(len(each.open), each.waiting)
                if each.turn.is_over(self._progress[_kind(key)], DEADLINE_SECONDS, now)
                else len(each.open)
                for key, each in self._of.items()
            )

    def reservations(self, snapshot: FleetSnapshot, state: ClusterState) -> Reservations:
        """Return the room that is kept for pods that are not bound or assumed anywhere yet, by node. Successors that
        wait in this state get their places first, so that a planner which asks sees them placed. Nodes in flight go by
        their `IncrementNode.name`, and by that of their Node where it is known."""
        under_way = snapshot.disruption
        if under_way is None:
            return {}
        found = self._reserved(state)
        if not found:
            return {}
        held = [node for each in snapshot.increments if each.id == under_way.increment_id for node in each.held]
        names = self._cluster.node_names() if held else {}
        for node in held:
            if node.name in found and node.instance_id in names:
                found[names[node.instance_id]] = found[node.name]
        return found

    def _reserved(self, state: ClusterState) -> dict[str, list[Reservation]]:
        with self._lock:
            unplaced = self._assign(state)
            found: defaultdict[str, list[Reservation]] = defaultdict(list)
            for move in (*self._still_there, *unplaced):
                spec = self._specs.get(move.uid)
                if spec is not None:
                    found[move.target].append(Reservation(PodOwner(move.uid), spec))
            return dict(found)

    def spec(self, uid: str) -> PodSpec | None:
        """Return the spec of a pod that moves, where it is known."""
        return self._specs.get(uid)

    def waiting_for(self) -> tuple[PodMove, ...]:
        """Return pods that went and whose successors are not bound."""
        with self._lock:
            return tuple(move for each in self._of.values() for move in each.open)

    def _begin(self, disruption_id: str) -> None:
        self._id = disruption_id
        self._specs, self._of, self._still_there, self._assumed = {}, {}, (), set()
        self._progress.clear()

    def _went(self, disruption: Disruption, there: AbstractSet[str]) -> dict[str, _Workload]:
        found: dict[str, _Workload] = {}
        if disruption.moving_since_seconds is not None:
            for move in disruption.moves:
                each = found.setdefault(move.workload, _Workload())
                if move.uid not in there:
                    each.open.append(move)
        return found

    def _note_bound(self, disruption: Disruption, state: ClusterState) -> None:
        """Close for each successor that is bound one of the places of its workload, its own if there is one."""
        uids = {move.uid for move in disruption.moves}
        like: dict[str, PodSpec] = {}
        elsewhere: Counter[str] = Counter()
        workloads = {move.workload for move in disruption.moves}
        for name, pods in state.bound.items():
            for pod in pods.reschedulable:
                workload = pod.ref.workload
                if workload not in workloads:
                    continue
                if pod.ref.uid in uids:
                    self._specs[pod.ref.uid] = pod.spec
                    continue
                like[workload] = pod.spec
                if workload in self._of and pod.ref.created_at_seconds > disruption.newest_pod_seconds:
                    of = self._of[workload]
                    of.bound += 1
                    if not _close(of.open, name):
                        elsewhere[workload] += 1
        for workload, count in elsewhere.items():
            del self._of[workload].open[-count:]
        for move in disruption.moves:
            if move.workload in like:
                self._specs.setdefault(move.uid, like[move.workload])

    def _assign(self, state: ClusterState) -> list[PodMove]:
        """Assume pods that wait where the ones that went were planned to go, each once. Return the places that are
        left."""
        left = {key: list(each.open) for key, each in self._of.items()}
        by_root = {state.roots.get(key, key): key for key in left}
        found: list[tuple[PodRef, str, PodSpec]] = []
        for each in state.waiting:
            for ref in each.pods:
                workload = by_root.get(ref.workload, ref.workload) if ref.is_expected else ref.workload
                if workload in left:
                    found.append((ref, workload, each.pod_set.spec))
        counts = Counter(workload for _, workload, _ in found)
        counts.update(ref.workload for gang in state.incomplete_gangs for ref in gang.pods)
        for workload, of in self._of.items():
            of.waiting = counts[workload]
        if not found:
            return [move for moves in left.values() for move in moves]
        places, unplaced = self._placements.nodes(), []
        nominated = self._cluster.pending([ref.uid for ref, _, _ in found if not ref.is_expected])
        for ref, workload, spec in found:
            pod = nominated.get(ref.uid)
            at = places.get(ref.key, pod.nominated_node if pod is not None and pod.nominated_by_us else "")
            if not _close(left[workload], at):
                unplaced.append((ref, workload, spec, bool(places.get(ref.key)) or ref.key in self._assumed))
        new: dict[PodKey, str] = {}
        for ref, workload, spec, is_others in unplaced:
            move = _take(left[workload], ref, spec, self._specs)
            if move is not None and not is_others:
                new[ref.key] = move.target
        self._placements.assume(new)
        self._assumed.update(new)
        return [move for moves in left.values() for move in moves]


def _kind(workload: str) -> str:
    return workload.partition("/")[0]


def _close(moves: list[PodMove], node: str) -> bool:
    """Remove the first of the moves that goes to this node. Return whether there was one."""
    for position, move in enumerate(moves):
        if move.target == node:
            del moves[position]
            return True
    return False


def _take(moves: list[PodMove], ref: PodRef, spec: PodSpec, specs: Mapping[str, PodSpec]) -> PodMove | None:
    """Remove and return the move that this pod comes in the stead of: of the same name, else of the same spec, else any
    of its workload; None where there is none."""
    if not moves:
        return None

    def rank(position: int) -> tuple[bool, bool]:
        return moves[position].name != ref.name, specs.get(moves[position].uid) != spec

    return moves.pop(min(range(len(moves)), key=rank))
