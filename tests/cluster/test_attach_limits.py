"""How many volumes a new node attaches, in a cluster: the first that says a number counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.api.core.nodes import node_document
from cagrpc.cluster.fleet_capacity import groups_as_planned
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.fleet.provisioners import Provisioner, expand
from solver.model import NodeGroup, Operator, Requirement
from tests.support.fleet import group
from tests.support.solver.problems import node
from tests.support.storage import EBS

LIMIT = f"attachable-volumes-csi-{EBS}"
TYPE = "node.kubernetes.io/instance-type"
M5 = Requirement(TYPE, Operator.IN, ("m5.large",))


def limit(of: NodeGroup, own: int | None = None, others: int | None = None, drivers: tuple[str, ...] = (EBS,)) -> int:
    """Return what a new node of the group has. `own` says a node of the group, `others` one of its type."""
    standing = ClusterNode(node("n", 1000), "i-1", True, False, (), attach_limits=None if own is None else {EBS: own})
    of_types = {} if others is None else {"m5.large": {EBS: others}}
    cluster = ClusterState((), (standing,), (), drivers=frozenset(drivers), attach_limits=of_types)
    (found,) = groups_as_planned(FleetSnapshot(1, {of.id: GroupState(of, 1)}, (), {"i-1": of.id}), cluster)
    return found.allocatable.get(LIMIT, -1)


def of_catalogue(configured: int | None = None) -> NodeGroup:
    allocatable = {} if configured is None else {LIMIT: configured}
    ((found,), _) = expand(Provisioner("p", requirements=(M5,), allocatable=allocatable), embedded_catalogue())
    return found


@pytest.mark.parametrize(
    ("own", "others", "configured", "expected"),
    [(3, 4, 5, 3), (None, 4, 5, 4), (None, None, 5, 5), (None, None, None, 25), (30, None, None, 30)],
)
def test_nodes_of_the_group_then_of_its_type_then_the_configuration_then_the_catalogue(
    own: int | None, others: int | None, configured: int | None, expected: int
) -> None:
    assert limit(of_catalogue(configured), own, others) == expected


def test_of_a_shape_by_hand_its_own_counts_before_its_provisioners() -> None:
    by_hand = replace(group("mine"), allocatable={"cpu": 1000, LIMIT: 7})
    ((found,), _) = expand(Provisioner("p", allocatable={LIMIT: 9}, node_groups=(by_hand,)), embedded_catalogue())
    assert limit(found) == 7
    ((found,), _) = expand(Provisioner("p", allocatable={LIMIT: 9}, node_groups=(group("mine"),)), embedded_catalogue())
    assert limit(found) == 9
    assert limit(group("mine")) > 1000, "none is known: the scheduler knows none either"


def test_a_node_has_attachments_only_where_pods_have_volumes_and_never_says_so_itself() -> None:
    assert limit(of_catalogue(), drivers=()) == -1
    assert LIMIT in of_catalogue().allocatable
    assert LIMIT not in node_document(of_catalogue(), "n")["status"]["allocatable"]
