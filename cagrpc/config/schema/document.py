"""The root of the configuration file: its sections, each in a module here, and the fields beside them. The JSON schema
is generated from it; `load` makes settings of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER
from cagrpc.backends import registry
from cagrpc.config.schema.devices import DevicesForm
from cagrpc.config.schema.expander import ExpanderForm
from cagrpc.config.schema.kubernetes import Kubernetes
from cagrpc.config.schema.listen import HttpAccess, Listen, Tls
from cagrpc.config.schema.provisioners import ProvisionerEntry
from cagrpc.controllers.settings import (
    ConsolidationMode,
    ConsolidationSettings,
    Drive,
    ExpanderMode,
    KueueSettings,
    PlannerSettings,
    RequestSettings,
)
from cagrpc.controllers.slack.model import Carrier, SlackSettings
from cagrpc.durations import duration_text
from cagrpc.fleet.fields import LabelKey, Limits
from cagrpc.fleet.visibility import DEFAULT_SHOWN_GROUPS
from cagrpc.forms import Duration, FilePath, Form

LONGEST_INCREMENT_SECONDS = 900
"""CA's default time for provisioning and starting a node, after which CA takes the node for failed."""

LONGEST_EXPANDER = "3s"
"""CA waits 5 s for the expander, decoding and the network included."""


SchedulerName = Annotated[str, Field(min_length=1, max_length=253)]


class BackendForm(registry.backend_fields(), title="Backend"):  # type: ignore[misc,call-arg] # backends are known at run time
    """Where nodes come from."""


class ProviderForm(Form, title="Provider"):
    """The cloud provider (externalgrpc) that the cluster-autoscaler is given."""

    enabled: bool = True
    """Whether there is one. Without it cagrpc has no nodes of its own and keeps no journal: it is the gRPC expander of
    a cluster-autoscaler that has another cloud provider."""


