"""Why pods are not placed, in sentences for people, most telling first: what can be said at once of any number of
classes. What exactly stands in the way, and what would help, is for `solver.explain` to find out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from solver.eligibility import why_not_eligible
from solver.model import PODS, Increment, Node, NodeGroup, PodSpec, Problem, Resources, Unplaced, WhenUnsatisfiable
from solver.quantities import format_quantity
from solver.reduce import Demand, Reduced
from solver.validate import remaining

_MOST_REASONS = 6
_MOST_NAMED = 3
_UNKNOWN = ("no place was found beside the pods that are served",)


def unplaced(reduced: Reduced, missing: dict[Demand, int], increments: Sequence[Increment]) -> tuple[Unplaced, ...]:
    """One entry per demand with pods left out; `increments` are the plan's, so that what it filled up can be named."""
    deltas = {increment.node_group: increment.delta for increment in increments}
    return tuple(
        Unplaced(demand.index, count, tuple(_reasons(reduced, demand, deltas))[:_MOST_REASONS] or _UNKNOWN)
        for demand, count in sorted(missing.items(), key=lambda item: item[0].index)
    )


def _reasons(reduced: Reduced, demand: Demand, deltas: dict[str, int]) -> Iterator[str]:
    problem, spec = reduced.problem, demand.pod
    if not problem.node_groups and not problem.nodes:
        yield "there are no node groups and no nodes"
        return
    fitting = {
        group
        for kind in reduced.kinds
        if any(kind.fits[row] for row in demand.rows)
        for group in (*kind.groups, *kind.nodes)
    }
    if demand.gang is not None:
        yield from _gang(reduced, demand)
    if fitting:
        yield from _exhausted(problem, fitting, deltas)
    rules = [f"it has {' and '.join(found)}"] if (found := list(between_pods(spec))) else []
    misfits = _misfits(problem, spec, fitting)
    yield from (*rules, *misfits) if fitting else (*misfits, *rules)


def between_pods(spec: PodSpec) -> Iterator[str]:
    """What a pod requires of the pods around it, for people."""
    for port in spec.host_ports:
        yield f"the host port {port.port}"
    for term in spec.pod_affinity:
        yield f"a required pod affinity over {term.topology_key}"
    for term in spec.pod_anti_affinity:
        yield f"a required pod anti-affinity over {term.topology_key}"
    for spread in spec.topology_spread:
        if spread.when_unsatisfiable is not WhenUnsatisfiable.SCHEDULE_ANYWAY:
            fewest = f" and minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield f"a spread over {spread.topology_key} with maxSkew {spread.max_skew}{fewest}"


def _gang(reduced: Reduced, demand: Demand) -> Iterator[str]:
    members = [d for d in reduced.demands if d.gang == demand.gang]
    pods = sum(d.count for d in members)
    yield f"gang {demand.gang} is served whole or not at all, and not all of its {pods} pods can be placed"
    for other in members:
        if other.index != demand.index and not any(
            k.most and any(k.fits[row] for row in other.rows) for k in reduced.kinds
        ):
            yield f"its pod {other.example} fits nowhere"


def _exhausted(problem: Problem, fitting: set[str], deltas: dict[str, int]) -> Iterator[str]:
    full: list[NodeGroup] = []
    limited: dict[str, list[NodeGroup]] = {}
    for group in sorted(problem.node_groups, key=lambda g: g.id):
        if group.id not in fitting:
            continue
        reached = list(_limits_reached(problem, group, deltas))
        for limit in reached:
            limited.setdefault(limit, []).append(group)
        if not reached and group.target_size + deltas.get(group.id, 0) >= group.max_size:
            full.append(group)
    for limit, groups in limited.items():
        yield f"{limit}: no room for one more node of {_named(groups)}"
    if len(full) == 1:
        yield f"node group {full[0].id} is at its maximum size {full[0].max_size}"
    elif full:
        yield f"{len(full)} node groups are at their maximum sizes: {_named(full)}"
    nodes = sum(node.name in fitting for node in problem.nodes)
    if nodes:
        yield f"the free room of {_several(nodes, 'existing node')} that it fits is taken by other pods"


def _named(groups: Sequence[NodeGroup]) -> str:
    rest = len(groups) - _MOST_NAMED
    names = ", ".join(group.id for group in groups[:_MOST_NAMED])
    return f"{names} and {rest} more" if rest > 0 else names


def _limits_reached(problem: Problem, group: NodeGroup, deltas: dict[str, int]) -> Iterator[str]:
    groups = {g.id: g for g in problem.node_groups}
    for limit in sorted(problem.limits, key=lambda each: each.name):
        if limit.node_groups is not None and group.id not in limit.node_groups:
            continue
        for resource, left in remaining(limit).items():
            mine = group.counted_capacity.get(resource, 0)
            taken = sum(
                groups[g].counted_capacity.get(resource, 0) * n
                for g, n in deltas.items()
                if limit.node_groups is None or g in limit.node_groups
            )
            if mine and taken + mine > left:
                most = format_quantity(resource, limit.maxima[resource])
                yield f"limit {limit.name} allows {most} {resource}"


def _misfits(problem: Problem, spec: PodSpec, fitting: set[str]) -> Iterator[str]:
    causes: Counter[str] = Counter()
    eligible: list[NodeGroup] = []
    for group in problem.node_groups:
        if group.id not in fitting:
            reason = why_not_eligible(spec, group.labels, group.taints)
            if reason is None:
                eligible.append(group)
            else:
                causes[reason] += 1
    for node in problem.nodes:
        if node.name not in fitting:
            causes[_node_cause(spec, node)] += 1
    if not fitting:
        yield from _too_small(spec, eligible)
    for reason, count in sorted(causes.items(), key=lambda item: (-item[1], item[0])):
        yield f"{reason} ({_several(count, 'node or node group', 'nodes or node groups')})"


def _node_cause(spec: PodSpec, node: Node) -> str:
    reason = why_not_eligible(spec, node.labels, node.taints, node.name)
    if reason is not None:
        return reason
    for name, asked in {**dict(spec.requests), PODS: 1}.items():
        if asked > node.free.get(name, 0):
            return f"not enough {name} free on existing nodes"
    return "kept away by pods that run on existing nodes"


def _too_small(spec: PodSpec, groups: Sequence[NodeGroup]) -> Iterator[str]:
    """Of the groups it may run on but is too large for: the resource that is short, and the most there is of it."""
    if not groups:
        return
    asked: Resources = {**dict(spec.requests), PODS: 1}
    for resource, amount in asked.items():
        most = max(group.allocatable.get(resource, 0) for group in groups)
        if amount > most:
            yield (
                f"needs {format_quantity(resource, amount)} {resource}, "
                f"the largest eligible node has {format_quantity(resource, most)}"
            )
    each_somewhere = all(any(g.allocatable.get(r, 0) >= a for g in groups) for r, a in asked.items())
    if each_somewhere and not any(between_pods(spec)):
        yield f"no eligible node has all it needs together ({_several(len(groups), 'node group')} too small)"


def _several(count: int, one: str, many: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count} {many or one + 's'}"
