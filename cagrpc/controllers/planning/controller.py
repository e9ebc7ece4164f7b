"""The planner loop (`drive: plan`): checks whether a round is due, plans it, and applies whole increments. The rules
are in the sibling modules; this one has the order of steps and the handling of failures. It never waits for an
increment.

A round reads the fleet's snapshot, then the cluster's state, and plans the pods that nothing serves yet; what has
changed by the time the plan is applied is left to the next round. See docs/reference/planner-loop.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from prometheus_client.registry import Collector

from cagrpc import errors
from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.cluster.node_info import Reservations, merged
from cagrpc.cluster.quotas import quotas_among
from cagrpc.cluster.shortages import Shortage, offering
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.assume_cache.placements import PlacedPods, successors
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.events import EventRecorder, Note
from cagrpc.controllers.planning import batching, reasons
from cagrpc.controllers.planning.increments import (
    AssignedPods,
    NewNode,
    assign_pods,
    format_deltas,
    increment,
    parts,
    still_wanted,
)
from cagrpc.controllers.planning.problem import Question, question
from cagrpc.controllers.planning.reasons import Unserved
from cagrpc.controllers.planning.records import Ordered, PlanRecord, RoundMetrics, Rounds
from cagrpc.controllers.planning.unschedulable import UnschedulablePods
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, PodKey
from cagrpc.runtime import tracing
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage
from cagrpc.runtime.log_once import LogOnce
from solver.explanation.model import WhyWaiting
from solver.explanation.waiting import why_waiting
from solver.model import Budget, NodeGroup, Plan
from solver.model.capacity import remaining
from solver.model.quantities import pluralize

log = logging.getLogger(__name__)

STEP_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The fleet's answers to a plan."""

    ordered: tuple[Ordered, ...]
    onto_nodes: Mapping[PodKey, str] = field(default_factory=dict)
    """Pods (by UID) that are to go to nodes that exist or are in flight."""
    unreached: errors.Unavailable | None = None
    """Why the rest of the plan could not be applied."""


