"""The benchmark's problems are what they say, its baseline is a plan that could be made, and its table is computed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench.baselines.first_fit import first_fit_decreasing
from bench.cases import CASES, Case, Run, Section
from bench.karpenter_mix import ZONE, karpenter_mix
from bench.measure import Result, measure
from bench.planted import plant
from bench.table import growth, heading, line, machine, write_markdown
from bench.workloads import (
    GPU,
    ca_binpacking,
    catalogue_groups,
    large_cluster,
    one_percent_changed,
    openb,
    pod_list,
    pod_sets,
    with_tainted_gpus,
)
from solver import Budget, Problem, solve
from solver.model import HOSTNAME, Node
from solver.model.validation import validate
from tests.support.solver.problems import GIB, TAINT, TOLERATION, group, node, pods, spec

SMALL = Budget(deterministic_seconds=0.1)


def total(problem: Problem) -> int:
    return sum(p.count for p in problem.pod_sets)


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_built_and_meant(name: str) -> None:
    case = CASES[name]
    problem = case.build()
    validate(problem)
    assert problem == case.build()
    assert case.runs
    if case.changed:
        validate(case.changed(problem))


@pytest.mark.parametrize(
    ("column", "count", "classes"),
    [("all", 8152, 112), ("latency_sensitive", 4647, 94), ("best_effort", 3398, 16), ("every_7th", 1165, 71)],
)
def test_the_real_pods_are_counted_as_the_data_s_readme_says(column: str, count: int, classes: int) -> None:
    problem = openb(column)
    assert (total(problem), len({p.spec for p in problem.pod_sets})) == (count, classes)


def test_a_list_of_pods_is_counted_by_shape(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu\na,1000,2048,0\nb,1000,2048,0\nc,1000,2048,1\n")
    problem = pod_list(path)
    assert [(p.name, p.count) for p in problem.pod_sets] == [("some-0000", 2), ("some-0001", 1)]
    assert dict(problem.pod_sets[1].spec.requests) == {"cpu": 1000, "memory": 2 * GIB, GPU: 1}


def test_tainted_gpus_are_for_pods_that_ask_for_them() -> None:
    problem = with_tainted_gpus(openb("every_7th"))
    assert all(bool(g.taints) == bool(g.allocatable.get(GPU)) for g in problem.node_groups)
    assert all(bool(p.spec.tolerations) == (GPU in dict(p.spec.requests)) for p in problem.pod_sets)


def test_the_mix_has_a_fifth_of_each_kind_and_the_rest_generic() -> None:
    problem = karpenter_mix(503, types=3)
    kinds: Counter[str] = Counter()
    for pod_set in problem.pod_sets:
        of = pod_set.spec
        spread = [f"spread {term.topology_key}" for term in of.topology_spread]
        together = [f"affinity {term.topology_key}" for term in of.pod_affinity]
        apart = [f"anti-affinity {term.topology_key}" for term in of.pod_anti_affinity]
        kinds[" ".join([*spread, *together, *apart])] += pod_set.count
    assert kinds == {
        "": 103,
        f"spread {ZONE}": 100,
        f"spread {HOSTNAME}": 100,
        f"affinity {ZONE}": 100,
        f"anti-affinity {HOSTNAME}": 100,
    }
    assert len(problem.node_groups) == 15
    assert {g.labels[ZONE] for g in problem.node_groups} == {"test-zone-1", "test-zone-2", "test-zone-3"}


def test_a_hundredth_of_the_pods_changes() -> None:
    before = openb()
    after = one_percent_changed(before)
    old, new = ({p.spec: p.count for p in problem.pod_sets} for problem in (before, after))
    changed = sum(abs(old.get(s, 0) - new.get(s, 0)) for s in {*old, *new})
    assert total(after) == total(before)
    assert 0.005 * total(before) < changed <= 0.01 * total(before)
    assert any(s not in old for s in new)


def test_standing_nodes_have_something_left_and_are_not_alike() -> None:
    nodes = large_cluster(classes=50, pods=500, nodes=100).nodes
    assert len(nodes) == 100
    assert len({tuple(sorted(n.free.items())) for n in nodes}) > 90
    assert all(amount >= 0 for n in nodes for amount in n.free.values())


COMPARED = {
    "openb": openb("every_7th"),
    "tainted": CASES["openb-1165-pods-12-groups"].build(),
    "synthetic": Problem(pod_sets(20, 300, 9), catalogue_groups()),
    "standing nodes": large_cluster(classes=20, pods=300, nodes=20),
    "planted": plant(3, 2, 4, 20, 3).problem,
    "one group": ca_binpacking()[0],
}


@pytest.mark.parametrize("problem", COMPARED.values(), ids=COMPARED)
def test_the_baseline_costs_no_less_than_what_is_proven(problem: Problem) -> None:
    packing = first_fit_decreasing(problem)
    plan = solve(problem, SMALL)
    assert packing.unplaced == sum(left.count for left in plan.unplaced) == 0
    assert packing.cost_usd_per_hour >= plan.certificate.lower_bound_usd_per_hour - 1e-6


def test_the_baseline_fills_what_stands_before_it_opens_nodes() -> None:
    asked = (pods("a", 5, spec(2000)),)
    standing: tuple[Node, ...] = (node("n1", 5000), node("n2", 3000))
    assert first_fit_decreasing(Problem(asked, (group("g", 4000, 1.0),), standing)).cost_usd_per_hour == 1.0
    assert first_fit_decreasing(Problem(asked, (group("g", 4000, 1.0),))).cost_usd_per_hour == 3.0


def test_the_baseline_fills_open_nodes_in_their_order() -> None:
    asked = (pods("large", 5, spec(3000)), pods("small", 7, spec(1000)))
    # Five nodes of four cores with a large pod each hold five small ones; the last two share a sixth.
    assert first_fit_decreasing(Problem(asked, (group("g", 4000, 1.0),))).cost_usd_per_hour == 6.0


def test_the_baseline_keeps_to_taints_and_maximum_sizes() -> None:
    cheap, dear = group("cheap", 4000, 1.0, max_size=2), group("dear", 4000, 3.0)
    asked = pods("a", 12, spec(1000))
    assert first_fit_decreasing(Problem((asked,), (cheap, dear))).cost_usd_per_hour == 5.0
    assert first_fit_decreasing(Problem((asked,), (cheap,))).unplaced == 4
    tainted = replace(cheap, taints=(TAINT,))
    assert first_fit_decreasing(Problem((asked,), (tainted, dear))).cost_usd_per_hour == 9.0
    tolerant = replace(asked, spec=spec(1000, tolerations=(TOLERATION,)))
    assert first_fit_decreasing(Problem((tolerant,), (tainted, dear))).cost_usd_per_hour == 5.0


def row(**changes: object) -> Result:
    case = Case("small", Section.GOALS, lambda: Problem((pods("a", 5),), (group("g"),)), (Run(0.5, 0.1),))
    (result,) = measure(case, case.runs[0])
    return replace(result, **changes)  # type: ignore[arg-type]


def test_a_row_says_what_the_plan_says() -> None:
    result = row()
    assert (result.pods, result.classes, result.groups, result.unplaced) == (5, 1, 1, 0)
    assert (result.cost_usd_per_hour, result.gap, result.first_fit_ratio) == (2.0, 0.0, 1.0)
    assert Result(**json.loads(json.dumps(asdict(result)))) == result


def test_a_goal_is_met_by_gap_time_and_memory_together() -> None:
    good = {"budget_seconds": 1.0, "seconds": 1.1, "gap": 0.1, "goal": 0.1, "peak_mib": 1023}
    assert row(**good).met is True
    for bad in ({"seconds": 1.11}, {"gap": 0.101}, {"peak_mib": 1024}):
        assert row(**{**good, **bad}).met is False
    assert row(goal=None).met is None


def test_a_warm_start_is_compared_with_the_cold_one() -> None:
    case = replace(CASES["openb-default-warm"], build=lambda: openb("every_7th"), runs=(Run(0.5),))
    cold, warm = measure(case, case.runs[0])
    assert warm.goal == cold.gap
    assert warm.budget_seconds < cold.budget_seconds / 5
    assert cold.met is None


def test_the_table_is_written_between_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- generated: begin -->\nold\n<!-- generated: end -->\nafter\n")
    rows = [
        row(case=f"pods-{n}", section=Section.PODS, pods=n, seconds=s, gap=0.05) for n, s in ((10, 1.0), (1000, 2.0))
    ]
    rows.append(row(case="planted", section=Section.PLANTED, pods=1000))
    write_markdown(path, rows, machine())
    text = path.read_text()
    assert text.startswith("before\n<!-- generated: begin -->\nMachine: ")
    assert text.endswith("<!-- generated: end -->\nafter\n")
    assert "old" not in text
    assert "| planted | 1,000 |" in text
    assert "| pods-1000 |" not in text
    assert "| met |" not in text
    assert "From 10 to 1,000 pods (x 100)" in text
    assert "from 1.00 s to 2.00 s (x 2.0)" in text


def test_a_line_is_as_wide_as_its_heading() -> None:
    assert len(line(row())) == len(heading())
    assert list(growth([row()])) == []
