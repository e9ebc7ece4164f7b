"""The section `consolidation`, and its conversion to the controller's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from cagrpc.api.core.movability import MovingRules
from cagrpc.config.problems import shown
from cagrpc.config.schema.disruption import Budgets, NodeBudgetForm
from cagrpc.config.schema.fields import LabelKey
from cagrpc.config.schema.times import WindowForm, between, seconds
from cagrpc.controllers.settings import (
    DEFAULT_INTERRUPTION_CONDITIONS,
    DEFAULT_INTERRUPTION_TAINTS,
    ConsolidationMode,
    ConsolidationSettings,
    ProvisionerDisruption,
    RepairRule,
)
from cagrpc.forms import Form

_SWITCHES = {True: "on", False: "off"}
"""YAML reads on and off without quotes as truth values."""


def _switch(value: Any) -> Any:
    return _SWITCHES[value] if isinstance(value, bool) else value


ConditionType = Annotated[str, Field(min_length=1, max_length=316)]


class RepairForm(Form, title="Repair"):
    """A condition of nodes that have gone bad."""

    condition: ConditionType
    """Its type, such as Ready, or one of a node problem detector."""
    status: Literal["True", "False", "Unknown"]
    toleration: Annotated[str, between("1s", "168h", '"30m"')]
    """How long it may be so."""

    def rule(self) -> RepairRule:
        """Return the controller's value."""
        return RepairRule(self.condition, self.status, seconds(self.toleration))


class ConsolidationForm(Form, title="Consolidation"):
    """Replaces nodes by cheaper ones, or ones of a better weight, step by step (docs/guides/consolidation.md)."""

    mode: Annotated[
        Literal["off", "dry-run", "on"],
        BeforeValidator(_switch),
        WithJsonSchema({"enum": ["off", "dry-run", "on", True, False]}),
    ] = "dry-run"
    """`dry-run`: only says what it would do, and changes nothing. `on`: does it, and cagrpc alone scales the fleet
    down."""
    every: Annotated[str, between("1s", "24h", '"60s"')] = "60s"
    """How often it is planned anew."""
    budget: Annotated[str, between("1s", "10m", '"10s"')] = "10s"
    """How long planning may think."""
    least_saving_usd_per_hour_per_pod: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    """A step that moves pods saves at least so much for each of them, or is left out; nodes that must go and pods that
    go to a better weight are moved all the same."""
    most_nodes_per_step: Annotated[int, Field(ge=1, le=1_000)] = 50
    """How many nodes one step takes away at most; one that gangs tie together may be larger."""
    minimum_node_age: Annotated[str, between("1s", "168h", '"10m"')] = "10m"
    """A younger node stays, unless it must go."""
    skip_nodes_with_local_storage: bool = True
    """Whether hostPath and emptyDir volumes (but in memory) keep a pod where it is, as CA's flag of this name;
    Karpenter has no such rule."""
    skip_nodes_with_system_pods: bool = True
    """Whether pods of kube-system without a PodDisruptionBudget stay for an hour, as CA's flag of this name."""
    step_deadline: Annotated[str, between("1m", "24h", '"15m"')] = "15m"
    """A step that makes no progress for so long is undone; longer than increment_deadline."""
    windows: list[WindowForm] = Field(default_factory=list)
    """When nodes may be replaced. Default: always. A step that has begun is finished; nodes that must go do not
    wait."""
    budgets: Annotated[Budgets, Field(min_length=1)] = Field(default_factory=lambda: [NodeBudgetForm()])
    """Of each provisioner that has none of its own."""
    pause_after_failure: Annotated[str, between("1s", "6h", '"10m"')] = "10m"
    """How long nothing is begun after a step that was undone; twice as long after each further one, at most 6h."""
    interruption_taints: list[LabelKey] = Field(default_factory=lambda: list(DEFAULT_INTERRUPTION_TAINTS))
    """A node with one of these is about to be taken by its cloud, and is replaced before."""
    interruption_conditions: list[ConditionType] = Field(default_factory=lambda: list(DEFAULT_INTERRUPTION_CONDITIONS))
    """And so is one of which one of these conditions is True."""
    repair: list[RepairForm] = Field(
        default_factory=lambda: [
            RepairForm(condition="Ready", status="False", toleration="30m"),
            RepairForm(condition="Ready", status="Unknown", toleration="30m"),
        ]
    )
    """A node with one of these conditions for so long has gone bad, and is replaced."""

    @model_validator(mode="after")
    def _thinks_no_longer_than_it_waits(self) -> Self:
        if seconds(self.budget) > seconds(self.every):
            raise ValueError(f"budget: found {shown(self.budget)}, expected at most every, {shown(self.every)}")
        return self

    def settings(self, disruption: Mapping[str, ProvisionerDisruption]) -> ConsolidationSettings | None:
        """Return the settings; None where nothing is consolidated. `disruption` is by provisioner that says
        something of its own."""
        if self.mode == "off":
            return None
        return ConsolidationSettings(
            mode=ConsolidationMode(self.mode),
            every_seconds=seconds(self.every),
            budget_seconds=seconds(self.budget),
            least_saving_usd_per_hour_per_pod=self.least_saving_usd_per_hour_per_pod,
            most_nodes_per_step=self.most_nodes_per_step,
            minimum_node_age_seconds=seconds(self.minimum_node_age),
            moving=MovingRules(
                keeps_local_storage=self.skip_nodes_with_local_storage,
                keeps_system_pods=self.skip_nodes_with_system_pods,
            ),
            step_deadline_seconds=seconds(self.step_deadline),
            windows=tuple(each.schedule() for each in self.windows),
            budgets=tuple(each.settings() for each in self.budgets),
            disruption=disruption,
            pause_seconds=seconds(self.pause_after_failure),
            interruption_taints=frozenset(self.interruption_taints),
            interruption_conditions=frozenset(self.interruption_conditions),
            repair=tuple(each.rule() for each in self.repair),
        )
