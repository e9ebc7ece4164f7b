"""What Karpenter's NodePools say of disruption, and sections of ours in the same words: which nodes of a provisioner
may be replaced, when, and how many at once."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from cagrpc.config.problems import shown
from cagrpc.config.schema.times import between, cron, seconds
from cagrpc.controllers.settings import ConsolidationPolicy, NodeBudget, ProvisionerDisruption
from cagrpc.forms import Form
from cagrpc.runtime.schedules import Schedule, parse_cron

NEVER = "Never"
_NODES = re.compile(r"(?:100|[0-9]{1,2})%|[0-9]{1,9}")
_POLICIES = {"WhenEmpty": ConsolidationPolicy.WHEN_EMPTY}
"""All others are of nodes with pods, too; how much they have to save is said by the section `consolidation`."""


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _nodes(text: str) -> str:
    if not _NODES.fullmatch(text):
        raise ValueError(f'found {shown(text)}, expected a number of nodes or a percentage of them, such as 5 or "10%"')
    return text


def _after(text: str) -> str:
    if text != NEVER and not (re.fullmatch(r"0+[smh]?", text) or 0 < seconds(text) <= 365 * 86_400):
        raise ValueError(f'found {shown(text)}, expected a duration or "Never", such as "0s" or "30m"')
    return text


class NodeBudgetForm(Form, title="NodeBudget"):
    """How many nodes of a provisioner may be disrupted at once: a budget of Karpenter's NodePool. Of several that are
    active the smallest holds."""

    nodes: Annotated[
        str,
        BeforeValidator(_text_of_number),
        AfterValidator(_nodes),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}),
    ] = "10%"
    """How many, or which part of them, rounded up; 0 for none."""
    reasons: list[Literal["Underutilized", "Empty", "Drifted"]] | None = None
    """For which reasons it holds. Default: for all."""
    schedule: Annotated[str, AfterValidator(cron)] | None = None
    """When it becomes active: five fields of cron, or @daily and the like, in UTC. Default: it is always active."""
    duration: Annotated[str, between("1m", "8784h", '"8h" or "1h30m"')] | None = None
    """How long it stays active, with `schedule`."""

    @model_validator(mode="after")
    def _schedule_with_duration(self) -> Self:
        if (self.schedule is None) != (self.duration is None):
            found, missing = ("schedule", "duration") if self.duration is None else ("duration", "schedule")
            raise ValueError(f"{missing} is missing; {found} goes with it")
        return self

    def settings(self) -> NodeBudget:
        """Return the controller's value."""
        return NodeBudget(
            amount=int(self.nodes.removesuffix("%")),
            is_percentage=self.nodes.endswith("%"),
            reasons=None if self.reasons is None else frozenset(self.reasons),
            schedule=None
            if self.schedule is None
            else Schedule(parse_cron(self.schedule), ZoneInfo("UTC"), seconds(self.duration or "")),
        )


Budgets = Annotated[list[NodeBudgetForm], Field(max_length=50)]


class DisruptionForm(Form, title="Disruption"):
    """Which nodes of a provisioner consolidation may replace, and how many at once: `spec.disruption` of a NodePool."""

    consolidation_policy: Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "WhenUnderutilized", "Balanced"] = (
        "WhenEmptyOrUnderutilized"
    )
    """`WhenEmpty`: only nodes that have no pods to move. All others: any node."""
    consolidate_after: Annotated[str, AfterValidator(_after)] = "0s"
    """A node is left alone for so long after pods came to it; `Never`: consolidation leaves all of them alone."""
    budgets: Budgets | None = None
    """Default: `consolidation.budgets`."""

    def settings(self) -> ProvisionerDisruption:
        """Return the controller's value."""
        never = self.consolidate_after == NEVER
        return ProvisionerDisruption(
            policy=_POLICIES.get(self.consolidation_policy, ConsolidationPolicy.WHEN_EMPTY_OR_UNDERUTILIZED),
            consolidate_after_seconds=None if never else seconds(self.consolidate_after),
            budgets=None if self.budgets is None else tuple(each.settings() for each in self.budgets),
        )
