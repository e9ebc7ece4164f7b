"""From recorded states to what would have been planned, and what the difference comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.episodes.ledger import ClosedEpisode
from cagrpc.controllers.episodes.log import kept
from cagrpc.controllers.episodes.model import (
    Better,
    Ended,
    Episode,
    GroupNodes,
    Outcome,
    RecordedState,
    Wave,
    sentences,
)
from cagrpc.controllers.episodes.planning import finished, outcome, plan_waves
from solver.model import Budget, Limit, Problem
from solver.verify.check import faults_of
from tests.controllers.episodes.told import BIG, SMALL, Told
from tests.support.examples import examples
from tests.support.solver.problems import node, pods, spec
from tests.support.solver.strategies import problems

BUDGET = Budget(deterministic_seconds=0.5)


def state(*waves: int, cpu: int = 1000, nodes: tuple[object, ...] = (), **other: object) -> RecordedState:
    cluster = Problem((), (BIG, SMALL), nodes, **other)  # type: ignore[arg-type]
    taken = (Wave(10.0 * at, (pods(f"wave-{at}", count, spec(cpu=cpu)),), 4.0) for at, count in enumerate(waves))
    return RecordedState(cluster, tuple(taken))


def planned(of: RecordedState, node_seconds: float | None = 40.0) -> Outcome:
    return outcome(of, plan_waves(of, BUDGET), node_seconds, ())


def test_pods_that_come_together_are_one_plan() -> None:
    found = planned(state(8))
    assert found.nodes == (GroupNodes("big", 1, 0.8),)
    assert found.unserved == 0


def test_a_wave_knows_nothing_of_those_after_it_and_uses_what_was_planned_before() -> None:
    found = planned(state(4, 4))  # 4 pods: two small nodes are cheaper than a big one, whatever comes later
    assert found.nodes == (GroupNodes("small", 4, 1.0),)
    assert planned(state(3, 1)).nodes == (GroupNodes("small", 2, 0.5),), "the second has room on the first's nodes"


def test_room_that_stands_is_the_first_waves_alone() -> None:
    standing = (node("n", 4000),)
    assert planned(state(2, nodes=standing)).nodes == ()
    assert planned(state(2, 2, nodes=standing)).nodes == (GroupNodes("small", 1, 0.25),)


def test_limits_and_sizes_hold_over_all_waves() -> None:
    most = Limit("all", {"nodes": 2})
    found = planned(state(2, 2, 2, limits=(most,)))
    assert (found.node_count, found.unserved) == (2, 2)
    of = state(8, 8, 8)
    sized = replace(of, cluster=replace(of.cluster, node_groups=(replace(BIG, max_size=2, target_size=0),)))
    found = planned(sized)
    assert (found.node_count, found.unserved) == (2, 8)


def test_pods_wait_as_long_as_nodes_took_where_that_is_known() -> None:
    found = planned(state(8), node_seconds=100.0)
    assert found.waited_seconds == pytest.approx(104.0, abs=5.0)
    assert planned(state(8), node_seconds=None).waited_seconds is None
    assert planned(state(2, nodes=(node("n", 4000),)), node_seconds=None).waited_seconds == pytest.approx(4.0, abs=5.0)


@given(st.data())
@examples(60)
def test_no_plan_has_what_could_not_be_had(data: st.DataObject) -> None:
    problem = replace(data.draw(problems()), previous=None)
    sets = [each for each in problem.pod_sets if not each.placeholder]
    cut = data.draw(st.integers(0, len(sets)))
    gangs = {each.gang for each in sets[:cut] if each.gang} & {each.gang for each in sets[cut:] if each.gang}
    sets = [replace(each, gang=None) if each.gang in gangs else each for each in sets]
    waves = tuple(Wave(float(at), tuple(of), 1.0) for at, of in enumerate((sets[:cut], sets[cut:])) if of)
    recorded = RecordedState(replace(problem, pod_sets=()), waves)
    found = plan_waves(recorded, BUDGET)
    standing = {each.name: each for each in problem.nodes}
    added: Counter[str] = Counter()
    for number, ((asked, plan), wave) in enumerate(zip(found, waves, strict=True)):
        assert list(faults_of(asked, plan)) == []
        assert asked.pod_sets == wave.pod_sets, "nothing is known of later pods"
        names = [each.name for each in asked.nodes]
        assert len(set(names)) == len(names)
        for each in asked.nodes:
            if each.name in standing:
                assert all(amount == 0 for amount in each.free.values()) or number == 0
        assert sum(each.name not in standing for each in asked.nodes) == sum(added.values())
        added.update({each.node_group: each.delta for each in plan.increments})
    for group in problem.node_groups:
        assert added[group.id] == 0 or group.target_size + added[group.id] <= group.max_size
    for limit in problem.limits:
        groups = {group.id: limit.counted(group) for group in problem.node_groups}
        for name, most in limit.maxima.items():
            taken = sum(count * groups[group].get(name, 0) for group, count in added.items())
            assert taken == 0 or limit.used.get(name, 0) + taken <= most
    comes_to = outcome(recorded, found, 10.0, ())
    prices = {group.id: group.price_usd_per_hour for group in problem.node_groups}
    assert comes_to.usd_per_hour == pytest.approx(sum(prices[name] * count for name, count in added.items()))
    again = kept(_episode(), recorded).recorded()
    assert again == recorded, "it can be planned again from what is kept"


# ---- the difference


def _episode(came: Outcome = Outcome((), 0, None), plan: Outcome | None = None, **other: object) -> Episode:  # noqa: B008
    return Episode("1", 1.0, 2.0, Ended.SERVED, 8, 1, came, plan, **other)  # type: ignore[arg-type]


def nodes(count: int, cost: float, *, unserved: int = 0, waited: float | None = None, weight: int = 0) -> Outcome:
    return Outcome((GroupNodes("g", count, cost, weight),), unserved, waited)


@pytest.mark.parametrize(
    ("came", "plan", "better", "saving"),
    [
        (nodes(4, 1.0), nodes(1, 0.8), Better.PLAN, 0.2),
        (nodes(4, 1.0), nodes(1, 1.5), Better.AUTOSCALER, -0.5),
        (nodes(4, 1.0), nodes(1, 1.0005), Better.EQUAL, -0.0005),
        (nodes(4, 5.0), nodes(1, 1.0, unserved=1), Better.AUTOSCALER, None),
        (nodes(4, 1.0, unserved=3), nodes(1, 5.0, unserved=1), Better.PLAN, None),
        (nodes(4, 1.0), None, Better.UNKNOWN, None),
    ],
)
def test_who_was_better_is_who_serves_more_and_then_who_costs_less(
    came: Outcome, plan: Outcome | None, better: Better, saving: float | None
) -> None:
    episode = _episode(came, plan)
    assert episode.better is better
    assert episode.saving_usd_per_hour == (None if saving is None else pytest.approx(saving))


def test_where_the_autoscaler_was_better_is_said_first() -> None:
    said = sentences(_episode(nodes(2, 1.0, waited=30.0), nodes(1, 0.5, waited=60.0), unknown=("the price of g",)))
    assert said == (
        "the autoscaler was better: pods waited 30 s on average, 60 s by the plan",
        "the plan would have been better: $1.00/h for the nodes that came, $0.50/h by the plan",
        "the plan would have been better: 2 nodes came, 1 by the plan",
        "the same: both left no pod without a node",
        "not known: the price of g",
    )


def test_costs_of_weights_stand_beside_each_other() -> None:
    said = sentences(_episode(nodes(2, 1.0, weight=10), nodes(1, 1.5, weight=50)))
    assert said[0].startswith("the autoscaler was better: $1.00/h")
    assert said[-1] == "by weight: 10: $1.00/h came, 50: $1.50/h by the plan"


def test_what_was_told_of_a_cluster_is_compared() -> None:
    told = Told()
    waiting = told.add(8)
    told.run(10)
    for _ in range(4):
        told.node(SMALL)
    told.bind(waiting)
    closed = told.end()
    episode = finished(closed, BUDGET)
    assert episode is not None
    assert episode.planned is not None
    assert (episode.came.usd_per_hour, episode.planned.usd_per_hour) == (1.0, 0.8)
    assert episode.least_usd_per_hour == pytest.approx(0.8)
    assert episode.saving_usd_per_hour == pytest.approx(0.2)


def test_where_neither_needs_a_node_there_is_no_episode() -> None:
    told = Told()
    told.node(BIG, free=8000)
    waiting = told.add(2)
    told.run(10)
    told.bind(waiting)
    assert finished(told.end(), BUDGET) is None


def test_where_the_autoscaler_needed_no_node_and_the_plan_did_that_is_said() -> None:
    told = Told()
    waiting = told.add(2)
    told.run(10)
    told.bind(waiting)  # room was made
    episode = finished(told.end(), BUDGET)
    assert episode is not None
    assert episode.better is Better.AUTOSCALER


def test_a_problem_that_cannot_be_planned_is_said() -> None:
    of = state(1)
    twice = replace(of, cluster=replace(of.cluster, node_groups=(SMALL, SMALL)))
    episode = finished(ClosedEpisode(_episode(nodes(1, 1.0)), twice, frozenset()), BUDGET)
    assert episode is not None
    assert episode.planned is None
    assert episode.unknown[0].startswith("what would have been planned: ")
