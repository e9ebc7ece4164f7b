"""The section `expander`: what is known of node groups that the autoscaler has from a cloud provider of its own."""

from __future__ import annotations

from pydantic import Field

from cagrpc.fleet.prices import PriceRule
from cagrpc.forms import FilePath, Form


class ExpanderForm(Form):
    """Answers about node groups of the autoscaler's own cloud provider."""

    prices: FilePath | None = None
    """A CSV file of what nodes cost: the columns instance_type, usd_per_hour and, where they matter, zone and
    capacity_type. The catalogue comes after it."""
    price_rule: PriceRule = Field(default_factory=PriceRule)
    """What a node costs by what it has, where neither says."""
