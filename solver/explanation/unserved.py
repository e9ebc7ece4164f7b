"""Why a class or a gang is not served: an irreducible core of constraints, and the smallest changes that would serve
it.

Cores and changes are minimal sets with a monotone property: what holds of a set holds of every larger one. Sets are
tried in halves first (QuickXplain: Junker, AAAI 2004), so that few questions are asked where few of many items matter.
The questions are the planner's to answer (`question`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from solver.explanation import devices
from solver.explanation.capacity import POSSIBLE, made_for, possible
from solver.explanation.kinds import KINDS, apply, offered, removals
from solver.explanation.model import KEPT_PODS, Constraint, ConstraintChange, Way, WhyUnserved
from solver.explanation.pods import REQUEST
from solver.explanation.question import LARGEST_SHARE, Oracle, ServiceQuestion, TrialResult, UnservedClaim, question
from solver.model import Plan, PodSet, Problem
from solver.model.budget import RunningBudget
from solver.planning.solve import solve

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[Sequence[T]], bool], most: int = sys.maxsize) -> tuple[T, ...]:
    """Return a subset of which `holds` is true, and of none that lacks one more item; earlier items are preferred to
    later ones. Return none of them where more than `most` are needed. Expects that it holds of all items together."""
    found = _quick(items, (), True, holds, most)
    return _irreducible(found, holds) if len(found) <= most else ()


def _quick(
    items: Sequence[T], base: Sequence[T], grown: bool, holds: Callable[[Sequence[T]], bool], most: int
) -> tuple[T, ...]:
    """Return the items needed on top of `base`, and no further ones beyond `most`; whether it holds of `base` alone is
    asked only where that has `grown` (QuickXplain, Junker 2004)."""
    if grown and holds(base):
        return ()
    if len(items) <= 1:
        return tuple(items)
    half = (len(items) + 1) // 2
    first, second = items[:half], items[half:]
    later = _quick(second, (*base, *first), True, holds, most)
    if len(later) > most:
        return later
    earlier = _quick(first, (*base, *later), bool(later), holds, most - len(later))
    return (*earlier, *later)


def _irreducible(items: tuple[T, ...], holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Drop items that are not needed. Where removing a constraint can harm (an untolerated zone is no domain of a
    spread), halving may leave one too many: each is tried once more."""
    position = len(items) - 1
    while position >= 0:
        without = (*items[:position], *items[position + 1 :])
        if holds(without):
            items, position = without, len(without)
        position -= 1
    return items


_MOST_WAYS = 8
_MOST_CHANGES = 6
"""Changes of one way in which a node group is made."""
_ASKING = (REQUEST.name, devices.REQUEST.name)
"""Kinds of changes to what pods request,"""
_SELECTING = ("node_selector", "node_affinity")
"""and to which nodes they select."""
_ROUNDS = 3


def why_unserved(problem: Problem, plan: Plan, claim: UnservedClaim, budget: RunningBudget) -> WhyUnserved:
    """Return the core and the ways. Where the budget is used up, the core may be larger than it need be, and ways
    fewer: `proven` is then False."""
    asked = question(problem, plan, claim)
    oracle = Oracle(asked, budget)
    constraints = _constraints(asked)
    servable = oracle.ask().served
    core = () if servable else _core(oracle, constraints)
    proven = not servable and _proven(oracle, constraints, core)
    changes = [c for c in constraints if isinstance(c, ConstraintChange)]
    ways = () if servable else tuple(_ways(oracle, changes, core))
    return WhyUnserved(
        claim.name,
        tuple(each.index for each in claim.classes),
        claim.gang is not None,
        claim.pods,
        claim.unserved,
        claim.pods if servable else _fit(asked, budget, claim.pods - claim.unserved),
        core,
        proven,
        ways,
        servable,
        asked.in_place,
    )


def _constraints(asked: ServiceQuestion) -> tuple[Constraint, ...]:
    classes = asked.claim.classes
    changes = removals(apply(asked.problem, possible(asked.problem, classes)), classes)
    return (*changes, KEPT_PODS) if asked.in_place or asked.problem != asked.alone else changes


def _with_only(oracle: Oracle, constraints: Sequence[Constraint], kept: Sequence[Constraint]) -> TrialResult:
    """Return the answer where, of all constraints that can be removed, only some are `kept`."""
    left = set(kept)
    gone = [c for c in constraints if c not in left]
    return oracle.ask([c for c in gone if isinstance(c, ConstraintChange)], alone=KEPT_PODS in gone)


