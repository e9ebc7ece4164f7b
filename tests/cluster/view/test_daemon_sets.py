"""What the pods of DaemonSets take of new nodes, and of those that they are still to be bound to: attachments and
devices too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.storage import CLAIMS, VOLUMES
from solver.model import Budget, NodeGroup, PodSet, PodSpec, Problem
from solver.planning.solve import solve
from solver.verify.check import faults_of
from tests.cluster.view.test_expected import template
from tests.cluster.view.test_storage import ATTACH, CSI_NODES, fed, using, zones
from tests.support.controllers.cluster_objects import DAEMON_SETS, Fed, node, pod
from tests.support.devices import CLAIMS as RESOURCE_CLAIMS
from tests.support.devices import CLASSES, SLICES, TEMPLATES, claim_template, device_class
from tests.support.storage import EBS, claim, csi_node, storage_class, volume

BUDGET = Budget(deterministic_seconds=0.2)


def daemons(there: Fed, *volumes: Any, **spec: Any) -> PodSpec:
    """Create a DaemonSet; return its pod on a new node."""
    asked = [{"name": f"v{number}", "volumeSource": each} for number, each in enumerate(volumes)]
    body = kubernetes_pb2.PodTemplateSpec()
    body.MergeFromString(template("100m", volumes=asked, **spec))
    made = kubernetes_pb2.DaemonSet(metadata={"namespace": "default", "name": "d"}, spec={"template": body})
    there.put(made, path=DAEMON_SETS)
    (found,) = there.state().daemon_sets
    return found


def ephemeral(class_name: str = "fast") -> Any:
    asked = {"spec": {"storageClassName": class_name, "accessModes": ["ReadWriteOnce"]}}
    return {"ephemeral": {"volumeClaimTemplate": asked}}


def named(name: str) -> Any:
    return {"persistentVolumeClaim": {"claimName": name}}


def test_its_volumes_take_attachments_of_each_new_node() -> None:
    there = fed()
    daemon = daemons(there, ephemeral())
    assert dict(daemon.requests) == {"cpu": 100, ATTACH: 1}
    assert there.state().drivers == {EBS}
    asks = PodSpec(((ATTACH, 1), ("cpu", 100)))
    problem = Problem((PodSet("p", asks, 4),), (NodeGroup("g", {"cpu": 4000, "pods": 110, ATTACH: 3}, 1.0),))
    alone, beside = (solve(each, BUDGET) for each in (problem, replace(problem, daemon_sets=(daemon,))))
    assert [each.delta for each in alone.increments] == [2]
    assert [each.delta for each in beside.increments] == [2]
    assert max(each.pods[0] for each in alone.nodes) <= 3
    assert max(each.pods[0] for each in beside.nodes) == 2
    packed = replace(problem, pod_sets=(PodSet("p", asks, 3),))
    tight = solve(packed, BUDGET)
    assert list(faults_of(packed, tight)) == []
    (fault,) = faults_of(replace(packed, daemon_sets=(daemon,)), tight)
    assert f"over-full: {ATTACH} by 1" in fault


def test_a_bound_claim_keeps_it_to_nodes_in_reach_of_the_volume() -> None:
    shared = claim("c", "v", modes=["ReadWriteMany"])
    there = fed(claims=[shared], volumes=[volume("v", "b", of="c", driver=EBS)])
    daemon = daemons(there, named("c"))
    assert zones(daemon) == "b"
    there.put(volume("v", "a", of="c", driver=EBS), path=VOLUMES)
    assert zones(there.state().daemon_sets[0]) == "a", "it is read again"


def test_what_its_claim_lacks_makes_it_no_smaller() -> None:
    there = fed(classes=[storage_class(waits=False)])
    daemon = daemons(there, named("c"))
    assert (daemon.requests, daemon.unschedulable, zones(daemon)) == ((("cpu", 100),), "", "abc")
    there.put(claim("c"), path=CLAIMS)
    (daemon,) = there.state().daemon_sets
    assert (dict(daemon.requests), daemon.unschedulable) == ({"cpu": 100, ATTACH: 1}, "")


def test_its_claims_take_devices_of_each_new_node() -> None:
    there = Fed()
    for objects, path in (
        ([device_class(extendedResourceName="example.com/gpu")], CLASSES),
        ([claim_template()], TEMPLATES),
        ([], RESOURCE_CLAIMS),
        ([], SLICES),
    ):
        there.relist(objects, path)
    daemon = daemons(there, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    (wanted,) = daemon.claims
    assert wanted.requests[0].alternatives[0].count == 1
    there.relist([], DAEMON_SETS)
    assert there.state().daemon_sets == ()
    assert not any(there.leftovers())


def test_one_that_is_still_to_be_bound_takes_its_room_with_its_volume() -> None:
    """Its attachments are no resource that the Node tells: it fits all the same."""
    there = fed(claims=[claim("c", "v")], volumes=[volume("v", of="c", driver=EBS)])
    there.nodes(node())
    there.put(csi_node("n1"), path=CSI_NODES)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    before = dict(there.state().nodes[0].node.free)
    there.put(using("d", "c", owner="DaemonSet", affinity=affinity))
    free = there.state().nodes[0].node.free
    assert (before["cpu"] - free["cpu"], free[ATTACH]) == (1000, 1)
    there.put(pod("other"))
    assert there.waiting() == {"default/other": 1}
