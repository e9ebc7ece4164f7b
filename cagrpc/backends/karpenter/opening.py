"""Opens the Karpenter backend, where no NodePool would fight it."""

from __future__ import annotations

from cagrpc.backends.karpenter.backend import KarpenterBackend
from cagrpc.backends.karpenter.pools import NodePools, check
from cagrpc.backends.karpenter.settings import KarpenterSettings
from cagrpc.backends.karpenter.store import ClaimStore
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.errors import InvalidConfiguration


def open_backend(settings: KarpenterSettings, context: BackendContext) -> OpenBackend:
    """Raises InvalidConfiguration with every NodePool that would fight us and what to change, and Unavailable where the
    cluster cannot be reached."""
    if context.client is None:
        raise InvalidConfiguration(["kubernetes: is missing; NodeClaims are objects of the cluster that it names"])
    client = context.client
    check(client, settings.node_pools)
    claims = ClaimStore(client, settings.fleet, settings.unavailable_offerings_seconds, context.clock, context.changed)
    pools = NodePools(client, settings.node_pools)
    claims.start()
    pools.start()

    def close() -> None:
        claims.stop()
        pools.stop()

    return OpenBackend(KarpenterBackend(client, settings, claims, pools), close)
