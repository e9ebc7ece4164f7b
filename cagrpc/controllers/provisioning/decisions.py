"""Decides ProvisioningRequests: which are served whole, by which nodes, why others are not, and what would help. Pure;
`deciding` orders, `controller` writes.

Requests are served by priority, then in turn: an earlier one is never given up for a later one. Most often all can be
served, so that is tried first. Where not, the plan shows the first request that it does not serve: that one is tried
alone, and those before and after it together. Requests that are served already are planned again with those that are
tried, so that no place that they could leave is in the way.

Requests whose pods share a new node are one increment, whole or not at all. So nodes are assigned request by request,
whole ones first, so that few are shared; nothing in that is per pod."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from cagrpc.cluster.connected import connected
from cagrpc.cluster.drop_invalid import faults
from cagrpc.cluster.shortages import Shortage, backed_off, could_hold
from cagrpc.controllers.provisioning.model import Candidate, namespace_of
from cagrpc.controllers.provisioning.progress import Granted, Refused
from cagrpc.controllers.provisioning.scenario import (
    Scenario,
    emptied,
    held_alone,
    in_the_end,
    pods_of,
    problem_of,
    why_no_room,
    without,
    without_faults,
)
from cagrpc.errors import in_one_line
from cagrpc.fleet.model import LARGEST_INCREMENT, Placement
from cagrpc.fleet.provisioners import Widen
from solver import solve
from solver.explanation.explain import explain_unserved
from solver.explanation.model import sentence
from solver.explanation.waiting import MORE_TIME, MOST_WAYS, ways_of
from solver.explanation.waiting import OUT_OF_TIME as NOT_EXPLAINED
from solver.model import (
    NODES,
    Budget,
    Certificate,
    Limit,
    NodeGroup,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodSet,
    Problem,
    Status,
)
from solver.model.budget import RunningBudget
from solver.model.capacity import after_plan
from solver.model.plan import gap
from solver.model.quantities import pluralize
from solver.planning.reasons import OUT_OF_TIME
from solver.reduction.objective import dollars

MOST_AT_ONCE = 128
"""Candidates that are decided together; others wait for the next time."""

_MOST_BYPASSED = 10
"""How often a feasible request is bypassed before what it needs is reserved, for one request of a namespace at a
time."""
_FIRST_SHARE = 0.1
"""Of the budget, for a first attempt; it is often enough for a proof."""
_SECOND_SHARE = 0.3
"""For a second attempt, of a request alone."""
_LAST_SHARE = 0.5
"""For the plan of all that are served."""
_CHOOSING_UNTIL = 0.85
"""The share of the budget for choosing; the rest is for reasons."""
_MOST_REASONS = 2
_EXPLAIN_SHARE = 0.2
"""Of the budget, for one request."""
_FIT_SHARE = 0.05
_MOST_EXPLAINED = 2_000
"""Nodes and node groups together, above which only the planner's own reasons are given."""


