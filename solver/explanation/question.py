"""The question behind every explanation: can these pods be served beside those that the plan serves already?

A *claim* is a class of pods that the plan leaves out, in part or whole, or a gang. Its question is the problem cut
down to the claim and to what must be kept for it: the served pods that it does not outrank. All the pods of a question
are to be served, so it has the answer yes or no.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from solver.explanation.kinds import apply
from solver.explanation.model import Change
from solver.model import (
    PODS,
    Budget,
    Limit,
    Node,
    NodeGroup,
    Plan,
    PodClass,
    PodSet,
    PodSpec,
    Problem,
    RunningPods,
    TaintEffect,
    WhenUnsatisfiable,
)
from solver.model.budget import Meter
from solver.model.eligibility import why_not_eligible
from solver.planning.solve import solve

_TRIALS = 2000
"""Of one explanation, under a deterministic budget."""
_SHARES = (0.02, 0.2)
"""Of the budget, that a trial may take: most questions are answered long before the plan is as cheap as can be."""
_WHOLE_SIZE = 20_000
"""Classes times places to put them, up to which the pods that are kept may move; beyond, they stay where the plan has
them, and a question is as small as its claim."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Pods that belong together and are not all served."""

    name: str
    """The gang, or the example pod of the class."""
    classes: tuple[PodClass, ...]
    unserved: int

    @property
    def pods(self) -> int:
        return sum(each.count for each in self.classes)

    @property
    def gang(self) -> str | None:
        return self.classes[0].gang

    @property
    def rank(self) -> tuple[bool, int]:
        """Claims of a higher rank come first in every plan: real pods before placeholders, then by priority."""
        return (not self.classes[0].placeholder, max(each.priority for each in self.classes))


def claims(plan: Plan) -> tuple[Claim, ...]:
    """Of what the plan leaves out, the most important first: by rank, then by the number of pods."""
    missing = {each.pod_class: each.count for each in plan.unplaced}
    gangs = _gangs(plan.pod_classes)
    found = [
        Claim(members[0].gang or members[0].example, members, sum(missing.get(m.index, 0) for m in members))
        for members in gangs
        if any(member.index in missing for member in members)
    ]
    return tuple(sorted(found, key=lambda c: (not c.rank[0], -c.rank[1], -c.unserved, c.classes[0].index)))


def _gangs(classes: Sequence[PodClass]) -> list[tuple[PodClass, ...]]:
    """Classes that are served together; each class without a gang alone."""
    found: dict[object, list[PodClass]] = defaultdict(list)
    for each in classes:
        found[each.index if each.gang is None else each.gang].append(each)
    return [tuple(members) for members in found.values()]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a claim."""

    claim: Claim
    problem: Problem
    """The claim's pods, and those that are kept for it where they may move."""
    alone: Problem
    """The claim's pods, as if nothing else were served."""
    in_place: bool
    """Whether what is kept stays where the plan has it: then it is part of the nodes, sizes and limits of `problem`."""


def question(problem: Problem, plan: Plan, claim: Claim) -> Question:
    """What is kept: pods that the plan serves and that have the claim's rank or a higher one."""
    mine = {each.index for each in claim.classes}
    missing = {each.pod_class: each.count for each in plan.unplaced}
    kept = {
        member.index
        for members in _gangs(plan.pod_classes)
        for member in members
        if Claim("", members, 0).rank >= claim.rank and member.index not in mine
    }
    own = [_pod_set(each, each.count) for each in claim.classes]
    alone = replace(problem, pod_sets=tuple(own), previous=None)
    places = len(problem.node_groups) + len(problem.nodes)
    if len(plan.pod_classes) * places > _WHOLE_SIZE:
        return Question(claim, replace(settled(problem, plan, kept), pod_sets=tuple(own)), alone, in_place=True)
    others = [_pod_set(c, c.count - missing.get(c.index, 0)) for c in plan.pod_classes if c.index in kept]
    asked = replace(problem, pod_sets=(*own, *(pods for pods in others if pods.count)), previous=None)
    return Question(claim, asked, alone, in_place=False)


def _pod_set(of: PodClass, count: int) -> PodSet:
    return PodSet(of.example, of.spec, count, of.priority, gang=of.gang, placeholder=of.placeholder)


def settled(problem: Problem, plan: Plan, kept: Iterable[int]) -> Problem:
    """The problem after the plan was carried out: its nodes stand, with the pods of the classes `kept` on them. Pods
    that wait are left out."""
    stay, classes = set(kept), plan.pod_classes
    groups = {group.id: group for group in problem.node_groups}
    deltas = {increment.node_group: increment.delta for increment in plan.increments}
    on_node = {placed.node: placed.pods for placed in plan.existing}
    nodes = [
        _holding(node, [(classes[i], n) for i, n in on_node.get(node.name, {}).items() if i in stay])
        for node in problem.nodes
    ]
    for number, batch in enumerate(plan.nodes):
        group = groups[batch.node_group]
        here = [(classes[i], n) for i, n in batch.pods.items() if i in stay]
        empty = Node("", after_daemons(problem, group), group.labels, group.taints)
        filled = _holding(empty, here)
        nodes.extend(replace(filled, name=f"{group.id}/planned-{number}-{copy}") for copy in range(batch.count))
    return replace(
        problem,
        pod_sets=(),
        node_groups=tuple(replace(g, target_size=g.target_size + deltas.get(g.id, 0)) for g in problem.node_groups),
        nodes=tuple(nodes),
        limits=tuple(_used(limit, groups, deltas) for limit in problem.limits),
        previous=None,
    )


