"""When planning rounds begin: once no pod has come for a second, and ten seconds after the first one at the latest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from cagrpc.cluster.drop_invalid import ValidPlan, solve_valid
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.planning import controller
from cagrpc.controllers.slack.model import SlackSettings, TargetSettings
from cagrpc.fleet.model import IncrementSpec
from solver.model import Budget, PodSpec, Problem
from solver.slack.model import Copies
from tests.support.cluster import NAMESPACE, OTHER_NAMESPACE, path_of
from tests.support.fleet import group
from tests.support.world import NewWorld, World

TICK = 0.25
A, B = group("a", cpu=4000, max_size=1000), group("b", cpu=100, max_size=1000)
PLACEHOLDERS = SlackSettings(targets=(TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", 1000),)), 2),)),))


def rounds(world: World) -> int:
    return len(world.page("/plans"))


def add(count: int = 1, *, cpu: int = 1, namespace: str = NAMESPACE) -> Callable[[World], object]:
    return lambda world: world.cluster.add(count, cpu=cpu, namespace=namespace)


def want(replicas: int) -> Callable[[World], object]:
    return lambda world: world.cluster.workload("web", replicas, cpu=1, creates=False)


def create(count: int) -> Callable[[World], object]:
    return lambda world: world.cluster.create("web", count)


def size_changes(world: World) -> None:
    world.fleet.apply(IncrementSpec({"b": 1}))


@dataclass(frozen=True)
class Case:
    name: str
    at: Mapping[float, Callable[[World], object]]
    """What happens when, in seconds."""
    rounds_at: tuple[float, ...]
    until: float
    always: Callable[[World], object] = lambda _: None
    settings: Mapping[str, Any] = field(default_factory=dict)


CASES = [
    Case("none while no pod waits", {}, (), 20),
    Case("once no pod has come for the idle time", {0: add(), 0.75: add()}, (1.75,), 10),
    Case("when the window is over, where pods keep coming", {}, (10, 20.25), 25, always=add()),
    Case("for pods that are to be created, once", {0: want(3), 2: create(3)}, (1,), 15),
    Case("an old pod that waits shortens no window", {0: add(cpu=9000), 20: add(), 20.5: add()}, (1, 21.5), 25),
    Case("a change of the cluster is news for pods that wait", {0: add(cpu=9000), 10: size_changes}, (1, 11), 20),
    Case("now and then without news, for pods that wait", {0: add(cpu=9000)}, (1, 61), 62),
    Case("for placeholders without room", {}, (1,), 10, settings={"slack": PLACEHOLDERS}),
    Case("news while nothing waits hurries nothing", {5: size_changes, 10: add(cpu=1000)}, (11,), 15),
    Case("where the cluster changes all the time, after a short one", {0: add(cpu=9000)}, (3,), 4, always=size_changes),
    Case("of one namespace alone all of a burst at once", {at / 4: add() for at in range(41)}, (10,), 15),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_when_rounds_begin(case: Case, new_world: NewWorld) -> None:
    world = new_world(A, B, **case.settings)
    world.step()
    began, found = world.clock(), list[float]()
    while (now := world.clock() - began) <= case.until:
        case.always(world)
        if now in case.at:
            case.at[now](world)
        before = rounds(world)
        world.step()
        found += [now] * (rounds(world) - before)
        world.clock.advance(TICK)
    assert found == list(case.rounds_at)


def at_rest(world: World, tick: int) -> None:
    """Nothing happens in the other namespace."""


def replicas_up_and_down(world: World, tick: int) -> None:
    want(5 * (tick % 2))(world)


def another_template_each_time(world: World, tick: int) -> None:
    world.cluster.workload(f"web-{tick % 7}", 3, cpu=tick + 1, creates=False)


def pods_created_and_deleted(world: World, tick: int) -> None:
    (uid,) = world.cluster.add(cpu=1)
    world.deliver()
    world.cluster.delete(uid)


def pods_of_a_workload_deleted(world: World, tick: int) -> None:
    want(3)(world)
    for uid in world.cluster.create("web"):
        world.deliver()
        world.cluster.delete(uid)


def refused_by_a_quota(world: World, tick: int) -> None:
    hard = {"pods": "0"}
    metadata = {"namespace": NAMESPACE, "name": "quota"}
    world.api.put(
        path_of("/api/v1/resourcequotas", "quota"), {"metadata": metadata, "status": {"hard": hard, "used": hard}}
    )
    world.deliver()
    want(5 + tick % 2)(world)


def refused_by_a_webhook(world: World, tick: int) -> None:
    path = path_of("/apis/apps/v1/replicasets", "web")
    if path not in world.api.objects:
        want(0)(world)
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
        failure["message"] = 'admission webhook "w" denied the request: no'
        world.api.change(path, status={"conditions": [failure]})
    world.api.change(path, spec={"replicas": 5})


@pytest.mark.parametrize(
    ("disturb", "longest_seconds"),
    [
        (at_rest, 1.0),
        (refused_by_a_quota, 1.0),
        (refused_by_a_webhook, 1.0),
        (replicas_up_and_down, 3.0),
        (another_template_each_time, 3.0),
        (pods_created_and_deleted, 3.0),
        (pods_of_a_workload_deleted, 3.0),
    ],
)
def test_what_goes_on_in_one_namespace_keeps_the_pods_of_another_waiting_for_a_short_time_only(
    disturb: Callable[[World, int], None], longest_seconds: float, new_world: NewWorld
) -> None:
    world, waited = new_world(A), list[float]()
    world.step()
    came = world.clock() + 2
    for tick in range(60):
        disturb(world, tick)
        if world.clock() == came:
            world.cluster.add(cpu=1, namespace=OTHER_NAMESPACE)
        before = rounds(world)
        world.step()
        if rounds(world) > before and world.clock() >= came:
            waited.append(world.clock() - came)
            came = world.clock() + TICK
        world.clock.advance(TICK)
    assert len(waited) >= 3
    assert min(waited) >= 1.0
    assert max(waited) <= longest_seconds + TICK


class _Slow:
    """Planning takes so long where pods are among them that no node can serve."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self._world, self._seconds = world, seconds
        self.planned: list[int] = []
        """How many pods each round has planned."""
        monkeypatch.setattr(controller, "solve_valid", self)

    def __call__(self, problem: Problem, budget: Budget) -> ValidPlan:
        self.planned.append(sum(each.count for each in problem.pod_sets))
        found = solve_valid(problem, budget)
        if found.plan.unplaced:
            self._world.clock.advance(self._seconds)
        return found


