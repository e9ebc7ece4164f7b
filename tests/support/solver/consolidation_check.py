"""Checks plans of consolidation for tests and benches: replays the steps on the problem, with the model, the checker of
plans (`solver.verify`) and plain sums alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from solver.consolidation.model import (
    FORCEFUL,
    ConsolidationPlan,
    ConsolidationProblem,
    ConsolidationStep,
    DisruptionReason,
)
from solver.model import Node, PodClass, PodSet, PodSpec, Problem, RunningPods
from solver.model.capacity import after_plan, with_nodes
from solver.model.errors import PlanRejectedError
from solver.verify.check import faults_of

_TOLERANCE_USD = 2e-6
"""Per node."""


def check_consolidation(problem: ConsolidationProblem, plan: ConsolidationPlan) -> None:
    """Raise `PlanRejectedError` naming everything that the plan breaks or states wrongly."""
    faults = list(consolidation_faults(problem, plan))
    if faults:
        raise PlanRejectedError(faults)


def consolidation_faults(problem: ConsolidationProblem, plan: ConsolidationPlan) -> Iterator[str]:
    """Yield one sentence per fault; nothing for a valid plan."""
    replay = _Replay(problem.with_hard_taints_only())
    yield from _about(plan.cost_before_usd_per_hour, replay.cost(), "cost before", len(problem.nodes))
    for number, step in enumerate(plan.steps):
        yield from (f"step {number}: {fault}" for fault in replay.faults(step, number))
    yield from _about(plan.cost_after_usd_per_hour, replay.cost(), "cost after", len(problem.nodes))
    if plan.least_usd_per_hour > plan.cost_after_usd_per_hour + _TOLERANCE_USD:
        yield f"at least {plan.least_usd_per_hour} $/h, and yet {plan.cost_after_usd_per_hour} after"
    if plan.least_if_all_moved_usd_per_hour > plan.least_usd_per_hour + _TOLERANCE_USD:
        yield (
            f"at least {plan.least_if_all_moved_usd_per_hour} $/h if all moved, more than"
            f" {plan.least_usd_per_hour} where some is kept"
        )
    yield from replay.tier_faults(plan)
    standing = {each.node.name for each in problem.nodes} & set(replay.nodes)
    yield from (f"{name} stays, it says, but it goes or never was" for name in sorted(set(plan.stays) - standing))


def _about(stated: float, found: float, what: str, nodes: int) -> Iterator[str]:
    if abs(stated - found) > _TOLERANCE_USD * max(1, nodes):
        yield f"{what} is {found} $/h, not {stated}"


Pods = Counter[int]
"""Pods by what they are: numbers of `_Kinds`."""


class _Kinds:
    """Numbers for spec, priority, gang and being a placeholder. Equal specs are mostly one object, compared by value
    once for each object."""

    def __init__(self) -> None:
        self.examples: list[PodClass | PodSet] = []
        self.spec_of: list[int] = []
        self._specs: dict[PodSpec, int] = {}
        self._objects: dict[int, tuple[int, PodSpec]] = {}
        self._numbers: dict[tuple[int, int, str | None, bool], int] = {}

    def spec(self, spec: PodSpec) -> int:
        known = self._objects.get(id(spec))
        if known is None:  # the spec is held, so that its id is nobody else's
            known = self._objects[id(spec)] = self._specs.setdefault(spec, len(self._specs)), spec
        return known[0]

    def of(self, pods: PodClass | PodSet) -> int:
        key = self.spec(pods.spec), pods.priority, pods.gang, pods.placeholder
        number = self._numbers.setdefault(key, len(self.examples))
        if number == len(self.examples):
            self.examples.append(pods)
            self.spec_of.append(key[0])
        return number

    def counted(self, sets: Iterable[PodClass | PodSet]) -> Pods:
        found: Pods = Counter()
        for each in sets:
            found[self.of(each)] += each.count
        return +found

    def gang(self, number: int) -> str | None:
        return self.examples[number].gang


@dataclass
class _StandingNow:
    node: Node
    group: str
    pods: Pods
    kept: bool
    takes: bool
    must_go: DisruptionReason | None
    new: bool
    spare: bool = False


class _Replay:
    """The cluster as the steps so far leave it."""

    def __init__(self, problem: ConsolidationProblem) -> None:
        self._problem, self._kinds = problem, _Kinds()
        self._groups = {group.id: group for group in problem.node_groups}
        self._limits = problem.limits
        self._least = {group.id: min(group.min_size, group.target_size) for group in problem.node_groups}
        self.nodes = {
            each.node.name: _StandingNow(
                each.node,
                each.node_group,
                self._kinds.counted(each.pods),
                bool(each.kept),
                each.takes_pods and each.must_go is None,
                each.must_go,
                new=False,
                spare=each.spare,
            )
            for each in problem.nodes
        }

    def cost(self) -> float:
        return math.fsum(self._groups[each.group].price_usd_per_hour for each in self.nodes.values() if each.group)

    def tier_faults(self, plan: ConsolidationPlan) -> Iterator[str]:
        """Yield what the plan states wrongly of the weights after its last step."""
        after = self._cost_by_weight()
        for tier in plan.tiers:
            what = f"cost of weight {tier.weight}"
            yield from _about(tier.cost_usd_per_hour, after.get(tier.weight, 0.0), what, len(self.nodes))
            if tier.lower_bound_usd_per_hour > tier.cost_usd_per_hour + _TOLERANCE_USD:
                yield f"{what}: lower bound {tier.lower_bound_usd_per_hour} above {tier.cost_usd_per_hour}"

    def faults(self, step: ConsolidationStep, number: int) -> Iterator[str]:
        """Yield what is wrong with the step, and carry it out."""
        unknown = [name for name in step.nodes if name not in self.nodes]
        if unknown or len(set(step.nodes)) < len(step.nodes) or not step.nodes:
            yield f"takes away {list(step.nodes)}, of which {unknown} do not stand"
            return
        yield from self._may_go(step)
        before, moving = self.cost(), self._moving(step)
        yield from self._gangs(moving)
        asked = _sum(moving.values())
        planned = self._kinds.counted(step.plan.pod_classes)
        if +asked != planned:
            yield f"moves {planned.total()} pods, not the {asked.total()} of the nodes that go and of their gangs"
            return
        yield from (f"{each.count} pods of class {each.pod_class} have no place" for each in step.plan.unplaced)
        question = self._question(step, moving)
        faults = list(faults_of(question, step.plan))
        yield from faults
        closed = {
            name for name, each in self.nodes.items() if not each.takes or (each.spare and step.reason not in FORCEFUL)
        }
        for placed in step.plan.existing:
            if placed.node in closed and any(placed.pods.values()):
                yield f"puts pods onto {placed.node}, which takes none"
        if faults:
            return
        old = self._cost_by_weight()
        saved_nodes = len(step.nodes) + sum(each.delta for each in step.plan.increments)
        self._carry_out(step, number, moving, question)
        yield from self._sizes(step)
        yield from _about(step.saving_usd_per_hour, before - self.cost(), "its saving", saved_nodes)
        yield from self._worth_it(step, old, moved=asked)

    def _may_go(self, step: ConsolidationStep) -> Iterator[str]:
        for name in step.nodes:
            each = self.nodes[name]
            if each.kept or not each.group:
                yield f"takes away {name}, which is kept or nobody's"
            if each.spare and step.reason not in FORCEFUL:
                yield f"takes away {name}, which is a spare"
            if each.new:
                yield f"takes away {name}, which a step before opened"
            if step.reason in FORCEFUL and not any(self.nodes[n].must_go == step.reason for n in step.nodes):
                yield f"takes away {name} as {step.reason}, which it is not"

    def _moving(self, step: ConsolidationStep) -> dict[str, Pods]:
        """Return the pods that move: those of the nodes that go, and of their gangs wherever they are; of a node that
        must go its own may be all."""
        going = set(step.nodes)
        alone = {name: self.nodes[name].pods for name in going}
        if step.reason in FORCEFUL and +_sum(alone.values()) == self._kinds.counted(step.plan.pod_classes):
            return alone
        gangs = {self._kinds.gang(pods) for name in going for pods in self.nodes[name].pods} - {None}
        moving: dict[str, Pods] = {}
        for name, each in self.nodes.items():
            if name in going:
                moving[name] = each.pods
            elif gangs:
                mine = Counter({pods: count for pods, count in each.pods.items() if self._kinds.gang(pods) in gangs})
                if mine:
                    moving[name] = mine
        return moving

    def _gangs(self, moving: Mapping[str, Pods]) -> Iterator[str]:
        for name, pods in moving.items():
            if self.nodes[name].kept and pods:
                yield f"moves pods of {name}, which is kept"

    def _question(self, step: ConsolidationStep, moving: Mapping[str, Pods]) -> Problem:
        """Return the problem that the step's plan answers: old nodes count against sizes and limits still."""
        sets = tuple(
            PodSet("pods", pods.spec, count, pods.priority, 0, pods.gang, pods.placeholder)
            for number, count in _sum(moving.values()).items()
            for pods in (self._kinds.examples[number],)
        )
        going = set(step.nodes)
        nodes = tuple(
            self._without(each.node, moving[name]) if name in moving else each.node
            for name, each in self.nodes.items()
            if name not in going
        )
        groups = tuple(self._groups.values())
        return Problem(sets, groups, nodes, self._limits, self._problem.daemon_sets)

    def _carry_out(self, step: ConsolidationStep, number: int, moving: Mapping[str, Pods], question: Problem) -> None:
        after = after_plan(question, step.plan, range(len(step.plan.pod_classes)))
        classes = [self._kinds.of(each) for each in step.plan.pod_classes]
        lost = Counter(self.nodes[name].group for name in step.nodes)
        for name in step.nodes:
            del self.nodes[name]
        for node in after.nodes[: len(question.nodes)]:
            each = self.nodes[node.name]
            each.node = node
            if node.name in moving:
                each.node = self._with_room_of(node, moving[node.name])
                each.pods = each.pods - moving[node.name]
        for placed in step.plan.existing:
            self.nodes[placed.node].pods.update({classes[i]: n for i, n in placed.pods.items()})
        opened: Counter[str] = Counter()
        new = iter(after.nodes[len(question.nodes) :])
        for batch in step.plan.nodes:
            for _ in range(batch.count):
                name = f"{batch.node_group}/step-{number}-{opened[batch.node_group]}"
                opened[batch.node_group] += 1
                pods = Counter({classes[i]: n for i, n in batch.pods.items()})
                node = replace(next(new), name=name)
                self.nodes[name] = _StandingNow(node, batch.node_group, pods, False, True, None, new=True)
        self._groups = {
            group.id: replace(group, target_size=group.target_size - lost[group.id]) for group in after.node_groups
        }
        gone = {group_id: -count for group_id, count in lost.items()}
        self._limits = tuple(with_nodes(limit, self._groups, gone) for limit in after.limits)

    def _without(self, node: Node, pods: Pods) -> Node:
        """Return the node with these pods on their way: others do not count them there, their room is not yet free."""
        leaving: Counter[int] = Counter()
        for number, count in pods.items():
            leaving[self._kinds.spec_of[number]] += count
        running = []
        for here in node.running:
            spec = self._kinds.spec(here.spec)
            gone = min(here.count, leaving[spec])
            leaving[spec] -= gone
            if here.count > gone:
                running.append(RunningPods(here.spec, here.count - gone))
        return replace(node, running=tuple(running))

    def _with_room_of(self, node: Node, pods: Pods) -> Node:
        free = dict(node.free)
        for number, count in pods.items():
            for name, amount in (*self._kinds.examples[number].spec.requests, ("pods", 1)):
                free[name] = free.get(name, 0) + amount * count
        return replace(node, free=free)

    def _sizes(self, step: ConsolidationStep) -> Iterator[str]:
        for group in self._groups.values():
            if group.target_size < self._least[group.id]:
                yield f"leaves {group.target_size} nodes of {group.id}, fewer than {self._least[group.id]}"
        if len(step.nodes) > self._problem.most_nodes_per_step and not any(each.gang for each in step.plan.pod_classes):
            yield f"takes away {len(step.nodes)} nodes, at most {self._problem.most_nodes_per_step} allowed"

    def _cost_by_weight(self) -> dict[int, float]:
        cost: dict[int, float] = {group.weight: 0.0 for group in self._groups.values()}
        for each in self.nodes.values():
            if each.group:
                cost[self._groups[each.group].weight] += self._groups[each.group].price_usd_per_hour
        return cost

    def _worth_it(self, step: ConsolidationStep, before: Mapping[int, float], moved: Pods) -> Iterator[str]:
        evicted = sum(count for pods, count in moved.items() if not self._kinds.examples[pods].placeholder)
        if step.reason in FORCEFUL:
            return
        if step.reason is DisruptionReason.EMPTY:
            if moved.total() or step.plan.increments:
                yield "is not of empty nodes alone"
            return
        after = self._cost_by_weight()
        change = [after[weight] - before[weight] for weight in sorted(before)]
        first = next((each for each in change if abs(each) > _TOLERANCE_USD), 0.0)
        if first >= 0 and not all(abs(each) <= _TOLERANCE_USD for each in change):
            yield f"is not better in the order of the weights: {change}"
        least = self._problem.least_saving_usd_per_hour_per_pod
        saved = -math.fsum(change)
        if step.reason is DisruptionReason.UNDERUTILIZED and saved < least * evicted - _TOLERANCE_USD:
            yield f"saves {saved} $/h and moves {evicted} pods, at least {least} each asked for"


def _sum(parts: Iterable[Pods]) -> Pods:
    total: Pods = Counter()
    for each in parts:
        total.update(each)
    return total
