"""The backend over other externalgrpc providers. What was asked of a group, and what came of it, is in `orders`; the
calls are in `client`. What is asked is in the journal before it is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cagrpc import errors
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.backends.externalgrpc.client import Channel, ProviderClient, RefusedCall
from cagrpc.backends.externalgrpc.orders import GroupOrders, OrdersOfGroup
from cagrpc.backends.externalgrpc.plugin import ProviderAccess
from cagrpc.backends.plugin import BackendContext, FoundGroup, OpenBackend
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.log_once import LogOnce
from solver.model.quantities import pluralize

_log = logging.getLogger(__name__)

_TEMPLATE_SECONDS = 600.0
"""How old the template and the price of a group may be."""
_MOST_NOTES = 20
"""Told of a provider in the status; the log has all."""
_FAKE_NODE = "k8s.io/cluster-autoscaler/fake-node-reason"
"""The annotation by which CA tells providers that a node it names has not registered (clusterstate.go)."""

Nodes = Callable[[str], pb.ExternalGrpcNode]
"""Returns the Node of an instance, by its id, as CA would tell it."""


@dataclass(slots=True)
class _FollowedGroup:
    """A group that a provider has, or had a moment ago."""

    provider: _Provider
    orders: OrdersOfGroup
    found: FoundGroup | None = None
    """None where it has no template."""
    template_at_seconds: float = float("-inf")
    kept: GroupOrders = field(default_factory=GroupOrders)
    """What the journal has of it."""
    gave_back_at_seconds: float = float("-inf")
    gives_back: bool = False
    """Whether it is not known yet what came of that."""
    gone_since_seconds: float | None = None
    """Since when the provider does not have it."""


@dataclass(slots=True)
class _Provider:
    client: ProviderClient
    problem: str | None = None
    """Why it cannot be reached."""
    listed: bool = False

    @property
    def called(self) -> str:
        return self.client.access.called

    @property
    def behind_seconds(self) -> float:
        return self.client.access.behind_seconds


class ExternalGrpcBackend:
    """A `Backend` over providers, each with its node groups. For one thread at a time."""

    def __init__(
        self, clients: Sequence[ProviderClient], records: BackendRecords, clock: EpochClock, nodes: Nodes
    ) -> None:
        """Raises InvalidConfiguration where what the journal has cannot be read, and Unavailable."""
        self._providers = [_Provider(each) for each in clients]
        self._records = records
        self._clock = clock
        self._nodes = nodes
        self._groups: dict[str, _FollowedGroup] = {}
        self._found: tuple[FoundGroup, ...] = ()
        self._reported = LogOnce()
        self._status: Mapping[str, str] = {each.called: "was not asked yet" for each in self._providers}
        self._last: Listing | None = None
        """The last list, where nothing was asked of a provider since."""
        self._held_back = False
        """Whether something waits for a doubt since then."""
        self._kept: dict[str, GroupOrders] = {}
        for key, value in records.read().items():
            try:
                self._kept[key] = GroupOrders.from_json(value)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise errors.InvalidConfiguration(
                    [f"journal: backend record {key} cannot be read ({type(error).__name__}: {error}); restore it"]
                ) from error

    @property
    def pace(self) -> Pace:
        access = [each.client.access for each in self._providers]
        return Pace(min(e.list_every_seconds for e in access), max(e.behind_seconds for e in access))

    @property
    def problem(self) -> str | None:
        return "; ".join(each.problem for each in self._providers if each.problem) or None

    def status(self) -> Mapping[str, str]:
        """Return what the last list found of each provider, and what there is to be said of its groups. Thread-safe."""
        return self._status

    def node_groups(self) -> Sequence[FoundGroup]:
        """Return the groups of the last list that have a template; the same object until one changes."""
        present = [each.found for each in self._groups.values() if each.gone_since_seconds is None]
        found = tuple(each for each in present if each is not None)
        if found != self._found:
            self._found = found
        return self._found

    def list_instances(self) -> Listing:
        as_of = self._clock()
        held_back, self._held_back = self._held_back, False
        if held_back and self._last and 0 <= as_of - self._last.as_of_seconds < self.pace.list_every_seconds:
            return self._last
        for provider in self._providers:
            try:
                self._look(provider)
                provider.listed, provider.problem = True, None
            except errors.Unavailable as error:
                provider.problem = str(error)
                if not provider.listed:
                    raise
            finally:
                self._status = {**self._status, provider.called: "; ".join(self._told(provider))}
        if all(each.problem for each in self._providers):
            raise errors.Unavailable(self.problem or "")
        self._write(self._groups.values())
        for group in self._groups.values():
            if group.provider.problem is None and group.gone_since_seconds is None:
                self._give_back(group)
        self._say((each.called, each.problem) for each in self._providers if each.problem)
        found = [item for each in self._groups.values() for item in each.orders.instances()]
        self._last = Listing(tuple(instance for _, instance in sorted(found, key=lambda item: item[0])), as_of)
        return self._last

    def _told(self, provider: _Provider) -> Iterator[str]:
        groups = {
            name: each
            for name, each in self._groups.items()
            if each.provider is provider and each.gone_since_seconds is None
        }
        yield provider.problem or f"answers; it has {pluralize(len(groups), 'node group')}"
        notes = [
            *(f"{name}: has no template, so it is left out" for name, each in groups.items() if each.found is None),
            *(f"{name}: an increase is in doubt" for name, each in groups.items() if each.orders.orders.doubt),
            *(f"{name}: {note}" for name, each in groups.items() for note in _notes(each.orders).values()),
        ]
        yield from notes[:_MOST_NOTES]
        if len(notes) > _MOST_NOTES:
            yield f"and {len(notes) - _MOST_NOTES} more"

    def _look_first(self) -> None:
        """Look at providers that this process has not seen yet."""
        for provider in self._providers:
            if not provider.listed:
                self._look(provider)
                provider.listed = True
        self._write(self._groups.values())

    def order(self, order: Order) -> None:
        self._look_first()
        wanted: dict[str, list[str]] = {}
        for instance in order.instances:
            if instance.token in order.wanted:
                wanted.setdefault(instance.group.id, []).append(instance.token)
        now = self._clock()
        known = {name: self._groups[name].orders for name in wanted if name in self._groups}
        self._hold_back({name: orders.order_waits_seconds(wanted[name], now) for name, orders in known.items()})
        work: list[tuple[_FollowedGroup, tuple[str, ...]]] = []
        for group_id, tokens in wanted.items():
            group = self._groups.get(group_id)
            if group is None or group.gone_since_seconds is not None:
                raise errors.OrderMisconfigured(f"no provider has node group {group_id} any more", [group_id])
            self._look_at(group, refresh=True)
            self._write([group])
            if new := group.orders.unknown(tokens):
                self._refuse_in_doubt(group)
                work.append((group, new))
        for group, new in work:
            self._increase(group, new)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self._look_first()
        group = self._groups.get(instances[0].node_group) if instances else None
        if group is None:
            return
        self._hold_back({group.orders.group: group.orders.deletion_waits_seconds(self._clock())})
        self._look_at(group, refresh=True)
        if seconds := group.orders.doubt_seconds(self._clock()):
            raise errors.Unavailable(
                f"node group {group.orders.group}: an increase is in doubt for up to {seconds:.0f} s, from which a"
                " deletion could not be told"
            )
        ids = group.orders.delete(instances, self._clock())
        self._write([group])
        if ids:
            self._delete(group, ids)
        self._give_back(group)

    # ---- what the providers have

    def _look(self, provider: _Provider) -> None:
        """Look at all groups of a provider."""
        now, groups = self._clock(), provider.client.groups()
        names = set()
        for each in groups:
            group = self._group(provider, each.id)
            if group is None:
                continue
            names.add(each.id)
            group.gone_since_seconds = None
            self._describe(group, each, now)
            self._look_at(group)
        for key, group in list(self._groups.items()):
            if group.provider is provider and key not in names:
                self._gone(key, group, now)

    def _group(self, provider: _Provider, group_id: str) -> _FollowedGroup | None:
        """Return the group, a new one where it was not there before; None where another provider has one of its id."""
        group = self._groups.get(group_id)
        if group is None:
            kept = self._kept.pop(group_id, GroupOrders())
            orders = OrdersOfGroup(group_id, kept, provider.behind_seconds)
            group = self._groups[group_id] = _FollowedGroup(provider, orders, kept=kept)
        if group.provider is not provider:
            why = f"{group.provider.called} has a node group of this id, too"
            self._say([(f"node group {group_id} of {provider.called}", f"is left out: {why}")])
            return None
        return group

    def _describe(self, group: _FollowedGroup, told: pb.NodeGroup, now: float) -> None:
        """Bring template, price and sizes up to date."""
        found, client = group.found, group.provider.client
        template, price = (b"", None) if found is None else (found.template, found.price_usd_per_hour)
        if now - group.template_at_seconds >= _TEMPLATE_SECONDS:
            template = client.template(told.id) or template
            price = client.price(template, now) if template else None
            group.template_at_seconds = now
        if not template:
            self._say([(f"node group {told.id}", f"{group.provider.called} has no template of it, so it is left out")])
            group.found = None
            return
        new = FoundGroup(told.id, told.minSize, told.maxSize, template, price)
        group.found = found if new == found else new

    def _gone(self, key: str, group: _FollowedGroup, now: float) -> None:
        """Forget a group that the provider does not have any more, once it has been so for long."""
        since = group.gone_since_seconds = now if group.gone_since_seconds is None else group.gone_since_seconds
        if now - since < group.provider.behind_seconds:
            return
        del self._groups[key]
        group.orders.orders = GroupOrders()
        self._write([group])
        _log.info("node group %s: %s does not have it any more", key, group.provider.called)

    def _look_at(self, group: _FollowedGroup, *, refresh: bool = False) -> None:
        client, orders = group.provider.client, group.orders
        if refresh:
            client.refresh()
        orders.look(client.look(orders.group), self._clock())
        self._say((f"node group {orders.group}: {kind}", note) for kind, note in _notes(orders).items())

    def _write(self, groups: Iterable[_FollowedGroup]) -> None:
        """Journal what has changed."""
        changed = [each for each in groups if each.orders.orders != each.kept]
        if changed:
            self._records.write(
                {
                    each.orders.group: None if each.orders.orders == GroupOrders() else each.orders.orders.to_json()
                    for each in changed
                }
            )
            for each in changed:
                each.kept = each.orders.orders

    # ---- what is asked of them

    def _hold_back(self, waits_seconds: Mapping[str, float]) -> None:
        """Raise Unavailable where a group has to wait. The fleet asks again each second, and its lists tell when that
        is over: a provider that was asked as often would soon refuse, as some clouds take so many calls an hour."""
        name = max(waits_seconds, key=lambda each: waits_seconds[each], default="")
        if name and (seconds := waits_seconds[name]) > 0:
            self._held_back = True
            raise errors.Unavailable(f"node group {name}: what it was asked is in doubt for up to {seconds:.0f} s")
        self._last = None

    def _refuse_in_doubt(self, group: _FollowedGroup) -> None:
        name, now = group.orders.group, self._clock()
        if waits := group.orders.deletion_doubt_seconds(now):
            raise errors.Unavailable(
                f"node group {name}: a deletion is in doubt for up to {waits:.0f} s, from which an increase could not"
                " be told"
            )
        doubt, seconds = group.orders.orders.doubt, group.orders.doubt_seconds(now)
        if doubt is None:
            return
        if doubt.refused:
            raise errors.OutOfCapacity(
                f"node group {name}: the provider refused an increase a moment ago; it is asked again in"
                f" {seconds:.0f} s, once nothing can come of that any more",
                [name],
                retry_after_seconds=seconds,
            )
        raise errors.Unavailable(f"node group {name}: an increase is in doubt for up to {seconds:.0f} s")

    def _increase(self, group: _FollowedGroup, tokens: Sequence[str]) -> None:
        """Raise the target for these tokens, which is in the journal before, with what it was."""
        orders, client = group.orders, group.provider.client
        count = orders.begin(tokens, self._clock())
        self._write([group])
        if not count:
            return
        try:
            client.increase(orders.group, count)
        except RefusedCall as refusal:
            self._look_at(group, refresh=True)
            if orders.orders.doubt is None:  # it was done all the same
                self._write([group])
                return
            orders.refuse()
            self._write([group])
            raise errors.REFUSALS[refusal.kind](
                f"node group {orders.group}: provider {group.provider.called}: {refusal}", [orders.group]
            ) from refusal
        orders.accept()
        self._write([group])

    def _delete(self, group: _FollowedGroup, ids: Sequence[str]) -> None:
        """Delete instances, which the journal has as being deleted. Raises Unavailable where it is not known what was
        done: it is asked again once the provider's target shows that nothing was."""
        orders, client = group.orders, group.provider.client
        failed = {each.id for each in orders.seen.instances if each.error is not None}
        nodes = []
        for each in ids:
            node = self._nodes(each)
            if node.name == each:
                node.annotations[_FAKE_NODE] = "create-error" if each in failed else "unregistered"
            nodes.append(node)
        try:
            client.delete(orders.group, nodes)
        except RefusedCall as refusal:
            raise errors.Unavailable(
                f"node group {orders.group}: provider {group.provider.called} does not delete {', '.join(ids[:3])}:"
                f" {refusal}; where it is the group's minimum there, let that be 0"
            ) from refusal
        orders.deleted(ids)
        self._write([group])

    def _give_back(self, group: _FollowedGroup) -> None:
        """Delete what has come for nobody, and placeholders of what is owed. A provider may cancel more than was asked
        (AWS sets the target to what is there), so what is still wanted is ordered anew."""
        orders, now = group.orders, self._clock()
        if orders.doubt_seconds(now):
            return
        due, orders.due_deletions = sorted(orders.due_deletions), set()
        waits = now - group.gave_back_at_seconds < group.provider.behind_seconds
        placeholders = [] if waits else orders.give_back(now)
        fell = waits and group.gives_back and orders.unaccounted() < 0  # so it was done, though nobody answered
        if not due and not placeholders and not fell:
            return
        self._records.write({orders.group: orders.orders.to_json()})  # which only the leader can
        group.kept = orders.orders
        try:
            if due:
                self._delete(group, due)
            if placeholders:
                group.gave_back_at_seconds, group.gives_back = now, True
                group.provider.client.delete(orders.group, [self._nodes(each) for each in placeholders])
                self._look_at(group, refresh=True)
            if placeholders or fell:
                group.gives_back = False
                orders.given_back()
                if lost := orders.lost():
                    self._increase(group, lost)
        except (RefusedCall, errors.OrderRefused, errors.Unavailable) as error:
            self._say([(f"node group {orders.group}: giving back", str(error))])
        self._write([group])

    def _say(self, found: Iterable[tuple[str, str | None]]) -> None:
        """Log what is told of each subject, once."""
        for about, sentence in found:
            if self._reported.is_new(sentence, about=about):
                _log.warning("%s: %s", about, sentence)


