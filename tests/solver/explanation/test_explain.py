"""Explanations of what is not served: the core is irreducible, and every smallest change is just enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import Budget, Limit, NodeGroup, Operator, Plan, PodSet, PodSpec, Problem, Requirement, solve
from solver.explanation.explain import explain
from solver.explanation.kinds import advice, apply, reason, removals
from solver.explanation.model import KEPT_PODS, Constraint, ConstraintChange, WhyUnserved
from solver.explanation.question import claims, question
from solver.model import (
    ATTACHABLE_VOLUMES,
    HOSTNAME,
    HostPort,
    PodAffinityTerm,
    PodSelector,
    RunningPods,
    TopologySpread,
)
from solver.model.budget import RunningBudget
from solver.model.capacity import after_plan
from tests.support.examples import examples
from tests.support.solver.device_strategies import device_problems
from tests.support.solver.hostile import MADE, hostile_pod
from tests.support.solver.problems import TAINT, group, node, pods, spec, wants
from tests.support.solver.strategies import constrained_problems, problems, with_volumes
from tests.support.steps import steps

BUDGET = Budget(deterministic_seconds=10.0)
MODEST = examples(24)


def serves_all(problem: Problem, changes: Iterable[ConstraintChange] = ()) -> bool:
    return not solve(apply(problem, changes), BUDGET).unplaced


def questions(problem: Problem) -> list[tuple[WhyUnserved, Problem, Problem]]:
    """What is said of each claim, with its question: beside what is kept, and alone."""
    plan = solve(problem, BUDGET)
    said = explain(problem, plan, BUDGET).unserved
    note(str(said))
    asked = [question(problem, plan, claim) for claim in claims(plan)]
    assert [why.name for why in said] == [each.claim.name for each in asked]
    return [(why, each.problem, each.alone) for why, each in zip(said, asked, strict=True)]


@given(problems())
@MODEST
def test_a_smallest_change_is_just_enough(problem: Problem) -> None:
    for why, asked, _ in questions(problem):
        assert not why.servable
        assert why.proven
        for way in why.ways:
            assert way.proven
            assert serves_all(asked, way.changes)
            for less in way.lessened():
                assert not serves_all(asked, less)


@given(st.permutations([0, 1000]), st.permutations([{}, {"zone": "b"}]))
def test_placeholders_come_last_whatever_their_priority(priorities: list[int], selectors: list[dict[str, str]]) -> None:
    """The plan takes either of two, and the other is not said to be servable."""
    waiting = [
        pods(f"p{priority}", 1, spec(node_selector=selector), priority=priority, placeholder=True)
        for priority, selector in zip(priorities, selectors, strict=True)
    ]
    problem = Problem(tuple(waiting), (group("g", cpu=1000, max_size=1, labels={"zone": "b"}),))
    for why, _, _ in questions(problem):
        assert not why.servable
        assert why.proven


@given(constrained_problems())
@MODEST
def test_a_smallest_change_is_just_enough_where_pods_constrain_each_other(problem: Problem) -> None:
    for why, asked, _ in questions(problem):
        for way in why.ways:
            assert serves_all(asked, way.changes)
            assert not (way.proven and any(serves_all(asked, less) for less in way.lessened()))


@given(st.one_of(problems(), constrained_problems(), device_problems()), st.data())
@MODEST
def test_every_way_that_is_offered_serves_and_leaves_the_pod_what_it_is_about(
    problem: Problem, data: st.DataObject
) -> None:
    """With volumes and claims on devices: each way is applied as people are told it, and planned again."""
    problem = data.draw(with_volumes(problem))
    for why, asked, _ in questions(problem):
        for way in why.ways:
            note("; ".join(map(advice, way.changes)))
            assert serves_all(asked, way.changes)
            for change in way.changes:
                assert change.kind != "node_terms", "nobody can change these on a pod"
                if change.kind in ("request", "device_request"):
                    assert change.before
                    assert change.after
                    assert 4 * change.after >= change.before
                    assert not change.key.startswith(ATTACHABLE_VOLUMES)


@given(st.one_of(problems(), constrained_problems()))
@MODEST
def test_a_core_is_irreducible(problem: Problem) -> None:
    for why, asked, alone in questions(problem):
        if not why.proven:
            continue  # it is told as it is: not proven
        classes = [c for c in solve(problem, BUDGET).pod_classes if c.index in why.pod_classes]
        every = removals(asked, classes)

        def with_only(
            some: Iterable[Constraint],
            asked: Problem = asked,
            alone: Problem = alone,
            every: Iterable[ConstraintChange] = every,
        ) -> bool:
            kept = set(some)
            return serves_all(asked if KEPT_PODS in kept else alone, [c for c in every if c not in kept])

        assert not with_only(why.core)
        for constraint in why.core:
            assert with_only(set(why.core) - {constraint})


@given(problems())
@examples(15)
def test_the_same_explanation_twice_and_more_than_fits_is_never_said(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    said = explain(problem, plan, BUDGET)
    assert explain(problem, plan, BUDGET) == said
    for why in said.unserved:
        assert 0 <= why.fit < why.pods
        assert why.gang or why.fit == why.pods - why.unserved


def only(problem: Problem, name: str = "") -> WhyUnserved:
    said = explain(problem, solve(problem, BUDGET), BUDGET).unserved
    return next(why for why in said if not name or why.name == name)


def told(why: WhyUnserved) -> tuple[list[str], list[list[str]]]:
    return [reason(c) if isinstance(c, ConstraintChange) else "others" for c in why.core], [
        [advice(c) for c in way.changes] for way in why.ways
    ]


def test_a_size() -> None:
    why = only(Problem((pods("web", 48),), (group("gpu-a", max_size=10),)))
    assert (why.unserved, why.fit) == (8, 40)
    assert told(why)[0] == ["node group gpu-a may have 10 nodes", "pods like web ask for 1 cpu"]
    assert told(why)[1] == [
        ["raise maxSize of gpu-a from 10 to 12"],
        ["lower the cpu request of pods like web from 1 to 800m"],
    ]


def test_seven_of_eight_fit() -> None:
    why = only(Problem((pods("job", 8, spec(2000), gang="train"),), (group("g", 2000, max_size=7),)))
    assert (why.name, why.gang, why.pods, why.unserved, why.fit) == ("train", True, 8, 8, 7)
    assert ["raise maxSize of g from 7 to 8"] in told(why)[1]


def test_a_limit_and_a_size_are_changed_together() -> None:
    problem = Problem((pods("a", 12),), (group("g", max_size=2),), limits=(Limit("pool", {"cpu": 9000}, {"cpu": 500}),))
    why = only(problem)
    # either of the two keeps the pods out; the core is as small as can be
    assert "limit pool allows 9 cpu" in told(why)[0]
    assert told(why)[1] == [
        ["raise the cpu of limit pool from 9 to 12500m", "raise maxSize of g from 2 to 3"],
        ["lower the cpu request of pods like a from 1 to 666m"],
    ]


def test_what_must_ask_for_less_asks_for_as_little_less_as_may_be() -> None:
    why = only(Problem((pods("web", 4), pods("huge", 2, spec(90_000))), (group("g", max_size=1),)), "huge")
    assert told(why) == (
        ["pods like huge ask for 90 cpu"],
        [["add a node group whose nodes have 90 cpu"]],
    ), "4 of 90 cores would be another pod"
    why = only(Problem((pods("web", 4), pods("big", 2, spec(9000))), (group("g", max_size=1),)), "big")
    assert told(why)[1] == [["raise maxSize of g from 1 to 3", "lower the cpu request of pods like big from 9 to 4"]]


def _adding(gpus: int) -> list[str]:
    return [f"add a node group whose nodes have 1 cpu and {gpus} nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("asked", "offers"),
    [
        pytest.param(1, [_adding(1)], id="the only device is what the pod is about"),
        pytest.param(2, [["lower the nvidia.com/gpu request of pods like a from 2 to 1"]], id="one of two"),
        pytest.param(4, [["lower the nvidia.com/gpu request of pods like a from 4 to 1"]], id="one of four"),
        pytest.param(8, [_adding(8)], id="one of eight is another pod"),
    ],
)
def test_no_counter_offer_takes_away_what_the_pod_is_about(asked: int, offers: list[list[str]]) -> None:
    places = (group("cpu-only"), *((group("gpu", extra={"nvidia.com/gpu": 1}),) if asked > 1 else ()))
    assert told(only(Problem((pods("a", 1, spec(1000, gpu=asked)),), places)))[1] == offers


def test_limits_are_raised_to_the_last_millicore() -> None:
    groups = (group("odd", capacity={"cpu": 4321}),)
    why = only(Problem((pods("a", 9, spec(4000)),), groups, limits=(Limit("cap", {"cpu": 10_000}, {"cpu": 77}),)))
    assert told(why)[1][0] == ["raise the cpu of limit cap from 10 to 38966m"]
    (change,) = why.ways[0].changes
    assert change.after == 77 + 9 * 4321


@pytest.mark.parametrize(
    ("pod_spec", "groups", "expected"),
    [
        pytest.param(
            spec(9000),
            (group("g"),),
            (["pods like a ask for 9 cpu"], ["lower the cpu request of pods like a from 9 to 4"]),
            id="request",
        ),
        pytest.param(
            spec(node_selector={"zone": "q"}),
            (group("g"),),
            (["pods like a have the node selector zone=q"], ["drop the node selector zone=q of pods like a"]),
            id="selector",
        ),
        pytest.param(
            spec(affinity=wants("zone", "In", "q")),
            (group("g"),),
            (["pods like a have a required node affinity"], ["drop the required node affinity of pods like a"]),
            id="affinity",
        ),
        pytest.param(
            spec(),
            (group("g", taints=(TAINT,)),),
            (
                ["pods like a do not tolerate the taint dedicated=gpu:NoSchedule"],
                ["let pods like a tolerate the taint dedicated=gpu:NoSchedule"],
            ),
            id="taint",
        ),
    ],
)
def test_what_keeps_a_pod_away(
    pod_spec: PodSpec, groups: tuple[NodeGroup, ...], expected: tuple[list[str], list[str]]
) -> None:
    assert told(only(Problem((pods("a", 1, pod_spec),), groups))) == (expected[0], [expected[1]])


def app(**between: Any) -> PodSpec:
    return spec(500, labels=(("app", "db"),), **between)


OWN = PodSelector((Requirement("app", Operator.IN, ("db",)),))
ZONES = (group("a", labels={"zone": "a"}), group("b", 500, labels={"zone": "b"}, max_size=1))


@pytest.mark.parametrize(
    ("problem", "core", "way"),
    [
        pytest.param(
            Problem((pods("db", 8, app(topology_spread=(TopologySpread("zone", 1, OWN),))),), ZONES),
            "pods like db have a spread over zone with maxSkew 1",
            "raise maxSkew of the spread over zone of pods like db from 1 to 6",
            id="spread",
        ),
        pytest.param(
            Problem((pods("db", 3, app(pod_anti_affinity=(PodAffinityTerm("zone", OWN),))),), ZONES),
            "pods like db have a required pod anti-affinity over zone",
            "drop the required pod anti-affinity over zone of pods like db",
            id="anti-affinity",
        ),
        pytest.param(
            Problem((pods("web", 9, app(pod_affinity=(PodAffinityTerm("zone", OWN),))),), (*ZONES[1:], group("c"))),
            "pods like web have a required pod affinity over zone",
            "drop the required pod affinity over zone of pods like web",
            id="affinity",
        ),
        pytest.param(
            Problem((pods("web", 3, spec(host_ports=(HostPort(80),))),), (group("g", max_size=2),)),
            "pods like web have the host port 80",
            "drop the host port 80 of pods like web",
            id="host-port",
        ),
        pytest.param(
            Problem(
                (
                    pods("db", 1, app(pod_anti_affinity=(PodAffinityTerm("zone", OWN),)), priority=9),
                    pods("web", 1, app()),
                ),
                ZONES[:1],
            ),
            "pods like db have a required pod anti-affinity over zone",
            "drop the required pod anti-affinity over zone of pods like db",
            id="anti-affinity-of-others",
        ),
        pytest.param(
            Problem(
                (pods("web", 1, app()),),
                (),
                (node("n", 9000, running=(RunningPods(app(pod_anti_affinity=(PodAffinityTerm(HOSTNAME, OWN),))),)),),
            ),
            "pods that run already have a required pod anti-affinity over kubernetes.io/hostname that counts them",
            "move pods that run away whose pod anti-affinity over kubernetes.io/hostname counts them",
            id="anti-affinity-of-running-pods",
        ),
        pytest.param(
            Problem((pods("a", 5),), (group("g", extra={"pods": 2}, max_size=2),)),
            "a node of g holds 2 pods",
            "let a node of g hold 3 pods, not 2",
            id="pods-per-node",
        ),
        pytest.param(
            Problem((pods("a", 4),), (group("g", max_size=1),), daemon_sets=(spec(1000),)),
            "the pods of the DaemonSet take their share of new nodes",
            "keep the DaemonSet off new nodes",
            id="daemon-sets",
        ),
        pytest.param(
            Problem(
                (pods("a", 8),),
                (group("must", 100, min_size=2), group("g")),
                limits=(Limit("all", {"nodes": 3}),),
            ),
            "node group must must have 2 nodes",
            "lower minSize of must from 2 to 1",
            id="minimum-size",
        ),
    ],
)
def test_every_kind_of_constraint_is_named_and_can_be_changed(problem: Problem, core: str, way: str) -> None:
    why = only(problem)
    assert why.proven
    assert core in told(why)[0]
    assert [way] in told(why)[1]
    (chosen,) = [each for each in why.ways if [advice(c) for c in each.changes] == [way]]
    plan = solve(problem, BUDGET)
    asked = question(problem, plan, next(c for c in claims(plan) if c.name == why.name)).problem
    assert serves_all(asked, chosen.changes)
    assert not any(serves_all(asked, less) for less in chosen.lessened())


def test_two_doors_both_shut() -> None:
    groups = (group("full", max_size=0), group("tainted", taints=(TAINT,)))
    core, ways = told(only(Problem((pods("a", 1),), groups)))
    assert core == [
        "pods like a do not tolerate the taint dedicated=gpu:NoSchedule",
        "node group full may have 0 nodes",
    ]
    assert ways == [
        ["let pods like a tolerate the taint dedicated=gpu:NoSchedule"],
        ["raise maxSize of full from 0 to 1"],
    ]


def test_what_a_higher_claim_holds_is_named_and_kept() -> None:
    first, second = pods("first", 4, priority=9), pods("second", 4)
    problem = Problem((first, second), (), (node("n", 4000),))
    why = only(problem)
    assert why.core[-1] == KEPT_PODS
    added = [["add a node group whose nodes have 1 cpu"]]
    assert told(why)[1] == added, "nothing is left on the node, and no pod asks for nothing"
    roomier = replace(problem, nodes=(node("n", 6000),))
    assert told(only(roomier))[1] == [["lower the cpu request of pods like second from 1 to 500m"]]


def test_what_a_claim_outranks_does_not_count() -> None:
    gang = pods("gang", 3, priority=9, gang="job")
    problem = Problem((gang, pods("low", 2)), (group("g", 1000, max_size=2),))
    why = only(problem, "job")
    assert KEPT_PODS not in why.core
    assert ["raise maxSize of g from 2 to 3"] in told(why)[1]


def test_nothing_at_all_to_run_on() -> None:
    why = only(Problem((pods("a", 1),)))
    assert (why.core, why.proven) == ((), True)
    assert told(why)[1] == [["add a node group whose nodes have 1 cpu"]]


def test_a_plan_made_in_haste() -> None:
    problem = Problem((pods("a", 4),), (group("g"),))
    hasty: Plan = solve(replace(problem, node_groups=(group("g", max_size=0),)), BUDGET)
    (why,) = explain(problem, hasty, BUDGET).unserved
    assert why.servable
    assert (why.core, why.fit) == ((), 4)


def test_without_time_nothing_is_claimed() -> None:
    problem = Problem((pods("a", 4), pods("b", 4, spec(3000))), (group("g", max_size=1),))
    plan = solve(problem, BUDGET)
    said = explain(problem, plan, Budget(0.0))
    assert (said.unserved, said.claims_left_out) == ((), 1)


@given(problems())
@examples(20)
def test_what_was_planned_stands_when_it_is_after_plan(problem: Problem) -> None:
    """Then the plan's own increments are used up, and what it serves needs nothing more."""
    plan = solve(problem, BUDGET)
    after = after_plan(problem, plan, range(len(plan.pod_classes)))
    assert len(after.nodes) == len(problem.nodes) + sum(i.delta for i in plan.increments)
    assert all(amount >= 0 for each in after.nodes for amount in each.free.values())
    for before, now in zip(problem.limits, after.limits, strict=True):
        assert all(now.used.get(name, 0) >= amount for name, amount in before.used.items())
    missing = {each.pod_class: each.count for each in plan.unplaced}
    for claim in claims(plan):
        left = [replace(p, count=missing.get(c.index, 0)) for c in claim.classes for p in [pods(c.example, 0, c.spec)]]
        assert not serves_all(replace(after, pod_sets=tuple(left)))


def test_large_plans_keep_their_pods_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solver.explanation.question._WHOLE_SIZE", 0)
    why = only(Problem((pods("b", 3, spec(3000), priority=1), pods("web", 48)), (group("g", max_size=10),)))
    assert why.in_place
    assert ["raise maxSize of g from 10 to 15"] in told(why)[1]


def test_trials_end() -> None:
    budget = RunningBudget(BUDGET, plans_left=1)
    assert not budget.exhausted
    budget.next_plan(0.2)
    assert budget.exhausted


@pytest.mark.parametrize("kind", sorted(MADE))
def test_a_pod_of_many_constraints_is_explained_in_steps_in_proportion_to_them(kind: str) -> None:
    constraints = 100
    many = hostile_pod([kind], 0, constraints, 1)
    requests = tuple(sorted({**dict(many.requests), "cpu": 99_000}.items()))
    problem = Problem(
        (PodSet("many", replace(many, requests=requests), 1),),
        tuple(group(f"g{number}", 16_000, max_size=10) for number in range(20)),
    )
    plan = solve(problem, Budget(0.0))
    taken = steps(lambda: explain(problem, plan, Budget(deterministic_seconds=0.2)))
    assert taken <= 20_000 * constraints