@dataclass(frozen=True, slots=True)
class RequestPart:
    """New nodes of one increment: no other part has a request in common with it."""

    uids: tuple[str, ...]
    """Requests, in the order in which they are served."""
    deltas: Mapping[str, int]
    """Node group -> new nodes."""
    placements: tuple[Placement, ...]
    """Each new node, with the requests that have pods there."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No other nodes beside those of the other parts serve these requests for less."""
    gap: float | None
    """(cost - lower bound) / cost; None where nothing is proven."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions about candidates. Each is in one of `served` and `refused`, except those that there was no time
    for."""

    parts: tuple[RequestPart, ...] = ()
    on_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of requests that are served, the existing nodes that some of their pods go to; sorted."""
    served: frozenset[str] = frozenset()
    refused: Mapping[str, Refused] = field(default_factory=dict)
    """Why not, in a sentence, and what would help: not now; not before shortages are over that they would be served
    without; or never (`final`), even with all node groups empty and no limit used."""
    kept_for: tuple[str, ...] = ()
    """Keys of requests that were bypassed too often: what they need is reserved for them."""


def decide(
    candidates: Sequence[Candidate],
    scenario: Scenario,
    budget: Budget,
    widen: Widen | None = None,
) -> Decisions:
    """Decide atomic requests: each whole or not at all, the highest priority first, then by turn, then the oldest. With
    `widen` the reasons include what would help, node groups among it that could be there."""
    scenario = without_faults(scenario)
    refused: dict[str, Refused] = {}
    ordered = []
    for candidate in sorted(candidates, key=_rank)[:MOST_AT_ONCE]:
        wrong = faults(Problem(tuple(pods_of([candidate]))))
        if wrong:
            refused[candidate.uid] = Refused(in_one_line(wrong), final=True)
        else:
            ordered.append(candidate)
    running = RunningBudget(budget)
    choice = _Choosing(scenario, replace(running, until=_CHOOSING_UNTIL)).run(ordered)
    parts: tuple[RequestPart, ...] = ()
    on_nodes: dict[str, tuple[str, ...]] = {}
    found = choice.found
    if found is not None:
        given = _assigned(choice.served, found.plan)
        on_nodes = dict(given.on_nodes)
        groups = {group.id: group for group in scenario.groups}
        parts = tuple(_part(nodes, choice, groups, found.plan.certificate) for nodes in _together(given.new))
    for each in sorted(choice.left, key=lambda left: _rank(left.candidate)):
        early = each.candidate.early
        why = Refused("", early=True) if early else _refused(each, choice, scenario, running, widen)
        bypassed = not why.final and _is_bypassed(each, choice, scenario, running)
        refused[each.candidate.uid] = replace(why, bypassed=bypassed)
    served = frozenset(candidate.uid for candidate in choice.served)
    return Decisions(parts, on_nodes, served, refused, choice.kept_for)


def _refused(left: Left, choice: Choice, scenario: Scenario, budget: RunningBudget, widen: Widen | None) -> Refused:
    """Return the refusal, with its reason."""
    never = "" if budget.exhausted else _never(left.candidate, scenario, budget, widen)
    if never:
        return Refused(never, final=True)
    waits_for = _shortages_of(left, choice)
    if waits_for and _would_be_served(left, choice, budget):
        why = f"{backed_off(waits_for)}; with {_them(waits_for)} the whole request would fit"
        return Refused(why, until_seconds=min(each.until_seconds for each in waits_for))
    return Refused(_why_left(left, choice, budget, waits_for, widen=widen))


def _is_bypassed(left: Left, choice: Choice, scenario: Scenario, budget: RunningBudget) -> bool:
    """Return whether younger requests are served while it waits, and it could be served one day; no more is counted
    than what makes it late."""
    candidate = left.candidate
    younger = any(_rank(candidate) < _rank(other) for other in choice.served)
    counts = younger and candidate.bypassed < _MOST_BYPASSED and not budget.exhausted
    return counts and _one_day(scenario, candidate, budget)


def _rank(candidate: Candidate) -> tuple[int, int, float, str]:
    return -candidate.priority, candidate.turn, candidate.created_at_seconds, candidate.uid


def _part(
    nodes: Sequence[Placement], choice: Choice, groups: Mapping[str, NodeGroup], certificate: Certificate
) -> RequestPart:
    """Return one part. Its gap in dollars is no more than the whole plan's: any saving here would be one of the
    whole."""
    deltas = Counter(node.node_group for node in nodes)
    owners = {uid for node in nodes for uid in node.requests}
    cost = dollars(groups[group_id].price_usd_per_hour * count for group_id, count in deltas.items())
    too_much = certificate.cost_usd_per_hour - certificate.lower_bound_usd_per_hour
    bound = max(0.0, cost - too_much)
    return RequestPart(
        tuple(candidate.uid for candidate in choice.served if candidate.uid in owners),
        dict(sorted(deltas.items())),
        tuple(nodes),
        cost,
        bound,
        gap(cost, bound),
    )


def _never(candidate: Candidate, scenario: Scenario, budget: RunningBudget, widen: Widen | None) -> str:
    """Return why it can never be served; empty where that is not proved."""
    found = _alone(emptied(scenario), candidate, budget)
    if not found.proves_it_cannot:
        return ""
    return _message(found.problem, candidate, "with all node groups empty and no limit used", budget, widen)


def check(candidate: Candidate, scenario: Scenario, budget: Budget) -> Granted | Refused:
    """Return whether all its pods fit on existing nodes, and where. What is said is like `16 of 16 pods fit`, or
    `12 of 16 fit: needs 4 cpu, at most 2 is free (3 of 5 nodes)`."""
    wrong = faults(Problem(tuple(pods_of([candidate]))))
    if wrong:
        return Refused(in_one_line(wrong))
    scenario = replace(without_faults(scenario), groups=(), limits=())
    found = _alone(scenario, candidate, RunningBudget(budget))
    pods = sum(each.count for each in candidate.pod_sets)
    if found.serves_all:
        return Granted(f"{pods} of {pods} fit", frozenset(placed.node for placed in found.plan.existing))
    missing = sum(each.count for each in found.plan.unplaced)
    return Refused(f"{pods - missing} of {pods} fit: {'; '.join(found.reasons[:_MOST_REASONS])}")


def _shortages_of(left: Left, choice: Choice) -> list[Shortage]:
    """Return the shortages of the offerings that its pods could run on, each once; none where the request itself is
    held back."""
    if left.kept_for or left.nodes:
        return []
    specs = dict.fromkeys(pods.spec for pods in left.candidate.pod_sets)
    groups = {group.id: group for group in choice.scenario.groups}
    short = ((groups[name], each) for name, each in choice.scenario.short.items() if name in groups)
    return list(dict.fromkeys(each for group, each in short if any(could_hold(group, spec) for spec in specs)))


def _would_be_served(left: Left, choice: Choice, budget: RunningBudget) -> bool:
    """Return whether it would be served beside those that are, with the offerings that are left out."""
    problem = replace(_rest(choice, with_short=True), pod_sets=tuple(pods_of([left.candidate])), previous=None)
    return not solve(problem, budget.next_plan(_FIRST_SHARE)).unplaced


def _them(shortages: Sequence[Shortage]) -> str:
    return "it" if len(shortages) == 1 else "them"


def _rest(choice: Choice, *, with_short: bool) -> Problem:
    """Return what is left beside those that are served, with or without the offerings that are left out."""
    scenario = replace(choice.scenario, short={}) if with_short else choice.scenario
    found, problem = choice.found, problem_of(scenario, ())
    if found is None:
        return problem
    whole = replace(found.problem, node_groups=problem.node_groups)
    return after_plan(whole, found.plan, range(len(found.plan.pod_classes)))


def _why_left(
    left: Left,
    choice: Choice,
    budget: RunningBudget,
    shortages: Sequence[Shortage] = (),
    *,
    widen: Widen | None = None,
) -> str:
    """Return why it is not served now, and what would serve it beside those that are. It would not be served with the
    offerings either that are left out after `shortages`: what is said counts these as there."""
    if left.kept_for:
        bypassed = f"which younger requests have bypassed {_MOST_BYPASSED} times"
        return f"what it needs is reserved for {left.kept_for}, {bypassed}"
    if left.nodes:
        return (
            f"it takes {left.nodes} new nodes that must come together, and one increment has at most"
            f" {LARGEST_INCREMENT}; ask for less, or allow larger nodes"
        )
    if budget.exhausted:
        return "; ".join(left.reasons[:_MOST_REASONS]) or OUT_OF_TIME
    text = _message(_rest(choice, with_short=bool(shortages)), left.candidate, "now", budget, widen)
    return f"{backed_off(shortages)}; even with {_them(shortages)} {text}" if shortages else text


def _message(scenario: Problem, candidate: Candidate, when: str, budget: RunningBudget, widen: Widen | None) -> str:
    """Return the message, such as `7 of 8 pods fit now (7 of 8 of ns/workers): node group b is at its maximum size 9.
    What would serve all of them: raise maxSize of b from 9 to 10`."""
    pods = sum(each.count for each in candidate.pod_sets)
    problem = replace(scenario, pod_sets=tuple(pods_of([candidate])), previous=None)
    apart = Attempt(problem, solve(problem, budget.next_plan(_FIT_SHARE)))
    missing = sum(each.count for each in apart.plan.unplaced)
    if not missing:
        return f"the whole request would fit {when}, but {OUT_OF_TIME}"
    lacking = ", ".join(_lacking(candidate, apart.plan)) if len(candidate.pod_sets) > 1 else ""
    text = f"{pods - missing} of {pluralize(pods, 'pod')} fit {when}{f' ({lacking})' if lacking else ''}"
    text += f": {'; '.join(apart.reasons[:_MOST_REASONS])}"
    return text if widen is None else sentence(text, _ways(scenario, candidate, budget, widen))


def _lacking(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Yield how many pods fit of each pod set that is short; of equal pod sets the last is short first."""
    missing = Counter({plan.pod_classes[each.pod_class].spec: each.count for each in plan.unplaced})
    found = []
    for pods in reversed(candidate.pod_sets):
        short = min(missing[pods.spec], pods.count)
        missing[pods.spec] -= short
        if short:
            found.append(f"{pods.count - short} of {pods.count} of {pods.name}")
    yield from reversed(found)


