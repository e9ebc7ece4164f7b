"""Bytes of cluster-autoscaler 1.31.5, whose messages carry Kubernetes' own, are answered as those of newer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.gen import expander_pb2, kubernetes_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.provisioners import group_of
from cagrpc.replay.recording import Call
from cagrpc.services.grpc.template_groups import TemplateGroups
from solver.model import Budget, Problem
from solver.model.plan import ScaleUpCandidate, Score
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House
from tests.support.recordings import conversation


@pytest.fixture(scope="module")
def provider_calls() -> Mapping[str, Call]:
    """The last call of each kind; of NodeGroupGetOptions the one with nothing configured."""
    return {each.method: each for each in conversation("provider-1.31.5")}


def house() -> House:
    groups = [group("a", price=0.5, labels={"pool": "a"}), group("b", instance_type="m5")]
    return House(FleetHarness(groups=groups), options={"a": AutoscalingOptions(scale_down_unneeded_seconds=60)})


def answered(found: House, call: Call) -> bytes:
    code, details, response = found.ca.raw(call.method, call.request)
    assert code == call.code, details
    return response


def asked(call: Call) -> expander_pb2.BestOptionsRequest:
    return expander_pb2.BestOptionsRequest.FromString(call.request)


def chosen_of(found: House, call: Call) -> list[str]:
    code, details, response = found.advice.raw(call.method, call.request)
    assert code == "OK", details
    return [each.nodeGroupId for each in expander_pb2.BestOptionsResponse.FromString(response).options]


def test_options_are_read_from_and_written_to_the_fields_that_it_has() -> None:
    calls = [each for each in conversation("provider-1.31.5") if each.method == "NodeGroupGetOptions"]
    with house() as found:
        configured, default = (
            pb.NodeGroupAutoscalingOptionsResponse.FromString(answered(found, each)) for each in calls
        )
    (wanted,) = (
        pb.NodeGroupAutoscalingOptionsResponse.FromString(each.response).nodeGroupAutoscalingOptions
        for each in calls
        if each.response
    )
    options = configured.nodeGroupAutoscalingOptions
    for name in ("scaleDownUnneededTime", "scaleDownUnreadyTime", "MaxNodeProvisionTime"):
        assert getattr(options, name) == getattr(wanted, name)
    assert options.scaleDownUtilizationThreshold == wanted.scaleDownUtilizationThreshold
    assert not default.HasField("nodeGroupAutoscalingOptions")


@pytest.mark.parametrize("method", ["PricingNodePrice", "PricingPodPrice"])
def test_prices_are_for_the_interval_and_the_pod_that_it_says(provider_calls: Mapping[str, Call], method: str) -> None:
    call = provider_calls[method]
    with house() as found:
        price = pb.PricingPodPriceResponse.FromString(answered(found, call)).price
    assert price == pytest.approx(pb.PricingPodPriceResponse.FromString(call.response).price)


def test_a_template_is_the_message_that_it_expects(provider_calls: Mapping[str, Call]) -> None:
    call = provider_calls["NodeGroupTemplateNodeInfo"]
    with house() as found:
        told, wanted = (
            kubernetes_pb2.Node.FromString(pb.NodeGroupTemplateNodeInfoResponse.FromString(each).nodeInfo)
            for each in (answered(found, call), call.response)
        )
    for resource, quantity in wanted.status.allocatable.items():
        assert told.status.allocatable[resource] == quantity
    assert wanted.metadata.labels.items() <= dict(told.metadata.labels).items()


def test_the_expander_is_asked_by_it_what_it_is_asked_by_a_newer_one() -> None:
    """Both asked about the same groups and the same pods; the groups are ours here."""
    older, newer = (conversation(f"own-provider-{version}") for version in ("1.31.5", "1.36.1"))
    offered = [option for call in older for option in asked(call).options]
    assert all(option.pod and not option.podBytes for option in offered)
    of_type = {each.instance_type.name.replace(".", "-"): each for each in embedded_catalogue().offerings}
    ids = sorted({option.nodeGroupId for option in offered})
    groups = [replace(group_of(each, of_type[each.removeprefix("eks-")]), max_size=1000) for each in ids]
    questions: list[object] = []

    def rank(problem: Problem, candidates: Sequence[ScaleUpCandidate], _: Budget) -> tuple[Score, ...]:
        specs = [each.spec for each in problem.pod_sets]
        counts = {
            each.node_group: (each.node_count, {specs[index]: pods for index, pods in each.pod_counts.items()})
            for each in candidates
        }
        questions.append(counts)
        return tuple(Score(each, (float(number),), 1.0, 0.0, 0, "in order") for number, each in enumerate(candidates))

    with House(FleetHarness(groups=groups), rank=rank) as found:
        for call in (*older, newer[0]):
            assert chosen_of(found, call) == [asked(call).options[0].nodeGroupId]
    assert len(questions) == len(older) + 1
    assert questions[0] == questions[-1] != questions[1]


def test_options_about_which_nothing_is_known_all_go_on_to_its_next_expander() -> None:
    with House(FleetHarness(groups=[]), expander_options={"templates": TemplateGroups()}) as found:
        for call in conversation("own-provider-1.31.5"):
            assert chosen_of(found, call) == [option.nodeGroupId for option in asked(call).options]
