"""Claims of pods and devices of nodes, as the view reads them: what a pod needs, what a node has left, and when either
is read again."""

from __future__ import annotations

from typing import Any

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.devices.objects import Device
from cagrpc.api.gen import kubernetes_pb2
from solver.model import PodSpec
from tests.cluster.view.test_expected import replica_set, template
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, node, of_devices, pod
from tests.support.devices import (
    API,
    CLAIMS,
    CLASSES,
    DRIVER,
    SLICES,
    TEMPLATES,
    claim,
    claim_template,
    device_class,
    gpus,
)


def fed(*, nodes: tuple[kubernetes_pb2.Node, ...] = (), **objects: list[Any]) -> Fed:
    found = Fed(expects=True)
    found.nodes(*(nodes or (node("n1"),)))
    found.relist(objects.get("classes", [device_class()]), CLASSES)
    found.relist(objects.get("templates", [claim_template()]), TEMPLATES)
    found.relist(objects.get("claims", []), CLAIMS)
    found.relist(objects.get("slices", [gpus()]), SLICES)
    return found


def templated(name: str, template: str = "t", made: str = "", **more: Any) -> kubernetes_pb2.Pod:
    found = pod(name, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": template}], **more)
    if made:
        found.status.resourceClaimStatuses.add(name="gpu", resourceClaimName=made)
    return found


def naming(name: str, claim: str, **more: Any) -> kubernetes_pb2.Pod:
    return pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}], **more)


def counts(of: Fed, name: str = "n1") -> list[tuple[int, int]]:
    """Return free and had devices of a node, kind by kind."""
    found = next(each.node for each in of.state().nodes if each.node.name == name)
    return [(each.count, each.taken) for each in found.devices]


def test_replicas_of_a_template_are_one_class_before_and_after_their_claims_are_made() -> None:
    there = fed(claims=[claim(f"c{n}", ownerReferences=[owner(f"p{n}")]) for n in range(3)])
    there.put(*(templated(f"p{n}", made=f"c{n}" if n < 3 else "") for n in range(5)))
    (waiting,) = there.state().waiting
    assert waiting.pod_set.count == 5
    (wanted,) = waiting.pod_set.spec.claims
    assert wanted.requests[0].alternatives[0].count == 1
    assert counts(there) == [(4, 0)]


