"""Requests whose pods are to be in one topology domain."""

from __future__ import annotations

from dataclasses import replace

from cagrpc.api.core.topology import REQUIRED, SLICE_REQUIRED, SLICE_SIZE
from solver.model import NewDomains, NodeGroup
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.requests import RequestWorld
from tests.support.world import BOOT_SECONDS

RACK, BLOCK = "example.com/rack", "example.com/block"
LONG = 3 * BOOT_SECONDS


def rack(name: str, most: int) -> NodeGroup:
    return replace(group(name, cpu=4000, max_size=most), labels={RACK: name})


def template(world: RequestWorld, name: str = "t") -> None:
    """Two pods fill a node."""
    world.template(name, cpu=2000, annotations={REQUIRED: RACK})


def test_all_pods_of_a_request_are_in_one_domain(make: Make) -> None:
    world = make(rack("r1", 1), rack("r2", 2))
    template(world)
    world.request("r", ("t", 4))
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.targets() == {"r2": 2}


def test_one_that_no_domain_holds_is_refused_with_what_would_serve_it(make: Make) -> None:
    world = make(rack("r1", 2), rack("r2", 2))
    template(world)
    world.request("r", ("t", 6))
    world.run(LONG)
    assert not world.targets()
    (condition,) = (each for each in world.document("r")["status"]["conditions"] if each["type"] == "Failed")
    assert "raise maxSize of r1 from 2 to 3" in condition["message"]


def test_each_slice_of_a_request_is_in_one_domain(make: Make) -> None:
    blocks = {"r1": ("b1", 1), "r2": ("b1", 2), "r3": ("b2", 2), "r4": ("b2", 2)}
    world = make(
        *(replace(rack(name, most), labels={RACK: name, BLOCK: block}) for name, (block, most) in blocks.items())
    )
    asked = {REQUIRED: BLOCK, SLICE_REQUIRED: RACK, SLICE_SIZE: "3"}
    world.template("t", cpu=2000, annotations=asked)
    world.request("r", ("t", 6))
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.targets() == {"r3": 2, "r4": 2}  # of three nodes no two racks hold three pods each


def test_one_with_too_many_slices_waits_and_says_so(make: Make) -> None:
    world = make(rack("r1", 9))
    world.template("t", cpu=10, annotations={SLICE_REQUIRED: RACK, SLICE_SIZE: "1"})
    world.request("r", ("t", 101))
    world.run(LONG)
    assert not world.targets()
    assert "more slices than 100" in str(world.document("r")["status"])


def test_requests_have_domains_of_their_own_that_come_with_their_nodes(make: Make) -> None:
    world = make(replace(group("u", cpu=4000, max_size=9), new_domains=NewDomains((RACK,), 2)))
    for name in ("a", "b"):
        template(world, name)
        world.request(name, (name, 4))
    world.run(LONG)
    assert world.is_true("a", "Provisioned")
    assert world.is_true("b", "Provisioned")
    increments = world.fleet.snapshot.increments
    assert [dict(each.increment.deltas) for each in increments] == [{"u": 2}, {"u": 2}]
    assert all(placed.domain for each in increments for placed in each.increment.placements)


def test_where_the_nodes_of_a_request_come_scattered_they_are_rolled_back(make: Make) -> None:
    world = make(
        replace(group("u", cpu=4000, max_size=9), new_domains=NewDomains((RACK,))),
        replace(group("v", cpu=4000, max_size=9, price=2.0), new_domains=NewDomains((RACK,))),
    )
    world.cluster.scattered = {"u"}
    template(world)
    world.request("r", ("t", 4))
    world.run(3 * LONG)
    assert world.is_true("r", "Provisioned")
    assert world.targets() == {"v": 2}
