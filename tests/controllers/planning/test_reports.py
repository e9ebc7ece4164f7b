"""What the planner loop says of its rounds: Events on pods, `/plans`, metrics and the log."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from cagrpc.api.core.gangs import incomplete
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.drop_invalid import ValidPlan
from cagrpc.controllers.planning import controller, reasons
from cagrpc.fleet.model import IncrementSpec
from solver import solve
from solver.model import (
    Budget,
    Limit,
    PodSelector,
    PodSpec,
    Problem,
    Taint,
    TaintEffect,
    Toleration,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.reduction import work
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS, NewWorld, World

SOON, LONG = BOOT_SECONDS / 2, 100.0
GANG = "podgroup.scheduling.x-k8s.io ns/train"


def test_a_round_has_what_its_plan_came_to(new_world: NewWorld) -> None:
    world = new_world(group("a"), group("b", cpu=8000, price=0.15))
    world.cluster.add(10, cpu=2000)
    world.run(LONG)
    (plan,) = world.page("/plans")
    assert (plan["pods"], plan["status"], plan["planned_cost_per_hour"]) == (10, "optimal", 0.4)
    assert plan["lower_bound_per_hour"] == 0.4
    assert [each["phase"] for each in plan["increments"]] == ["done", "done"]
    assert world.status()["planner"] == "no pod waits"
    for status in world.increments():
        for placement in status.increment.placements:
            assert len({world.cluster.node_of(str(uid)) for uid in placement.pods}) == 1


def test_pods_that_have_room_on_coming_nodes_are_counted_with_those(new_world: NewWorld) -> None:
    world = new_world()
    world.play(lambda _: world.cluster.add(3), SOON, lambda _: world.cluster.add(), SOON)
    assert [each["on_existing"] for each in world.page("/plans")] == [0, 1]


def test_a_round_is_in_the_metrics(new_world: NewWorld) -> None:
    world = new_world()
    known = [name for name in world.metrics() if name.startswith("cagrpc_plan_")]
    assert not known, "before the first round there is nothing to say"
    world.cluster.add(6, cpu=2000)
    world.cluster.add(1, cpu=100_000)
    world.run(LONG)
    metrics = world.metrics()
    (plan,) = [each for each in world.page("/plans") if each["increments"]]
    assert metrics["cagrpc_plan_unplaced_pods"][()].value == 1
    assert len([name for name in metrics if name.startswith("cagrpc_plan_")]) == 4
    assert metrics["cagrpc_planning_round_duration_seconds_count"][plan["status"],].value >= 1
    found = [each for of in metrics.values() for each in of.values() if each.exemplar]
    increments = {each.exemplar.labels["increment_id"] for each in found}
    assert increments <= {each["id"] for each in plan["increments"]}


def test_pods_get_events_of_what_is_planned_for_them_or_why_nothing_is(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = new_world()
    since = world.clock()
    served = world.cluster.add(5, cpu=2000)
    (left,) = world.cluster.add(cpu=99_000)
    world.run(SOON)
    (status,) = world.increments()
    plan = world.page("/plans")[0]["id"]
    ids = {"cagrpc.io/increment": status.id, "cagrpc.io/plan": plan}
    assert (status.increment.plan, status.increment.waiting_since_seconds) == (plan, since)
    assert status.increment.reason == "5 pods, ns/pod-1 among them"
    told = [(each.uid, each.reason, each.text, each.labels) for each in world.events("Planned")]
    assert told == [(uid, "Planned", f"increment {status.id}: 3 x a", ids) for uid in served]
    not_planned = world.events("NotPlanned")
    assert {(each.uid, each.warning, each.labels["cagrpc.io/plan"]) for each in not_planned} == {(left, True, plan)}
    moved = [each for each in caplog.records if each.name == "cagrpc.fleet.ledger"]
    assert {(each.__dict__["increment"], each.__dict__["plan"]) for each in moved} == {(status.id, plan)}


def test_a_pod_that_no_problem_may_have_is_told_why(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What readers let through and the solver refuses; today's readers let nothing of the kind through."""

    def without_the_large(problem: Problem, budget: Budget) -> ValidPlan:
        large = tuple(each for each in problem.pod_sets if dict(each.spec.requests)["cpu"] > 50_000)
        left = replace(problem, pod_sets=tuple(each for each in problem.pod_sets if each not in large))
        return ValidPlan(left, solve(left, budget), large)

    monkeypatch.setattr(controller, "solve_valid", without_the_large)
    monkeypatch.setattr(reasons, "faults", lambda _: ("its cpu is too much",))
    world = new_world()
    (served,) = world.cluster.add()
    (invalid,) = world.cluster.add(cpu=99_000)
    world.run(SOON)
    assert [each.uid for each in world.events("Planned")] == [served]
    (told,) = world.events("NotPlanned")
    assert (told.uid, told.text) == (
        invalid,
        "it cannot be planned: its cpu is too much. What would serve it: a pod that planning can read",
    )
    (plan,) = world.page("/plans")
    (left,) = plan["unplaced"]
    assert (left["count"], left["reasons"]) == (1, ["it cannot be planned: its cpu is too much"])


