"""Which pods of a node are nominated at the same time, by what their spreads count there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver.model import PodSelector, PodSpec, TopologySpread, WhenUnsatisfiable
from solver.model.objects import Operator, Requirement
from solver.planning.own_way import nominated_together

X = PodSpec(namespace="ns", labels=(("app", "x"),))


def spread(max_skew: int, *, hard: bool = True, key: str = "zone") -> TopologySpread:
    selector = PodSelector((Requirement("app", Operator.IN, ("x",)),), ("ns",))
    when = WhenUnsatisfiable.DO_NOT_SCHEDULE if hard else WhenUnsatisfiable.SCHEDULE_ANYWAY
    return TopologySpread(key, max_skew, selector, when_unsatisfiable=when)


def pod(*spreads: TopologySpread, app: str = "x") -> PodSpec:
    return PodSpec(namespace="ns", labels=(("app", app),), topology_spread=spreads)


@pytest.mark.parametrize(
    ("specs", "nominated"),
    [
        pytest.param([X] * 3, "yes yes yes", id="no spread"),
        pytest.param([pod(spread(1))] * 3, "yes no no", id="one at a time"),
        pytest.param([pod(spread(2))] * 3, "yes yes no", id="as many as maxSkew"),
        pytest.param([pod(spread(1, hard=False))] * 3, "yes yes yes", id="ScheduleAnyway is a wish"),
        pytest.param([pod(spread(1)), X, pod(app="y")], "yes no yes", id="those that it counts, whoever they are"),
        pytest.param([X, X, pod(spread(1)), X], "yes yes no yes", id="and those before it"),
        pytest.param([X, pod(spread(1), app="y")], "yes yes", id="a pod that its own spread does not count"),
        pytest.param([pod(spread(2)), pod(spread(1, key="rack")), X], "yes no yes", id="each spread by itself"),
    ],
)
def test_pods_are_nominated_beside_those_that_leave_them_in(specs: list[PodSpec], nominated: str) -> None:
    assert nominated_together([(each, 0) for each in specs]) == [each == "yes" for each in nominated.split()]


@pytest.mark.parametrize(
    ("pods", "nominated"),
    [
        pytest.param([(pod(spread(1)), 1), (X, 0), (X, 0)], "yes yes yes", id="those of a lower priority do not count"),
        pytest.param([(pod(spread(1)), 0), (X, 1)], "no yes", id="those of a higher priority do, and come first"),
        pytest.param([(pod(spread(1)), 0), (replace(X, namespace="other"), 0)], "yes yes", id="of its namespace"),
    ],
)
def test_pods_of_higher_priorities_are_nominated_first(pods: list[tuple[PodSpec, int]], nominated: str) -> None:
    assert nominated_together(pods) == [each == "yes" for each in nominated.split()]
