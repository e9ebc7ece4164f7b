"""Volumes of pods, as the view reads them: where they let a pod run, what they take of a node, and when it is read
again."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.view.model import NODES
from cagrpc.cluster.view.storage import CAPACITIES, CLAIMS, CLASSES, DRIVERS, VOLUMES
from solver.model import HOSTNAME, PodSpec
from solver.model.eligibility import why_not_eligible
from solver.planning.reasons import between_pods
from tests.cluster.view.test_expected import metadata, replica_set, template
from tests.support.controllers.cluster_objects import REPLICA_SETS, STATEFUL_SETS, Fed, node, pod, remembered
from tests.support.storage import EBS, LOCAL, ZONE, attachment, claim, csi_node, storage_class, volume

CSI_NODES, ATTACHMENTS = "/apis/storage.k8s.io/v1/csinodes", "/apis/storage.k8s.io/v1/volumeattachments"
ATTACH = f"attachable-volumes-csi-{EBS}"


def fed(**objects: Any) -> Fed:
    """Return a cluster whose storage is listed."""
    found = Fed(objects.get("slack"), expects=True)
    found.relist(objects.get("classes", [storage_class()]), CLASSES)
    found.relist(objects.get("volumes", []), VOLUMES)
    found.relist(objects.get("claims", []), CLAIMS)
    for path in (CAPACITIES, DRIVERS) if objects.get("room", True) else ():
        found.relist([], path)
    return found


def using(name: str, *claims: str, **more: Any) -> kubernetes_pb2.Pod:
    volumes = [
        {"name": f"v{n}", "volumeSource": {"persistentVolumeClaim": {"claimName": each}}}
        for n, each in enumerate(claims)
    ]
    return pod(name, volumes=volumes, **more)


def ephemeral(name: str, **more: Any) -> kubernetes_pb2.Pod:
    asked = {"spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}
    source = {"ephemeral": {"volumeClaimTemplate": asked}}
    return pod(name, volumes=[{"name": "scratch", "volumeSource": source}], **more)


def zones(spec: PodSpec, *among: str) -> str:
    """Return the zones of "abc" in which the pod may run."""
    return "".join(z for z in among or "abc" if why_not_eligible(spec, {ZONE: z}, (), "n1") is None)


def reason(of: Fed, name: str = "default/p") -> str:
    return of.specs()[name].unschedulable


def test_a_bound_claim_ties_its_pod_to_the_zone_of_the_volume() -> None:
    there = fed(claims=[claim("c", "v")], volumes=[volume("v", "b", of="c", driver=EBS)])
    there.put(using("p", "c"))
    assert zones(there.specs()["default/p"]) == "b"
    assert dict(there.specs()["default/p"].requests) == {"cpu": 1000, ATTACH: 1}


def test_the_slack_counts_no_attachments() -> None:
    """Its placeholders have no volumes: no node would take one that requests attachments."""
    there = fed(claims=[claim("c", "v")], volumes=[volume("v", "b", of="c", driver=EBS)], slack=Exclusion())
    there.put(using("p", "c"))
    assert [dict(each.spec.requests) for each in there.state().slack.pods] == [{"cpu": 1000}]


def test_pods_of_one_workload_with_claims_of_their_own_are_one_class() -> None:
    """A hundred replicas with claims of their own in one zone: names of claims are no part of a class."""
    there = fed(
        claims=[claim(f"c{n}", f"v{n}") for n in range(100)],
        volumes=[volume(f"v{n}", "ab"[n % 2], of=f"c{n}", driver=EBS) for n in range(100)],
    )
    there.put(*(using(f"p{n}", f"c{n}") for n in range(100)))
    assert sorted(each.pod_set.count for each in there.state().waiting) == [50, 50]


def test_a_zone_label_of_the_volume_counts_as_in_volume_zone() -> None:
    labels = {"failure-domain.beta.kubernetes.io/zone": "a__b"}
    there = fed(claims=[claim("c", "v")], volumes=[volume("v", of="c", labels=labels)])
    there.put(using("p", "c"))
    spec = there.specs()["default/p"]
    assert zones(spec) == "ab"
    assert why_not_eligible(spec, {}, ()) is None  # a node that has no zone at all
    assert why_not_eligible(spec, {"topology.kubernetes.io/region": "r"}, ()) is not None


@pytest.mark.parametrize(
    ("claims", "volumes", "classes", "why"),
    [
        ([], [], [], 'persistentvolumeclaim "c" not found'),
        ([claim("c", "v", phase="Lost")], [], [], 'persistentvolumeclaim "c" has lost its volume "v"'),
        ([claim("c", "v")], [], [], 'persistentvolumeclaim "c" is bound to volume "v", not found'),
        ([claim("c", "v", bound=False)], [volume("v")], [], 'is not bound yet to volume "v", which it names'),
        ([claim("c", "v", bound=False)], [], [], 'volume "v", which it names and which is not found'),
        (
            [claim("c", "v", bound=False)],
            [volume("v", of="d")],
            [],
            'volume "v", which it names and which claim "default/d" has',
        ),
        ([claim("c", class_name="")], [], [], "has no storage class and is not bound"),
        ([claim("c", class_name="x")], [], [], 'its storageclass "x" is not found'),
        ([claim("c")], [], [storage_class(waits=False)], 'storageclass "fast" binds at once (Immediate)'),
        ([claim("c")], [], [storage_class(waits=False)], f"and {EBS} has made no volume for it"),
        ([claim("c")], [], [storage_class(provisioner=LOCAL)], 'finds no volume: storageclass "fast" makes none'),
    ],
)
def test_why_a_pod_waits_for_its_claim(claims: list[Any], volumes: list[Any], classes: list[Any], why: str) -> None:
    there = fed(claims=claims, volumes=volumes, classes=classes)
    there.put(using("p", "c"))
    assert why in reason(there)


def test_a_claim_without_a_volume_says_what_it_asks_for() -> None:
    asked = claim("c")
    asked["spec"] |= {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    there = fed(claims=[asked], classes=[storage_class(provisioner=LOCAL)])
    there.put(using("p", "c"))
    assert reason(there) == (
        'persistentvolumeclaim "c" finds no volume: storageclass "fast" makes none, and no available one is left for it'
        " (it asks for 10Gi, ReadWriteMany)"
    )


def test_all_claims_that_a_pod_waits_for_are_told() -> None:
    there = fed(claims=[claim("c", class_name="x")])
    there.put(using("p", "c", "d"))
    assert reason(there) == (
        'persistentvolumeclaim "c" is not bound, and its storageclass "x" is not found;'
        ' persistentvolumeclaim "d" not found'
    )


def test_a_claim_that_is_being_deleted_or_is_somebody_elses() -> None:
    gone = claim("c", "v")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    there = fed(claims=[gone, claim("q-scratch", owner="uid-other")], volumes=[volume("v", of="c")])
    there.put(using("p", "c"), ephemeral("q"))
    assert reason(there) == 'persistentvolumeclaim "c" is being deleted'
    assert "was not made for the pod" in reason(there, "default/q")


def test_a_pod_is_read_again_when_its_claim_its_volume_or_its_class_changes() -> None:
    there = fed(classes=[])
    there.put(using("p", "c"))
    assert "not found" in reason(there)
    there.put(claim("c"), path=CLAIMS)
    assert "storageclass" in reason(there)
    there.put(storage_class(zones=["a", "b"]), path=CLASSES)
    assert zones(there.specs()["default/p"]) == "ab"
    there.put(claim("c", "v"), path=CLAIMS)
    assert 'volume "v", not found' in reason(there)
    there.time = 50.0
    there.put(volume("v", "c", of="c"), path=VOLUMES)
    assert there.model.arrivals().news_at_seconds == {"default": 50.0}  # it can be planned now
    assert zones(there.specs()["default/p"]) == "c"
    there.drop(claim("c", "v"), path=CLAIMS)
    assert "not found" in reason(there)
    there.drop(using("p", "c"))
    assert not any(remembered(there.model._references))
    storage = there.model._storage
    assert not any((storage._users, storage._used, storage._templates, storage._waiting, storage._waits_for))


def test_a_volume_that_is_to_be_made_follows_its_class() -> None:
    there = fed(claims=[claim("c"), claim("d", annotations={"volume.kubernetes.io/selected-node": "n1"})])
    there.put(using("p", "c"), using("q", "d"))
    found = there.specs()
    assert (zones(found["default/p"]), dict(found["default/p"].requests)[ATTACH]) == ("abc", 1)
    assert why_not_eligible(found["default/q"], {ZONE: "a"}, (), "n1") is None
    assert why_not_eligible(found["default/q"], {ZONE: "a"}, (), "n2") is not None


def test_volumes_without_a_provisioner_serve_no_more_pods_than_there_are() -> None:
    there = fed(
        classes=[storage_class(provisioner=LOCAL)],
        claims=[claim(f"c{n}") for n in range(4)],
        volumes=[volume("a0", "a"), volume("b0", "b"), volume("b1", "b")],
    )
    there.put(*(using(f"p{n}", f"c{n}") for n in range(4)))
    counts = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert counts == {"a": 1, "b": 2, "": 1}


def test_while_the_scheduler_binds_a_pod_its_claim_counts_on_the_volume_kept_for_it_and_on_no_other() -> None:
    """Otherwise the zone would have one volume less for others, whose pods would be sent elsewhere meanwhile."""
    local = storage_class("local", LOCAL)
    kept = volume("z-kept", "a", class_name="local", of="first")
    kept["status"]["phase"] = "Available"
    free = [volume("a-free", "a", class_name="local"), *(volume(f"b-{n}", "b", class_name="local") for n in range(2))]
    claims = [claim(name, class_name="local") for name in ("first", "second")]
    there = fed(classes=[local], claims=claims, volumes=[kept, free[0]])
    there.put(using("p", "first"), using("q", "second"))
    counts = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert counts == {"a": 2}
    there = fed(classes=[local], claims=claims[:1], volumes=[kept, *free[1:]])
    there.put(using("p", "first"))
    assert zones(there.specs()["default/p"]) == "a"


def test_where_every_zone_has_enough_volumes_pods_may_go_to_any() -> None:
    there = fed(
        classes=[storage_class(provisioner=LOCAL)],
        claims=[claim("c0"), claim("c1")],
        volumes=[volume(f"{zone}{n}", zone) for zone in "ab" for n in range(2)],
    )
    there.put(using("p0", "c0"), using("p1", "c1"))
    (alike,) = there.state().waiting
    assert (alike.pod_set.count, zones(alike.pod_set.spec)) == (2, "ab")
    too_small = [volume(f"a{n}", "a", size="1Mi") for n in range(2)]
    there.put(*too_small, path=VOLUMES)
    (alike,) = there.state().waiting
    assert zones(alike.pod_set.spec) == "b"


def test_a_pod_of_an_ephemeral_volume_is_planned_before_its_claim_is_there() -> None:
    there = fed(classes=[storage_class(zones=["c"])])
    there.put(ephemeral("p"))
    assert zones(there.specs()["default/p"]) == "c"
    there.put(claim("p-scratch", "v", owner="uid-p"), path=CLAIMS)
    there.put(volume("v", "a", of="p-scratch"), path=VOLUMES)
    assert zones(there.specs()["default/p"]) == "a"


def test_read_write_once_pod_serves_one_pod_at_a_time() -> None:
    there = fed(claims=[claim("c", "v", modes=["ReadWriteOncePod"])], volumes=[volume("v", "a", of="c")])
    there.put(using("p", "c", created=1), using("q", "c", created=2))
    (alike,) = there.state().waiting
    assert (alike.pod_set.count, reason(there)) == (2, "")
    assert list(between_pods(alike.pod_set.spec)) == ["a claim that only one pod may use"]
    there.nodes(node("n1"))
    there.put(using("p", "c", created=1, node="n1"))
    assert reason(there, "default/q").endswith("is ReadWriteOncePod, and pod default/p uses it")
    there.drop(using("p", "c"))
    assert not reason(there, "default/q")


def test_pods_that_share_a_claim_keep_together() -> None:
    there = fed(
        claims=[claim("once", "v"), claim("many", modes=["ReadWriteMany"])], volumes=[volume("v", "a", of="once")]
    )
    there.put(*(using(name, "once", created=1) for name in "pq"), *(using(name, "many") for name in "st"))
    found = there.specs()
    (term,) = found["default/p"].pod_affinity
    assert (term.topology_key, term.alone) == (HOSTNAME, True)
    assert dict(found["default/p"].labels).keys() == {"claim.planning.cagrpc.io/once"}
    assert [term.topology_key for term in found["default/s"].pod_affinity] == [ZONE]
    there.nodes(node("n1"))
    there.put(using("p", "once", created=1, node="n1"))
    spec = there.specs()["default/q"]  # beside the one that runs, wherever that is
    assert spec.pod_affinity == ()
    assert why_not_eligible(spec, {ZONE: "a"}, (), "n1") is None
    assert why_not_eligible(spec, {ZONE: "a"}, (), "n2") is not None


def test_pods_to_come_that_share_a_claim_take_one_attachment_together() -> None:
    there = fed(claims=[claim("once", "v")], volumes=[volume("v", "a", of="once", driver=EBS)])
    of = template(volumes=[{"name": "v", "volumeSource": {"persistentVolumeClaim": {"claimName": "once"}}}])
    there.put(replica_set(3, of=of), path=REPLICA_SETS)

    def waiting() -> list[tuple[object, int]]:
        return [(each.pod_set.spec.shared_volumes, each.pod_set.count) for each in there.state().waiting]

    assert waiting() == [(((ATTACH, "v"),), 3)]
    there.put(using("web-0", "once", owner="ReplicaSet", owner_name="web-1"))
    assert sorted(waiting()) == [((), 1), (((ATTACH, "v"),), 2)], "one is there, and the others go where it goes"


def test_a_node_attaches_each_volume_once_and_no_more_than_its_driver_says() -> None:
    names = ("x", "y", "shared", "z")
    there = fed(claims=[claim(f"c{n}", n) for n in names], volumes=[volume(n, of=f"c{n}", driver=EBS) for n in names])
    there.nodes(node("n1"), node("n2"))
    there.put(csi_node("n1", count=4), path=CSI_NODES)
    there.put(using("p", "cx", "cshared", node="n1"), using("q", "cshared", node="n1"), using("r", "cz"))
    assert there.free("n1")[ATTACH] == 2
    assert [each.node.volumes for each in there.state().nodes] == [{(ATTACH, "x"), (ATTACH, "shared")}, set()]
    assert there.free("n2")[ATTACH] > 1000  # nothing is known of it
    there.put(attachment("left", "n1", "y"), attachment("same", "n1", "x"), path=ATTACHMENTS)
    assert there.free("n1")[ATTACH] == 1  # one whose pod is gone, and one that a pod uses
    assert (ATTACH, "y") not in there.state().nodes[0].node.volumes  # the scheduler would count it once more
    there.drop(attachment("left", "n1", "y"), path=ATTACHMENTS)
    there.drop(using("q", "cshared"))
    assert there.free("n1")[ATTACH] == 2
    there.drop(using("p", "cx", "cshared"))
    assert there.free("n1")[ATTACH] == 3
    there.drop(csi_node("n1"), path=CSI_NODES)
    assert there.free("n1")[ATTACH] > 1000


def test_volumes_of_one_handle_are_one_to_their_node() -> None:
    twins = [volume(name, of=f"c{name}", driver=EBS, handle="disk") for name in "xy"]
    claims = [claim(f"c{name}", name, modes=["ReadWriteMany"]) for name in "xy"]
    there = fed(claims=claims, volumes=twins)
    there.nodes(node("n1"))
    there.put(csi_node("n1", count=4), path=CSI_NODES)
    there.put(using("p", "cx", node="n1"), using("q", "cy", node="n1"), using("r", "cy"))
    assert there.free("n1")[ATTACH] == 3
    assert [each.node.volumes for each in there.state().nodes] == [{(ATTACH, "disk")}]
    assert there.specs()["default/r"].shared_volumes == ((ATTACH, "disk"),)
    there.put(attachment("ax", "n1", "x"), attachment("ay", "n1", "y"), path=ATTACHMENTS)
    assert there.free("n1")[ATTACH] == 3
    there.put(attachment("az", "n1", "z"), path=ATTACHMENTS)
    assert there.free("n1")[ATTACH] == 2, "nothing is known of the volume yet"
    there.put(volume("z", driver=EBS, handle="disk"), path=VOLUMES)
    assert there.free("n1")[ATTACH] == 3
    there.drop(volume("z", driver=EBS, handle="disk"), path=VOLUMES)
    assert there.free("n1")[ATTACH] == 2


def test_a_volume_has_a_twin_no_longer_than_that_is_there() -> None:
    there = fed(claims=[claim("cx", "x")], volumes=[volume("x", of="cx", driver=EBS, handle="disk")])
    there.put(using("p", "cx"))
    assert there.specs()["default/p"].shared_volumes == ()
    there.put(volume("y", driver=EBS, handle="disk"), path=VOLUMES)
    assert there.specs()["default/p"].shared_volumes == ((ATTACH, "disk"),)
    there.drop(volume("y", driver=EBS, handle="disk"), path=VOLUMES)
    assert there.specs()["default/p"].shared_volumes == ()


def test_limits_of_an_instance_type_are_known_after_its_nodes_are_gone() -> None:
    there = fed(claims=[claim("c")])
    large = node("n1")
    large.metadata.labels["node.kubernetes.io/instance-type"] = "m5.large"
    there.nodes(large)
    there.put(csi_node("n1", count=25), path=CSI_NODES)
    assert there.state().attach_limits == {"m5.large": {EBS: 25}}
    there.drop(large, path=NODES)
    assert there.state().attach_limits == {"m5.large": {EBS: 25}}


def test_expected_pods_of_a_stateful_set_have_claims_of_their_own_or_those_that_were_kept() -> None:
    there = fed(
        classes=[storage_class(zones=["a", "b"])],
        claims=[claim("data-db-0", "v0"), claim("data-db-2", "v2")],
        volumes=[volume("v0", "a", of="data-db-0"), volume("v2", "b", of="data-db-2")],
    )
    claims = [{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}]
    wanted = kubernetes_pb2.StatefulSet(
        metadata=metadata("db"),
        spec={
            "replicas": 4,
            "template": template(),
            "podManagementPolicy": "Parallel",
            "volumeClaimTemplates": claims,
        },
    )
    there.put(wanted, path=STATEFUL_SETS)
    waiting = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert waiting == {"a": 1, "b": 1, "ab": 2}
    there.put(using("db-0", "data-db-0", owner="StatefulSet", owner_name="db"))
    waiting = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert waiting == {"a": 1, "b": 1, "ab": 2}  # the first is there; the others are still to come
    there.put(claim("data-db-1", "v1"), path=CLAIMS)
    there.put(volume("v1", "a", of="data-db-1"), path=VOLUMES)
    waiting = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert sum(waiting.values()) == 4
    assert waiting["ab"] == 1


def test_expected_pods_do_not_inherit_the_volumes_of_those_that_are_there() -> None:
    """The claim of a pod's ephemeral volume is that pod's alone."""
    source = {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}
    of = template(volumes=[{"name": "scratch", "volumeSource": source}])
    there = fed(
        classes=[storage_class(zones=["a", "b"])],
        claims=[claim("web-0-scratch", "v", owner="uid-web-0")],
        volumes=[volume("v", "c", of="web-0-scratch")],
    )
    there.put(ephemeral("web-0", owner="ReplicaSet", owner_name="web-1"))
    there.put(replica_set(3, there=1, of=of), path=REPLICA_SETS)
    waiting = {zones(each.pod_set.spec): each.pod_set.count for each in there.state().waiting}
    assert waiting == {"c": 1, "ab": 2}


def test_where_storage_may_not_be_listed_pods_are_planned_and_it_is_said() -> None:
    there = Fed()
    there.put(using("p", "c"))
    assert there.specs()["default/p"].unschedulable == ""
    (warning,) = there.state().warnings
    assert "persistentvolumeclaims, persistentvolumes, storageclasses cannot be listed" in warning
    for path in (CLASSES, VOLUMES, CLAIMS, CAPACITIES, DRIVERS):
        there.relist((), path)
    assert "not found" in reason(there)
    assert there.state().warnings == ()


def test_an_invalid_volume_affects_no_other() -> None:
    there = fed(claims=[claim("c", "v"), claim("d", "w")], volumes=[volume("v", "a", of="c"), volume("w", "b", of="d")])
    broken = volume("v", "a")
    broken["spec"]["nodeAffinity"] = "everywhere"
    with pytest.raises(Exception, match=r"PersistentVolume v: spec.nodeAffinity: expected a mapping"):
        there.put(broken, path=VOLUMES)
    there.put(using("q", "d"))
    assert zones(there.specs()["default/q"]) == "b"
