"""The provider's messages: both wire generations in and out, and answers that CA can receive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler import provider
from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import ErrorKind, InvalidInput
from cagrpc.fleet.model import Instance, InstanceError, InstanceState
from cagrpc.services.grpc.provider import instances
from solver.model import Limit, NodeGroup

_FOUR_MIB = 4 * 1024 * 1024


def _defaults(*, newer: bool, older: bool) -> pb.NodeGroupAutoscalingOptions:
    defaults = pb.NodeGroupAutoscalingOptions(
        scaleDownUtilizationThreshold=0.5, scaleDownGpuUtilizationThreshold=0.6, ignoreDaemonSetsUtilization=True
    )
    if newer:
        defaults.scaleDownUnneededDuration.seconds = 600
        defaults.scaleDownUnreadyDuration.seconds = 1200
        defaults.MaxNodeProvisionDuration.seconds = 900
    if older:
        defaults.scaleDownUnneededTime.duration = 600 * 10**9
        defaults.scaleDownUnreadyTime.duration = 1200 * 10**9
        defaults.MaxNodeProvisionTime.duration = 900 * 10**9
    return defaults


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        pytest.param(True, False, id="CA 1.35 and later"),
        pytest.param(False, True, id="CA up to 1.34.1"),
        pytest.param(True, True, id="CA 1.34.2 to 1.34.4"),
    ],
)
def test_options_echo_the_defaults_and_fill_both_generations(newer: bool, older: bool) -> None:
    changed = AutoscalingOptions(scale_down_unneeded_seconds=30.5, zero_or_max_node_scaling=True)
    answer = provider.options(_defaults(newer=newer, older=older), changed)
    expected = _defaults(newer=True, older=True)
    expected.zeroOrMaxNodeScaling = True
    expected.scaleDownUnneededDuration.FromNanoseconds(30_500_000_000)
    expected.scaleDownUnneededTime.duration = 30_500_000_000
    assert answer == expected


def test_every_option_can_be_changed_and_only_those_that_are_configured() -> None:
    changed = AutoscalingOptions(0.1, 0.2, 1.0, 2.0, 3.0, True, False)
    answer = provider.options(_defaults(newer=True, older=False), changed)
    assert answer.scaleDownUtilizationThreshold == 0.1
    assert answer.scaleDownGpuUtilizationThreshold == 0.2
    assert (answer.zeroOrMaxNodeScaling, answer.ignoreDaemonSetsUtilization) == (True, False)
    assert answer.scaleDownUnneededDuration.seconds == 1
    assert answer.scaleDownUnreadyTime.duration == 2 * 10**9
    assert answer.MaxNodeProvisionDuration.seconds == 3
    assert not changed.are_defaults
    assert AutoscalingOptions().are_defaults


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_an_interval_is_read_from_either_generation(start: int, seconds: int) -> None:
    newer = pb.PricingNodePriceRequest()
    newer.startTimestamp.seconds, newer.endTimestamp.seconds = start, start + seconds
    older = pb.PricingPodPriceRequest()
    older.startTime.seconds, older.endTime.seconds = start, start + seconds
    assert provider.interval_hours(newer) == provider.interval_hours(older) == pytest.approx(seconds / 3600)


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    request = pb.PricingNodePriceRequest()
    request.startTimestamp.seconds = 10
    with pytest.raises(InvalidInput, match="ends 10 s before it starts"):
        provider.interval_hours(request)


def test_a_failed_instance_is_creating_with_out_of_resources_and_a_code_that_is_never_empty() -> None:
    shortage = InstanceError(code="", message="no g5 left")
    fault = InstanceError(code="BOOT", message="kernel panic", kind=ErrorKind.OTHER)
    answer = instances([
        Instance("i-1", "g", InstanceState.CREATING, shortage),
        Instance("i-2", "g", InstanceState.CREATING, fault),
        Instance("i-3", "g", InstanceState.CREATING),
        Instance("i-4", "g", InstanceState.RUNNING),
        Instance("i-5", "g", InstanceState.DELETING, shortage),
    ])  # fmt: skip
    creating, running, deleting = (
        pb.InstanceStatus.instanceCreating, pb.InstanceStatus.instanceRunning, pb.InstanceStatus.instanceDeleting,
    )  # fmt: skip
    assert [i.status.instanceState for i in answer.instances] == [creating, creating, creating, running, deleting]
    assert [i.status.HasField("errorInfo") for i in answer.instances] == [True, True, False, False, False]
    first, second = (i.status.errorInfo for i in answer.instances[:2])
    assert (first.errorCode, first.errorMessage, first.instanceErrorClass) == ("CREATION_FAILED", "no g5 left", 1)
    assert (second.errorCode, second.instanceErrorClass) == ("BOOT", 99)


def test_ten_thousand_failed_instances_stay_below_what_ca_receives() -> None:
    error = InstanceError("SHORTAGE", "x" * 5000)
    listed = [Instance(f"cagrpc://zone-a/{i:030}", "g", InstanceState.CREATING, error) for i in range(20_000)]
    answer = instances(listed)
    assert answer.ByteSize() < _FOUR_MIB
    assert [i.id for i in answer.instances] == [i.id for i in listed]
    assert all(i.status.errorInfo.errorCode == "SHORTAGE" for i in answer.instances)


def test_many_node_groups_stay_below_what_ca_receives() -> None:
    groups = [NodeGroup(f"group-{i:060}", {}, 1.0, provisioner="p" * 5000) for i in range(20_000)]
    answer = provider.node_groups(groups)
    assert answer.ByteSize() < _FOUR_MIB
    assert [g.id for g in answer.nodeGroups] == [g.id for g in groups]
    few = provider.node_groups(groups[:2])
    assert all(0 < len(g.debug) <= provider.LONGEST_WORDS for g in few.nodeGroups)


@pytest.mark.parametrize(
    ("group", "limits", "told"),
    [
        pytest.param(NodeGroup("g", {"cpu": 4000}, 1.0, max_size=7), (), 7, id="as configured"),
        pytest.param(NodeGroup("g", {"cpu": 4000}, 1.0), (), 1_000_000, id="none: a number CA can live with"),
        pytest.param(NodeGroup("g", {"cpu": 4000}, 1.0), (Limit("team", {"cpu": 9000}),), 2, id="what a limit allows"),
        pytest.param(
            NodeGroup("g", {"cpu": 4000}, 1.0),
            (Limit("team", {"cpu": 9000}, node_groups=frozenset({"other"})),),
            1_000_000,
            id="another's limit",
        ),
        pytest.param(
            NodeGroup("g", {"cpu": 4000}, 1.0, min_size=3), (Limit("team", {"cpu": 9000}),), 3, id="no less than min"
        ),
        pytest.param(
            NodeGroup("g", {"cpu": 4000}, 1.0, target_size=5), (Limit("team", {"nodes": 4}),), 5, id="nor than it has"
        ),
    ],
)
def test_the_maximum_that_ca_is_told(group: NodeGroup, limits: tuple[Limit, ...], told: int) -> None:
    assert provider.node_group(group, limits).maxSize == told
