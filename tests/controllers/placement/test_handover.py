"""Who moves, and where to, when a place is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cagrpc.api.core.nodes import HOSTNAME
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.controllers.assume_cache.bookings import has_required_constraints
from cagrpc.controllers.assume_cache.placements import DesiredPlacements, PlacedPods
from cagrpc.controllers.placement.handover import most_promising, repack
from cagrpc.fleet.model import FleetSnapshot, PodKey
from solver.model import CPU, PODS, Budget, Node, PodSet, PodSpec, Taint, TaintEffect, WhenUnsatisfiable
from solver.model.objects import PodAffinityTerm, PodSelector, TopologySpread

WHOLE = 16_000
SIZES = (500, 1_000, 1_500, 2_000, 3_000, 6_000)
PLENTY = Budget(deterministic_seconds=5.0)


def _pod(cpu: int) -> PodSpec:
    return PodSpec(((CPU, cpu),))


def _placed(places: Mapping[str, str], specs: Mapping[str, PodSpec], nodes: list[Node]) -> PlacedPods:
    waiting = tuple(WaitingPods(PodSet(uid, specs[uid], 1), (PodRef(uid, "default", uid),)) for uid in places)
    state = ClusterState(waiting, tuple(ClusterNode(node, node.name, True, False) for node in nodes), ())
    return PlacedPods(state, FleetSnapshot(1, {}, (), {}), (), DesiredPlacements(dict(places.items())))


def _node(name: str, free: int = WHOLE, taints: tuple[Taint, ...] = ()) -> Node:
    return Node(name, {CPU: free, PODS: 110}, {HOSTNAME: name}, taints)


def _repack(placed: PlacedPods, specs: Mapping[str, PodSpec], lost_on: list[str]) -> dict[PodKey, str]:
    lost = {uid: specs[str(uid)] for uid in placed.lost}
    movable = {uid: specs[str(uid)] for uid in placed.nodes_of_pods if not has_required_constraints(specs[str(uid)])}
    return repack(lost, movable, placed, [*lost_on, *most_promising(lost, movable, placed, frozenset())], PLENTY)


@pytest.mark.parametrize("seed", range(60))
def test_a_stolen_place_is_made_good_by_pods_of_open_nodes_that_move(seed: int) -> None:
    """A full plan of a few nodes; one pod is bound to a node that is not its own."""
    chance = random.Random(seed)
    specs: dict[str, PodSpec] = {}
    places: dict[str, str] = {}
    names = [f"n{number}" for number in range(chance.choice((2, 4, 6)))]
    for name in names:
        left = WHOLE
        while sizes := [size for size in SIZES if size <= left]:
            uid = f"p{len(specs)}"
            specs[uid], places[uid] = _pod(chance.choice(sizes)), name
            left -= specs[uid].requests[0][1]
    thief = chance.choice(sorted(places))
    stolen = chance.choice([name for name in names if name != places[thief]])
    taken = specs[thief].requests[0][1]
    del places[thief]
    nodes = [_node(name, WHOLE - taken if name == stolen else WHOLE) for name in names]
    placed = _placed(places, specs, nodes)
    assert placed.lost
    found = _repack(placed, specs, [stolen])
    assert placed.lost <= found.keys()  # the sizes are such that there always is a way
    used: Counter[str] = Counter({stolen: taken})
    for pod, node in {**placed.nodes_of_pods, **found}.items():
        used[node] += specs[str(pod)].requests[0][1]
    assert max(used.values()) <= WHOLE


def test_pods_of_as_few_nodes_as_possible_move() -> None:
    """One node is enough: pods of all others stay where they are."""
    names = ("stolen", "other", *(f"n{number}" for number in range(20)))
    specs = {f"{name}-{number}": _pod(2_000) for name in names for number in range(4)}
    places = {uid: uid.partition("-")[0] for uid in specs}
    free = {"stolen": 15_000, "other": 11_000}
    placed = _placed(
        {**places, "lost": "stolen"},
        {**specs, "lost": _pod(9_000)},
        [_node(name, free.get(name, 10_000)) for name in names],
    )
    assert placed.lost == {"lost"}
    found = _repack(placed, {**specs, "lost": _pod(9_000)}, ["stolen"])
    assert found["lost"] == "stolen"
    assert {places[str(uid)] for uid in found if uid != "lost"} == {"stolen"}


def test_of_several_that_have_lost_their_places_as_many_as_can_get_others_and_nobody_loses_one_for_it() -> None:
    specs = {"big": _pod(9_000), "small": _pod(3_000), "stays": _pod(6_000), "moves": _pod(2_000)}
    places = {"big": "gone", "small": "gone", "stays": "a", "moves": "a"}
    placed = _placed(places, specs, [_node("a", 9_000), _node("b", 2_500)])
    assert placed.lost == {"big", "small"}
    assert _repack(placed, specs, ["a", "b"]) == {"small": "a", "moves": "b"}


def test_nodes_that_admit_the_pod_come_first_then_hidden_ones_then_those_with_room() -> None:
    names = ("tainted", "full", "hidden", "roomy")
    specs = {"lost": _pod(8_000), **{f"on-{name}": _pod(1_000) for name in names}}
    places = {"lost": "gone", **{f"on-{name}": name for name in names}}
    nodes = [
        _node("tainted", taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),)),
        _node("full", 2_000),
        _node("hidden", 3_000),
        _node("roomy"),
    ]
    placed = _placed({uid: node for uid, node in places.items() if uid != "on-tainted"}, specs, nodes)
    placed.move("on-tainted", specs["on-tainted"], "tainted")
    assert placed.lost == {"lost"}
    order = most_promising({"lost": specs["lost"]}, placed.nodes_of_pods, placed, frozenset({"hidden"}))
    assert order == ["hidden", "roomy", "full", "tainted"]


def test_pods_that_are_bound_to_others_stay() -> None:
    everybody = PodSelector()
    term = PodAffinityTerm(HOSTNAME, everybody)
    hard = TopologySpread(HOSTNAME, 1, everybody)
    assert not has_required_constraints(_pod(1))
    assert not has_required_constraints(
        replace(_pod(1), topology_spread=(replace(hard, when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY),))
    )
    assert has_required_constraints(replace(_pod(1), topology_spread=(hard,)))
    assert has_required_constraints(replace(_pod(1), pod_affinity=(term,)))
    assert has_required_constraints(replace(_pod(1), pod_anti_affinity=(term,)))
