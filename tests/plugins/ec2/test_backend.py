"""The EC2 backend before an emulated EC2 that also plays client tokens, shortages, delays and lost answers."""

from __future__ import annotations

import boto3
import pytest

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import InstanceState
from tests.support.ec2.emulator import CREDENTIALS, ZONES
from tests.support.ec2.world import Ec2World, group, order

SMALL, LARGE = group(), group("large", ZONES[1], instance_type="c7i.large")


def test_an_order_of_two_groups_is_two_calls_and_every_instance_has_its_token(ec2: Ec2World) -> None:
    backend = ec2.open()
    asked = order("i1", (SMALL, 3), (LARGE, 2))
    backend.order(asked)
    listed = ec2.listed(backend)
    assert listed.keys() == {each.token for each in asked.instances}
    assert {each.state for each in listed.values()} == {InstanceState.CREATING}
    assert ec2.proxy.count("RunInstances") == 2
    ec2.now += 10
    after = ec2.listed(backend)
    assert {each.state for each in after.values()} == {InstanceState.RUNNING}
    assert {token: each.id for token, each in after.items()} == {token: each.id for token, each in listed.items()}
    assert after["i1-large-1"].id.startswith(f"aws:///{ZONES[1]}/i-")
    assert after["i1-large-1"].node_group == "large"


def test_what_was_ordered_before_is_not_created_again(ec2: Ec2World) -> None:
    asked = order("i1", (SMALL, 3), (LARGE, 2))
    first = ec2.open()
    first.order(asked)
    first.order(asked)
    assert ec2.proxy.count("RunInstances") == 2, "it remembers"
    ec2.open().order(asked)
    assert ec2.proxy.count("RunInstances") == 4, "a new process does not, and asks with the same client tokens"
    assert ec2.proxy.made == 5


def test_a_repeated_call_has_the_same_parameters_whatever_is_still_wanted(ec2: Ec2World) -> None:
    ec2.open().order(order("i1", (SMALL, 3)))
    ec2.open().order(order("i1", (SMALL, 3), wanted={"i1-small-2"}))
    first, second = (call.parameters for call in ec2.proxy.calls if call.action == "RunInstances")
    assert first == second
    assert ec2.proxy.made == 3


def test_a_group_of_which_nothing_is_wanted_is_not_asked_for(ec2: Ec2World) -> None:
    ec2.open().order(order("i1", (SMALL, 3), (LARGE, 2), wanted={"i1-large-0", "i1-large-1"}))
    assert ec2.proxy.alive == {"c7i.large": 2}


@pytest.mark.parametrize("calls_before", [0, 1])
@pytest.mark.parametrize("fault", ["lost answer", "call that comes late", "away", "internal error", "throttled"])
def test_an_order_that_is_interrupted_anywhere_is_whole_after_a_restart(
    ec2: Ec2World, fault: str, calls_before: int
) -> None:
    asked = order("i1", (SMALL, 3), (LARGE, 2))
    backend = ec2.open()
    if calls_before:
        backend.order(order("i1", (SMALL, 3)))  # the same call as that of the whole order
    match fault:
        case "lost answer":
            ec2.proxy.lose_answer("RunInstances")
        case "call that comes late":
            ec2.proxy.delay_call("RunInstances")
        case "away":
            ec2.proxy.away = True
        case "internal error":
            ec2.proxy.refuse("RunInstances", "InternalError", status=500)
        case "throttled":
            ec2.proxy.refuse("RunInstances", "RequestLimitExceeded", status=503)
    with pytest.raises(errors.Unavailable):
        backend.order(asked)
    ec2.proxy.away = False
    ec2.open().order(asked)
    ec2.proxy.deliver_late()
    listed = ec2.listed(ec2.open())
    assert listed.keys() == {each.token for each in asked.instances}
    assert ec2.proxy.made == 5


def test_an_answer_that_does_not_come_ends_the_call(ec2: Ec2World) -> None:
    ec2.proxy.never_answer("RunInstances")
    asked = order("i1", (SMALL, 2))
    backend = ec2.open(read_seconds=0.3)
    with pytest.raises(errors.Unavailable, match="Read timeout"):
        backend.order(asked)
    ec2.proxy.release()
    ec2.open().order(asked)
    assert ec2.proxy.made == 2


