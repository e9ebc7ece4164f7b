"""Node groups that the autoscaler has from a cloud provider of its own. A BestOptionsRequest has a template Node of
each (upstream: expander/grpcplugin), which says what planning needs but for three things: the weight is that of the
provisioner that takes the group in, or by the autoscaler's own priorities; the price is looked up by the template's
labels; how many nodes there are and may be is in the autoscaler's status. Where that is not read, its estimate is
trusted: it offers no group that is full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cagrpc.api.autoscaler.expander import Option
from cagrpc.api.core.nodes import node_of_document
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import CAPACITY_TYPE, INSTANCE_TYPE, ZONE, Catalogue
from cagrpc.fleet.prices import NodePlace, NodePrices, PriceList, PriceRule, place_of
from cagrpc.fleet.provisioners import Provisioner
from solver.model import CPU, HOSTNAME, PODS, UNLIMITED_SIZE, Labels, NodeGroup, PodSpec, Taint
from solver.model.capacity import new_node
from solver.model.quantities import format_quantity
from solver.model.validation import MAX_AMOUNT

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.controllers.autoscaler import AutoscalerConfigMaps, GroupSize

LARGEST_TEMPLATE_BYTES = 64 * 1024
LONGEST_ID = 300
"""Of a node group: a URL of Compute Engine has about 150 characters. Patterns are searched for in it."""
_UNKNOWN: Mapping[str, GroupSize] = {}
_MOST_USD_PER_HOUR = 10_000.0
_LONGEST_REASON, _LONGEST_SHOWN = 200, 100
_PLACE_LABELS = (INSTANCE_TYPE, ZONE, CAPACITY_TYPE)


@dataclass(frozen=True, slots=True)
class TemplateGroup:
    """One of the autoscaler's own groups."""

    group: NodeGroup | None = None
    """None where the template cannot be read."""
    why_not: str = ""
    estimated: bool = False
    """Whether no price is known, so that the rule's stands for it: groups are compared by what their nodes have."""


class TemplateGroups:
    """Reads templates. Thread-safe."""

    def __init__(
        self,
        provisioners: Sequence[Provisioner] = (),
        catalogue: Catalogue | None = None,
        prices: PriceList | None = None,
        rule: PriceRule | None = None,
        config_maps: AutoscalerConfigMaps | None = None,
    ) -> None:
        """Of several provisioners that take a group in, the one of the highest weight has it."""
        self._provisioners = sorted(provisioners, key=lambda each: -each.weight)
        self._catalogue = catalogue or Catalogue((), {})
        self._prices = NodePrices(prices or PriceList(self._catalogue), rule)
        self._config_maps = config_maps

    def read(self, group_id: str, template: bytes, price_usd_per_hour: float | None = None) -> TemplateGroup:
        """Return the group of a serialised v1.Node. A price that its cloud tells comes after the user's table, and
        before the catalogue."""
        if len(group_id) > LONGEST_ID:
            return TemplateGroup(why_not=f"has an id of {len(group_id)} characters, more than {LONGEST_ID}")
        if len(template) > LARGEST_TEMPLATE_BYTES:
            return _unreadable(f"it has {len(template)} bytes, more than {LARGEST_TEMPLATE_BYTES}")
        problems: Problems = []
        try:
            node = node_of_document(message_to_dict(parse(kubernetes_pb2.Node, template)), problems)
        except InvalidInput as error:
            return _unreadable(str(error))
        if not problems and not node.allocatable.get(CPU):
            problems.append("status.allocatable has no cpu")
        if problems:
            return _unreadable(problems[0])
        labels = {**node.labels, HOSTNAME: ""}  # CA's node has another one than its template
        place = place_of(labels)
        price = self._prices.of(place, node.allocatable, price_usd_per_hour)
        offers = {PODS: 0, **{name: min(amount, MAX_AMOUNT) for name, amount in node.allocatable.items()}}
        taker = self._taker(group_id, labels, node.taints, place)
        size = self._size(group_id)
        group = NodeGroup(
            group_id,
            offers,
            min(price.usd_per_hour, _MOST_USD_PER_HOUR),
            labels,
            node.taints,
            max_size=size.max_size if size is not None else UNLIMITED_SIZE,
            target_size=size.target_size if size is not None else 0,
            weight=taker.weight if taker is not None else self._priority(group_id),
            provisioner=taker.name if taker is not None else "",
            **place._asdict(),
        )
        return TemplateGroup(group, estimated=price.estimated)

    @property
    def sizes(self) -> Mapping[str, GroupSize]:
        """Return what the autoscaler's status says, by group id; nothing where it is not read."""
        return self._config_maps.sizes if self._config_maps is not None else _UNKNOWN

    def _size(self, group_id: str) -> GroupSize | None:
        found = self.sizes.get(group_id)
        # The status is some seconds old: a group that is offered is not full, whatever it says.
        return found if found is not None and 0 <= found.target_size < found.max_size else None

    def _taker(self, group_id: str, labels: Labels, taints: Sequence[Taint], place: NodePlace) -> Provisioner | None:
        kind = self._catalogue.instance_types.get(place.instance_type)
        known = {key: value for key, value in zip(_PLACE_LABELS, place, strict=True) if value}
        said = {**(kind.labels if kind is not None else {}), **known, **labels}
        return next((each for each in self._provisioners if each.takes_in(group_id, said, taints)), None)

    def _priority(self, group_id: str) -> int:
        return self._config_maps.priorities.weight(group_id) if self._config_maps is not None else 0


