"""Bookings: on which nodes room is reserved for requests, when it is lost, and how much of it their pods have taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cagrpc.controllers.settings import Drive
from solver.model import Toleration
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.requests import CHECK, REVOKED_AFTER_SECONDS, RequestWorld
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS
ADDED = (Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),)
POOL = (("pool", "x"),)
_OF_APP = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
SERVING = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}], "resources": {"requests": {"cpu": "1"}}}]
APART: Mapping[str, Mapping[str, Any]] = {
    "a host port": {"containers": SERVING},
    "anti-affinity": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_OF_APP]}}},
    "spread": {"topologySpreadConstraints": [{**_OF_APP, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
}


def given(world: RequestWorld, name: str, *pod_sets: tuple[str, int]) -> list[str]:
    """Return the nodes on which room is reserved for a new request, once there is."""
    uid = world.request(name, *pod_sets)
    world.run(LONG, step=5.0)
    assert world.is_true(name, "Provisioned")
    return sorted(world.labelled(uid), key=[*world.cluster.nodes()].index)


@pytest.mark.parametrize("kind", APART)
def test_room_is_reserved_apart_for_pods_that_may_not_be_together(make: Make, kind: str) -> None:
    world = make()
    world.template("apart", labels={"app": "x"}, **APART[kind])
    world.template("whole", cpu=4000)
    stood = given(world, "before", ("web", 8))
    world.delete("before")
    world.run(5)
    assert given(world, "r", ("apart", 2)) == stood
    assert len(given(world, "next", ("whole", 1))) == 1
    assert world.targets() == {"a": 3}, "on each of the two something is reserved"


def test_room_is_reserved_where_its_pods_may_run(make: Make) -> None:
    world = make(group("a"), group("b", price=1.0, labels={"pool": "b"}))
    world.template("pooled", cpu=3000, nodeSelector={"pool": "b"})
    world.template("more", cpu=2000, nodeSelector={"pool": "b"})
    given(world, "r", ("pooled", 1), ("web", 2))
    given(world, "next", ("more", 1))
    assert world.targets() == {"a": 1, "b": 2}


def goes(world: RequestWorld, node: str) -> None:
    world.cluster.vanish(node)


def cordoned(world: RequestWorld, node: str) -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    world.api.change(f"/api/v1/nodes/{node}", spec={"taints": [taint], "unschedulable": True})


def away(world: RequestWorld, node: str) -> None:
    world.cluster.unready.add(node)
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    world.api.change(f"/api/v1/nodes/{node}", spec={"taints": [taint]})


def taken(world: RequestWorld, node: str) -> None:
    world.cluster.add(cpu=1000, node=node)


@pytest.mark.parametrize(("happens", "lost"), [(goes, 4), (taken, 1), (away, 0), (cordoned, 0)])
def test_room_is_lost_for_so_many_pods(make: Make, happens: Callable[[RequestWorld, str], None], lost: int) -> None:
    world = make()
    node, _ = given(world, "r", ("web", 8))
    happens(world, node)
    world.run(3 * REVOKED_AFTER_SECONDS, step=5.0)
    assert world.is_true("r", "CapacityRevoked") == bool(lost)
    assert not lost or f"no room is left for {lost} of its 8 pods" in world.message("r", "CapacityRevoked")


@pytest.mark.parametrize(("happens", "waits"), [(away, True), (cordoned, False)])
def test_pods_wait_for_a_node_that_may_be_back(
    make: Make, happens: Callable[[RequestWorld, str], None], *, waits: bool
) -> None:
    world = make()
    node, other = given(world, "r", ("web", 8))
    happens(world, node)
    world.cluster.scheduling = False
    pods = world.consume("r", 8)
    world.run(10)
    nominated = [world.api.objects[world.cluster.paths[uid]]["status"].get("nominatedNodeName") for uid in pods]
    assert (nominated.count(node), nominated.count(other)) == (4 * waits, 4)


def test_what_was_promised_first_is_lost_last(make: Make) -> None:
    world = make()
    (node,) = given(world, "first", ("web", 2))
    assert given(world, "second", ("web", 2)) == [node]
    taken(world, node)
    world.run(2 * REVOKED_AFTER_SECONDS, step=5.0)
    assert world.message("second", "CapacityRevoked") == "no room is left for 1 of its 2 pods still to come"
    assert not world.is_true("first", "CapacityRevoked")


def test_what_first_fit_does_not_find_is_not_lost_where_there_is_enough_in_all(make: Make) -> None:
    """As planned: 3 and 3 cores on one node, 2 and 2 on the other. First fit puts one of 2 beside the first of 3."""
    world = make(group("six", cpu=6000, max_size=1, labels=dict(POOL)), group("four", cpu=4000, max_size=1))
    world.template("three", cpu=3000)
    world.template("two", cpu=2000)
    world.template("piece", cpu=1000, nodeSelector=dict(POOL))
    world.request("a", ("three", 1), ("two", 2))
    given(world, "b", ("three", 1))
    world.request("check", ("piece", 1), of=CHECK)
    world.run(2 * REVOKED_AFTER_SECONDS, step=5.0)
    assert not any(world.is_true(name, "CapacityRevoked") for name in "ab")
    assert not world.is_true("check", "CapacityAvailable"), "the piece of one core that is left is nobody else's"
    taken(world, next(name for name in world.cluster.nodes() if name.startswith("four")))
    world.run(2 * REVOKED_AFTER_SECONDS, step=5.0)
    assert world.is_true("b", "CapacityRevoked")


@pytest.mark.parametrize("asked", [5, 6])
def test_room_of_pods_that_wait_is_left_to_them_where_there_is_enough_for_both(make: Make, asked: int) -> None:
    """On two nodes, and on two and one that comes."""
    world = make(drive=Drive.PLAN)
    given(world, "before", ("web", 8))
    world.delete("before")
    world.cluster.scheduling = False
    pods = world.cluster.add(3)
    world.run(5)
    world.request("r", ("web", asked))
    world.run(LONG)
    world.cluster.scheduling = True
    world.run(5)
    assert world.targets() == {"a": 2 + (asked > 5)}
    assert all(map(world.cluster.node_of, pods))
    world.run(2 * REVOKED_AFTER_SECONDS, step=5.0)
    assert not world.is_true("r", "CapacityRevoked")


def test_room_of_pods_that_wait_is_the_requests_where_there_is_not(make: Make) -> None:
    world = make(drive=Drive.PLAN)
    nodes = given(world, "before", ("web", 8))
    world.delete("before")
    world.cluster.scheduling = False
    pods = world.cluster.add(3)
    world.run(5)
    given(world, "r", ("web", 5))
    (where,) = {world.api.objects[world.cluster.paths[uid]]["status"]["nominatedNodeName"] for uid in pods}
    world.cluster.vanish(*set(nodes) - {where})
    world.run(2 * REVOKED_AFTER_SECONDS, step=5.0)
    assert world.message("r", "CapacityRevoked") == "no room is left for 1 of its 5 pods still to come"


# ---- consumption


def pod(cpu: int, **more: Any) -> dict[str, Any]:
    return {"cpu": cpu, "labels": {"of": "its own"}, **more}


@pytest.mark.parametrize(
    ("pods", "consumed"),
    [
        ([pod(1000), pod(2000, node_selector=POOL, tolerations=ADDED)], "1=1,2=1"),
        ([pod(2000)] * 3, "0=2,1=1"),
        ([pod(2000, node_selector=(("pool", "y"),))] * 3 + [pod(2000, node_selector=POOL)], "0=2,1=2"),
        ([pod(1000, node_selector=POOL)] * 2, "2=2"),
        ([pod(123), pod(1000), pod(1000)], "0=1,2=2"),
        ([pod(123)] * 9, "0=2,1=2,2=2"),
    ],
    ids=[
        "by their specs",
        "each once",
        "as many as there are",
        "as large",
        "where pods lack",
        "no more than were asked for",
    ],
)
def test_pods_are_counted_in_the_pod_set_that_they_are_of(
    make: Make, pods: Sequence[dict[str, Any]], consumed: str
) -> None:
    """Once they are bound, in any order, and for good."""
    for order in (pods, pods[::-1]):
        world = make(group("a", cpu=40_000, labels=dict(POOL)))
        world.template("big", cpu=2000, labels={"app": "train"})
        world.template("pooled", cpu=2000, labels={"app": "train"}, nodeSelector=dict(POOL))
        (node,) = given(world, "r", ("big", 2), ("pooled", 2), ("web", 2))
        world.cluster.scheduling = False
        world.consume("r", 1, cpu=2000)
        there = [uid for each in order for uid in world.consume("r", 1, node=node, **each)]
        world.cluster.finish(there[0])
        world.run(5)
        assert world.details("r")["consumed"] == consumed
        world.cluster.delete(*there)
        world.consume("r", 1, node=node, **order[0])
        world.run(5)
        assert world.details("r")["consumed"] == consumed, "replaced"


def test_pods_go_to_the_nodes_of_their_booking_and_stay_where_they_are_nominated(make: Make) -> None:
    world = make()
    (other,) = given(world, "other", ("web", 4))
    first, second = given(world, "r", ("web", 8))
    world.delete("other")
    world.cluster.scheduling = False
    pods = world.consume("r", 5, tolerations=ADDED)
    world.cluster.nominate(pods[4], first)
    world.run(5)
    world.cluster.scheduling = True
    world.run(5)
    assert [world.cluster.node_of(uid) for uid in pods] == [first, first, first, second, first]
    world.cluster.scheduling = False
    pods = world.consume("r", 4)
    world.run(5)
    world.cluster.scheduling = True
    world.run(5)
    assert [world.cluster.node_of(uid) for uid in pods] == [second] * 3 + [other], "one more than asked for"
