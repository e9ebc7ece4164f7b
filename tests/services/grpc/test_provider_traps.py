"""Every trap of the provider's contract, each under its own name, over a real socket and a real fleet."""

from __future__ import annotations

import threading

import pytest

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.core import nodes
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.fleet.model import IncrementSpec, InstanceState, Origin
from solver.model import NodeGroup, Taint, TaintEffect
from tests.support.fleet import FleetHarness, MemoryJournal, group, targets
from tests.support.grpc_servers import House
from tests.support.waiting import AMPLE_SECONDS


def _house(harness: FleetHarness | None = None, **more: object) -> House:
    return House(harness or FleetHarness(groups=[group("a"), group("b", max_size=3)]), **more)  # type: ignore[arg-type]


def _grow(house: House, group_id: str = "a", count: int = 2, *, boot: bool = True) -> list[str]:
    """Instances of a group, running unless told otherwise; their ids."""
    house.fleet.apply(IncrementSpec({group_id: count}, origin=Origin.AUTOSCALER))
    house.fleet.reconcile()
    if boot:
        house.harness.backend.boot_all()
        house.fleet.reconcile()
    return house.harness.backend.ids(group_id)


def _node(instance_id: str, name: str = "n", **labels: str) -> pb.ExternalGrpcNode:
    return pb.ExternalGrpcNode(providerID=instance_id, name=name, labels=labels)


