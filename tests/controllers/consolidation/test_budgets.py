"""Disruption budgets, as Karpenter counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.consolidation.budgets import UNLIMITED, NodeCounts, limit, may_go, within
from cagrpc.controllers.settings import ConsolidationSettings, NodeBudget, ProvisionerDisruption
from cagrpc.fleet.model import DisruptionPhase
from cagrpc.runtime.schedules import Schedule, parse_cron
from solver.consolidation.model import DisruptionReason
from tests.controllers.consolidation.scene import Scene
from tests.support.fleet import group

EMPTY, UNDERUTILIZED, BETTER_WEIGHT, INTERRUPTED, UNHEALTHY = DisruptionReason
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp()
TEN_PERCENT = NodeBudget("10%")


def nightly(nodes: int, hour: int, hours: float) -> NodeBudget:
    return NodeBudget(nodes, schedule=parse_cron(f"0 {hour} * * *"), duration_seconds=hours * 3600)


def window(hour: int, hours: float) -> Schedule:
    return Schedule(parse_cron(f"0 {hour} * * *"), ZoneInfo("UTC"), hours * 3600)


USED: frozenset[Literal["Underutilized"]] = frozenset({"Underutilized"})
NONE = "the disruption budgets of the provisioners allow no node to go now"


@pytest.mark.parametrize(
    ("budgets", "nodes", "goes"),
    [
        pytest.param([], 10, 10, id="no budget"),
        pytest.param([TEN_PERCENT], 1, 1, id="a part of one node is one node"),
        pytest.param([TEN_PERCENT], 10, 1, id="a whole part"),
        pytest.param([TEN_PERCENT], 11, 2, id="rounded up"),
        pytest.param([NodeBudget(5), NodeBudget(3)], 10, 3, id="the smallest"),
        pytest.param([NodeBudget(0, reasons=USED), NodeBudget(4)], 9, 4, id="another's"),
        pytest.param([NodeBudget(0, reasons=frozenset({"Empty"})), NodeBudget(4)], 9, 0, id="of the reason"),
        pytest.param([NodeBudget(0, reasons=frozenset({"Drifted"}))], 9, 9, id="drift is not ours"),
        pytest.param([NodeBudget(0, reasons=frozenset())], 9, 9, id="of no reason at all"),
        pytest.param([NodeBudget(0)], 3, 0, id="none"),
        pytest.param([nightly(0, 9, 8)], 3, 0, id="active"),
        pytest.param([nightly(0, 9, 4)], 3, 3, id="over"),
        pytest.param([nightly(0, 20, 8), NodeBudget(2)], 3, 2, id="not active"),
        pytest.param([nightly(0, 20, 18)], 3, 0, id="since yesterday"),
    ],
)
def test_so_many_empty_nodes_go_as_budgets_let_go(budgets: list[NodeBudget], nodes: int, goes: int) -> None:
    """At 13:47, UTC."""
    with Scene(group("web", cpu=4000, max_size=20), budgets=tuple(budgets)) as scene:
        scene.stand("web", nodes)
        scene.begin()
        scene.step()
        assert sum(len(each.nodes) for each in scene.fleet.snapshot.disruptions) == goes
        assert goes or scene.shown["waits_for"] == NONE


def test_nodes_that_are_not_ready_take_from_the_budget() -> None:
    with Scene(group("web", cpu=4000), budgets=(NodeBudget(2),)) as scene:
        scene.cluster.unready.add(scene.stand("web", 4)[0])
        scene.begin()
        scene.run(2)
        assert len(scene.last().nodes) == 1


def test_where_one_provisioner_has_nothing_left_the_step_of_another_is_begun() -> None:
    """Its own budgets take the place of those of all, also where it has none."""
    own = {"batch": ProvisionerDisruption(budgets=()), "web": ProvisionerDisruption(budgets=(NodeBudget(1),))}
    groups = [group(name, cpu=4000, provisioner=name) for name in ("other", "batch", "web")]
    with Scene(*groups, budgets=(NodeBudget(0),), disruption=own) as scene:
        stood = {name: scene.stand(name, 2) for name in ("other", "batch", "web")}
        scene.begin()
        scene.run(60)
        steps = [{each.name for each in of.nodes} for of in scene.fleet.snapshot.disruptions]
        most = {name: max(len(gone & {*nodes}) for gone in steps) for name, nodes in stood.items()}
        assert most == {"other": 0, "batch": 2, "web": 1}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        pytest.param({"budgets": (NodeBudget(0),)}, NONE, id="no budget"),
        pytest.param({"windows": (window(20, 4),)}, "no window is open", id="no window"),
    ],
)
def test_only_a_node_that_its_cloud_takes_waits_for_nothing(settings: Mapping[str, Any], why: str) -> None:
    with Scene(group("web", cpu=4000), **settings) as scene:
        taken, _ = scene.stand("web", 2)
        scene.begin()
        scene.run(5)
        assert (scene.shown["waits_for"], scene.fleet.snapshot.disruptions) == (why, ())
        assert scene.shown["plan"]["steps_planned"] == 1
        taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
        scene.change_node(taken, spec={"taints": [taint]})
        scene.until(lambda: scene.fleet.snapshot.disruptions)
        scene.until(lambda: scene.ended() is DisruptionPhase.DONE)
        assert [each.name for each in scene.last().nodes] == [taken]


def test_a_step_begins_when_its_window_opens_and_is_finished_when_it_closes() -> None:
    closes = 20 * 3600 + 180
    groups = (group("big", cpu=8000, price=0.8), group("small", cpu=2000, price=0.2))
    with Scene(*groups, windows=(window(20, 0.05),)) as scene:
        scene.cluster.workload("web", 1, on=scene.stand("big"))
        scene.backend.set_behaviours({"small": Behaviour(boot_seconds=300.0)})
        scene.begin()
        scene.run(5)
        scene.clock.advance(closes - 300 - scene.clock() % 86_400)
        scene.until(lambda: scene.fleet.snapshot.disruptions, 300.0, 5.0)
        assert closes - 180 < scene.clock() % 86_400 < closes
        scene.until(lambda: scene.ended() is DisruptionPhase.DONE)
        assert scene.clock() % 86_400 > closes


@pytest.mark.parametrize(
    ("budget", "reason", "expected"),
    [
        (NodeBudget(2, reasons=USED), BETTER_WEIGHT, 2),
        (NodeBudget(0), INTERRUPTED, UNLIMITED),
        (nightly(0, 12, 8), EMPTY, 0),
        (nightly(0, 9, 3), EMPTY, UNLIMITED),
    ],
    ids=["a better weight", "the cloud asks no budget", "active from this moment", "over at this moment"],
)
def test_the_limit_is_karpenters(budget: NodeBudget, reason: DisruptionReason, expected: int) -> None:
    assert limit([budget], reason, 9, NOON) == expected


@pytest.mark.parametrize(("unhealthy", "expected"), [(0, UNLIMITED), (2, UNLIMITED), (3, 0), (9, 0)])
def test_where_too_many_are_bad_none_is_repaired(unhealthy: int, expected: int) -> None:
    settings = ConsolidationSettings(budgets=(NodeBudget(0),))
    assert may_go(settings, "p", NodeCounts(9, unhealthy, unhealthy), UNHEALTHY, NOON) == expected


BUDGETS = st.lists(
    st.builds(
        replace,
        st.just(NodeBudget()) | st.builds(nightly, st.just(0), st.integers(0, 23), st.floats(1, 24)),
        nodes=st.integers(0, 100) | st.integers(0, 100).map(lambda percent: f"{percent}%"),
        reasons=st.none() | st.frozensets(st.sampled_from(["Empty", "Underutilized", "Drifted"])),
    ),
    max_size=5,
)


@given(BUDGETS, st.sampled_from([EMPTY, UNDERUTILIZED]), st.integers(0, 5000), st.floats(NOON, NOON + 1e6))
def test_a_limit_holds_for_each_budget_that_is_active_and_of_the_reason(
    budgets: list[NodeBudget], reason: DisruptionReason, registered: int, now: float
) -> None:
    found = limit(budgets, reason, registered, now)
    of_it = [
        each.nodes if isinstance(each.nodes, int) else ceil(int(each.nodes[:-1]) * registered / 100)
        for each in budgets
        if (each.reasons is None or reason.value in each.reasons)
        and (
            each.schedule is None or Schedule(each.schedule, ZoneInfo("UTC"), each.duration_seconds or 0.0).open_at(now)
        )
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
