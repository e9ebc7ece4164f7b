"""The placement controller: reconciles the nominations of pods with their placements (`assume_cache`). It is
level-triggered: the same steps serve the first nomination, one that was cleared, a restart and a change of leader.
Nodes are released by `release`, once `settled` is true of them.

A pod whose place is lost, because other pods have taken the room or the node is gone, gets another one (`handover`);
where there is none it is left without a place, and the planner begins a round for it.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from prometheus_client.registry import Collector

from cagrpc.cluster.state import ClusterNode, PendingPod
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.bookings import has_required_constraints
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.assume_cache.placements import DesiredPlacements, PlacedPods
from cagrpc.controllers.placement.handover import most_promising, repack, swap
from cagrpc.controllers.placement.metrics import WaitMetrics
from cagrpc.controllers.placement.nominations import Nominations, Patience
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import ExpectedPod, FleetSnapshot, Phase, PodKey
from cagrpc.kube.client.client import Client
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.progress import DEADLINE_SECONDS, Progress
from cagrpc.runtime.work_queue import WorkQueue
from solver.model import PodSet, PodSpec
from solver.model.eligibility import untolerated
from solver.model.quantities import pluralize
from solver.planning.own_way import keys_of_one_domain, nominated_together

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
"""How often to step where no pod has changed."""
CHECK_SECONDS = 1.0
"""How often to check whether places are still valid."""
LEFT_SECONDS = 60.0
"""How long a place that its pod has left is offered to other pods of its class."""
WORKERS = 16
FIRST_SECONDS = 60.0
"""Urgent entries of the queue count as due for so long already."""
_MOST_LOGGED = 3


@dataclass(frozen=True)
class Targets:
    """Where pods are to be nominated, as of the last reconciliation."""

    snapshot: FleetSnapshot | None = None
    """The fleet's, on which they are based."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The Node to nominate each pod to, by UID."""
    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The pods (UIDs) of each Node."""
    specs: Mapping[PodKey, PodSpec] = field(default_factory=dict)
    """Of these pods, except those that consume ProvisioningRequests."""
    priorities: Mapping[PodKey, int] = field(default_factory=dict)
    """Of the same pods."""
    not_nominated: frozenset[str] = frozenset()
    """Pods (UIDs) that wait to be nominated until others of their Node are bound."""
    not_yet: frozenset[str] = frozenset()
    """Nodes with a foreign taint that their pods do not tolerate, such as a network plugin's while it starts."""
    rivals: bool = False
    """Whether pods without a place are pending."""
    expecting: frozenset[str] = frozenset()
    """Nodes with places of pods that are still to be created."""

    @cached_property
    def ready(self) -> frozenset[str]:
        """Ids of increments that were ready then."""
        increments = self.snapshot.increments if self.snapshot is not None else ()
        return frozenset(each.id for each in increments if each.phase is Phase.READY)

    def nomination_of(self, uid: str) -> str | None:
        """Return the Node to nominate a pod to now, "" for none yet; None for a pod without a place."""
        return "" if uid in self.not_nominated else self.nodes.get(uid)