def _ways(scenario: Problem, candidate: Candidate, budget: RunningBudget, widen: Widen) -> tuple[str, ...]:
    """Return what would serve it; never empty."""
    if budget.exhausted or len(scenario.nodes) + len(scenario.node_groups) > _MOST_EXPLAINED:
        return (NOT_EXPLAINED,)
    problem = replace(scenario, pod_sets=tuple(pods_of([candidate], gang=candidate.key)), previous=None)
    plan = solve(problem, budget.next_plan(_FIT_SHARE))
    found = explain_unserved(widen(problem, plan), plan, budget.next_plan(_EXPLAIN_SHARE))
    return next((ways_of(each)[:MOST_WAYS] for each in found), (MORE_TIME if not plan.unplaced else NOT_EXPLAINED,))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The nodes of every request."""

    on_nodes: Mapping[str, tuple[str, ...]]
    """UID -> names of existing nodes, sorted. Only requests with pods there."""
    new: tuple[Placement, ...]


def _assigned(candidates: Sequence[Candidate], plan: Plan) -> Assignment:
    """Return which candidate gets which nodes of a plan that serves them all, in the order in which they are served:
    existing nodes go to the first. New nodes without pods go with others of their group."""
    index = {each.spec: each.index for each in plan.pod_classes}
    standing, pool = _Standing(plan.existing), _Pool(plan.nodes)
    on_nodes: dict[str, tuple[str, ...]] = {}
    new: list[Placement] = []
    for candidate in candidates:
        need: Counter[int] = Counter()
        for pods in candidate.pod_sets:
            need[index[pods.spec]] += pods.count
        if used := standing.take(need):
            on_nodes[candidate.uid] = used
        whole = pool.whole(need)
        new.extend(Placement(of.node_group, requests=(candidate.uid,), domain=of.domain) for of in whole)
        pool.shared(candidate.uid, need)
    new.extend(Placement(each.of.node_group, requests=tuple(each.uids), domain=each.of.domain) for each in pool.begun)
    return Assignment(on_nodes, (*new, *_spare(plan.nodes, new)))


class _Standing:
    """Room on existing nodes, class by class."""

    def __init__(self, existing: Sequence[PlacedOnNode]) -> None:
        self._room: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for placed in reversed(existing):  # taken from the end
            for who, count in placed.pods.items():
                self._room[who].append((placed.node, count))

    def take(self, need: Counter[int]) -> tuple[str, ...]:
        """Return the names of nodes with room for the need, and subtract from it what fits there."""
        names: set[str] = set()
        for who in need:
            room = self._room[who]
            while room and need[who]:
                name, count = room.pop()
                taken = min(count, need[who])
                need[who] -= taken
                names.add(name)
                if taken < count:
                    room.append((name, count - taken))
        return tuple(sorted(names))


@dataclass(slots=True)
class _Alike:
    """Equal new nodes that are not assigned yet."""

    of: PlannedNodes
    left: int


@dataclass(slots=True)
class _Begun:
    """A new node that its first owner does not fill."""

    of: PlannedNodes
    room: Counter[int]
    uids: list[str] = field(default_factory=list)


class _Pool:
    """New nodes; equal ones are together until they are assigned."""

    def __init__(self, nodes: Sequence[PlannedNodes]) -> None:
        found = [_Alike(each, each.count) for each in nodes if each.pods]
        self._alike = sorted(found, key=lambda each: -sum(each.of.pods.values()))
        self.begun: list[_Begun] = []

    def whole(self, need: Counter[int]) -> Iterator[PlannedNodes]:
        """Yield what every node is like that the need fills alone, and subtract its pods from the need. The fullest
        come first, so that few pods are left for shared nodes."""
        for each in self._alike:
            taken = min([each.left, *(need[who] // count for who, count in each.of.pods.items())])
            if taken:
                each.left -= taken
                need.subtract({who: taken * count for who, count in each.of.pods.items()})
                yield from [each.of] * taken

    def shared(self, uid: str, need: Counter[int]) -> None:
        """Assign the rest of a need: to nodes that others have begun, then to new ones."""
        while any(need.values()):
            node = max(self.begun, key=lambda each: _common(each.room, need), default=None)
            if node is None or not _common(node.room, need):
                node = self._begin(need)
            taken = Counter({who: min(count, need[who]) for who, count in node.room.items()})
            node.room -= taken
            need.subtract(taken)
            node.uids.append(uid)

    def _begin(self, need: Mapping[int, int]) -> _Begun:
        """Begin the node of which the need takes most, and leaves least to others."""
        open_ones = (each for each in self._alike if each.left)
        best = max(open_ones, key=lambda each: (_common(each.of.pods, need), -sum(each.of.pods.values())))
        best.left -= 1
        self.begun.append(_Begun(best.of, Counter(best.of.pods)))
        return self.begun[-1]


def _common(room: Mapping[int, int], need: Mapping[int, int]) -> int:
    return sum(min(count, need.get(who, 0)) for who, count in room.items())


def _spare(nodes: Sequence[PlannedNodes], new: Sequence[Placement]) -> Iterator[Placement]:
    """Yield nodes without pods, each for the requests of the first node of its group and domain, or of the first node
    at all; none where nobody gets a new node, as minimum sizes are the fleet's."""
    if not new:
        return
    owners: dict[tuple[str, str], tuple[str, ...]] = {}
    for node in new:
        owners.setdefault((node.node_group, node.domain), node.requests)
    for each in nodes:
        if not each.pods:
            uids = owners.get((each.node_group, each.domain), new[0].requests)
            yield from [Placement(each.node_group, requests=uids, domain=each.domain)] * each.count