class PlanningController(Controller):
    """Plans rounds. `step` is for one thread; `plans`, `waits_for` and `stop` are for any."""

    name = "the planner loop"
    every_seconds = STEP_SECONDS
    back_off = BackOff(first_seconds=1.0)

    def __init__(
        self,
        fleet: Fleet,
        cluster: ClusterView,
        settings: PlannerSettings,
        assumed: AssumeCache,
        events: EventRecorder,
        runtime: Runtime,
    ) -> None:
        """`events` are written on pods. Placeholders of the slack are planned beside pods, and those left over begin
        rounds, too."""
        self._fleet = fleet
        self._cluster = cluster
        self._settings = settings
        self._assumed = assumed
        self._events = events
        self._clock, self._now = runtime.clock, runtime.now
        self._budget = runtime.budget or Budget(settings.budget_seconds)
        self._lost_known = 0
        self._batching = batching.BatchingState()
        self._previous: Plan | None = None
        self._rounds = Rounds()
        self._unschedulable = UnschedulablePods(self._rounds, self._clock)
        self._metrics = RoundMetrics(self._rounds)
        self._told = LogOnce()
        self._unserved = Unserved(self._rounds, self._budget, fleet.widen, self._record_all)
        self.patience_seconds = settings.step_patience_seconds

    def status(self) -> Json:
        """Return why no round is under way."""
        return {"planner": self.waits_for}

    def pages(self) -> Mapping[str, JsonPage]:
        return {"/plans": JsonPage(lambda: JsonList(self._shown(), PlanRecord.as_json))}

    def collectors(self) -> Iterable[Collector]:
        """Return how long rounds took, and what the latest one came to."""
        return self._metrics.collectors()

    def plans(self) -> tuple[PlanRecord, ...]:
        """Return the latest rounds, oldest first."""
        return self._rounds.latest()

    def _shown(self) -> tuple[PlanRecord, ...]:
        """Return the latest rounds, the last with how many of its pods wait still: others are deleted, or run."""
        *before, last = self.plans() or (None,)
        if last is None or not last.unplaced or self._cluster.problem is not None:
            return self.plans()
        left = self._unschedulable.still_waiting(lambda key: self._cluster.pod_of(key) is not None)
        waiting = tuple(left[number] for number in range(len(last.unplaced)))
        gone = waiting != tuple(each.count for each in last.unplaced)
        return (*before, replace(last, waiting=waiting)) if gone else self.plans()

    def step(self) -> None:
        """Plan and apply a round where one is due."""
        try:
            self._step()
        except Exception:
            # The next step begins anew: nothing of the round was recorded.
            self._batching = batching.BatchingState()
            raise

    def _step(self) -> None:
        problem = self._hindrance()
        if problem is not None:
            self.waits_for = problem
            return
        fleet, arrivals, now = self._fleet.snapshot, self._cluster.arrivals(), self._clock()
        arrivals = replace(arrivals, placeholders=sum(self._assumed.slack.left_over.values()))
        self._rounds.learn(fleet)
        self._batching = batching.notice(self._batching, arrivals, self._inputs(fleet), now)
        verdict = batching.round_due(self._batching, arrivals, now, self._settings)
        lost = self._assumed.placements.lost_count
        if lost != self._lost_known and arrivals.any:  # they are few, and waiting brings nothing
            verdict = batching.RoundDue(
                due=True, why=f"{pluralize(lost - self._lost_known, 'pod')} lost the planned place"
            )
        if not verdict.due and not self._batching.news and self._unschedulable.due:
            verdict = batching.RoundDue(due=True, why="pods that earlier rounds left out are planned again")
        self.waits_for = verdict.why
        if verdict.due:
            self._unserved.report()
            self._lost_known = lost
            with self._assumed.planning_lock:
                fleet = self._fleet.snapshot  # others may have ordered increments in their turn
                inputs = self._inputs(fleet)
                self._batching = batching.planned(arrivals, inputs, now)
                self._round(fleet, inputs, verdict.why)
        elif not self._batching.news:
            last = arrivals.last_seen_at_seconds
            self._unserved.explain(lambda: self._cluster.arrivals().last_seen_at_seconds != last)

    def _hindrance(self) -> str | None:
        return self._cluster.problem or self._fleet.problem

    def _inputs(self, fleet: FleetSnapshot) -> Hashable:
        """Return everything that a round depends on beside pods and Nodes."""
        sizes = tuple(each.target_size for each in fleet.groups.values())
        in_flight = frozenset(each.id for each in fleet.increments if each.nodes)
        offered = _offered(fleet, self._assumed.active_shortages(fleet))
        left = tuple((each.name, tuple(remaining(each).items())) for each in quotas_among(fleet.limits))
        return sizes, in_flight, offered, left, tuple(sorted(self._assumed.slack.left_over.items()))

    def _round(self, fleet: FleetSnapshot, inputs: Hashable, why: str) -> None:
        at, snapshot = self._now(), self._assumed.snapshot(fleet, self._cluster.state())
        placed, offered = snapshot.placed(), _offered(fleet, snapshot.shortages)
        # Pods that have just lost their places are the placement controller's first.
        served = placed.served | placed.lost
        backing_off = self._unschedulable.backing_off(snapshot.cluster.waiting, served, offered)
        state, asked = self._question(snapshot, placed, served | {pod.key for pod in backing_off})
        self._record_all(reasons.waiting_for_gangs(state.incomplete_gangs))
        incomplete = tuple(replace(each, pods=()) for each in state.incomplete_gangs)
        record = PlanRecord(secrets.token_hex(4), at, why, incomplete_gangs=incomplete, warnings=state.warnings)
        if not asked.problem.pod_sets:
            if incomplete != self._rounds.incomplete_gangs():  # once, not in every round
                self._rounds.add(replace(record, unplaced=self._left_out({}, {}, backing_off)))
            return
        with tracing.about(tracing.plan(record.id), at) as span:
            tracing.child("reading", at, self._now())
            began = self._clock()
            self._plan(record, asked, inputs, snapshot, backing_off, span)
            if not backing_off:
                self._unschedulable.planned(self._clock() - began, offered)

    def _plan(
        self,
        record: PlanRecord,
        asked: Question,
        inputs: Hashable,
        snapshot: Snapshot,
        backing_off: Sequence[PodRef],
        span: tracing.Span,
    ) -> None:
        """Plan what a round asks for, apply it, and record the round."""
        pods = sum(map(len, asked.pods.values()))
        placeholders = sum(each.count for each in asked.problem.pod_sets if each.placeholder)
        log.debug(
            "round %s: planning %s and %s: %s",
            record.id,
            pluralize(pods, "pod"),
            pluralize(placeholders, "placeholder"),
            record.why,
        )
        began_at = self._now()
        planned = solve_valid(asked.problem, self._budget)
        plan = self._previous = planned.plan
        solved_at = began_at + plan.elapsed_seconds
        tracing.child("solving", began_at, solved_at)
        tracing.child("checking", solved_at, self._now())
        assigned = assign_pods(plan, asked)
        not_valid, not_valid_pods = reasons.invalid(planned.dropped, asked)
        assigned = replace(assigned, unplaced={**assigned.unplaced, **not_valid_pods})
        unplaced = {**why_waiting(plan), **not_valid}
        recorded = self._left_out(unplaced, assigned.unplaced, backing_off)
        with tracing.span("committing"):
            outcome = self._apply(assigned, inputs, record.id, plan.certificate.gap)
        self._assume(outcome.onto_nodes, snapshot.reservations)
        self._record_all(reasons.has_room(assigned, asked.coming), record.id)
        gap = plan.certificate.gap
        proven = {} if gap is None else {"cagrpc.gap": gap}
        span.set({"cagrpc.pods": pods, "cagrpc.nodes": len(assigned.new), **proven})
        self._tell(record.id, record.why, pods, len(assigned.new), sum(each.count for each in unplaced.values()))
        record = replace(
            record.of(plan),
            pods=pods,
            nodes=len(assigned.new),
            on_existing=sum(map(len, assigned.existing.values())),
            increments=outcome.ordered,
            unplaced=recorded,
            shortages=snapshot.shortages,
            placeholders=placeholders,
            unplaced_placeholders=tuple(why_waiting(plan, placeholders=True).values()),
        )
        self._rounds.add(record)
        self._metrics.observe(record, self._now() - record.at_seconds)
        if unplaced or plan.increments:
            self._unserved.found(record.id, planned.problem, plan, assigned, unplaced)
        if outcome.unreached is not None:
            raise outcome.unreached

    def _tell(self, round_id: str, why: str, pods: int, nodes: int, waiting: int) -> None:
        """Log a round that orders nodes, or leaves another number of pods waiting than the last one: in a cluster where
        nothing can be done pods come and go all the same."""
        changed = self._told.is_new(waiting)
        level = logging.INFO if nodes or changed else logging.DEBUG
        log.log(
            level,
            "round %s: %s (%s): %s, %s left pending",
            round_id,
            pluralize(pods, "pod"),
            why,
            pluralize(nodes, "new node"),
            waiting,
        )

    def _left_out(
        self, unplaced: Mapping[int, WhyWaiting], pods: Mapping[int, Iterable[PodRef]], backing_off: Iterable[PodRef]
    ) -> tuple[WhyWaiting, ...]:
        """Return what the record of a round is to say of unplaced pods, and let others know which these are."""
        recorded = self._unschedulable.record(unplaced, pods, backing_off)
        self._assumed.left_out = self._unschedulable.keys
        return recorded

    def _question(
        self, snapshot: Snapshot, placed: PlacedPods, without: AbstractSet[PodKey]
    ) -> tuple[ClusterState, Question]:
        """Return what is to be planned, and the state without these pods, which are served already or back off."""
        slack = self._assumed.slack
        placeholders = slack.pod_sets()
        # The state is read again: the view decides what is left of a gang.
        left = self._cluster.state(without=without) if without else snapshot.cluster
        if not left.waiting and placeholders:  # placeholders with room stay where they are
            placeholders = slack.left_over_sets()
            placed = snapshot.placed(merged(snapshot.reservations, slack.reservations()))
        return left, question(snapshot, left, placed, self._previous, placeholders)

    def _apply(self, assigned: AssignedPods, inputs: Hashable, record_id: str, gap: float | None) -> _Outcome:
        """Order each part, except those that have changed while planning, which are news for the next round."""
        problem = "stopping" if self.stopping else self._hindrance()
        if problem is not None:
            return _Outcome((), unreached=errors.Unavailable(f"a plan was not applied: {problem}"))
        fleet = self._fleet.snapshot
        left_out = {each.offering for each in self._assumed.active_shortages(fleet)}
        assigned = self._with_created_pods(assigned, fleet)
        groups = {name: state.group for name, state in fleet.groups.items()}
        news, unreached, ordered = self._inputs(fleet) != inputs, None, []
        torn = {name for node in assigned.new for name in node.gangs}
        for each in parts(assigned.new):
            part, wanted = self._still_wanted(each)
            if wanted is None or not all(_is_available(node, groups, left_out) for node in part):
                news = True
                continue
            if not wanted:
                continue
            asked = increment(wanted, groups, record_id, gap)
            try:
                ordered.append(self._order(asked, wanted))
                torn.difference_update(name for node in part for name in node.gangs)
            except errors.Unavailable as error:
                unreached = error
                break
            except errors.OrderRefused as error:
                short = [groups[name] for name in error.node_groups or asked.deltas if name in groups]
                refused_at, least = self._now(), error.retry_after_seconds or 0.0
                self._assumed.shortages.note(
                    short, str(error), at=refused_at, asked_at=refused_at, at_least_seconds=least
                )
                ordered.append(self._refused(asked, wanted, error))
                news = True
            except errors.CagrpcError as error:  # sizes or limits: where these changed, that is news already
                ordered.append(self._refused(asked, wanted, error))
        self._batching = replace(self._batching, inputs=self._inputs(self._fleet.snapshot))
        if news:
            at = self._clock()
            self._batching = batching.with_news(self._batching, at, at)
        return _Outcome(tuple(ordered), self._onto_nodes(assigned, torn), unreached)

    def _still_wanted(self, part: tuple[NewNode, ...]) -> tuple[tuple[NewNode, ...], tuple[NewNode, ...] | None]:
        """Return the part with expected pods replaced by those created since, and what of it is still wanted."""
        if any(pod.is_expected and not self._still_waits(pod) for node in part for pod in node.pods):
            part = self._with_created_pods(AssignedPods(part, {}, {}), self._fleet.snapshot).new
        return part, still_wanted(part, self._still_waits)

    def _with_created_pods(self, assigned: AssignedPods, snapshot: FleetSnapshot) -> AssignedPods:
        """Replace expected pods with those that were created while planning."""
        keys = [pod.key for pod in assigned.pods() if pod.is_expected]
        if not keys:
            return assigned
        now = self._assumed.snapshot(snapshot, self._cluster.state())
        placed = now.desired.pods.keys() | {pod.key for pod in assigned.pods()}
        return assigned.replacing(successors(keys, placed, now.cluster))

    def _onto_nodes(self, assigned: AssignedPods, torn: AbstractSet[str]) -> dict[PodKey, str]:
        """Return the nodes of pods (by UID) that no increment is for. Members of a gang that is `torn` are left out:
        they are not to be bound before the rest of the gang is ordered."""
        left = {pod for name in torn for pod in assigned.gangs_on_existing.get(name, ())}
        return {
            pod.key: node
            for node, pods in assigned.existing.items()
            for pod in pods
            if pod not in left and self._still_waits(pod)
        }

    def _assume(self, pods: Mapping[PodKey, str], reservations: Reservations) -> None:
        """Assume these pods (by UID) on these nodes, where there still is room; the others are news for the next
        round."""
        if not pods:
            return
        fleet = self._fleet.snapshot
        snapshot = self._assumed.snapshot(fleet, self._cluster.state())
        placed = snapshot.placed(reservations)
        specs = {pod.key: each.pod_set.spec for each in snapshot.cluster.waiting for pod in each.pods}
        fit = {uid: node for uid, node in pods.items() if uid in specs and placed.take(uid, specs[uid], node)}
        self._assumed.placements.assume(fit)
        if len(fit) < len(pods):
            at = self._clock()
            self._batching = batching.with_news(self._batching, at, at)

    def _still_waits(self, pod: PodRef) -> bool:
        """Return whether the pod still needs a node: it is not bound, gone or assumed elsewhere meanwhile."""
        return self._cluster.pod_of(pod.key) is not None and not self._assumed.placements.assumed(pod.key)

    def _order(self, asked: IncrementSpec, nodes: Sequence[NewNode]) -> Ordered:
        status = self._fleet.apply(asked)
        self._record_all(reasons.planned(status, (pod for node in nodes for pod in node.pods)), asked.plan)
        return Ordered(
            asked.deltas, len(asked.pods), asked.cost_usd_per_hour or 0.0, status.id, status.phase.value, status.message
        )

    def _refused(self, asked: IncrementSpec, nodes: Sequence[NewNode], error: errors.CagrpcError) -> Ordered:
        log.warning("the fleet refused %s: %s", format_deltas(asked.deltas), error)
        self._record_all(reasons.refused(asked, error, (pod for node in nodes for pod in node.pods)), asked.plan)
        return Ordered(asked.deltas, len(asked.pods), asked.cost_usd_per_hour or 0.0, message=str(error))

    def _record_all(self, notes: Iterable[Note], plan: str = "") -> None:
        for note in notes:
            if note.about.uid:  # an expected pod has none, and no Events
                self._events.event(replace(note, plan=plan))


def _offered(fleet: FleetSnapshot, shortages: Iterable[Shortage]) -> Hashable:
    """Return how large node groups may become, what the cluster's quotas allow, and which offerings are short."""
    short = frozenset(each.offering for each in shortages)
    quotas = tuple((each.name, tuple(each.maxima.items())) for each in quotas_among(fleet.limits))
    return tuple((name, each.group.max_size) for name, each in fleet.groups.items()), quotas, short


def _is_available(node: NewNode, groups: Mapping[str, NodeGroup], short: AbstractSet[str]) -> bool:
    """Return whether the node's group still exists, and has had no shortage since it was planned."""
    return node.node_group in groups and offering(groups[node.node_group]) not in short