class PlacementController(Controller):
    """Nominates pods. `step` is for one thread, everything else for any; the threads of `queue` patch pods as soon as
    the view reports them."""

    name = "placing pods"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)  # what fails is the view that is not there yet

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        cluster: ClusterView,
        assumed: AssumeCache,
        *,
        progress_deadline_seconds: float = DEADLINE_SECONDS,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """A scheduler that has bound nobody for the deadline is taken to have tried every pod."""
        self._fleet = fleet
        self._cluster = cluster
        self._assumed = assumed
        self._placements = assumed.placements
        self._clock = clock
        self._nominations = Nominations(client, clock)
        self._patience = Patience(clock, assumed.placements.scheduler, progress_deadline_seconds)
        self._targets = Targets()
        self._held: AbstractSet[str] = frozenset()
        """Names of nodes whose start-up taint keeps all pods away."""
        self._checked_at = float("-inf")
        self._placements_version = -1
        self._left: deque[tuple[float, PodSpec, str]] = deque()
        """Places that their pods have left: when, for which spec, on which node."""
        self._gone: set[str] = set()
        """Pods of the targets that are no longer pending."""
        self._handed_over = 0
        self.wake: threading.Event = threading.Event()
        self.queue: WorkQueue[str] = WorkQueue("nominations", self._nominate, workers=WORKERS, clock=clock)
        self._waits = WaitMetrics(fleet)
        cluster.subscribe(self._changed, self._bound)

    # ---- for any thread

    def begun(self, increments: AbstractSet[str]) -> bool:
        """Return whether every pod with a place, on nodes of these ready increments or elsewhere, has been nominated
        once; false until the increments were observed. When the first node is released the scheduler tries all pending
        pods, and would give the room of pods without a nomination to others."""
        targets = self._targets
        if not increments <= targets.ready:
            return False
        pods = self._cluster.pending(targets.nodes.keys() - targets.not_nominated)
        return all(self._nominations.begun(pod, targets.nodes[uid]) for uid, pod in pods.items())

    def settled(self, increment_id: str, name: str) -> bool:
        """Return whether all pods with a place on the Node of this name are nominated to it, as far as they can be, and
        only our own taint keeps them away; false until the increment was observed to be ready."""
        targets = self._targets
        if increment_id not in targets.ready or name in targets.not_yet:
            return False
        pods = self._pods_of(targets, name).items()
        return all(uid in targets.not_nominated or self._nominations.stands(pod, name) for uid, pod in pods)

    def expects(self, name: str) -> bool:
        """Return whether pods with a place on the Node of this name are still to be created."""
        return name in self._targets.expecting

    def rivals(self) -> bool:
        """Return whether pods without a place are pending."""
        return self._targets.rivals

    def turn(self, name: str) -> tuple[int, float] | None:
        """Return the sort key of the first pod in the scheduler's queue with a place on this Node: the highest priority
        first, then the pod that was not tried for longest. None where there is no such pod."""
        targets = self._targets
        pods = self._pods_of(targets, name).items()
        turns = ((-targets.priorities.get(uid, 0), pod.tried_at_seconds) for uid, pod in pods)
        return min(turns, default=None)

    def progress(self) -> Progress:
        """Return how many pods were nominated or bound, and when the last one was."""
        written, bound = self._nominations.progress, self._placements.scheduler
        return Progress(written.served + bound.served, max(written.at, bound.at))

    def to_be_bound(self) -> int:
        """Return how many pods are to be nominated, and then bound."""
        return len(self._targets.nodes)

    def pods_of(self, name: str) -> Collection[PendingPod]:
        """Return the pending pods with a place on the Node of this name."""
        return self._pods_of(self._targets, name).values()

    def _pods_of(self, targets: Targets, name: str) -> Mapping[str, PendingPod]:
        return self._cluster.pending(targets.pods.get(name, ()))

    def collectors(self) -> Iterable[Collector]:
        """Return how long pods waited."""
        return self._waits.collectors()

    def queues(self) -> tuple[WorkQueue[str], ...]:
        return (self.queue,)

    def status(self) -> Json:
        """Return the numbers of nominations, of pods that got another place, and of those that lost theirs."""
        problem = {"problem": self._nominations.forbidden} if self._nominations.forbidden else {}
        return {
            "placement": {
                "to_be_bound": len(self._targets.nodes),
                "nominations": self._nominations.progress.served,
                "handed_over": self._handed_over,
                "lost": self._placements.lost_count,
                **problem,
            }
        }

    def _changed(self, uid: str, pod: PendingPod | None) -> None:
        """Queue a pod whose nomination is not as it should be. Called by the view's thread, under its lock."""
        node = self._targets.nomination_of(uid)
        if pod is None:
            if node is not None:
                self.wake.set()
        elif pod.nominated_node != (node or "") and (node is not None or pod.nominated_by_us):
            # Pods whose node the scheduler sees already come first.
            self.queue.add(uid, 0.0 if node in self._held else -FIRST_SECONDS)

    def _bound(self, uid: str, seconds: float) -> None:
        """Note a pod that was bound. Called as `_changed` is."""
        self._placements.scheduler.serve(self._clock())
        self._waits.bound(uid, seconds)

    def _nominate(self, uid: str) -> float | None:
        """Reconcile the pod's nomination, for the queue. Return after how many seconds to try again."""
        pod = self._cluster.pending([uid]).get(uid)
        if pod is None:
            return None
        node = self._targets.nomination_of(uid) or ""
        if node and self._patience.rests(uid, node):
            node = ""
        return self._nominations.bring_about(pod, node)

    # ---- for one thread

    def step(self) -> None:
        """Recompute the targets where something has changed or `CHECK_SECONDS` are over. Raises Unavailable while the
        cluster is unknown; a later step catches up."""
        held = frozenset(self._cluster.held_nodes().values())
        self._held = held - self._cluster.dedicated_nodes()
        snapshot, now = self._fleet.snapshot, self._clock()
        pods = self._cluster.pending(self._targets.nodes)
        is_new = snapshot is not self._targets.snapshot or self._placements.version != self._placements_version
        taken = self._note_left(self._targets, pods)
        given_up = self._patience.over(pods, self._targets.nodes, held)
        self._placements.lose(given_up)
        if is_new or taken or given_up or now >= self._checked_at + CHECK_SECONDS:
            self._reconcile(snapshot, self._held)
            self._nominate_all()

    def _nominate_all(self) -> None:
        """Queue every pod whose nomination is not as it should be."""
        targets = self._targets
        for uid, pod in self._cluster.pending(targets.nodes).items():
            if pod.nominated_node != targets.nodes[uid]:
                self._changed(uid, pod)
        for uid, pod in self._cluster.nominated_by_us().items():
            if uid not in targets.nodes:
                self._changed(uid, pod)

    def _reconcile(self, snapshot: FleetSnapshot, held: AbstractSet[str]) -> None:
        """Recompute the targets, and hand over places that are lost."""
        self._checked_at = self._clock()
        self._gone.clear()
        known, ours, requests = self._placements.known(), self._cluster.nominated_by_us(), self._assumed.requests
        consumers = requests.consumer_nodes(self._cluster.pending(requests.pending_consumers))
        if not (known or ours or consumers or snapshot.in_flight_pods):
            self._placements_version, self._targets = self._placements.version, Targets(snapshot)
            return
        taken = self._assumed.snapshot(snapshot, self._cluster.state())
        state, desired = taken.cluster, taken.desired
        pending = self._cluster.pending(pod for pod in self._placements.known() if isinstance(pod, str))
        self._placements.keep({*pending, *state.expected, *snapshot.in_flight_pods})
        placed = taken.placed()
        pod_sets = {pod.key: each.pod_set for each in state.waiting for pod in each.pods if pod.key in desired.pods}
        specs = {uid: pod_set.spec for uid, pod_set in pod_sets.items()}
        if placed.lost:
            self._hand_over(placed, specs, desired, held)
        self._placements_version = self._placements.version
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
            frozenset(_not_nominated(pods.values(), pod_sets, state.nodes)),
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
        self, placed: PlacedPods, specs: Mapping[PodKey, PodSpec], desired: DesiredPlacements, held: AbstractSet[str]
    ) -> None:
        """Give other places to pods that have lost theirs; those for which there is none are without one from now
        on."""
        before = {uid: specs[uid] for uid in placed.lost}
        found = swap(before, ((spec, node) for _, spec, node in self._left), placed)
        lost = {uid: spec for uid, spec in before.items() if uid not in found}
        if lost:
            # Nodes with freed capacity come first.
            free = [*(desired.pods[uid] for uid in lost), *(node for _, _, node in reversed(self._left)), *desired.open]
            kept = self._nominated_by_others(placed.nodes_of_pods)
            there = ((uid, specs[uid]) for uid in placed.nodes_of_pods if uid not in kept)
            # Of others a few nodes are not enough to judge another place.
            movable = {uid: spec for uid, spec in there if not has_required_constraints(spec)}
            others = most_promising(lost, movable, placed, placed.in_flight | held)
            found |= repack(lost, movable, placed, [*map(placed.name_of, free), *others])
        for uid, node in found.items():
            placed.move(uid, specs[uid], node)
        self._placements.assume(found)
        self._handed_over += len(before.keys() & found.keys())
        lost = {uid: spec for uid, spec in lost.items() if uid not in found}
        if lost:
            some = ", ".join(
                placed.why_lost(specs[uid], desired.pods[uid]) for uid in sorted(lost, key=str)[:_MOST_LOGGED]
            )
            log.info("%s lost the planned place: %s", pluralize(len(lost), "pod"), some)
        self._placements.lose(lost)

    def _nominated_by_others(self, keys: Iterable[PodKey]) -> frozenset[str]:
        """Return the UIDs of those of these pods whose nomination is not ours to change."""
        pods = self._cluster.pending(key for key in keys if isinstance(key, str))
        return frozenset(uid for uid, pod in pods.items() if pod.nominated_node and not pod.nominated_by_us)

    def _note_left(self, targets: Targets, pods: Mapping[str, PendingPod]) -> bool:
        """Note the places of pods that are no longer pending: bound, or gone. Return whether one was bound elsewhere
        than planned, where it may have taken another pod's place."""
        now, elsewhere = self._clock(), False
        gone = targets.nodes.keys() - pods.keys() - self._gone
        self._gone |= gone
        bound = self._cluster.nodes_of(gone)
        for uid in gone:
            self._nominations.forget(uid)
            self._patience.forget(uid)
            if bound.get(uid) == targets.nodes[uid]:
                continue
            elsewhere |= uid in bound
            if uid in targets.specs:
                self._left.append((now, targets.specs[uid], targets.nodes[uid]))
        while self._left and self._left[0][0] < now - LEFT_SECONDS:
            self._left.popleft()
        return elsewhere


def _not_nominated(
    of_nodes: Iterable[Sequence[str]], pod_sets: Mapping[PodKey, PodSet], nodes: Iterable[ClusterNode]
) -> Iterator[str]:
    """Yield the pods that would keep others of their node out if they were nominated there too."""
    known = (sorted(uid for uid in uids if uid in pod_sets) for uids in of_nodes)
    spread = [uids for uids in known if any(pod_sets[uid].spec.topology_spread for uid in uids)]
    of_one_domain = keys_of_one_domain(each.node.labels for each in nodes) if spread else frozenset()
    for uids in spread:
        pods = [(pod_sets[uid].spec, pod_sets[uid].priority) for uid in uids]
        for uid, nominated in zip(uids, nominated_together(pods, of_one_domain), strict=True):
            if not nominated:
                yield uid
