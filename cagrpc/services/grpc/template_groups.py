"""Node groups that the autoscaler has from a cloud provider of its own. A BestOptionsRequest has a template Node of
each (upstream: expander/grpcplugin), which says what planning needs but for three things: the weight is that of the
provisioner that takes the group in, or by the autoscaler's own priorities; the price is looked up by the template's
labels; how many nodes there are and may be is in the autoscaler's status. Where that is not read, its estimate is
trusted: it offers no group that is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cagrpc.api.core.nodes import node_of_document
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import CAPACITY_TYPE, INSTANCE_TYPE, ZONE, Catalogue
from cagrpc.fleet.prices import NodePlace, PriceList, PriceRule, place_of
from cagrpc.fleet.provisioners import Provisioner
from solver.model import CPU, HOSTNAME, PODS, UNLIMITED_SIZE, Labels, NodeGroup, Taint
from solver.model.validation import MAX_AMOUNT

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.controllers.autoscaler import AutoscalerConfigMaps, GroupSize

LARGEST_TEMPLATE_BYTES = 64 * 1024
LONGEST_ID = 300
"""Of a node group: a URL of Compute Engine has about 150 characters. Patterns are searched for in it."""
_UNKNOWN: Mapping[str, GroupSize] = {}
_MOST_USD_PER_HOUR = 10_000.0
_LONGEST_REASON = 200
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
        self._prices = prices or PriceList(self._catalogue)
        self._rule = rule or PriceRule()
        self._config_maps = config_maps

    def read(self, group_id: str, template: bytes) -> TemplateGroup:
        """Return the group of a serialised v1.Node."""
        if len(group_id) > LONGEST_ID:
            return TemplateGroup(why_not=f"has an id of {len(group_id)} characters, more than {LONGEST_ID}")
        if len(template) > LARGEST_TEMPLATE_BYTES:
            return _unreadable(f"it has {len(template)} bytes, more than {LARGEST_TEMPLATE_BYTES}")
        problems: Problems = []
        try:
            node = node_of_document(message_to_dict(parse(kubernetes_pb2.Node, template)), "", problems)
        except InvalidInput as error:
            return _unreadable(str(error))
        if not problems and not node.allocatable.get(CPU):
            problems.append("status.allocatable has no cpu")
        if problems:
            return _unreadable(problems[0])
        labels = {key: value for key, value in node.labels.items() if key != HOSTNAME}
        place = place_of(labels)
        known = self._prices.of(place)
        price = known if known is not None else self._rule.price(node.allocatable, place.capacity_type)
        offers = {PODS: 0, **{name: min(amount, MAX_AMOUNT) for name, amount in node.allocatable.items()}}
        weight = self._weight(group_id, labels, node.taints, place)
        size = self._size(group_id)
        group = NodeGroup(
            group_id,
            offers,
            min(price, _MOST_USD_PER_HOUR),
            labels,
            node.taints,
            max_size=size.max_size if size is not None else UNLIMITED_SIZE,
            target_size=size.target_size if size is not None else 0,
            weight=weight,
            **place._asdict(),
        )
        return TemplateGroup(group, estimated=known is None)

    @property
    def sizes(self) -> Mapping[str, GroupSize]:
        """Return what the autoscaler's status says, by group id; nothing where it is not read."""
        return self._config_maps.sizes if self._config_maps is not None else _UNKNOWN

    def _size(self, group_id: str) -> GroupSize | None:
        found = self.sizes.get(group_id)
        # The status is some seconds old: a group that is offered is not full, whatever it says.
        return found if found is not None and 0 <= found.target_size < found.max_size else None

    def _weight(self, group_id: str, labels: Labels, taints: Sequence[Taint], place: NodePlace) -> int:
        kind = self._catalogue.instance_types.get(place.instance_type)
        known = {key: value for key, value in zip(_PLACE_LABELS, place, strict=True) if value}
        said = {**(kind.labels if kind is not None else {}), **known, **labels}
        found = next((each.weight for each in self._provisioners if each.takes_in(group_id, said, taints)), None)
        if found is not None:
            return found
        return self._config_maps.priorities.weight(group_id) if self._config_maps is not None else 0


def _unreadable(why: str) -> TemplateGroup:
    return TemplateGroup(why_not=f"has a template that cannot be read: {why[:_LONGEST_REASON]}")