def _notes(orders: OrdersOfGroup) -> Mapping[str, str]:
    """Return what is to be told of a group, by what it is about."""
    owed = orders.orders.owed
    return {**orders.notes, **({"owed": _owed(owed)} if owed else {})}


def _owed(count: int) -> str:
    return (
        f"{count} of its target were ordered, are not wanted any more and were never listed: they are taken by the next"
        " order, or deleted once they come"
    )


class ClusterNodes:
    """Tells providers of Nodes as CA does: with name, labels and annotations, by which some know what to delete."""

    def __init__(self, client: Client | None, names: Callable[[], Mapping[str, str]]) -> None:
        self._client = client
        self._names = names

    def __call__(self, instance_id: str) -> pb.ExternalGrpcNode:
        """Return the Node of an instance; one of the instance's name where it has none."""
        node = pb.ExternalGrpcNode(providerID=instance_id, name=instance_id)
        try:
            name = self._names().get(instance_id)
            found = None if name is None or self._client is None else self._client.get(f"/api/v1/nodes/{name}")
        except (errors.Unavailable, errors.NotFound):
            return node
        if name is not None and found is not None:
            metadata = found.get("metadata", {})
            node.name = name
            node.labels.update(metadata.get("labels") or {})
            node.annotations.update(metadata.get("annotations") or {})
        return node


def open_backend(settings: Sequence[ProviderAccess], context: BackendContext) -> OpenBackend:
    """Open it; nothing is asked of a provider yet. Raises InvalidConfiguration and Unavailable."""
    with ExitStack() as undo:
        clients = []
        for access in settings:
            channel = Channel(access.address, access.tls)
            undo.callback(channel.close)
            clients.append(ProviderClient(access, channel))
        opened = opened_over(clients, context)
        close = undo.pop_all().close
    return OpenBackend(opened, close, node_groups=opened.node_groups, status=opened.status)


def opened_over(clients: Sequence[ProviderClient], context: BackendContext) -> ExternalGrpcBackend:
    """Return the backend over these clients."""
    if context.records is None:
        raise errors.InvalidConfiguration(["backend.externalgrpc: needs a journal, and this process has none"])
    nodes = ClusterNodes(context.client, context.node_names)
    return ExternalGrpcBackend(clients, context.records, context.clock, nodes)
