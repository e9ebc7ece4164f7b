"""Relocation: where the pods of a removed node go."""

from __future__ import annotations

from cagrpc.cluster.node_info import ClusterCapacity, DisplacedOwner
from cagrpc.controllers.scale_down.relocation import Relocation
from solver.model import Budget, PodSet, PodSpec
from tests.support.solver.problems import node, spec

BUDGET = Budget(deterministic_seconds=0.5)
INVALID = PodSpec((("cpu", -1),))


def test_places_are_taken_only_where_that_is_asked_for() -> None:
    capacity = ClusterCapacity([node("x", 1500), node("y", 2500)])
    relocation = Relocation(capacity)
    found = relocation.place({spec(cpu=1000): 3}, ["x", "y"], BUDGET)
    assert (found.all, found.pods) == (True, {"x": {spec(cpu=1000): 1}, "y": {spec(cpu=1000): 2}})
    assert capacity["y"].free["cpu"] == 2500
    relocation.assume(found)
    assert capacity["y"].assumed(DisplacedOwner()) == {spec(cpu=1000): 2}
    assert not relocation.place({spec(cpu=1000): 1}, ["x", "y"], BUDGET).all


def test_a_pod_that_is_invalid_finds_no_place_and_stops_nobody() -> None:
    relocation = Relocation(ClusterCapacity([node("x", 4000)]))
    sets = (PodSet("invalid", INVALID, 1), PodSet("valid", spec(cpu=1000), 2))
    found = relocation.place_sets(sets, ["x"], BUDGET)
    assert (found.all, found.pods) == (False, {"x": {spec(cpu=1000): 2}})
