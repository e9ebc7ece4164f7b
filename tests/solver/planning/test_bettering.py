"""Whoever is told that a plan is proven best tries to better it: with pods that it leaves out, on whatever it has and
on one more node of each group, and by emptying a node that it opens. What the checker lets pass must not be better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, note

from solver import Budget, Plan, Problem, Status, solve
from solver.model import (
    HOSTNAME,
    Node,
    NodeGroup,
    PlacedOnNode,
    PlannedNodes,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    TopologySpread,
)
from solver.model.capacity import room_of, with_nodes
from solver.model.eligibility import is_spread_over_hosts
from solver.model.errors import UncheckedPlanError
from solver.model.objects import Operator, Requirement
from solver.planning.write_plan import increments
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces
from solver.verify.terms import faults_between_pods
from tests.support.examples import examples
from tests.support.solver.strategies import constrained_problems

Pods = dict[int, int]
Places = list[tuple[str, bool, Pods]]
"""A node group or a node, whether it is a node that stands, and the pods there by class."""


def places_of(problem: Problem, plan: Plan) -> Places:
    """Every node by itself."""
    used = {each.node: dict(each.pods) for each in plan.existing}
    new = [(each.node_group, False, dict(each.pods)) for each in plan.nodes for _ in range(each.count)]
    return [*new, *((node.name, True, used.get(node.name, {})) for node in problem.nodes)]


def passes(problem: Problem, plan: Plan, places: Places) -> bool:
    """Whether the checker lets pods be there."""
    new = tuple(PlannedNodes(where, 1, pods) for where, stands, pods in places if not stands)
    existing = tuple(PlacedOnNode(where, pods) for where, stands, pods in places if stands and pods)
    moved = replace(plan, nodes=new, existing=existing, increments=increments(new))
    checked = CheckedPlaces(problem, moved)
    try:
        return not [*faults_on_nodes(problem, checked), *faults_between_pods(problem, moved, checked)]
    except UncheckedPlanError:
        return False


def with_pod(places: Places, at: int, index: int, pods: int = 1) -> Places:
    where, stands, there = places[at]
    return [*places[:at], (where, stands, {**there, index: there.get(index, 0) + pods}), *places[at + 1 :]]


def one_more_node(problem: Problem, places: Places) -> Iterator[Places]:
    opened = Counter(where for where, stands, _ in places if not stands)
    groups = {group.id: group for group in problem.node_groups}
    limits = [with_nodes(limit, groups, opened) for limit in problem.limits]
    for group in problem.node_groups:
        if room_of(replace(group, target_size=group.target_size + opened[group.id]), limits)[0] > 0:
            yield [*places, (group.id, False, {})]


def better_by_a_pod(problem: Problem, plan: Plan) -> str:
    """Return which pod that is left out has a place; empty for none. Gangs are served whole or not at all."""
    places = places_of(problem, plan)
    for unplaced in plan.unplaced:
        of = plan.pod_classes[unplaced.pod_class]
        if of.gang is None:
            tried = [(places, at) for at in range(len(places))]
            tried += [(more, len(more) - 1) for more in one_more_node(problem, places)]
            for there, at in tried:
                if passes(problem, plan, with_pod(there, at, of.index)):
                    return f"{of.example} on {there[at][0]}"
    return ""


def better_by_a_node(problem: Problem, plan: Plan) -> str:
    """Return which new node can be emptied onto the others, pod by pod; empty for none."""
    places = places_of(problem, plan)
    groups = {group.id: group for group in problem.node_groups}
    opened = Counter(where for where, stands, _ in places if not stands)
    for at, (where, stands, pods) in enumerate(places):
        group = groups.get(where)
        if (
            stands
            or group is None
            or opened[where] <= group.min_size - group.target_size
            or not group.price_usd_per_hour
        ):
            continue
        rest: Places | None = [*places[:at], *places[at + 1 :]]
        for index in sorted(pods):
            for _ in range(pods[index]):
                options = (with_pod(rest or [], to, index) for to in range(len(rest or [])))
                rest = next((each for each in options if passes(problem, plan, each)), None)
                if rest is None:
                    break
            if rest is None:
                break
        if rest is not None:
            return where
    return ""


def spread_over_hosts(problem: Problem) -> bool:
    """Whether plans keep another node in mind, which may come at any time as an empty domain: such plans are best
    among those that hold then, too (constraints.md)."""
    return any(is_spread_over_hosts(each.spec) for each in problem.pod_sets)


@given(constrained_problems())
@examples(40)
def test_no_pod_can_be_added_to_a_plan_whose_serving_is_proven(problem: Problem) -> None:
    plan = solve(problem, Budget(deterministic_seconds=3.0))
    note(str(plan))
    if not plan.certificate.unserved_unproven and not plan.relaxed:
        assert better_by_a_pod(problem, plan) == ""


@given(constrained_problems())
@examples(40)
def test_no_node_can_be_emptied_where_the_plan_is_optimal(problem: Problem) -> None:
    plan = solve(problem, Budget(deterministic_seconds=3.0))
    note(str(plan))
    if plan.certificate.status is Status.OPTIMAL and not plan.relaxed and not spread_over_hosts(problem):
        assert better_by_a_node(problem, plan) == ""


_OWN = PodSelector((Requirement("app", Operator.IN, ("x",)),), ("",))
_X = PodSpec((("cpu", 1000),), labels=(("app", "x"),))


@pytest.mark.parametrize(
    "spec",
    [
        replace(_X, topology_spread=(TopologySpread("zone", 1, _OWN),)),
        replace(_X, topology_spread=(TopologySpread("zone", 1, _OWN), TopologySpread("kind", 1, _OWN))),
        replace(_X, topology_spread=(TopologySpread(HOSTNAME, 1, _OWN),)),
        replace(_X, pod_affinity=(PodAffinityTerm("zone", _OWN), PodAffinityTerm("kind", _OWN))),
        replace(_X, pod_anti_affinity=(PodAffinityTerm("zone", _OWN),)),
    ],
    ids=["spread", "two spreads", "hosts", "affinity", "anti-affinity"],
)
@pytest.mark.parametrize("most", [0, 1, 3])
def test_neither_helps_over_zones_and_kinds(spec: PodSpec, most: int) -> None:
    groups = tuple(
        NodeGroup(f"{zone}-{kind}", {"cpu": 2000, "pods": 3}, 1.0, {"zone": zone, "kind": kind}, max_size=most)
        for zone, kind in [("a", "spot"), ("a", "od"), ("b", "od")]
    )
    node = Node("n", {"cpu": 2000, "pods": 3}, {"zone": "b", "kind": "spot"})
    problem = Problem((PodSet("x", spec, 5), PodSet("y", _X, 1)), groups, (node,))
    plan = solve(problem, Budget(deterministic_seconds=3.0))
    assert plan.certificate.unserved_unproven or better_by_a_pod(problem, plan) == ""
    if not spread_over_hosts(problem):
        assert plan.certificate.status is not Status.OPTIMAL or better_by_a_node(problem, plan) == ""
