"""The controller of consolidation: plans from time to time, publishes the plan, and in mode `on` has its steps carried
out, one at a time. What is asked is `question`'s, how a step is carried out `queue`'s; the journal says what is under
way, so a restart goes on where it was.

The whole is planned without holding up anybody. The step that is begun is asked for anew, on the cluster as it is then
and in turn with everybody who plans: it is small, and what it counts on is nobody else's. It is the first of the plan
of which the budgets let something go now; where they let only a part of it go, the question is asked for this part
alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import takewhile

from prometheus_client.registry import Collector

from cagrpc.controllers.consolidation.budgets import NodesThatMayGo
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, Observer
from cagrpc.controllers.consolidation.queue import DisruptionQueue
from cagrpc.controllers.consolidation.status import ConsolidationMetrics, Pause, PublishedPlan, Shown, in_full, in_short
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import Disruption, DisruptionPhase
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, Json, JsonPage
from cagrpc.runtime.fair_lock import FairLock
from solver.consolidation.consolidate import consolidate
from solver.consolidation.model import (
    FORCEFUL,
    ConsolidationPlan,
    ConsolidationProblem,
    ConsolidationStep,
    DisruptionReason,
)
from solver.model import Budget
from solver.model.money import hourly
from solver.model.quantities import pluralize

log = logging.getLogger(__name__)

STEP_SECONDS = 0.2
_LOOK_SECONDS = 5.0
"""How often to look whether planning may go on that had to wait."""
_BEGIN_SHARE = 0.3
"""Of the budget: to plan again the one step that is begun."""
LATER = "its step comes later"
_MOST_TRIES = 3
"""Of steps that turn out to be none, in one round."""


class ConsolidationController(Controller):
    """Plans, and has steps carried out. `step` is for one thread; all else is for any."""

    name = "consolidation"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 5.0)

    def __init__(
        self,
        fleet: Fleet,
        observe: Observer,
        queue: DisruptionQueue,
        settings: ConsolidationSettings,
        planning_lock: FairLock,
        runtime: Runtime,
    ) -> None:
        self._fleet = fleet
        self._observe = observe
        self._queue = queue
        self._settings = settings
        self._planning_lock = planning_lock
        self._now, self._clock, self._budget = runtime.now, runtime.clock, runtime.budget
        self._published: PublishedPlan | None = None
        self._none: set[tuple[str, ...]] = set()
        """Nodes with which no step could be begun lately: others come first."""
        self._next = float("-inf")
        self._metrics = ConsolidationMetrics(self._shown, queue.evictions)
        self.patience_seconds = 900.0 + 4 * settings.budget_seconds

    def status(self) -> Json:
        """Return the plan in short, what is under way, and why nothing is."""
        return {"consolidation": in_short(self._shown())}

    def pages(self) -> Mapping[str, JsonPage]:
        """Return `/consolidation`: all steps, and all nodes that stay."""
        return {"/consolidation": JsonPage(lambda: in_full(self._shown()))}

    def collectors(self) -> Iterable[Collector]:
        """Return costs, nodes that stay, and what became of steps."""
        return self._metrics.collectors()

    def _shown(self) -> Shown:
        disruptions = self._fleet.snapshot.disruptions
        under_way = self._fleet.snapshot.disruption
        ended = [each for each in disruptions if not each.phase.under_way]
        return Shown(
            mode=self._settings.mode.value,
            waits_for=self._queue.waits_for if under_way is not None else self.waits_for,
            published=self._published,
            under_way=under_way,
            last=ended[-1] if ended else None,
            pause=self._pause(),
            holding=self._observe.holding if under_way is None else (),
        )

    def step(self) -> None:
        """Advance the step under way; without one plan, where that is due, and begin the next."""
        snapshot = self._fleet.snapshot
        if self._metrics.learn(snapshot.disruptions):
            self._next = float("-inf")  # the cluster is another one now
        if snapshot.disruption is not None:
            self._continue()
        elif self._clock() >= self._next:
            self.waits_for = self._round()

    def _continue(self) -> None:
        if self._settings.mode is not ConsolidationMode.ON:
            self._queue.undo("consolidation is a dry run now")
        self._queue.advance()

    def _round(self) -> str:
        """Plan, publish, and begin a step; return why none is begun."""
        self._next = self._clock() + min(_LOOK_SECONDS, self._settings.every_seconds)
        observed = self._observe()
        if isinstance(observed, str):
            return observed
        problem = observed.problem
        if observed.held:
            problem = narrowed(problem, {each.node.name for each in problem.nodes if each.must_go is not None})
        plan = consolidate(problem, self._budget or Budget(self._settings.budget_seconds))
        if not observed.held:
            self._published = PublishedPlan(self._now(), plan)
        self._next = self._clock() + self._settings.every_seconds
        log.debug(
            "consolidation would save %s in %s", hourly(plan.saving_usd_per_hour), pluralize(len(plan.steps), "step")
        )
        if not plan.steps:
            return observed.held or "nothing is worth moving"
        if self._settings.mode is not ConsolidationMode.ON:
            return "it is a dry run: nothing is changed"
        return self._begin(observed, plan)

    def _begin(self, planned: ConsolidationQuestion, plan: ConsolidationPlan) -> str:
        closed, paused = self._closed(), self._pause()
        may = NodesThatMayGo(self._settings, planned, self._now())
        left_alone = paused.nodes if paused is not None else frozenset()
        urgent_only = closed or paused is not None or bool(planned.held)
        found = list(candidates(plan.steps, may, urgent_only=urgent_only, without=left_alone))
        tried = [nodes for nodes in found if nodes not in self._none] or found
        for nodes in tried[:_MOST_TRIES]:
            with self._planning_lock:
                why = self._begin_with(frozenset(nodes), left_alone, urgent_only=urgent_only)
            if why is None:
                self._none.clear()
                return ""
            if why:
                return why
            self._none.add(nodes)
        self._none.intersection_update(found if len(tried) > _MOST_TRIES else ())
        if tried:
            return "the planned steps no longer apply"
        if paused is not None:
            return f"paused after a step that failed: {paused.why}"
        if planned.held:
            return planned.held
        return "no window is open" if closed else "the disruption budgets of the provisioners allow no node to go now"

    def _begin_with(self, nodes: frozenset[str], left_alone: frozenset[str], *, urgent_only: bool) -> str | None:
        """Begin a step that takes away some of these nodes, or of those to which their gangs reach, but for nodes that
        are `left_alone`; return why none may be begun now, empty where there is none, None where one was begun."""
        observed = self._observe()
        if isinstance(observed, str):
            return observed
        budget = self._budget or Budget(max(1.0, _BEGIN_SHARE * self._settings.budget_seconds))
        steps = consolidate(narrowed(observed.problem, nodes, left_alone), budget).steps
        may = NodesThatMayGo(self._settings, observed, self._now())
        if not steps or self.stopping:
            return ""
        found = steps[0]
        if may.of(found) != found.nodes or ((urgent_only or observed.held) and found.reason not in FORCEFUL):
            return ""
        self._queue.begin(found, observed)
        log.info(
            "consolidation begins: %s of %s (%s) go, %s move, %s saved",
            pluralize(len(found.nodes), "node"),
            ", ".join(sorted({may.provisioners[name] for name in found.nodes})),
            found.reason,
            pluralize(found.pods_moved, "pod"),
            hourly(found.saving_usd_per_hour),
        )
        return None

    def _closed(self) -> bool:
        """Return whether there are windows, and none is open."""
        windows = self._settings.windows
        return bool(windows) and not any(each.open_at(self._now()) for each in windows)

    def _pause(self) -> Pause | None:
        return _pause_of(self._fleet.snapshot.disruptions, self._settings, self._now())


def candidates(
    steps: Iterable[ConsolidationStep], may: NodesThatMayGo, *, urgent_only: bool, without: AbstractSet[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the nodes to take away next, the best first: of each step those that budgets let go. `without` are nodes
    that are left alone for now."""
    for step in steps:
        if urgent_only and step.reason not in FORCEFUL:
            continue
        nodes = tuple(name for name in may.of(step) if name not in without)
        if nodes:
            yield nodes


