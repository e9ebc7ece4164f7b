"""The planning controller: what is ordered, how often, and where pods run."""

from __future__ import annotations

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.planning.reasons import NOT_PLANNED, PLANNED
from cagrpc.fleet.model import Phase
from solver.model import Limit, PodSpec
from tests.support.controllers.planner import BOOT_SECONDS, Make
from tests.support.fleet import group
from tests.support.gpus import add_gang, gpu_group

SOON = BOOT_SECONDS / 2
LONG = 300.0


def test_a_burst_of_pods_is_one_round_and_all_of_them_run(make: Make) -> None:
    world = make(group("a"), group("b", cpu=8000, price=0.15))
    world.add(6, cpu=2000)
    world.run(0.5)
    world.add(4, cpu=2000)
    world.run(LONG)
    assert not world.pending()
    (record,) = world.loop.plans()
    assert (record.pods, record.status, record.planned_cost_per_hour) == (10, "optimal", 0.4)
    assert world.targets() == {"a": 1, "b": 2}
    assert [each.phase for each in record.increments] == ["done", "done"]
    assert world.loop.waits_for == "no pod waits"


def test_every_pod_runs_where_it_was_planned_at_the_planned_cost(make: Make) -> None:
    world = make(group("a", cpu=4000), group("b", cpu=10000, price=0.24))
    world.add(7, cpu=3000)
    world.add(4, cpu=1000)
    world.run(LONG)
    (record,) = world.loop.plans()
    assert not world.pending()
    assert record.planned_cost_per_hour == record.lower_bound_per_hour
    for status in world.increments():
        for placement in status.increment.placements:
            assert len({world.cluster.pods[str(uid)].node for uid in placement.pods}) == 1


def test_pods_are_told_what_is_planned_for_them(make: Make) -> None:
    world = make(group("a"))
    uids = world.add(5, cpu=2000)
    world.run(SOON)
    (status,) = world.increments()
    assert {(note.about.uid, note.reason, note.text) for note in world.notes} == {
        (uid, PLANNED, f"increment {status.id}: 3 x a") for uid in uids
    }


def test_pods_that_come_while_nodes_boot_use_what_is_left_of_them(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(3)
    world.run(SOON)
    world.add(1)
    world.run(LONG)
    assert world.targets() == {"a": 1}
    assert not world.pending()
    assert world.loop.plans()[-1].on_existing == 1


def test_what_is_planned_for_a_coming_node_is_not_planned_over(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(3)
    world.run(SOON)
    world.add(2)
    world.run(LONG)
    assert world.targets() == {"a": 2}


def test_daemon_sets_take_their_part_of_coming_nodes(make: Make) -> None:
    world = make(group("a", cpu=4000), daemon_sets=[PodSpec((("cpu", 500),))])
    world.add(3)
    world.run(SOON)
    world.add(1)
    world.run(LONG)
    assert world.targets() == {"a": 2}
    assert not world.pending()


def test_daemon_sets_pods_that_are_late_keep_their_room_on_held_nodes(make: Make) -> None:
    world = make(group("a", cpu=4000), daemon_sets=[PodSpec((("cpu", 500),))])
    world.cluster.daemons_come = False
    world.cluster.scheduling = False
    world.releases = False
    world.add(3)
    world.run(2 * BOOT_SECONDS)
    assert [each.phase for each in world.increments()] == [Phase.READY]
    world.add(1)
    world.run(SOON)
    assert world.targets() == {"a": 2}


def test_a_node_that_is_ready_before_its_increment_is_counted_once(make: Make) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1, cpu=4000))
    world.backend.set_behaviour("gpu", Behaviour(boot_seconds=10 * BOOT_SECONDS))
    add_gang(world, "train", plain=1, gpus=1)
    world.run(2 * BOOT_SECONDS)
    assert [node.held for node in world.cluster.nodes() if node.ready] == [True]
    assert [each.phase for each in world.increments()] == [Phase.CREATING]
    world.add(1, cpu=4000)
    world.run(SOON)
    assert world.targets() == {"gpu": 1, "plain": 2}