def _together(new: Sequence[Placement]) -> list[tuple[Placement, ...]]:
    """Return the smallest sets of new nodes that have no request in common."""
    owners = list(dict.fromkeys(node.requests for node in new))  # as many as ways to share, not one per node
    part_of = {owners[position]: number for number, part in enumerate(connected(owners)) for position in part}
    found: defaultdict[int, list[Placement]] = defaultdict(list)
    for node in new:
        found[part_of[node.requests]].append(node)
    return [tuple(found[number]) for number in sorted(found)]


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
        """Return whether no plan serves them all."""
        return self.plan.proves_some_unservable and not self.serves_all

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why some pods are not placed, the most telling first."""
        return tuple(dict.fromkeys(reason for each in self.plan.unplaced for reason in each.reasons))

    @property
    def new_nodes(self) -> int:
        return sum(increment.delta for increment in self.plan.increments)


def _attempt(scenario: Scenario, pod_sets: Sequence[PodSet], budget: Budget) -> Attempt:
    """Plan these pods in the scenario."""
    problem = problem_of(scenario, pod_sets)
    return Attempt(problem, solve(problem, budget))


def _alone(scenario: Scenario, candidate: Candidate, budget: RunningBudget) -> Attempt:
    """Plan the candidate alone, with more time where a first attempt proves nothing."""
    pods = pods_of([candidate])
    found = _attempt(scenario, pods, budget.next_plan(_FIRST_SHARE))
    if found.serves_all or found.proves_it_cannot or budget.exhausted:
        return found
    return _attempt(scenario, pods, budget.next_plan(_SECOND_SHARE))


def _one_day(scenario: Scenario, candidate: Candidate, budget: RunningBudget) -> bool:
    """Return whether the candidate would be served alone once other requests are finished."""
    later = in_the_end(scenario)
    return not why_no_room(later, candidate) and _alone(later, candidate, budget).serves_all


@dataclass(frozen=True, slots=True)
class Left:
    """A request that is not served now."""

    candidate: Candidate
    nodes: int = 0
    """The number of nodes it needs, where one increment may not have so many."""
    kept_for: str = ""
    """The key of the request that its capacity is reserved for."""
    reasons: tuple[str, ...] = ()
    """The planner's, the most telling first; or that counting is enough to see that there is no room."""


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


