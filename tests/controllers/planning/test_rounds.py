"""When planning rounds begin: once no pod has come for a second, and ten seconds after the first one at the latest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cagrpc.controllers.slack.model import SlackSettings, TargetSettings
from cagrpc.fleet.model import IncrementSpec
from solver.model import PodSpec
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
