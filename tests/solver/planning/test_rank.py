"""Which option to take first: the one after which the rest can still be finished best."""

from __future__ import annotations

import pytest

from solver import Budget, Limit, NodeGroup, Problem, ProblemError
from solver.columns.pool import RelaxedMaster
from solver.model.capacity import limits_broken
from solver.model.plan import ScaleUpCandidate, Score
from solver.planning.rank import rank
from tests.support.solver.device_examples import GPUS, claim
from tests.support.solver.problems import group, pods, spec

BUDGET = Budget(deterministic_seconds=10.0)
SMALL = pods("small", 8, spec(1000))
BIG = pods("big", 2, spec(6000))


def best(groups: tuple[NodeGroup, ...], *candidates: ScaleUpCandidate, limits: tuple[Limit, ...] = ()) -> Score:
    return rank(Problem((SMALL, BIG), groups, limits=limits), candidates, BUDGET)[0]


def test_the_cheapest_whole_rather_than_the_cheapest_step() -> None:
    # Taking two small nodes first is cheap, but the big pods then leave room that the small ones would have filled.
    groups = (group("small", 4000, 1.0), group("large", 10_000, 2.0))
    chosen = best(groups, ScaleUpCandidate("small", 2, {0: 8}), ScaleUpCandidate("large", 2, {0: 8, 1: 2}))
    assert chosen.candidate.node_group == "large"
    assert (chosen.cost_usd_per_hour, chosen.rest_cost_usd_per_hour) == (4.0, 0.0)


def test_weights_are_strict() -> None:
    for weights, expected in (((100, 1), "small"), ((1, 100), "large")):
        groups = (group("small", 8000, 9.0, weight=weights[0]), group("large", 8000, 1.0, weight=weights[1]))
        chosen = best(groups, ScaleUpCandidate("small", 3, {0: 8, 1: 2}), ScaleUpCandidate("large", 3, {0: 8, 1: 2}))
        assert chosen.candidate.node_group == expected


def test_an_option_that_makes_pods_unservable_comes_last() -> None:
    groups = (group("small", 4000, 0.1), group("large", 10_000, 5.0))
    limits = (Limit("cluster", {"nodes": 3}),)
    chosen = best(
        groups, ScaleUpCandidate("small", 2, {0: 8}), ScaleUpCandidate("large", 2, {0: 8, 1: 2}), limits=limits
    )
    assert chosen.candidate.node_group == "large"
    assert chosen.unserved == 0


def test_options_are_compared_with_what_claims_leave_to_do() -> None:
    """Both serve the pods of the option; only one leaves no more nodes to open for the pods that claim devices."""
    plain, claiming = pods("plain", 4, spec(1000)), pods("claiming", 2, spec(1000, claims=claim(count=4)))
    groups = (group("bare", 8000, 1.0), group("gpu", 8000, 1.5, devices=GPUS))
    options = (ScaleUpCandidate("bare", 1, {0: 4}), ScaleUpCandidate("gpu", 1, {0: 4, 1: 2}))
    first, second = rank(Problem((plain, claiming), groups), options, BUDGET)
    assert (first.candidate.node_group, first.cost_usd_per_hour + first.rest_cost_usd_per_hour) == ("gpu", 1.5)
    assert second.cost_usd_per_hour + second.rest_cost_usd_per_hour == 2.5


def test_placeholders_rank_below_pods() -> None:
    slack = pods("slack", 4, spec(4000), placeholder=True)
    groups = (group("g", 4000, 1.0, max_size=2), group("h", 1000, 9.0))
    problem = Problem((pods("real", 8), slack), groups)
    scores = rank(
        problem,
        (ScaleUpCandidate("g", 2, {1: 2}), ScaleUpCandidate("g", 2, {0: 8}), ScaleUpCandidate("h", 8, {0: 8})),
        BUDGET,
    )
    assert scores[0].candidate == ScaleUpCandidate("h", 8, {0: 8})  # all pods, and then the slack has room too
    assert scores[-1].vector > scores[0].vector


def test_ties_fall_to_more_pods_then_to_the_id() -> None:
    groups = (group("b", 8000, 1.0), group("a", 8000, 1.0))
    assert best(groups, ScaleUpCandidate("b", 1, {0: 8}), ScaleUpCandidate("a", 1, {0: 8})).candidate.node_group == "a"


@pytest.mark.parametrize("classes", [60, 250, pytest.param(1000, marks=pytest.mark.long("the same at length"))])
def test_many_classes_are_compared_by_relaxed_plans(classes: int) -> None:
    many = tuple(pods(f"p{i:04}", 3, spec(500 + 7 * i, i % 30)) for i in range(classes))
    groups = (group("dear", 16_000, 4.0), group("cheap", 16_000, 2.0), group("high", 16_000, 9.0, weight=5))
    half = dict.fromkeys(range(classes // 2), 3)
    scores = rank(Problem(many, groups[:2]), [ScaleUpCandidate(g.id, 90, half) for g in groups[:2]], BUDGET)
    assert [score.candidate.node_group for score in scores] == ["cheap", "dear"]
    assert scores[0].rest_cost_usd_per_hour == pytest.approx(scores[1].rest_cost_usd_per_hour)
    scores = rank(Problem(many, groups), [ScaleUpCandidate(g.id, 90, half) for g in groups], BUDGET)
    assert [score.candidate.node_group for score in scores] == ["high", "cheap", "dear"]


def test_no_time_to_compare_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelaxedMaster, "solve", lambda *_: None)  # as when the clock runs out in it
    many = tuple(pods(f"p{i}", 3, spec(500 + 7 * i, i % 30)) for i in range(100))
    groups = tuple(group(f"g{i}", 16_000 + i, 2.0 + i) for i in range(8))
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        rank(Problem(many, groups), [ScaleUpCandidate("g0", 90, {0: 3})], Budget(seconds=0.1))


def test_minimum_sizes_of_other_groups_still_count() -> None:
    groups = (group("a", 4000, 1.0, min_size=1), group("b", 4000, 1.0))  # alike, but for who is below its minimum
    of_a, of_b = sorted(
        rank(Problem((SMALL,), groups), (ScaleUpCandidate("a", 2, {0: 8}), ScaleUpCandidate("b", 2, {0: 8})), BUDGET),
        key=lambda score: score.candidate.node_group,
    )
    assert (of_a.rest_cost_usd_per_hour, of_b.rest_cost_usd_per_hour) == (0.0, 1.0)


def test_candidates_that_cannot_be_meant_are_all_named() -> None:
    with pytest.raises(ProblemError) as caught:
        best(
            (group("g"),), ScaleUpCandidate("h", 1, {}), ScaleUpCandidate("g", 0, {}), ScaleUpCandidate("g", 1, {0: 9})
        )
    assert len(caught.value.problems) == 3


def test_limits_that_an_option_would_break_are_named() -> None:
    limits = (Limit("cluster", {"nodes": 3}, {"nodes": 2}), Limit("other", {"cpu": 1}, node_groups=frozenset({"x"})))
    assert limits_broken(limits, group("g"), 1) == ()
    assert limits_broken(limits, group("g"), 2) == ("cluster: 4 nodes, at most 3 allowed",)
