"""What the kube-scheduler makes of a plan, and plans repaired until all that they claim to serve lands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from solver import Budget, Limit, Plan, Problem, Status, solve
from solver.check import check, faults_of
from solver.realise import Realised, realise
from solver.rehearsal import group_numbers
from solver.scheduler import Profile, Scenario, Scheduler, Scoring
from tests.solver.build import GPU, TAINT, TOLERATION, group, node, pods, spec
from tests.solver.strategies import constrained_problems, problems

BUDGET = Budget(deterministic_seconds=1.0)
SOON = Budget(deterministic_seconds=0.2)


def left_pending(problem: Problem, realised: Realised, scenario: Scenario, profile: Profile | None = None) -> int:
    """Pods that stay pending in a simulation of their own of the nodes that a realised plan opens."""
    number = group_numbers(problem)
    scheduler = Scheduler(problem, realised.plan.pod_classes, profile or Profile())
    new = np.array([number[each.node_group] for each in realised.placements], dtype=np.int64)
    waves = np.array([each.wave for each in realised.placements], dtype=np.int64)
    first = len(problem.nodes)
    rows = [(who, n, k) for n, each in enumerate(realised.placements, first) for who, k in each.bound.items()]
    outcome = scheduler.run(new, waves, np.array(rows, dtype=np.int64).reshape(len(rows), 3), scenario)
    return int((outcome.placed < 0).sum())


def mixed() -> Problem:
    """Small pods, and a few that need a whole large node: the scheduler would put small ones there first."""
    sets = (
        pods("small", 60, spec(900, 2)),
        pods("medium", 20, spec(2100, 6)),
        pods("whole", 2, spec(15500, 50)),
    )
    return Problem(sets, (group("g4", 4000, 0.2), group("g8", 8000, 0.38), group("g16", 16000, 0.7)))


def test_a_plan_that_lands_is_left_alone() -> None:
    problem = Problem((pods("web", 12, spec(1000)),), (group("g", 4000, 1.0),))
    plan = solve(problem, BUDGET)
    realised = realise(problem, plan, BUDGET)
    assert realised.repairs == ()
    assert realised.stranded == realised.at_risk == 0
    assert realised.plan.certificate.status is Status.OPTIMAL
    assert realised.realised_cost_usd_per_hour == realised.planned_cost_usd_per_hour == 3.0
    assert [dict(each.pods) for each in realised.placements] == [{0: 4}] * 3


@pytest.mark.parametrize("scoring", Scoring)
def test_repairs_until_all_pods_land(scoring: Scoring) -> None:
    problem = mixed()
    plan = solve(problem, BUDGET)
    profile = Profile(scoring)
    realised = realise(problem, plan, BUDGET, profile)
    check(problem, realised.plan)
    assert not realised.plan.unplaced
    assert realised.at_risk == 0
    assert realised.stranded > 0
    told = sum(repair.cost_usd_per_hour for repair in realised.repairs)
    assert realised.realised_cost_usd_per_hour == pytest.approx(realised.planned_cost_usd_per_hour + told)
    assert realised.realised_cost_usd_per_hour < 1.3 * realised.planned_cost_usd_per_hour
    for seed in range(100, 106):
        assert left_pending(problem, realised, Scenario(seed, attempts_a_node=2 * (seed % 2)), profile) == 0


def test_whole_node_pods_wait_for_a_wave_of_their_own() -> None:
    problem = Problem(mixed().pod_sets, (group("g8", 8000, 0.3), group("g16", 16000, 0.8)))
    realised = realise(problem, solve(problem, BUDGET), BUDGET)
    assert not realised.plan.unplaced
    wave_of = {name: [each.wave for each in realised.placements if each.node_group == name] for name in ("g8", "g16")}
    assert min(wave_of["g8"]) < min(wave_of["g16"])
    assert sum(each.delta for wave in realised.waves for each in wave) == len(realised.placements)


def test_without_waves_there_is_one() -> None:
    problem = mixed()
    realised = realise(problem, solve(problem, BUDGET), BUDGET, Profile(Scoring.MOST_ALLOCATED), waves=1)
    assert len(realised.waves) == 1


def test_bound_pods_are_where_they_were_planned_at_the_planned_cost() -> None:
    problem = mixed()
    plan = solve(problem, BUDGET)
    realised = realise(problem, plan, BUDGET, may_bind={cls.index: cls.count for cls in plan.pod_classes})
    assert realised.repairs == ()
    assert Counter((n.node_group, tuple(n.pods.items())) for n in realised.placements) == Counter(
        {(n.node_group, tuple(n.pods.items())): n.count for n in plan.nodes}
    )
    assert all(each.bound == each.pods for each in realised.placements)


def test_what_may_not_be_bound_is_simulated_around_what_is() -> None:
    problem = mixed()
    plan = solve(problem, BUDGET)
    whole = next(cls.index for cls in plan.pod_classes if cls.example == "whole")
    realised = realise(problem, plan, BUDGET, may_bind={whole: 2})
    assert not realised.plan.unplaced
    assert sum(each.bound.get(whole, 0) for each in realised.placements) == 2
    assert all(set(each.bound) <= {whole} for each in realised.placements)
    assert left_pending(problem, realised, Scenario(7)) == 0


def test_what_no_repair_can_serve_is_unplaced_and_costs_nothing() -> None:
    problem = mixed()
    most = sum(increment.delta for increment in solve(problem, BUDGET).increments)
    tight = replace(problem, limits=(Limit("cluster", {"nodes": most}),))
    plan = solve(tight, BUDGET)
    realised = realise(tight, plan, BUDGET, waves=1)
    check(tight, realised.plan)
    assert sum(left.count for left in realised.plan.unplaced) > 0
    assert "kube-scheduler" in realised.plan.unplaced[0].reasons[0]
    assert sum(increment.delta for increment in realised.plan.increments) <= most


def test_repairs_are_of_the_highest_tier_that_can_serve() -> None:
    sets = (pods("small", 50, spec(900, 2)), pods("large", 12, spec(3000, 8)))
    groups = (group("dear", 4000, 0.9, weight=10), group("cheap", 4000, 0.1, weight=1))
    problem = Problem(sets, groups)
    realised = realise(problem, solve(problem, BUDGET), BUDGET)
    assert {increment.node_group for increment in realised.plan.increments} == {"dear"}


def test_a_gang_that_lands_in_part_is_not_served() -> None:
    sets = (pods("driver", 1, spec(3000), gang="job"), pods("worker", 3, spec(3000), gang="job"), pods("x", 8))
    problem = Problem(sets, (group("g", 4000, 1.0, max_size=6),))
    plan = solve(problem, BUDGET)
    realised = realise(problem, plan, BUDGET, waves=1)
    check(problem, realised.plan)
    left = {plan.pod_classes[each.pod_class].example: each.count for each in realised.plan.unplaced}
    assert left in ({}, {"driver": 1, "worker": 3}, {"driver": 1, "worker": 3, "x": 8})


def test_tainted_nodes_are_for_those_who_tolerate_them() -> None:
    sets = (pods("cpu", 30, spec(1000, 2)), pods("gpu", 6, spec(1000, 2, gpu=1, tolerations=(TOLERATION,))))
    groups = (group("plain", 8000, 0.4), group("gpu", 8000, 1.0, extra={GPU: 2}, taints=(TAINT,)))
    problem = Problem(sets, groups, (node("old", 3000),))
    realised = realise(problem, solve(problem, BUDGET), BUDGET)
    check(problem, realised.plan)
    cpu = next(cls.index for cls in realised.plan.pod_classes if cls.example == "cpu")
    assert all(cpu not in each.pods for each in realised.placements if each.node_group == "gpu")


@settings(max_examples=25, deadline=None)
@given(problems())
def test_a_realised_plan_passes_the_checker(problem: Problem) -> None:
    plan = solve(problem, SOON)
    realised = realise(problem, plan, SOON)
    check(problem, realised.plan)
    assert_honest(problem, plan, realised)


@settings(max_examples=40, deadline=None)
@given(constrained_problems())
def test_so_does_one_with_constraints_between_pods_as_far_as_the_scheduler_keeps_them(problem: Problem) -> None:
    plan = solve(problem, SOON)
    realised = realise(problem, plan, SOON)
    assert_honest(problem, plan, realised)
    # Spread, and affinity of pods to their own kind, are read less strictly by the scheduler; nothing else is.
    faults = [fault for fault in faults_of(problem, realised.plan) if "required" in fault]
    assert all("spread" in fault or "required affinity" in fault for fault in faults)
    assert list(faults_of(problem, realised.plan, between_pods=False)) == []


def assert_honest(problem: Problem, plan: Plan, realised: Realised) -> None:
    left = sum(each.count for each in realised.plan.unplaced)
    gangs = {pods.gang for pods in problem.pod_sets} - {None}
    if not gangs:
        assert left_pending(problem, realised, Scenario(0)) == left
    certificate = realised.plan.certificate
    assert certificate.lower_bound_usd_per_hour <= plan.certificate.lower_bound_usd_per_hour + 1e-6
    assert realised.realised_cost_usd_per_hour == certificate.cost_usd_per_hour
    spare = sum(each.reserve and not each.pods for each in realised.placements)
    assert 0 <= len(realised.placements) - sum(each.delta for each in realised.plan.increments) <= spare
    for each in realised.plan.pod_classes:
        assert each in plan.pod_classes
