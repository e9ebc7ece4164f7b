"""The Karpenter backend: an instance is a NodeClaim that Karpenter launches or deletes. What is known of them is in
`store`, NodePools that would fight us in `pools`."""

from __future__ import annotations

from collections.abc import Sequence

from cagrpc import errors
from cagrpc.backends.karpenter.claims import NODE_CLAIMS, body, claim, expected, name_of, offering_of, path_of
from cagrpc.backends.karpenter.plugin import KarpenterSettings, Parameters, node_pool
from cagrpc.backends.karpenter.pools import NodePools, check, explained, why_not_ready
from cagrpc.backends.karpenter.store import ClaimStore
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.backend import BackendInstance, Listing, Order, OrderedInstance, Pace
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden
from cagrpc.kube.client.parallel import in_parallel
from solver.model import NodeGroup

ABSENT_AFTER_SECONDS = 2.0
"""A watch is behind by less."""
_WORKERS = 16
"""NodeClaims created or deleted at a time: some hundreds a second, less than Karpenter itself asks of the API server
(--kube-client-qps 200)."""


class KarpenterBackend:
    """A `Backend` over a cluster with Karpenter, as the two stores show it, which somebody else starts and stops."""

    def __init__(self, client: Client, settings: KarpenterSettings, store: ClaimStore, pools: NodePools) -> None:
        self._client = client
        self._settings = settings
        self._store = store
        self._pools = pools

    @property
    def pace(self) -> Pace:
        return Pace(absent_after_seconds=ABSENT_AFTER_SECONDS)

    @property
    def problem(self) -> str | None:
        return "; ".join(explained(self._pools.fighting.values())) or None

    def list_instances(self) -> Listing:
        store = self._store
        if reason := store.problem:
            raise errors.Unavailable(reason)
        if not store.synced:
            raise errors.Unavailable(f"{self._client.server}: NodeClaims are not listed yet")
        for each in store.overdue():
            try:
                store.applied(claim(self._client.get(path_of(each.name))))
            except errors.NotFound:
                store.absent(each)
        self._explain()
        instances, as_of_seconds = store.listing()
        return Listing(instances, as_of_seconds)

    def order(self, order: Order) -> None:
        wanted = [each for each in order.instances if each.token in order.wanted]
        new = [each for each in wanted if not self._store.knows(expected(each))]
        groups = list({each.group.id: each.group for each in new}.values())
        self._refuse_fighting(groups)
        self._refuse_short(groups)
        in_parallel("nodeclaim", lambda each: self._create(order, each), new, _WORKERS)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        in_parallel("nodeclaim", lambda each: self._delete(each.token), instances, _WORKERS)

    def _explain(self) -> None:
        """Say of NodeClaims that went without an Event why that may be."""
        unexplained = self._store.unexplained()
        not_ready = {
            found: why_not_ready(self._client, found) for found in {each.node_class for each in unexplained} if found
        }
        for each in unexplained:
            self._store.explain(each.name, not_ready.get(each.node_class) if each.node_class else None)

    def _refuse_fighting(self, groups: Sequence[NodeGroup]) -> None:
        fighting = self._pools.fighting
        of_them = [group.id for group in groups if node_pool(group) in fighting]
        if of_them:
            names = {node_pool(group) for group in groups}
            said = explained(pool for name, pool in fighting.items() if name in names)
            raise errors.OrderMisconfigured("; ".join(said), of_them)

    def _refuse_short(self, groups: Sequence[NodeGroup]) -> None:
        """Karpenter would launch nothing of these offerings, and so nothing of the increment is asked for."""
        seconds = {group.id: self._store.short_for(offering_of(group)) for group in groups}
        short = [group for group in groups if seconds[group.id]]
        if short:
            longest = max(seconds.values())
            offerings = ", ".join(dict.fromkeys(str(offering_of(group)) for group in short))
            raise errors.OutOfCapacity(
                f"{offerings}: short a moment ago, and Karpenter will not try again for {longest:.0f} s",
                [group.id for group in short],
                retry_after_seconds=longest,
            )

    def _create(self, order: Order, instance: OrderedInstance) -> None:
        group, sent = instance.group, expected(instance)
        self._store.sending(sent)
        try:
            self._client.create(NODE_CLAIMS, body(order, instance, self._parameters(group), self._settings.fleet))
        except errors.Conflict:
            self._store.not_created(sent.name)  # it exists: an earlier answer was lost
        except (errors.InvalidInput, errors.NotFound, Forbidden) as error:
            self._store.not_created(sent.name)
            raise errors.OrderMisconfigured(str(error), [group.id]) from error
        except BaseException:
            self._store.not_created(sent.name)
            raise

    def _parameters(self, group: NodeGroup) -> Parameters:
        try:
            return self._settings.parameters[group.id]
        except KeyError:
            raise errors.InvalidInput(f"node group {group.id} is no longer configured") from None

    def _delete(self, token: str) -> None:
        name = name_of(token)
        found = self._store.claim(name)
        self._store.deleting(name)
        try:
            self._client.delete(path_of(name), uid=found.uid if found is not None else "")
        except BaseException:
            self._store.not_deleted(name)
            raise


def open_backend(settings: KarpenterSettings, context: BackendContext) -> OpenBackend:
    """Open it. Raises InvalidConfiguration with every NodePool that would fight us and what to change, and Unavailable
    where the cluster cannot be reached."""
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
