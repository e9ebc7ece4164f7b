"""Pods that a search left out, placed on what the plan has and on further nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Never

import pytest

from solver import Budget, PodSet, PodSpec, Problem, solve
from solver.model import (
    NODES,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Devices,
    Limit,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    Requirement,
    RunningPods,
)
from solver.planning import settling
from solver.planning.settling import settled
from solver.verify.check import faults_of
from tests.support.solver.problems import group, node, spec


@pytest.mark.parametrize("gang", [None, "g"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_further_nodes_of_several_groups_keep_a_limit_that_they_share(most: int, gang: str | None) -> None:
    pods = PodSet("p", spec(600), 3, gang=gang)
    problem = Problem((pods,), tuple(group(name, 1000) for name in "abc"), limits=(Limit("all", {NODES: most}),))
    nothing = solve(replace(problem, limits=(Limit("all", {NODES: 0}),)), Budget(0.0))
    left_out = replace(nothing, certificate=replace(nothing.certificate, unserved_unproven=3))
    plan = settled(problem, left_out)
    assert list(faults_of(problem, plan)) == []
    placed = sum(each.count for each in plan.nodes)
    assert placed == (most if gang is None or most == 3 else 0)


def test_a_gang_is_tried_whole_if_one_of_its_pods_has_claims_that_are_not_searched() -> None:
    """One request may take what the other needs; where it does not, all pods of the gang have a place."""
    either = (DeviceAlternative("any", name="first"), DeviceAlternative("any", name="second"))
    claims = (DeviceClaim((DeviceRequest("r", either), DeviceRequest("s", either))),)
    devices = (Devices(2, frozenset({"any", "big"})), Devices(0, frozenset({"any"}), uncertain=True))
    pods = PodSet("plain", spec(600), 2, gang="g"), PodSet("claiming", spec(600, claims=claims), 1, gang="g")
    problem = Problem(pods, (group("a", 1000), group("b", 1000, devices=devices)))
    plan = solve(problem, Budget(deterministic_seconds=1.0))
    assert not plan.unplaced
    assert list(faults_of(problem, plan)) == []


def test_who_asks_for_more_devices_than_are_left_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the six devices of the node two are left, and one is left out that asks for three, two of them large."""

    def no_faults(*_: object) -> Never:
        pytest.fail("a plan is checked")

    monkeypatch.setattr(settling, "faults_on_nodes", no_faults)

    def asking(count: int, large: int) -> PodSpec:
        ways = (("any", count - large), ("large", large))
        asked = (DeviceRequest(name, (DeviceAlternative(name, number),)) for name, number in ways if number)
        return spec(100, claims=(DeviceClaim(tuple(asked)),))

    devices = (Devices(2, frozenset({"any", "large"})), Devices(4, frozenset({"any"})))
    pods = PodSet("a", asking(4, 0), 1, priority=1), PodSet("b", asking(3, 2), 1)
    standing = replace(node("n", 1000), devices=devices)
    plan = solve(Problem(pods, (), (standing,)), Budget(deterministic_seconds=1.0))
    assert [plan.pod_classes[each.pod_class].example for each in plan.unplaced] == ["b"]


def _near(label: str) -> PodAffinityTerm:
    return PodAffinityTerm("zone", PodSelector((Requirement(label, Operator.EXISTS),)))


def _prefers(key: str, weight: int) -> PreferredNodes:
    return PreferredNodes(weight, NodeSelectorTerm((Requirement(key, Operator.EXISTS),)))


def test_of_pods_that_are_taken_out_those_stay_that_have_given_up_most() -> None:
    """The one on the first node gives up a preference less than the other, and never gets its turn."""
    free = spec(600, preferred_nodes=(_prefers("size", 100), _prefers("disk", 1)))
    running = (RunningPods(spec(labels=(("x", ""),))),)
    nodes = node("n1", 1000, labels={"zone": "a", "size": "1"}), node("n2", 1000, labels={"zone": "b"}, running=running)
    plan = solve(Problem((PodSet("p", free, 2),), (), nodes), Budget(deterministic_seconds=1.0))
    assert sorted(len(each.preferences) for each in plan.relaxed) == [1, 2]
    bound = replace(free, pod_affinity=(_near("x"),))
    asked = Problem((PodSet("p", bound, 2),), (), nodes)
    of_both = replace(plan, pod_classes=(replace(plan.pod_classes[0], spec=bound),))
    found = settled(asked, of_both)
    assert [each.node for each in found.existing] == ["n2"]
    assert list(faults_of(asked, found)) == []


def test_pods_that_others_wished_to_be_with_and_that_are_taken_out_are_missed() -> None:
    free = spec(600, labels=(("y", ""),))
    wishing = spec(300, preferred_pods=(PreferredPods(10, _near("y")),))
    nodes = (node("n1", 1000, labels={"zone": "a"}),)
    plan = solve(Problem((PodSet("p", free, 1), PodSet("q", wishing, 1)), (), nodes), Budget(deterministic_seconds=1.0))
    assert not plan.unplaced
    assert not plan.relaxed
    bound = replace(free, pod_affinity=(_near("x"),))
    asked = Problem((PodSet("p", bound, 1), PodSet("q", wishing, 1)), (), nodes)
    classes = (replace(each, spec=bound if each.spec == free else each.spec) for each in plan.pod_classes)
    found = settled(asked, replace(plan, pod_classes=tuple(classes)))
    assert [(each.count, len(each.preferences)) for each in found.relaxed] == [(1, 1)]
    assert list(faults_of(asked, found)) == []