def test_a_held_node_that_is_not_ready_for_a_moment_is_still_coming(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.releases = False
    world.add(3)
    world.run(2 * BOOT_SECONDS)
    assert [each.phase for each in world.increments()] == [Phase.READY]
    world.cluster.running_since = dict.fromkeys(world.cluster.running_since, world.clock() + 1000)
    world.add(1)
    world.run(SOON)
    assert world.targets() == {"a": 1}
    assert {note.text for note in world.notes if note.about.uid == "uid-4"} == {
        "there is room on a node that is coming"
    }


def test_what_a_round_orders_is_no_news_to_the_next(make: Make) -> None:
    world = make(group("a"))
    world.add(3)
    world.run(3)
    assert world.cluster.looks == 1
    world.run(SOON)
    assert world.cluster.looks == 1


def test_the_replacement_of_a_pod_whose_node_boots_uses_that_node(make: Make) -> None:
    world = make(group("a", cpu=4000))
    (first,) = world.add(1, cpu=4000)
    world.run(SOON)
    world.replace(world.cluster.pods[first])
    world.run(LONG)
    assert world.targets() == {"a": 1}
    assert not world.pending()


def test_a_pod_that_is_bound_elsewhere_leaves_its_room_on_the_coming_node(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(4)
    world.run(LONG)
    (leaving, *_) = world.cluster.pods
    (waiting,) = world.add(1)
    world.run(SOON)
    del world.cluster.pods[leaving]  # the scheduler puts the waiting one there
    world.run(1)
    assert world.cluster.pods[waiting].node is not None
    world.add(4)
    world.run(LONG)
    assert world.targets() == {"a": 2}


def test_pods_of_an_increment_that_was_let_go_are_the_schedulers_for_a_while(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.cluster.scheduling = False
    world.add(4)
    world.run(BOOT_SECONDS + 10)
    assert [each.phase for each in world.increments()] == [Phase.DONE]
    world.add(1)
    world.run(SOON)
    assert world.targets() == {"a": 2}  # their room is not given away
    world.run(LONG)
    assert world.targets() == {"a": 2}  # nor is more opened, however long the scheduler takes
    world.cluster.scheduling = True
    world.run(1)
    assert not world.pending()


def test_pods_of_a_gang_are_told_how_many_it_still_needs_and_it_is_recorded_once(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.cluster.gangs = {"train": 3}
    world.add(1, gang="train")
    world.run(LONG)
    world.add(1, gang="train")
    world.run(LONG)
    waiting = {(note.about.uid, note.reason, note.text) for note in world.notes}
    assert waiting == {
        ("uid-1", NOT_PLANNED, "gang train has 1 of 3 pods"),
        ("uid-1", NOT_PLANNED, "gang train has 2 of 3 pods"),
        ("uid-2", NOT_PLANNED, "gang train has 2 of 3 pods"),
    }
    told = [record.as_json() for record in world.loop.plans()]
    assert [each["incomplete_gangs"] for each in told] == [
        [{"gang": "train", "pods": there, "needed": 3}] for there in (1, 2)
    ]
    assert {each["pods"] for each in told} == {0}
    world.add(1, gang="train")
    world.run(LONG)
    assert not world.pending()
    assert world.loop.plans()[-1].incomplete_gangs == ()


def test_limits_are_kept_and_what_they_leave_out_is_told(make: Make) -> None:
    world = make(group("a", cpu=4000), limits=[Limit("team", {"nodes": 2})])
    world.add(3, cpu=4000)
    world.run(LONG)
    assert world.targets() == {"a": 2}
    (waiting,) = world.pending()
    record = world.loop.plans()[-1]
    assert [(each.count, each.ways[:1]) for each in record.unplaced] == [
        (1, ("raise the nodes of limit team from 2 to 3",))
    ]
    told = {note.text for note in world.notes if note.reason == NOT_PLANNED and note.about.uid == waiting}
    assert told
    assert all("limit team" in text and "What would serve it: raise the nodes" in text for text in told)


def test_what_cannot_be_meant_is_in_nobodys_way(make: Make) -> None:
    world = make(group("a"))
    good, bad = world.add(1), world.add(1, cpu=2 * 10**15)
    world.run(LONG)
    assert world.pending() == bad
    assert world.cluster.pods[good[0]].node is not None


def test_a_node_that_is_not_ready_is_no_room(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(1)
    world.run(LONG)
    world.cluster.running_since = dict.fromkeys(world.cluster.running_since, world.clock() + 1000)
    world.add(1)
    world.run(60)
    assert world.targets() == {"a": 2}
