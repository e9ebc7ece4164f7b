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
    from solver import model
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
    from solver.model import *  # noqa: F403 - the vocabulary, of which `solver.model` has the list
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
    "DISTRIBUTION",
    "ConsolidationPlan",
    "ConsolidationProblem",
    "ConsolidationStep",
    "DisruptionReason",
    "Explanation",
    "PlanProgress",
    "PlanRejectedError",
    "ProblemError",
    "ScaleUpCandidate",
    "Score",
    "StandingNode",
    "consolidate",
    "explain",
    "rank",
    "solve",
]
if TYPE_CHECKING:
    __all__ += model.__all__


def __getattr__(name: str) -> Any:
    """Import what is asked for, at its first use."""
    home = import_module(_HOMES.get(name, "solver.model"))
    if name not in _HOMES and name not in home.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(home, name)
    return value
