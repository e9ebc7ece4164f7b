"""Which requests can be served together, by priority, then in turn: an earlier one is never given up for a later one.
Pure. Who gets which nodes is `assignment`'s.

Most often all can, so that is tried first. Where not, the plan shows the first request that it does not serve: that one
is tried alone, and those before and after it together. Requests that are served already are planned again with those
that are tried, so that no place that they could leave is in the way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from cagrpc.controllers.provisioning.decision.assignment import Assignment, assign, together
from cagrpc.controllers.provisioning.decision.capacity import held_alone, in_the_end, pods_of, problem_of, without
from cagrpc.controllers.provisioning.decision.model import Scenario
from cagrpc.controllers.provisioning.model import Candidate, namespace_of
from cagrpc.fleet.model import LARGEST_INCREMENT
from solver import Budget, Plan, PodSet, Problem, Status, solve
from solver.model import NODES, Limit
from solver.model.budget import RunningBudget

MOST_OVERTAKEN = 10
"""How often a feasible request is bypassed before what it needs is reserved, for one request of a namespace at a
time."""

FIRST_SHARE = 0.1
"""Of the budget, for a first attempt; it is often enough for a proof."""
SECOND_SHARE = 0.3
"""For a second attempt, of a request alone."""
LAST_SHARE = 0.5
"""For the plan of all that are served."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan for some pods."""

    problem: Problem
    plan: Plan

    @property
    def serves_all(self) -> bool:
        return not self.plan.unplaced

    @property
    def proves_it_cannot(self) -> bool:
        """Whether no plan serves them all."""
        return self.plan.proves_some_unservable and not self.serves_all

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why some pods are not placed, the most telling first."""
        return tuple(dict.fromkeys(reason for each in self.plan.unplaced for reason in each.reasons))

    @property
    def new_nodes(self) -> int:
        return sum(increment.delta for increment in self.plan.increments)


def attempt(scenario: Scenario, pod_sets: Sequence[PodSet], budget: Budget) -> Attempt:
    """Plan these pods in the scenario."""
    problem = problem_of(scenario, pod_sets)
    return Attempt(problem, solve(problem, budget))


def alone(scenario: Scenario, candidate: Candidate, budget: RunningBudget) -> Attempt:
    """Plan the candidate alone, with more time where a first attempt proves nothing."""
    pods = pods_of([candidate])
    found = attempt(scenario, pods, budget.next_plan(FIRST_SHARE))
    if found.serves_all or found.proves_it_cannot or budget.exhausted:
        return found
    return attempt(scenario, pods, budget.next_plan(SECOND_SHARE))


@dataclass(frozen=True, slots=True)
class Left:
    """A request that is not served now."""

    candidate: Candidate
    nodes: int = 0
    """The number of nodes it needs, where one increment may not have so many."""
    kept_for: str = ""
    """The key of the request that its capacity is reserved for."""
    reasons: tuple[str, ...] = ()
    """The planner's, the most telling first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which requests are served, and by which plan."""

    scenario: Scenario
    """Less what is reserved for requests that were bypassed too often."""
    served: tuple[Candidate, ...]
    """In the order of candidates."""
    left: tuple[Left, ...]
    found: Attempt | None
    """The plan for all that are served."""
    kept_for: tuple[str, ...] = ()
    """Keys of the requests that something is reserved for."""


def choose(ordered: Sequence[Candidate], scenario: Scenario, budget: RunningBudget) -> Choice:
    """Choose among candidates, given in their order. Those that there is no time for are in neither `served` nor
    `left`; at least one is decided."""
    return _Choosing(scenario, budget).run(ordered)


