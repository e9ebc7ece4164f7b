"""Annealing that begins with a plan: it is read as it is, and what comes out is a plan that costs no more."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from bench.workloads import catalogue_groups, pod_sets
from solver import Budget, NodeGroup, Problem, solve
from solver.columns import pool as pools
from solver.columns.pool import Pool
from solver.integral import greedy
from solver.integral.annealing import Annealing, pays, polished
from solver.model import HostPort
from solver.model.budget import RunningBudget
from solver.planning.search import obliged_nodes
from solver.reduction.dominance import needed_kinds
from solver.reduction.reduce import reduce
from tests.support.examples import examples
from tests.support.solver.problems import gap_of, group, node, pods, spec


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Everything finds room; some nodes stand, some must be opened."""
    sets = [pods(f"p{i}", draw(st.integers(1, 9)), spec(100 * (3 + 7 * i))) for i in range(draw(st.integers(2, 5)))]
    groups: list[NodeGroup] = [
        group(f"g{size}", 1000 * size, usd, max_size=200, min_size=draw(st.integers(0, 2)))
        for size, usd in ((4, 0.2), (7, 0.33))
    ]
    nodes = [node(f"n{i}", 1000 * draw(st.integers(1, 4))) for i in range(draw(st.integers(0, 3)))]
    return Problem(tuple(sets), tuple(groups), tuple(nodes))


UPHILL = Problem(
    (pods("p0", 7, spec(300)), pods("p1", 8, spec(1000))),
    (group("g4", 4000, 0.2, max_size=200, min_size=1), group("g7", 7000, 0.33, max_size=200)),
    (node("n0", 1000),),
)
"""Of which all tries end with a plan that costs more."""


@given(problems())
@example(UPHILL)
@examples(60)
def test_a_plan_is_read_as_it_is_and_becomes_no_dearer(problem: Problem) -> None:
    reduced = reduce(problem)
    pool, weights = Pool(reduced), pools.weighting(reduced)
    pool.add(obliged_nodes(reduced))
    pools.alone(pool, needed_kinds(reduced), weights)
    start = greedy.select(pool, weights, weights.node_cost.max() * reduced.requests[:, 0] / 4000)
    assume(not any(start.unserved.values()))
    nodes = {pattern: count for pattern, count in zip(pool.patterns, start.nodes, strict=True) if count}
    units = {(demand.index, demand.row): demand.count for demand in reduced.live if demand.count}
    annealing = Annealing(reduced, weights.node_cost, units)
    annealing.place_as(nodes)
    opened = start.opened(pool)
    held = dict.fromkeys(units, 0) | dict(annealing.units())
    assert held == units
    kinds = [(kind.index, kind) for kind in reduced.new_kinds]
    used = sum(max(kind.least, opened[index]) * kind.price_micros for index, kind in kinds)
    assert annealing.cost_micros <= used  # nodes for which nothing is left are not opened
    better = polished(pool, start, weights, RunningBudget(Budget(deterministic_seconds=0.02)), 1.0, 0.0)
    cost = [k.price_micros * max(k.least, better.opened(pool)[i]) for i, k in kinds]
    assert sum(cost) <= annealing.cost_micros
    for pattern, count in zip(pool.patterns, better.nodes, strict=True):
        assert (
            count == 0
            or sum(n * reduced.requests[row, 0] for row, n in pattern.pods) <= (reduced.kinds[pattern.kind].free[0])
        )


def test_few_pods_in_many_classes_are_planned_to_a_percent() -> None:
    """Without annealing 2.3 % are left."""
    problem = Problem(pod_sets(60, 300, 13), catalogue_groups(300))
    assert pays(reduce(problem), 0.1)
    assert gap_of(solve(problem, Budget(deterministic_seconds=3.0))) < 0.012


def test_pods_with_rules_are_not_for_it() -> None:
    with_ports, without = spec(100, host_ports=(HostPort(80),)), spec(100)
    assert pays(reduce(Problem((pods("a", 4, without),), (group("g"),))), 1.0)
    assert not pays(reduce(Problem((pods("a", 4, with_ports),), (group("g"),))), 1.0)


def test_columns_repeat_where_classes_have_many_pods() -> None:
    """There, time is better spent on columns and their bound (bench.planner: openb-default in 60 s)."""
    few, many = (Problem((pods("a", count, spec(300)),), (group("g"),)) for count in (16, 17))
    assert pays(reduce(few), 100.0)
    assert not pays(reduce(many), 100.0)