def test_pods_of_a_gang_get_events_of_how_many_it_still_needs_and_it_is_recorded_once(new_world: NewWorld) -> None:
    world = new_world()
    world.cluster.gang("train", 3)
    for _ in range(2):
        world.cluster.add(gang="train")
        world.run(LONG)
    assert [(each.uid, each.reason, each.text) for each in world.events()] == [
        ("uid-1", "NotPlanned", f"{incomplete(GANG, 1, 3)}. What would serve it: the rest of the gang"),
        ("uid-2", "NotPlanned", f"{incomplete(GANG, 2, 3)}. What would serve it: the rest of the gang"),
    ]
    assert [(each["pods"], each["incomplete_gangs"]) for each in world.page("/plans")] == [
        (0, [{"gang": GANG, "pods": there, "needed": 3}]) for there in (1, 2)
    ]
    world.cluster.add(gang="train")
    world.run(LONG)
    assert not world.cluster.pending()
    assert world.page("/plans")[-1]["incomplete_gangs"] == []


def test_what_limits_leave_out_and_what_would_serve_it_is_reported(new_world: NewWorld) -> None:
    world = new_world(limits=[Limit("team", {"nodes": 2})])
    world.cluster.add(3, cpu=4000)
    world.run(LONG)
    (left,) = world.page("/plans")[-1]["unplaced"]
    assert (left["count"], left["ways"][:1]) == (1, ["raise the nodes of limit team from 2 to 3"])
    (waiting,) = world.cluster.pending()
    told = [each.text for each in world.events("NotPlanned") if each.uid == waiting]
    assert told
    assert all("limit team" in text and "What would serve it: raise the nodes" in text for text in told)


@pytest.mark.parametrize("most", [1, 2])
def test_plans_say_what_limits_cost_where_they_cost_something(most: int, new_world: NewWorld) -> None:
    world = new_world(group("cheap", cpu=4000, max_size=most), group("dear", cpu=4000, price=0.5))
    world.cluster.add(most + 1 if most == 1 else 2, cpu=4000)
    world.run(LONG)
    limited = world.page("/plans")[-1]["limited"]
    if most == 2:
        assert limited is None
        return
    assert limited["constraints"] == [
        {"kind": "max_size", "subject": "cheap", "key": "", "amount": 1, "text": "node group cheap may have 1 node"}
    ]
    assert limited["without"]["cost_per_hour"] == pytest.approx(-0.4)
    assert limited["text"] == (
        "limited: node group cheap may have 1 node; without it, it would cost $0.40/h less (+1 cheap, -1 dear);"
        " no plan without it that serves as much costs less than $0.20/h"
    )