def test_pods_that_a_long_round_left_out_hold_up_nobody(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 5.0)
    world.cluster.add(3, cpu=99_000)
    world.run(3.0, TICK)
    assert slow.planned == [3]
    for number in range(3):
        world.cluster.add(cpu=4000)
        world.run(3.0, TICK)
        assert len(world.increments()) == number + 1
    assert slow.planned == [3, 1, 1, 1]
    assert [sum(each["count"] for each in plan["unplaced"]) for plan in world.page("/plans")] == [3] * 4
    world.run(20.0, TICK)
    assert 3 in slow.planned[4:], "they are planned again in a fifth of the time"
    assert len(slow.planned) < 4 + 20 / 5


def test_new_pods_come_first_when_others_have_backed_off_for_long_enough(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 5.0)
    world.cluster.add(3, cpu=99_000)
    world.run(3.0, TICK)
    world.clock.advance(30.0)
    world.cluster.add(cpu=4000)
    world.run(3.0, TICK)
    assert slow.planned == [3, 1, 3]


def test_pods_that_are_left_out_again_back_off_for_longer(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(A)
    slow, long_ones = _Slow(world, monkeypatch, 5.0), list[float]()
    world.cluster.add(3, cpu=99_000)
    for _ in range(60):
        world.cluster.add(cpu=4000)
        before = slow.planned.count(3) + slow.planned.count(4)
        world.run(5.0, TICK)
        if slow.planned.count(3) + slow.planned.count(4) > before:
            long_ones.append(world.clock())
    apart = [later - earlier for earlier, later in pairwise(long_ones)]
    assert len(apart) >= 4
    assert apart[0] < apart[1] < apart[2]
    assert all(50.0 <= each <= 75.0 for each in apart[2:])


def test_pods_that_a_long_round_left_out_come_before_those_of_lower_priority(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 5.0)
    world.cluster.add(3, cpu=99_000, priority=10)
    world.run(3.0, TICK)
    world.cluster.add(cpu=4000)
    world.run(3.0, TICK)
    assert slow.planned == [3, 4]


def test_pods_that_a_short_round_left_out_are_planned_with_those_that_come(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 0.5)
    world.cluster.add(3, cpu=99_000)
    world.run(3.0, TICK)
    world.cluster.add(cpu=4000)
    world.run(3.0, TICK)
    assert slow.planned[:2] == [3, 4]


def test_pods_that_back_off_are_told_of_once_and_only_while_they_wait(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 10.0)
    low, high = [world.cluster.add(2, cpu=99_000, priority=priority) for priority in (0, 10)]
    world.run(3.0, TICK)
    world.cluster.delete(low[0])
    world.cluster.add(cpu=4000, priority=5)
    world.run(3.0, TICK)
    assert slow.planned == [4, 3], "those of a higher priority are planned with the new pod"
    unplaced = world.page("/plans")[-1]["unplaced"]
    assert [each["count"] for each in unplaced] == [2, 1]
    waiting = {f"{NAMESPACE}/{uid.replace('uid', 'pod')}" for uid in (*high, low[1])}
    assert {each["example"] for each in unplaced} <= waiting
    assert all(each["reasons"] for each in unplaced)
    assert world.assumed.left_out == {*high, low[1]}


def test_pods_that_have_a_place_keep_none_of_higher_priority_from_backing_off(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A)
    slow = _Slow(world, monkeypatch, 10.0)
    world.cluster.add(cpu=4000, priority=0)
    world.cluster.add(3, cpu=99_000, priority=5)
    world.run(3.0, TICK)
    world.cluster.add(cpu=4000, priority=5)
    world.run(3.0, TICK)
    assert slow.planned == [4, 1]


def test_pods_that_a_long_round_left_out_are_planned_when_a_shortage_is_over(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(A, B)
    slow = _Slow(world, monkeypatch, 15.0)
    at = world.clock()
    world.assumed.shortages.note([B], "out of stock", at=at, asked_at=at)
    world.cluster.add(3, cpu=99_000)
    world.run(3.0, TICK)
    world.cluster.add(cpu=4000)
    world.run(3.0, TICK)
    assert slow.planned == [3, 1]
    with monkeypatch.context() as over:
        over.setattr(AssumeCache, "active_shortages", lambda _self, _fleet: ())
        world.run(3.0, TICK)
    assert slow.planned == [3, 1, 3]