def test_node_groups_never_fails_and_refresh_does_when_the_journal_is_out_of_reach() -> None:
    with _house() as house:
        before = house.ca.ok("NodeGroups")
        assert [(g.id, g.minSize, g.maxSize) for g in before.nodeGroups] == [("a", 0, 10), ("b", 0, 3)]
        assert isinstance(house.harness.journal, MemoryJournal)
        house.harness.journal.broken = True
        house.harness.clock.advance(10)
        assert house.ca.code("Refresh") == ("UNAVAILABLE", "Refresh: journal: out of reach")
        assert house.ca.ok("NodeGroups") == before
        assert house.ca.ok("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="a")).targetSize == 0
        house.harness.journal.broken = False
        assert house.ca.code("Refresh")[0] == "OK"


def test_refresh_fails_when_the_backend_is_out_of_reach() -> None:
    with _house() as house:
        house.harness.backend.unreachable = True
        assert house.ca.code("Refresh") == ("UNAVAILABLE", "Refresh: backend: out of reach")
        house.harness.backend.unreachable = False
        assert house.ca.code("Refresh")[0] == "OK"


def test_only_shown_groups_are_listed_and_all_are_served() -> None:
    harness = FleetHarness(groups=[group("a"), group("b")], options={"shown": lambda *_: ["b"]})
    with _house(harness) as house:
        assert [g.id for g in house.ca.ok("NodeGroups").nodeGroups] == ["b"]
        assert house.ca.code("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="a"))[0] == "OK"


def test_a_node_is_found_by_its_provider_id_whatever_its_name_and_labels() -> None:
    with _house() as house:
        instance_id, _ = _grow(house)
        request = pb.NodeGroupForNodeRequest(node=_node(instance_id, "ip-10-0-0-1", pool="other"))
        found = house.ca.ok("NodeGroupForNode", request).nodeGroup
        assert (found.id, found.minSize, found.maxSize) == ("a", 0, 10)


def test_a_made_up_node_without_labels_is_found_by_its_id() -> None:
    with _house() as house:
        instance_id, _ = _grow(house, boot=False)
        request = pb.NodeGroupForNodeRequest(node=pb.ExternalGrpcNode(providerID=instance_id, name=instance_id))
        assert house.ca.ok("NodeGroupForNode", request).nodeGroup.id == "a"


@pytest.mark.parametrize(
    "node", [pytest.param(_node("aws:///i-1"), id="of another"), pytest.param(_node("", ""), id="without any id")]
)
def test_an_unmanaged_node_has_the_empty_group_and_no_error(node: pb.ExternalGrpcNode) -> None:
    with _house() as house:
        _grow(house)
        assert house.ca.ok("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node)).nodeGroup.id == ""
        assert house.ca.ok("NodeGroupForNode").nodeGroup.id == ""


def test_the_node_of_an_instance_that_is_gone_has_the_empty_group_with_the_next_step() -> None:
    """CA's client keeps a group until its next Refresh. So none turns into nil within a loop, which CA 1.30 to 1.35 end
    by (kubernetes/autoscaler#9277); from the next loop on, the Node that stays counts in no group."""
    with _house() as house:
        gone, stays = _grow(house)
        of_gone = pb.NodeGroupForNodeRequest(node=_node(gone, "n1", pool="a"))
        assert house.ca.ok("NodeGroupForNode", of_gone).nodeGroup.id == "a"
        house.harness.backend.vanish(gone)
        assert house.ca.ok("NodeGroupForNode", of_gone).nodeGroup.id == "a"
        house.ca.ok("Refresh")
        answer = house.ca.ok("NodeGroupForNode", of_gone)
        assert (answer.HasField("nodeGroup"), answer.nodeGroup.id) == (True, "")
        assert house.ca.ok("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="a")).targetSize == 1
        # CA may have decided before that this one goes: nothing else goes for it.
        asked = pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_node(gone, "n1")])
        assert house.ca.code("NodeGroupDeleteNodes", asked)[0] == "OK"
        listed = house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances
        assert [each.id for each in listed] == [stays]


def _defaults() -> pb.NodeGroupAutoscalingOptions:
    defaults = pb.NodeGroupAutoscalingOptions(scaleDownUtilizationThreshold=0.5)
    defaults.scaleDownUnneededDuration.seconds = 600
    defaults.MaxNodeProvisionDuration.seconds = 900
    return defaults


def test_no_options_of_a_group_with_default_options_are_answered_so_that_the_autoscaler_takes_its_own() -> None:
    with _house(options={"b": AutoscalingOptions()}) as house:
        for group_id in ("a", "b"):
            request = pb.NodeGroupAutoscalingOptionsRequest(id=group_id, defaults=_defaults())
            assert house.ca.ok("NodeGroupGetOptions", request) == pb.NodeGroupAutoscalingOptionsResponse()


def test_configured_options_echo_the_defaults_and_are_never_zeroed() -> None:
    with _house(options={"a": AutoscalingOptions(scale_down_unneeded_seconds=60)}) as house:
        request = pb.NodeGroupAutoscalingOptionsRequest(id="a", defaults=_defaults())
        options = house.ca.ok("NodeGroupGetOptions", request).nodeGroupAutoscalingOptions
        assert options.scaleDownUtilizationThreshold == 0.5
        assert options.scaleDownUnneededDuration.seconds == 60
        assert options.scaleDownUnneededTime.duration == 60 * 10**9
        assert options.MaxNodeProvisionDuration.seconds == 900
        assert options.MaxNodeProvisionTime.duration == 900 * 10**9


def test_no_options_are_answered_where_there_are_no_defaults_to_echo() -> None:
    with _house(options={"a": AutoscalingOptions(scale_down_unneeded_seconds=60)}) as house:
        answer = house.ca.ok("NodeGroupGetOptions", pb.NodeGroupAutoscalingOptionsRequest(id="a"))
        assert answer == pb.NodeGroupAutoscalingOptionsResponse()


def test_a_template_is_a_whole_node_in_both_generations() -> None:
    gpu = group("gpu", taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),), labels={"pool": "gpu"}, zone="zone-a")
    with _house(FleetHarness(groups=[gpu])) as house:
        answer = house.ca.ok("NodeGroupTemplateNodeInfo", pb.NodeGroupTemplateNodeInfoRequest(id="gpu"))
        assert answer.nodeInfo == answer.nodeBytes
        node = kubernetes_pb2.Node.FromString(answer.nodeBytes)
        assert node.status.allocatable["pods"].string == node.status.capacity["pods"].string == "110"
        assert node.metadata.labels["pool"] == "gpu"
        assert node.metadata.labels["topology.kubernetes.io/zone"] == "zone-a"
        assert [t.key for t in node.spec.taints] == ["gpu"]
        assert ("Ready", "True") in [(c.type, c.status) for c in node.status.conditions]


