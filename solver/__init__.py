"""Pure planning for node groups: which nodes to open for which pods, and how good that is.

    from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve

No I/O, no gRPC, no Kubernetes: values in, values out. The rooms, from the bottom up: `model` (the vocabulary: problems,
plans, budgets), `verify` (the independent checker), `reduction` (to a small integer problem), `relaxation` (linear
programs and bounds), `columns` (node patterns), `integral` (whole nodes), `planning` (`solve`, `rank`), `slack` (how
much to hold in reserve), `explanation` (`explain`) and `consolidation` (`consolidate`). Everything is imported at its
first use (PEP 562), so that whoever needs only the vocabulary loads neither OR-Tools nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solver.consolidation.consolidate import consolidate
    from solver.consolidation.model import (
        ConsolidationPlan,
        ConsolidationProblem,
        ConsolidationStep,
        DisruptionReason,
        StandingNode,
    )
    from solver.explanation.explain import explain
    from solver.explanation.model import Explanation
    from solver.model import (
        CPU,
        HOSTNAME,
        MEMORY,
        NODES,
        PODS,
        Budget,
        Certificate,
        DeviceAlternative,
        DeviceClaim,
        DeviceRequest,
        Devices,
        Goal,
        HostPort,
        Labels,
        Limit,
        Node,
        NodeGroup,
        NodeGroupIncrease,
        NodeSelectorTerm,
        ObjectiveStage,
        Operator,
        PlacedOnNode,
        Plan,
        PlannedNodes,
        PodAffinityTerm,
        PodClass,
        PodSelector,
        PodSet,
        PodSpec,
        PossibleGroups,
        PreferredDomain,
        PreferredNodes,
        PreferredPods,
        Problem,
        Relaxed,
        Requirement,
        Resources,
        RunningPods,
        StageValue,
        Status,
        Taint,
        TaintEffect,
        TierCost,
        Toleration,
        TopologySpread,
        Unplaced,
        WhenUnsatisfiable,
    )
    from solver.model.errors import PlanRejectedError, ProblemError
    from solver.model.plan import PlanProgress, ScaleUpCandidate, Score
    from solver.planning.rank import rank
    from solver.planning.solve import solve

DISTRIBUTION = "cagrpc"
"""Whose `solver` this is: the name is not ours alone (docs/decisions/0018-solver-package-name.md)."""

_HOMES = {
    "ConsolidationPlan": "solver.consolidation.model",
    "ConsolidationProblem": "solver.consolidation.model",
    "ConsolidationStep": "solver.consolidation.model",
    "DisruptionReason": "solver.consolidation.model",
    "Explanation": "solver.explanation.model",
    "PlanProgress": "solver.model.plan",
    "PlanRejectedError": "solver.model.errors",
    "ProblemError": "solver.model.errors",
    "ScaleUpCandidate": "solver.model.plan",
    "Score": "solver.model.plan",
    "StandingNode": "solver.consolidation.model",
    "consolidate": "solver.consolidation.consolidate",
    "explain": "solver.explanation.explain",
    "rank": "solver.planning.rank",
    "solve": "solver.planning.solve",
}
"""Names that are not of `solver.model`."""

__all__ = [
    "CPU",
    "DISTRIBUTION",
    "HOSTNAME",
    "MEMORY",
    "NODES",
    "PODS",
    "Budget",
    "Certificate",
    "ConsolidationPlan",
    "ConsolidationProblem",
    "ConsolidationStep",
    "DeviceAlternative",
    "DeviceClaim",
    "DeviceRequest",
    "Devices",
    "DisruptionReason",
    "Explanation",
    "Goal",
    "HostPort",
    "Labels",
    "Limit",
    "Node",
    "NodeGroup",
    "NodeGroupIncrease",
    "NodeSelectorTerm",
    "ObjectiveStage",
    "Operator",
    "PlacedOnNode",
    "Plan",
    "PlanProgress",
    "PlanRejectedError",
    "PlannedNodes",
    "PodAffinityTerm",
    "PodClass",
    "PodSelector",
    "PodSet",
    "PodSpec",
    "PossibleGroups",
    "PreferredDomain",
    "PreferredNodes",
    "PreferredPods",
    "Problem",
    "ProblemError",
    "Relaxed",
    "Requirement",
    "Resources",
    "RunningPods",
    "ScaleUpCandidate",
    "Score",
    "StageValue",
    "StandingNode",
    "Status",
    "Taint",
    "TaintEffect",
    "TierCost",
    "Toleration",
    "TopologySpread",
    "Unplaced",
    "WhenUnsatisfiable",
    "consolidate",
    "explain",
    "rank",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "solver.model")), name)
    return value
