"""What the planner decides, one named case per rule of the objective and per constraint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from solver import Budget, Limit, NodeGroup, Plan, PodSet, PodSpec, Problem, ProblemError, Status, solve
from solver.model import Goal, Node
from solver.model.eligibility import all_why_not_eligible
from tests.support.solver.problems import GPU, TAINT, TOLERATION, group, node, pods, previous, spec, wants

BUDGET = Budget(deterministic_seconds=10.0)


def deltas(plan: Plan) -> dict[str, int]:
    return {increment.node_group: increment.delta for increment in plan.increments}


def served(plan: Plan) -> dict[str, int]:
    """Pods with a place, by example name."""
    left = {u.pod_class: u.count for u in plan.unplaced}
    return {c.example: c.count - left.get(c.index, 0) for c in plan.pod_classes}


def plan_of(*pod_sets: PodSet, groups: tuple[NodeGroup, ...], **other: object) -> Plan:
    return solve(Problem(pod_sets, groups, **other), BUDGET)  # type: ignore[arg-type]


class TestWeights:
    def test_the_highest_weight_that_can_serve_is_used_however_dear(self) -> None:
        groups = (group("dear", price=9, weight=100), group("cheap", price=1, weight=10))
        plan = plan_of(pods("a", 8), groups=groups)
        assert deltas(plan) == {"dear": 2}
        assert plan.certificate.price_of_priority_usd_per_hour == pytest.approx(16)

    def test_equal_weights_are_one_tier_and_compete_on_price(self) -> None:
        plan = plan_of(pods("a", 8), groups=(group("x", price=2, weight=50), group("y", price=1, weight=50)))
        assert deltas(plan) == {"y": 2}
        assert [tier.weight for tier in plan.certificate.tiers] == [50]

    def test_a_lower_weight_serves_only_what_no_higher_one_can(self) -> None:
        groups = (group("high", weight=100, max_size=1), group("low", weight=1))
        assert deltas(plan_of(pods("a", 6), groups=groups)) == {"high": 1, "low": 1}

    def test_room_on_a_forced_lower_node_is_used_before_anything_new_is_opened(self) -> None:
        arm = pods("arm", 1, spec(1000, node_selector={"arch": "arm64"}))
        groups = (
            group("high", weight=100, labels={"arch": "amd64"}),
            group("low", weight=1, labels={"arch": "arm64"}),
        )
        assert deltas(plan_of(arm, pods("any", 3), groups=groups)) == {"low": 1}

    def test_no_weight_is_the_lowest(self) -> None:
        assert deltas(plan_of(pods("a", 1), groups=(group("none", price=0.1), group("one", weight=1)))) == {"one": 1}

    def test_each_tier_carries_its_own_bound(self) -> None:
        arm = pods("arm", 5, spec(1000, node_selector={"arch": "arm64"}))
        groups = (group("x", weight=100), group("y", price=3, weight=1, labels={"arch": "arm64"}))
        plan = plan_of(arm, pods("big", 2, spec(4000)), groups=groups)
        assert [(t.weight, t.cost_usd_per_hour, t.lower_bound_usd_per_hour) for t in plan.certificate.tiers] == [
            (100, 2.0, 2.0),
            (1, 6.0, 6.0),
        ]


class TestServing:
    def test_higher_priorities_first(self) -> None:
        plan = plan_of(pods("low", 4), pods("high", 3, priority=7), groups=(group("g", max_size=1),))
        assert served(plan) == {"high": 3, "low": 1}

    def test_within_a_priority_the_number_of_pods_counts(self) -> None:
        plan = plan_of(pods("big", 1, spec(3000)), pods("small", 3, spec(1300)), groups=(group("g", max_size=1),))
        assert served(plan) == {"big": 0, "small": 3}

    def test_of_equal_claims_the_longer_wait_is_served(self) -> None:
        first = pods("old", 2, spec(3001), waiting_seconds=100)
        plan = plan_of(pods("new", 2, spec(3000)), first, groups=(group("g", max_size=2),))
        assert served(plan) == {"new": 0, "old": 2}

    def test_placeholders_come_after_every_pod_and_before_cost(self) -> None:
        slack = pods("slack", 4, spec(1000), placeholder=True, priority=1000)
        plan = plan_of(pods("real", 3), slack, groups=(group("g", price=50, max_size=1),))
        assert served(plan) == {"real": 3, "slack": 1}

    def test_existing_room_is_used_before_new_nodes(self) -> None:
        plan = plan_of(pods("a", 5), groups=(group("g"),), nodes=(node("n1", 3000), node("n2", 1500)))
        assert {p.node: sum(p.pods.values()) for p in plan.existing} == {"n1": 3, "n2": 1}
        assert deltas(plan) == {"g": 1}

    def test_nothing_to_do_costs_nothing_and_is_optimal(self) -> None:
        plan = plan_of(groups=(group("g"),))
        assert plan.certificate.status is Status.OPTIMAL
        assert (plan.increments, plan.certificate.cost_usd_per_hour, plan.certificate.gap) == ((), 0.0, 0.0)

    def test_infeasible_only_where_nothing_can_be_placed(self) -> None:
        assert plan_of(pods("a", 1, spec(9000)), groups=(group("g"),)).certificate.status is Status.INFEASIBLE
        partly = plan_of(pods("a", 1, spec(9000)), pods("b", 1), groups=(group("g"),))
        assert partly.certificate.status is Status.OPTIMAL


class TestGangs:
    def test_a_gang_over_two_groups_is_served_whole(self) -> None:
        gang = (
            pods("head", 1, spec(1000, node_selector={"kind": "cpu"}), gang="job"),
            pods("worker", 2, spec(1000, gpu=1, tolerations=(TOLERATION,)), gang="job"),
        )
        groups = (
            group("cpu", labels={"kind": "cpu"}),
            group("gpu", price=5, taints=(TAINT,), extra={GPU: 1}, max_size=2),
        )
        assert deltas(plan_of(*gang, groups=groups)) == {"cpu": 1, "gpu": 2}

    def test_or_not_at_all(self) -> None:
        gang = (pods("head", 1, gang="job"), pods("worker", 3, spec(4000), gang="job"))
        plan = plan_of(*gang, pods("single", 1), groups=(group("g", max_size=3),))
        assert served(plan) == {"head": 0, "worker": 0, "single": 1}
        assert any("whole or not at all" in reason for u in plan.unplaced for reason in u.reasons)

    def test_a_gang_counts_all_of_its_pods_against_others(self) -> None:
        plan = plan_of(pods("gang", 3, gang="job"), pods("other", 2, spec(2000)), groups=(group("g", max_size=1),))
        assert served(plan) == {"gang": 3, "other": 0}


class TestConstraints:
    @pytest.mark.parametrize(
        ("limit", "expected"),
        [
            pytest.param(Limit("cluster", {"nodes": 2}), 2, id="nodes"),
            pytest.param(Limit("cluster", {"nodes": 5}, {"nodes": 4}), 1, id="nodes-in-use"),
            pytest.param(Limit("cluster", {"cpu": 11_999}), 2, id="cpu"),
            pytest.param(Limit("pool", {"cpu": 4000}, node_groups=frozenset({"g"})), 1, id="of-a-provisioner"),
            pytest.param(Limit("cluster", {"cpu": 1}, {"cpu": 9000}), 0, id="exceeded-already"),
            pytest.param(Limit("cluster", {"gpu": 0}), 3, id="of-a-resource-it-has-not"),
        ],
    )
    def test_limits(self, limit: Limit, expected: int) -> None:
        plan = plan_of(pods("a", 12), groups=(group("g"),), limits=(limit,))
        assert deltas(plan).get("g", 0) == expected

    def test_limits_count_capacity_rather_than_allocatable(self) -> None:
        one = group("g", capacity={"cpu": 5000})
        assert deltas(plan_of(pods("a", 12), groups=(one,), limits=(Limit("l", {"cpu": 10_000}),))) == {"g": 2}

    def test_sizes_bound_the_increment(self) -> None:
        plan = plan_of(pods("a", 40), groups=(group("g", max_size=7, target_size=5),))
        assert deltas(plan) == {"g": 2}

    def test_a_group_below_its_minimum_is_raised_to_it(self) -> None:
        assert deltas(plan_of(groups=(group("g", min_size=3, target_size=1),))) == {"g": 2}

    def test_minimum_sizes_are_met_as_far_as_limits_allow(self) -> None:
        groups = (group("a", min_size=2), group("b", 8000, min_size=2))
        assert deltas(plan_of(groups=groups, limits=(Limit("nodes", {"nodes": 3}),))) == {"a": 2, "b": 1}

    @pytest.mark.parametrize("cpu", [600, 700, 800, 900])
    @pytest.mark.parametrize("limit", [None, 2])
    def test_a_group_that_must_grow_serves_what_it_can(self, cpu: int, limit: int | None) -> None:
        limits = (Limit("nodes", {"nodes": limit}),) if limit else ()
        plan = plan_of(
            pods("a", 1, spec(cpu)),
            pods("b", 3, spec(750)),
            groups=(group("g", 1000, min_size=2, max_size=2),),
            limits=limits,
        )
        assert deltas(plan) == {"g": 2}
        assert sum(served(plan).values()) == 2

    def test_a_daemon_that_no_node_has_room_for_is_in_nobodys_way(self) -> None:
        storage = PodSpec((("ephemeral-storage", 1),))
        plan = plan_of(pods("a", 4), groups=(group("g"),), daemon_sets=(storage, spec(100_000)))
        assert deltas(plan) == {"g": 1}
        assert not plan.unplaced

    def test_pods_per_node(self) -> None:
        assert deltas(plan_of(pods("a", 9, spec(1)), groups=(group("g", extra={"pods": 4}),))) == {"g": 3}

    def test_daemon_sets_take_their_share_of_new_nodes(self) -> None:
        alone = plan_of(pods("a", 8), groups=(group("g"),))
        shared = plan_of(pods("a", 8), groups=(group("g"),), daemon_sets=(spec(100),))
        assert (deltas(alone), deltas(shared)) == ({"g": 2}, {"g": 3})

    def test_taints_selectors_and_affinity(self) -> None:
        groups = (group("tainted", price=0.1, taints=(TAINT,)), group("a", 4000, 3, labels={"zone": "a"}), group("b"))
        assert deltas(plan_of(pods("p", 1), groups=groups)) == {"b": 1}
        assert deltas(plan_of(pods("p", 1, spec(tolerations=(TOLERATION,))), groups=groups)) == {"tainted": 1}
        assert deltas(plan_of(pods("p", 1, spec(affinity=wants("zone", "In", "a"))), groups=groups)) == {"a": 1}

    def test_any_extended_resource(self) -> None:
        fpga = PodSpec((("example.com/fpga", 1),))
        groups = (group("plain", price=0.1), group("fpga", extra={"example.com/fpga": 2}))
        assert deltas(plan_of(pods("p", 3, fpga), groups=groups)) == {"fpga": 2}


class TestReasons:
    @pytest.mark.parametrize(
        ("pod_spec", "groups", "limits", "expected"),
        [
            pytest.param(spec(9000), (group("g"),), (), "needs 9 cpu, at most 4 is free", id="size"),
            pytest.param(
                spec(node_selector={"zone": "q"}), (group("g"),), (), "node selector zone=q not met", id="selector"
            ),
            pytest.param(spec(), (group("g", taints=(TAINT,)),), (), "taint dedicated=gpu:NoSchedule", id="taint"),
            pytest.param(spec(), (group("g", max_size=0),), (), "g is at its maximum size 0", id="maximum"),
            pytest.param(spec(), (group("g"),), (Limit("cap", {"cpu": 1}),), "limit cap allows 1m cpu", id="limit"),
            pytest.param(spec(), (), (), "there are no nodes, and no node groups to open", id="no-groups"),
        ],
    )
    def test_say_what_stands_in_the_way(
        self, pod_spec: PodSpec, groups: tuple[NodeGroup, ...], limits: tuple[Limit, ...], expected: str
    ) -> None:
        plan = plan_of(pods("a", 1, pod_spec), groups=groups, limits=limits)
        assert expected in plan.unplaced[0].reasons[0]

    def test_look_once_at_places_that_look_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thousands of classes and groups must not cost their product."""
        asked: list[object] = []

        def counted(*words: Any) -> Iterator[str]:
            asked.append(words)
            return all_why_not_eligible(*words)

        monkeypatch.setattr("solver.reduction.node_columns.all_why_not_eligible", counted)
        many = tuple(pods(f"p{i}", 1, spec(50_000 + i)) for i in range(60))
        plan = plan_of(*many, groups=tuple(group(f"g{i}", 4000 + i) for i in range(40)))
        assert len(plan.unplaced) == 60
        assert len(asked) == 1

    def test_name_what_is_short_on_each_place(self) -> None:
        plan = plan_of(
            pods("a", 1, spec(2000, memory_gib=80), priority=1),
            pods("b", 5, spec(3000), priority=1),
            pods("c", 1, spec(node_selector={"zone": "q"})),
            groups=(group("full", max_size=1), group("at-limit", 8000), group("tainted", taints=(TAINT,))),
            nodes=(node("small", 1000), node("free", 3500)),
            limits=(Limit("cap", {"cpu": 4000}),),
        )
        reasons = {plan.pod_classes[u.pod_class].example: u.reasons for u in plan.unplaced}
        assert reasons == {
            "a": (
                "needs 80Gi memory, at most 64Gi is free (3 of 3 node groups and 2 of 2 nodes)",
                "needs 2 cpu, at most 1 is free (node small)",
                "taint dedicated=gpu:NoSchedule not tolerated (node group tainted)",
            ),
            "b": (
                "limit cap allows 4 cpu: no room for one more node of at-limit, full",
                "the free room of 1 existing node that it fits is taken by other pods",
                "needs 3 cpu, at most 1 is free (node small)",
                "taint dedicated=gpu:NoSchedule not tolerated (node group tainted)",
            ),
            "c": (
                "node selector zone=q not met (3 of 3 node groups and 2 of 2 nodes)",
                "taint dedicated=gpu:NoSchedule not tolerated (node group tainted)",
            ),
        }