def _holding(node: Node, pods: Sequence[tuple[PodClass, int]]) -> Node:
    free = dict(node.free)
    for each, count in pods:
        for name, amount in {**dict(each.spec.requests), PODS: 1}.items():
            free[name] = free.get(name, 0) - amount * count
    return replace(node, free=free, running=(*node.running, *(RunningPods(c.spec, n) for c, n in pods)))


def after_daemons(problem: Problem, group: NodeGroup) -> dict[str, int]:
    """What a new node of the group has for other pods."""
    free = dict(group.allocatable)
    for spec in problem.daemon_sets:
        need = {**dict(spec.requests), PODS: 1}
        fits = all(free.get(name, 0) >= amount for name, amount in need.items())
        if fits and why_not_eligible(spec, group.labels, group.taints) is None:
            free |= {name: free.get(name, 0) - amount for name, amount in need.items()}
    return free


def _used(limit: Limit, groups: dict[str, NodeGroup], deltas: dict[str, int]) -> Limit:
    used = dict(limit.used)
    for group_id, delta in deltas.items():
        if limit.node_groups is None or group_id in limit.node_groups:
            for name, amount in groups[group_id].counted_capacity.items():
                used[name] = used.get(name, 0) + amount * delta
    return replace(limit, used=used)


@dataclass
class Trials:
    """What may be spent on trials: seconds, or, under a deterministic budget, a number of them."""

    budget: Budget
    left: int = _TRIALS
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.budget)

    @property
    def over(self) -> bool:
        return self.left <= 0 or (not self.meter.deterministic and self.meter.left_seconds() <= 0)

    def next(self, share: float = _SHARES[-1]) -> Budget:
        """The budget of one more trial, at most a share of the whole."""
        self.left -= 1
        exact = self.budget.deterministic_seconds
        seconds = min(self.budget.seconds * share, self.meter.left_seconds()) if exact is None else 0.0
        return Budget(seconds, None if exact is None else exact * share, self.budget.workers)


@dataclass(frozen=True, slots=True)
class Answer:
    """`plan` serves every pod of the question; where there is none, `proven` says whether no plan does."""

    plan: Plan | None
    proven: bool

    @property
    def served(self) -> bool:
        return self.plan is not None


@dataclass
class Oracle:
    """Answers one question under many changes, each asked once."""

    question: Question
    trials: Trials
    _known: dict[tuple[frozenset[Change], bool], Answer] = field(default_factory=dict)

    def ask(self, changes: Iterable[Change] = (), *, alone: bool = False) -> Answer:
        """Whether all pods are served after the changes; `alone`: as if nothing else had to be."""
        applied = frozenset(changes)
        key = (applied, alone)
        if key not in self._known:
            asked = self.question.alone if alone else self.question.problem
            ordered = sorted(applied, key=lambda c: (c.kind, c.subject, c.key, repr(c.part)))
            changed = _plain(apply(asked, ordered))
            for share in _SHARES:
                if self.trials.over:
                    return Answer(None, proven=False)
                found = _answer(changed, self.trials.next(share))
                if found.proven:
                    break
            self._known[key] = found
        return self._known[key]


def _answer(problem: Problem, budget: Budget) -> Answer:
    plan = solve(problem, budget)
    if not plan.unplaced:
        return Answer(plan, proven=True)
    return Answer(None, proven=plan.bounds[0] > 0)


def _plain(problem: Problem) -> Problem:
    """The same question in its simplest form: as all pods are to be served, neither priorities nor gangs, prices nor
    preferences make a difference."""
    return replace(
        problem,
        pod_sets=tuple(
            PodSet(pods.name, _without_preferences(pods.spec), pods.count) for pods in problem.pod_sets if pods.count
        ),
        node_groups=tuple(
            replace(g, price_usd_per_hour=0.0, weight=0, taints=tuple(t for t in g.taints if _hard(t.effect)))
            for g in problem.node_groups
        ),
    )


def _hard(effect: TaintEffect) -> bool:
    return effect is not TaintEffect.PREFER_NO_SCHEDULE


def _without_preferences(spec: PodSpec) -> PodSpec:
    required = tuple(t for t in spec.topology_spread if t.when_unsatisfiable is not WhenUnsatisfiable.SCHEDULE_ANYWAY)
    return replace(spec, preferred_nodes=(), preferred_pods=(), topology_spread=required)
