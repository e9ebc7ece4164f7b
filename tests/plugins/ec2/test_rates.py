"""EC2's documented call rates are kept: no call is refused for its rate, and the busiest stretch of time is within."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance
from cagrpc_ec2.rates import CallRates, TokenRate, documented_rates
from tests.support.clocks import any_clock
from tests.support.ec2.emulator import ZONES
from tests.support.ec2.limits import DOCUMENTED, busiest_excess
from tests.support.ec2.proxy import FaultProxy
from tests.support.ec2.world import Ec2World, group, order


def assert_kept(proxy: FaultProxy) -> None:
    assert proxy.throttled == 0
    for action, (calls, instances) in DOCUMENTED.items():
        made = [call for call in proxy.calls if call.action == action]
        assert busiest_excess([(call.seconds, 1) for call in made], *calls) < 1e-3
        if instances is not None:
            assert busiest_excess([(call.seconds, call.instances) for call in made], *instances) < 1e-3


def delete_as_the_fleet_does(ec2: Ec2World, instances: Sequence[BackendInstance]) -> None:
    """In calls of 100, all of one node group, and again where the call rate leaves no room."""
    backend = ec2.open()
    left = list(instances)
    while left:
        part = [each for each in left if each.node_group == left[0].node_group][:100]
        try:
            backend.delete(part)
        except errors.Unavailable:
            ec2.now += 1
        else:
            left = [each for each in left if each not in part]


def test_a_thousand_instances_come_in_some_seconds_and_go_again_within_the_rates(ec2: Ec2World) -> None:
    groups = [group(f"pool-{number}", ZONES[number % 3]) for number in range(15)]
    asked = order("i1", *((each, 20 if rank else 720) for rank, each in enumerate(groups)))
    assert len(asked.instances) == 1000
    began = ec2.now
    ec2.order_until_accepted(ec2.open(), asked)
    assert ec2.proxy.count("RunInstances") == 15
    assert 5 <= ec2.now - began <= 10, "five calls at once, and two a second"
    listed = ec2.listed(ec2.open())
    assert listed.keys() == {each.token for each in asked.instances}
    delete_as_the_fleet_does(ec2, list(listed.values()))
    assert ec2.proxy.alive == {}
    assert_kept(ec2.proxy)


def test_what_was_launched_waits_for_no_second_call_while_the_rest_of_its_increment_does(ec2: Ec2World) -> None:
    backend = ec2.open(launched_instances=TokenRate(10, 2))
    ec2.proxy.limits.documented["RunInstances"] = ((5, 2), (10, 2))
    asked = order("i1", (group(), 10), (group("other"), 8))
    began = ec2.now
    with pytest.raises(errors.Unavailable, match=r"no room for RunInstances of 8 instances for 4\.0 s"):
        backend.order(asked)
    ec2.order_until_accepted(backend, asked)
    assert ec2.now - began <= 5
    assert [call.instances for call in ec2.proxy.calls if call.action == "RunInstances"] == [10, 8]
    assert ec2.listed(backend).keys() == {each.token for each in asked.instances}


def test_a_refusal_for_the_rate_empties_the_bucket(ec2: Ec2World) -> None:
    backend = ec2.open()
    ec2.proxy.refuse("RunInstances", "RequestLimitExceeded", status=503)  # somebody else of the account calls too
    with pytest.raises(errors.Unavailable, match="RequestLimitExceeded"):
        backend.order(order("i1", (group(), 1)))
    backend.order(order("i1", (group(), 1)))
    assert ec2.slept == [0.5]


class _Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_rates_are_those_that_are_documented() -> None:
    found = {
        action: (
            (rate.calls.most, rate.calls.per_second),
            None if rate.instances is None else (rate.instances.most, rate.instances.per_second),
        )
        for action, rate in documented_rates().items()
    }
    assert found == DOCUMENTED


def test_a_clock_that_is_set_back_refills_nothing() -> None:
    time = _Time()
    rates = CallRates(documented_rates(), any_clock(time), time.sleep)
    for _ in range(5):
        rates.acquire("RunInstances", 1)
    time.now = -1000
    rates.acquire("RunInstances", 1)
    assert time.now == -999.5


def test_more_than_the_bucket_holds_is_asked_for_when_it_is_full() -> None:
    time = _Time()
    rates = CallRates(documented_rates(TokenRate(10, 1)), any_clock(time), time.sleep)
    rates.acquire("RunInstances", 12)
    assert time.now == 0
    with pytest.raises(errors.Unavailable, match=r"for 3\.0 s"):
        rates.acquire("RunInstances", 1)