def owner(name: str) -> Any:
    return {"kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True, "apiVersion": "v1"}


def test_devices_that_claims_have_are_not_free() -> None:
    there = fed(claims=[claim("a", "gpu-0", "gpu-1"), claim("b", "gpu-2")])
    there.put(templated("p"))
    assert counts(there) == [(1, 3)]
    there.drop(claim("a"), path=CLAIMS)
    assert counts(there) == [(3, 1)]
    there.put(claim("b"), path=CLAIMS)
    assert counts(there) == [(4, 0)]


def test_nodes_have_devices_only_while_somebody_asks_for_them() -> None:
    there = fed()
    assert counts(there) == []
    asks = templated("p")
    there.put(asks)
    assert counts(there) == [(4, 0)]
    there.drop(asks)
    assert counts(there) == []
    assert not any(of_devices(there.model))


def test_slices_that_change_are_read_again_and_an_incomplete_pool_has_nothing() -> None:
    there = fed()
    there.put(templated("p"))
    there.put(gpus(2, generation=2, slices=2), path=SLICES)
    assert counts(there) == []
    there.put(gpus(2, generation=3), path=SLICES)
    assert counts(there) == [(2, 0)]


def test_a_pod_is_read_again_when_what_it_refers_to_comes_or_goes() -> None:
    there = fed(claims=[], templates=[], classes=[])
    there.put(templated("p"))
    assert there.specs()["default/p"].unschedulable == "ResourceClaimTemplate default/t is not found"
    there.put(claim_template(), path=TEMPLATES)
    assert "DeviceClass gpu is not found" in there.specs()["default/p"].unschedulable
    there.put(device_class(), path=CLASSES)
    assert not there.specs()["default/p"].unschedulable
    there.drop(device_class(), path=CLASSES)
    assert "DeviceClass gpu is not found" in there.specs()["default/p"].unschedulable


def test_an_allocated_claim_ties_its_pod_to_its_node_and_counts_once() -> None:
    there = fed(claims=[claim("c", "gpu-0")])
    there.put(naming("p", "c"), templated("q"))
    spec = there.specs()["default/p"]
    assert not spec.claims
    assert spec.node_terms[0][0].match_fields[0].values == ("n1",)
    assert counts(there) == [(3, 1)]


def test_the_oldest_pod_carries_a_shared_claim_and_another_does_when_it_goes() -> None:
    there = fed(claims=[claim("c")])
    pods = [naming(f"p{n}", "c", created=100 + n) for n in range(3)]
    there.put(*reversed(pods))

    def carriers() -> list[str]:
        found = {each.pods[0].name: each for each in there.state().waiting}
        for each in found.values():
            assert bool(each.pod_set.spec.claims) != bool(each.pod_set.spec.pod_affinity)
        return sorted(name for name, each in found.items() if each.pod_set.spec.claims)

    assert carriers() == ["p0"]
    there.drop(pods[0])
    assert carriers() == ["p1"]
    there.put(claim("c", "gpu-3"), path=CLAIMS)
    (together,) = there.state().waiting
    assert together.pod_set.count == 2
    assert together.pod_set.spec.node_terms


def test_nobody_waits_for_a_pod_that_cannot_run() -> None:
    there = fed(claims=[claim("c")])
    older, younger = naming("p0", "c", created=100), naming("p1", "c", created=101)
    lost = older.spec.resourceClaims.add()
    lost.name, lost.resourceClaimName = "lost", "lost"
    there.put(older, younger)
    found = there.specs()
    assert found["default/p0"].unschedulable == "ResourceClaim default/lost is not found"
    assert found["default/p1"].claims
    assert not found["default/p1"].pod_affinity
    there.put(claim("lost"), path=CLAIMS)
    found = there.specs()
    assert found["default/p0"].claims
    assert found["default/p1"].pod_affinity


def test_pods_to_come_ask_for_the_devices_of_their_template() -> None:
    there = fed()
    asks = template(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    made = replica_set(3, of=asks)
    there.put(made, path=REPLICA_SETS)
    (waiting,) = there.state().waiting
    assert waiting.pod_set.count == 3
    assert len(waiting.pod_set.spec.claims) == 1
    assert counts(there) == [(4, 0)]
    there.drop(made, path=REPLICA_SETS)
    assert not there.state().waiting
    assert not any(of_devices(there.model))


def test_a_pod_that_runs_needs_its_devices_elsewhere_too() -> None:
    """What scale-down asks: the claim of a template is made anew, one by name stays where it is."""
    there = fed(claims=[claim("made", "gpu-0", ownerReferences=[owner("p")]), claim("kept", "gpu-1")])
    there.put(templated("p", made="made", node="n1"), naming("q", "kept", node="n1"))
    movable = next(each for each in there.state().nodes).movable
    assert sorted((len(each.spec.claims), len(each.spec.node_terms)) for each in movable) == [(0, 1), (1, 0)]


def test_another_in_the_stead_of_a_pod_that_runs_asks_for_what_its_template_says_now() -> None:
    there = fed(claims=[claim("made", "gpu-0", ownerReferences=[owner("p")])])
    there.put(templated("p", made="made", node="n1"))

    def moved() -> PodSpec:
        (found,) = next(each for each in there.state().nodes).movable
        return found.spec

    def devices() -> list[int]:
        return [way.count for each in moved().claims for asked in each.requests for way in asked.alternatives]

    assert devices() == [1]
    there.put(claim_template(count=2), path=TEMPLATES)
    assert devices() == [2]
    there.drop(claim_template(), path=TEMPLATES)
    assert moved().unschedulable == "ResourceClaimTemplate default/t is not found"
    there.drop(templated("p"))
    assert not any(of_devices(there.model))


def test_an_extended_resource_of_a_pod_that_runs_is_asked_for_elsewhere_as_the_class_has_it() -> None:
    there = Fed(moving=MovingRules())
    there.nodes(node("n1"))
    there.relist([device_class(extendedResourceName="example.com/gpu")], CLASSES)
    there.relist([gpus()], SLICES)
    asks = pod("p", node="n1", owner="ReplicaSet")
    asks.spec.containers[0].resources.requests["example.com/gpu"].string = "2"
    there.put(asks)

    def bound() -> PodSpec:
        (found,) = there.model.state(with_bound=True).bound["n1"].reschedulable
        return found.spec

    assert bound().claims[0].requests[0].alternatives[0].count == 2
    assert "example.com/gpu" not in dict(bound().requests)
    assert counts(there) == [(4, 0)]
    there.put(device_class(), path=CLASSES)
    assert bound().claims == ()
    assert dict(bound().requests)["example.com/gpu"] == 2
    there.drop(asks)
    assert not any(of_devices(there.model))


def test_an_extended_resource_that_a_class_backs_follows_the_class() -> None:
    there = fed()
    asks = pod("p")
    asks.spec.containers[0].resources.requests["example.com/gpu"].string = "2"
    there.put(asks)
    assert dict(there.specs()["default/p"].requests)["example.com/gpu"] == 2
    there.put(device_class(extendedResourceName="example.com/gpu"), path=CLASSES)
    spec = there.specs()["default/p"]
    assert "example.com/gpu" not in dict(spec.requests)
    assert spec.claims[0].requests[0].alternatives[0].count == 2
    assert counts(there) == [(4, 0)]
    there.put(device_class(), path=CLASSES)
    assert dict(there.specs()["default/p"].requests)["example.com/gpu"] == 2


def test_without_the_api_pods_with_claims_wait_with_that_reason_and_no_others() -> None:
    there = Fed()
    there.put(templated("p"), pod("q"))
    found = there.specs()
    assert "cannot be listed" in found["default/p"].unschedulable
    assert not found["default/q"].unschedulable
    for path, objects in ((CLAIMS, []), (TEMPLATES, [claim_template()]), (CLASSES, [device_class()]), (SLICES, [])):
        there.relist(objects, path)
    assert not there.specs()["default/p"].unschedulable


def test_an_older_version_counts_where_it_is_all_that_is_served() -> None:
    there = Fed()
    old = API.replace("v1", "v1beta1")
    asked = {"name": "gpu", "deviceClassName": "gpu", "count": 2}
    spec = {"devices": {"requests": [asked]}}
    there.nodes(node("n1"))
    there.relist([], old + "resourceclaims")
    made: Any = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": spec}}
    there.relist([made], old + "resourceclaimtemplates")
    there.relist([device_class()], old + "deviceclasses")
    slices = gpus()
    slices["spec"]["devices"] = [{"name": each["name"], "basic": {}} for each in slices["spec"]["devices"]]
    there.relist([slices], old + "resourceslices")
    there.put(templated("p"))
    assert there.specs()["default/p"].claims[0].requests[0].alternatives[0].count == 2
    assert counts(there) == [(4, 0)]


def test_nodes_await_their_drivers_for_a_while() -> None:
    there = fed(nodes=(node("n1"), node("n2")))
    there.put(templated("p"))
    assert there.state().devices.is_awaited("n2")
    assert not there.state().devices.is_awaited("n1")
    there.time = 700.0
    assert not there.state().devices.is_awaited("n2")


def test_a_held_node_is_ready_once_the_devices_that_pods_ask_for_are_published() -> None:
    configured = {"group": (Device(DRIVER, "gpu-0"),)}
    there = Fed(devices=configured, labels_of_groups={"group": {"pool": "gpu"}, "other": {"pool": "plain"}})
    for path, objects in ((CLAIMS, []), (TEMPLATES, [claim_template()]), (CLASSES, [device_class()]), (SLICES, [])):
        there.relist(objects, path)
    held = [{"key": START_UP_TAINT, "effect": "NoSchedule"}]
    gpu, plain = node("n1", taints=held), node("n2", taints=held)
    gpu.metadata.labels["pool"], plain.metadata.labels["pool"] = "gpu", "plain"
    there.nodes(gpu, plain)
    assert there.model.ready_instances() == {"id-n1", "id-n2"}  # nobody asks
    there.put(templated("p"))
    assert there.model.ready_instances() == {"id-n2"}
    there.put(gpus(slices=2), path=SLICES)
    assert there.model.ready_instances() == {"id-n2"}
    there.put(gpus(generation=2), path=SLICES)
    assert there.model.ready_instances() == {"id-n1", "id-n2"}
    there.drop(gpus(), path=SLICES)
    gpu.spec.ClearField("taints")
    there.nodes(gpu)
    assert there.model.ready_instances() == {"id-n1", "id-n2"}  # it was let go: what is lost later is no hold
