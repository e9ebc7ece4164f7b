"""The disruption queue: one disruption at a time, from its record in the journal and the cluster as it is. Each
`advance` does what is due and may be repeated, so that a process that ends anywhere is continued, or undone, by the
next.

    creating   old nodes are cordoned, new ones come and are held by their start-up taint
    moving     pods are evicted, their successors nominated to where they were planned; new nodes are released in turn
    done       the successors run, the old nodes are empty: these are deleted, in the commit that ends it
    undoing    nothing is evicted any more; cordons are lifted where pods are left, and nodes that nobody needs go
    undone

Old nodes are cordoned first, as Karpenter taints them: else pods would come to them while the new nodes do. New nodes
take pods one after the other, held by their start-up taint until then, and only so many pods go at a time. The
scheduler binds a successor to the open node that it likes best, by default the emptiest: were all new nodes open at
once, pods would spread over them, the last ones would find no room, old nodes would have to stay for these, and the
next plan would do all of it again.

Pods that came to an old node before its cordon was seen move with the others. Pods whose planned room the scheduler
gave to others get another target, or their old node stays (`targets`), as does one with a pod that may not be moved
after all. A step is undone where it can no longer end, or has nothing left to save: a new node does not come, a target
is not Ready, all old nodes have to stay, somebody lifts a cordon, or it makes no progress for its deadline. While the
cluster is not known nothing happens, and the deadline is put off by as long. Of nodes that go whatever happens
(`FORCEFUL`) pods are evicted all the same, and the planner finds room.

When a step is undone, cordons are lifted where pods are left, and of the nodes without pods, old and new, those go that
nobody needs, once every pod that was evicted runs again; a node that is younger than the minimum age goes when it is
older, as any other empty one. Of one that evicted nothing only cordons are lifted; its new nodes are withdrawn, but
where some are there already.

Rights: get and patch nodes; create pods/eviction.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

from cagrpc.cluster.state import ClusterState, PodsOnNode, ReschedulablePod
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.evictions import Cordons, Evictions, uncordon
from cagrpc.controllers.consolidation.question import ConsolidationQuestion
from cagrpc.controllers.consolidation.targets import (
    Adjustment,
    MoveTargets,
    NewNodes,
    largest_first,
    may_be_evicted,
    needed,
    newest_pod_seconds,
    obstacles,
    pods_to_go,
    standing_of,
    with_those_that_came,
)
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.errors import FailedPrecondition, Unavailable
from cagrpc.fleet.disruptions import DisruptionSpec
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    IncrementSpec,
    InstanceState,
    Phase,
    Placement,
    PodMove,
)
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.progress import DEADLINE_SECONDS, LONGEST_FACTOR, Progress, Turn
from solver.consolidation.model import FORCEFUL, ConsolidationStep
from solver.model import PodClass
from solver.model.plan import class_key
from solver.model.quantities import pluralize

log = logging.getLogger(__name__)

MOST_IN_FLIGHT = 10
"""So many pods are without a running successor at a time, but for gangs, which go at once."""


_REST = 3.0
"""Reading the cluster takes a second with 100,000 pods, for a part of which the view stands still: it is read again
after so many times as long."""


class DisruptionQueue:
    """Carries out steps. `begin`, `advance` and `undo` are for one thread, everything else for any."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        cluster: ClusterView,
        assumed: AssumeCache,
        settings: ConsolidationSettings,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`client` must not wait for Retry-After (`Client.hurried`)."""
        self._fleet = fleet
        self._cluster = cluster
        self._assumed = assumed
        self._displaced = assumed.displaced
        self._settings = settings
        self._clock = clock
        self.evictions = Evictions(client, clock)
        """Of all disruptions, for counting."""
        self._new_nodes = NewNodes(fleet, cluster, assumed.placements, clock, settings.minimum_node_age_seconds)
        self._id = ""
        self._cordons = Cordons(client, cluster)
        self._undoing = Undoing(fleet, self._cordons, assumed, self._new_nodes, settings, clock)
        self._rests_until = float("-inf")
        self._away_since: float | None = None
        self._least_left: tuple[DisruptionPhase, int] | None = None
        """The phase, and how many evictions and bindings were left at least in it."""
        self._turn = Turn(0.0, 0)
        """Since when that is so, with how many pods before it in the scheduler's queue."""
        self.waits_for = ""
        """What the disruption under way waits for, for people."""

    # ---- for any thread

    @property
    def under_way(self) -> Disruption | None:
        return self._fleet.snapshot.disruption

    # ---- for one thread

    def begin(self, step: ConsolidationStep, asked: ConsolidationQuestion) -> None:
        """Journal a step of an answer to this question, with the increment of its new nodes, and keep its room;
        `advance` does the rest. Raises as `Disruptions.begin` does, with nothing changed."""
        moved = list(_moved(step, asked))
        what = f"{pluralize(len(step.nodes), 'node')} ({step.reason})"
        new = {each.node_group: each.delta for each in step.plan.increments}
        prices = {group.id: group.price_usd_per_hour for group in asked.problem.node_groups}
        spec = DisruptionSpec(
            reason=step.reason,
            nodes=tuple(asked.nodes[name] for name in step.nodes),
            moves=tuple(_move(pod, target) for pod, target in moved),
            new_nodes=IncrementSpec(
                new,
                reason=f"consolidation: in place of {what}",
                placements=tuple(
                    Placement(each.node_group, domain=each.domain)
                    for each in step.plan.nodes
                    for _ in range(each.count if each.domain else 0)
                ),
                cost_usd_per_hour=round(sum(prices[name] * count for name, count in new.items()), 9),
            )
            if new
            else None,
            saving_usd_per_hour=step.saving_usd_per_hour,
            deadline_seconds=self._settings.step_deadline_seconds,
        )
        found = self._fleet.disruptions.begin(spec)
        self._displaced.begin(found, {pod.ref.uid: pod.spec for pod, _ in moved})
        log.info("disruption %s begins: %s, %s", found.id, what, pluralize(len(moved), "pod"), extra=_about(found))

    def advance(self) -> None:
        """Do what is due. Raises Unavailable where cluster or journal are out of reach; a later call goes on."""
        under_way = self.under_way
        if under_way is None or under_way.id != self._id:
            self._forget(under_way)
        if under_way is None or self._is_away() or self._clock() < self._rests_until:
            return
        began = self._clock()
        state = self._cluster.state(with_bound=True)
        self._rests_until = self._clock() + _REST * (self._clock() - began)
        pods = {uid: pod for uid, pod in pods_to_go(under_way, state).items() if uid not in self.evictions.gone}
        self._displaced.observe(under_way, state, pods.keys())
        self._note_progress(under_way, state, len(pods))
        self._fleet.disruptions.check()
        if under_way.phase is DisruptionPhase.UNDOING:
            self.waits_for = self._undoing.advance(under_way, state)
            return
        hindered = self._hindrance(under_way, state)
        if hindered:
            self.undo(hindered)
        elif under_way.phase is DisruptionPhase.CREATING:
            self._create(under_way, state, pods)
        else:
            self._move(under_way, state, pods)

    def undo(self, why: str) -> None:
        """Evict nothing more, and bring back what can be; `advance` does it. New nodes that nobody has seen
        yet are withdrawn. Raises Unavailable with nothing changed."""
        under_way = self.under_way
        if under_way is None or under_way.phase is DisruptionPhase.UNDOING:
            return
        if under_way.phase is DisruptionPhase.CREATING:
            self._undoing.withdraw(under_way, f"the disruption that it is for is undone: {why}")
        log.warning("disruption %s is undone: %s", under_way.id, why, extra=_about(under_way))
        self._fleet.disruptions.change(replace(under_way, phase=DisruptionPhase.UNDOING, message=why))

    def _forget(self, under_way: Disruption | None) -> None:
        self._id = under_way.id if under_way is not None else ""
        self._away_since, self._least_left, self.waits_for = None, None, ""
        self._new_nodes.forget()
        self._cordons.forget()
        self._undoing.forget()
        self.evictions.forget()
        if under_way is None:
            self._displaced.forget()

    def _is_away(self) -> bool:
        """Return whether the cluster is not known. Time limits do not count meanwhile."""
        problem, now = self._cluster.problem, self._clock()
        if problem is not None:
            self._away_since = now if self._away_since is None else self._away_since
            self.waits_for = problem
            return True
        if self._away_since is not None:
            self._turn.since += now - self._away_since
            self._away_since = None
        return False

    def _note_progress(self, under_way: Disruption, state: ClusterState, pods: int) -> None:
        """Note how far it has come; `pods` are to go still. What comes anew is no progress, nor is what went before."""
        left = under_way.phase, 2 * pods + self._displaced.open_count
        if self._least_left is None or left[0] is not self._least_left[0] or left[1] < self._least_left[1]:
            self._least_left, self._turn = left, Turn(self._clock(), self._assumed.placements.scheduler.served)
        self._turn.before = max(self._turn.before, state.waiting_pods)

    def _is_late(self, under_way: Disruption, seconds: float) -> bool:
        """Return whether it has made no progress for so long, or takes many times as long altogether. While it waits
        for pods to be bound, others may come first."""
        if self._fleet.disruptions.now() >= under_way.created_at_seconds + LONGEST_FACTOR * seconds:
            return True
        waits_for_scheduler = under_way.phase is DisruptionPhase.CREATING or self._displaced.open_count
        scheduler = self._assumed.placements.scheduler if waits_for_scheduler else Progress()
        return self._turn.is_over(scheduler, DEADLINE_SECONDS, self._clock(), least_seconds=seconds)

    def _hindrance(self, under_way: Disruption, state: ClusterState) -> str:
        """Return why it cannot end as it was planned; empty where it may."""
        seconds = under_way.deadline_at_seconds - under_way.created_at_seconds
        if self._is_late(under_way, seconds):
            return f"no progress for {seconds:g} s: {self.waits_for}"
        if under_way.reason in FORCEFUL:
            return ""
        moving = under_way.phase is DisruptionPhase.MOVING
        standing = standing_of(under_way.nodes, state) if moving else ()
        lifted = [each.name for each in standing if not self._cluster.is_cordoned(each.name)]
        return f"somebody has uncordoned node {lifted[0]}" if lifted else ""

    def _create(self, under_way: Disruption, state: ClusterState, pods: Mapping[str, ReschedulablePod]) -> None:
        standing = standing_of(under_way.nodes, state)
        written = self._cordons.write(standing, {each.name for each in standing}, under_way.id)
        if written or not self._cordons.are_seen(standing):  # pods may have come until then
            self.waits_for = "cordons to be seen"
            return
        if any(state.bound.get(each.name, PodsOnNode()).coming for each in standing):
            self.waits_for = "pods that the scheduler has nominated to the nodes that go"
            return
        coming = self._new_nodes.coming(under_way)
        staying = {} if under_way.reason in FORCEFUL else obstacles(under_way, state, pods)
        if coming.lost or self._is_vain(under_way, staying.keys()):
            self.undo(coming.lost or next(iter(staying.values())))
            return
        self.waits_for = coming.waits_for
        if coming.waits_for:
            return
        moves = tuple(
            replace(each, target=coming.nodes[each.target].name) if each.target in coming.nodes else each
            for each in with_those_that_came(under_way, state, pods)
            if each.uid in pods  # what has gone by itself needs no successor
        )
        moving = replace(under_way, phase=DisruptionPhase.MOVING, moves=moves, new_nodes=tuple(coming.nodes.values()))
        self._fleet.disruptions.change(
            replace(
                moving,
                moving_since_seconds=self._fleet.disruptions.now(),
                newest_pod_seconds=newest_pod_seconds(moving, state),
            )
        )

    def _move(self, under_way: Disruption, state: ClusterState, pods: Mapping[str, ReschedulablePod]) -> None:
        still_there = largest_first([each for each in under_way.moves if each.uid in pods], pods)
        open_now = self._displaced.open_count
        taken = self._assumed.snapshot(self._fleet.snapshot, state)
        needed_still = {each.name for each in under_way.nodes} & needed(taken, self._assumed.placements)
        if not (still_there or open_now or needed_still):
            self._end(under_way)
            return
        targets = MoveTargets(under_way, state, taken.booked.reservations, self._displaced, pods)
        must_go = under_way.reason in FORCEFUL
        if not must_go and self._adjusted(under_way, targets, still_there, obstacles(under_way, state, pods)):
            return
        left = len(pods)
        self.waits_for = self.evictions.problem or f"{pluralize(left, 'pod')} to move, {open_now} to run again"
        evictable = [each for each in still_there if may_be_evicted(pods[each.uid], under_way)]
        if not must_go:
            self._displaced.open(under_way, self._opened_next(under_way, evictable, targets, open_now))
            evictable = _with_open_targets(evictable, targets)
        known = {each.uid for each in under_way.moves}
        strangers = [  # of a node that must go after all
            _move(pod, "wherever there is room")
            for uid, pod in pods.items()
            if uid not in known and may_be_evicted(pod, under_way)
        ]
        try:
            self.evictions.evict(self._next_evictions([*evictable, *strangers], open_now))
        except Forbidden as error:
            self.undo(str(error))
        self._displaced.leave(self.evictions.gone)

    def _opened_next(
        self, under_way: Disruption, left: Sequence[PodMove], targets: MoveTargets, open_now: int
    ) -> frozenset[str]:
        """Return which of the new nodes may take pods: those that do, those to which pods of others are to come, which
        are not kept waiting, and the next once those before have theirs. A pod that a PodDisruptionBudget does not let
        go holds up nobody else. `left` are the pods that are not evicted yet, in their order; `open_now` is how many
        evicted pods have no successor that runs."""
        new = {each.name for each in under_way.new_nodes}
        found = (new & set(self._assumed.placements.nodes().values())) | self._displaced.open_nodes(under_way)
        closed = [each.target for each in left if each.target in new and each.target not in found]
        busy = open_now or any(
            (targets.is_open(each) or each.target in found) and not self.evictions.is_refused(each.uid) for each in left
        )
        return frozenset(found | _with_gangs(closed[0], left) & new if closed and not busy else found)

    def _next_evictions(self, pods: Iterable[PodMove], open_now: int) -> list[PodMove]:
        """Return the pods to evict now: as many as may be without a successor at a time, and a gang at once."""
        room = MOST_IN_FLIGHT - open_now
        gangs: dict[str, list[PodMove]] = {}
        for each in pods:
            gangs.setdefault(each.gang or f"/{each.uid}", []).append(each)
        found: list[PodMove] = []
        for members in gangs.values():
            due = [pod for pod in members if self.evictions.is_due(pod.uid)]
            if due and (len(due) <= room or not (found or open_now)):
                found += due
                room -= len(due)
        return found

    def _adjusted(
        self,
        under_way: Disruption,
        targets: MoveTargets,
        still_there: Sequence[PodMove],
        staying: Mapping[str, str],
    ) -> bool:
        """Undo the step, or change it, where planned room is taken or nodes have to stay. Return whether it did."""
        lost = targets.lost(still_there)
        change = Adjustment() if lost else targets.adjustment(still_there, staying)
        rest = tuple(each for each in under_way.nodes if each.name not in change.staying)
        nothing_went = len(still_there) == len(under_way.moves)
        if lost or not rest or (nothing_went and self._is_vain(under_way, change.staying.keys())):
            self.undo(lost or next(iter(change.staying.values())))
        elif change:
            stays = {each.uid for each in still_there if targets.on(each.uid) in change.staying}
            # Before the record: of a node that is no part of the step any more nobody would lift it.
            self._cordons.write([each for each in under_way.nodes if each not in rest], frozenset(), under_way.id)
            moves = tuple(
                replace(each, target=change.targets.get(each.uid, each.target))
                for each in under_way.moves
                if each.uid not in stays
            )
            log.info("disruption %s is changed: %s", under_way.id, change.summary(), extra=_about(under_way))
            saving = self._saving(under_way, change.staying.keys())
            self._fleet.disruptions.change(replace(under_way, nodes=rest, moves=moves, saving_usd_per_hour=saving))
        return bool(lost or change)

    def _saving(self, under_way: Disruption, staying: AbstractSet[str]) -> float:
        """Return what it saves where these of its nodes stay, in US dollars per hour."""
        groups = self._fleet.snapshot.groups
        of = [each.node_group for each in under_way.nodes if each.name in staying]
        cost = sum(groups[each].group.price_usd_per_hour for each in of if each in groups)
        return round(under_way.saving_usd_per_hour - cost, 9)

    def _is_vain(self, under_way: Disruption, staying: AbstractSet[str]) -> bool:
        """Return whether it would save nothing any more where these of its nodes stay."""
        return bool(staying) and under_way.saving_usd_per_hour > 0 >= self._saving(under_way, staying)

    def _end(self, under_way: Disruption) -> None:
        done = replace(
            under_way, phase=DisruptionPhase.DONE, message=f"{pluralize(len(under_way.nodes), 'node')} deleted"
        )
        try:
            self._fleet.disruptions.change(done, delete=[each.instance_id for each in under_way.nodes])
        except FailedPrecondition as error:
            self.undo(str(error))
            return
        log.info("disruption %s is done", under_way.id, extra=_about(under_way))