class Configuration(Form):
    """Configuration of cagrpc. Paths are relative to the file they stand in."""

    drive: Drive = Drive.ASSIST
    """Who decides on scale-ups: the cluster-autoscaler, which asks the expander, or the planner loop (needs
    `kubernetes`)."""
    kubernetes: Kubernetes | None = None
    schedulers: Annotated[list[SchedulerName], Field(min_length=1)] = Field(default=[DEFAULT_SCHEDULER])
    """Schedulers whose pods are planned (`schedulerName`), whether or not they have called a pod unschedulable, as with
    the cluster-autoscaler's `--bypassed-scheduler-names`. Pods of others take room on nodes, and with `drive: plan`
    nothing is scaled up for them."""
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    provisioning_requests: RequestSettings = Field(default_factory=RequestSettings)
    kueue: KueueSettings = Field(default_factory=KueueSettings)
    slack: SlackSettings | None = None
    consolidation: ConsolidationSettings | None = None
    expander: ExpanderForm = Field(default_factory=ExpanderForm)
    provider: ProviderForm = Field(default_factory=ProviderForm)
    listen: Listen = Field(default_factory=Listen)
    tls: Tls = Tls()
    http: HttpAccess = Field(default_factory=HttpAccess)
    state_directory: FilePath = ".cagrpc"
    """Where the journal, the simulated fleet and development certificates are."""
    backend: BackendForm = BackendForm()
    catalogue: FilePath | Literal["embedded"] = "embedded"
    """A CSV file of instance types and offerings. The default is the embedded catalogue (EC2, us-east-1, on demand)."""
    provisioners: list[ProvisionerEntry] = Field(default_factory=list)
    """Weights, requirements, taints and limits of nodes. With a provider there is at least one."""
    devices: list[DevicesForm] = Field(default_factory=list)
    """What DRA drivers publish of new nodes, for node groups of which no node has been seen yet."""
    limits: Limits = Field(default_factory=dict)
    """What the cluster's nodes may have together: nodes, cpu, memory, any resource, as Kubernetes quantities."""
    shown_groups: Annotated[int, Field(ge=1, le=10_000)] = DEFAULT_SHOWN_GROUPS
    """How many node groups CA is shown. Explicit ones are always shown, and those with nodes."""
    autoscaling: AutoscalingOptions = Field(default_factory=AutoscalingOptions)
    """Options of every node group. A provisioner's and a node group's own fields come before these."""
    gpu_label: LabelKey = "cagrpc.io/gpu"
    """The label that CA knows nodes with GPUs by."""
    increment_deadline_seconds: Annotated[float, Duration("1ms", None, '"10m"', was_number=True)] = 600.0
    """An increment whose nodes are not all ready by then is rolled back. It is below CA's own 15 minutes."""
    expander_budget_seconds: Annotated[float, Duration("1ms", LONGEST_EXPANDER, '"2s"', was_number=True)] = 2.0
    """How long the expander may think. CA gives up after 5 s."""
    tracing: bool = False
    """Whether calls, planning rounds and increments are traced by OpenTelemetry (the extra `tracing`). Where traces are
    sent is said by its environment variables, OTEL_EXPORTER_OTLP_ENDPOINT and others."""

    @field_validator("increment_deadline_seconds")
    @classmethod
    def _before_ca_gives_up(cls, seconds: float) -> float:
        if seconds >= LONGEST_INCREMENT_SECONDS:
            raise ValueError(
                f'found "{duration_text(seconds)}", expected less than "{duration_text(LONGEST_INCREMENT_SECONDS)}",'
                " after which CA takes a node that has not come for failed"
            )
        return seconds

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        found = chain(self._without_provider(), self._without_cluster(), self._between_sections(), self._of_addresses())
        if contradiction := next(found, ""):
            raise ValueError(contradiction)
        return self

    def _has_on(self, name: str) -> bool:
        return name in self.model_fields_set and bool(getattr(self, name).enabled)

    @property
    def _consolidates(self) -> bool:
        return self.consolidation is not None and self.consolidation.mode is not ConsolidationMode.OFF

    def _without_provider(self) -> Iterator[str]:
        written = {
            "drive: plan": self.drive is Drive.PLAN,
            "slack": self.slack is not None,
            "consolidation": self._consolidates,
            "devices": bool(self.devices),
            "limits": bool(self.limits),
            "backend": "backend" in self.model_fields_set,
            "listen.provider": "provider" in self.listen.model_fields_set,
            "provisioning_requests": self._has_on("provisioning_requests"),
            "kueue": self._has_on("kueue"),
        }
        found = [name for name, there in written.items() if there]
        if found and not self.provider.enabled:
            yield (
                f"found {', '.join(found)} with provider: {{enabled: false}}; these are of nodes of cagrpc's own:"
                " remove them, or enable the provider"
            )

    def _without_cluster(self) -> Iterator[str]:
        if self.kubernetes is not None:
            return
        if self.drive is Drive.PLAN:
            yield "drive: plan watches pods itself and needs the section kubernetes; found none"
        if self.expander.config_maps is not None:
            yield "expander.config_maps are in a cluster and need the section kubernetes; found none"
        if self.expander.veto_partial_gangs:
            yield (
                "expander.veto_partial_gangs needs the section kubernetes, found none; a request does not say which"
                " members of a gang run already"
            )
        if self.slack is not None:
            yield "slack is held in a cluster and needs the section kubernetes; found none"
        if self._consolidates:
            yield "consolidation moves pods of a cluster and needs the section kubernetes; found none"

    def _between_sections(self) -> Iterator[str]:
        if self.expander.mode is ExpanderMode.SHADOW and self.drive is Drive.PLAN:
            yield (
                "expander.mode: found shadow with drive: plan, expected decide; answering all options would let the"
                " cluster-autoscaler grow the node groups that the planner loop plans"
            )
        if self.slack is not None and self.slack.carrier is Carrier.VIRTUAL and self.drive is Drive.ASSIST:
            yield (
                "slack.carrier: found virtual with drive: assist, expected buffer or pods, or drive: plan; the "
                "cluster-autoscaler asks the expander only about pods that it sees pending, so nobody would open nodes "
                "for placeholders that live in cagrpc alone"
            )
        longer = self.consolidation.step_deadline_seconds if self.consolidation is not None else 0.0
        if self._consolidates and longer <= self.increment_deadline_seconds:
            yield (
                f'consolidation.step_deadline: found "{duration_text(longer)}", expected more than increment_deadline,'
                f' "{duration_text(self.increment_deadline_seconds)}", within which new nodes come'
            )

    def _of_addresses(self) -> Iterator[str]:
        names = ("provider", "expander", "http") if self.provider.enabled else ("expander", "http")
        listen = {name: getattr(self.listen, name) for name in names}
        for name, address in listen.items():
            if address.port and (others := [n for n, a in listen.items() if a == address and n != name]):
                yield f'listen.{name} and listen.{others[0]} are both "{address}"; each needs its own'
        secured = self.http.is_secured(self.listen.http.host)
        if secured and self.tls.insecure and self.http.certificate is None:
            yield (
                f'listen.http: found "{self.listen.http}" and no certificate for it, expected http.certificate'
                " with http.key, or http: {insecure: true} for plain HTTP"
            )
