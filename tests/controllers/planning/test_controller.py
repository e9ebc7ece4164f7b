"""The planning controller: what is ordered, how often, and where pods run."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.planning.reasons import NOT_PLANNED, PLANNED
from cagrpc.fleet.model import Phase
from cagrpc.services.metrics import Metrics
from solver.model import Limit, PodSpec
from tests.support.controllers.planner import BOOT_SECONDS, Make, PlannerHarness
from tests.support.fleet import group
from tests.support.gpus import add_gang, gpu_group

SOON = BOOT_SECONDS / 2
LONG = 300.0


def test_a_burst_of_pods_is_one_round_and_all_of_them_run(make: Make) -> None:
    harness = make(group("a"), group("b", cpu=8000, price=0.15))
    harness.add(6, cpu=2000)
    harness.run(0.5)
    harness.add(4, cpu=2000)
    harness.run(LONG)
    assert not harness.pending()
    (record,) = harness.loop.plans()
    assert (record.pods, record.status, record.planned_cost_per_hour) == (10, "optimal", 0.4)
    assert harness.targets() == {"a": 1, "b": 2}
    assert [each.phase for each in record.increments] == ["done", "done"]
    assert harness.loop.waits_for == "no pod waits"


def test_a_round_is_in_the_metrics_with_what_its_plan_came_to(make: Make) -> None:
    harness = make(group("a"))
    known = {each.name: each.samples for each in _metrics(harness) if each.name.startswith("cagrpc_plan_")}
    assert len(known) == 4
    assert not any(known.values()), "before the first round there is nothing to say"
    harness.add(6, cpu=2000)
    harness.add(1, cpu=100_000)
    harness.run(LONG)
    values = {(each.name, each.labels.get("status")): each for family in _metrics(harness) for each in family.samples}
    (record,) = [each for each in harness.loop.plans() if each.increments]
    assert values["cagrpc_plan_unplaced_pods", None].value == 1
    assert values["cagrpc_planning_round_duration_seconds_count", record.status].value >= 1
    exemplars = {each.exemplar.labels["increment_id"] for each in values.values() if each.exemplar}
    assert exemplars <= {each.id for each in record.increments}


def _metrics(harness: PlannerHarness) -> Iterator[Metric]:
    _, text = Metrics(harness.loop.collectors).exposition("application/openmetrics-text; version=1.0.0")
    yield from openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call] # no types


def test_every_pod_runs_where_it_was_planned_at_the_planned_cost(make: Make) -> None:
    harness = make(group("a", cpu=4000), group("b", cpu=10000, price=0.24))
    harness.add(7, cpu=3000)
    harness.add(4, cpu=1000)
    harness.run(LONG)
    (record,) = harness.loop.plans()
    assert not harness.pending()
    assert record.planned_cost_per_hour == record.lower_bound_per_hour
    for status in harness.increments():
        for placement in status.increment.placements:
            assert len({harness.cluster.pods[str(uid)].node for uid in placement.pods}) == 1


def test_pods_get_events_of_what_is_planned_for_them(make: Make) -> None:
    harness = make(group("a"))
    uids = harness.add(5, cpu=2000)
    harness.run(SOON)
    (status,) = harness.increments()
    assert {(note.about.uid, note.reason, note.text) for note in harness.notes} == {
        (uid, PLANNED, f"increment {status.id}: 3 x a") for uid in uids
    }


def test_pods_that_come_while_nodes_boot_use_what_is_left_of_them(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(3)
    harness.run(SOON)
    harness.add(1)
    harness.run(LONG)
    assert harness.targets() == {"a": 1}
    assert not harness.pending()
    assert harness.loop.plans()[-1].on_existing == 1


def test_what_is_planned_for_a_coming_node_is_not_planned_over(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(3)
    harness.run(SOON)
    harness.add(2)
    harness.run(LONG)
    assert harness.targets() == {"a": 2}


def test_daemon_sets_take_their_part_of_coming_nodes(make: Make) -> None:
    harness = make(group("a", cpu=4000), daemon_sets=[PodSpec((("cpu", 500),))])
    harness.add(3)
    harness.run(SOON)
    harness.add(1)
    harness.run(LONG)
    assert harness.targets() == {"a": 2}
    assert not harness.pending()


def test_daemon_sets_pods_that_are_late_keep_their_room_on_held_nodes(make: Make) -> None:
    harness = make(group("a", cpu=4000), daemon_sets=[PodSpec((("cpu", 500),))])
    harness.cluster.daemons_come = False
    harness.cluster.scheduling = False
    harness.releases = False
    harness.add(3)
    harness.run(2 * BOOT_SECONDS)
    assert [each.phase for each in harness.increments()] == [Phase.READY]
    harness.add(1)
    harness.run(SOON)
    assert harness.targets() == {"a": 2}


def test_a_node_that_is_ready_before_its_increment_is_counted_once(make: Make) -> None:
    harness = make(gpu_group("gpu"), group("plain", price=0.1, cpu=4000))
    harness.backend.set_behaviour("gpu", Behaviour(boot_seconds=10 * BOOT_SECONDS))
    add_gang(harness, "train", plain=1, gpus=1)
    harness.run(2 * BOOT_SECONDS)
    assert [node.held for node in harness.cluster.nodes() if node.ready] == [True]
    assert [each.phase for each in harness.increments()] == [Phase.CREATING]
    harness.add(1, cpu=4000)
    harness.run(SOON)
    assert harness.targets() == {"gpu": 1, "plain": 2}


def test_a_held_node_that_is_not_ready_for_a_moment_is_still_coming(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.releases = False
    harness.add(3)
    harness.run(2 * BOOT_SECONDS)
    assert [each.phase for each in harness.increments()] == [Phase.READY]
    harness.cluster.running_since = dict.fromkeys(harness.cluster.running_since, harness.clock() + 1000)
    harness.add(1)
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    assert {note.text for note in harness.notes if note.about.uid == "uid-4"} == {
        "there is room on a node that is coming"
    }


def test_what_a_round_orders_is_no_news_to_the_next(make: Make) -> None:
    harness = make(group("a"))
    harness.add(3)
    harness.run(3)
    assert harness.cluster.state_reads == 1
    harness.run(SOON)
    assert harness.cluster.state_reads == 1


def test_the_replacement_of_a_pod_whose_node_boots_uses_that_node(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    (first,) = harness.add(1, cpu=4000)
    harness.run(SOON)
    harness.replace(harness.cluster.pods[first])
    harness.run(LONG)
    assert harness.targets() == {"a": 1}
    assert not harness.pending()


def test_a_pod_that_is_bound_elsewhere_leaves_its_room_on_the_coming_node(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(4)
    harness.run(LONG)
    (leaving, *_) = harness.cluster.pods
    (waiting,) = harness.add(1)
    harness.run(SOON)
    del harness.cluster.pods[leaving]  # the scheduler puts the waiting one there
    harness.run(1)
    assert harness.cluster.pods[waiting].node is not None
    harness.add(4)
    harness.run(LONG)
    assert harness.targets() == {"a": 2}


def test_pods_of_an_increment_that_was_let_go_are_the_schedulers_for_a_while(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.cluster.scheduling = False
    harness.add(4)
    harness.run(BOOT_SECONDS + 10)
    assert [each.phase for each in harness.increments()] == [Phase.DONE]
    harness.add(1)
    harness.run(SOON)
    assert harness.targets() == {"a": 2}  # their room is not given away
    harness.run(LONG)
    assert harness.targets() == {"a": 2}  # nor is more opened, however long the scheduler takes
    harness.cluster.scheduling = True
    harness.run(1)
    assert not harness.pending()


def test_pods_of_a_gang_get_events_of_how_many_it_still_needs_and_it_is_recorded_once(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.cluster.gangs = {"train": 3}
    harness.add(1, gang="train")
    harness.run(LONG)
    harness.add(1, gang="train")
    harness.run(LONG)
    waiting = {(note.about.uid, note.reason, note.text) for note in harness.notes}
    assert waiting == {
        ("uid-1", NOT_PLANNED, "gang train has 1 of 3 pods"),
        ("uid-1", NOT_PLANNED, "gang train has 2 of 3 pods"),
        ("uid-2", NOT_PLANNED, "gang train has 2 of 3 pods"),
    }
    reported = [record.as_json() for record in harness.loop.plans()]
    assert [each["incomplete_gangs"] for each in reported] == [
        [{"gang": "train", "pods": there, "needed": 3}] for there in (1, 2)
    ]
    assert {each["pods"] for each in reported} == {0}
    harness.add(1, gang="train")
    harness.run(LONG)
    assert not harness.pending()
    assert harness.loop.plans()[-1].incomplete_gangs == ()


def test_limits_hold_and_what_they_leave_out_is_reported(make: Make) -> None:
    harness = make(group("a", cpu=4000), limits=[Limit("team", {"nodes": 2})])
    harness.add(3, cpu=4000)
    harness.run(LONG)
    assert harness.targets() == {"a": 2}
    (waiting,) = harness.pending()
    record = harness.loop.plans()[-1]
    assert [(each.count, each.ways[:1]) for each in record.unplaced] == [
        (1, ("raise the nodes of limit team from 2 to 3",))
    ]
    reported = {note.text for note in harness.notes if note.reason == NOT_PLANNED and note.about.uid == waiting}
    assert reported
    assert all("limit team" in text and "What would serve it: raise the nodes" in text for text in reported)


def test_plans_say_what_limits_cost(make: Make) -> None:
    harness = make(group("cheap", cpu=4000, max_size=1), group("dear", cpu=4000, price=0.5))
    harness.add(3, cpu=4000)
    harness.run(LONG)
    assert harness.targets() == {"cheap": 1, "dear": 2}
    limited = harness.loop.plans()[-1].as_json()["limited"]
    assert limited["constraints"] == [
        {"kind": "max_size", "subject": "cheap", "key": "", "amount": 1, "text": "node group cheap may have 1 node"}
    ]
    assert limited["without"]["cost_per_hour"] == pytest.approx(-0.8)
    assert limited["text"] == (
        "limited: node group cheap may have 1 node; without it weight 0 costs $0.8000/h less (+2 cheap, -2 dear);"
        " no plan without it that serves as much costs less than $0.3000/h"
    )


def test_plans_say_nothing_of_limits_that_cost_nothing(make: Make) -> None:
    harness = make(group("cheap", cpu=4000, max_size=2), group("dear", cpu=4000, price=0.5))
    harness.add(2, cpu=4000)
    harness.run(LONG)
    assert harness.loop.plans()[-1].as_json()["limited"] is None


def test_an_invalid_pod_blocks_no_other(make: Make) -> None:
    harness = make(group("a"))
    good, bad = harness.add(1), harness.add(1, cpu=2 * 10**15)
    harness.run(LONG)
    assert harness.pending() == bad
    assert harness.cluster.pods[good[0]].node is not None


def test_a_node_that_is_not_ready_is_no_room(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(1)
    harness.run(LONG)
    harness.cluster.running_since = dict.fromkeys(harness.cluster.running_since, harness.clock() + 1000)
    harness.add(1)
    harness.run(60)
    assert harness.targets() == {"a": 2}


def test_a_cluster_in_which_nothing_can_be_done_is_told_once_however_many_pods_come_and_go(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    harness = make(group("a"))
    harness.add(3, cpu=900_000)
    harness.run(30.0)
    told = len(caplog.records)
    rounds = len(harness.loop.plans())
    for _ in range(20):
        harness.add(1, cpu=100)  # has room, or gets a node: the first of them
        harness.run(15.0)
    assert len(harness.loop.plans()) >= rounds + 2
    of_rounds = [record.getMessage() for record in caplog.records if "pods wait" in record.getMessage()]
    assert len(of_rounds) <= 1 + len(harness.increments()), of_rounds
    assert told <= 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_events_and_log_lines_name_the_increment_and_its_round(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness = make(group("a"))
    since = harness.clock()
    harness.add(2, cpu=2000)
    harness.add(1, cpu=99_000)
    harness.run(LONG)
    (status,) = harness.increments()
    plan = harness.loop.plans()[0].id
    assert (status.increment.plan, status.increment.waiting_since_seconds) == (plan, since)
    named = {(each.reason, each.increment, each.plan) for each in harness.notes}
    assert (PLANNED, status.id, plan) in named
    assert (NOT_PLANNED, "", plan) in named
    assert all(each.plan for each in harness.notes)
    moved = [each for each in caplog.records if each.name == "cagrpc.fleet.ledger"]
    assert {(each.__dict__["increment"], each.__dict__["plan"]) for each in moved} == {(status.id, plan)}
