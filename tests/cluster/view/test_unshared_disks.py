"""Disks that pods name themselves, and that two pods of one node must not share (the plugin VolumeRestrictions)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from solver.model import Budget, NodeGroup, Problem
from solver.planning.reasons import between_pods
from solver.planning.solve import solve
from solver.verify.check import faults_of
from tests.cluster.view.test_expected import replica_set, template
from tests.cluster.view.test_storage import ATTACH, fed
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, node, pod

BUDGET = Budget(deterministic_seconds=0.2)
GCE, GCE_READ = ({"gcePersistentDisk": {"pdName": "d", "readOnly": reads}} for reads in (False, True))
EBS = {"awsElasticBlockStore": {"id": "d"}}
ISCSI, ISCSI_READ = ({"iscsi": {"iqn": "iqn.x:d", "readOnly": reads}} for reads in (False, True))


def rbd(*monitors: str, image: str = "d", reads: bool = False, pool: str = "") -> Any:
    return {"rbd": {"monitors": list(monitors), "image": image, "readOnly": reads, "pool": pool}}


def mounting(name: str, *sources: Any, **more: Any) -> kubernetes_pb2.Pod:
    volumes = [{"name": f"v{number}", "volumeSource": each} for number, each in enumerate(sources)]
    return pod(name, volumes=volumes, **more)


def nodes_for(there: Fed, *, standing: bool = False) -> int:
    """Return how many nodes the waiting pods need, each of which has room for all of them."""
    state = there.state()
    group = NodeGroup("g", {"cpu": 64_000, "pods": 110, ATTACH: 99, **_all_attachments(state)}, 1.0)
    nodes = tuple(each.node for each in state.nodes) if standing else ()
    plan = solve(Problem(tuple(each.pod_set for each in state.waiting), (group,), nodes), BUDGET)
    assert not plan.unplaced
    return sum(each.delta for each in plan.increments)


def _all_attachments(state: Any) -> dict[str, int]:
    return {f"attachable-volumes-csi-{driver}": 99 for driver in state.drivers}


@pytest.mark.parametrize(
    ("one", "other", "nodes"),
    [
        (GCE, GCE, 2),
        (GCE, GCE_READ, 2),
        (GCE_READ, GCE_READ, 1),
        (EBS, EBS, 2),
        (ISCSI, ISCSI_READ, 2),
        (ISCSI_READ, ISCSI_READ, 1),
        (rbd("a", "b"), rbd("b", "c"), 2),
        (rbd("a", reads=True), rbd("a", reads=True), 1),
        (rbd("a"), rbd("b"), 1),  # another cluster
        (rbd("a"), rbd("a", image="e"), 1),
        (rbd("a", pool="rbd"), rbd("a"), 2),  # the default pool
        (GCE, {"gcePersistentDisk": {"pdName": "e"}}, 1),
        (GCE, ISCSI, 1),
        ({"azureDisk": {"id": "d"}}, {"azureDisk": {"id": "d"}}, 1),  # not looked at by the scheduler
    ],
)
def test_who_may_share_a_disk_on_a_node(one: Any, other: Any, nodes: int) -> None:
    there = fed()
    there.put(mounting("p", one), mounting("q", other, namespace="elsewhere"))
    assert nodes_for(there) == nodes


def test_pods_that_only_read_a_disk_and_those_of_one_disk_are_alike() -> None:
    there = fed()
    there.put(*(mounting(f"p{number}", GCE_READ) for number in range(5)))
    there.put(*(mounting(f"q{number}", EBS) for number in range(3)))
    assert sorted(each.pod_set.count for each in there.state().waiting) == [3, 5]
    assert nodes_for(there) == 3


def test_a_disk_of_a_pod_that_runs_keeps_others_off_its_node() -> None:
    there = fed()
    there.nodes(node("n1", cpu="64"))
    there.put(mounting("runs", GCE, node="n1", phase="Running"), mounting("reads", GCE_READ))
    assert nodes_for(there, standing=True) == 1
    there.put(mounting("runs", GCE_READ, node="n1", phase="Running"))
    assert nodes_for(there, standing=True) == 0


def test_a_pod_with_a_disk_twice_writes_it_where_one_volume_does() -> None:
    there = fed()
    there.put(mounting("p", GCE_READ, GCE), mounting("q", GCE_READ))
    assert nodes_for(there) == 2


def test_pods_to_come_of_one_template_are_apart() -> None:
    there = fed()
    source = [{"name": "v", "volumeSource": EBS}]
    there.put(replica_set(3, of=template(volumes=source)), path=REPLICA_SETS)
    assert nodes_for(there) == 3


def test_the_checker_finds_two_writers_on_a_node() -> None:
    there = fed()
    there.put(mounting("p", ISCSI))
    (waiting,) = there.state().waiting
    group = NodeGroup("g", {"cpu": 64_000, "pods": 110}, 1.0)
    problem = Problem((replace(waiting.pod_set, count=2),), (group,))
    good = solve(problem, BUDGET)
    assert list(faults_of(problem, good)) == []
    (nodes,) = good.nodes
    packed = replace(
        good,
        nodes=(replace(nodes, count=1, pods={0: 2}),),
        increments=tuple(replace(each, delta=1) for each in good.increments),
    )
    assert any("anti-affinity" in fault for fault in faults_of(problem, packed)), list(faults_of(problem, packed))


def test_what_is_said_of_such_a_pod() -> None:
    there = fed()
    there.put(mounting("p", ISCSI))
    (waiting,) = there.state().waiting
    assert list(between_pods(waiting.pod_set.spec)) == ["a disk that no other pod on its node may use"]
