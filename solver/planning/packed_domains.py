"""The plan of a first choice of topology domains as it stands: its gangs are where it has put them, and the search
plans all other pods beside them. A search of the whole problem, with limits on each domain, often packs worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from solver.model import PlacedOnNode, Plan, PlannedNodes, PodSet, Problem
from solver.model.capacity import after_plan, planned_name
from solver.model.plan import ClassKey, class_key
from solver.planning.domain_supply import GangDomains
from solver.planning.first_domains import FirstDomains
from solver.planning.settling import with_places
from solver.reduction.reduced import obliged


def packed_as_chosen(
    of: GangDomains, first: FirstDomains, before: Plan, rest: Callable[[Problem], Plan]
) -> Plan | None:
    """Return the plan, with the classes of `before`, a plan of the same pods; `rest` plans those that ask for no
    domain, also such of gangs that have one, and what minimum sizes demand. None where pods only wish for a domain, or
    where there are to be spares."""
    if of.wishes or any(group.spares for group in of.problem.node_groups):
        return None
    problem = of.problem
    numbers = {class_key(each): each.index for each in before.pod_classes}
    patterns: Counter[tuple[str, tuple[tuple[int, int], ...]]] = Counter()
    standing: list[PlacedOnNode] = []
    for supply, nodes in first.nodes:
        found = [_by_class(problem.pod_sets, node.pods, numbers) for node in nodes]
        if supply.group is None:
            standing += map(PlacedOnNode, supply.names, found)
        else:
            patterns.update((problem.node_groups[supply.group].id, tuple(pods.items())) for pods in found)
    new = [PlannedNodes(group, count, dict(pods)) for (group, pods), count in patterns.items()]
    gangs = with_places(problem, replace(before, relaxed=()), new, standing)
    asking = {number for each in of.units for number in each.pod_sets}
    waiting = {each.gang for number, each in enumerate(of.units) if number not in first.at}
    others = [
        pods
        for number, pods in enumerate(problem.pod_sets)
        if pods.count and number not in asking and (pods.gang is None or pods.gang not in waiting)
    ]
    deltas = {each.node_group: each.delta for each in gangs.increments}
    lacks = any(obliged(group) > deltas.get(group.id, 0) for group in problem.node_groups)
    return _with_others(problem, gangs, others, rest) if others or lacks else gangs


def _by_class(sets: Sequence[PodSet], pods: Mapping[int, int], numbers: Mapping[ClassKey, int]) -> Mapping[int, int]:
    found = Counter[int]()
    for number, count in pods.items():
        found[numbers[class_key(sets[number])]] += count
    return dict(sorted((+found).items()))


def _with_others(problem: Problem, gangs: Plan, others: Sequence[PodSet], rest: Callable[[Problem], Plan]) -> Plan:
    """Return the plan with other pods, which are planned beside the gangs."""
    after = after_plan(problem, gangs, range(len(gangs.pod_classes)))
    found = rest(replace(after, pod_sets=tuple(others)))
    numbers = {class_key(each): each.index for each in gangs.pod_classes}
    number = {each.index: numbers[class_key(each)] for each in found.pod_classes}
    beside = {each.node: Counter({number[i]: pods for i, pods in each.pods.items()}) for each in found.existing}
    filled = [
        replace(batch, count=1, pods=dict(sorted((Counter(batch.pods) + beside.pop(name, Counter())).items())))
        for at, batch in enumerate(gangs.nodes)
        for name in (planned_name(batch.node_group, at, copy) for copy in range(batch.count))
    ]
    new = [replace(each, pods={number[i]: pods for i, pods in each.pods.items()}) for each in found.nodes]
    for each in gangs.existing:
        beside[each.node] = beside.get(each.node, Counter()) + Counter(each.pods)
    standing = [PlacedOnNode(name, dict(pods)) for name, pods in sorted(beside.items())]
    relaxed = tuple(replace(each, pod_class=number[each.pod_class]) for each in found.relaxed)
    return with_places(problem, replace(gangs, relaxed=relaxed), [*filled, *new], standing)
