"""Hourly prices of nodes and pods, from the node groups' prices, for CA's price expander."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cagrpc.api.core.nodes import INSTANCE_TYPE, ZONE, group_labels
from solver.model import PODS, NodeGroup, PodSpec
from solver.model.eligibility import why_not_eligible


def node_price(group: NodeGroup | None, labels: Mapping[str, str], groups: Iterable[NodeGroup]) -> float | None:
    """Return a node's price in US dollars per hour: its own group's, otherwise that of the cheapest group of its
    instance type, in its zone if there is one. None where no such group exists."""
    if group is not None:
        return group.price_usd_per_hour
    alike = [g for g in groups if g.instance_type and g.instance_type == labels.get(INSTANCE_TYPE)]
    in_zone = [g for g in alike if g.zone == labels.get(ZONE)]
    return min((g.price_usd_per_hour for g in in_zone or alike), default=None)


def pod_price(spec: PodSpec, groups: Iterable[NodeGroup]) -> float | None:
    """Return a pod's price in US dollars per hour: the least, over the groups that can run it, of the group's price
    times the largest share it takes of any allocatable resource (`pods` among them). None where no group can run it."""
    return min((price for group in groups if (price := _share(spec, group)) is not None), default=None)


def _share(spec: PodSpec, group: NodeGroup) -> float | None:
    if why_not_eligible(spec, group_labels(group), group.taints) is not None:
        return None
    asked = (*spec.requests, *([(PODS, 1)] if PODS in group.allocatable else []))
    if any(amount > group.allocatable.get(resource, 0) for resource, amount in asked):
        return None
    shares = (amount / group.allocatable[resource] for resource, amount in asked)
    return group.price_usd_per_hour * max(shares, default=0.0)