class TestBadProblems:
    def test_every_fault_is_named_at_once(self) -> None:
        problem = Problem(
            (pods("a", -1), PodSet("b", PodSpec((("cpu", -5), ("memory", 10**16))), 10**10)),
            (
                NodeGroup("g", {"cpu": 1}, math.nan, weight=101),
                NodeGroup("g", {"cpu": 1}, 1.0, min_size=3, max_size=2),
            ),
            limits=(Limit("l", {"cpu": -1}, node_groups=frozenset({"nobody"})),),
        )
        with pytest.raises(ProblemError) as caught:
            solve(problem)
        faults = "\n".join(caught.value.problems)
        for expected in (
            "node group g: given 2 times",
            "pod set a: count -1",
            "pod set b: requests cpu: -5",
            "pod set b: requests memory: 10000000000000000",
            "pod set b: count 10000000000",
            "node group g: price nan",
            "node group g: weight 101",
            "found 3 and 2",
            "limit l: maximum cpu: -1",
        ):
            assert expected in faults

    def test_sums_that_64_bits_cannot_hold_are_refused(self) -> None:
        many = tuple(pods(f"p{i}", 10**9, waiting_seconds=10**9) for i in range(20))
        with pytest.raises(ProblemError) as caught:
            solve(Problem(many, (group("g", price=1e6, max_size=10**9),)))
        assert len(caught.value.problems) == 2

    def test_a_limit_may_name_groups_that_are_not_part_of_the_problem(self) -> None:
        limit = Limit("pool", {"nodes": 1}, node_groups=frozenset({"g", "elsewhere"}))
        assert deltas(plan_of(pods("a", 12), groups=(group("g"),), limits=(limit,))) == {"g": 1}

    def test_a_thousand_million_pods_are_planned_like_a_thousand(self) -> None:
        plan = plan_of(pods("a", 10**9), groups=(group("g", max_size=10**9),))
        assert deltas(plan) == {"g": 250_000_000}
        assert plan.certificate.status is Status.OPTIMAL


