"""Volumes of pods in files: a dump of a cluster is planned as the cluster is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cagrpc.errors import InvalidInput
from solver.model import HOSTNAME, NodeGroup, PodSet, Problem
from solver.model.eligibility import selects, why_not_eligible
from solver.planning.solve import solve
from tests.support import described
from tests.support.described import FromFiles
from tests.support.storage import (
    EBS,
    LOCAL,
    ZONE,
    attachment,
    capacity,
    claim,
    csi_driver,
    csi_node,
    storage_class,
    volume,
)

ATTACH = f"attachable-volumes-csi-{EBS}"


def _read(tmp_path: Path, *objects: Any, groups: Sequence[NodeGroup] = ()) -> FromFiles:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
    return described.read([path], groups=groups)


def _pod(name: str, *claims: str, node: str = "", uid: str = "", created: str = "", **spec: Any) -> Any:
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    if created:
        metadata["creationTimestamp"] = created
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, "volumes": volumes, **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Running" if node else "Pending"},
    }


def _node(name: str, zone: str = "a", kind: str = "m5.large") -> Any:
    labels = {ZONE: zone, "node.kubernetes.io/instance-type": kind}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    }


def _zones(of: PodSet, name: str = "") -> str:
    return "".join(zone for zone in "abc" if why_not_eligible(of.spec, {ZONE: zone}, (), name) is None)


def test_a_dump_of_a_cluster_leaves_no_warning(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _pod("p", "c"),
        _pod("q", "d"),
        _pod("r", "missing"),
        claim("c", "v"),
        claim("d"),
        volume("v", "b", of="c", driver=EBS),
        storage_class(zones=["a", "c"]),
        csi_node("n1", count=3),
        attachment("x", "n1", "v"),
    )
    assert found.warnings == ()
    assert {each.name: _zones(each) for each in found.pod_sets} == {
        "default/p": "b",
        "default/q": "ac",
        "default/r": "",
    }
    assert found.pod_sets[2].spec.unschedulable == 'persistentvolumeclaim "missing" not found'


def test_volumes_of_pods_that_run_and_attachments_count_on_their_nodes(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _node("n1"),
        _node("n2"),
        _pod("p", "c", node="n1"),
        _pod("also", "c", node="n1"),
        *(claim(name, f"v-{name}") for name in "cd"),
        *(volume(f"v-{name}", of=name, driver=EBS) for name in "cd"),
        csi_node("n1", count=3),
        attachment("x", "n1", "v-c"),
        attachment("y", "n1", "v-d"),
        groups=[
            NodeGroup("as nodes of its type have it", {"cpu": 1}, 1.0, instance_type="m5.large"),
            NodeGroup("as it says itself", {"cpu": 1, ATTACH: 7}, 1.0, instance_type="m6.large"),
            NodeGroup("nobody says it", {"cpu": 1}, 1.0, instance_type="m6.large"),
        ],
    )
    assert [node.free[ATTACH] for node in found.nodes] == [1, 10**6]
    assert [group.allocatable[ATTACH] for group in found.groups] == [3, 7, 10**6]


def test_a_stateful_set_has_claims_of_its_own_and_those_that_were_kept(tmp_path: Path) -> None:
    template = {"spec": _pod("t")["spec"]}
    claims = [{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}]
    wanted = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"replicas": 5, "template": template, "volumeClaimTemplates": claims},
    }
    kept = (claim("data-db-1", "v"), volume("v", "c", of="data-db-1"))
    found = _read(tmp_path, wanted, *kept, storage_class(zones=["a"]))
    assert {_zones(each): each.count for each in found.pod_sets} == {"a": 4, "c": 1}
    assert all(each.spec.unschedulable == "" for each in found.pod_sets)


def test_ephemeral_volumes_and_the_default_class(tmp_path: Path) -> None:
    source = {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}
    default = storage_class(zones=["b"])
    default["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    found = _read(tmp_path, _pod("p", volumes=[{"name": "scratch", **source}]), default, storage_class("other"))
    assert _zones(found.pod_sets[0]) == "b"


def test_pods_that_share_a_claim_and_volumes_that_do_not_suffice(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _pod("p", "once", created="2026-01-01T00:00:00Z"),
        _pod("q", "once", created="2026-01-02T00:00:00Z"),
        _pod("s", "l0"),
        _pod("t", "l1"),
        claim("once", "v"),
        volume("v", "a", of="once"),
        storage_class("local", LOCAL),
        claim("l0", class_name="local"),
        claim("l1", class_name="local"),
        volume("one", "b", class_name="local"),
    )
    by_name = found.pods
    (term,) = by_name["default/p"].spec.pod_affinity
    assert term.topology_key == HOSTNAME
    assert dict(by_name["default/q"].spec.labels).keys() == {"claim.planning.cagrpc.io/once"}
    assert (_zones(by_name["default/s"]), _zones(by_name["default/t"])) == ("b", "")
    assert "makes none, and no available one is left" in by_name["default/t"].spec.unschedulable


def _workload(kind: str, name: str, replicas: int = 1, **spec: Any) -> Any:
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    body: dict[str, Any] = {"template": {"spec": {"containers": containers, **spec}}}
    body |= {} if kind == "DaemonSet" else {"replicas": replicas}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": body}


def test_a_daemon_sets_volumes_take_attachments_of_each_new_node(tmp_path: Path) -> None:
    source = {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}
    daemons = _workload("DaemonSet", "d", volumes=[{"name": "cache", **source}])
    group = NodeGroup("g", {"cpu": 1, ATTACH: 25}, 1.0)
    found = _read(tmp_path, daemons, storage_class(), groups=[group])
    assert [dict(each.requests) for each in found.daemon_sets] == [{"cpu": 1000, ATTACH: 1}]
    assert found.groups[0].allocatable == group.allocatable


def test_of_one_template_one_pod_gets_a_claim_of_one_pod(tmp_path: Path) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    one = claim("c", modes=["ReadWriteOncePod"])
    found = _read(tmp_path, _workload("Deployment", "web", 3, volumes=volumes), one, storage_class())
    (alike,) = found.pod_sets
    assert (alike.count, alike.spec.unschedulable) == (3, "")
    plan = solve(Problem(found.pod_sets, (NodeGroup("g", {"cpu": 8_000, "memory": 2**34, "pods": 9, ATTACH: 9}, 1.0),)))
    assert sum(each.count for each in plan.unplaced) == 2


def test_a_claim_with_the_name_of_a_workload_is_not_its_pods(tmp_path: Path) -> None:
    source = {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}
    found = _read(
        tmp_path,
        _workload("Deployment", "web", volumes=[{"name": "cache", **source}]),
        storage_class(zones=["a"]),
        claim("web-cache"),
    )
    assert (_zones(found.pod_sets[0]), found.pod_sets[0].spec.unschedulable) == ("a", "")


def test_templates_of_provisioning_requests_have_volumes_too(tmp_path: Path) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    body = _workload("Deployment", "x", volumes=volumes)["spec"]["template"]
    metadata = {"name": "worker", "namespace": "default"}
    template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": body}
    request = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "r", "namespace": "default"},
        "spec": {"podSets": [{"podTemplateRef": {"name": "worker"}, "count": 2}]},
    }
    there = (claim("c", "v", modes=["ReadWriteMany"]), volume("v", "b", of="c", driver=EBS))
    (found,) = _read(tmp_path, request, template, *there).pod_sets
    assert (found.count, _zones(found), dict(found.spec.requests)[ATTACH]) == (2, "b", 1)
    (blind,) = _read(tmp_path, request, template, storage_class()).pod_sets
    assert blind.spec.unschedulable == 'persistentvolumeclaim "c" not found'


def test_pods_go_where_the_driver_has_room(tmp_path: Path) -> None:
    asks = claim("c", size="10Gi")
    room = (capacity("a", "9Gi"), capacity("b", "10Gi"))
    found = _read(tmp_path, _pod("p", "c"), asks, storage_class(), csi_driver(), *room)
    assert (_zones(found.pod_sets[0]), found.warnings) == ("b", ())
    without = _read(tmp_path, _pod("p", "c"), asks, storage_class(), csi_driver(), room[0])
    assert "finds no storage" in without.pod_sets[0].spec.unschedulable
    unasked = _read(tmp_path, _pod("p", "c"), asks, storage_class(), csi_driver(storageCapacity=False), *room)
    assert _zones(unasked.pod_sets[0]) == "abc"


def test_disks_that_two_pods_must_not_share_keep_them_apart(tmp_path: Path) -> None:
    disk = {"name": "disk", "awsElasticBlockStore": {"volumeID": "vol-1", "readOnly": True}}
    image = {"name": "image", "rbd": {"monitors": ["m"], "image": "i", "readOnly": True}}
    found = _read(tmp_path, _pod("p", volumes=[disk, image]), storage_class())
    (spec,) = (each.spec for each in found.pod_sets)
    ebs, rbd = (each.selector for each in spec.pod_anti_affinity)
    assert [selects(each, spec.namespace, dict(spec.labels)) for each in (ebs, rbd)] == [True, False]
    assert {each.topology_key for each in spec.pod_anti_affinity} == {HOSTNAME}


def test_in_tree_disks_count_for_the_driver_that_attaches_them(tmp_path: Path) -> None:
    disk = {"name": "disk", "awsElasticBlockStore": {"volumeID": "vol-1"}}
    old = volume("old", of="c", awsElasticBlockStore={"volumeID": "vol-2"})
    found = _read(tmp_path, _pod("p", volumes=[disk]), _pod("q", "c"), claim("c", "old"), old)
    assert [dict(each.spec.requests)[ATTACH] for each in found.pod_sets] == [1, 1]


def test_without_storage_in_the_files_it_is_said_that_volumes_were_not_looked_at(tmp_path: Path) -> None:
    found = _read(tmp_path, _pod("p", "c"), _pod("q"))
    assert [_zones(each) for each in found.pods.values()] == ["abc", "abc"]
    (warning,) = found.warnings
    assert warning.startswith("the volumes of pods, for example of default/p, were not looked at")


def test_an_invalid_volume_is_an_error_with_its_place(tmp_path: Path) -> None:
    broken = volume("v")
    broken["spec"]["capacity"] = {"storage": "much"}
    with pytest.raises(InvalidInput, match=r'\(PersistentVolume default/v\): spec.capacity.storage: "much"'):
        _read(tmp_path, broken)


def test_nobody_waits_for_a_pod_that_its_own_volumes_keep_from_every_node(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        _pod("older", "once", "single", "missing", created="2026-01-01T00:00:00Z"),
        _pod("p", "once", created="2026-01-02T00:00:00Z"),
        _pod("q", "single", created="2026-01-02T00:00:00Z"),
        claim("once", "v"),
        claim("single", "w", modes=["ReadWriteOncePod"]),
        volume("v", "a", of="once", driver=EBS),
        volume("w", "a", of="single", driver=EBS),
    )
    by_name = {name: each.spec for name, each in found.pods.items()}
    assert by_name["default/older"].unschedulable == 'persistentvolumeclaim "missing" not found'
    assert [by_name[f"default/{name}"].unschedulable for name in "pq"] == ["", ""]
    assert [by_name[f"default/{name}"].pod_affinity for name in "pq"] == [(), ()]
    assert [dict(by_name[f"default/{name}"].requests)[ATTACH] for name in "pq"] == [1, 1]


def test_a_volume_that_pods_share_is_named_as_each_counts_it_and_their_node_does_once(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        *(_pod(name, "once") for name in "pq"),
        *(_pod(name, "many") for name in "rs"),
        _pod("t", "own"),
        claim("once", "v"),
        claim("many", "w", modes=["ReadWriteMany"]),
        claim("own", "x"),
        *(volume(name, "a", of=of, driver=EBS) for name, of in (("v", "once"), ("w", "many"), ("x", "own"))),
    )
    specs = {name.removeprefix("default/"): each.spec for name, each in found.pods.items()}
    assert {dict(each.requests)[ATTACH] for each in specs.values()} == {1}
    assert {name: each.shared_volumes for name, each in specs.items()} == {
        "p": ((ATTACH, "v"),), "q": ((ATTACH, "v"),), "r": ((ATTACH, "w"),), "s": ((ATTACH, "w"),), "t": (),
    }  # fmt: skip
    assert specs["p"] == specs["q"]
    (tie,) = specs["p"].pod_affinity
    assert selects(tie.selector, "default", dict(specs["p"].labels))
    assert specs["r"].pod_affinity == ()


def test_a_claim_whose_node_is_selected_has_its_volume_made_there_or_waits(tmp_path: Path) -> None:
    selected = {"volume.kubernetes.io/selected-node": "n1"}
    found = _read(
        tmp_path,
        *(_pod(name, name) for name in ("made", "local")),
        claim("made", annotations=selected),
        claim("local", class_name="local", annotations=selected),
        storage_class(zones=["a"]),
        storage_class("local", LOCAL),
        volume("there", "b", class_name="local"),
    )
    made, local = (found.pods[f"default/{name}"].spec for name in ("made", "local"))
    assert why_not_eligible(made, {ZONE: "a"}, (), "n1") is None
    assert why_not_eligible(made, {ZONE: "b"}, (), "n1") is not None
    assert why_not_eligible(made, {ZONE: "a"}, (), "n2") is not None
    assert local.unschedulable == (
        'persistentvolumeclaim "local" waits for a volume to be made for node "n1", and storageclass "local" makes none'
    )


def test_an_ephemeral_claim_counts_on_volumes_that_are_there(tmp_path: Path) -> None:
    template = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    own = [{"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": template}}}]
    pods = [_pod(name, volumes=own) for name in "pq"]
    found = _read(tmp_path, *pods, storage_class("local", LOCAL), volume("one", "b", class_name="local"))
    assert [_zones(each) for each in found.pod_sets] == ["b", ""]
