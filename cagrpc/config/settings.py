"""The settings of a server, as a value. `load` makes them of a configuration file; flags of `cagrpc serve`
override some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.objects import Device
from cagrpc.backends.plugin import BackendSettings
from cagrpc.config.schema.listen import Address, HttpAccess, TlsPaths
from cagrpc.controllers.settings import (
    AnswerRules,
    AutoscalerConfigMapSettings,
    ClusterSettings,
    ConsolidationSettings,
    Drive,
    KueueSettings,
    PlannerSettings,
    RequestSettings,
)
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.prices import PriceList, PriceRule
from cagrpc.fleet.provisioners import Provisioner
from cagrpc.fleet.visibility import ShownGroups
from solver.model import Limit, NodeGroup


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a server is built from."""

    provider: Address | None
    """None where there is no provider, and with it no fleet and no journal."""
    expander: Address
    http: Address
    tls: TlsPaths | None
    """None only with `insecure: true`."""
    state_directory: Path
    backend: BackendSettings
    catalogue: Catalogue
    groups: tuple[NodeGroup, ...]
    """Of all provisioners, in configured order."""
    limits: tuple[Limit, ...]
    shown: ShownGroups
    options: Mapping[str, AutoscalingOptions]
    """By node group id; only groups with configured options."""
    devices: Mapping[str, tuple[Device, ...]]
    """Of new nodes, by node group id; only groups with configured devices."""
    gpu_label: str
    increment_deadline_seconds: float
    expander_budget_seconds: float
    http_access: HttpAccess = field(default_factory=HttpAccess)
    schedulers: frozenset[str] = DEFAULT_SCHEDULERS
    """Whose pods are planned."""
    drive: Drive = Drive.ASSIST
    cluster: ClusterSettings | None = None
    """None without access to a cluster."""
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    requests: RequestSettings | None = None
    """None where ProvisioningRequests are not served."""
    kueue: KueueSettings | None = None
    """None where Kueue's AdmissionChecks are not answered."""
    slack: SlackSettings | None = None
    """None where no slack is held."""
    consolidation: ConsolidationSettings | None = None
    """None where nothing is consolidated."""
    answers: AnswerRules = field(default_factory=AnswerRules)
    prices: PriceList | None = None
    """Of node groups of other cloud providers; None for the catalogue's."""
    price_rule: PriceRule = field(default_factory=PriceRule)
    """For those without."""
    config_maps: AutoscalerConfigMapSettings | None = None
    """None where the autoscaler's ConfigMaps are not read."""
    provisioners: tuple[Provisioner, ...] = ()
    """Which take such groups in."""
    finds_node_groups: bool = False
    """Whether the backend finds the node groups: then `groups` are none, and those of other clouds are our own."""
    tracing: bool = False
    """Whether spans are made and sent."""
    warnings: tuple[str, ...] = ()

    @property
    def ranks_groups_of_others(self) -> bool:
        """Return whether it is configured that the expander is asked about groups of other cloud providers."""
        takes_in = any(each.groups for each in self.provisioners) and not self.finds_node_groups
        return self.provider is None or self.config_maps is not None or takes_in

    @property
    def http_is_secured(self) -> bool:
        """Return whether the HTTP side has TLS and asks readers for a token."""
        return self.http_access.is_secured(self.http.host)
