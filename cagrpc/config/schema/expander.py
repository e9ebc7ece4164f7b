"""The section `expander`: whether it decides, and what is known of node groups that the autoscaler has from a cloud
provider of its own."""

from __future__ import annotations

from pydantic import Field

from cagrpc.controllers.settings import AutoscalerConfigMapSettings, ExpanderMode
from cagrpc.fleet.prices import PriceRule
from cagrpc.forms import FilePath, Form


class ExpanderForm(Form):
    """What the cluster-autoscaler is answered."""

    mode: ExpanderMode = ExpanderMode.DECIDE
    """Whether the expander decides, or answers all options and records what it would have chosen."""
    prices: FilePath | None = None
    """A CSV file of what nodes cost: the columns instance_type, usd_per_hour and, where they matter, zone and
    capacity_type. Where it has no row the catalogue's price applies."""
    price_rule: PriceRule = Field(default_factory=PriceRule)
    """Prices a node by its CPU, memory and GPUs where neither the table nor the catalogue has a price."""
    config_maps: AutoscalerConfigMapSettings | None = None
    """Which ConfigMaps of the cluster-autoscaler are read, for sizes, back-offs and priorities of its node groups. The
    default is none; `{}` reads those in kube-system. It takes `kubernetes`, and rights to read them."""
