"""The calls that an order is made of: the same each time, and every instance of them is named."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc_ec2.launches import LARGEST_CALL, launches, request, token_of
from cagrpc_ec2.parameters import AllParameters, CapacityReservation, LaunchParameters, LaunchTemplate
from tests.support.ec2.emulator import ZONES
from tests.support.ec2.world import group, order

TEMPLATE = LaunchTemplate("lt-0a", None, "7")
SUBNETS = {ZONES[0]: "subnet-0a"}


def test_a_group_is_one_call_and_one_for_each_thousand() -> None:
    small, large = group("small"), group("large")
    calls = launches("prod", order("i1", (small, 2500), (large, 1000)))
    assert [(call.group.id, len(call.tokens)) for call in calls] == [
        ("small", 1000),
        ("small", 1000),
        ("small", 500),
        ("large", 1000),
    ]
    assert len({call.client_token for call in calls}) == 4
    assert all(len(call.client_token) <= 64 and call.client_token.isascii() for call in calls)


def test_calls_do_not_depend_on_what_is_wanted_or_in_which_order_instances_come() -> None:
    asked = order("i1", (group("small"), 30), (group("large"), 3))
    mixed = list(asked.instances)
    random.Random(1).shuffle(mixed)
    again = Order("i1", tuple(mixed), frozenset({"i1-small-3"}))
    of_group = {call.group.id: call for call in launches("prod", asked)}
    assert {call.group.id: call for call in launches("prod", again)} == of_group


def test_clusters_and_increments_have_client_tokens_of_their_own() -> None:
    asked = [("prod", "i1"), ("stage", "i1"), ("prod", "i2")]
    tokens = {launches(cluster, order(increment, (group(), 2)))[0].client_token for cluster, increment in asked}
    assert len(tokens) == 3


def test_the_dearest_machines_are_asked_for_first() -> None:
    cheap, dear = group("cheap"), replace(group("dear"), price_usd_per_hour=50.0)
    calls = launches("prod", order("i1", (cheap, 2), (dear, 1)))
    assert [call.group.id for call in calls] == ["dear", "cheap"]


@given(
    st.lists(st.one_of(st.text(max_size=6), st.from_regex(r"(a|a-|7|00)(0|9|1[0-9]|007)", fullmatch=True)), unique=True)
)
def test_the_first_token_and_an_index_name_every_instance_whatever_tokens_are(tokens: list[str]) -> None:
    members = tuple(OrderedInstance(token, group(), ordinal) for ordinal, token in enumerate(tokens))
    calls = launches("prod", Order("i1", members, frozenset(tokens)))
    named = [token_of(call.tokens[0], index) for call in calls for index in range(len(call.tokens))]
    assert named == tokens
    assert all(len(call.tokens) <= LARGEST_CALL for call in calls)


@pytest.mark.parametrize(
    ("capacity_type", "reservation", "expected"),
    [
        ("", None, {}),
        ("on-demand", CapacityReservation("cr-0a", None, capacity_block=False), {}),
        (
            "spot",
            None,
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}},
        ),
        (
            "reserved",
            CapacityReservation("cr-0a", None, capacity_block=False),
            {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-0a"}}},
        ),
        (
            "reserved",
            CapacityReservation(None, "arn:aws:resource-groups:x", capacity_block=True),
            {
                "CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": "arn:aws:resource-groups:x"}
                },
                "InstanceMarketOptions": {"MarketType": "capacity-block"},
            },
        ),
    ],
)
def test_a_call_says_how_its_instances_are_paid_for(
    capacity_type: str, reservation: CapacityReservation | None, expected: dict[str, object]
) -> None:
    (call,) = launches("prod", order("i1", (group(capacity_type=capacity_type), 2)))
    parameters = LaunchParameters(TEMPLATE, SUBNETS, reservation, {"team": "ml"})
    found = request(call, parameters, "prod")
    tags = [
        {"Key": "cagrpc.io/cluster", "Value": "prod"},
        {"Key": "cagrpc.io/node-group", "Value": "small"},
        {"Key": "cagrpc.io/token", "Value": "i1-small-0"},
        {"Key": "team", "Value": "ml"},
    ]
    assert found == {
        "ClientToken": call.client_token,
        "MinCount": 2,
        "MaxCount": 2,
        "InstanceType": "m7i.large",
        "LaunchTemplate": {"LaunchTemplateId": "lt-0a", "Version": "7"},
        "SubnetId": "subnet-0a",
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": tags},
            {"ResourceType": "volume", "Tags": tags},
        ],
        **expected,
    }


def test_without_subnets_the_template_has_the_network_and_the_call_the_zone() -> None:
    (call,) = launches("prod", order("i1", (group(), 1)))
    found = request(call, LaunchParameters(TEMPLATE), "prod")
    assert "SubnetId" not in found
    assert found["Placement"] == {"AvailabilityZone": ZONES[0]}


def test_the_more_special_parameters_win_by_field() -> None:
    general = LaunchParameters(TEMPLATE, SUBNETS, None, {"team": "ml", "stage": "prod"})
    of_provisioner = LaunchParameters(LaunchTemplate(None, "gpu", "$Latest"), tags={"team": "gpu"})
    of_group = LaunchParameters(subnets={ZONES[1]: "subnet-0b"}, tags={"rack": "1"})
    everything = AllParameters(general, {"gpu": of_provisioner}, {"small": of_group})
    assert everything.of(group("other")) == general
    found = everything.of(group("small", provisioner="gpu"))
    assert found.launch_template == LaunchTemplate(None, "gpu", "$Latest")
    assert found.subnets == {ZONES[1]: "subnet-0b"}
    assert found.tags == {"team": "gpu", "stage": "prod", "rack": "1"}