def test_a_failed_instance_is_listed_as_creating_and_out_of_resources() -> None:
    with _house() as house:
        first, _ = _grow(house, boot=False)
        house.harness.backend.fail(first)
        house.fleet.reconcile()
        listed = house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances
        assert len(listed) == 2
        for instance in listed:  # a failed increment fails whole
            assert instance.status.instanceState == pb.InstanceStatus.instanceCreating
            assert instance.status.errorInfo.errorCode
            assert instance.status.errorInfo.instanceErrorClass == 1
        assert house.ca.ok("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="a")).targetSize == 2


def test_ca_deletes_failed_instances_and_each_lowers_the_target_once() -> None:
    with _house() as house:
        first, _ = _grow(house, boot=False)
        house.harness.backend.fail(first)
        house.fleet.reconcile()
        listed = house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances
        nodes = [pb.ExternalGrpcNode(providerID=i.id, name=i.id) for i in listed]
        for _ in range(2):  # CA repeats itself until they are gone
            house.ca.ok("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="a", nodes=nodes))
        house.fleet.reconcile()
        assert targets(house.fleet.snapshot) == {}


def test_delete_nodes_deletes_these_and_no_others() -> None:
    with _house() as house:
        first, second = _grow(house)
        request = pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_node(first), _node(first)])
        house.ca.ok("NodeGroupDeleteNodes", request)
        house.fleet.reconcile()
        assert house.harness.backend.executed_deletes == [first]
        assert targets(house.fleet.snapshot) == {"a": 1}
        assert house.ca.ok("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=_node(second))).nodeGroup.id == "a"


@pytest.mark.parametrize(
    ("group_id", "nodes", "code"),
    [
        pytest.param("z", [_node("x")], "NOT_FOUND", id="of an unknown group"),
        pytest.param("a", [_node("x")], "NOT_FOUND", id="an unknown instance"),
        pytest.param("a", [_node("", "")], "INVALID_ARGUMENT", id="without any id"),
        pytest.param("a", [], "OK", id="nothing"),
    ],
)
def test_delete_nodes_refuses_what_is_not_ours(group_id: str, nodes: list[pb.ExternalGrpcNode], code: str) -> None:
    with _house() as house:
        _grow(house)
        request = pb.NodeGroupDeleteNodesRequest(id=group_id, nodes=nodes)
        assert house.ca.code("NodeGroupDeleteNodes", request)[0] == code
        assert house.harness.backend.executed_deletes == []
        assert targets(house.fleet.snapshot) == {"a": 2}


def test_at_the_minimum_an_unregistered_instance_goes_and_a_registered_one_stays() -> None:
    with House(FleetHarness(groups=[group("a", min_size=1)])) as house:
        house.fleet.reconcile()
        (instance,) = house.harness.backend.ids()
        house.harness.backend.boot(instance)
        house.fleet.reconcile()
        request = pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_node(instance)])
        code, details = house.ca.code("NodeGroupDeleteNodes", request)
        assert (code, "fewer than its minimum of 1" in details) == ("FAILED_PRECONDITION", True)
        request.nodes[0].annotations["k8s.io/cluster-autoscaler/fake-node-reason"] = "unregistered"
        house.ca.ok("NodeGroupDeleteNodes", request)
        house.fleet.reconcile()
        assert house.harness.backend.executed_deletes == [instance]
        assert targets(house.fleet.snapshot) == {"a": 1}


def test_delete_nodes_of_endless_ids_is_not_found_and_names_several_of_them() -> None:
    with House(FleetHarness(groups=[group("a")])) as house:
        nodes = [_node(f"{index} " + "é中" * 3000) for index in range(20)]
        code, details = house.ca.code("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="a", nodes=nodes))
        assert code == "NOT_FOUND"
        assert 'instance "0 é中' in details
        assert 'instance "1 é中' in details


def test_an_instance_of_another_group_is_not_deleted() -> None:
    with _house() as house:
        of_b = _grow(house, "b", 1)
        request = pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_node(of_b[0])])
        assert house.ca.code("NodeGroupDeleteNodes", request)[0] == "INVALID_ARGUMENT"
        assert targets(house.fleet.snapshot) == {"b": 1}


def test_decrease_target_size_is_clamped_and_never_removes_an_instance() -> None:
    with _house() as house:
        _grow(house)
        house.ca.ok("NodeGroupDecreaseTargetSize", pb.NodeGroupDecreaseTargetSizeRequest(id="a", delta=-5))
        house.fleet.reconcile()
        assert targets(house.fleet.snapshot) == {"a": 2}
        assert house.harness.backend.executed_deletes == []


@pytest.mark.parametrize("delta", [0, 1])
def test_a_decrease_that_is_none_is_refused(delta: int) -> None:
    with _house() as house:
        request = pb.NodeGroupDecreaseTargetSizeRequest(id="a", delta=delta)
        assert house.ca.code("NodeGroupDecreaseTargetSize", request)[0] == "INVALID_ARGUMENT"


def _priced(node: pb.ExternalGrpcNode, *, older: bool = False) -> pb.PricingNodePriceRequest:
    request = pb.PricingNodePriceRequest(node=node)
    end = request.endTime if older else request.endTimestamp
    start = request.startTime if older else request.startTimestamp
    start.seconds, end.seconds = 1000, 1000 + 7200
    return request


