"""The question behind every explanation: can these pods be served beside those that the plan serves already?

It is asked of a class of pods that the plan leaves out, in part or whole, or of a gang (`UnservedClaim`). Its problem
has the unserved pods and those kept beside them: the served pods that they do not outrank. All pods of a question are
to be served, so the answer is yes or no.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from solver.explanation.kinds import apply
from solver.explanation.model import ConstraintChange
from solver.model import (
    Budget,
    Plan,
    PodClass,
    PodSet,
    Problem,
    TaintEffect,
)
from solver.model.budget import RunningBudget
from solver.model.capacity import after_plan
from solver.model.eligibility import without_preferences
from solver.planning.solve import solve

LARGEST_SHARE = 0.2
_SHARES = (0.02, LARGEST_SHARE)
"""Shares of the budget for one trial: most questions are answered long before the plan is as cheap as can be."""
_WHOLE_SIZE = 20_000
"""Classes times places to put them, up to which kept pods may move; beyond, they stay where the plan has them, and a
question has only the unserved pods."""


@dataclass(frozen=True, slots=True)
class UnservedClaim:
    """A class or a gang that is not served whole."""

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
        """Higher ranks come first in every plan: real pods by priority, then placeholders, whatever theirs is."""
        if self.classes[0].placeholder:
            return (False, 0)
        return (True, max(each.priority for each in self.classes))


def claims(plan: Plan) -> tuple[UnservedClaim, ...]:
    """Return what the plan leaves out, the most important first: by rank, then by the number of pods."""
    missing = {each.pod_class: each.count for each in plan.unplaced}
    gangs = _gangs(plan.pod_classes)
    found = [
        UnservedClaim(members[0].gang or members[0].example, members, sum(missing.get(m.index, 0) for m in members))
        for members in gangs
        if any(member.index in missing for member in members)
    ]
    return tuple(sorted(found, key=lambda c: (not c.rank[0], -c.rank[1], -c.unserved, c.classes[0].index)))


def _gangs(classes: Sequence[PodClass]) -> list[tuple[PodClass, ...]]:
    """Return classes that are served together; each class without a gang alone."""
    found: dict[object, list[PodClass]] = defaultdict(list)
    for each in classes:
        found[each.unit].append(each)
    return [tuple(members) for members in found.values()]


@dataclass(frozen=True, slots=True)
class ServiceQuestion:
    """Whether an unserved class or gang can be served, as problems to plan."""

    claim: UnservedClaim
    problem: Problem
    """The unserved pods, and those kept beside them where these may move."""
    alone: Problem
    """The unserved pods alone."""
    in_place: bool
    """Whether kept pods stay where the plan has them: then the nodes, sizes and limits of `problem` include them."""


def question(problem: Problem, plan: Plan, claim: UnservedClaim) -> ServiceQuestion:
    """Return the question for unserved pods. Kept are pods that the plan serves and that have their rank or a higher
    one."""
    mine = {each.index for each in claim.classes}
    missing = {each.pod_class: each.count for each in plan.unplaced}
    kept = {
        member.index
        for members in _gangs(plan.pod_classes)
        for member in members
        if UnservedClaim("", members, 0).rank >= claim.rank and member.index not in mine
    }
    own = [_pod_set(each, each.count) for each in claim.classes]
    alone = replace(problem, pod_sets=tuple(own), previous=None)
    places = len(problem.node_groups) + len(problem.nodes)
    if len(plan.pod_classes) * places > _WHOLE_SIZE:
        return ServiceQuestion(
            claim, replace(after_plan(problem, plan, kept), pod_sets=tuple(own)), alone, in_place=True
        )
    others = [_pod_set(c, c.count - missing.get(c.index, 0)) for c in plan.pod_classes if c.index in kept]
    asked = replace(problem, pod_sets=(*own, *(pods for pods in others if pods.count)), previous=None)
    return ServiceQuestion(claim, asked, alone, in_place=False)


def _pod_set(of: PodClass, count: int) -> PodSet:
    return PodSet(of.example, of.spec, count, of.priority, gang=of.gang, placeholder=of.placeholder)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """`plan` serves every pod of the question; where there is none, `proven` is whether no plan does."""

    plan: Plan | None
    proven: bool

    @property
    def served(self) -> bool:
        return self.plan is not None


@dataclass
class Oracle:
    """Answers one question under many changes; each answer is computed once."""

    question: ServiceQuestion
    budget: RunningBudget
    _known: dict[tuple[frozenset[ConstraintChange], bool], TrialResult] = field(default_factory=dict)

    def ask(self, changes: Iterable[ConstraintChange] = (), *, alone: bool = False) -> TrialResult:
        """Return whether all pods are served after the changes; with `alone`, as if no others had to be."""
        applied = frozenset(changes)
        key = (applied, alone)
        if key not in self._known:
            if self.budget.exhausted:
                return TrialResult(None, proven=False)
            asked = self.question.alone if alone else self.question.problem
            ordered = sorted(applied, key=lambda c: (c.kind, c.subject, c.key, repr(c.part)))
            changed = _plain(apply(asked, ordered))
            for share in _SHARES:
                if self.budget.exhausted:
                    return TrialResult(None, proven=False)
                found = _answer(changed, self.budget.next_plan(share))
                if found.proven:
                    break
            self._known[key] = found
        return self._known[key]


def _answer(problem: Problem, budget: Budget) -> TrialResult:
    plan = solve(problem, budget)
    if not plan.unplaced:
        return TrialResult(plan, proven=True)
    return TrialResult(None, proven=plan.proves_some_unservable)


def _plain(problem: Problem) -> Problem:
    """Return the question in its simplest form: as all pods are to be served, neither priorities nor gangs, prices nor
    preferences make a difference."""
    return replace(
        problem,
        pod_sets=tuple(
            PodSet(pods.name, without_preferences(pods.spec), pods.count) for pods in problem.pod_sets if pods.count
        ),
        node_groups=tuple(
            replace(g, price_usd_per_hour=0.0, weight=0, taints=tuple(t for t in g.taints if _hard(t.effect)))
            for g in problem.node_groups
        ),
    )


def _hard(effect: TaintEffect) -> bool:
    return effect is not TaintEffect.PREFER_NO_SCHEDULE
