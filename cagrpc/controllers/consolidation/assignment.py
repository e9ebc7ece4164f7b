"""From a step of a consolidation plan to the cluster's own terms: which pod goes where. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from cagrpc.cluster.state import ReschedulablePod
from cagrpc.controllers.consolidation.question import ConsolidationQuestion
from cagrpc.controllers.consolidation.steps import AssignedStep, MovedPod
from cagrpc.controllers.planning.problem import class_key
from solver.consolidation.model import ConsolidationStep
from solver.model import PodClass


def assigned(step: ConsolidationStep, asked: ConsolidationQuestion) -> AssignedStep:
    """Return the step of an answer to this question with its pods, the oldest of a class on nodes that stand. Pods of a
    gang come from all nodes, all others from those that go."""
    plan = step.plan
    queues = {each.index: _pods(each, step, asked) for each in plan.pod_classes}
    moved = [
        MovedPod(pod, placed.node)
        for placed in plan.existing
        for index, count in sorted(placed.pods.items())
        for pod in _take(queues[index], count)
    ]
    numbers: Counter[str] = Counter()
    for batch in plan.nodes:
        for _ in range(batch.count):
            target = f"{batch.node_group}/{numbers[batch.node_group]}"
            numbers[batch.node_group] += 1
            for index, count in sorted(batch.pods.items()):
                moved += (MovedPod(pod, target) for pod in _take(queues[index], count))
    prices = {group.id: group.price_usd_per_hour for group in asked.problem.node_groups}
    return AssignedStep(
        reason=step.reason,
        nodes=tuple(asked.nodes[name] for name in step.nodes),
        pods=tuple(moved),
        new_nodes=dict(numbers),
        saving_usd_per_hour=step.saving_usd_per_hour,
        cost_usd_per_hour=round(_cost(numbers, prices), 9) if numbers else None,
    )


def _pods(each: PodClass, step: ConsolidationStep, asked: ConsolidationQuestion) -> Iterator[ReschedulablePod]:
    """Yield the pods of a class, oldest first. Placeholders are none."""
    names = asked.pods if each.gang is not None else step.nodes
    key = class_key(each)
    found = (pod for name in names for pod in asked.pods.get(name, {}).get(key, ()))
    return iter(sorted(found, key=lambda pod: (pod.ref.created_at_seconds, pod.ref.namespace, pod.ref.name)))


def _take(queue: Iterator[ReschedulablePod], count: int) -> Iterator[ReschedulablePod]:
    return (pod for _, pod in zip(range(count), queue, strict=False))


def _cost(numbers: Mapping[str, int], prices: Mapping[str, float]) -> float:
    return sum(prices[name] * count for name, count in numbers.items())