def test_a_launch_that_was_configured_anew_since_is_the_one_that_was_ordered(ec2: Ec2World) -> None:
    ec2.proxy.lose_answer("RunInstances")
    with pytest.raises(errors.Unavailable):
        ec2.open().order(order("i1", (SMALL, 2)))
    ec2.open().order(order("i1", (group(instance_type="c7i.large"), 2)))
    assert ec2.proxy.alive == {"m7i.large": 2}


def test_instances_that_have_existed_are_not_created_again(ec2: Ec2World) -> None:
    backend = ec2.open()
    asked = order("i1", (SMALL, 2))
    backend.order(asked)
    backend.delete(list(ec2.listed(backend).values()))
    ec2.open().order(asked)
    assert ec2.proxy.made == 2
    assert ec2.proxy.alive == {}


def test_a_group_that_is_short_is_named_and_the_rest_is_listed_and_can_be_deleted(ec2: Ec2World) -> None:
    ec2.proxy.cloud.stock["c7i.large", ZONES[1]] = 1
    backend = ec2.open()
    with pytest.raises(errors.OutOfCapacity, match="InsufficientInstanceCapacity") as raised:
        backend.order(order("i1", (SMALL, 3), (LARGE, 2)))
    assert raised.value.node_groups == ("large",)
    assert raised.value.retry_after_seconds == 180
    listed = ec2.listed(ec2.open())
    assert {each.node_group for each in listed.values()} == {"small"}
    backend.delete(list(listed.values()))
    assert {each.state for each in ec2.listed(backend).values()} == {InstanceState.DELETING}
    ec2.now += 20
    assert ec2.listed(backend) == {}
    assert ec2.proxy.alive == {}


def test_fewer_instances_than_ordered_are_a_shortage_and_those_there_are_are_listed(ec2: Ec2World) -> None:
    ec2.proxy.launch_short(fewer=1)
    backend = ec2.open()
    with pytest.raises(errors.OutOfCapacity, match="2 of 3 instances"):
        backend.order(order("i1", (SMALL, 3)))
    assert ec2.listed(backend).keys() == {"i1-small-0", "i1-small-1"}


@pytest.mark.parametrize(
    ("code", "kind", "retry_after_seconds"),
    [
        ("InsufficientInstanceCapacity", errors.OutOfCapacity, 180),
        ("InsufficientFreeAddressesInSubnet", errors.OutOfCapacity, 180),
        ("SpotMaxPriceTooLow", errors.OutOfCapacity, 180),
        ("ReservationCapacityExceeded", errors.OutOfCapacity, 180),
        ("VcpuLimitExceeded", errors.QuotaExceeded, 300),
        ("MaxSpotInstanceCountExceeded", errors.QuotaExceeded, 300),
        ("NetworkInterfaceLimitExceeded", errors.QuotaExceeded, 300),
        ("InvalidAMIID.NotFound", errors.OrderMisconfigured, 600),
        ("InvalidLaunchTemplateName.NotFoundException", errors.OrderMisconfigured, 600),
        ("Unsupported", errors.OrderMisconfigured, 600),
        ("UnauthorizedOperation", errors.OrderMisconfigured, 600),
    ],
)
def test_a_refusal_is_of_its_kind(
    ec2: Ec2World, code: str, kind: type[errors.OrderRefused], retry_after_seconds: float
) -> None:
    ec2.proxy.refuse("RunInstances", code, status=500 if code == "InsufficientInstanceCapacity" else 400)
    with pytest.raises(errors.OrderRefused, match=code) as raised:
        ec2.open().order(order("i1", (SMALL, 1)))
    assert type(raised.value) is kind
    assert raised.value.node_groups == ("small",)
    assert raised.value.retry_after_seconds == retry_after_seconds


