"""The exact reference on cases whose optimum is known by hand: it judges the planner, so somebody has to judge it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import PodSet, PodSpec, Problem
from solver.model import (
    HOSTNAME,
    HostPort,
    PodAffinityTerm,
    PodSelector,
    PreferredPods,
    RunningPods,
    TopologySpread,
    WhenUnsatisfiable,
)
from tests.support.solver.problems import group, node, pods, previous, spec
from tests.support.solver.reference import best_objective

ALL = PodSelector()
ZONES = (group("a", 4000, 1.0, labels={"zone": "a"}), group("b", 4000, 2.0, labels={"zone": "b"}))
SPREAD = TopologySpread("zone", 1, ALL)
DOLLAR = 10**6


def _pods(count: int, **constraints: object) -> PodSet:
    return pods("p", count, replace(spec(1000), **constraints))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pod_set", "unserved", "given_up", "dollars", "nodes"),
    [
        pytest.param(_pods(4), 0, 0, 1, 1, id="nothing-in-the-way"),
        pytest.param(_pods(3, host_ports=(HostPort(80),)), 0, 0, 3, 3, id="ports"),
        pytest.param(_pods(3, pod_anti_affinity=(PodAffinityTerm(HOSTNAME, ALL),)), 0, 0, 3, 3, id="anti-host"),
        pytest.param(_pods(3, pod_anti_affinity=(PodAffinityTerm("zone", ALL),)), 1, 0, 3, 2, id="anti-zone"),
        pytest.param(_pods(6, pod_affinity=(PodAffinityTerm(HOSTNAME, ALL),)), 2, 0, 1, 1, id="affinity-host"),
        pytest.param(_pods(6, pod_affinity=(PodAffinityTerm("zone", ALL),)), 0, 0, 2, 2, id="affinity-zone"),
        pytest.param(_pods(1, pod_affinity=(PodAffinityTerm("zone", PodSelector(None)),)), 1, 0, 0, 0, id="nobody"),
        pytest.param(_pods(4, topology_spread=(SPREAD,)), 0, 0, 3, 2, id="spread"),
        pytest.param(_pods(4, topology_spread=(replace(SPREAD, min_domains=3),)), 2, 0, 3, 2, id="min-domains"),
        pytest.param(_pods(4, topology_spread=(replace(SPREAD, topology_key=HOSTNAME),)), 0, 0, 4, 4, id="spread-host"),
        pytest.param(
            _pods(3, topology_spread=(replace(SPREAD, when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY),)),
            *(0, 0, 3, 2),
            id="spread-anyway",
        ),
        pytest.param(
            _pods(3, preferred_pods=(PreferredPods(1, PodAffinityTerm("zone", ALL), anti=True),)),
            *(0, 2, 3, 2),
            id="one-of-three-keeps-away",
        ),
    ],
)
def test_one_constraint(pod_set: PodSet, unserved: int, given_up: int, dollars: int, nodes: int) -> None:
    assert best_objective(Problem((pod_set,), ZONES)) == (unserved, 0, given_up, dollars * DOLLAR, nodes)


def test_what_runs_already_counts() -> None:
    standing = node("n", 0, labels={"zone": "b"}, running=(RunningPods(PodSpec(), 3),))
    together = Problem((_pods(2, pod_affinity=(PodAffinityTerm("zone", ALL),)),), ZONES, (standing,))
    assert best_objective(together) == (0, 0, 0, 2 * DOLLAR, 1)
    apart = replace(together, pod_sets=(_pods(2, pod_anti_affinity=(PodAffinityTerm("zone", ALL),)),))
    assert best_objective(apart) == (1, 0, 0, DOLLAR, 1)
    spread = replace(together, pod_sets=(_pods(5, topology_spread=(SPREAD,)),))
    assert best_objective(spread) == (0, 0, 0, DOLLAR + 2 * DOLLAR, 2)


def test_disruption_only_breaks_ties() -> None:
    groups = (group("a"), group("b"), group("dear", price=9.0))
    before = previous({"b": 1, "dear": 1})
    assert best_objective(Problem((_pods(4),), groups, previous=before)) == (0, 0, 0, DOLLAR, 1, 1)