def as_estimated(group: NodeGroup, option: Option, daemon_sets: Sequence[PodSpec]) -> tuple[NodeGroup, str]:
    """Return the group with no more room on a node than the autoscaler's estimate proves that it has, and what is
    inferred, for people; the group as it is, and nothing, where that proves nothing.

    Of pods that are alike, one of `n` nodes at least is not full only where the others have `ceil(pods / (n - 1)) - 1`
    of them at most. Where the template, less `daemon_sets`, has room for more, something runs on nodes that it does not
    show. An estimate of more than twice the nodes is none of packing: such groups are scaled to their maximum at once.
    """
    specs = {pod.spec for pod in option.pods}
    asked = dict(next(iter(specs)).requests) if specs else {}
    if option.node_count < 2 or not asked or any(_minds_others(each) or dict(each.requests) != asked for each in specs):
        return group, ""
    asked[PODS] = 1
    most = math.ceil(len({pod.key for pod in option.pods}) / (option.node_count - 1)) - 1
    free = new_node(group, daemon_sets).free
    room = min(free.get(name, 0) // amount for name, amount in asked.items())
    if not 0 < most < room <= 2 * most:
        return group, ""
    lacking = {name: free[name] + 1 - amount * (most + 1) for name, amount in asked.items()}
    scarce = min(lacking, key=lambda name: lacking[name] / group.allocatable[name])
    left = {**group.allocatable, scarce: group.allocatable[scarce] - lacking[scarce]}
    amount = format_quantity(scarce, lacking[scarce])
    said = f"by its estimate {group.id[:_LONGEST_SHOWN]} has room for {most} such pods on a node, not {room}"
    return replace(group, allocatable=left), f"{said}: {amount} of {scarce} is taken to be in use"


def _minds_others(spec: PodSpec) -> bool:
    """Return whether not only resources decide how many such pods a node takes."""
    return bool(
        spec.unschedulable
        or spec.host_ports
        or spec.claims
        or spec.pod_affinity
        or spec.pod_anti_affinity
        or spec.topology_spread
    )


def _unreadable(why: str) -> TemplateGroup:
    return TemplateGroup(why_not=f"has a template that cannot be read: {why[:_LONGEST_REASON]}")
