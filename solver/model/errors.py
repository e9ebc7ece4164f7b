"""What the solver refuses. Everything else that goes wrong in here is a defect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ProblemError(ValueError):
    """The problem is invalid. `problems` names every fault at once, each beginning with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class NotCompiledError(Exception):
    """The problem is too large for interpreted kernels, compiled ones are still to come, and whoever asks cannot
    wait."""


class PlanRejectedError(RuntimeError):
    """The independent checker found a plan that breaks a constraint: a defect of the planner, never of the input."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class UncheckedPlanError(PlanRejectedError):
    """The devices of nodes can be given to their pods in more ways than the checker looks at."""

    def __init__(self, pod_classes: Iterable[int]) -> None:
        super().__init__(
            ["the devices of a node can be given to its pods in too many ways to check that all find theirs"]
        )
        self.pod_classes = frozenset(pod_classes)
        """Of the pods on these nodes those of the namespace, on each, that has most kinds of claims."""