def narrowed(
    problem: ConsolidationProblem, nodes: AbstractSet[str], without: AbstractSet[str] = frozenset()
) -> ConsolidationProblem:
    """Return the problem in which only these nodes may go, and those to which gangs of their pods reach, since a gang
    with a pod on a node that is kept does not move. Those that are left alone for now (`without`) are kept. A step
    takes away no more nodes than these, and no more than it may in any case."""
    gangs = {of.gang for each in problem.nodes if each.node.name in nodes for of in each.pods} - {None}
    standing = (
        each
        if each.kept
        or each.node.name in nodes
        or (each.node.name not in without and not gangs.isdisjoint(of.gang for of in each.pods))
        else replace(each, kept=LATER, must_go=None)
        for each in problem.nodes
    )
    most = min(problem.most_nodes_per_step, max(1, len(nodes)))
    return replace(problem, nodes=tuple(standing), most_nodes_per_step=most)


def _pause_of(disruptions: Sequence[Disruption], settings: ConsolidationSettings, now_seconds: float) -> Pause | None:
    """Return the pause at a time. `disruptions` are the last ones, in order. It follows from the journal, so a restart
    does not shorten it."""
    ended = [each for each in disruptions if not each.phase.under_way]
    failed = list(takewhile(_failed, reversed(ended)))
    if not failed:
        return None
    back_off = BackOff(settings.pause_after_failure_seconds, settings.longest_pause_seconds)
    last = failed[0]
    until = (last.finished_at_seconds or last.created_at_seconds) + back_off.seconds(len(failed))
    if now_seconds >= until:
        return None
    why = last.message if last.phase is DisruptionPhase.UNDONE else "it saved nothing: nodes had to stay"
    return Pause(until, why, frozenset(node.name for each in failed for node in each.nodes))


def _failed(ended: Disruption) -> bool:
    saved_nothing = ended.reason == DisruptionReason.UNDERUTILIZED and ended.saving_usd_per_hour <= 0
    return ended.phase is DisruptionPhase.UNDONE or saved_nothing
