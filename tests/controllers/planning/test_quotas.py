"""CapacityQuotas: what the nodes that they select may have together bounds what is planned and ordered."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc import errors
from cagrpc.api.capacity_quotas import PATHS
from cagrpc.controllers.fleet import FleetController
from cagrpc.controllers.settings import Drive
from cagrpc.fleet.model import IncrementSpec, Origin
from cagrpc.runtime.heartbeat import Heartbeat
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS, NewWorld, World

LONG = 100.0
NEW, OLD = PATHS
"""Collections of both versions."""
SPOT = group("spot", labels={"pool": "spot"}, price=0.05)
ON_DEMAND = group("on-demand", labels={"pool": "on-demand"}, price=0.1)


def told(world: World) -> Any:
    """Return what `/status` says of quotas."""
    return FleetController(world.fleet, Heartbeat("", 1.0)).status()["capacity_quotas"]


def put(world: World, name: str, resources: dict[str, Any], collection: str = NEW, **selector: Any) -> None:
    spec = {"limits": {"resources": resources}, **({"selector": selector} if selector else {})}
    world.api.put(f"{collection}/{name}", {"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("collection", PATHS)
def test_nothing_is_planned_beyond_a_quota_until_it_is_raised(collection: str, new_world: NewWorld) -> None:
    world = new_world(ON_DEMAND)
    put(world, "all", {"nodes": 2}, collection)
    world.cluster.add(12)  # three nodes of four cores
    world.run(LONG)
    assert world.targets() == {"on-demand": 2}
    (left_out,) = world.page("/plans")[-1]["unplaced"]
    assert "limit CapacityQuota/all allows 2 nodes" in str(left_out)
    assert told(world) == {"all": "nodes 2 of 2"}
    put(world, "all", {"nodes": 3}, collection)
    world.run(LONG)
    assert world.targets() == {"on-demand": 3}
    assert not world.cluster.pending()
    assert told(world) == {"all": "nodes 3 of 3"}


def test_a_quota_bounds_the_nodes_that_it_selects(new_world: NewWorld) -> None:
    world = new_world(SPOT, ON_DEMAND)
    put(world, "spot", {"cpu": "8"}, matchExpressions=[{"key": "pool", "operator": "In", "values": ["spot"]}])
    world.cluster.add(12)
    world.run(LONG)
    assert world.targets() == {"spot": 2, "on-demand": 1}
    assert told(world) == {"spot": "cpu 8 of 8"}


def test_nodes_of_nobodys_groups_count(new_world: NewWorld) -> None:
    world = new_world(ON_DEMAND)
    world.cluster.node("by-hand", SPOT, unschedulable=True)
    world.cluster.node("virtual", group("virtual", labels={"type": "virtual-kubelet"}), unschedulable=True)
    put(world, "all", {"cpu": 8, "memory": "1Ti"})
    world.cluster.add(8)
    world.run(LONG)
    assert world.targets() == {"on-demand": 1}
    assert told(world)["all"].startswith("cpu 8 of 8")
    world.api.remove("/api/v1/nodes/by-hand")
    world.run(LONG)
    assert world.targets() == {"on-demand": 2}


@pytest.mark.parametrize("drive", Drive)
def test_whoever_asks_is_refused_what_a_quota_does_not_allow(drive: Drive, new_world: NewWorld) -> None:
    world = new_world(ON_DEMAND, drive=drive)
    put(world, "all", {"nodes": 1})
    world.run(1.0)
    with pytest.raises(errors.LimitExceeded, match=r"limit CapacityQuota/all: nodes is at 0 of 1, 2 more"):
        world.fleet.apply(IncrementSpec({"on-demand": 2}, origin=Origin.CAGRPC))


def test_the_newer_version_of_an_object_counts_and_an_invalid_one_bounds_nothing(new_world: NewWorld) -> None:
    world = new_world(ON_DEMAND)
    put(world, "all", {"nodes": 0}, OLD)
    put(world, "all", {"nodes": 1}, NEW)
    put(world, "typo", {"nodes": 0}, NEW, matchExpressions=[{"key": "pool", "operator": "Is"}])
    world.cluster.add(4)
    world.run(LONG)
    assert told(world) == {"all": "nodes 1 of 1"}
    assert world.targets() == {"on-demand": 1}


def test_a_node_counts_until_it_is_gone(new_world: NewWorld) -> None:
    world = new_world(ON_DEMAND)
    put(world, "all", {"nodes": 1})
    (uid,) = world.cluster.add(cpu=4000)
    world.run(LONG)
    (instance,) = world.fleet.snapshot.groups["on-demand"].instances
    world.cluster.finish(uid)
    world.run(BOOT_SECONDS)
    world.fleet.delete_instances("on-demand", [instance.id])
    world.fleet.reconcile()
    assert told(world) == {"all": "nodes 1 of 1"}
    with pytest.raises(errors.LimitExceeded):
        world.fleet.apply(IncrementSpec({"on-demand": 1}))
    world.run(LONG)
    assert told(world) == {"all": "nodes 0 of 1"}
