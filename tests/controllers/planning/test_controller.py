"""The planner loop in a simulated world: what is ordered, how often, and what happens when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.node_info import RequestOwner, Reservation, Reservations
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.planning.reasons import NOT_PLANNED, PLANNED
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import IncrementSpec, Phase, Placement
from solver.model import Limit, Node, PodSpec, Taint, TaintEffect, Toleration
from tests.support.fleet import MemoryJournal, group
from tests.support.planner import BOOT_SECONDS, PlannerHarness

Make = Callable[..., PlannerHarness]
GPU = "nvidia.com/gpu"
GONE = Behaviour(stock=0)
SOON = BOOT_SECONDS / 2
LONG = 300.0


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[PlannerHarness] = []

    def made(*groups: Any, **more: Any) -> PlannerHarness:
        worlds.append(PlannerHarness(groups or [group("a")], **more))
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()


def gpu_group(name: str, **more: Any) -> Any:
    made = group(name, price=1.0, taints=(Taint(GPU, TaintEffect.NO_SCHEDULE),), **more)
    return replace(made, allocatable={**made.allocatable, GPU: 1})


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
    _gang(world, "train", plain=1, gpus=1)
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


def test_what_is_short_is_left_out_and_the_pods_go_elsewhere(make: Make) -> None:
    world = make(group("cheap", zone="z"), group("dear", price=0.3, zone="z"))
    world.backend.set_behaviour("cheap", GONE)
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 1}
    assert [each.offering for each in world.loop.plans()[-1].shortages] == ["cheap/z"]
    world.run(LONG)
    assert not world.pending()
    world.backend.set_behaviour("cheap", None)
    world.run(LONG)
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 1, "cheap": 1}


def test_an_offering_that_is_short_is_left_out_in_all_of_its_groups(make: Make) -> None:
    same: dict[str, Any] = {"instance_type": "m", "zone": "z", "capacity_type": "spot"}
    world = make(group("a", **same), group("b", price=0.2, **same), group("c", price=0.3))
    world.backend.set_behaviour("m", GONE)
    world.add(1)
    world.run(SOON)
    assert world.targets() == {"c": 1}
    assert len(world.loop.plans()) == 2


def test_a_shortage_lasts_longer_each_time(make: Make) -> None:
    world = make(group("a"), settings=PlannerSettings(shortage_seconds=100.0))
    world.backend.set_behaviour("a", GONE)
    world.add(1)
    tried = []
    for _ in range(300):
        before = len(world.increments())
        world.clock.advance(5)
        world.step()
        tried += [world.clock()] * (len(world.increments()) > before)
    waits = [round((later - earlier) / 100) for earlier, later in pairwise(tried)]
    assert waits == [1, 2, 4, 6]


def test_late_shortages_take_down_their_own_group_only(make: Make) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    world.backend.set_behaviour("gpu", Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=0))
    world.add(4)
    world.cluster.pods[world.add(1)[0]].spec = _with_gpu(1000)
    world.run(LONG)
    assert world.targets() == {"plain": 1}
    assert len(world.pending()) == 1


def _with_gpu(cpu: int) -> PodSpec:
    return PodSpec((("cpu", cpu), (GPU, 1)), tolerations=(Toleration(GPU, "Exists"),))


def _gang(world: PlannerHarness, name: str, plain: int, gpus: int) -> None:
    uids = world.add(plain + gpus, cpu=4000, gang=name)
    for uid in uids[:gpus]:
        world.cluster.pods[uid].spec = _with_gpu(4000)


@pytest.mark.parametrize("behaviour", [GONE, Behaviour(late_shortage=1, boot_seconds=BOOT_SECONDS)])
def test_a_gang_over_two_groups_comes_whole_or_not_at_all(make: Make, behaviour: Behaviour) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    world.backend.set_behaviour("gpu", behaviour)
    _gang(world, "train", plain=2, gpus=2)
    lonely = world.add(1, cpu=4000)
    world.run(200)
    assert world.targets() == {"plain": 1}
    assert world.cluster.pods[lonely[0]].node is not None
    assert len(world.pending()) == 4
    assert not [pod for pod in world.cluster.pods.values() if pod.gang and pod.node]
    world.backend.set_behaviour("gpu", None)
    world.run(2 * LONG)
    assert not world.pending()
    assert world.targets() == {"plain": 3, "gpu": 2}


def test_nothing_is_ordered_twice_across_a_restart(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(8)
    world.run(2)
    assert [each.phase for each in world.increments()] == [Phase.CREATING]
    world.restart()
    world.add(1)
    world.run(LONG)
    assert world.targets() == {"a": 3}
    assert not world.pending()


def test_a_shortage_is_known_after_a_restart_and_an_old_one_is_not(make: Make) -> None:
    world = make(group("cheap"), group("dear", price=0.3))
    world.backend.set_behaviour("cheap", GONE)
    world.add(1)
    world.run(3)
    world.restart()
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 2}
    assert len(world.increments(Phase.ROLLED_BACK)) == 1
    world.backend.set_behaviour("cheap", None)
    world.run(LONG)
    world.restart()
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 2, "cheap": 1}


def test_pods_that_are_bound_while_planning_get_no_node(make: Make) -> None:
    world = make(group("a", cpu=4000))
    uids = world.add(2, cpu=4000)

    def bound() -> None:
        del world.cluster.pods[uids[0]]

    world.cluster.after_state = bound
    world.run(SOON)
    assert world.targets() == {"a": 1}
    (status,) = world.increments()
    assert status.increment.pods == {uids[1]}


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


def test_a_gang_that_loses_a_pod_while_planning_is_planned_anew(make: Make) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    _gang(world, "train", plain=2, gpus=2)
    world.cluster.after_state = lambda: world.cluster.pods.pop("uid-4")
    world.run(LONG)
    assert world.targets() == {"plain": 1, "gpu": 2}
    assert not world.pending()


def test_a_node_that_goes_while_planning_is_made_up_for(make: Make) -> None:
    world = make(group("a", cpu=4000))
    first = world.add(1, cpu=4000)
    world.run(LONG)
    del world.cluster.pods[first[0]]
    world.cluster.scheduling = False
    world.add(1, cpu=4000)
    (instance,) = world.fleet.snapshot.groups["a"].instances
    world.cluster.after_state = lambda: world.fleet.delete_instances("a", [instance.id])
    world.run(2)
    world.cluster.scheduling = True
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 1}


def test_a_size_that_changes_while_planning_is_planned_with_at_once(make: Make) -> None:
    world = make(group("a", max_size=2), group("b", price=0.5))
    world.add(2, cpu=4000)
    world.cluster.after_state = lambda: world.fleet.apply(IncrementSpec({"a": 1}))
    world.run(SOON)
    assert world.targets() == {"a": 2, "b": 1} or world.targets() == {"a": 2}
    refused = [each for each in world.loop.plans()[0].increments if not each.id]
    assert ["maximum" in each.message for each in refused] == [True]
    told = {note.about.uid: note.text for note in world.notes if note.reason == NOT_PLANNED}
    assert told == dict.fromkeys(("uid-1", "uid-2"), f"2 x a was refused: {refused[0].message}")
    world.run(LONG)
    assert not world.pending()


def test_what_is_found_short_while_planning_is_not_asked_for(make: Make) -> None:
    world = make(group("cheap"), group("dear", price=0.3))
    world.backend.set_behaviour("cheap", Behaviour(late_shortage=0, fail_after_seconds=10.0))
    world.add(1, cpu=4000)
    world.run(3)
    world.add(1, cpu=4000)

    def meanwhile() -> None:
        world.clock.advance(10)
        world.fleet.reconcile()

    world.cluster.after_state = meanwhile
    world.run(LONG)
    assert not world.pending()
    assert len(world.increments(Phase.ROLLED_BACK)) == 1
    assert world.targets() == {"dear": 2}


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


def test_a_plan_is_thrown_away_when_the_cluster_is_lost_meanwhile(make: Make) -> None:
    world = make(group("a"))
    world.add(1)
    world.cluster.after_state = lambda: setattr(world.cluster, "problem", "watching pods")
    world.run(30)
    assert not world.increments()


def test_it_plans_nothing_after_stop(make: Make) -> None:
    world = make(group("a"))
    world.add(1)
    world.cluster.after_state = world.loop.stop
    world.run(30)
    assert not world.increments()


def test_it_waits_for_the_cluster_to_be_known(make: Make) -> None:
    world = make(group("a"))
    world.cluster.problem = "listing pods"
    world.add(1)
    world.run(10)
    assert world.loop.waits_for == "listing pods"
    world.cluster.problem = None
    world.run(LONG)
    assert not world.pending()


class BreakingJournal(MemoryJournal):
    """Breaks at the commit of an increment, once."""

    breaks = True

    def commit(self, changes: Any) -> None:
        if self.breaks and changes.increments:
            type(self).breaks = False
            raise errors.Unavailable("journal: out of reach")
        super().commit(changes)


def test_with_the_journal_out_of_reach_nothing_is_ordered_and_later_all_is(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make(group("a"))
    assert isinstance(world.journal, MemoryJournal)
    world.journal.broken = True
    world.add(1)
    world.run(60)
    assert not world.backend.list_instances()
    assert sum("the planner waits" in record.message for record in caplog.records) <= 1
    world.journal.broken = False
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 1}


def test_what_could_not_be_journalled_is_planned_again(make: Make) -> None:
    world = make(group("a"), group("b", price=0.1, cpu=8000))
    world.fleet.close()
    world.journal = BreakingJournal()
    world._start()
    world.add(1, cpu=3000)
    world.add(1, cpu=7000)
    world.run(LONG)
    assert not world.pending()


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


# Beside ProvisioningRequests.

FOR_A_REQUEST = IncrementSpec({"a": 1}, requests=frozenset({"u1"}), placements=(Placement("a", requests=("u1",)),))


def test_room_that_is_kept_is_not_planned_with_until_it_is_free(make: Make) -> None:
    world = make(group("a", max_size=5))
    world.cluster.extra_nodes = [Node("old", {"cpu": 4000, "pods": 10}, {}, ())]
    world.cluster.scheduling = False
    world.reserved = {"old": (Reservation(RequestOwner("u"), PodSpec((("cpu", 3000),))),)}
    world.add(cpu=1000)
    world.run(SOON)
    assert world.targets() == {}  # it has room beside what is kept
    world.add(cpu=1000)
    world.run(SOON)
    assert world.targets() == {"a": 1}
    world.reserved = {}
    world.add(cpu=4000)
    world.add(cpu=3000)
    world.run(SOON)
    assert world.targets() == {"a": 2}


def test_a_node_for_a_request_is_nobodys_room_from_its_order_to_its_booking(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.cluster.scheduling = False  # as if it always came too late: only the planner's word counts
    status = world.fleet.apply(FOR_A_REQUEST)
    while world.fleet.increment(status.id).phase is not Phase.DONE:
        world.add(cpu=4000)
        world.run(SOON)
        (mine,) = world.increments()[:1]
        for node in mine.held:
            world.reserved = {
                node.instance_id.removeprefix("simulated://"): (
                    Reservation(RequestOwner("u"), PodSpec((("cpu", 4000),))),
                )
            }
    world.run(SOON)
    assert world.targets() == {"a": 1 + world.made}
    assert world.made >= 2
    world.reserved = {}  # it is over
    world.add(cpu=4000)
    world.run(SOON)
    assert world.targets() == {"a": world.made}


def test_an_increment_for_a_request_that_is_taken_back_teaches_no_shortage(make: Make) -> None:
    world = make(group("a", max_size=1))
    status = world.fleet.apply(FOR_A_REQUEST)
    world.add()
    world.run(SOON)
    assert world.targets() == {"a": 1}
    assert [each.count for each in world.loop.plans()[-1].unplaced] == [1]
    world.fleet.withdraw(status.id, "its request was deleted")
    world.run(SOON)
    (taken_back, own) = world.increments()
    assert (taken_back.phase, own.phase) == (Phase.ROLLED_BACK, Phase.CREATING)
    assert not world.loop.plans()[-1].shortages
    assert world.targets() == {"a": 1}


class _Turn:
    """A lock for which somebody else has to be waited for, once."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile: Callable[[], object] | None = meanwhile
        self.taken = False

    def __enter__(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        assert not self.taken
        self.taken = True

    def __exit__(self, *_: object) -> None:
        self.taken = False


def test_a_round_takes_its_turn_and_knows_what_others_asked_for_in_theirs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(group("a", max_size=1), group("b", price=0.5))
    turn = _Turn(lambda: world.fleet.apply(FOR_A_REQUEST))
    world.turn = turn
    world.restart()
    turns: list[bool] = []

    def none_reserved(state: ClusterState) -> Reservations:
        turns.append(turn.taken)
        return {}

    monkeypatch.setattr(world.loop, "_reservations", none_reserved)
    world.add(cpu=4000)
    world.run(SOON)
    assert set(turns) == {True}
    assert not turn.taken
    assert world.targets() == {"a": 1, "b": 1}
    assert [each.id != "" for record in world.loop.plans() for each in record.increments] == [True]


def test_while_it_is_not_known_what_is_kept_nothing_is_planned(make: Make) -> None:
    world = make(group("a"))
    known = world.reservations

    def unknown(state: ClusterState) -> Reservations:
        raise errors.Unavailable("the list of ProvisioningRequests is still to come")

    world.reservations = unknown  # type: ignore[method-assign]
    world.restart()
    world.add()
    world.run(SOON)
    assert world.targets() == {}
    assert world.loop.waits_for == "the list of ProvisioningRequests is still to come"
    world.clock.advance(LONG)
    assert [world.planning.take(), world.planning.take()] == [False, True]  # and then it waits a while
    assert not world.turn.locked()
    world.reservations = known  # type: ignore[method-assign]
    world.restart()
    world.run(LONG)
    assert not world.pending()
