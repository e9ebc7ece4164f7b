"""Nodes that are replaced whatever that costs: interrupted, or gone bad."""

from __future__ import annotations

import pytest

from cagrpc.cluster.state import ClusterNode, NodeCondition
from cagrpc.controllers.consolidation.must_go import GoingNodes, must_go
from cagrpc.controllers.settings import ConsolidationSettings, RepairRule
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver.consolidation.model import DisruptionReason
from solver.model import Node, NodeGroup, Taint, TaintEffect

NOW = 1_000_000.0
HALF_AN_HOUR = 1800
SETTINGS = ConsolidationSettings()
BAD = NodeCondition("Ready", "False", int(NOW) - HALF_AN_HOUR)


def _node(name: str, *conditions: NodeCondition, taint: str = "", created_at: int = 1) -> ClusterNode:
    taints = (Taint(taint, TaintEffect.NO_SCHEDULE),) if taint else ()
    node = Node(name, {}, taints=taints)
    return ClusterNode(node, f"id-{name}", True, False, conditions=conditions, created_at_seconds=created_at)


def _fleet(*names: str, state: InstanceState = InstanceState.RUNNING, provisioner: str = "p") -> FleetSnapshot:
    group = NodeGroup("g", {"cpu": 1000, "pods": 10}, 1.0, provisioner=provisioner)
    instances = tuple(Instance(f"id-{name}", "g", state) for name in names)
    groups = {"g": GroupState(group, len(names), instances)}
    return FleetSnapshot(1, groups, ("g",), {each.id: "g" for each in instances})


def _found(
    *nodes: ClusterNode, settings: ConsolidationSettings = SETTINGS, fleet: FleetSnapshot | None = None
) -> GoingNodes:
    return must_go(nodes, fleet or _fleet(*(each.node.name for each in nodes)), settings, NOW)


@pytest.mark.parametrize(
    "taint",
    [
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/scheduled-maintenance",
        "cloud.google.com/impending-node-termination",
        "node.cloudprovider.kubernetes.io/shutdown",
    ],
)
def test_a_node_that_its_cloud_takes_goes(taint: str) -> None:
    found = _found(_node("n", taint=taint), _node("m", taint="dedicated"))
    assert list(found.nodes) == ["n"]
    assert found.nodes["n"].reason is DisruptionReason.INTERRUPTED
    assert found.nodes["n"].why == f"its cloud takes it: taint {taint}"


@pytest.mark.parametrize("condition", ["PreemptionScheduled", "Terminating"])
def test_conditions_say_so_too_whatever_share_of_nodes_has_them(condition: str) -> None:
    nodes = [_node(f"n{number}", NodeCondition(condition, "True", int(NOW))) for number in range(3)]
    found = _found(*nodes, _node("m", NodeCondition(condition, "False", 1)))
    assert list(found.nodes) == ["n0", "n1", "n2"]
    assert {each.reason for each in found.nodes.values()} == {DisruptionReason.INTERRUPTED}
    assert found.nodes["n0"].why == f"its cloud takes it: condition {condition}"
    assert not found.spared


def test_which_conditions_say_so_is_configured() -> None:
    settings = ConsolidationSettings(interruption_conditions=frozenset(("VMEventScheduled",)))
    nodes = (
        _node("n", NodeCondition("VMEventScheduled", "True", 1)),
        _node("m", NodeCondition("Terminating", "True", 1)),
    )
    assert list(_found(*nodes, settings=settings).nodes) == ["n"]
    assert list(_found(*nodes).nodes) == ["m"], "a node that freezes or is rebooted has it too"


def test_which_taints_say_so_is_configured() -> None:
    settings = ConsolidationSettings(interruption_taints=frozenset(("cloud/going",)))
    nodes = (_node("n", taint="cloud/going"), _node("m", taint="aws-node-termination-handler/spot-itn"))
    assert list(_found(*nodes, settings=settings).nodes) == ["n"]


@pytest.mark.parametrize(
    ("condition", "goes"),
    [
        pytest.param(BAD, True, id="not Ready for half an hour"),
        pytest.param(NodeCondition("Ready", "Unknown", BAD.since_seconds), True, id="not heard of for as long"),
        pytest.param(NodeCondition("Ready", "False", BAD.since_seconds + 1), False, id="a second less"),
        pytest.param(NodeCondition("Ready", "True", 1), False, id="Ready"),
        pytest.param(NodeCondition("DiskPressure", "False", 1), False, id="of no other condition"),
        pytest.param(NodeCondition("Ready", "False"), True, id="since it is there, if it does not say since when"),
    ],
)
def test_a_node_goes_that_has_been_bad_for_long_enough(condition: NodeCondition, goes: bool) -> None:
    found = _found(_node("n", condition), *(_node(f"good{number}") for number in range(4)))
    assert list(found.nodes) == (["n"] if goes else [])
    if goes:
        assert found.nodes["n"].reason is DisruptionReason.UNHEALTHY
        assert condition.type in found.nodes["n"].why


def test_other_conditions_have_tolerations_of_their_own() -> None:
    settings = ConsolidationSettings(repair=(RepairRule("AcceleratedHardwareReady", "False", 600.0),))
    good = [_node(f"good{number}") for number in range(8)]
    gpu = _node("gpu", NodeCondition("AcceleratedHardwareReady", "False", int(NOW) - 600))
    found = _found(gpu, _node("n", BAD), *good, settings=settings)
    assert list(found.nodes) == ["gpu"]


def test_where_more_than_a_fifth_is_bad_it_is_not_the_nodes() -> None:
    bad = [_node(f"bad{number}", BAD) for number in range(2)]
    good = [_node(f"good{number}") for number in range(3)]
    found = _found(*bad, *good)
    assert not found.nodes
    assert set(found.spared) == {"bad0", "bad1"}
    assert found.spared["bad0"].endswith("but 2 of the 5 nodes of provisioner p are bad, more than 20 %")
    assert set(_found(bad[0], *good).nodes) == {"bad0"}, "one of four: rounded up, as Karpenter does"
    young = _node("bad1", NodeCondition("Ready", "False", int(NOW)))
    assert not _found(bad[0], young, *good).nodes, "those that are bad only now count"
    interrupted = _node("bad1", BAD, taint="aws-node-termination-handler/spot-itn")
    assert set(_found(bad[0], interrupted, *good).nodes) == {"bad1"}, "the cloud asks nobody"


def test_nodes_of_others_and_those_that_are_being_deleted_are_not_ours_to_replace() -> None:
    there = _node("n", BAD)
    assert not _found(there, fleet=_fleet()).nodes
    assert not _found(there, fleet=_fleet("n", state=InstanceState.DELETING)).nodes