def test_the_vcpu_quota_and_a_capacity_reservation_bound_what_is_launched(ec2: Ec2World) -> None:
    ec2.proxy.cloud.vcpu_quota = 8
    ec2.proxy.cloud.reservations["cr-0123456789abcdef0"] = 2
    backend = ec2.open()
    reserved = group("reserved", capacity_type="reserved")
    with pytest.raises(errors.OutOfCapacity, match="ReservationCapacityExceeded"):
        backend.order(order("i1", (reserved, 3)))
    backend.order(order("i2", (reserved, 2)))
    with pytest.raises(errors.QuotaExceeded, match="limit of 8"):
        backend.order(order("i3", (SMALL, 3)))


def test_a_missing_right_is_shown_until_something_is_launched_and_without_what_is_encoded(ec2: Ec2World) -> None:
    backend = ec2.open()
    assert backend.problem is None
    message = "You are not authorized to perform this operation. Encoded authorization failure message: c2VjcmV0"
    ec2.proxy.refuse("RunInstances", "UnauthorizedOperation", message)
    with pytest.raises(errors.OrderMisconfigured) as raised:
        backend.order(order("i1", (SMALL, 1)))
    assert backend.problem == "EC2: UnauthorizedOperation: You are not authorized to perform this operation."
    assert "c2VjcmV0" not in str(raised.value)
    backend.order(order("i2", (SMALL, 1)))
    assert backend.problem is None


@pytest.mark.parametrize("code", ["", "InternalError", "UnauthorizedOperation", "ExpiredToken"])
def test_lists_and_deletions_that_fail_are_to_be_repeated(ec2: Ec2World, code: str) -> None:
    backend = ec2.open()
    backend.order(order("i1", (SMALL, 1)))
    instances = list(ec2.listed(backend).values())
    for action in ("DescribeInstances", "TerminateInstances"):
        if code:
            ec2.proxy.refuse(action, code, status=500 if code == "InternalError" else 403)
        else:
            ec2.proxy.lose_answer(action)
    with pytest.raises(errors.Unavailable):
        backend.list_instances()
    with pytest.raises(errors.Unavailable):
        backend.delete(instances)
    backend.delete(instances)
    assert ec2.proxy.alive == {}


def test_a_list_is_as_of_the_time_before_it_was_asked_for(ec2: Ec2World) -> None:
    backend = ec2.open()
    for _ in range(100):
        backend.list_instances()
    before = ec2.now
    assert backend.list_instances().as_of_seconds == before < ec2.now, "the call rate made it wait"
    assert backend.pace.list_every_seconds == 5
    assert backend.pace.absent_after_seconds >= 60


def test_new_instances_may_be_missing_from_lists_for_a_while(ec2: Ec2World) -> None:
    ec2.proxy.cloud.visible_after_seconds = 40
    backend = ec2.open()
    backend.order(order("i1", (SMALL, 2)))
    assert ec2.listed(backend) == {}
    ec2.now += 40
    assert ec2.listed(backend).keys() == {"i1-small-0", "i1-small-1"}
    assert ec2.proxy.cloud.visible_after_seconds < backend.pace.absent_after_seconds


def test_a_deletion_passes_over_what_ec2_does_not_know_yet(ec2: Ec2World) -> None:
    backend = ec2.open()
    backend.order(order("i1", (SMALL, 2)))
    ec2.now += 40
    backend.order(order("i2", (SMALL, 2)))
    everything = list(ec2.listed(backend).values())
    ec2.proxy.cloud.visible_after_seconds = 40
    backend.delete(everything)
    assert ec2.proxy.alive == {"m7i.large": 2}
    ec2.now += 40
    assert {each.state for each in ec2.listed(backend).values() if each.token.startswith("i2")} == {
        InstanceState.RUNNING
    }
    backend.delete(everything)
    assert ec2.proxy.alive == {}


def test_an_instance_that_is_protected_keeps_no_other_from_being_terminated(ec2: Ec2World) -> None:
    backend = ec2.open()
    backend.order(order("i1", (SMALL, 3)))
    instances = ec2.listed(backend)
    protected = instances["i1-small-1"].id.rpartition("/")[2]
    ec2.proxy.refuse("TerminateInstances", "OperationNotPermitted", f"The instance '{protected}' may not be terminated")
    with pytest.raises(errors.Unavailable, match=protected):
        backend.delete(list(instances.values()))
    assert ec2.proxy.alive == {"m7i.large": 1}


