"""The walk, from the first cordon to the last deletion: what it does, in which order, and what it undoes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cagrpc import errors
from cagrpc.api.core.movability import Kept
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.state import PodRef
from cagrpc.controllers.consolidation.evictions import REFUSED_SECONDS
from cagrpc.controllers.consolidation.steps import AssignedStep, MovedPod
from cagrpc.controllers.consolidation.successors import SETTLE_SECONDS
from cagrpc.fleet.model import DisruptionPhase, Phase
from cagrpc.kube.client.failures import Forbidden
from solver.consolidation.model import DisruptionReason
from solver.model import PodSpec
from tests.support.controllers.fake_cluster import SimPod
from tests.support.controllers.walking import WalkHarness
from tests.support.fleet import group

DONE, UNDONE, MOVING = DisruptionPhase.DONE, DisruptionPhase.UNDONE, DisruptionPhase.MOVING
GROUPS = (group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9))


@pytest.fixture
def scene() -> Iterator[WalkHarness]:
    made = WalkHarness(GROUPS)
    yield made
    made.close()


def until(scene: WalkHarness, true: Callable[[], object], seconds: float = 300.0) -> None:
    """Step until it is true."""
    end = scene.clock() + seconds
    while not true():
        assert scene.clock() < end, (scene.last(), scene.walk.waits_for)
        scene.step()
        scene.clock.advance(1.0)


def moving(scene: WalkHarness) -> bool:
    return scene.last().phase is MOVING


def nothing_is_left(scene: WalkHarness) -> None:
    """No cordon of ours, no pod that does not run, no node in flight."""
    assert scene.cluster.cordons == {name: mark for name, mark in scene.cluster.cordons.items() if not mark} or (
        not scene.ours()
    )
    assert not scene.pending()
    assert not [each for each in scene.fleet.snapshot.increments if each.phase.in_flight]


def test_pods_move_to_a_new_node_and_the_old_one_goes(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    web = scene.workload("web", 2, on=old)
    begun = scene.begin(old, new={"small": 1})
    assert (begun.reason, begun.pods, begun.saving_usd_per_hour) == ("Underutilized", 2, 0.6)
    assert scene.walk.nodes_that_go == set(old)
    scene.step()
    assert scene.ours() == set(old), "cordoned before the new node is there"
    until(scene, lambda: moving(scene))
    assert scene.cluster.running(web.key) == 2, "nothing goes before the new node is ready"
    scene.run(60)
    assert scene.ended() is DONE
    (new,) = scene.names()
    assert scene.pods_by_node() == {new: 2}
    assert scene.targets() == {"small": 1}
    assert scene.walk.evictions.evicted == 2
    assert [each.id for each in scene.walk.finished] == [begun.id]
    nothing_is_left(scene)


def test_pods_move_to_nodes_that_stand(scene: WalkHarness) -> None:
    first, second, third = scene.stand("big", 3)
    scene.workload("web", 6, on=[first, second, third])
    scene.begin([first], onto=[second, third])
    scene.run(40)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {second: 3, third: 3}
    assert scene.names() == {second, third}


def test_empty_nodes_go_at_once(scene: WalkHarness) -> None:
    old = scene.stand("big", 3)
    scene.begin(old[:2], reason=DisruptionReason.EMPTY)
    scene.run(5)
    assert scene.ended() is DONE
    assert scene.names() == {old[2]}


def test_the_scheduler_puts_nothing_else_where_successors_are_to_go(scene: WalkHarness) -> None:
    """One node has just the room that is planned; another, which the scheduler likes better, has some as well."""
    liked, old, planned = scene.stand("big", 3)
    scene.workload("web", 2, on=[old])
    scene.workload("full", 6, on=[planned])
    scene.begin([old], onto=[planned])
    scene.run(40)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {planned: 8}
    assert liked in scene.names()


def test_where_the_scheduler_is_faster_the_step_ends_all_the_same(scene: WalkHarness) -> None:
    """It binds successors before they are nominated, where it likes."""
    scene.prompt = True
    liked, old, planned = scene.stand("big", 3)
    scene.workload("web", 2, on=[old])
    scene.begin([old], onto=[planned])
    until(scene, lambda: scene.walk.successors.bound == 2)
    assert scene.walk.successors.elsewhere == 2
    scene.run(10)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {liked: 2}


def test_new_nodes_take_pods_one_after_the_other(scene: WalkHarness) -> None:
    """With both open the scheduler, which likes the emptiest, would leave no room for the last pod."""
    scene.prompt = True
    old = scene.stand("big", 1)
    planned = {"small/0": (1000, 500, 500), "small/1": (700, 700, 600)}
    targets: dict[str, str] = {}
    for name, sizes in planned.items():
        for size in sizes:
            made = scene.workload(f"{name}-{size}-{len(targets)}", 1, on=old, cpu=size)
            targets[made.key] = name
    pods = scene.cluster.state_with_bound_pods().bound[old[0]].reschedulable
    moved = tuple(MovedPod(pod, targets[pod.ref.workload]) for pod in pods)
    reason = DisruptionReason.UNDERUTILIZED
    scene.walk.begin(AssignedStep(reason, scene.disrupted(old), moved, {"small": 2}, 0.4))
    until(scene, lambda: moving(scene))
    until(scene, lambda: scene.pods_by_node().get(old[0], 0) == 3)
    assert len(scene.walk.instances_to_hold) == 1
    assert len(scene.cluster.held_nodes()) == 1
    scene.restart()
    scene.run(60)
    assert scene.ended() is DONE
    assert set(scene.pods_by_node().values()) == {3}
    assert scene.walk.instances_to_hold == frozenset()
    nothing_is_left(scene)


def test_new_nodes_that_are_there_stay_for_the_minimum_age_though_the_step_is_undone(scene: WalkHarness) -> None:
    scene.minimum_node_age_seconds = 60.0
    scene.restart()
    old = scene.stand("big", 1)
    web = scene.workload("web", 2, on=old)
    scene.begin(old, new={"small": 2})
    until(scene, lambda: len(scene.names()) > 1)
    assert scene.last().phase is DisruptionPhase.CREATING
    scene.walk.undo("a test wants it")
    scene.run(30)
    assert scene.ended() is UNDONE
    assert len(scene.names()) == 3
    assert scene.pods_by_node() == {old[0]: 2}
    assert scene.cluster.running(web.key) == 2
    nothing_is_left(scene)


@pytest.mark.parametrize("most", [1, 3])
def test_only_so_many_pods_are_away_at_a_time(scene: WalkHarness, most: int) -> None:
    scene.most_in_flight = most
    scene.restart()
    old, other = scene.stand("big", 2)
    web = scene.workload("web", 6, on=[old])
    scene.begin([old], onto=[other])
    scene.cluster.scheduling = False
    scene.run(20)
    assert scene.cluster.running(web.key) == 6 - most
    scene.cluster.scheduling = True
    scene.run(60)
    assert scene.ended() is DONE


def test_a_budget_is_heeded_and_waited_for(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    web = scene.workload("web", 5, on=[old], budget=1)
    scene.begin([old], onto=[other])
    least = 5
    for _ in range(100):
        scene.step()
        least = min(least, scene.cluster.running(web.key))
        scene.clock.advance(1.0)
    assert least >= 4
    assert scene.ended() is DONE
    assert scene.walk.evictions.refused > 0


def test_a_gang_goes_at_once(scene: WalkHarness) -> None:
    scene.most_in_flight = 2
    scene.restart()
    old, other = scene.stand("big", 2)
    scene.workload("train", 4, on=[old], gang="train")
    scene.begin([old], onto=[other])
    counts = set()
    while scene.ended() is None:
        scene.run(1)
        counts.add(len(scene.cluster.evicted))
    assert counts == {0, 4}
    assert scene.ended() is DONE


def test_a_gang_moves_from_nodes_that_stay_as_well(scene: WalkHarness) -> None:
    """Its pod on a node that stays goes with it, and to where it was: the room is its own."""
    old, other = scene.stand("big", 2)
    scene.workload("full", 5, on=[other])
    scene.workload("train", 3, on=[old, other, old], gang="train")
    bound = scene.cluster.state_with_bound_pods().bound
    train = [pod for name in (old, other) for pod in bound[name].reschedulable if pod.gang]
    moved = tuple(MovedPod(pod, other) for pod in train)
    scene.walk.begin(AssignedStep(DisruptionReason.UNDERUTILIZED, scene.disrupted([old]), moved))
    scene.run(60)
    assert scene.ended() is DONE, scene.last()
    assert len(scene.cluster.evicted) == 3
    assert scene.pods_by_node() == {other: 8}


def test_a_node_goes_only_when_its_pods_have_ended(scene: WalkHarness) -> None:
    scene.cluster.grace_seconds = 60.0
    old, other = scene.stand("big", 2)
    scene.workload("web", 1, on=[old])
    scene.begin([old], onto=[other])
    until(scene, lambda: scene.pods_by_node().get(other) == 1)
    scene.run(40)
    assert scene.ended() is None
    scene.run(60)
    assert scene.ended() is DONE


def test_a_workload_that_was_scaled_down_meanwhile_needs_no_successors(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    web = scene.workload("web", 3, on=[old])
    scene.begin([old], onto=[other])
    until(scene, lambda: moving(scene))
    web.replicas = 1
    scene.run(SETTLE_SECONDS - 10)
    assert scene.ended() is None
    scene.run(40)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {other: 1}


# What undoes a step.


def test_new_nodes_that_do_not_come_leave_everything_as_it_was(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    scene.backend.set_behaviour("small", Behaviour(stock=0))
    scene.begin(old, new={"small": 1})
    scene.run(30)
    assert scene.ended() is UNDONE
    assert "new nodes did not come" in scene.last().message
    assert not scene.cluster.evicted
    assert scene.pods_by_node() == {old[0]: 2}
    assert not scene.cluster.cordons
    nothing_is_left(scene)


def test_undone_before_pods_move_new_nodes_are_withdrawn(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    scene.begin(old, new={"small": 1})
    scene.run(8)
    scene.walk.undo("somebody wants it so")
    scene.walk.undo("twice")
    scene.run(60)
    assert (scene.ended(), scene.last().message) == (UNDONE, "somebody wants it so")
    assert scene.names() == set(old)
    assert not scene.cluster.cordons
    nothing_is_left(scene)


def test_undone_half_way_pods_stay_where_they_are_and_what_is_empty_goes(scene: WalkHarness) -> None:
    scene.most_in_flight = 1
    scene.restart()
    first, second = scene.stand("big", 2)
    scene.workload("web", 2, on=[first])
    scene.workload("stuck", 2, on=[second], budget=0)
    scene.begin([first, second], new={"small": 3})
    until(scene, lambda: first not in scene.pods_by_node() and not scene.pending())
    scene.walk.undo("enough")
    scene.run(60)
    assert scene.ended() is UNDONE
    by_node = scene.pods_by_node()
    assert by_node[second] == 2
    assert scene.names() == set(by_node), "old and new nodes without pods are gone"
    nothing_is_left(scene)


def test_undone_half_way_young_nodes_stay_until_they_are_older(scene: WalkHarness) -> None:
    """A node that has just been made may be wanted by the next pods; the next plan finds it empty, and old enough."""
    scene.most_in_flight, scene.minimum_node_age_seconds, scene.cluster.tells_ages = 1, 3600.0, True
    first, second = scene.stand("big", 2)
    scene.clock.advance(3600.0)
    scene.restart()
    scene.workload("web", 2, on=[first])
    scene.workload("stuck", 2, on=[second], budget=0)
    scene.begin([first, second], new={"small": 4})
    until(scene, lambda: first not in scene.pods_by_node() and not scene.pending())
    scene.walk.undo("enough")
    scene.run(60)
    assert scene.ended() is UNDONE
    assert len(scene.names()) == 1 + 4, "the old node without pods is gone"
    assert first not in scene.names()
    nothing_is_left(scene)


def test_a_deadline_that_passes_undoes_it(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old, budget=0)
    scene.begin(old, new={"small": 1})
    scene.run(880, step=5.0)
    assert scene.ended() is None
    assert "not evicted yet" in scene.walk.waits_for
    scene.run(100)
    assert scene.ended() is UNDONE
    assert "not through after 900 s: pod ns/" in scene.last().message
    assert scene.names() == set(old)
    nothing_is_left(scene)


def test_a_pod_that_comes_before_the_cordon_is_seen_moves_with_the_others(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old])
    scene.begin([old], onto=[other])
    late = scene.workload("late", 1, on=[old])
    scene.run(30)
    assert scene.ended() is DONE
    assert len(scene.cluster.evicted) == 3
    assert scene.cluster.running(late.key) == 1
    assert scene.pods_by_node() == {other: 3}
    nothing_is_left(scene)


def test_a_pod_that_comes_while_the_new_node_boots_moves_there(scene: WalkHarness) -> None:
    first, second = scene.stand("big", 2)
    scene.workload("web", 1, on=[first, second], cpu=500)
    scene.begin([first, second], new={"small": 1})
    scene.workload("late", 1, on=[second])
    until(scene, lambda: scene.ended() is not None)
    assert scene.ended() is DONE
    (new,) = scene.names()
    assert scene.pods_by_node() == {new: 2}
    nothing_is_left(scene)


def test_the_node_of_a_pod_that_comes_and_finds_no_room_stays(scene: WalkHarness) -> None:
    first, second, third = scene.stand("big", 3)
    scene.workload("web", 2, on=[first, second])
    scene.begin([first, second], onto=[third])
    scene.workload("late", 1, on=[second], cpu=7000)
    scene.run(30)
    assert scene.ended() is DONE
    assert scene.names() == {second, third}
    assert len(scene.cluster.evicted) == 1
    nothing_is_left(scene)


@pytest.mark.parametrize("moved", [False, True], ids=["before anything moves", "while pods move"])
def test_a_pod_that_comes_and_may_not_be_moved_keeps_its_node(scene: WalkHarness, *, moved: bool) -> None:
    first, second, third = scene.stand("big", 3)
    web = scene.workload("web", 2, on=[first, second], budget=0 if moved else 2)
    scene.begin([first, second], onto=[third])
    if moved:
        until(scene, lambda: moving(scene))
    job = scene.workload("job", 1, on=[second])
    uid = next(each.ref.uid for each in scene.cluster.pods.values() if each.ref.workload == job.key)
    scene.cluster.kept[uid] = Kept.UNTIL_IT_ENDS, "it runs until it ends"
    scene.run(10)
    web.budget = 2
    scene.run(30)
    assert scene.ended() is DONE
    assert scene.names() == {second, third}
    assert uid not in scene.cluster.evicted
    nothing_is_left(scene)


def test_what_is_left_of_a_step_that_saves_nothing_is_undone(scene: WalkHarness) -> None:
    first, second = scene.stand("small", 2)
    scene.workload("web", 2, on=[first, second], cpu=500)
    begun = scene.begin([first, second], new={"small": 1})
    assert begun.saving_usd_per_hour == pytest.approx(0.2)
    job = scene.workload("job", 1, on=[second])
    uid = next(each.ref.uid for each in scene.cluster.pods.values() if each.ref.workload == job.key)
    scene.cluster.kept[uid] = Kept.UNTIL_IT_ENDS, "it runs until it ends"
    scene.run(60)
    assert scene.ended() is UNDONE
    assert scene.last().message.endswith("may not be moved any more: it runs until it ends")
    assert scene.names() == {first, second}
    assert not scene.cluster.evicted
    nothing_is_left(scene)


def test_a_gang_of_which_one_pod_may_not_be_moved_stays_whole(scene: WalkHarness) -> None:
    first, second, third, fourth = scene.stand("big", 4)
    scene.workload("gang", 2, on=[first, fourth], gang="red", budget=0)
    scene.workload("web", 1, on=[second], budget=0)
    begun = scene.begin([first, second], onto=[third], also=[fourth])
    until(scene, lambda: moving(scene))
    uid = next(each.uid for each in begun.moves if each.gang and scene.cluster.pods[each.uid].node == fourth)
    scene.cluster.kept[uid] = Kept.BY_OWNER, "it says do-not-disrupt"
    for each in scene.cluster.workloads.values():
        each.budget = 2
    scene.run(60)
    assert scene.ended() is DONE
    assert scene.names() == {first, third, fourth}
    assert len(scene.cluster.evicted) == 1
    nothing_is_left(scene)


def test_room_that_others_took_before_an_eviction_undoes_it(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old])
    scene.begin([old], onto=[other])
    scene.workload("thief", 7, on=[other])
    scene.run(20)
    assert scene.ended() is UNDONE
    assert "has no room for it any more" in scene.last().message
    assert not scene.cluster.evicted
    nothing_is_left(scene)


def test_pods_whose_room_others_took_go_to_other_nodes_that_stay(scene: WalkHarness) -> None:
    old, other, third = scene.stand("big", 3)
    scene.workload("web", 2, on=[old])
    scene.begin([old], onto=[other])
    scene.workload("thief", 7, on=[other])
    scene.run(30)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {other: 8, third: 1}
    assert scene.names() == {other, third}
    nothing_is_left(scene)


def test_room_that_others_took_after_an_eviction_is_the_planners_to_find() -> None:
    scene = WalkHarness(GROUPS, plans=True)
    try:
        old, other = scene.stand("big", 2)
        scene.workload("web", 2, on=[old])
        scene.begin([old], onto=[other])
        scene.cluster.scheduling = False
        until(scene, lambda: len(scene.cluster.evicted) == 2)
        scene.workload("thief", 8, on=[other])
        scene.cluster.scheduling = True
        scene.run(120)
        assert scene.ended() is DONE
        assert scene.walk.under_way is None
        assert scene.targets() == {"big": 1, "small": 1}
        nothing_is_left(scene)
    finally:
        scene.close()


def test_where_successors_take_room_of_others_these_get_another_target(scene: WalkHarness) -> None:
    old, one, two = scene.stand("big", 3)
    scene.workload("web", 4, on=[old])
    scene.begin([old], onto=[one])
    scene.workload("thief", 6, on=[one])
    scene.run(60)
    assert scene.ended() is DONE
    assert len(scene.cluster.evicted) == 4
    assert scene.names() == {one, two}
    nothing_is_left(scene)


def test_a_node_whose_pods_have_no_room_any_more_stays_and_the_others_go(scene: WalkHarness) -> None:
    first, second, other = scene.stand("big", 3)
    scene.workload("web", 2, on=[first])
    scene.workload("more", 2, on=[second])
    scene.begin([first, second], onto=[other])
    scene.workload("thief", 6, on=[other])
    scene.run(60)
    assert scene.ended() is DONE
    assert len(scene.cluster.evicted) == 2
    assert len(scene.names()) == 2
    assert scene.names() > {other}
    nothing_is_left(scene)


def test_a_target_that_is_not_ready_any_more_undoes_it(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old], budget=0)
    scene.begin([old], onto=[other])
    until(scene, lambda: moving(scene))
    scene.cluster.unready.add(other)
    scene.run(20)
    assert scene.ended() is UNDONE
    assert "gone or not Ready" in scene.last().message
    nothing_is_left(scene)


def test_a_new_node_that_vanishes_undoes_it(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old, budget=0)
    scene.begin(old, new={"small": 1})
    until(scene, lambda: moving(scene))
    (new,) = scene.names() - set(old)
    scene.fleet.delete_instances("small", [f"simulated://{new}"])
    scene.run(60)
    assert scene.ended() is UNDONE
    assert scene.names() == set(old)
    nothing_is_left(scene)


def test_an_old_node_that_vanishes_is_as_good_as_removed(scene: WalkHarness) -> None:
    first, second, other = scene.stand("big", 3)
    scene.workload("web", 2, on=[first, second])
    scene.begin([first, second], onto=[other])
    scene.step()
    scene.fleet.delete_instances("big", [f"simulated://{first}"])
    scene.run(60)
    assert scene.ended() is DONE
    assert scene.names() == {other}
    assert scene.pods_by_node() == {other: 2}


def test_a_cordon_that_somebody_lifts_undoes_it(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old], budget=0)
    scene.begin([old], onto=[other])
    until(scene, lambda: moving(scene))
    scene.cluster.cordons.clear()
    scene.run(20)
    assert scene.ended() is UNDONE
    assert f"lifted the cordon of node {old}" in scene.last().message
    assert not scene.cluster.cordons


def test_a_cordon_of_somebody_else_stays(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old], budget=0)
    scene.cluster.cordons[old] = None
    scene.begin([old], onto=[other])
    until(scene, lambda: moving(scene))
    scene.walk.undo("enough")
    scene.run(20)
    assert scene.ended() is UNDONE
    assert scene.cluster.cordons == {old: None}


def test_a_pod_that_may_not_go_any_more_undoes_it(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old], budget=0)
    scene.begin([old], onto=[other])
    until(scene, lambda: moving(scene))
    uid = next(iter(scene.cluster.pods))
    scene.cluster.kept[uid] = Kept.BY_OWNER, "it says do-not-disrupt"
    scene.run(20)
    assert scene.ended() is UNDONE
    assert "may not be moved any more: it says do-not-disrupt" in scene.last().message


def test_a_missing_right_undoes_it(scene: WalkHarness) -> None:
    def forbidden(what: str, do: Callable[[], dict[str, object]]) -> dict[str, object]:
        if what.startswith("evict"):
            raise Forbidden("the right to create pods/eviction is missing")
        return do()

    scene.fault = forbidden
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old])
    scene.begin([old], onto=[other])
    scene.run(20)
    assert scene.ended() is UNDONE
    assert "the right to create pods/eviction is missing" in scene.last().message


def test_a_minimum_that_somebody_else_used_up_undoes_it() -> None:
    scene = WalkHarness([group("big", cpu=8000, price=0.8, min_size=1)])
    try:
        first, second = scene.stand("big", 1)
        scene.begin([first], reason=DisruptionReason.EMPTY)
        while not moving(scene):
            scene.walk.advance()
        scene.fleet.delete_instances("big", [f"simulated://{second}"])
        for _ in range(3):
            scene.walk.advance()
        assert scene.ended() is UNDONE
        assert "fewer than its minimum of 1" in scene.last().message
        assert scene.names() == {first}
        assert not scene.cluster.cordons
    finally:
        scene.close()


# Nodes that go whatever happens.


def test_of_a_node_that_its_cloud_takes_what_may_not_be_evicted_is_waited_for(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 2, on=[old])
    scene.workload("own", 1, on=[old])
    uid = next(uid for uid, pod in scene.cluster.pods.items() if pod.ref.workload.endswith("own"))
    scene.cluster.kept[uid] = Kept.BY_OWNER, "it says do-not-disrupt"
    scene.begin([old], onto=[other], reason=DisruptionReason.INTERRUPTED)
    scene.run(60)
    assert scene.ended() is None
    assert scene.pods_by_node() == {old: 1, other: 2}
    scene.fleet.delete_instances("big", [f"simulated://{old}"])
    scene.run(60)
    assert scene.ended() is DONE
    assert scene.pods_by_node() == {other: 3}


def test_of_a_node_that_its_cloud_takes_pods_go_though_the_room_is_taken() -> None:
    scene = WalkHarness(GROUPS, plans=True)
    try:
        old, other = scene.stand("big", 2)
        scene.workload("web", 2, on=[old])
        scene.begin([old], onto=[other], reason=DisruptionReason.INTERRUPTED)
        scene.workload("late", 1, on=[old])
        scene.workload("thief", 8, on=[other])
        scene.run(200)
        assert scene.ended() is DONE
        assert old not in scene.names()
        nothing_is_left(scene)
    finally:
        scene.close()


# The API server.


def test_while_the_cluster_is_not_known_nothing_happens_and_the_deadline_waits(scene: WalkHarness) -> None:
    old, other = scene.stand("big", 2)
    scene.workload("web", 4, on=[old], budget=1)
    scene.begin([old], onto=[other])
    until(scene, lambda: scene.cluster.evicted)
    gone = len(scene.cluster.evicted)
    scene.cluster.problem = "the API server is away"
    scene.run(1500, step=10.0)
    assert scene.walk.waits_for == "the API server is away"
    assert len(scene.cluster.evicted) == gone
    scene.cluster.problem = None
    scene.run(100)
    assert scene.ended() is DONE


@pytest.mark.parametrize("done", [False, True])
def test_requests_that_fail_or_whose_answers_are_lost_are_repeated(scene: WalkHarness, *, done: bool) -> None:
    seen: dict[str, int] = {}

    def flaky(what: str, do: Callable[[], dict[str, object]]) -> dict[str, object]:
        seen[what] = seen.get(what, 0) + 1
        if seen[what] <= 2:
            if done:
                do()
            raise errors.Unavailable("an answer was lost")
        return do()

    scene.fault = flaky
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    scene.begin(old, new={"small": 1})
    scene.run(60 + 6 * REFUSED_SECONDS)
    assert scene.ended() is DONE
    assert len(scene.cluster.evicted) == 2
    nothing_is_left(scene)


def test_a_successor_of_the_same_name_moves_as_a_pod_of_its_own(scene: WalkHarness) -> None:
    """A StatefulSet's pod that was deleted by somebody is bound again before its node was cordoned."""
    old, other = scene.stand("big", 2)
    scene.workload("db", 1, on=[other])
    web = scene.workload("web", 1, on=[old])
    scene.begin([old], onto=[other])
    pod = next(each for each in scene.cluster.pods.values() if each.ref.workload == web.key)
    del scene.cluster.pods[pod.ref.uid]
    again = PodRef("uid-again", "ns", pod.ref.name, int(scene.clock()), web.key)
    scene.cluster.pods["uid-again"] = SimPod(again, PodSpec((("cpu", 1000),)), scene.clock(), node=old)
    scene.run(30)
    assert scene.ended() is DONE
    assert scene.cluster.evicted == ["uid-again"]
    assert scene.cluster.running(web.key) == 1


