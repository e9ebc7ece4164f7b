"""What nodes cost: a table of the user's, the catalogue where that says nothing, and a rule by what a node has where
neither does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from pydantic import Field

from cagrpc.fleet.catalogue import CAPACITY_TYPE, DEFAULT_CAPACITY_TYPE, INSTANCE_TYPE, NVIDIA_GPU, ZONE, Catalogue
from cagrpc.forms import Section
from solver.model import CPU, MEMORY, Labels, NodeGroup, Resources

_ZONES = (ZONE, "failure-domain.beta.kubernetes.io/zone")
_TYPES = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")
_CAPACITY_TYPES: Mapping[str, Mapping[str, str]] = {
    "eks.amazonaws.com/capacityType": {"SPOT": "spot", "ON_DEMAND": "on-demand", "CAPACITY_BLOCK": "reserved"},
    "cloud.google.com/gke-provisioning": {"spot": "spot", "standard": "on-demand"},
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-preemptible": {"true": "spot"},
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on-demand"},
    "node.kubernetes.io/lifecycle": {"spot": "spot", "on-demand": "on-demand", "normal": "on-demand"},
}
"""How clouds say what Karpenter's label does."""
GPUS = (NVIDIA_GPU, "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "aws.amazon.com/neuron")
"""The resources that count as GPUs."""
_MILLICORES, _GIB = 1000, 2**30

_Dollars = Annotated[float, Field(ge=0, le=1_000_000)]


class NodePlace(NamedTuple):
    """What a price is of; an empty text stands for any zone or capacity type, and for what is not known."""

    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""

    @classmethod
    def of_group(cls, group: NodeGroup) -> Self:
        """Return where the nodes of a group are."""
        return cls(group.instance_type, group.zone, group.capacity_type)


def place_of(labels: Labels) -> NodePlace:
    """Return a node's place by its labels, whichever cloud has set them; the capacity type is `on-demand` where none
    says otherwise."""
    said = (values.get(labels.get(key, ""), "") for key, values in _CAPACITY_TYPES.items())
    capacity_type = labels.get(CAPACITY_TYPE) or next(filter(None, said), DEFAULT_CAPACITY_TYPE)
    return NodePlace(_first(labels, _TYPES), _first(labels, _ZONES), capacity_type)


def capacity_type_label(labels: Labels) -> tuple[str, str] | None:
    """Return the label, its key and value, by which a node says its capacity type; None where none says it."""
    if labels.get(CAPACITY_TYPE):
        return CAPACITY_TYPE, labels[CAPACITY_TYPE]
    said = (key for key, values in _CAPACITY_TYPES.items() if labels.get(key, "") in values)
    return next(((key, labels[key]) for key in said), None)


def _first(labels: Labels, keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


class PriceList:
    """US dollars per hour by instance type, zone and capacity type."""

    def __init__(self, catalogue: Catalogue, table: Mapping[NodePlace, float] | None = None) -> None:
        self._table = table or {}
        self._offered: dict[NodePlace, float] = {}
        self._everywhere: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
        for each in catalogue.offerings:
            name = each.instance_type.name
            self._offered[NodePlace(name, each.zone, each.capacity_type)] = each.price_usd_per_hour
            self._everywhere[name, each.capacity_type].add(each.price_usd_per_hour)

    def of(self, place: NodePlace, told_usd_per_hour: float | None = None) -> float | None:
        """Return the price of a node; None where it is not known. The table's most exact row comes first, then what its
        cloud has told, then the catalogue's offering, then that of other zones if it costs the same in all of them."""
        place = place._replace(capacity_type=place.capacity_type or DEFAULT_CAPACITY_TYPE)
        if (found := self.overrides(place)) is not None:
            return found
        if told_usd_per_hour is not None:
            return told_usd_per_hour
        if place in self._offered:
            return self._offered[place]
        everywhere = self._everywhere.get((place.instance_type, place.capacity_type), set())
        return next(iter(everywhere)) if len(everywhere) == 1 else None

    def overrides(self, place: NodePlace) -> float | None:
        """Return what the table says, if anything."""
        found = (self._table.get(each) for each in _widening(place))
        return next((each for each in found if each is not None), None)


def _widening(place: NodePlace) -> Iterable[NodePlace]:
    yield place
    yield place._replace(capacity_type="")
    yield place._replace(zone="")
    yield place._replace(zone="", capacity_type="")


class NodePrice(NamedTuple):
    """What a node costs."""

    usd_per_hour: float
    estimated: bool
    """Whether no price is known, so that the rule's stands for it."""


@dataclass(frozen=True, slots=True)
class PriceRule(Section):
    """Prices a node by its CPU, memory and GPUs where neither the table nor the catalogue has a price. The defaults are
    those of cluster-autoscaler's own model for Compute Engine (upstream: cloudprovider/gce/gce_price_info.go)."""

    usd_per_cpu_hour: _Dollars = 0.033174
    usd_per_gib_hour: _Dollars = 0.004446
    usd_per_gpu_hour: _Dollars = 0.7
    spot_factor: Annotated[float, Field(gt=0, le=1)] = 0.21
    """What a spot node costs of the price on demand."""

    def price(self, has: Resources, capacity_type: str) -> float:
        """Return US dollars per hour, which are more than 0 wherever a rate is."""
        gpus = sum(has.get(each, 0) for each in GPUS)
        whole = (
            has.get(CPU, 0) / _MILLICORES * self.usd_per_cpu_hour
            + has.get(MEMORY, 0) / _GIB * self.usd_per_gib_hour
            + gpus * self.usd_per_gpu_hour
        )
        return whole * (self.spot_factor if capacity_type == "spot" else 1.0)


class NodePrices:
    """A price for every node, of which it says whether it is known."""

    def __init__(self, known: PriceList, rule: PriceRule | None = None) -> None:
        self._known = known
        self._rule = rule or PriceRule()

    def of(self, place: NodePlace, has: Resources, told_usd_per_hour: float | None = None) -> NodePrice:
        """Return the price of a node there that has this, of which its cloud may have told one."""
        known = self._known.of(place, told_usd_per_hour)
        return NodePrice(self._rule.price(has, place.capacity_type) if known is None else known, known is None)
