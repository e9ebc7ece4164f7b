"""What the loop of ProvisioningRequests needs of others: where requests, the cluster and the fleet are seen, and where
it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cagrpc.cluster.state import ClusterSource
from cagrpc.controllers.provisioning.model import ProvisioningRequest, Service
from cagrpc.errors import CagrpcError
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus
from cagrpc.kube.client.client import PatchKind
from cagrpc.runtime.health import SyncedResource
from solver.model import PodSpec


class RequestTemplate(Protocol):
    """A PodTemplate, read."""

    @property
    def spec(self) -> PodSpec: ...

    @property
    def priority(self) -> int: ...


class RequestSource(Protocol):
    """What `store.Store` offers."""

    @property
    def synced(self) -> bool: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def informers(self) -> Sequence[SyncedResource]: ...

    def requests(self) -> tuple[ProvisioningRequest, ...]: ...

    def template(self, namespace: str, name: str) -> RequestTemplate | str:
        """Or why there is none."""
        ...

    def service(self, class_name: str) -> Service | None:
        """Of a ProvisioningClass."""
        ...


class RequestsCluster(ClusterSource, Protocol):
    """What of `cagrpc.cluster.view.view.ClusterView` is needed."""

    @property
    def problem(self) -> str | None: ...


class Increments(Protocol):
    """What of `cagrpc.fleet.fleet.Fleet` is needed."""

    @property
    def problem(self) -> str | None: ...

    @property
    def snapshot(self) -> FleetSnapshot: ...

    def apply_all(self, asked: Sequence[IncrementSpec]) -> Sequence[IncrementStatus | CagrpcError]: ...

    def increment(self, increment_id: str) -> IncrementStatus: ...

    def withdraw(self, increment_id: str, message: str) -> None: ...


class RequestClient(Protocol):
    """What of `cagrpc.kube.client.Client` is needed."""

    def patch(self, path: str, body: Mapping[str, Any], kind: PatchKind = ...) -> dict[str, Any]: ...

    def delete(self, path: str, *, uid: str = ...) -> None: ...