def test_room_for_successors_is_kept_from_the_planner() -> None:
    """Other pods come while the new node boots: they get nodes of their own, and the step ends as it was planned."""
    scene = WalkHarness(GROUPS, plans=True)
    try:
        old = scene.stand("big", 1)
        web = scene.workload("web", 2, on=old)
        scene.begin(old, new={"small": 1})
        scene.run(3)
        scene.workload("other", 2)
        scene.run(120)
        assert scene.ended() is DONE
        assert scene.targets() == {"small": 2}
        where = {pod.node for pod in scene.cluster.pods.values() if pod.ref.workload == web.key}
        assert len(where) == 1
        nothing_is_left(scene)
    finally:
        scene.close()


def test_what_goes_to_new_nodes_is_known_by_the_names_of_these(scene: WalkHarness) -> None:
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    begun = scene.begin(old, new={"small": 1})
    scene.step()
    coming = f"{begun.increment_id}/small/0"
    assert {name: len(kept) for name, kept in scene.walk.reservations(scene.cluster.read()).items()} == {coming: 2}
    scene.releases = False
    until(scene, lambda: scene.fleet.increment(begun.increment_id).phase is Phase.READY)
    (new,) = scene.names() - set(old)
    found = scene.walk.reservations(scene.cluster.read())
    assert len(found[new]) == 2
    scene.releases = True
    scene.run(60)
    assert scene.walk.reservations(scene.cluster.read()) == {}
