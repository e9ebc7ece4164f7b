"""The section `provisioning_requests`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cagrpc.controllers.settings import ClassBehaviour, NamespaceSettings, RequestSettings
from cagrpc.forms import Form


class PerNamespace(Form):
    """How much the ProvisioningRequests of one namespace may have at once. Those beyond it wait, and say so."""

    requests: Annotated[int, Field(ge=1)] = 500
    """How many requests of a namespace have capacity reserved, or on its way, at most."""
    pods: Annotated[int, Field(ge=1)] = 50_000
    """How many of their pods that have not come yet have capacity reserved at most."""
    overtaken_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """How long capacity is reserved for a request that was bypassed ten times; then none is for as long."""


class ProvisioningRequests(Form):
    """ProvisioningRequests (autoscaling.x-k8s.io/v1), in a cluster that has their CRD."""

    enabled: bool = True
    """Whether they are served; with `kubernetes`."""
    booking_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long provisioned capacity is reserved for pods that have not come, from the last that came. The flag
    --booking overrides it."""
    keep_seconds: Annotated[float, Field(ge=60)] = 7 * 86_400.0
    """A request that is decided is deleted after so long; one that is not fails then, unless its ValidUntilSeconds says
    otherwise."""
    upstream_classes: list[Literal["check-capacity", "atomic-scale-up"]] = Field(default_factory=list)
    """Which of the cluster-autoscaler's own class names it leaves to cagrpc: `check-capacity` is
    check-capacity.autoscaling.x-k8s.io, `atomic-scale-up` best-effort-atomic-scale-up.autoscaling.x-k8s.io. Default:
    none."""
    per_namespace: PerNamespace = Field(default_factory=PerNamespace)

    def settings(self) -> RequestSettings | None:
        """Return the settings; None where requests are not served."""
        if not self.enabled:
            return None
        return RequestSettings(
            booking_seconds=self.booking_seconds,
            keep_seconds=self.keep_seconds,
            upstream_classes=frozenset(map(ClassBehaviour, self.upstream_classes)),
            per_namespace=NamespaceSettings(**self.per_namespace.model_dump()),
        )
