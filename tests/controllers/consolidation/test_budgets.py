"""Disruption budgets, as Karpenter counts them."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.consolidation.budgets import UNLIMITED, NodeCounts, limit, may_go, within
from cagrpc.controllers.settings import ConsolidationSettings, NodeBudget, ProvisionerDisruption
from cagrpc.runtime.schedules import Schedule, parse_cron
from solver.consolidation.model import DisruptionReason

EMPTY, UNDERUTILIZED, BETTER_WEIGHT, INTERRUPTED, UNHEALTHY = DisruptionReason
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp()
TEN_PERCENT = NodeBudget(10, is_percentage=True)


def nightly(nodes: int, hour: int, hours: float) -> NodeBudget:
    return NodeBudget(nodes, schedule=Schedule(parse_cron(f"0 {hour} * * *"), ZoneInfo("UTC"), hours * 3600))


@pytest.mark.parametrize(
    ("budgets", "reason", "registered", "expected"),
    [
        pytest.param([], EMPTY, 10, UNLIMITED, id="no budget"),
        pytest.param([TEN_PERCENT], EMPTY, 1, 1, id="a part of one node is one node"),
        pytest.param([TEN_PERCENT], EMPTY, 10, 1, id="a whole part"),
        pytest.param([TEN_PERCENT], EMPTY, 11, 2, id="rounded up"),
        pytest.param([TEN_PERCENT], EMPTY, 0, 0, id="of no nodes"),
        pytest.param([NodeBudget(5), NodeBudget(3)], EMPTY, 10, 3, id="the smallest"),
        pytest.param([NodeBudget(0, reasons=frozenset({"Empty"})), NodeBudget(4)], UNDERUTILIZED, 9, 4, id="another's"),
        pytest.param([NodeBudget(0, reasons=frozenset({"Empty"})), NodeBudget(4)], EMPTY, 9, 0, id="of the reason"),
        pytest.param([NodeBudget(0, reasons=frozenset({"Drifted"}))], EMPTY, 9, UNLIMITED, id="drift is not ours"),
        pytest.param([NodeBudget(2, reasons=frozenset({"Underutilized"}))], BETTER_WEIGHT, 9, 2, id="a better weight"),
        pytest.param([NodeBudget(0, reasons=frozenset())], EMPTY, 9, UNLIMITED, id="of no reason at all"),
        pytest.param([NodeBudget(0)], INTERRUPTED, 9, UNLIMITED, id="the cloud asks no budget"),
        pytest.param([nightly(0, 9, 8)], EMPTY, 9, 0, id="active"),
        pytest.param([nightly(0, 12, 8)], EMPTY, 9, 0, id="active from this moment"),
        pytest.param([nightly(0, 9, 3)], EMPTY, 9, UNLIMITED, id="over at this moment"),
        pytest.param([nightly(0, 20, 8), NodeBudget(5)], EMPTY, 9, 5, id="not active"),
        pytest.param([nightly(0, 20, 17)], EMPTY, 9, 0, id="since yesterday"),
    ],
)
def test_the_limit_is_karpenters(
    budgets: list[NodeBudget], reason: DisruptionReason, registered: int, expected: int
) -> None:
    assert limit(budgets, reason, registered, NOON) == expected


def test_nodes_that_go_already_take_from_the_budget() -> None:
    settings = ConsolidationSettings(budgets=(NodeBudget(3),))
    left = [may_go(settings, "p", NodeCounts(10, going), UNDERUTILIZED, NOON) for going in range(5)]
    assert left == [3, 2, 1, 0, 0]


def test_a_provisioners_own_budgets_take_the_place_of_the_others() -> None:
    settings = ConsolidationSettings(
        budgets=(NodeBudget(0),),
        disruption={"own": ProvisionerDisruption(budgets=(NodeBudget(2),)), "none": ProvisionerDisruption(budgets=())},
    )
    left = {name: may_go(settings, name, NodeCounts(10, 1), EMPTY, NOON) for name in ("own", "none", "another")}
    assert left == {"own": 1, "none": UNLIMITED, "another": 0}


@pytest.mark.parametrize(("unhealthy", "expected"), [(0, UNLIMITED), (2, UNLIMITED), (3, 0), (9, 0)])
def test_where_too_many_are_bad_none_is_repaired(unhealthy: int, expected: int) -> None:
    settings = ConsolidationSettings(budgets=(NodeBudget(0),))
    assert may_go(settings, "p", NodeCounts(9, unhealthy, unhealthy), UNHEALTHY, NOON) == expected


BUDGETS = st.lists(
    st.builds(
        NodeBudget,
        st.integers(0, 100),
        st.booleans(),
        st.none() | st.frozensets(st.sampled_from(["Empty", "Underutilized", "Drifted"])),
        st.none()
        | st.builds(lambda hour, hours: nightly(0, hour, hours).schedule, st.integers(0, 23), st.floats(1, 24)),
    ),
    max_size=5,
)


@given(BUDGETS, st.sampled_from([EMPTY, UNDERUTILIZED]), st.integers(0, 5000), st.floats(NOON, NOON + 1e6))
def test_a_limit_holds_for_each_budget_that_is_active_and_of_the_reason(
    budgets: list[NodeBudget], reason: DisruptionReason, registered: int, now: float
) -> None:
    found = limit(budgets, reason, registered, now)
    of_it = [
        ceil(each.amount * registered / 100) if each.is_percentage else each.amount
        for each in budgets
        if (each.reasons is None or reason.value in each.reasons) and (not each.schedule or each.schedule.open_at(now))
    ]
    assert all(found <= most for most in of_it)
    assert found in of_it or (found == UNLIMITED and not of_it)


@given(BUDGETS, BUDGETS, st.integers(0, 500), st.integers(0, 50))
def test_a_further_budget_or_a_further_node_that_goes_never_allows_more(
    budgets: list[NodeBudget], more: list[NodeBudget], registered: int, going: int
) -> None:
    def left(all_of_them: list[NodeBudget], disrupted: int) -> int:
        settings = ConsolidationSettings(budgets=tuple(all_of_them))
        return may_go(settings, "p", NodeCounts(registered, disrupted), UNDERUTILIZED, NOON)

    assert left([*budgets, *more], going) <= left(budgets, going)
    assert 0 <= left(budgets, going + 1) <= left(budgets, going)


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("pq")),
    st.dictionaries(st.sampled_from("pq"), st.integers(0, 4)),
)
def test_what_is_taken_is_within_and_as_much_as_can_be(
    nodes: list[str], provisioners: dict[str, str], left: dict[str, int]
) -> None:
    taken = within(nodes, provisioners, left)
    assert list(taken) == [node for node in nodes if node in taken]
    for provisioner in ("p", "q"):
        of_it = [node for node in nodes if provisioners.get(node) == provisioner]
        assert sum(node in taken for node in of_it) == min(len(of_it), left.get(provisioner, UNLIMITED))
    assert {node for node in nodes if node not in provisioners} <= {*taken}
