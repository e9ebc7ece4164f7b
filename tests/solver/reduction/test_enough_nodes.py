"""Nodes that are left out could make no plan better: the optimum is the same, and reasons speak of all nodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from solver import Budget, Node, NodeGroup, PodSet, PodSpec, Problem, Status, solve
from solver.model import (
    HOSTNAME,
    HostPort,
    Operator,
    PodAffinityTerm,
    PodSelector,
    Requirement,
    RunningPods,
    TopologySpread,
)
from solver.model.plan import Plan
from solver.reduction.enough_nodes import MANY, with_enough_nodes
from solver.reduction.objective import breaks_ties
from solver.verify.check import check
from tests.support.examples import examples
from tests.support.solver.problems import TAINT, TOLERATION
from tests.support.solver.strategies import constrained_problems, nodes_with_constrained_pods, problems

SMALL = PodSpec((("cpu", 1000),), namespace="ns", labels=(("app", "a"),))
ALIKE = PodSelector((Requirement("app", Operator.IN, ("a",)),))
BUDGET = Budget(deterministic_seconds=1.0)


def _nodes(count: int, cpu: int = 4000) -> tuple[Node, ...]:
    return tuple(Node(f"n{number:04}", {"cpu": cpu, "pods": 9}, {"zone": "abc"[number % 3]}) for number in range(count))


def _problem(spec: PodSpec, nodes: tuple[Node, ...], pods: int = 3) -> Problem:
    return Problem((PodSet("ns/p", spec, pods),), (NodeGroup("g", {"cpu": 8000, "pods": 9}, 1.0, max_size=9),), nodes)


def _kept(problem: Problem) -> list[str]:
    return [node.name for node in with_enough_nodes(problem).nodes]


@examples(150)
@given(constrained_problems(), nodes_with_constrained_pods(), st.integers(6, 12))
def test_the_optimum_is_the_same_with_constraints(problem: Problem, nodes: list[Node], times: int) -> None:
    _same_optimum(replace(problem, nodes=_repeated(nodes, times), previous=None))


@examples(150)
@given(problems(), nodes_with_constrained_pods(), st.integers(6, 12))
def test_the_optimum_is_the_same(problem: Problem, nodes: list[Node], times: int) -> None:
    labelled = [
        replace(node, free={**node.free, "memory": 4, "gpu": 1}, labels={**node.labels, "size": "5"}) for node in nodes
    ]
    _same_optimum(replace(problem, nodes=_repeated(labelled, times)))


def _repeated(nodes: list[Node], times: int) -> tuple[Node, ...]:
    """Most of them without what runs there, so that not all matter."""
    copies = (
        replace(node, name=f"{node.name}-{number}", running=node.running if number == 0 else ())
        for node in nodes
        for number in range(times)
    )
    return tuple(copies)


def _same_optimum(problem: Problem) -> None:
    few = with_enough_nodes(problem, many=1)
    whole, found = solve(problem, BUDGET), solve(few, BUDGET)
    check(problem, found)
    if Status.FEASIBLE not in (whole.certificate.status, found.certificate.status):
        assert _reached(found) == _reached(whole)


def _reached(plan: Plan) -> list[tuple[object, float]]:
    return [(each.stage, each.value) for each in plan.objective if not breaks_ties(each.stage)]


def test_as_many_nodes_are_kept_as_there_are_pods_the_fullest_first() -> None:
    nodes = (*_nodes(MANY), Node("full", {"cpu": 900, "pods": 9}), Node("tight", {"cpu": 1000, "pods": 1}))
    assert _kept(_problem(SMALL, nodes)) == ["n0000", "n0001", "tight"]


def test_all_are_kept_where_there_are_few_nodes_or_many_pods() -> None:
    assert len(_kept(_problem(SMALL, _nodes(MANY - 1)))) == MANY - 1
    assert len(_kept(_problem(SMALL, _nodes(MANY), pods=MANY // 4 + 1))) == MANY


def test_every_domain_of_a_spread_is_kept_and_as_many_nodes_in_each_as_there_are_pods() -> None:
    spread = replace(SMALL, topology_spread=(TopologySpread("zone", 1, ALIKE),))
    nodes = (*_nodes(MANY), Node("d-full", {"cpu": 0, "pods": 9}, {"zone": "d"}))
    kept = _kept(_problem(spread, nodes))
    assert kept == ["d-full", *(f"n{number:04}" for number in range(9))]


def test_nodes_with_pods_that_matter_are_kept() -> None:
    apart = replace(SMALL, pod_anti_affinity=(PodAffinityTerm(HOSTNAME, ALIKE),), host_ports=(HostPort(80),))
    others = [
        PodSpec(labels=(("app", "a"),), namespace="ns"),
        PodSpec(pod_anti_affinity=(PodAffinityTerm("zone", ALIKE),), namespace="ns"),
        PodSpec(host_ports=(HostPort(80),)),
        PodSpec(host_ports=(HostPort(81),)),
    ]
    standing = [Node(f"z{number}", {"cpu": 0}, running=(RunningPods(other),)) for number, other in enumerate(others)]
    assert _kept(_problem(apart, (*_nodes(MANY), *standing)))[-3:] == ["z0", "z1", "z2"]


def test_domains_of_running_pods_that_keep_others_away_are_told_apart() -> None:
    """Pods may not be in rack p, whose nodes are the fullest."""
    guard = PodSpec(pod_anti_affinity=(PodAffinityTerm("rack", ALIKE),), namespace="ns")
    racks = [
        Node(f"{rack}{number:04}", {"cpu": cpu, "pods": 9}, {"rack": rack})
        for rack, cpu in (("p", 1000), ("q", 4000))
        for number in range(MANY // 2)
    ]
    racks[0] = replace(racks[0], running=(RunningPods(guard),))
    assert {"q0000", "q0001", "q0002"} <= {*_kept(_problem(SMALL, tuple(racks)))}


def test_taints_are_told_apart() -> None:
    tainted = [
        replace(node, name=f"t{node.name}", taints=(TAINT,), free={"cpu": 1000, "pods": 9}) for node in _nodes(9)
    ]
    kept = _kept(_problem(SMALL, (*_nodes(MANY), *tainted)))
    assert kept == ["n0000", "n0001", "n0002"]
    tolerant = replace(SMALL, tolerations=(TOLERATION,))
    assert _kept(_problem(tolerant, (*_nodes(MANY), *tainted))) == [*kept, "tn0000", "tn0001", "tn0002"]


def test_all_are_kept_where_pods_need_company_on_their_node() -> None:
    together = replace(SMALL, pod_affinity=(PodAffinityTerm(HOSTNAME, ALIKE),))
    assert len(_kept(_problem(together, _nodes(MANY)))) == MANY


def test_reasons_speak_of_all_nodes() -> None:
    large = PodSpec((("cpu", 9000),))
    both = (PodSet("large", large, 1), PodSet("p", SMALL, 2))
    plan = solve(replace(_problem(SMALL, _nodes(MANY)), pod_sets=both), BUDGET)
    (unplaced,) = plan.unplaced
    alone = solve(_problem(large, _nodes(MANY), 1), BUDGET)
    assert unplaced.reasons == alone.unplaced[0].reasons
    assert not plan.increments
