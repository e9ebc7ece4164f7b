"""Placeholders on nodes that stand, put aside: what the scheduler will make of a plan is simulated without them,
however many there are. Their room is kept, as if it were taken. Those for which nodes are opened stay part of the plan,
so that no node of theirs is taken for one too many. Pure; a part of `realising`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from cagrpc.controllers.kept import requested
from cagrpc.controllers.planner.problem import class_key
from solver.model import Node, PlacedOnNode, Plan, PodSet, PodSpec, Problem


def put_aside(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """The problem and its plan without placeholders that are planned onto nodes that stand. Classes keep their index;
    one may have nobody left."""
    slack = {cls.index: cls for cls in plan.pod_classes if cls.placeholder}
    settled: Counter[int] = Counter()
    kept: dict[str, Counter[PodSpec]] = {}
    existing = []
    for placed in plan.existing:
        for index in slack.keys() & placed.pods.keys():
            settled[index] += placed.pods[index]
            kept.setdefault(placed.node, Counter())[slack[index].spec] += placed.pods[index]
        pods = {index: count for index, count in placed.pods.items() if index not in slack}
        if pods:
            existing.append(PlacedOnNode(placed.node, pods))
    if not settled:
        return problem, plan
    fewer = Counter({class_key(slack[index]): count for index, count in settled.items()})
    pod_sets = []
    for each in problem.pod_sets:
        pod_sets.append(_less(each, min(each.count, fewer[class_key(each)])))
        fewer[class_key(each)] -= each.count - pod_sets[-1].count
    return (
        replace(
            problem,
            pod_sets=tuple(pod_sets),
            nodes=tuple(_keeping(node, kept[node.name]) if node.name in kept else node for node in problem.nodes),
        ),
        replace(
            plan,
            pod_classes=tuple(replace(cls, count=cls.count - settled[cls.index]) for cls in plan.pod_classes),
            existing=tuple(existing),
        ),
    )


def _less(pods: PodSet, count: int) -> PodSet:
    return replace(pods, count=pods.count - count) if count else pods


def _keeping(node: Node, pods: Mapping[PodSpec, int]) -> Node:
    """The scheduler does not see them: what they look like does not matter."""
    taken = requested(pods.items())
    return replace(node, free={name: amount - taken.get(name, 0) for name, amount in node.free.items()})
