"""The section `planner`: the planner loop."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from cagrpc.controllers.settings import PlannerSettings
from cagrpc.forms import Form

PositiveSeconds = Annotated[float, Field(gt=0, le=3600)]


class Planner(Form):
    """The planner loop, with `drive: plan`."""

    idle_seconds: PositiveSeconds = 1.0
    """Planning waits until no new pod has come for so long, …"""
    window_seconds: PositiveSeconds = 10.0
    """… but never longer than this after the first."""
    budget_seconds: PositiveSeconds = 5.0
    """How long one planning round may think."""
    shortage_seconds: PositiveSeconds = 300.0
    """How long an offering is left out after a shortage; doubled each time, up to six times as long."""

    expected_pods: bool = True
    """Whether pods that Deployments, ReplicaSets, StatefulSets, Jobs and JobSets still have to create are planned with
    those that are there."""
    progress_deadline_seconds: PositiveSeconds = 60.0
    """Controllers that still have to create pods, and the scheduler that has to bind them, are waited for as long as
    they make progress, however slowly; not any longer once they have made none for so long. Pods that the API server
    refuses (quota, webhook) are not waited for."""
    dedicated_nodes: bool = False
    """Whether a new node takes the pods planned there and no others, until they are bound: exact, whatever the order in
    which the scheduler tries pods. Takes the right to patch pods (deploy/rbac-dedicated-nodes.yaml), and leaves a
    toleration in them."""

    @model_validator(mode="before")
    @classmethod
    def _gone(cls, written: Any) -> Any:
        found = [name for name in ("realise", "scoring") if isinstance(written, dict) and name in written]
        if found:
            raise ValueError(
                f"found {' and '.join(found)}, which earlier releases knew: now pods are nominated to the nodes that"
                " were planned for them, whatever the scheduler's scoring (docs/reference/placement.md); remove what"
                " was found"
            )
        return written

    @model_validator(mode="after")
    def _windows(self) -> Self:
        if self.window_seconds < self.idle_seconds:
            raise ValueError(
                f"window_seconds: found {self.window_seconds:g}, expected at least idle_seconds, {self.idle_seconds:g}"
            )
        return self

    def settings(self) -> PlannerSettings:
        """Return the settings of the planner."""
        return PlannerSettings(**self.model_dump())
