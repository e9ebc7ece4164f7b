"""Relocation: where the pods of a removed node go. What is found on few nodes is never found where all nodes would not
have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.drop_invalid import ValidPlan, solve_valid
from cagrpc.cluster.node_info import DisplacedOwner
from cagrpc.controllers.scale_down import relocation as module
from cagrpc.controllers.scale_down.constraints import required
from cagrpc.controllers.scale_down.relocation import Relocated
from solver import solve
from solver.model import (
    HOSTNAME,
    Budget,
    HostPort,
    Node,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    RunningPods,
    TopologySpread,
)
from tests.support.controllers.scale_down import relocation_in, room_of
from tests.support.examples import examples
from tests.support.solver.device_examples import GPUS, claim
from tests.support.solver.problems import node, spec
from tests.support.solver.strategies import constrained_specs, nodes_with_constrained_pods

BUDGET = Budget(deterministic_seconds=0.5)
ZONE = "topology.kubernetes.io/zone"


def _place(
    pods: Mapping[PodSpec, int], nodes: Sequence[Node], onto: Sequence[bool] | None = None, budget: Budget = BUDGET
) -> Relocated:
    where = np.array([True] * len(nodes) if onto is None else onto, dtype=bool)
    return relocation_in(room_of(*nodes)).place(pods, where, budget)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """What the planner was asked."""
    problems: list[Problem] = []

    def solve_and_remember(problem: Problem, budget: Budget) -> ValidPlan:
        problems.append(problem)
        return solve_valid(problem, budget)

    monkeypatch.setattr(module, "solve_valid", solve_and_remember)
    return problems


def test_places_are_taken_only_where_that_is_asked_for() -> None:
    room = room_of(node("x", 1500), node("y", 2500))
    relocation, everywhere = relocation_in(room), np.array([True, True])
    found = relocation.place({spec(cpu=1000): 3}, everywhere, BUDGET)
    assert (found.all, found.pods) == (True, {"x": {spec(cpu=1000): 1}, "y": {spec(cpu=1000): 2}})
    assert room.info(1).free["cpu"] == 2500
    relocation.assume(found)
    assert room.info(1).assumed(DisplacedOwner()) == {spec(cpu=1000): 2}
    assert not relocation.place({spec(cpu=1000): 1}, everywhere, BUDGET).all


def test_pods_go_only_where_they_may() -> None:
    nodes = node("x", 1500), node("y", 2500)
    assert not _place({spec(cpu=1000): 2}, nodes, onto=[True, False]).all
    assert _place({spec(cpu=1000): 2}, nodes, onto=[False, True]).pods == {"y": {spec(cpu=1000): 2}}


def test_a_pod_that_is_invalid_finds_no_place() -> None:
    assert not _place({PodSpec((("cpu", -1),)): 1, spec(cpu=1000): 1}, [node("x", 4000)]).all
    assert not _place({spec(cpu=10**30): 1}, [node("x", 4000)]).all


def test_the_planner_is_not_asked_where_each_pod_finds_a_node_by_itself(asked: list[Problem]) -> None:
    nodes = [node(f"n{each}", 2000) for each in range(300)]
    found = _place({spec(cpu=1500): 100, spec(cpu=500): 150}, nodes)
    assert found.all
    assert found.count == 250
    assert not asked


def test_the_planner_is_asked_where_the_first_nodes_with_room_leave_a_pod_without(asked: list[Problem]) -> None:
    """The largest pod takes the node on which the others fit, and there is another one for it."""
    nodes = [node("x", 4000), node("y", 3000)]
    assert _place({spec(cpu=3000): 1, spec(cpu=2000): 2}, nodes).all
    assert len(asked) == 1


# ---- constraints over hostnames: each node decides by itself


def _apart(key: str = HOSTNAME) -> PodSpec:
    return replace(_pod_of("db"), pod_anti_affinity=(PodAffinityTerm(key, _of_app("db")),))


def _of_app(app: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (app,)),), ("ns",))


def _pod_of(app: str) -> PodSpec:
    return spec(namespace="ns", labels=(("app", app),))


def _many(running: PodSpec, number: int = 200, last: Sequence[RunningPods] = ()) -> list[Node]:
    """Nodes with one such pod on each but the last."""
    return [
        replace(
            node(f"n{each:03}", 4000, labels={ZONE: "ab"[each % 2]}),
            running=(RunningPods(running),) if each < number - 1 else tuple(last),
        )
        for each in range(number)
    ]


LAST = "n199"


def test_pods_that_keep_apart_find_the_one_node_beyond_all_that_have_one(asked: list[Problem]) -> None:
    assert _place({_apart(): 1}, _many(_apart())).pods == {LAST: {_apart(): 1}}
    assert _place({_pod_of("db"): 1}, _many(_apart())).pods == {LAST: {_pod_of("db"): 1}}
    assert not asked
    assert not _place({_apart(): 2}, _many(_apart())).all
    assert not _place({_apart(): 1}, _many(_apart(), last=[RunningPods(_pod_of("db"))])).all
    assert all(len(problem.nodes) == 1 for problem in asked), "nodes that have one are no targets"


def test_host_ports_are_free_once() -> None:
    port = spec(host_ports=(HostPort(80),))
    assert _place({port: 1}, _many(port)).pods == {LAST: {port: 1}}
    assert not _place({port: 2}, _many(port)).all
    assert _place({port: 2}, _many(spec())).count == 2


def test_a_spread_over_hostnames_lets_so_many_pods_onto_a_node(asked: list[Problem]) -> None:
    """Four nodes have one such pod and may have another; the last may have two."""
    spread = replace(_pod_of("web"), topology_spread=(TopologySpread(HOSTNAME, 2, _of_app("web")),))
    found = _place({spread: 6}, _many(_pod_of("web"), 5))
    assert found.all
    assert {name: pods[spread] for name, pods in found.pods.items()} == {
        **{f"n{each:03}": 1 for each in range(4)},
        "n004": 2,
    }
    assert not asked
    assert not _place({spread: 7}, _many(_pod_of("web"), 5)).all


def test_pods_that_want_company_find_the_node_that_has_it(asked: list[Problem]) -> None:
    beside = spec(namespace="ns", pod_affinity=(PodAffinityTerm(HOSTNAME, _of_app("db")),))
    nodes = _many(spec(), last=[RunningPods(_pod_of("db"))])
    assert _place({beside: 1}, nodes).pods == {LAST: {beside: 1}}
    assert max(len(problem.nodes) for problem in asked) < 100
    assert not _place({beside: 1}, _many(spec())).all


def test_devices_are_looked_for_beyond_the_nodes_without() -> None:
    wants = replace(spec(), claims=claim())
    nodes = [*_many(spec())[:-1], node(LAST, 4000, devices=GPUS)]
    assert _place({wants: 1}, nodes).pods == {LAST: {wants: 1}}
    assert not _place({wants: 1}, nodes[:-1]).all


# ---- constraints over zones: the planner decides, and sees who runs on nodes that it is not given


def test_pods_on_nodes_that_are_no_targets_count() -> None:
    """The pod that keeps others out of zone b runs on the last of 200 nodes, which is full."""
    nodes = _many(spec(), last=[RunningPods(_apart(key=ZONE))])
    nodes[-1] = replace(nodes[-1], free={})
    for moved in (_apart(key=ZONE), _pod_of("db")):
        found = _place({moved: 1}, nodes)
        assert found.all
        assert {nodes[int(name[1:])].labels[ZONE] for name in found.pods} == {"a"}
        assert not _place({moved: 1}, nodes, onto=[each.labels[ZONE] == "b" for each in nodes]).all


def test_few_nodes_stand_for_all_where_constraints_reach_beyond_a_node(asked: list[Problem]) -> None:
    spread = replace(_pod_of("web"), topology_spread=(TopologySpread(ZONE, 1, _of_app("web")),))
    nodes = _many(_pod_of("web"), last=[RunningPods(_pod_of("web"), 3)])  # 2 more in zone b
    found = _place({spread: 1}, nodes)
    assert found.all
    assert {nodes[int(name[1:])].labels[ZONE] for name in found.pods} == {"a"}
    assert not _place({spread: 1}, nodes, onto=[each.labels[ZONE] == "b" for each in nodes]).all
    assert max(len(problem.nodes) for problem in asked) < 80


def test_an_empty_zone_counts_though_nobody_can_go_there() -> None:
    spread = replace(_pod_of("web"), topology_spread=(TopologySpread(ZONE, 1, _of_app("web")),))
    nodes = [node("a", 4000, labels={ZONE: "a"}, running=(RunningPods(_pod_of("web")),))]
    full = Node("b", {}, {ZONE: "b"})
    assert _place({spread: 1}, nodes).all
    assert not _place({spread: 1}, [*nodes, full]).all


_PODS = st.lists(st.tuples(constrained_specs(), st.integers(1, 2)), min_size=1, max_size=3)


def _on_all(pods: Counter[PodSpec], nodes: Sequence[Node], onto: Sequence[bool]) -> bool:
    """Whether the planner places all pods where it is given all nodes, those that they may not go to without room."""
    sets = tuple(PodSet(f"{number}", required(each), count) for number, (each, count) in enumerate(pods.items()))
    given_nodes = tuple(each if may else replace(each, free={}) for each, may in zip(nodes, onto, strict=True))
    return not solve(Problem(sets, nodes=given_nodes), BUDGET).unplaced


@examples(200)
@given(
    nodes_with_constrained_pods(), _PODS, st.lists(st.booleans(), min_size=9, max_size=9), st.sampled_from([1, 2, 64])
)
def test_what_finds_places_finds_them_among_all_nodes_too(
    nodes: list[Node], drawn: list[tuple[PodSpec, int]], drawn_onto: list[bool], targets: int
) -> None:
    pods: Counter[PodSpec] = Counter()
    for each, count in drawn:
        pods[each] += count
    onto = [may or all(drawn_onto[:3]) for may in drawn_onto[: len(nodes)]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TARGETS", targets)
        patch.setattr(module, "_LEAST_TARGETS", min(targets, module._LEAST_TARGETS))
        patch.setattr(module, "_MOST_REFUSED", targets)
        found = _place(pods, nodes, onto)
    on_all = _on_all(pods, nodes, onto)
    assert on_all or not found.all
    assert found.all or not on_all or targets < len(nodes), "where no node is left out, nothing else is found"
