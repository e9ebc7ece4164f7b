"""The calls of RunInstances that an order is made of, as pure functions of the whole order, so that a repeated order
makes the same calls.

RunInstances with MinCount = MaxCount is all or nothing for one type in one zone, and its answers to a client token are
the same for ever. CreateFleet of type `instant` promises no more for one type in one zone, numbers instances anew in
each of its reservations, and reports errors beside instances. So a node group of an increment is one call of
RunInstances, or one for each 1,000.

A call gives all its instances the same tags. The tag with the token of the first one, and an instance's index in the
call, name every one of them, because tokens in a call differ by a number at their end that grows by one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from cagrpc.fleet.backend import Order
from cagrpc_ec2.parameters import (
    CLUSTER_TAG,
    NODE_GROUP_TAG,
    RESERVED,
    SPOT,
    TOKEN_TAG,
    LaunchParameters,
    capacity_type,
)
from solver.model import NodeGroup

LARGEST_CALL = 1000
"""Instances of one call."""

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Launch:
    """One call."""

    client_token: str
    """At most 64 ASCII characters, as the API requires."""
    group: NodeGroup
    tokens: tuple[str, ...]
    """By AmiLaunchIndex."""


def token_of(first: str, index: int) -> str:
    """Return the token of the instance with this index in a call, from that of the one with index 0."""
    numbered = _NUMBERED.fullmatch(first)
    if index == 0 or numbered is None:
        return first
    return f"{numbered[1]}{int(numbered[2]) + index}"


def client_token_of(cluster_name: str, group_id: str, first: str) -> str:
    """Return the client token of a call, from the token of its first instance, which is its increment's alone."""
    return hashlib.sha256(f"{cluster_name}\n{group_id}\n{first}".encode()).hexdigest()


def launches(cluster_name: str, order: Order) -> list[Launch]:
    """Return the calls of an order, wanted or not, the dearest machines first: they are the likeliest to be short, and
    then nothing else has been launched for nothing."""
    ranks = {group_id: rank for rank, group_id in enumerate(dict.fromkeys(each.group.id for each in order.instances))}
    instances = sorted(order.instances, key=lambda each: (ranks[each.group.id], each.ordinal))
    found = [
        Launch(client_token_of(cluster_name, group_id, tokens[0]), members[0].group, tokens)
        for group_id, of_group in groupby(instances, key=attrgetter("group.id"))
        for members in [list(of_group)]
        for tokens in _runs([each.token for each in members])
    ]
    return sorted(found, key=lambda launch: -launch.group.price_usd_per_hour)


def _runs(tokens: list[str]) -> list[tuple[str, ...]]:
    """Return the tokens in runs that one call can name."""
    runs: list[list[str]] = []
    for token in tokens:
        run = runs[-1] if runs else []
        if run and len(run) < LARGEST_CALL and token == token_of(run[0], len(run)):
            run.append(token)
        else:
            runs.append([token])
    return [tuple(run) for run in runs]


def request(launch: Launch, parameters: LaunchParameters, cluster_name: str) -> dict[str, Any]:
    """Return the parameters of a call."""
    template = parameters.launch_template
    assert template is not None, "the configuration is refused without"
    group = launch.group
    own = {CLUSTER_TAG: cluster_name, NODE_GROUP_TAG: group.id, TOKEN_TAG: launch.tokens[0]}
    tags = [{"Key": key, "Value": value} for key, value in sorted({**parameters.tags, **own}.items())]
    return {
        "ClientToken": launch.client_token,
        "MinCount": len(launch.tokens),
        "MaxCount": len(launch.tokens),
        "InstanceType": group.instance_type,
        "LaunchTemplate": template.request,
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        **_place(group, parameters),
        **_market(group, parameters),
    }


def _place(group: NodeGroup, parameters: LaunchParameters) -> Mapping[str, Any]:
    """Return where: a call without a zone would leave it to EC2, and its client token would hold for the Region."""
    if parameters.subnets is not None:
        return {"SubnetId": parameters.subnets[group.zone]}
    return {"Placement": {"AvailabilityZone": group.zone}}


def _market(group: NodeGroup, parameters: LaunchParameters) -> Mapping[str, Any]:
    """Return how the instances are paid for; nothing for those on demand."""
    kind, reservation = capacity_type(group), parameters.capacity_reservation
    if kind == SPOT:
        return {"InstanceMarketOptions": {"MarketType": SPOT, "SpotOptions": {"SpotInstanceType": "one-time"}}}
    if kind != RESERVED or reservation is None:
        return {}
    target = (
        {"CapacityReservationId": reservation.id}
        if reservation.id is not None
        else {"CapacityReservationResourceGroupArn": reservation.resource_group_arn}
    )
    block = {"InstanceMarketOptions": {"MarketType": "capacity-block"}} if reservation.capacity_block else {}
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": target}, **block}