def test_an_answer_within_no_budget_at_all_is_still_whole_and_honest() -> None:
    many = tuple(pods(f"p{i}", 7 + i, spec(100 + 37 * i, i % 5)) for i in range(40))
    plan = solve(Problem(many, tuple(group(f"g{i}", 8000 + 900 * i, 1 + i / 3) for i in range(12))), Budget(0.0))
    assert sum(served(plan).values()) == sum(p.count for p in many)
    assert 0 < plan.certificate.lower_bound_usd_per_hour <= plan.certificate.cost_usd_per_hour


def test_nodes_that_stand_are_told_apart_by_name() -> None:
    by_name = spec(affinity=wants("zone", "Exists"))
    plan = plan_of(
        pods("a", 2, by_name),
        groups=(),
        nodes=(Node("n1", {"cpu": 4000, "pods": 9}, {"zone": "a"}), Node("n2", {"cpu": 4000, "pods": 9})),
    )
    assert [p.node for p in plan.existing] == ["n1"]


@pytest.mark.parametrize(
    ("allowed", "before", "opened", "disruption"),
    [
        pytest.param(0, {}, {}, 0, id="no-minimum-met"),
        pytest.param(0, {"a": 1, "b": 2}, {}, 3, id="none-met-though-opened-before"),
        pytest.param(1, {}, {"a": 1}, 1, id="one-of-two"),
        pytest.param(1, {"b": 2}, {"a": 1}, 3, id="the-other-one-before"),
        pytest.param(2, {"b": 2}, {"a": 1, "b": 1}, 2, id="both"),
    ],
)
def test_disruption_is_counted_per_group_where_limits_leave_minimum_sizes_unmet(
    allowed: int, before: dict[str, int], opened: dict[str, int], disruption: int
) -> None:
    """Groups of one kind, whose nodes are chosen together."""
    groups = tuple(group(name, min_size=1, max_size=3) for name in "ab")
    limits = (Limit("cpu", {"cpu": 4000 * allowed}),)
    plan = solve(Problem((), groups, limits=limits, previous=previous(before)), Budget(deterministic_seconds=5))
    assert {each.node_group: each.delta for each in plan.increments} == opened
    assert plan.objective[-1].stage.goal is Goal.CHANGE
    assert plan.objective[-1].value == disruption


