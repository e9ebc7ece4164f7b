"""From a plan to what is to be done for it, so that it comes true: with `realise: simulate` repaired until the
scheduler, simulated, serves all that it claims; with `realise: bind` the same around the pods that are bound where they
are planned, which mostly leaves the plan as it is. Pure; which pods are meant is `increments`' to say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cagrpc.controllers.planner.aside import put_aside
from cagrpc.controllers.planner.problem import Question, class_key
from cagrpc.controllers.settings import PlannerSettings, Realise
from solver.model import Budget, Plan, Problem
from solver.realise import WAVES, realise
from solver.scheduler import Profile, Scoring

log = logging.getLogger(__name__)

_PLANNING_SHARE = {Realise.SIMULATE: 0.6, Realise.BIND: 0.85}
"""Of the time for a round; the rest is for realising."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One new node."""

    node_group: str
    pods: Mapping[int, int]
    """Class -> pods."""
    bound: Mapping[int, int]
    """Those of them that are bound to it before the scheduler sees it."""
    wave: int = 0
    reserve: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """What is to be done for a plan."""

    problem: Problem
    """Without the placeholders that are put aside."""
    plan: Plan
    """The one of `problem`, with pods where they end up, and the nodes that are ordered."""
    slots: tuple[Slot, ...]
    """Its new nodes."""
    planned_cost_per_hour: float
    """Before repairs."""
    reserve_cost_per_hour: float = 0.0
    """Of all slots of the reserve; what is not needed of it is given back."""
    repairs: tuple[str, ...] = ()
    """Nodes more or fewer than planned, for people."""


def shares(budget: Budget, settings: PlannerSettings) -> tuple[Budget, Budget]:
    """A round's budget for planning and for realising."""
    share = _PLANNING_SHARE[settings.realise]
    return budget.part(share), budget.part(1.0 - share)


def course(asked: Question, problem: Problem, plan: Plan, settings: PlannerSettings, budget: Budget) -> Course:
    """`plan` is the one of `problem`, which is what was asked but for pods and Nodes that cannot be meant."""
    binds = settings.realise is Realise.BIND
    bindable = {
        cls.index: sum(pod.bindable for pod in asked.pods.get(class_key(cls), ())) if binds else 0
        for cls in plan.pod_classes
    }
    problem, plan = put_aside(problem, plan)
    if not plan.existing and all(bindable[cls.index] == cls.count for cls in plan.pod_classes if not cls.placeholder):
        return _as_planned(problem, plan, binds=binds)
    if not asked.pods:  # placeholders are where we say
        return _as_planned(problem, plan, binds=False)
    profile = Profile(Scoring(settings.scoring.value))
    try:
        found = realise(problem, plan, budget, profile, may_bind=bindable, waves=1 if binds else WAVES)
    except Exception as error:  # or nothing would be ordered, in this round and the next
        log.exception("the plan is carried out as it is, for its realisation failed")
        return replace(_as_planned(problem, plan, binds=binds), repairs=(f"not realised: {error!r:.500}",))
    return Course(
        problem,
        found.plan,
        tuple(Slot(each.node_group, each.pods, each.bound, each.wave, each.reserve) for each in found.placements),
        found.planned_cost_usd_per_hour,
        found.reserve_cost_usd_per_hour,
        tuple(
            f"{each.delta:+d} x {each.node_group} ({each.cost_usd_per_hour:+.4f} $/h): {each.reason}"
            for each in found.repairs
        ),
    )


def _as_planned(problem: Problem, plan: Plan, *, binds: bool) -> Course:
    slots = tuple(
        Slot(nodes.node_group, nodes.pods, nodes.pods if binds else {})
        for nodes in plan.nodes
        for _ in range(nodes.count)
    )
    return Course(problem, plan, slots, plan.certificate.cost_usd_per_hour)
