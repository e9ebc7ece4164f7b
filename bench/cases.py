"""The benchmark's cases: which problem, how long to plan, what to reach. Problems are built when asked for; the same
name gives the same problem on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bench.karpenter_mix import hostname_affinity, karpenter_mix
from bench.planted import plant
from bench.workloads import (
    ZONE,
    ZONES,
    beside_nodes,
    ca_binpacking,
    catalogue_groups,
    in_zones,
    large_cluster,
    one_percent_changed,
    openb,
    pod_sets,
    spreading,
    with_tainted_gpus,
)
from solver import Problem
from solver.model import HOSTNAME
from tests.support.recordings import node_groups


class Section(StrEnum):
    """What a case is there to show."""

    GOALS = "goals"
    PEERS = "the peers' own benchmarks"
    PLANTED = "planted optima"
    CONSTRAINED = "real pods beside constraints and nodes"
    WARM = "warm start"
    CLASSES = "growth with classes"
    PODS = "growth with pods"


@dataclass(frozen=True)
class Run:
    """One plan to make."""

    budget_seconds: float
    goal: float | None = None
    """The gap to prove within the budget, a fraction."""


@dataclass(frozen=True)
class Case:
    """`runs` of one problem. With `changed` it is a warm start: the changed problem is planned from the plan of the
    first. Growing cases give their budgets in ascending order and stop at the first that reaches the goal: how long a
    given quality takes."""

    name: str
    section: Section
    build: Callable[[], Problem]
    runs: tuple[Run, ...]
    changed: Callable[[Problem], Problem] | None = None
    optimum_usd_per_hour: Callable[[], float] | None = None
    """Where it is known."""


def _all(cases: list[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


_HALF_PERCENT = (Run(1.0, 0.03), Run(5.0, 0.005))
_GROWING = tuple(Run(2.0**exponent / 8, 0.01) for exponent in range(8))
_PLANTED_NODES = 4000


def _planted(dimensions: int) -> Case:
    def build() -> Problem:
        return plant(dimensions, 12, 30, _PLANTED_NODES, dimensions).problem

    def optimum() -> float:
        return plant(dimensions, 12, 30, _PLANTED_NODES, dimensions).optimum_usd_per_hour

    return Case(f"planted-{dimensions:02}d", Section.PLANTED, build, (Run(5.0, 0.005),), optimum_usd_per_hour=optimum)


def _mix(pods: int, budget_seconds: float) -> Case:
    return Case(f"karpenter-mix-{pods}", Section.PEERS, lambda: karpenter_mix(pods), (Run(budget_seconds, 0.05),))


def _constrained(name: str, build: Callable[[], Problem], goal: float) -> Case:
    return Case(name, Section.CONSTRAINED, build, (Run(5.0, goal),))


def _many_classes(classes: int) -> Case:
    return Case(
        f"classes-{classes:04}",
        Section.CLASSES,
        lambda: Problem(pod_sets(classes, 100_000, 4), catalogue_groups(700)),
        _GROWING,
    )


def _many_pods(exponent: int) -> Case:
    return Case(
        f"pods-1e{exponent}",
        Section.PODS,
        lambda: Problem(pod_sets(100, 10**exponent, 5), catalogue_groups(700)),
        _GROWING,
    )


CASES = _all(
    [
        Case("openb-default", Section.GOALS, openb, (Run(1.0, 0.03), Run(5.0, 0.005), Run(60.0, 0.002))),
        Case("openb-latency-sensitive", Section.GOALS, lambda: openb("latency_sensitive"), _HALF_PERCENT),
        Case("openb-best-effort", Section.GOALS, lambda: openb("best_effort"), _HALF_PERCENT),
        Case(
            "openb-1165-pods-12-groups",
            Section.GOALS,
            lambda: with_tainted_gpus(openb("every_7th", node_groups("openb"))),
            _HALF_PERCENT,
        ),
        Case(
            "32-sets-16384-pods",
            Section.GOALS,
            lambda: Problem(pod_sets(32, 16_384, 1), catalogue_groups(700)),
            (Run(1.0, 0.005),),
        ),
        Case("3000-classes-150000-pods", Section.GOALS, large_cluster, (Run(2.0, 0.02), Run(10.0, 0.01))),
        Case(
            "one-class-51000-pods",
            Section.GOALS,
            lambda: Problem(pod_sets(1, 51_000, 3), catalogue_groups(100)),
            (Run(0.1, 0.005),),
        ),
        Case(
            "ca-binpacking-51000-pods",
            Section.PEERS,
            lambda: ca_binpacking()[0],
            (Run(0.1, 0.0),),
            optimum_usd_per_hour=lambda: ca_binpacking()[1],
        ),
        _mix(500, 1.0),
        _mix(2000, 2.0),
        _mix(5000, 5.0),
        _mix(20_000, 10.0),
        Case("hostname-affinity-600", Section.PEERS, lambda: hostname_affinity(600, 7, generic=600), (Run(5.0, 0.05),)),
        Case(
            "hostname-affinity-2000",
            Section.PEERS,
            lambda: hostname_affinity(2000, 100, generic=2000),
            (Run(10.0, 0.05),),
        ),
        _constrained("openb-spread-over-zones", lambda: spreading(in_zones(openb()), ZONE, 1), 0.03),
        _constrained("openb-spread-in-preferred-zone", lambda: spreading(in_zones(openb()), ZONE, 5, ZONES[0]), 0.03),
        _constrained("openb-spread-over-hosts", lambda: spreading(openb(), HOSTNAME, 2), 0.01),
        _constrained("openb-beside-1000-nodes", lambda: beside_nodes(openb(), 1000), 0.02),
        *(_planted(dimensions) for dimensions in (2, 3, 4, 6, 8, 10, 12)),
        Case("openb-default-warm", Section.WARM, openb, (Run(5.0),), one_percent_changed),
        Case("3000-classes-warm", Section.WARM, large_cluster, (Run(10.0),), one_percent_changed),
        *(_many_classes(classes) for classes in (100, 300, 1000, 3000)),
        *(_many_pods(exponent) for exponent in range(3, 8)),
    ]
)
