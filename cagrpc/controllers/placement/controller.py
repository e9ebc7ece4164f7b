"""The placement controller: what is wanted (pod -> node, `places`) against what is. It is level-triggered: the same
steps serve the first nomination, one that was cleared, a restart and a change of leader. Nodes are released by
`release` once `settled` says that all of their pods are nominated.

A place that is lost, because others have taken the room or the node is gone, is handed over: to one that a pod of the
same class has left, else the pod is without a place, which is news for the planner.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cagrpc.cluster.fleet_capacity import groups_as_planned
from cagrpc.cluster.node_info import Reservations, nothing_reserved
from cagrpc.cluster.state import ClusterSource, ClusterState, PendingPod
from cagrpc.controllers.placement.handover import repack, swap
from cagrpc.controllers.placement.nominations import Nominations, PodPatcher
from cagrpc.controllers.placement.placed_pods import PlacedPods
from cagrpc.controllers.placement.places import Places, Wanted
from cagrpc.controllers.placement.waiting import Patience
from cagrpc.fleet.model import ExpectedPod, FleetSnapshot, Phase, PodKey, SnapshotSource
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.work_queue import WorkQueue
from solver.model import PodSpec
from solver.model.eligibility import untolerated

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
"""How often to step where no pod has changed."""
LOOK_SECONDS = 1.0
"""How often to check whether places are still as good as they were planned."""
LEFT_SECONDS = 60.0
"""How long a place that its pod has left is offered to others of its class."""
WORKERS = 16
FIRST_SECONDS = 60.0
"""What is urgent is in the queue as if it were due for so long already."""
_MOST_TOLD = 3


class PlacementCluster(ClusterSource, Protocol):
    """What of `cagrpc.cluster.view.view.ClusterView` is needed."""

    def pending(self, uids: Iterable[str]) -> Mapping[str, PendingPod]: ...

    def nominated_by_us(self) -> Mapping[str, PendingPod]: ...

    def tell(self, changed: Callable[[str, PendingPod | None], object]) -> None: ...

    def nodes_of(self, uids: Iterable[str]) -> Mapping[str, str]:
        """Where those of these pods are that are bound."""
        ...

    def held_nodes(self) -> Mapping[str, str]:
        """Provider id to name of every Node with our start-up taint. Raises Unavailable."""
        ...


@dataclass(frozen=True)
class Targets:
    """Where pods are to be nominated, as it was worked out last."""

    snapshot: FleetSnapshot | None = None
    """The fleet's, on which it is based."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Pod (UID) -> the Node that it is to be nominated to now."""
    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The reverse."""
    specs: Mapping[PodKey, PodSpec] = field(default_factory=dict)
    """Of these pods, but for those that consume ProvisioningRequests."""
    priorities: Mapping[PodKey, int] = field(default_factory=dict)
    """The same."""
    not_yet: frozenset[str] = frozenset()
    """Nodes with a taint of somebody else that their pods do not tolerate: a network plugin's, for a moment."""
    rivals: bool = False
    """Whether pods wait that have no place."""
    expecting: frozenset[str] = frozenset()
    """Nodes with places for pods that are still to be created."""

    @cached_property
    def ready(self) -> frozenset[str]:
        """Increments that were ready then."""
        increments = self.snapshot.increments if self.snapshot is not None else ()
        return frozenset(each.id for each in increments if each.phase is Phase.READY)


