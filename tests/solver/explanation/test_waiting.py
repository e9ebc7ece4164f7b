"""Whatever waits is told why, and what would serve it; each way that is said serves it, by the independent checker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import Budget, Limit, Problem, solve
from solver.explanation.explain import explain
from solver.explanation.kinds import apply
from solver.explanation.question import claims, question
from solver.explanation.waiting import core_of, ways_of, why_waiting, with_ways
from solver.model import NodeGroup, Operator, PossibleGroups, Requirement
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.device_strategies import device_problems
from tests.support.solver.problems import group, pods, spec
from tests.support.solver.strategies import constrained_problems, problems, with_volumes

BUDGET = Budget(deterministic_seconds=10.0)


@st.composite
def with_possible_groups(draw: st.DrawFn, problem: Problem) -> Problem:
    """Some of the groups are not there, and could be."""
    here: list[NodeGroup] = []
    away: list[NodeGroup] = []
    for each in problem.node_groups:
        (away if draw(st.booleans()) else here).append(each)
    possible = tuple(PossibleGroups(g.id, f"{g.id} is not there", f"have {g.id}", (g,)) for g in away)
    return replace(problem, node_groups=tuple(here), possible=possible, previous=None)


@given(st.one_of(problems(), constrained_problems(), device_problems()), st.data())
@examples(40)
def test_whatever_waits_has_a_cause_and_every_way_serves_it(drawn: Problem, data: st.DataObject) -> None:
    problem = data.draw(with_possible_groups(data.draw(with_volumes(drawn))))
    plan = solve(problem, BUDGET)
    explained = explain(problem, plan, BUDGET).unserved
    waiting = with_ways({**why_waiting(plan), **why_waiting(plan, placeholders=True)}, explained)
    assert waiting.keys() == {each.pod_class for each in plan.unplaced}
    assert all(each.reasons and all(each.reasons) and each.ways and all(each.ways) for each in waiting.values())
    asked = {claim.name: question(problem, plan, claim).problem for claim in claims(plan)}
    for why in explained:
        assert core_of(why)
        assert ways_of(why)
        for way in why.ways:
            changed = apply(asked[why.name], way.changes)
            served = solve(changed, BUDGET)
            note(f"{why.name}: {ways_of(why)}")
            assert not served.unplaced
            assert not list(faults_of(changed, served))


def test_what_is_not_there_is_no_part_of_any_plan() -> None:
    away = PossibleGroups("away", "it is not there", "have it", (group("away", cpu=4000),))
    problem = Problem((pods("web", 3, spec(2000)),), (group("here", max_size=1),))
    with_it = replace(problem, possible=(away,))
    assert solve(with_it, BUDGET).increments == solve(problem, BUDGET).increments
    (left,) = why_waiting(solve(with_it, BUDGET)).values()
    assert left.count == 1
    assert left.reasons == ("it is not there (node group away)", "node group here is at its maximum size 1")


def test_groups_that_come_count_against_the_limits_that_name_them() -> None:
    """A limit that counts them by name is met by them, too, and is raised with them where it has to be."""
    away = PossibleGroups("away", "it is not there", "have it", (group("away"),), ("pool",))
    limit = Limit("pool", {"nodes": 1}, node_groups=frozenset())
    problem = Problem((pods("web", 2, spec(4000)),), (), limits=(limit,), possible=(away,))
    (why,) = explain(problem, solve(problem, BUDGET), BUDGET).unserved
    assert ways_of(why) == ("have it, and raise the nodes of limit pool from 1 to 2",)


@pytest.mark.parametrize(
    ("labels", "way"),
    [
        ({"pool": "spot"}, "have it, and raise the nodes of limit quota from 1 to 2"),
        ({"pool": "other"}, "have it"),
    ],
)
def test_groups_that_come_count_against_the_limits_that_select_their_labels(labels: dict[str, str], way: str) -> None:
    away = PossibleGroups("away", "it is not there", "have it", (group("away", labels=labels),))
    spot = (Requirement("pool", Operator.IN, ("spot",)),)
    limit = Limit("quota", {"nodes": 1}, node_groups=frozenset(), selector=spot)
    problem = Problem((pods("web", 2, spec(4000)),), (), limits=(limit,), possible=(away,))
    (why,) = explain(problem, solve(problem, BUDGET), BUDGET).unserved
    assert ways_of(why) == (way,)