@pytest.mark.parametrize("older", [False, True], ids=["newer wire", "older wire"])
def test_a_node_costs_its_groups_price_for_the_interval(older: bool) -> None:
    labels = {"node.kubernetes.io/instance-type": "m5"}
    harness = FleetHarness(groups=[
        group("a", price=0.5), group("b1", price=0.3, instance_type="m5", zone="z1"),
        group("b2", price=0.2, instance_type="m5", zone="z2"),
    ])  # fmt: skip
    with _house(harness) as house:
        instance_id, _ = _grow(house)

        def price(node: pb.ExternalGrpcNode) -> float:
            return float(house.ca.ok("PricingNodePrice", _priced(node, older=older)).price)

        assert price(_node(instance_id, **labels)) == pytest.approx(1.0)
        assert price(_node("other", **labels)) == pytest.approx(0.4)
        assert price(_node("other", **labels, **{"topology.kubernetes.io/zone": "z1"})) == pytest.approx(0.6)
        assert house.ca.code("PricingNodePrice", _priced(_node("other")))[0] == "UNIMPLEMENTED"


def test_a_pod_costs_its_largest_share_of_the_cheapest_capable_group() -> None:
    message = kubernetes_pb2.Pod()
    message.spec.containers.add().resources.requests["cpu"].string = "2"
    harness = FleetHarness(groups=[group("small", cpu=1000, price=0.01), group("a", cpu=4000, price=1.0),
                          group("b", cpu=8000, price=1.6)])  # fmt: skip
    with _house(harness) as house:
        for field in ("pod", "pod_bytes"):
            request = pb.PricingPodPriceRequest()
            setattr(request, field, message.SerializeToString())
            request.endTimestamp.seconds = 7200
            assert house.ca.ok("PricingPodPrice", request).price == pytest.approx(0.8)  # 1.6 * 2/8 * 2 h
        message.spec.nodeSelector["no"] = "where"
        request.pod_bytes = message.SerializeToString()
        assert house.ca.code("PricingPodPrice", request)[0] == "UNIMPLEMENTED"


def test_gpu_label_and_types_come_from_configuration_and_groups() -> None:
    harness = FleetHarness(groups=[group("a"), group("g", labels={"example.com/gpu": "t4"})])
    with _house(harness, gpu_label="example.com/gpu") as house:
        assert house.ca.ok("GPULabel").label == "example.com/gpu"
        assert list(house.ca.ok("GetAvailableGPUTypes").gpuTypes) == ["t4"]


def test_cleanup_changes_nothing() -> None:
    with _house() as house:
        _grow(house)
        house.ca.ok("Cleanup")
        house.fleet.reconcile()
        assert targets(house.fleet.snapshot) == {"a": 2}
        assert house.harness.backend.executed_deletes == []


def test_hot_answers_are_ready_bytes_until_the_snapshot_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with _house() as house:
        calls: list[str] = []
        real = nodes.template

        def counted(of: NodeGroup) -> bytes:
            calls.append(of.id)
            return real(of)

        monkeypatch.setattr(nodes, "template", counted)
        request = pb.NodeGroupTemplateNodeInfoRequest(id="a")
        first = house.ca.ok("NodeGroupTemplateNodeInfo", request)
        assert house.ca.ok("NodeGroupTemplateNodeInfo", request) == first
        assert calls == ["a"]
        size = pb.NodeGroupTargetSizeRequest(id="a")
        assert house.ca.ok("NodeGroupTargetSize", size).targetSize == 0
        _grow(house)
        assert house.ca.ok("NodeGroupTargetSize", size).targetSize == 2
        assert house.ca.ok("NodeGroupTemplateNodeInfo", request) == first
        assert calls == ["a", "a"]


def test_a_node_whose_labels_come_in_another_order_is_no_other_node() -> None:
    with _house() as house:
        instance_id, _ = _grow(house)
        for labels in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {}):
            node = pb.ExternalGrpcNode(providerID=instance_id, name="n", labels=labels)
            assert house.ca.ok("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node)).nodeGroup.id == "a"
        assert len(house.provider._current_memo().answers) == 1


def test_readers_do_not_wait_for_a_slow_backend() -> None:
    with _house() as house:
        entered, leave = threading.Event(), threading.Event()

        def slow() -> None:
            entered.set()
            assert leave.wait(AMPLE_SECONDS)

        house.harness.backend.before_order = slow
        worker = threading.Thread(
            target=house.ca.code, args=("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="a", delta=1))
        )
        worker.start()
        assert entered.wait(AMPLE_SECONDS)
        assert house.ca.ok("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="a")).targetSize == 1
        assert house.ca.code("NodeGroups")[0] == "OK"
        leave.set()
        worker.join()


def test_an_instance_that_is_being_deleted_is_listed_as_deleting() -> None:
    with _house() as house:
        first, _ = _grow(house)
        house.ca.ok("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="a", nodes=[_node(first)]))
        house.fleet.reconcile()
        listed = {
            i.id: i.status.instanceState
            for i in house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances
        }
        assert listed[first] == pb.InstanceStatus.instanceDeleting
        assert house.fleet.snapshot.groups["a"].instances[0].state is InstanceState.DELETING
