"""The cost of the slack: for each node with placeholders, the share of its price that they account for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.assume_cache.slack import target_of
from cagrpc.fleet.model import FleetSnapshot
from solver.slack.model import Placement, SlackShape


def costs(
    shapes: Iterable[SlackShape], placement: Placement, nodes: Iterable[ClusterNode], fleet: FleetSnapshot
) -> Mapping[str, float]:
    """Return US dollars an hour by target. A target's share of a node is that of its dominant resource. Nodes outside
    the fleet have no known price and cost nothing."""
    by_name = {each.node.name: each for each in nodes}
    requests = {shape.name: shape.spec.requests for shape in shapes}
    taken: dict[tuple[str, str], Counter[str]] = {}
    for name, by_node in placement.items():
        target = target_of(name)
        for node, count in by_node.items():
            amounts = taken.setdefault((target, node), Counter())
            for resource, amount in requests[name]:
                amounts[resource] += amount * count
    found = {target_of(name): 0.0 for name in requests}
    for (target, node), amounts in taken.items():
        group = fleet.groups.get(fleet.group_of_instance.get(by_name[node].provider_id, ""))
        if group is not None:
            size = by_name[node].node.allocatable
            share = max((amount / size[name] for name, amount in amounts.items() if size.get(name)), default=0.0)
            found[target] += group.group.price_usd_per_hour * share
    return {target: round(cost, 6) for target, cost in found.items()}
