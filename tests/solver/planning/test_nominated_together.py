"""Which pods of a node are nominated at the same time, by what their spreads count there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver.model import HOSTNAME, PodSelector, PodSpec, TopologySpread, WhenUnsatisfiable
from solver.model.objects import Operator, Requirement
from solver.planning.own_way import keys_of_one_domain, nominated_together

X = PodSpec(namespace="ns", labels=(("app", "x"),))


def spread(max_skew: int, *, hard: bool = True, key: str = "zone") -> TopologySpread:
    selector = PodSelector((Requirement("app", Operator.IN, ("x",)),), ("ns",))
    when = WhenUnsatisfiable.DO_NOT_SCHEDULE if hard else WhenUnsatisfiable.SCHEDULE_ANYWAY
    return TopologySpread(key, max_skew, selector, when_unsatisfiable=when)


def pod(*spreads: TopologySpread, app: str = "x") -> PodSpec:
    return PodSpec(namespace="ns", labels=(("app", app),), topology_spread=spreads)


OF_OTHERS = replace(spread(1, key="rack"), selector=PodSelector((Requirement("app", Operator.IN, ("z",)),), ("ns",)))


@pytest.mark.parametrize(
    ("specs", "nominated"),
    [
        pytest.param([X] * 3, "yes yes yes", id="no spread"),
        pytest.param([pod(spread(1))] * 3, "yes no no", id="one at a time"),
        pytest.param([pod(spread(2))] * 3, "yes yes no", id="as many as maxSkew"),
        pytest.param([pod(spread(1, hard=False))] * 3, "yes yes yes", id="ScheduleAnyway is a wish"),
        pytest.param([pod(spread(1)), X, pod(app="y")], "yes no yes", id="of those that it counts, whoever they are"),
        pytest.param([X, X, pod(spread(1)), X], "no no yes no", id="which come after it"),
        pytest.param([X, pod(spread(1), app="y")], "yes yes", id="a pod that its own spread does not count"),
        pytest.param([pod(OF_OTHERS), pod(spread(1))], "no yes", id="also with a spread that does not count them"),
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


@pytest.mark.parametrize(
    ("zones", "least_domains", "nominated"),
    [
        pytest.param("a a", 1, "yes yes yes", id="all nodes in one zone"),
        pytest.param("a b", 1, "yes no no", id="another zone"),
        pytest.param("a -", 1, "yes yes yes", id="a node without a zone is in no domain"),
        pytest.param("a a", 2, "yes no no", id="minDomains: the zones that are missing count as empty"),
    ],
)
def test_a_spread_over_one_domain_keeps_nobody_out(zones: str, least_domains: int, nominated: str) -> None:
    labels = [{"zone": each} if each != "-" else {} for each in zones.split()]
    mine = pod(replace(spread(1), min_domains=least_domains))
    found = nominated_together([(mine, 0)] * 3, keys_of_one_domain(labels))
    assert found == [each == "yes" for each in nominated.split()]


def test_each_node_is_a_domain_of_hostnames() -> None:
    assert keys_of_one_domain([{HOSTNAME: "n1", "zone": "a"}]) == {"zone"}