class _Choosing:
    def __init__(self, scenario: Scenario, budget: RunningBudget) -> None:
        self._all, self._scenario, self._budget = scenario, scenario, budget
        self._served: list[Candidate] = []
        self._left: list[Left] = []
        self._kept_for: list[str] = []
        self._found: Attempt | None = None

    def run(self, ordered: Sequence[Candidate]) -> Choice:
        blocks = deque(_blocks(ordered))
        while blocks and not (self._budget.exhausted and (self._served or self._left)):
            block = blocks.popleft()
            if len(block) == 1:
                self._one(block[0])
                continue
            found = self._take(block, FIRST_SHARE)
            if block[0] not in self._served:
                first = _first_unserved((*self._served, *block), found.plan) - len(self._served)
                first = len(block) // 2 if found.serves_all else max(first, 0)  # else they are too many nodes
                pieces = (block[:first], block[first : first + 1], block[first + 1 :])
                blocks.extendleft(piece for piece in reversed(pieces) if piece)
        return Choice(self._scenario, tuple(self._served), tuple(self._left), self._refined(), tuple(self._kept_for))

    def _take(self, block: Sequence[Candidate], share: float) -> Attempt:
        """Serve the block where it fits together with all that are served already."""
        found = attempt(self._scenario, pods_of((*self._served, *block)), self._budget.next_plan(share))
        self._accept(block, found)
        return found

    def _accept(self, block: Sequence[Candidate], found: Attempt) -> None:
        if found.serves_all and largest_part((*self._served, *block), found) <= LARGEST_INCREMENT:
            self._served.extend(block)
            self._found = found

    def _one(self, candidate: Candidate) -> None:
        found = self._take([candidate], FIRST_SHARE)
        if not (found.serves_all or found.proves_it_cannot or self._budget.exhausted):
            found = self._take([candidate], SECOND_SHARE)
        nodes = 0
        if found.serves_all and candidate not in self._served:
            nodes = largest_part((*self._served, candidate), found)
            self._on_fewer_nodes(candidate)
        if candidate not in self._served:
            kept_for = "" if nodes else self._waited_for(candidate)
            self._leave(Left(candidate, nodes, kept_for, found.reasons))

    def _on_fewer_nodes(self, candidate: Candidate) -> None:
        """Try larger nodes, where the cheapest are too many for one increment."""
        limits = (*self._scenario.limits, Limit("nodes of an increment", {NODES: LARGEST_INCREMENT}))
        pods = pods_of((*self._served, candidate))
        self._accept(
            [candidate], attempt(replace(self._scenario, limits=limits), pods, self._budget.next_plan(LAST_SHARE))
        )

    def _leave(self, left: Left) -> None:
        self._left.append(left)
        candidate = left.candidate
        late = candidate.overtaken >= MOST_OVERTAKEN and candidate.may_keep and not left.nodes
        if late and namespace_of(candidate.key) in map(namespace_of, self._kept_for):
            late = False  # one of a namespace at a time
        if late and alone(in_the_end(self._all), candidate, self._budget).serves_all:
            self._keep_for(candidate)

    def _waited_for(self, candidate: Candidate) -> str:
        if not self._kept_for:
            return ""
        found = attempt(self._all, pods_of((*self._served, candidate)), self._budget.next_plan(FIRST_SHARE))
        return self._kept_for[0] if found.serves_all else ""

    def _keep_for(self, candidate: Candidate) -> None:
        """Reserve what the candidate can get of its needs by now; it gets what others leave in time."""
        pod_sets = (*pods_of(self._served, priority=1), *pods_of([candidate]))
        plan = attempt(self._scenario, pod_sets, self._budget.next_plan(SECOND_SHARE)).plan
        mine = frozenset(each.index for each in plan.pod_classes if each.priority == 0)
        self._scenario = without(self._scenario, *held_alone(plan, mine))
        self._kept_for.append(candidate.key)

    def _refined(self) -> Attempt | None:
        """Return a cheaper plan for the same requests, where time is left and there may be one."""
        found = self._found
        if found is None or found.plan.certificate.status is Status.OPTIMAL or self._budget.exhausted:
            return found
        better = attempt(self._scenario, pods_of(self._served), self._budget.next_plan(LAST_SHARE))
        cheaper = better.plan.certificate.cost_usd_per_hour <= found.plan.certificate.cost_usd_per_hour
        fits = better.serves_all and largest_part(self._served, better) <= LARGEST_INCREMENT
        return better if cheaper and fits else found


def _blocks(ordered: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Yield new requests together, and those that failed before alone, so that they delay no other."""
    for fresh, alike in groupby(ordered, key=lambda each: not each.attempts):
        block = tuple(alike)
        yield from [block] if fresh else [(each,) for each in block]


def _first_unserved(ordered: Sequence[Candidate], plan: Plan) -> int:
    """Return the index of the first whose pods have no place in the plan once those before it have theirs."""
    missing = {each.pod_class: each.count for each in plan.unplaced}
    places = {each.spec: each.count - missing.get(each.index, 0) for each in plan.pod_classes}
    for number, candidate in enumerate(ordered):
        for pods in candidate.pod_sets:
            places[pods.spec] -= pods.count
            if places[pods.spec] < 0:
                return number
    return len(ordered)


def largest_part(candidates: Sequence[Candidate], found: Attempt) -> int:
    """Return the number of new nodes of the largest part; all of them where they fit into one increment."""
    if found.new_nodes <= LARGEST_INCREMENT:
        return found.new_nodes
    return max(map(len, together(assigned(candidates, found.plan).new)))


def assigned(candidates: Sequence[Candidate], plan: Plan) -> Assignment:
    """Return which candidate gets which nodes of a plan that serves them all."""
    index = {each.spec: each.index for each in plan.pod_classes}
    demands = []
    for candidate in candidates:
        pods: Counter[int] = Counter()
        for each in candidate.pod_sets:
            pods[index[each.spec]] += each.count
        demands.append((candidate.uid, pods))
    return assign(demands, plan.existing, plan.nodes)
