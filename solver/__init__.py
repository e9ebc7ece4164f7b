"""Pure planning for node groups: which nodes to open for which pods, and how good that is.

    from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve

No I/O, no gRPC, no Kubernetes: values in, values out. See `solver.model` for the vocabulary.
"""

from solver.errors import PlanRejectedError, ProblemError
from solver.explain import explain
from solver.explain_model import Explanation
from solver.model import (
    Budget,
    Certificate,
    Increment,
    Limit,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Status,
    Taint,
    TaintEffect,
    TierCost,
    Toleration,
    Unplaced,
)
from solver.solve import solve

__all__ = [
    "Budget",
    "Certificate",
    "Explanation",
    "Increment",
    "Limit",
    "Node",
    "NodeGroup",
    "NodeSelectorTerm",
    "Operator",
    "PlacedOnNode",
    "Plan",
    "PlanRejectedError",
    "PlannedNodes",
    "PodClass",
    "PodSet",
    "PodSpec",
    "Problem",
    "ProblemError",
    "Requirement",
    "Status",
    "Taint",
    "TaintEffect",
    "TierCost",
    "Toleration",
    "Unplaced",
    "explain",
    "solve",
]