def _about(under_way: Disruption) -> dict[str, str]:
    return {"disruption": under_way.id, **({"increment": under_way.increment_id} if under_way.increment_id else {})}


def _moved(step: ConsolidationStep, asked: ConsolidationQuestion) -> Iterator[tuple[ReschedulablePod, str]]:
    """Yield the pods of a step with the nodes that were planned for their successors, the oldest of a class on nodes
    that stand. A new node is `node group/number`, numbers from 0 by group. Pods of a gang come from all nodes, all
    others from those that go."""
    plan = step.plan
    queues = {each.index: _pods(each, step, asked) for each in plan.pod_classes}
    for placed in plan.existing:
        for index, count in sorted(placed.pods.items()):
            yield from ((pod, placed.node) for pod in islice(queues[index], count))
    numbers: Counter[str] = Counter()
    for batch in plan.nodes:
        for _ in range(batch.count):
            target = f"{batch.node_group}/{numbers[batch.node_group]}"
            numbers[batch.node_group] += 1
            for index, count in sorted(batch.pods.items()):
                yield from ((pod, target) for pod in islice(queues[index], count))


def _pods(each: PodClass, step: ConsolidationStep, asked: ConsolidationQuestion) -> Iterator[ReschedulablePod]:
    """Yield the pods of a class, oldest first; none for placeholders."""
    names = asked.pods if each.gang is not None else step.nodes
    key = class_key(each)
    found = (pod for name in names for pod in asked.pods.get(name, {}).get(key, ()))
    return iter(sorted(found, key=lambda pod: (pod.ref.created_at_seconds, pod.ref.namespace, pod.ref.name)))