def test_an_instance_is_terminated_by_its_token_where_its_id_is_not_known(ec2: Ec2World) -> None:
    ec2.proxy.lose_answer("RunInstances")
    backend = ec2.open()
    with pytest.raises(errors.Unavailable):
        backend.order(order("i1", (SMALL, 2)))
    unknown = [BackendInstance(token, token, "small", InstanceState.CREATING) for token in ("i1-small-1", "i1-small-9")]
    backend.delete(unknown)
    assert [each.state for each in ec2.listed(backend).values()] == [InstanceState.CREATING, InstanceState.DELETING]


def test_two_clusters_of_one_account_do_not_see_each_other(ec2: Ec2World) -> None:
    ours, theirs = ec2.open("prod"), ec2.open("stage")
    ours.order(order("i1", (SMALL, 1)))
    theirs.order(order("i1", (SMALL, 2)))
    ec2.emulator.launch({"cagrpc.io/cluster": "prod"})  # by hand, and so without a token
    copied = {"cagrpc.io/cluster": "prod", "cagrpc.io/node-group": "small", "cagrpc.io/token": "i1-small-0"}
    ec2.emulator.launch(copied)  # "launch more like this"
    assert len(ec2.listed(ours)) == 1
    assert len(ec2.listed(theirs)) == 2


def test_a_list_of_many_pages_is_whole_and_in_order_of_creation(ec2: Ec2World) -> None:
    ec2.proxy.cloud.page_size = 2
    backend = ec2.open()
    for number in range(5):
        backend.order(order(f"i{number}", (SMALL, 2)))
    assert list(ec2.listed(backend)) == [f"i{number}-small-{ordinal}" for number in range(5) for ordinal in range(2)]
    assert ec2.proxy.count("DescribeInstances") == 3


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Server.InsufficientInstanceCapacity", ErrorKind.CAPACITY),
        ("Client.VolumeLimitExceeded", ErrorKind.QUOTA),
        ("Client.InternalError", ErrorKind.CONFIGURATION),
        ("Server.InternalError", ErrorKind.OTHER),
    ],
)
def test_an_instance_that_ended_before_it_ran_is_listed_with_its_error_until_it_is_deleted(
    ec2: Ec2World, reason: str, kind: ErrorKind
) -> None:
    backend = ec2.open()
    backend.order(order("i1", (SMALL, 2)))
    ec2.proxy.end(ec2.listed(backend)["i1-small-0"].id.rpartition("/")[2], reason)
    for seconds in (0, 30):
        ec2.now += seconds
        failed = ec2.listed(backend)["i1-small-0"]
        assert failed.state is InstanceState.CREATING
        assert failed.error is not None
        assert (failed.error.code, failed.error.kind) == (reason, kind)
    backend.delete([failed])
    assert ec2.listed(backend).keys() == {"i1-small-1"}


def test_an_instance_that_is_interrupted_is_deleting_and_then_absent(ec2: Ec2World) -> None:
    backend = ec2.open()
    backend.order(order("i1", (group(capacity_type="spot"), 1)))
    ec2.now += 60
    ec2.proxy.end(ec2.listed(backend)["i1-small-0"].id.rpartition("/")[2], "Server.SpotInstanceTermination")
    assert [each.state for each in ec2.listed(backend).values()] == [InstanceState.DELETING]
    ec2.now += 20
    assert ec2.listed(backend) == {}


def test_without_credentials_nothing_is_known_and_nothing_is_launched(
    ec2: Ec2World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it remembers those of other tests
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    backend = ec2.open()
    for call in (backend.list_instances, lambda: backend.order(order("i1", (SMALL, 1)))):
        with pytest.raises(errors.Unavailable, match="Unable to locate credentials"):
            call()
    assert ec2.proxy.made == 0
