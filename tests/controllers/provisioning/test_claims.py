"""Requests whose pods have volumes and claims: what these come to is planned, reserved, and waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cagrpc.api.core.volume_binding import VolumeDemand, bound_by
from cagrpc.api.devices.claims import with_extended, without_claims
from solver.model import PodSpec
from tests.controllers.provisioning.conftest import Make
from tests.support.cluster import path_of
from tests.support.fleet import group
from tests.support.requests import CHECK, RequestWorld
from tests.support.storage import EBS, claim, storage_class, volume
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS
ATTACH = f"attachable-volumes-csi-{EBS}"
VOLUMES = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
WHY = 'persistentvolumeclaim "data" not found'
CLAIM = path_of("/api/v1/persistentvolumeclaims", "data")


def put_claim(world: RequestWorld, zone: str = "", **more: Any) -> None:
    """Create the claim, and the volume in a zone that it is bound to."""
    found = volume("disk", zone, driver=EBS if zone else "", of="data" if zone else "")
    if zone:
        found["spec"]["claimRef"]["namespace"] = "ns"
    world.api.put("/api/v1/persistentvolumes/disk", found)
    world.api.put(CLAIM, claim("data", "disk", namespace="ns", **more))


def in_zones(make: Make) -> RequestWorld:
    groups = [group(name, price=price) for name, price in (("a", 1.0), ("b", 2.0))]
    world = make(*(replace(each, zone=each.id, allocatable={**each.allocatable, ATTACH: 2}) for each in groups))
    world.api.put("/apis/storage.k8s.io/v1/storageclasses/fast", storage_class())
    world.template("store", cpu=1000, volumes=VOLUMES)
    return world


@pytest.mark.parametrize(("mode", "pods", "nodes"), [("ReadWriteOnce", 2, 1), ("ReadWriteMany", 3, 1)])
def test_nodes_are_ordered_where_the_volume_is(make: Make, mode: str, pods: int, nodes: int) -> None:
    """A node attaches it once for all."""
    world = in_zones(make)
    put_claim(world, "b", modes=[mode])
    world.request("r", ("store", pods))
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert [dict(each.increment.deltas) for each in world.fleet.snapshot.increments] == [{"b": nodes}]


def test_as_many_nodes_are_ordered_as_attach_what_each_pod_brings(make: Make) -> None:
    world = in_zones(make)
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
    own = {"metadata": {}, "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}}}
    world.template("own", cpu=1000, volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": own}}])
    world.request("r", ("own", 3))
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert [dict(each.increment.deltas) for each in world.fleet.snapshot.increments] == [{"a": 2}]


def test_a_claim_that_pods_share_is_attached_once(make: Make) -> None:
    world = in_zones(make)
    put_claim(world, "b")
    world.request("r", ("store", 3))
    world.run(LONG)
    assert world.is_true("r", "Provisioned"), world.document("r")
    assert [dict(each.increment.deltas) for each in world.fleet.snapshot.increments] == [{"b": 1}]
    pods = world.consume("r", 3)
    for uid in pods:
        world.api.change(world.cluster.paths[uid], spec={"volumes": VOLUMES})
    world.run(20)
    assert all(map(world.cluster.node_of, pods))
    assert (world.details("r")["consumed"], world.bookings) == ("0=3", 0)


def test_pods_find_the_room_that_was_reserved_with_what_their_claims_come_to(make: Make) -> None:
    world = in_zones(make)
    put_claim(world, "b")
    world.request("r", ("store", 2))
    world.run(LONG)
    pods = world.consume("r", 2)
    for uid in pods:
        world.api.change(world.cluster.paths[uid], spec={"volumes": VOLUMES})
    world.run(20)
    assert all(map(world.cluster.node_of, pods))
    assert world.details("r")["consumed"] == "0=2"


def test_a_request_waits_for_claims_that_are_not_ready_and_loses_no_attempt(make: Make) -> None:
    world = in_zones(make)
    world.request("r", ("store", 1))
    world.run(LONG)
    found = world.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "ClaimsAreNotReady")
    assert found["message"] == f"PodTemplate ns/store: {WHY}"
    assert "attempts" not in world.details("r")
    written = len(world.writes())
    world.run(LONG)
    assert len(world.writes()) == written, "it is said once"
    put_claim(world, "a")
    world.run(LONG)
    assert world.is_true("r", "Provisioned")


def test_no_request_is_planned_blind_before_its_claims_are_read(make: Make) -> None:
    world = in_zones(make)
    put_claim(world, "b")
    world.late.add("persistentvolumeclaims")
    world.request("r", ("store", 1))
    world.run(LONG)
    assert not world.is_true("r", "Provisioned")
    assert not world.fleet.snapshot.increments


def test_a_check_of_capacity_says_at_once_what_its_claims_lack(make: Make) -> None:
    world = in_zones(make)
    world.request("r", ("store", 1), of=CHECK)
    world.run(20)
    found = world.condition("r", "Failed")
    assert found is not None
    assert WHY in found["message"]


def test_a_claim_of_one_pod_does_for_no_second_one(make: Make) -> None:
    world = in_zones(make)
    put_claim(world, "a", modes=["ReadWriteOncePod"])
    world.request("one", ("store", 1))
    world.request("two", ("store", 2))
    world.request("twice", ("store", 1), ("store", 1))
    world.run(LONG)
    assert [world.is_true(name, "Provisioned") for name in ("one", "two", "twice")] == [True, False, False]


def test_its_room_is_kept_though_the_template_is_gone_and_its_claim_too(make: Make) -> None:
    world = in_zones(make)
    put_claim(world, "a")
    world.request("r", ("store", 2), ValidUntilSeconds="9h")
    world.run(LONG)
    world.remove_template("store")
    world.api.remove(CLAIM)
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.bookings == 1


def test_what_pods_have_written_is_what_they_were_planned_with_less_their_claims() -> None:
    written = PodSpec((("cpu", 1000), ("example.com/gpu", 2)), node_selector=(("pool", "x"),))
    bound = bound_by(written, VolumeDemand(counted=(("d", "v"),), unschedulable="waits"), "ns")
    assert without_claims(with_extended(bound, {"example.com/gpu"})) == written