def _move(pod: ReschedulablePod, target: str) -> PodMove:
    ref = pod.ref
    return PodMove(ref.uid, ref.namespace, ref.name, ref.workload, target, pod.gang or "")


def _with_gangs(node: str, moves: Iterable[PodMove]) -> set[str]:
    """Return the node with all others to which its pods' gangs go, which move whole."""
    all_moves, found = list(moves), {node}
    while True:
        gangs = {each.gang for each in all_moves if each.gang and each.target in found}
        more = {each.target for each in all_moves if each.gang in gangs} - found
        if not more:
            return found
        found |= more


def _with_open_targets(moves: Iterable[PodMove], targets: MoveTargets) -> list[PodMove]:
    """Return the moves whose targets are open, those of a gang only where all of its targets are."""
    all_moves = list(moves)
    shut = {each.gang for each in all_moves if each.gang and not targets.is_open(each)}
    return [each for each in all_moves if targets.is_open(each) and each.gang not in shut]


PATIENCE_SECONDS = 300.0
"""How long it waits at least for the successors of pods that were evicted, which may need any node. After that, and
once the scheduler has passed them over or binds nobody any more, all nodes stay."""


WHY = "consolidation is off"


class Undoing:
    """Undoes the disruption under way. For one thread."""

    def __init__(
        self,
        fleet: Fleet,
        cordons: Cordons,
        assumed: AssumeCache,
        new_nodes: NewNodes,
        settings: ConsolidationSettings,
        clock: MonotonicClock,
    ) -> None:
        self._fleet = fleet
        self._cordons = cordons
        self._assumed = assumed
        self._clock = clock
        self._new_nodes = new_nodes
        self._minimum_node_age_seconds = settings.minimum_node_age_seconds
        self._turn: Turn | None = None
        """Of the successors, with the scheduler."""

    def forget(self) -> None:
        """Forget how long it has taken: another disruption begins."""
        self._turn = None

    def withdraw(self, under_way: Disruption, why: str) -> bool:
        """Withdraw the new nodes, but where some are there already. Return whether none comes any more."""
        status = self._new_nodes.status(under_way)
        if status is not None and not self._new_nodes.may_be_withdrawn(status):
            return False
        if under_way.increment_id:
            self._fleet.withdraw(under_way.increment_id, why)
        return True

    def advance(self, under_way: Disruption, state: ClusterState) -> str:
        """Do what is due. Return what it waits for; empty once it is undone."""
        now = self._clock()
        scheduler = self._assumed.placements.scheduler
        self._turn = self._turn or Turn(now, scheduler.served)
        self._turn.before = max(self._turn.before, state.waiting_pods)
        patient = not self._turn.is_over(scheduler, DEADLINE_SECONDS, now, least_seconds=PATIENCE_SECONDS)
        status = self._new_nodes.status(under_way)
        coming = status is not None and status.phase in (Phase.PLANNED, Phase.CREATING)
        if coming and not self.withdraw(under_way, under_way.message):
            return "new nodes, the first of which are there"
        if status is not None and status.phase is Phase.READY:
            return "new nodes to be released"
        moved = under_way.moving_since_seconds is not None
        nodes = standing_of((*under_way.nodes, *under_way.new_nodes), state)
        empty: AbstractSet[str] = frozenset()
        if moved and patient:
            waiting = self._assumed.displaced.open_count
            if not waiting:
                taken = self._assumed.snapshot(self._fleet.snapshot, state)
                empty = self._running(nodes) - needed(taken, self._assumed.placements) - self._young(state)
            self._cordons.write(nodes, empty, under_way.id)
            if waiting:
                return f"{pluralize(waiting, 'evicted pod')} to run again"
            if not self._cordons.are_as_written([each for each in nodes if each.name in empty]):
                return "cordons to be seen"
        else:
            self._cordons.write(nodes, empty, under_way.id)
        self._end(under_way, [each for each in nodes if each.name in empty])
        return ""

    def _end(self, under_way: Disruption, empty: Iterable[DisruptedNode]) -> None:
        ended, doomed = replace(under_way, phase=DisruptionPhase.UNDONE), list(empty)
        try:
            self._fleet.disruptions.change(ended, delete=[each.instance_id for each in doomed])
        except FailedPrecondition as error:
            log.warning("disruption %s: its empty nodes stay: %s", under_way.id, error)
            self._cordons.write(doomed, frozenset(), under_way.id)
            self._fleet.disruptions.change(ended)

    def _young(self, state: ClusterState) -> set[str]:
        """Return the names of nodes that are younger than the minimum age."""
        since = self._fleet.disruptions.now() - self._minimum_node_age_seconds
        return {each.node.name for each in state.nodes if each.created_at_seconds > since}

    def _running(self, nodes: Iterable[DisruptedNode]) -> set[str]:
        """Return the names of those of the nodes whose instances run."""
        running = {
            instance.id
            for group in self._fleet.snapshot.groups.values()
            for instance in group.instances
            if instance.state is InstanceState.RUNNING
        }
        return {each.name for each in nodes if each.instance_id in running}


