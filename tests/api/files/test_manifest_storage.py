"""Volumes of pods in files: a dump of a cluster is planned as the cluster is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.files import manifests
from cagrpc.api.files.manifests import Manifests
from cagrpc.errors import InvalidInput
from solver.model import HOSTNAME, PodSet
from solver.model.eligibility import why_not_eligible
from tests.support.storage import EBS, LOCAL, ZONE, attachment, claim, csi_node, storage_class, volume

ATTACH = f"attachable-volumes-csi-{EBS}"


def _read(tmp_path: Path, *objects: Any) -> Manifests:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
    return manifests.read([path])


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
    )
    assert [node.free[ATTACH] for node in found.nodes] == [1, 10**6]
    of_group = found.storage.of_group
    assert of_group({"cpu": 1}, "m5.large", found.nodes)[ATTACH] == 3  # as nodes of its type have it
    assert of_group({"cpu": 1, ATTACH: 7}, "m6.large", found.nodes)[ATTACH] == 7  # as it says itself
    assert of_group({"cpu": 1}, "m6.large", found.nodes)[ATTACH] == 10**6


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
    by_name = {each.name: each for each in found.pod_sets}
    (term,) = by_name["default/p"].spec.pod_affinity
    assert (term.topology_key, by_name["default/p"].count) == (HOSTNAME, 1)
    assert dict(by_name["default/q"].spec.labels).keys() == {"claim.planning.cagrpc.io/once"}
    assert (_zones(by_name["default/s"]), _zones(by_name["default/t"])) == ("b", "")
    assert "makes none, and no available one is left" in by_name["default/t"].spec.unschedulable


def test_in_tree_disks_count_for_the_driver_that_attaches_them(tmp_path: Path) -> None:
    disk = {"name": "disk", "awsElasticBlockStore": {"volumeID": "vol-1"}}
    old = volume("old", of="c", awsElasticBlockStore={"volumeID": "vol-2"})
    found = _read(tmp_path, _pod("p", volumes=[disk]), _pod("q", "c"), claim("c", "old"), old)
    assert [dict(each.spec.requests)[ATTACH] for each in found.pod_sets] == [1, 1]


def test_without_storage_in_the_files_it_is_said_that_volumes_were_not_looked_at(tmp_path: Path) -> None:
    found = _read(tmp_path, _pod("p", "c"), _pod("q"))
    assert [_zones(each) for each in found.pod_sets] == ["abc", "abc"]
    (warning,) = found.warnings
    assert warning.startswith("the volumes of pods, for example of default/p, were not looked at")


def test_an_invalid_volume_is_an_error_with_its_place(tmp_path: Path) -> None:
    broken = volume("v")
    broken["spec"]["capacity"] = {"storage": "much"}
    with pytest.raises(InvalidInput, match=r"\(PersistentVolume default/v\): spec.capacity.storage: 'much'"):
        _read(tmp_path, broken)
