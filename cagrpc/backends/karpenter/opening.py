"""Opens the Karpenter backend, where no NodePool would fight it."""

from __future__ import annotations

from cagrpc.backends.karpenter.backend import KarpenterBackend
from cagrpc.backends.karpenter.plugin import KarpenterSettings
from cagrpc.backends.karpenter.pools import check
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.errors import InvalidConfiguration


def open_backend(settings: KarpenterSettings, context: BackendContext) -> OpenBackend:
    """Raises InvalidConfiguration with every NodePool that would fight us and what to change, and Unavailable where the
    cluster cannot be reached."""
    if context.client is None:
        raise InvalidConfiguration(["kubernetes: is missing; NodeClaims are objects of the cluster that it names"])
    check(context.client, settings.node_pools)
    backend = KarpenterBackend(context.client, settings, context.clock)
    return OpenBackend(backend, backend.close)