class PlacementController(Controller):
    """`step` is for one thread, all else is for any; pods are nominated by the threads of `queue`, as soon as the view
    reports them."""

    name = "placing pods"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)  # what fails is the view that is not there yet

    def __init__(
        self,
        client: PodPatcher,
        fleet: SnapshotSource,
        cluster: PlacementCluster,
        places: Places,
        *,
        reservations: Callable[[ClusterState], Reservations] = nothing_reserved,
        consumers: Callable[[], Mapping[str, str]] = dict,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`reservations` are those of ProvisioningRequests; `consumers` says which of their pods goes to which
        of their nodes."""
        self._fleet = fleet
        self._cluster = cluster
        self._places = places
        self._reservations = reservations
        self._consumers = consumers
        self._clock = clock
        self._nominations = Nominations(client, clock)
        self._patience = Patience(clock)
        self._targets = Targets()
        self._held: AbstractSet[str] = frozenset()
        """Names of nodes that the scheduler does not see yet."""
        self._looked_at = float("-inf")
        self._places_version = -1
        self._left: deque[tuple[float, PodSpec, str]] = deque()
        """Places that their pods have left: when, what for, where."""
        self._gone: set[str] = set()
        """Of the targets those that are pending no longer."""
        self._news = 0
        self._handed_over = 0
        self.wake: threading.Event = threading.Event()
        self.queue: WorkQueue[str] = WorkQueue("nominations", self._nominate, workers=WORKERS, clock=clock)
        cluster.tell(self._changed)

    # ---- for any thread

    @property
    def news(self) -> int:
        """How many pods have lost their places so far, without another."""
        return self._news

    def begun(self, increments: AbstractSet[str]) -> bool:
        """Whether all pods that are to go to nodes of these ready increments, or of others, have been nominated once;
        not before the increments were observed. The scheduler tries all that wait when the first node is released, and
        would give their room to others."""
        targets = self._targets
        if not increments <= targets.ready:
            return False
        pods = self._cluster.pending(targets.nodes)
        return all(self._nominations.begun(pod, targets.nodes[uid]) for uid, pod in pods.items())

    def settled(self, increment_id: str, name: str) -> bool:
        """Whether all pods that are to go to the Node of this name are nominated to it, as far as they can be, and
        nothing but our own taint keeps them away; not before the increment was seen to be ready."""
        targets = self._targets
        if increment_id not in targets.ready or name in targets.not_yet:
            return False
        pods = self._cluster.pending(targets.pods.get(name, ()))
        return all(self._nominations.stands(pod, name) for pod in pods.values())

    def expects(self, name: str) -> bool:
        """Whether pods that are to go to the Node of this name are still to be created."""
        return name in self._targets.expecting

    def rivals(self) -> bool:
        """Whether pods wait that have no place."""
        return self._targets.rivals

    def turn(self, name: str) -> tuple[int, float] | None:
        """When the scheduler comes to the first of the pods that are to go to this Node, for putting Nodes in order: it
        begins with the highest priority, then with those that it has not tried for longest. None where there are
        none."""
        targets = self._targets
        pods = self._cluster.pending(targets.pods.get(name, ()))
        turns = ((-targets.priorities.get(uid, 0), pod.tried_at_seconds) for uid, pod in pods.items())
        return min(turns, default=None)

    def queues(self) -> tuple[WorkQueue[str], ...]:
        """Return the queue of pods to be nominated."""
        return (self.queue,)

    def status(self) -> Json:
        """Return what was nominated, handed over and lost."""
        problem = {"problem": self._nominations.forbidden} if self._nominations.forbidden else {}
        return {
            "placement": {
                "to_be_bound": len(self._targets.nodes),
                "nominations": self._nominations.written,
                "handed_over": self._handed_over,
                "lost": self._news,
                **problem,
            }
        }

    def _changed(self, uid: str, pod: PendingPod | None) -> None:
        """By the view's thread, with its lock."""
        node = self._targets.nodes.get(uid)
        if pod is None:
            if node is not None:
                self.wake.set()
        elif pod.nominated_node != (node or "") and (node is not None or pod.nominated_by_us):
            # Those whose node the scheduler sees already come first.
            self.queue.add(uid, 0.0 if node in self._held else -FIRST_SECONDS)

    def _nominate(self, uid: str) -> float | None:
        """Of the queue: makes the pod's nomination what it should be. Return after how many seconds to try again."""
        pod = self._cluster.pending([uid]).get(uid)
        if pod is None:
            return None
        node = self._targets.nodes.get(uid, "")
        if node and self._patience.rests(uid, node):
            node = ""
        return self._nominations.bring_about(pod, node)

    # ---- for one thread

    def step(self) -> None:
        """Looks where it is time to. Raises Unavailable where the cluster is not known; what is not done then is done
        later."""
        self._held = held = frozenset(self._cluster.held_nodes().values())
        snapshot, now = self._fleet.snapshot, self._clock()
        pods = self._cluster.pending(self._targets.nodes)
        is_new = snapshot is not self._targets.snapshot or self._places.version != self._places_version
        taken = self._note_left(self._targets, pods)
        given_up = self._patience.over(pods, self._targets.nodes, held)
        self._lose(given_up)
        if is_new or taken or given_up or now >= self._looked_at + LOOK_SECONDS:
            self._look(snapshot, held)
            self._nominate_all()

    def _nominate_all(self) -> None:
        """Puts into the queue whoever is not nominated as it should be."""
        targets = self._targets
        for uid, pod in self._cluster.pending(targets.nodes).items():
            if pod.nominated_node != targets.nodes[uid]:
                self._changed(uid, pod)
        for uid, pod in self._cluster.nominated_by_us().items():
            if uid not in targets.nodes:
                self._changed(uid, pod)

    def _look(self, snapshot: FleetSnapshot, held: AbstractSet[str]) -> None:
        self._looked_at = self._clock()
        self._gone.clear()
        known, ours, consumers = self._places.known(), self._cluster.nominated_by_us(), self._consumers()
        if not (known or ours or consumers or snapshot.in_flight_pods):
            self._places_version, self._targets = self._places.version, Targets(snapshot)
            return
        state = self._cluster.state()
        wanted = self._places.wanted(snapshot, ours, state)
        pending = self._cluster.pending(pod for pod in self._places.known() if isinstance(pod, str))
        self._places.keep({*pending, *state.expected, *snapshot.in_flight_pods})
        placed = PlacedPods(state, snapshot, groups_as_planned(snapshot), wanted, self._reservations(state))
        pod_sets = {pod.key: each.pod_set for each in state.waiting for pod in each.pods if pod.key in wanted.pods}
        specs = {uid: pod_set.spec for uid, pod_set in pod_sets.items()}
        if placed.lost:
            self._hand_over(placed, specs, wanted, held)
        self._places_version = self._places.version
        there_now = {uid: node for uid, node in placed.nodes_of_pods.items() if node not in placed.in_flight}
        nodes = {**{uid: node for uid, node in there_now.items() if isinstance(uid, str)}, **consumers}
        pods: defaultdict[str, list[str]] = defaultdict(list)
        for uid, node in nodes.items():
            pods[node].append(uid)
        there = {each.node.name: each.node for each in state.nodes if each.node.name in pods}
        self._targets = Targets(
            snapshot,
            nodes,
            {name: tuple(uids) for name, uids in pods.items()},
            specs,
            {uid: pod_set.priority for uid, pod_set in pod_sets.items()},
            frozenset(
                name
                for name, node in there.items()
                if any(untolerated(node.taints, specs[uid].tolerations) for uid in pods[name] if uid in specs)
            ),
            any(
                pod.key not in placed.nodes_of_pods
                for each in state.waiting
                for pod in each.pods
                if not pod.is_expected
            ),
            frozenset(node for uid, node in there_now.items() if isinstance(uid, ExpectedPod)),
        )

    def _hand_over(
        self, placed: PlacedPods, specs: Mapping[PodKey, PodSpec], wanted: Wanted, held: AbstractSet[str]
    ) -> None:
        """Pods that have lost their places get others, or have none from now on."""
        before = {uid: specs[uid] for uid in placed.lost}
        found = swap(before, ((spec, node) for _, spec, node in self._left), placed)
        lost = {uid: spec for uid, spec in before.items() if uid not in found}
        if lost:
            # Where something has become free comes first, then nodes whose pods cannot be bound meanwhile.
            free = [*(wanted.pods[uid] for uid in lost), *(node for _, _, node in self._left), *wanted.open]
            movable = {
                uid: specs[uid]
                for uid, node in placed.nodes_of_pods.items()
                if node in placed.in_flight or node in held
            }
            unseen = sorted(
                {placed.nodes_of_pods[uid] for uid in movable}, key=lambda name: name not in placed.in_flight
            )
            found |= repack(lost, movable, placed, [*map(placed.name_of, free), *unseen])
        for uid, node in found.items():
            placed.move(uid, specs[uid], node)
        self._places.assume(found)
        self._handed_over += len(before.keys() & found.keys())
        lost = {uid: spec for uid, spec in lost.items() if uid not in found}
        if lost:
            some = ", ".join(
                placed.why_lost(specs[uid], wanted.pods[uid]) for uid in sorted(lost, key=str)[:_MOST_TOLD]
            )
            log.info("%d pods have lost their places: %s", len(lost), some)
        self._lose(lost)

    def _lose(self, uids: Collection[PodKey]) -> None:
        self._places.lose(uids)
        self._news += len(uids)

    def _note_left(self, targets: Targets, pods: Mapping[str, PendingPod]) -> bool:
        """A pod that is pending no longer has been bound, where it was to go or elsewhere, or is gone. Whether one was
        bound elsewhere: it may have taken somebody's place."""
        now, elsewhere = self._clock(), False
        gone = targets.nodes.keys() - pods.keys() - self._gone
        self._gone |= gone
        for uid, node in self._cluster.nodes_of(gone).items():
            elsewhere |= node != targets.nodes[uid]
        for uid in gone:
            self._nominations.forget(uid)
            self._patience.forget(uid)
            if uid in targets.specs:
                self._left.append((now, targets.specs[uid], targets.nodes[uid]))
        while self._left and self._left[0][0] < now - LEFT_SECONDS:
            self._left.popleft()
        return elsewhere
