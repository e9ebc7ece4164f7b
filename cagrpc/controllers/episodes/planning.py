"""From the recorded state of an episode to what would have been planned: each wave when it came, with nothing known of
those after it, beside the nodes that were planned for those before it. Pure.

What stands is used by the first wave alone: what is free there later, others may have taken, and a plan must claim no
room that was not to be had. Pods that wait later do so because they found none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import solver
from cagrpc.controllers.episodes.ledger import ClosedEpisode
from cagrpc.controllers.episodes.model import Episode, GroupNodes, Outcome, RecordedState
from solver.model import Budget, Node, Plan, Problem
from solver.model.capacity import after_plan
from solver.model.errors import PlanRejectedError, ProblemError

PlannedWave = tuple[Problem, Plan]


def plan_waves(state: RecordedState, budget: Budget) -> tuple[PlannedWave, ...]:
    """Return the problem and the plan of each wave, within the budget all together. Each plan was let out by the
    checker. Raises ProblemError and PlanRejectedError."""
    cluster, found = state.cluster, list[PlannedWave]()
    standing = {each.name for each in cluster.nodes}
    for number, wave in enumerate(state.waves):
        problem = replace(cluster, pod_sets=wave.pod_sets)
        plan = solver.solve(problem, budget.part(1 / len(state.waves)))
        found.append((problem, plan))
        known = {each.name for each in cluster.nodes}
        after = after_plan(problem, plan, range(len(plan.pod_classes)))
        cluster = replace(after, nodes=tuple(_later(each, number, standing, known) for each in after.nodes))
    return tuple(found)


def _later(node: Node, wave: int, standing: Iterable[str], known: Iterable[str]) -> Node:
    """Return a node as later waves see it."""
    if node.name in standing:
        return replace(node, free=dict.fromkeys(node.free, 0), devices=())
    return node if node.name in known else replace(node, name=f"{node.name}-{wave}")


def outcome(
    state: RecordedState, planned: Sequence[PlannedWave], node_seconds: float | None, estimated: Iterable[str]
) -> Outcome:
    """Return what the pods get by the plans. A node takes `node_seconds` from when it is ordered; None where that is
    not known."""
    groups = {each.id: each for each in state.cluster.node_groups}
    counts: Counter[str] = Counter()
    unserved, served, waited = 0, 0, 0.0
    of_new = 0
    for wave, (_, plan) in zip(state.waves, planned, strict=True):
        counts.update({each.node_group: each.delta for each in plan.increments})
        left = sum(each.count for each in plan.unplaced)
        on_new = sum(each.count * sum(each.pods.values()) for each in plan.nodes)
        unserved += left
        served += wave.pods - left
        of_new += on_new
        waited += (wave.pods - left) * (wave.waited_seconds + plan.elapsed_seconds) + on_new * (node_seconds or 0.0)
    without = set(estimated)
    nodes = tuple(
        GroupNodes(name, count, count * groups[name].price_usd_per_hour, groups[name].weight, name in without)
        for name, count in sorted(counts.items())
        if count
    )
    known = served and (node_seconds is not None or not of_new)
    return Outcome(nodes, unserved, waited / served if known else None)


def finished(closed: ClosedEpisode, budget: Budget) -> Episode | None:
    """Return the episode with its plan; None where neither has a new node, and no pod is left without one."""
    episode, state = closed.episode, closed.state
    if closed.why_not:
        return replace(episode, unknown=(closed.why_not, *episode.unknown))
    try:
        planned = plan_waves(state, budget)
    except (PlanRejectedError, ProblemError) as error:
        return replace(episode, unknown=(f"what would have been planned: {error!s:.300}", *episode.unknown))
    found = outcome(state, planned, episode.node_seconds, closed.estimated)
    if not (episode.came.nodes or found.nodes or episode.came.unserved or found.unserved):
        return None
    least = planned[0][1].certificate.least_usd_per_hour if len(planned) == 1 else None
    return replace(episode, planned=found, least_usd_per_hour=least)
