"""Room on nodes: what is free, and what fits."""

from __future__ import annotations

from solver.model import PODS, Node, PodSpec
from solver.model.eligibility import why_not_eligible


def fits(spec: PodSpec, node: Node) -> bool:
    """Whether one such pod fits on the node, as far as the node and its free resources say."""
    if any(node.free.get(resource, 0) < amount for resource, amount in (*spec.requests, (PODS, 1))):
        return False
    return not why_not_eligible(spec, node.labels, node.taints, node.name)