def test_a_cluster_in_which_nothing_can_be_done_is_told_once_however_many_pods_come_and_go(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = new_world(group("a"))
    world.cluster.add(3, cpu=900_000)
    world.run(30)
    rounds = len(world.page("/plans"))
    for _ in range(10):
        world.cluster.add(cpu=100)  # has room, or gets a node: the first of them
        world.run(15)
    assert len(world.page("/plans")) >= rounds + 2
    told = [record.getMessage() for record in caplog.records if "pods wait" in record.getMessage()]
    assert len(told) <= 1 + len(world.increments()), told
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_failed_round_is_logged_once_and_tried_again(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = new_world()
    world.journal.broken = True
    world.cluster.add()
    world.run(60)
    failed = [record for record in caplog.records if "the planner loop failed and is tried again" in record.message]
    assert len(failed) == 1


def test_a_shortage_is_the_first_reason_of_the_pods_that_wait_for_it(new_world: NewWorld) -> None:
    gpu = "nvidia.com/gpu"
    gpus = group("gpu", cpu=4000, price=1.0, taints=(Taint(gpu, TaintEffect.NO_SCHEDULE),))
    world = new_world(replace(gpus, allocatable={**gpus.allocatable, gpu: 1}), group("plain"))
    world.backend.set_behaviours({"gpu": Behaviour(stock=0)})
    world.cluster.add(spec=PodSpec((("cpu", 1000), (gpu, 1)), tolerations=(Toleration(gpu, "Exists"),)))
    world.run(SOON)
    latest = world.page("/plans")[-1]
    (shortage,), (left,) = latest["shortages"], latest["unplaced"]
    until = timestamp(math.ceil(shortage["until_seconds"]))
    first, *others = left["reasons"]
    assert first == f"backed off after a shortage until {until} ({shortage['cause']}) (node group gpu)"
    assert others == [f"needs 1 {gpu}, none is free (node group plain)"]
    assert left["ways"] == [f"wait until {until}, when {shortage['offering']} is tried again"]
    assert any(each.text.startswith(first) for each in world.events("NotPlanned"))


def test_a_size_that_changed_meanwhile_is_told_as_the_refusal_of_an_increment(new_world: NewWorld) -> None:
    world: World = new_world(group("a", cpu=4000, max_size=2), group("b", price=0.5))
    world.cluster.add(2, cpu=4000)
    world.meanwhile(lambda: world.fleet.apply(IncrementSpec({"a": 1})))
    world.run(3)
    (refused,) = [each for each in world.page("/plans")[0]["increments"] if not each["id"]]
    assert "maximum" in refused["message"]
    told = {each.uid: each.text for each in world.events("NotPlanned")}
    assert told == dict.fromkeys(("uid-1", "uid-2"), f"2 x a was refused: {refused['message']}")


def test_a_round_says_whose_preferences_were_too_much_to_plan_with(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MOST_STEPS", 20)
    world = new_world(group("a"))
    soft = tuple(TopologySpread(key, 1, PodSelector(()), WhenUnsatisfiable.SCHEDULE_ANYWAY) for key in "abcde")
    for number in range(5):
        world.cluster.add(1, cpu=100 + number, topology_spread=soft)
    world.run(LONG)
    assert not world.cluster.pending()
    (plan,) = world.page("/plans")
    assert plan["warnings"] == [f"namespace ns: 5 pods planned without preferences, because {work.TOO_MUCH_PREFERRED}"]


def test_pods_that_are_deleted_wait_no_longer(new_world: NewWorld) -> None:
    """No round follows where nothing is left to plan: the last one says how many of its pods wait still."""
    world = new_world(limits=[Limit("team", {"nodes": 2})])
    world.cluster.add(4, cpu=4000)
    world.run(LONG)
    (left,) = world.page("/plans")[-1]["unplaced"]
    assert left["count"] == 2
    assert "waiting" not in left
    first, second = world.cluster.pending()
    world.cluster.delete(first)
    world.run(SOON)
    assert [each["waiting"] for each in world.page("/plans")[-1]["unplaced"]] == [1]
    world.cluster.delete(second)
    world.run(SOON)
    (left,) = world.page("/plans")[-1]["unplaced"]
    assert (left["count"], left["waiting"]) == (2, 0)
