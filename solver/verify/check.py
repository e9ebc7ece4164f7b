"""The independent checker: `solve` returns no plan that has not passed it.

A code path of its own on purpose: it reads the problem and the plan as a user would, in plain sums over plain values,
and shares nothing with the planner but the model's values. The sums over the whole plan are here; `filters` judges what
may be where, `nodes` checks single nodes, `terms` the constraints between pods. No work is done per pod.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from solver.model import HOSTNAME, Node, NodeGroup, Operator, Plan, PodAffinityTerm, PodSpec, Problem
from solver.model.errors import PlanRejectedError
from solver.model.objective import Goal, ObjectiveStage
from solver.verify.claims import required_affinity
from solver.verify.filters import counts
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces
from solver.verify.terms import faults_between_pods

_TOLERANCE_USD = 2e-6


def check(problem: Problem, plan: Plan) -> None:
    """Raise `PlanRejectedError` naming every constraint of the problem that the plan breaks."""
    faults = list(faults_of(problem, plan))
    if faults:
        raise PlanRejectedError(faults)


def faults_of(problem: Problem, plan: Plan) -> Iterator[str]:
    """Yield one sentence per broken constraint; nothing for a valid plan."""
    groups = {group.id: group for group in problem.node_groups}
    unknown = [*_unknown(problem, plan, groups)]
    if unknown:  # the other checks expect that everything named exists
        yield from unknown
        return
    places = CheckedPlaces(problem, plan)
    yield from _classes(problem, plan, places)
    yield from faults_on_nodes(problem, places)
    yield from faults_between_pods(problem, plan, places)
    yield from _sizes(plan, groups)
    yield from _limits(problem, plan, groups)
    yield from _gangs(plan)
    yield from _certificate(plan, groups)
    yield from _objective(problem, plan, groups)


def _unknown(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    """Yield what the plan names and the problem lacks, and existing nodes that are named twice."""
    named_groups = {nodes.node_group for nodes in plan.nodes} | {each.node_group for each in plan.increments}
    if named_groups - set(groups):
        yield f"nodes of unknown groups {sorted(named_groups - set(groups))}"
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
    reported: Counter[object] = Counter()
    for cls in plan.pod_classes:
        reported[number(cls.spec), cls.priority, cls.gang, cls.placeholder] += cls.count
    if +asked != +reported:
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
    of_domains: Counter[tuple[str, str]] = Counter()
    for nodes in plan.nodes:
        if nodes.domain:
            of_domains[nodes.node_group, nodes.domain] += nodes.count
    for (group_id, domain), count in of_domains.items():
        new = groups[group_id].new_domains
        if new is None or count > new.most_nodes:
            most = 0 if new is None else new.most_nodes
            yield f"{group_id}: {count} nodes in its new domain {domain}, at most {most} allowed"
    for group in groups.values():
        delta = deltas[group.id]
        if delta and group.target_size + delta > group.max_size:
            yield f"{group.id}: {group.target_size} + {delta} nodes, at most {group.max_size} allowed"


def _limits(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    for limit in problem.limits:
        taken: Counter[str] = Counter()
        for increment in plan.increments:
            for resource, amount in limit.counted(groups[increment.node_group]).items():
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
    certificate = plan.certificate
    costs: dict[int, float] = defaultdict(float)
    for increment in plan.increments:
        group = groups[increment.node_group]
        costs[group.weight] += group.price_usd_per_hour * increment.delta
    total = math.fsum(costs.values())
    nodes = sum(increment.delta for increment in plan.increments)
    tolerance = _TOLERANCE_USD * max(1, nodes)
    if abs(certificate.cost_usd_per_hour - total) > tolerance:
        yield f"cost {certificate.cost_usd_per_hour}, but the nodes cost {total}"
    for tier in certificate.tiers:
        if abs(tier.cost_usd_per_hour - costs.get(tier.weight, 0.0)) > tolerance:
            yield f"tier {tier.weight} costs {costs.get(tier.weight, 0.0)}, not {tier.cost_usd_per_hour}"
        if tier.lower_bound_usd_per_hour > tier.cost_usd_per_hour + tolerance:
            yield f"tier {tier.weight}: lower bound {tier.lower_bound_usd_per_hour} above cost {tier.cost_usd_per_hour}"
    if certificate.lower_bound_usd_per_hour > certificate.cost_usd_per_hour + tolerance:
        yield f"lower bound {certificate.lower_bound_usd_per_hour} above cost {certificate.cost_usd_per_hour}"


def _objective(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    """Compare the objective that the plan reports with what the plan does, stage by stage, the most important first.
    Waiting times are not compared: the planner may count them in steps."""
    found = {**_pod_stages(plan), **_node_stages(problem, plan, groups)}
    if list(found) != [each.stage for each in plan.objective]:
        reported = ", ".join(str(each.stage) for each in plan.objective)
        yield f"the objective has the stages [{reported}], not [{', '.join(map(str, found))}]"
        return
    tolerance = _TOLERANCE_USD * max(1, sum(increment.delta for increment in plan.increments))
    for each in plan.objective:
        value = found[each.stage]
        if value is not None and abs(value - each.value) > tolerance:
            yield f"the objective reports {each.value} as {each.stage}, found {value}"
        if each.lower_bound > each.value + tolerance:
            yield f"the objective's {each.stage}: lower bound {each.lower_bound} above {each.value}"


def _pod_stages(plan: Plan) -> dict[ObjectiveStage, float | None]:
    """Return the values of unserved pods and preferences given up; None for a stage that is not compared."""
    left: Counter[tuple[bool, int]] = Counter()
    for unplaced in plan.unplaced:
        cls = plan.pod_classes[unplaced.pod_class]
        left[cls.placeholder, 0 if cls.placeholder else cls.priority] += unplaced.count
    found: dict[ObjectiveStage, float | None] = {}
    for priority in sorted({cls.priority for cls in plan.pod_classes if not cls.placeholder}, reverse=True):
        found[ObjectiveStage(Goal.UNSERVED, priority)] = left[False, priority]
        found[ObjectiveStage(Goal.WAITING, priority)] = None
    if any(cls.placeholder for cls in plan.pod_classes):
        found[ObjectiveStage(Goal.PLACEHOLDERS)] = left[True, 0]
    preferences = ObjectiveStage(Goal.PREFERENCES)
    given_up = sum(relaxed.count * len(relaxed.preferences) for relaxed in plan.relaxed)
    if given_up or any(each.stage == preferences for each in plan.objective):
        found[preferences] = given_up
    return found


def _spread(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup], *, after_cost: bool) -> dict[object, int]:
    """Return, of each wish of pods to be in few domains, in how many they are beyond the first."""
    wishing = {
        cls.index: [wish.term for wish in cls.spec.preferred_domains if wish.after_cost is after_cost]
        for cls in plan.pod_classes
        if not cls.spec.unschedulable
    }
    wishes = dict.fromkeys(chain.from_iterable(wishing.values()))
    if not wishes:
        return {}
    nodes = {node.name: node for node in problem.nodes}
    at: dict[PodAffinityTerm, set[object]] = defaultdict(set)
    unknown: Counter[PodAffinityTerm] = Counter()
    for placed in plan.existing:
        for term in _wished(placed.pods, wishing):
            at[term].add(nodes[placed.node].labels.get(term.topology_key))
    for each in plan.nodes:
        group = groups[each.node_group]
        for term in _wished(each.pods, wishing):
            if group.new_domains is None or term.topology_key not in group.new_domains.keys:
                at[term].add(group.labels.get(term.topology_key))
            elif each.domain:
                at[term].add((group.id, each.domain))
            else:  # each of the nodes may be in another one
                unknown[term] += each.count
    running = _domains_with(problem, wishes)
    return {term: max(0, len(at[term] - running[term]) + unknown[term] - (not running[term])) for term in wishes}


def _wished(pods: Mapping[int, int], wishing: Mapping[int, Sequence[PodAffinityTerm]]) -> set[PodAffinityTerm]:
    """Return what the pods of a node wish for."""
    return {term for index, count in pods.items() if count for term in wishing.get(index, ())}


def _domains_with(problem: Problem, terms: Iterable[PodAffinityTerm]) -> dict[PodAffinityTerm, set[str]]:
    """Return by term the domains where pods run that it counts: a node without its key is in none. Of thousands of
    terms and pods those are compared that share a label."""
    by_label: dict[str | None, list[PodAffinityTerm]] = defaultdict(list)
    for term in terms:
        asked = term.selector.match_expressions or ()
        label = next((each.key for each in asked if each.operator in (Operator.IN, Operator.EXISTS)), None)
        by_label[label].append(term)
    nodes: dict[tuple[str, tuple[tuple[str, str], ...]], list[Node]] = defaultdict(list)
    for node in problem.nodes:
        for pods in node.running:
            nodes[pods.spec.namespace, pods.spec.labels].append(node)
    found: dict[PodAffinityTerm, set[str]] = defaultdict(set)
    for (namespace, pairs), mine in nodes.items():
        labels = dict(pairs)
        for term in (term for label in (None, *labels) for term in by_label.get(label, ())):
            if counts(term.selector, namespace, labels):
                key = term.topology_key
                found[term].update(node.labels[key] for node in mine if key in node.labels)
    return found


def _node_stages(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> dict[ObjectiveStage, float | None]:
    """Return the cost of new nodes by tier, their number, and the change since the previous plan."""
    deltas = {increment.node_group: increment.delta for increment in plan.increments}
    found: dict[ObjectiveStage, float | None] = {}
    if before := _spread(problem, plan, groups, after_cost=False):
        found[ObjectiveStage(Goal.SPREAD)] = sum(before.values())
    for weight in sorted({group.weight for group in groups.values()}):
        tier = [group for group in groups.values() if group.weight == weight]
        cost = math.fsum(group.price_usd_per_hour * deltas.get(group.id, 0) for group in tier)
        found[ObjectiveStage(Goal.COST, weight)] = cost
    if after := _spread(problem, plan, groups, after_cost=True):
        found[ObjectiveStage(Goal.SPREAD_AFTER_COST)] = sum(after.values())
    if _asks_for_domains(plan):
        found[ObjectiveStage(Goal.DOMAINS)] = _domains_begun(problem, plan, groups)
    found[ObjectiveStage(Goal.NODES)] = sum(deltas.values())
    if problem.previous is not None:
        before = {increment.node_group: increment.delta for increment in problem.previous.increments}
        change = sum(abs(deltas.get(name, 0) - before.get(name, 0)) for name in groups)
        found[ObjectiveStage(Goal.CHANGE)] = change
    return found


def _domain_keys(spec: PodSpec) -> set[str]:
    """Return the topology keys, but for the hostname, over which a pod's required affinity counts the pod itself."""
    terms = required_affinity(spec) if spec.pod_affinity else ()
    mine = (each for each in terms if counts(each.selector, spec.namespace, dict(spec.labels)))
    return {each.topology_key for each in mine if each.topology_key != HOSTNAME}


def _asks_for_domains(plan: Plan) -> bool:
    """Return whether pods of a gang ask for one domain."""
    gangs = (each.spec for each in plan.pod_classes if each.gang is not None and not each.spec.unschedulable)
    return any(map(_domain_keys, gangs))


def _domains_begun(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> int:
    """Return how many domains without a node get pods of gangs that ask for one domain."""
    keys = {each.index: _domain_keys(each.spec) for each in plan.pod_classes if each.gang is not None}
    begun: set[tuple[str, object]] = set()
    for nodes in plan.nodes:
        group = groups[nodes.node_group]
        for index, pods in nodes.pods.items():
            for key in keys.get(index, ()) if pods else ():
                if nodes.domain and group.new_domains is not None and key in group.new_domains.keys:
                    begun.add((key, (group.id, nodes.domain)))
                elif key in group.labels:
                    begun.add((key, group.labels[key]))
    asked = {key for key, _ in begun}
    return len(begun - {(key, node.labels[key]) for node in problem.nodes for key in asked & node.labels.keys()})
