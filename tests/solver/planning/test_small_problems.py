"""A few dozen pods of ten classes: plans are (nearly) optimal and proven to be. Optima are those of VPSolver's arc-flow
model, by SCIP (`bench.vpsolver`)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, Status, solve
from solver.model import PODS

ALIKE = Problem(
    tuple(
        PodSet(f"item-{number}", PodSpec((("x/a", a), ("x/b", b), ("x/c", c))), count)
        for number, (a, b, c, count) in enumerate(
            [
                (7, 13, 14, 5),
                (15, 10, 7, 6),
                (14, 6, 3, 12),
                (4, 8, 10, 8),
                (12, 9, 6, 12),
                (15, 11, 1, 1),
                (15, 4, 4, 2),
                (8, 13, 6, 3),
                (3, 2, 3, 10),
                (8, 15, 7, 3),
            ]
        )
    ),
    tuple(
        NodeGroup(f"bin-{number}", {"x/a": a, "x/b": b, "x/c": c, PODS: 1000}, float(cost))
        for number, (a, b, c, cost) in enumerate(
            [(64, 24, 64, 152), (64, 48, 64, 196), (24, 64, 32, 128), (24, 32, 64, 129), (24, 24, 24, 88)]
        )
    ),
)
"""Three dimensions, as large as one another: 1,226 maximal patterns; the relaxation over them is 1,923.2."""


def _machines() -> Sequence[NodeGroup]:
    sizes = [(4, 8, 40), (8, 16, 84), (16, 32, 162), (4, 16, 52), (8, 32, 96), (16, 64, 195), (4, 32, 67)]
    sizes += [(8, 64, 128), (16, 128, 256)]
    plain = [NodeGroup(f"{c}x{m}", {"cpu": c, "memory": m, PODS: 1000}, float(cost)) for c, m, cost in sizes]
    gpus = [
        NodeGroup(f"gpu-{g}", {"cpu": 8 * g, "memory": 32 * g, "x/gpu": g, PODS: 1000}, float(cost))
        for g, cost in ((1, 163), (4, 632))
    ]
    return [*plain, *gpus]


MACHINES = Problem(
    tuple(
        PodSet(f"pods-{n}", PodSpec((("cpu", c), ("memory", m), *((("x/gpu", g),) if g else ()))), count)
        for n, (c, m, g, count) in enumerate(
            [(3, 11, 0, 14), (3, 3, 0, 12), (3, 7, 0, 2), (6, 7, 2, 18), (2, 6, 0, 17), (1, 5, 1, 3), (4, 6, 0, 6)]
        )
    ),
    tuple(_machines()),
)
"""Cores, GiB and GPUs: too many patterns to list, but a better plan than the first one can use 435 of them only."""


@pytest.mark.parametrize("workers", [1, 2])
def test_all_patterns_are_known_and_the_relaxation_of_every_row_bounds_the_cost(workers: int) -> None:
    certificate = solve(ALIKE, Budget(deterministic_seconds=1.0, workers=workers)).certificate
    assert 1956 <= certificate.cost_usd_per_hour <= 1.005 * 1956
    assert 1924 <= certificate.lower_bound_usd_per_hour <= 1956


NO_PATTERNS = "solver.planning.search._MOST_COLUMNS"
NO_WHOLE_NODES = "solver.planning.search.MOST_ENTRIES"


@pytest.mark.parametrize("without", [(NO_PATTERNS,), (NO_WHOLE_NODES,)])
def test_a_plan_is_proven_by_whole_nodes_or_by_the_patterns_that_a_better_one_could_use(
    monkeypatch: pytest.MonkeyPatch, without: Sequence[str]
) -> None:
    for limit in without:
        monkeypatch.setattr(limit, 0)
    certificate = solve(MACHINES, Budget(deterministic_seconds=4.0)).certificate
    assert (certificate.status, certificate.cost_usd_per_hour) == (Status.OPTIMAL, 6177)


def test_the_relaxation_over_columns_alone_proves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (NO_PATTERNS, NO_WHOLE_NODES):
        monkeypatch.setattr(limit, 0)
    certificate = solve(MACHINES, Budget(deterministic_seconds=4.0)).certificate
    assert 6162 <= certificate.lower_bound_usd_per_hour < 6177 == certificate.cost_usd_per_hour


def test_half_a_node_cannot_be_opened() -> None:
    """Five pods of two GPUs, of which a node holds two, and small ones that find room beside them."""
    large = PodSet("large", PodSpec((("cpu", 3), ("x/gpu", 2))), 5)
    small = [PodSet(f"small-{n}", PodSpec((("cpu", n),)), 2) for n in range(1, 9)]
    groups = [NodeGroup("gpu", {"cpu": 48, "x/gpu": 4, PODS: 110}, 3.912)]
    groups += [NodeGroup(f"plain-{cpus}", {"cpu": cpus, PODS: 110}, 0.05 * cpus + 0.001) for cpus in (2, 4, 8, 16, 32)]
    certificate = solve(Problem((large, *small), tuple(groups)), Budget(deterministic_seconds=2.0)).certificate
    assert certificate.status is Status.OPTIMAL
    assert certificate.cost_usd_per_hour == pytest.approx(3 * 3.912)