def test_of_equal_gangs_the_oldest_are_served() -> None:
    sets = tuple(
        pods(f"gang-{age}", 8, spec(1000 + age, 1), gang=f"g{age}", waiting_seconds=60 * age) for age in range(10)
    )
    plan = solve(Problem(sets, (group("g", 4100, max_size=10),)), Budget(deterministic_seconds=1))
    left = {cls.gang for cls in plan.pod_classes if cls.index in {each.pod_class for each in plan.unplaced}}
    assert left == {f"g{age}" for age in range(5)}


def test_under_a_limit_higher_priorities_are_served_whole() -> None:
    sets = tuple(
        pods(f"set-{number:02}", 20, spec(500 + 130 * number, 1 + number % 7), priority=number % 3)
        for number in range(30)
    )
    groups = tuple(group(f"g{cores}", 1000 * cores, cores / 20) for cores in (4, 6, 8, 12, 16, 24, 32))
    first = sum(dict(each.spec.requests)["cpu"] * each.count for each in sets if each.priority == 2)
    limits = (Limit("cluster", {"cpu": first * 5 // 4}),)
    plan = solve(Problem(sets, groups, limits=limits), Budget(deterministic_seconds=1))
    assert plan.unplaced
    assert all(plan.pod_classes[each.pod_class].priority < 2 for each in plan.unplaced)