class _Choosing:
    """Chooses among candidates, one at least. Those that there is no time for are neither served nor left."""

    def __init__(self, scenario: Scenario, budget: RunningBudget) -> None:
        self._all, self._scenario, self._budget = scenario, scenario, budget
        self._no_room: Mapping[str, str] = {}
        """By UID, why there is no room for a candidate whatever is planned."""
        self._served: list[Candidate] = []
        self._left: list[Left] = []
        self._kept_for: list[str] = []
        self._found: Attempt | None = None

    def run(self, ordered: Sequence[Candidate]) -> Choice:
        self._no_room = {each.uid: why for each in ordered if (why := why_no_room(self._all, each))}
        planned = []
        for each in ordered:  # what late ones need is reserved in their turn
            if each.uid in self._no_room and not _is_late(each):
                self._one(each)
            else:
                planned.append(each)
        blocks = deque(_blocks(planned, self._no_room))
        while blocks and not (self._budget.exhausted and (self._served or self._left)):
            block = blocks.popleft()
            if len(block) == 1:
                self._one(block[0])
                continue
            found = self._take(block, _FIRST_SHARE)
            if block[0] not in self._served:
                first = _first_unserved((*self._served, *block), found.plan) - len(self._served)
                first = len(block) // 2 if found.serves_all else max(first, 0)  # else they are too many nodes
                pieces = (block[:first], block[first : first + 1], block[first + 1 :])
                blocks.extendleft(piece for piece in reversed(pieces) if piece)
        return Choice(self._scenario, tuple(self._served), tuple(self._left), self._refined(), tuple(self._kept_for))

    def _take(self, block: Sequence[Candidate], share: float) -> Attempt:
        """Serve the block where it fits together with all that are served already."""
        found = _attempt(self._scenario, pods_of((*self._served, *block)), self._budget.next_plan(share))
        self._accept(block, found)
        return found

    def _accept(self, block: Sequence[Candidate], found: Attempt) -> None:
        if found.serves_all and _largest_part((*self._served, *block), found) <= LARGEST_INCREMENT:
            self._served.extend(block)
            self._found = found

    def _one(self, candidate: Candidate) -> None:
        if candidate.uid in self._no_room:
            self._leave(Left(candidate, reasons=(self._no_room[candidate.uid],)))
            return
        found = self._take([candidate], _FIRST_SHARE)
        if not (found.serves_all or found.proves_it_cannot or self._budget.exhausted):
            found = self._take([candidate], _SECOND_SHARE)
        nodes = 0
        if found.serves_all and candidate not in self._served:
            nodes = _largest_part((*self._served, candidate), found)
            self._on_fewer_nodes(candidate)
        if candidate not in self._served:
            kept_for = "" if nodes else self._waited_for(candidate)
            self._leave(Left(candidate, nodes, kept_for, found.reasons))

    def _on_fewer_nodes(self, candidate: Candidate) -> None:
        """Try larger nodes, where the cheapest are too many for one increment."""
        limits = (*self._scenario.limits, Limit("nodes of an increment", {NODES: LARGEST_INCREMENT}))
        pods = pods_of((*self._served, candidate))
        self._accept(
            [candidate], _attempt(replace(self._scenario, limits=limits), pods, self._budget.next_plan(_LAST_SHARE))
        )

    def _leave(self, left: Left) -> None:
        self._left.append(left)
        candidate = left.candidate
        late = _is_late(candidate) and not left.nodes
        if late and namespace_of(candidate.key) in map(namespace_of, self._kept_for):
            late = False  # one of a namespace at a time
        if late and _one_day(self._all, candidate, self._budget):
            self._keep_for(candidate)

    def _waited_for(self, candidate: Candidate) -> str:
        if not self._kept_for:
            return ""
        found = _attempt(self._all, pods_of((*self._served, candidate)), self._budget.next_plan(_FIRST_SHARE))
        return self._kept_for[0] if found.serves_all else ""

    def _keep_for(self, candidate: Candidate) -> None:
        """Reserve what the candidate can get of its needs by now; it gets what others leave in time."""
        pod_sets = (*pods_of(self._served, priority=1), *pods_of([candidate]))
        plan = _attempt(self._scenario, pod_sets, self._budget.next_plan(_SECOND_SHARE)).plan
        mine = frozenset(each.index for each in plan.pod_classes if each.priority == 0)
        self._scenario = without(self._scenario, *held_alone(plan, mine))
        self._kept_for.append(candidate.key)

    def _refined(self) -> Attempt | None:
        """Return a cheaper plan for the same requests, where time is left and there may be one."""
        found = self._found
        if found is None or found.plan.certificate.status is Status.OPTIMAL or self._budget.exhausted:
            return found
        better = _attempt(self._scenario, pods_of(self._served), self._budget.next_plan(_LAST_SHARE))
        cheaper = better.plan.certificate.cost_usd_per_hour <= found.plan.certificate.cost_usd_per_hour
        fits = better.serves_all and _largest_part(self._served, better) <= LARGEST_INCREMENT
        return better if cheaper and fits else found


def _is_late(candidate: Candidate) -> bool:
    """Return whether it was bypassed so often that what it needs may be reserved for it."""
    return candidate.bypassed >= _MOST_BYPASSED and candidate.may_keep


def _blocks(ordered: Sequence[Candidate], apart: Collection[str]) -> Iterator[Sequence[Candidate]]:
    """Yield new requests together, and alone those that failed before, so that they delay no other, and those whose
    UIDs are in `apart`."""
    for fresh, alike in groupby(ordered, key=lambda each: not each.attempts and each.uid not in apart):
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


def _largest_part(candidates: Sequence[Candidate], found: Attempt) -> int:
    """Return the number of new nodes of the largest part; all of them where they fit into one increment."""
    if found.new_nodes <= LARGEST_INCREMENT:
        return found.new_nodes
    return max(map(len, _together(_assigned(candidates, found.plan).new)))
