"""The protocols of what the controller of ProvisioningRequests needs: sources of requests, of the cluster and of the
fleet, and the client that it writes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import ClusterSource
from cagrpc.controllers.provisioning.model import ProvisioningRequest, Service
from cagrpc.errors import CagrpcError
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus
from cagrpc.kube.client.client import PatchKind
from cagrpc.runtime.health import SyncedResource
from solver.model import PodSpec


class RequestTemplate(Protocol):
    """A parsed PodTemplate."""

    @property
    def pod(self) -> TemplatePod: ...

    @property
    def spec(self) -> PodSpec: ...

    @property
    def priority(self) -> int: ...


class RequestSource(Protocol):
    """The part of `store.RequestStore` that is needed."""

    @property
    def synced(self) -> bool: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def informers(self) -> Sequence[SyncedResource]: ...

    @property
    def client(self) -> RequestClient:
        """Who writes requests and nodes."""
        ...

    def requests(self) -> tuple[ProvisioningRequest, ...]: ...

    def template(self, namespace: str, name: str) -> RequestTemplate | str:
        """Return the template, or why there is none."""
        ...

    def keep(self, templates: frozenset[TemplatePod]) -> None:
        """Have these read on, whatever becomes of their objects."""
        ...

    def service(self, class_name: str) -> Service | None:
        """Return the service of a ProvisioningClass; None where there is none."""
        ...


class RequestsCluster(ClusterSource, Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that is needed."""

    @property
    def problem(self) -> str | None: ...


class Increments(Protocol):
    """The part of `cagrpc.fleet.fleet.Fleet` that is needed."""

    @property
    def problem(self) -> str | None: ...

    @property
    def snapshot(self) -> FleetSnapshot: ...

    def apply_all(self, asked: Sequence[IncrementSpec]) -> Sequence[IncrementStatus | CagrpcError]: ...

    def increment(self, increment_id: str) -> IncrementStatus: ...

    def withdraw(self, increment_id: str, message: str) -> None: ...


class RequestClient(Protocol):
    """The part of `cagrpc.kube.client.Client` that is needed."""

    def patch(self, path: str, body: Mapping[str, Any], kind: PatchKind = ...) -> dict[str, Any]: ...

    def delete(self, path: str, *, uid: str = ...) -> None: ...