class UnfinishedStep(Controller):
    """Undoes what is under way where consolidation is off, as far as that goes without knowing who is bound where: the
    view remembers that only for consolidation. Nodes that are empty then are the autoscaler's to take away again; pods
    that were evicted are the scheduler's and the planner's, as any others. It may be repeated, so that a process that
    ends anywhere is continued by the next."""

    name = "a step of consolidation that is under way"
    every_seconds = 5.0

    def __init__(self, client: Client, fleet: Fleet, cluster: ClusterView) -> None:
        self._client = client
        self._fleet = fleet
        self._cluster = cluster

    def step(self) -> None:
        """Undo it. Raises Unavailable where cluster or journal are out of reach."""
        under_way = self._fleet.snapshot.disruption
        if under_way is None:
            return
        problem = self._cluster.problem
        if problem is not None:
            raise Unavailable(problem)
        self._fleet.disruptions.check()
        if not self._any_is_there(under_way):
            self._fleet.withdraw(under_way.increment_id, f"the disruption that it is for is undone: {WHY}")
        for each in (*under_way.nodes, *under_way.new_nodes):
            uncordon(self._client, each.name)
        self._fleet.disruptions.change(replace(under_way, phase=DisruptionPhase.UNDONE, message=WHY))
        log.warning("disruption %s is undone: %s", under_way.id, WHY, extra={"disruption": under_way.id})

    def _any_is_there(self, under_way: Disruption) -> bool:
        """Return whether there is a Node of its increment, or nothing to withdraw."""
        status = next((each for each in self._fleet.snapshot.increments if each.id == under_way.increment_id), None)
        known = self._cluster.node_names()
        return status is None or any(each.instance_id in known for each in status.nodes)