def _core(oracle: Oracle, constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    def keeps_out(some: Sequence[Constraint]) -> bool:
        return not _with_only(oracle, constraints, some).served

    # What no node has is enough, and says more than a limit that such pods would be above, which halves come to first.
    asked = (c for c in constraints if isinstance(c, ConstraintChange) and c.kind in _ASKING)
    alone = () if keeps_out(()) else tuple(islice((c for c in asked if keeps_out([c])), 1))
    return alone or minimal(constraints, keeps_out)


def _proven(oracle: Oracle, constraints: Sequence[Constraint], core: Sequence[Constraint]) -> bool:
    return _with_only(oracle, constraints, core).proven and all(
        _with_only(oracle, constraints, [c for c in core if c != each]).served for each in core
    )


def _ways(oracle: Oracle, changes: Sequence[ConstraintChange], core: Sequence[Constraint]) -> Iterator[Way]:
    """Yield the ways, of changes as far as people are offered them. A single one that is enough is in every core. Where
    there is none but in what pods request, sets of changes that are enough together come first, and lower requests are
    part of them only where nothing else helps."""
    needed = set(offered(c for c in core if isinstance(c, ConstraintChange)))
    changes = offered(changes)
    single = [c for c in changes if c in needed and oracle.ask([c]).served][:_MOST_WAYS]
    asking = [c for c in single if c.kind in _ASKING]
    conditions = [c for c in changes if c.kind not in _ASKING]
    found: list[Sequence[ConstraintChange]] = [[c] for c in single if c not in asking]
    if not found:
        found = _together(oracle, conditions)
    if not found:
        found = [together for change in asking for together in _asking_little_less(oracle, change, conditions)]
    found += [[c] for c in asking]
    found = _widened(oracle, found, conditions) or found or _together(oracle, changes)
    if not found:
        found = _with_made(oracle, changes)
    for together in found:
        yield _shrunk(oracle, together)


def _widened(
    oracle: Oracle, found: Sequence[Sequence[ConstraintChange]], conditions: Sequence[ConstraintChange]
) -> list[Sequence[ConstraintChange]]:
    """Return those of the ways in which pods keep what they select of nodes, or others, where node groups that could be
    there serve them so; none where no such groups do."""
    keeping = [c for c in conditions if c.kind not in _SELECTING]
    if not any(c.kind == POSSIBLE for c in keeping):
        return []
    kept = [together for together in found if not any(c.kind in _SELECTING for c in together)]
    return kept or (_together(oracle, keeping) if found else [])


def _together(oracle: Oracle, changes: Sequence[ConstraintChange]) -> list[Sequence[ConstraintChange]]:
    """Return irreducible sets that are enough: one preferably of sizes and limits, one preferably of pods."""
    found: list[Sequence[ConstraintChange]] = []
    if not oracle.ask(changes).served:
        return found
    pods, others = [c for c in changes if c.pods], [c for c in changes if not c.pods]
    for order in ([*others, *pods], [*pods, *others]):
        together = minimal(order, lambda some: oracle.ask(some).served)
        if not any(set(together) == set(known) for known in found) and not oracle.budget.exhausted:
            found.append(together)
    return found


def _with_made(oracle: Oracle, changes: Sequence[ConstraintChange]) -> list[Sequence[ConstraintChange]]:
    """Return an irreducible set of changes, of which some make a node group, that is enough; none where it has so many
    that nobody would make them."""
    asked = oracle.question
    pods, others = [c for c in changes if c.pods], [c for c in changes if not c.pods]
    order = [*made_for(asked.problem, asked.claim.classes), *others, *pods]
    if not oracle.ask(order).served:
        return []
    found = minimal(order, lambda some: oracle.ask(some).served, _MOST_CHANGES)
    return [found] if found else []


def _asking_little_less(
    oracle: Oracle, change: ConstraintChange, conditions: Sequence[ConstraintChange]
) -> Iterator[tuple[ConstraintChange, ...]]:
    """Yield the smallest reduction of a request, with the other changes that it needs, where pods must request less."""
    least = _smallest(oracle, change, conditions)
    order = sorted(conditions, key=lambda c: c.pods is not None)
    others = minimal(order, lambda some: oracle.ask([least, *some]).served)
    if others:
        yield (least, *others)


def _shrunk(oracle: Oracle, changes: Sequence[ConstraintChange]) -> Way:
    """Return the way with each change made as small as possible, one after the other, until none can shrink."""
    current = tuple(changes)
    for _ in range(_ROUNDS):
        for change in current:
            others = [c for c in current if c != change]
            smaller = _smallest(oracle, _milder(oracle, change, others), others)
            current = tuple(smaller if c == change else c for c in current)
        way = Way(current, proven=False)
        answers = {less: oracle.ask(less) for less in way.lessened()}
        enough = next((less for less, each in answers.items() if each.served), None)
        if enough is None:
            return replace(way, proven=all(each.proven for each in answers.values()))
        current = enough  # removing a constraint can harm, where it excluded a domain from a spread
    return way


def _milder(oracle: Oracle, change: ConstraintChange, others: Sequence[ConstraintChange]) -> ConstraintChange:
    milder = KINDS[change.kind].milder(change)
    return milder if milder is not None and oracle.ask([*others, milder]).served else change


@dataclass(frozen=True, slots=True)
class _Scale:
    """The values of a change at which anything changes, numbered from 0 in the direction of the change."""

    change: ConstraintChange
    first: int
    step: int

    def at(self, number: int) -> ConstraintChange:
        assert self.change.before is not None
        distance = self.first + number * self.step
        return replace(self.change, after=self.change.before + (distance if self._rises else -distance))

    def number(self, amount: int) -> int:
        """Return the number of the first value that is no less of a change than `amount`; below 0 for no change."""
        assert self.change.before is not None
        distance = amount - self.change.before if self._rises else self.change.before - amount
        return -(-(distance - self.first) // self.step) if distance > 0 else -1

    @property
    def _rises(self) -> bool:
        assert self.change.before is not None
        return self.change.whole > self.change.before


def _smallest(oracle: Oracle, change: ConstraintChange, others: Sequence[ConstraintChange]) -> ConstraintChange:
    """Return the smallest amount that serves, with the other changes as they are. Expects that `change` does."""
    if change.after is None:
        return change
    kind, problem = KINDS[change.kind], apply(oracle.question.problem, [*others, change])
    found = _bisected(oracle, _Scale(change, *kind.steps(change, problem)), others)
    less = found.lessened()
    if less is not None and oracle.ask([*others, less]).served:  # smaller changes than the steps' can matter
        found = _bisected(oracle, _Scale(less, 1, 1), others)
    return found


def _bisected(oracle: Oracle, scale: _Scale, others: Sequence[ConstraintChange]) -> ConstraintChange:
    def serves(change: ConstraintChange) -> int | None:
        """Return the number of the smallest value that the plan found needs; None where none is found."""
        answer = oracle.ask([*others, change])
        if answer.plan is None:
            return None
        amount = KINDS[change.kind].reached(change, apply(oracle.question.problem, others), answer.plan)
        least = change.whole if amount is None else amount
        return min(scale.number(change.whole), max(0, scale.number(least)))

    low, smallest = -1, scale.change
    high = serves(smallest)
    if high is None:
        return smallest
    while high - low > 1:
        middle = (low + high) // 2
        found = serves(scale.at(middle))
        if found is None:
            low = middle
        else:
            high, smallest = min(found, middle), scale.at(middle)
    # Asked again: the amount that a plan used must be enough for the question, too.
    return scale.at(high) if serves(scale.at(high)) is not None else smallest


def _fit(asked: ServiceQuestion, budget: RunningBudget, served: int) -> int:
    """Return how many of the claim's pods can be served beside those that are kept: as many as the plan has `served`,
    where there is no time to ask."""
    if budget.exhausted:
        return served
    own = len(asked.claim.classes)
    pod_sets = tuple(
        PodSet(pods.name, pods.spec, pods.count, priority=int(number >= own))
        for number, pods in enumerate(asked.problem.pod_sets)
    )
    plan = solve(replace(asked.problem, pod_sets=pod_sets), budget.next_plan(LARGEST_SHARE))
    missing = {each.pod_class: each.count for each in plan.unplaced}
    unserved = [each for each in plan.pod_classes if each.priority == 0]
    return sum(each.count - missing.get(each.index, 0) for each in unserved)
