"""The controller of consolidation: when it plans, what it shows, which step it begins, and what keeps it from it."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from cagrpc.controllers.consolidation.controller import ConsolidationController
from cagrpc.controllers.settings import ConsolidationMode
from cagrpc.errors import FailedPrecondition, Unavailable
from cagrpc.fleet.model import DisruptionPhase
from cagrpc.runtime.controller import JsonList
from solver.consolidation.model import DisruptionReason
from tests.support.controllers.consolidation import PlayedConsolidation, disruption, plan_with, settings, step

ON, DRY_RUN = ConsolidationMode.ON, ConsolidationMode.DRY_RUN


def waits_for(controller: ConsolidationController[str]) -> str:
    return str(controller.status()["consolidation"]["waits_for"])


def metrics(controller: ConsolidationController[str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    for each in controller.collectors():
        registry.register(each)
    return registry


# ---- planning and showing


def test_a_dry_run_publishes_the_plan_and_begins_nothing() -> None:
    stays = {"c": "PodDisruptionBudget default/web lets none of its pods go now", "d": "younger than 10m"}
    play = PlayedConsolidation(plan=plan_with(step("a", "b"), stays=stays), settings=settings(DRY_RUN))
    controller = play.controller()
    controller.step()
    assert not play.begun
    found = controller.status()["consolidation"]
    assert (found["mode"], found["waits_for"]) == ("dry-run", "it is a dry run: nothing is changed")
    assert found["under_way"] is found["last"] is found["paused"] is None
    plan = found["plan"]
    assert plan["at_seconds"] == play.now
    assert plan["cost_usd_per_hour"] == 10.0
    assert plan["cost_after_usd_per_hour"] == 8.0
    assert plan["saving_usd_per_hour"] == 2.0
    assert plan["least_usd_per_hour"] == 7.0
    assert plan["least_if_all_moved_usd_per_hour"] == 6.0
    assert plan["steps"] == [
        {
            "reason": "Underutilized",
            "nodes": ["a", "b"],
            "new_nodes": {"web": 1},
            "pods_moved": 3,
            "saving_usd_per_hour": 0.5,
        }
    ]
    assert [(each["reason"], each["nodes"]) for each in plan["stays"]] == [
        ("PodDisruptionBudget … lets none of its pods go now", 1),
        ("younger than …", 1),
    ]
    json.dumps(found)


def test_the_status_has_the_first_steps_and_the_page_has_them_all() -> None:
    names = [f"n{number}" for number in range(12)]
    stays = {f"s{number}": "in the way" for number in range(9)}
    play = PlayedConsolidation(
        nodes=dict.fromkeys(names, "web"),
        plan=plan_with(*(step(name) for name in names), stays=stays),
        settings=settings(DRY_RUN),
    )
    controller = play.controller()
    controller.step()
    page = controller.pages()["/consolidation"].get()
    assert not isinstance(page, JsonList)
    short, full = controller.status()["consolidation"]["plan"], page["plan"]
    assert (short["steps_planned"], len(short["steps"]), len(short["stays"][0]["examples"])) == (12, 5, 3)
    assert (full["steps_planned"], len(full["steps"]), len(full["stays"][0]["examples"])) == (12, 12, 9)


def test_it_is_planned_anew_at_its_pace() -> None:
    play = PlayedConsolidation(settings=settings(DRY_RUN, every_seconds=60.0))
    controller = play.controller()
    for _ in range(100):
        controller.step()
        play.now += 3.0
    assert len(play.asked) == 5
    assert waits_for(controller) == "nothing is worth moving"


def test_while_nothing_may_be_begun_nothing_is_planned_and_the_last_plan_stays() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a")), settings=settings(DRY_RUN))
    controller = play.controller()
    controller.step()
    play.why_not_now = "3 pods wait"
    play.now += 60.0
    controller.step()
    assert len(play.asked) == 1
    assert waits_for(controller) == "3 pods wait"
    assert controller.status()["consolidation"]["plan"]["steps_planned"] == 1
    play.why_not_now = ""
    play.now += 5.0  # sooner than its pace
    controller.step()
    assert len(play.asked) == 2


def test_what_is_not_known_is_told_and_tried_again() -> None:
    play = PlayedConsolidation()
    controller = play.controller()

    def unknown() -> None:
        raise Unavailable("pods are not synced")

    play.on_ask = unknown
    with pytest.raises(Unavailable):
        controller.step()
    assert waits_for(controller) == "pods are not synced"


# ---- beginning


def test_the_first_step_is_begun_for_what_is_then() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a", "b"), step("c")))
    controller = play.controller()
    controller.step()
    assert play.nodes_begun == [("a", "b")]
    assert play.begun[0][1] == "who is who"
    whole, part = play.asked
    assert not any(each.kept for each in whole.nodes)
    assert {each.node.name for each in part.nodes if not each.kept} == {"a", "b"}
    found = controller.status()["consolidation"]
    assert found["under_way"]["nodes"] == ["a", "b"]
    assert found["waits_for"] == ""
    play.waits_for = "2 pods to run again"
    assert waits_for(controller) == "2 pods to run again"


def test_the_next_step_begins_once_the_one_before_has_ended_and_at_once() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a"), step("b")))
    controller = play.controller()
    for _ in range(4):
        controller.step()
    assert (len(play.begun), play.advanced) == (1, 3)
    play.end()
    play.plan = plan_with(step("b"))
    controller.step()
    assert play.nodes_begun == [("a",), ("b",)]


def test_after_a_restart_the_step_under_way_goes_on() -> None:
    play = PlayedConsolidation(disruptions=[disruption("one", DisruptionPhase.MOVING, "a")])
    play.controller().step()
    assert (play.advanced, play.asked) == (1, [])


def test_what_is_under_way_is_undone_where_it_is_a_dry_run_now() -> None:
    under_way = disruption("one", DisruptionPhase.MOVING, "a")
    play = PlayedConsolidation(disruptions=[under_way], settings=settings(DRY_RUN), plan=plan_with(step("b")))
    controller = play.controller()
    controller.step()
    assert (play.advanced, play.undone) == (1, ["consolidation is a dry run now"])
    play.end(DisruptionPhase.UNDONE)
    controller.step()
    assert not play.begun
    assert len(play.asked) == 1


def test_a_step_that_is_none_any_more_is_not_begun() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a")))

    def gone() -> None:
        if len(play.asked) == 2:
            play.plan = plan_with()

    play.on_ask = gone
    controller = play.controller()
    controller.step()
    assert not play.begun
    assert waits_for(controller) == "the steps that were planned are none any more"


def test_steps_that_turn_out_to_be_none_do_not_hold_up_later_ones_for_ever() -> None:
    names = [f"n{number}" for number in range(7)]
    play = PlayedConsolidation(nodes=dict.fromkeys(names, "web"), plan=plan_with(*map(step, names)))
    controller = play.controller()
    whole = play.plan

    def only_the_last() -> None:
        asked_all = not any(each.kept for each in play.asked[-1].nodes)
        play.plan = whole if asked_all else plan_with(step("n6"))

    play.on_ask = only_the_last
    for _ in range(3):
        controller.step()
        play.now += 60.0
    assert play.nodes_begun == [("n6",)]


def test_pods_that_come_while_it_is_planned_are_first() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a")))

    def come() -> None:
        play.why_not_now = "1 pod waits"

    play.on_ask = come
    controller = play.controller()
    controller.step()
    assert not play.begun
    assert waits_for(controller) == "1 pod waits"


def test_a_step_that_the_fleet_refuses_is_tried_again_later() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a")))

    def refuse() -> None:
        raise FailedPrecondition("node a: is no running instance")

    play.on_begin = refuse
    controller = play.controller()
    with pytest.raises(FailedPrecondition):
        controller.step()
    assert waits_for(controller) == "node a: is no running instance"
    play.on_begin = lambda: None
    play.now += 60.0
    controller.step()
    assert play.nodes_begun == [("a",)]


def test_nothing_is_begun_once_it_stops() -> None:
    play = PlayedConsolidation(plan=plan_with(step("a")))
    controller = play.controller()
    play.on_ask = lambda: controller.stop(0.0)
    controller.step()
    assert not play.begun


# ---- nodes that have gone bad


def test_where_many_nodes_have_gone_bad_none_is_replaced() -> None:
    bad = dict.fromkeys(("a", "b"), DisruptionReason.UNHEALTHY)
    steps = step("a", reason=DisruptionReason.UNHEALTHY), step("b", reason=DisruptionReason.UNHEALTHY)
    play = PlayedConsolidation(plan=plan_with(*steps), must_go=bad, not_ready={*bad})
    play.controller().step()
    assert not play.begun
    del play.must_go["b"]
    play.now += 60.0
    play.controller().step()
    assert play.nodes_begun == [("a",)]


# ---- pauses


def test_after_failures_nothing_is_begun_for_longer_and_longer_also_after_a_restart() -> None:
    play = PlayedConsolidation(
        plan=plan_with(step("a")), settings=settings(pause_seconds=600.0, longest_pause_seconds=2000.0)
    )
    waited = []
    for _ in range(4):
        play.controller().step()
        assert play.disruptions[-1].phase.under_way
        play.end(DisruptionPhase.UNDONE, "node web-1 did not come")
        began = play.now
        while not play.disruptions[-1].phase.under_way:
            controller = play.controller()
            controller.step()
            if not play.disruptions[-1].phase.under_way:
                assert waits_for(controller) == "paused after a step that failed: node web-1 did not come"
                assert controller.status()["consolidation"]["paused"]["until_seconds"] > play.now
                assert metrics(controller).get_sample_value("cagrpc_consolidation_paused") == 1.0
                play.now += 10.0
        waited.append(play.now - began)
        play.disruptions[-1:] = []  # begun again above
    assert waited == [600.0, 1200.0, 2000.0, 2000.0]


def test_a_step_that_is_done_ends_the_pauses() -> None:
    undone = disruption("one", DisruptionPhase.UNDONE, "a", ended=999_990.0)
    done = disruption("two", DisruptionPhase.DONE, "b", ended=999_999.0)
    play = PlayedConsolidation(plan=plan_with(step("a")), disruptions=[undone, done])
    play.controller().step()
    assert play.nodes_begun == [("a",)]


def test_after_a_step_that_saved_nothing_there_is_a_pause() -> None:
    vain = disruption("one", DisruptionPhase.DONE, "a", ended=999_990.0, saving=-0.1)
    play = PlayedConsolidation(plan=plan_with(step("a")), disruptions=[vain])
    controller = play.controller()
    controller.step()
    assert play.nodes_begun == []
    assert waits_for(controller) == "paused after a step that failed: it saved nothing: nodes had to stay"


def test_in_a_pause_a_node_that_must_go_is_replaced_unless_it_was_the_one_that_failed() -> None:
    interrupted = (step("a", reason=DisruptionReason.INTERRUPTED), step("b", reason=DisruptionReason.INTERRUPTED))
    undone = disruption("one", DisruptionPhase.UNDONE, "a", ended=999_990.0)
    play = PlayedConsolidation(plan=plan_with(*interrupted, step("c")), disruptions=[undone])
    play.controller().step()
    assert play.nodes_begun == [("b",)]


# ---- metrics


def test_metrics_of_the_plan_and_of_steps_that_end() -> None:
    before = disruption("before", DisruptionPhase.DONE, "z", ended=999_000.0)
    play = PlayedConsolidation(
        plan=plan_with(step("a"), stays={"c": "younger than 10m", "d": "younger than 10m"}), disruptions=[before]
    )
    controller = play.controller()
    registry = metrics(controller)
    cost = "cagrpc_consolidation_cost_usd_per_hour"
    assert registry.get_sample_value(cost, {"state": "now"}) is None
    controller.step()
    states = {name: registry.get_sample_value(cost, {"state": name}) for name in ("now", "planned", "least")}
    assert states == {"now": 10.0, "planned": 8.0, "least": 7.0}
    assert registry.get_sample_value(cost, {"state": "least_if_all_moved"}) == 6.0
    assert registry.get_sample_value("cagrpc_consolidation_nodes_kept", {"reason": "younger than …"}) == 2.0
    play.now += 100.0
    play.end()
    controller.step()
    play.now += 50.0
    play.end(DisruptionPhase.UNDONE)
    controller.step()
    outcomes = {
        outcome: registry.get_sample_value(
            "cagrpc_consolidation_steps_total", {"reason": "Underutilized", "outcome": outcome}
        )
        for outcome in ("done", "undone")
    }
    assert outcomes == {"done": 1.0, "undone": 1.0}
    play.evicted, play.refused = 7, 2
    assert registry.get_sample_value("cagrpc_consolidation_pods_moved_total") == 7.0
    assert registry.get_sample_value("cagrpc_consolidation_evictions_refused_total") == 2.0
    seconds = registry.get_sample_value("cagrpc_consolidation_step_duration_seconds_sum", {"outcome": "done"})
    assert seconds == 100.0
