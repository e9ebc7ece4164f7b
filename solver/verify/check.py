"""The independent checker: every plan passes it before it leaves `solve`.

Its own code path on purpose: it reads the problem and the plan as a user would, in plain sums over plain values, and
shares nothing with the planner but the model and the eligibility rules. Here are the sums over the whole plan;
`check_nodes` looks at single nodes, `check_pods` at pods among each other. No work is done per pod.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

from solver.model import NodeGroup, Plan, PodSpec, Problem
from solver.model.errors import PlanRejectedError
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces
from solver.verify.pods import faults_between_pods

_TOLERANCE_USD = 2e-6


def check(problem: Problem, plan: Plan) -> None:
    """Raises `PlanRejectedError` naming every constraint of the problem that the plan breaks."""
    faults = list(faults_of(problem, plan))
    if faults:
        raise PlanRejectedError(faults)


def faults_of(problem: Problem, plan: Plan, *, between_pods: bool = True) -> Iterator[str]:
    """One sentence per broken constraint; nothing for a valid plan. Without `between_pods` affinity, spread and
    preferences are passed over."""
    groups = {group.id: group for group in problem.node_groups}
    unknown = [*_unknown(problem, plan, groups)]
    if unknown:  # what does not exist cannot be judged
        yield from unknown
        return
    places = CheckedPlaces(problem, plan)
    yield from _classes(problem, plan, places)
    yield from faults_on_nodes(problem, places)
    if between_pods:
        yield from faults_between_pods(problem, plan, places)
    yield from _sizes(plan, groups)
    yield from _limits(problem, plan, groups)
    yield from _gangs(plan)
    yield from _certificate(plan, groups)
    yield from _objective(problem, plan, groups)


def _unknown(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    """Whatever the plan names must exist, and nodes that stand are named once."""
    strangers = {nodes.node_group for nodes in plan.nodes} | {each.node_group for each in plan.increments}
    if strangers - set(groups):
        yield f"nodes of unknown groups {sorted(strangers - set(groups))}"
    standing = {node.name for node in problem.nodes}
    for name, times in Counter(placed.node for placed in plan.existing).items():
        if times > 1 or name not in standing:
            yield f"node {name}: given {times} times, or not standing"
    if [cls.index for cls in plan.pod_classes] != list(range(len(plan.pod_classes))):
        yield "the pod classes are not numbered in order"
    named = {unplaced.pod_class for unplaced in plan.unplaced}
    named.update(
        index for pods in chain((n.pods for n in plan.nodes), (n.pods for n in plan.existing)) for index in pods
    )
    for index in sorted(named - set(range(len(plan.pod_classes)))):
        yield f"class {index}: pods of a class that does not exist"


def _classes(problem: Problem, plan: Plan, places: CheckedPlaces) -> Iterator[str]:
    # Equal specs are mostly one object: they are compared by value once per object.
    numbers: dict[PodSpec, int] = {}
    known: dict[int, int] = {}

    def number(spec: PodSpec) -> int:
        if id(spec) not in known:
            known[id(spec)] = numbers.setdefault(spec, len(numbers))
        return known[id(spec)]

    asked: Counter[object] = Counter()
    for pods in problem.pod_sets:
        asked[number(pods.spec), pods.priority, pods.gang, pods.placeholder] += pods.count
    told: Counter[object] = Counter()
    for cls in plan.pod_classes:
        told[number(cls.spec), cls.priority, cls.gang, cls.placeholder] += cls.count
    if +asked != +told:
        yield "the pod classes are not the problem's pods"
    left: Counter[int] = Counter()
    for unplaced in plan.unplaced:
        left[unplaced.pod_class] += unplaced.count
        if unplaced.count < 1:
            yield f"class {unplaced.pod_class}: {unplaced.count} pods reported as unplaced"
    for cls in plan.pod_classes:
        accounted = places.placed[cls.index] + left[cls.index]
        if accounted != cls.count:
            yield f"class {cls.index} ({cls.example}): {cls.count} pods, but {accounted} are accounted for"


def _sizes(plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    deltas: Counter[str] = Counter()
    for nodes in plan.nodes:
        deltas[nodes.node_group] += nodes.count
    if dict(deltas) != {i.node_group: i.delta for i in plan.increments}:
        yield "the increments do not add up to the nodes"
    for group in groups.values():
        delta = deltas[group.id]
        if delta and group.target_size + delta > group.max_size:
            yield f"{group.id}: {group.target_size} + {delta} nodes, at most {group.max_size} allowed"


def _limits(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    for limit in problem.limits:
        taken: Counter[str] = Counter()
        for increment in plan.increments:
            if limit.node_groups is None or increment.node_group in limit.node_groups:
                for resource, amount in groups[increment.node_group].counted_capacity.items():
                    taken[resource] += amount * increment.delta
        for resource, most in limit.maxima.items():
            total = limit.used.get(resource, 0) + taken[resource]
            if taken[resource] and total > most:
                yield f"limit {limit.name}: {total} {resource}, at most {most} allowed"


def _gangs(plan: Plan) -> Iterator[str]:
    left: Counter[int] = Counter()
    for unplaced in plan.unplaced:
        left[unplaced.pod_class] += unplaced.count
    shares: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for cls in plan.pod_classes:
        if cls.gang is not None:
            shares[cls.gang].append((cls.count, left[cls.index]))
    for gang, parts in shares.items():
        if any(missing for _, missing in parts) and any(missing != count for count, missing in parts):
            yield f"gang {gang} is served in part"


def _certificate(plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    told = plan.certificate
    costs: dict[int, float] = defaultdict(float)
    for increment in plan.increments:
        group = groups[increment.node_group]
        costs[group.weight] += group.price_usd_per_hour * increment.delta
    total = math.fsum(costs.values())
    nodes = sum(increment.delta for increment in plan.increments)
    tolerance = _TOLERANCE_USD * max(1, nodes)
    if abs(told.cost_usd_per_hour - total) > tolerance:
        yield f"cost {told.cost_usd_per_hour}, but the nodes cost {total}"
    for tier in told.tiers:
        if abs(tier.cost_usd_per_hour - costs.get(tier.weight, 0.0)) > tolerance:
            yield f"tier {tier.weight} costs {costs.get(tier.weight, 0.0)}, not {tier.cost_usd_per_hour}"
        if tier.lower_bound_usd_per_hour > tier.cost_usd_per_hour + tolerance:
            yield f"tier {tier.weight}: lower bound {tier.lower_bound_usd_per_hour} above cost {tier.cost_usd_per_hour}"
    if told.lower_bound_usd_per_hour > told.cost_usd_per_hour + tolerance:
        yield f"lower bound {told.lower_bound_usd_per_hour} above cost {told.cost_usd_per_hour}"


def _objective(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    """The vector that the plan tells against what it does, most important stage first. How long pods have waited is
    passed over: the planner may count it in steps."""
    told = plan.objective
    left: Counter[tuple[bool, int]] = Counter()
    for unplaced in plan.unplaced:
        cls = plan.pod_classes[unplaced.pod_class]
        left[cls.placeholder, 0 if cls.placeholder else cls.priority] += unplaced.count
    real = sorted({cls.priority for cls in plan.pod_classes if not cls.placeholder}, reverse=True)
    stages: list[tuple[str, float | None]] = []
    for priority in real:
        stages += [(f"unserved at priority {priority}", left[False, priority]), ("waiting", None)]
    if any(cls.placeholder for cls in plan.pod_classes):
        stages.append(("placeholders", left[True, 0]))
    given_up = sum(relaxed.count * len(relaxed.preferences) for relaxed in plan.relaxed)
    deltas = {increment.node_group: increment.delta for increment in plan.increments}
    costs = [
        (f"cost of tier {weight}", math.fsum(g.price_usd_per_hour * deltas.get(g.id, 0) for g in tier))
        for weight, tier in ((w, [g for g in groups.values() if g.weight == w]) for w in _weights(groups))
    ]
    last: list[tuple[str, float | None]] = [*costs, ("nodes", sum(deltas.values()))]
    if problem.previous is not None:
        before = {increment.node_group: increment.delta for increment in problem.previous.increments}
        last.append(("disruption", sum(abs(deltas.get(name, 0) - before.get(name, 0)) for name in groups)))
    if given_up or len(told) > len(stages) + len(last):
        stages.append(("preferences given up", given_up))
    stages += last
    if len(stages) != len(told):
        yield f"the objective has {len(told)} stages, not {len(stages)}: {[name for name, _ in stages]}"
        return
    tolerance = _TOLERANCE_USD * max(1, sum(deltas.values()))
    for (name, value), found in zip(stages, told, strict=True):
        if value is not None and abs(value - found) > tolerance:
            yield f"the objective reports {found} as {name}, found {value}"


def _weights(groups: Mapping[str, NodeGroup]) -> list[int]:
    return sorted({group.weight for group in groups.values()})
