"""What the planner loop orders for the pods that wait: which node groups have how many nodes in the end, and who still
waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.slack.model import SlackSettings, TargetSettings
from cagrpc.errors import FailedPrecondition, Unavailable
from cagrpc.fleet.model import ExpectedPod, IncrementSpec, Phase, Placement, PodKey
from cagrpc.fleet.records import Changes
from solver.model import Limit, NodeGroup, PodSpec, Taint, TaintEffect, Toleration
from solver.slack.model import Copies
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS, PLANNER, Happening, NewWorld, World

SOON, LATER, LONG = BOOT_SECONDS / 2, 2 * BOOT_SECONDS, 100.0
GPU = "nvidia.com/gpu"
A = group("a", cpu=4000)
B = group("b", cpu=10000, price=0.24)
PLAIN = group("plain", price=0.1, cpu=4000)
GPUS = group("gpu", price=1.0, taints=(Taint(GPU, TaintEffect.NO_SCHEDULE),))
GPUS = replace(GPUS, allocatable={**GPUS.allocatable, GPU: 1})
WITH_GPU = PodSpec((("cpu", 4000), (GPU, 1)), tolerations=(Toleration(GPU, "Exists"),))
CHEAP, DEAR = group("cheap", zone="z"), group("dear", price=0.3, zone="z")
SPOT: dict[str, Any] = {"instance_type": "m", "zone": "z", "capacity_type": "spot"}
GONE = Behaviour(stock=0)
PLACEHOLDERS = SlackSettings(targets=(TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", 1000),)), 3),)),))
PLACING, RELEASING = "placing pods", "releasing nodes"
FOR_A_REQUEST = IncrementSpec({"a": 1}, requests=frozenset({"u1"}), placements=(Placement("a", requests=("u1",)),))


def add(count: int = 1, **more: Any) -> Happening:
    return lambda world: world.cluster.add(count, **more)


def gang(plain: int, gpus: int) -> Happening:
    def come(world: World) -> None:
        world.cluster.add(gpus, spec=WITH_GPU, gang="train")
        world.cluster.add(plain, cpu=4000, gang="train")

    return come


def want(replicas: int, name: str = "web", **more: Any) -> Happening:
    """Scale a workload that creates none of its pods by itself."""
    return lambda world: world.cluster.workload(name, replicas, creates=False, **more)


def create(count: int = 1, name: str = "web") -> Happening:
    return lambda world: world.cluster.create(name, count)


def trickle(count: int, name: str = "web", seconds: float = 5.0) -> Happening:
    return lambda world: world.play(*(create(name=name), seconds) * count)


def behave(name: str, behaviour: Behaviour | None = None, **of: Any) -> Happening:
    found = behaviour or (Behaviour(**of) if of else None)
    return lambda world: world.backend.set_behaviours({name: found})


def delete(*uids: str) -> Happening:
    return lambda world: world.cluster.delete(*uids)


def meanwhile(*story: Happening) -> Happening:
    """While the next round is planned."""
    return lambda world: world.meanwhile(lambda: [callable(each) and each(world) for each in story])


def set_cluster(**attributes: object) -> Happening:
    return lambda world: vars(world.cluster).update(attributes)


def daemon_set(world: World) -> None:
    world.cluster.daemon_set("agent", cpu=500)


def idle(*controllers: str) -> Happening:
    return lambda world: world.idle.update(controllers)


def journal(*, broken: bool) -> Happening:
    return lambda world: setattr(world.journal, "broken", broken)


def breaks_at_its_first_increment(world: World) -> None:
    real = world.journal.commit

    def commit(changes: Changes) -> None:
        if changes.increments:
            vars(world.journal)["commit"] = real
            raise Unavailable("journal: out of reach")
        real(changes)

    vars(world.journal)["commit"] = commit


def takes_the_place_of(uid: str) -> Happening:
    """Another pod is bound to where a pod is nominated."""

    def bind(world: World) -> None:
        world.cluster.add(cpu=3000, node=world.api.objects[world.cluster.paths[uid]]["status"]["nominatedNodeName"])

    return bind


def phases(*expected: Phase) -> Happening:
    def check(world: World) -> None:
        assert [each.phase for each in world.increments()] == list(expected)

    return check


def ordered(**expected: int) -> Happening:
    def check(world: World) -> None:
        assert world.targets() == expected

    return check


def rounds(count: int) -> Happening:
    def check(world: World) -> None:
        assert len(world.page("/plans")) == count

    return check


def pods_of_rounds(*expected: int) -> Happening:
    def check(world: World) -> None:
        assert [each["pods"] for each in world.page("/plans")] == list(expected)

    return check


def shortages(*expected: str) -> Happening:
    def check(world: World) -> None:
        assert [each["offering"] for each in world.page("/plans")[-1]["shortages"]] == list(expected)

    return check


def of_increments(*expected: set[PodKey]) -> Happening:
    """For which pods each increment is."""

    def check(world: World) -> None:
        assert [each.increment.pods for each in world.increments()] == list(expected)

    return check


def told(uid: str, text: str) -> Happening:
    def check(world: World) -> None:
        assert [each.text for each in world.events() if each.uid == uid and each.text.startswith(text)]

    return check


def released_while_placed(world: World) -> None:
    """Let an increment become ready, and be observed for releasing just before it is for placing."""
    world.idle = {PLACING, RELEASING}
    world.run(20)
    steps = {each.controller.name: each for each in world._steps}
    steps[RELEASING].take()
    steps[PLACING].take()
    for queue in steps[RELEASING].controller.queues():
        queue.run_due()
    world.idle = set()


def held(count: int) -> Happening:
    """Nodes with the start-up taint."""

    def check(world: World) -> None:
        assert len(world.cluster.held()) == count

    return check


def still_waiting(count: int) -> Happening:
    def check(world: World) -> None:
        assert len(world.cluster.pending()) == count

    return check


def waits_for(what: str) -> Happening:
    def check(world: World) -> None:
        assert world.status()["planner"] == what

    return check


def no_machines(world: World) -> None:
    assert not world.backend.list_instances().instances


def none_held(world: World) -> None:
    assert not world.cluster.held()


def orders_at(*expected: int) -> Happening:
    """When the next increments are ordered, in units of 100 s from the first one."""

    def check(world: World) -> None:
        tried: list[float] = []
        for _ in range(270):
            before = len(world.increments())
            world.run(5, step=5)
            tried += [world.clock()] * (len(world.increments()) > before)
        assert [round((at - tried[0]) / 100) for at in tried] == list(expected)

    return check


def not_ready(world: World) -> None:
    world.cluster.unready.update(world.cluster.nodes())


def withdraw(world: World) -> None:
    world.fleet.withdraw(world.increments()[0].id, "taken back")


def no_deletions(world: World) -> None:
    def below_the_minimum(*_: object) -> None:
        raise FailedPrecondition("node group a: the minimum is 2")

    vars(world.fleet)["delete_instances"] = below_the_minimum


def node_goes(world: World) -> None:
    (instance,) = world.fleet.snapshot.groups["a"].instances
    world.fleet.delete_instances("a", [instance.id])


@dataclass(frozen=True)
class Case:
    name: str
    groups: tuple[NodeGroup, ...]
    story: tuple[Happening, ...]
    targets: dict[str, int]
    """In the end."""
    pending: int = 0
    """Pods that wait then."""
    limits: tuple[Limit, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    done: bool = True
    """Whether nothing is in flight in the end."""


NODES_IN_USE = [
    Case("a burst is one round", (A, group("b", cpu=8000, price=0.15)), (
        add(6, cpu=2000), 0.5, add(4, cpu=2000), LONG, rounds(1)), {"a": 1, "b": 2}),
    Case("pods that come while nodes boot use what is left", (A,), (add(3), SOON, add(), LONG), {"a": 1}),
    Case("what is planned for a coming node is not planned over", (A,), (add(3), SOON, add(2), LONG), {"a": 2}),
    Case("daemon sets take their part of coming nodes", (A,), (daemon_set, add(3), SOON, add(), LONG), {"a": 2}),
    Case("late daemon pods keep their room on held nodes", (A,), (
        daemon_set, set_cluster(daemons_come=False, scheduling=False), idle(RELEASING), add(3), LATER,
        phases(Phase.READY), add(), SOON), {"a": 2}, pending=4, done=False),
    Case("a node that is ready before its increment is counted once", (GPUS, PLAIN), (
        behave("gpu", boot_seconds=10 * BOOT_SECONDS), gang(1, 1), LATER, phases(Phase.CREATING), add(cpu=4000), SOON,
        ), {"gpu": 1, "plain": 2}, pending=3, done=False),
    Case("a held node that is not ready for a moment is still coming", (A,), (
        idle(RELEASING), add(3), LATER, phases(Phase.READY), not_ready, add(), SOON,
        told("uid-4", "there is room on a node that is coming")), {"a": 1}, pending=4, done=False),
    Case("what a round orders is no news to the next", (A,), (add(3), 3, rounds(1), SOON, rounds(1)), {"a": 1},
         pending=3, done=False),
    Case("the replacement of a pod whose node boots uses that node", (A,), (
        add(cpu=4000), SOON, lambda world: world.cluster.replace("uid-1"), LONG), {"a": 1}),
    Case("a pod that is bound elsewhere leaves its room on the coming node", (A,), (
        add(4), LONG, add(), SOON, delete("uid-1"), 1, add(4), LONG), {"a": 2}),
    Case("pods of a released increment are the scheduler's", (A,), (
        set_cluster(scheduling=False), add(4), BOOT_SECONDS + 10, phases(Phase.DONE), add(), SOON, ordered(a=2), LONG,
        ordered(a=2), set_cluster(scheduling=True), 2), {"a": 2}),
    Case("limits hold", (A,), (add(3, cpu=4000), LONG), {"a": 2}, pending=1, limits=(Limit("team", {"nodes": 2}),)),
    Case("an invalid pod blocks no other", (A,), (add(), add(cpu=2 * 10**15), LONG), {"a": 1}, pending=1),
    Case("a node that is not ready is no room", (A,), (add(), LONG, not_ready, add(), 60), {"a": 2}),
    Case("who has lost a place is ordered for once", (A,), (
        set_cluster(scheduling=False), add(2, cpu=3000), LATER, phases(Phase.DONE), takes_the_place_of("uid-1"), 5,
        takes_the_place_of("uid-2"), 5, pods_of_rounds(2, 1, 1), set_cluster(scheduling=True), LONG), {"a": 4}),
]  # fmt: skip

STILL_TO_BE_CREATED = [
    Case("one round plans them all", (A, B), (
        want(10), create(2), SOON, pods_of_rounds(10), trickle(8), LONG, rounds(1)), {"b": 1}),
    Case("a round begins though none waits", (A, B), (want(3), SOON, ordered(a=1), create(3), LONG), {"a": 1}),
    Case("a node is held until all of its pods are there", (A,), (
        behave("*", boot_seconds=5), want(4), create(3), 15, still_waiting(3), add(), 8, ordered(a=2), create(), LONG,
        ), {"a": 2}),
    Case("nodes are released together, once all of their pods have come", (A, B), (
        behave("*", boot_seconds=5), want(8), create(4), 20, still_waiting(4), create(4), LONG, rounds(1)), {"a": 2}),
    Case("and all those of a round", (PLAIN, GPUS), (
        behave("*", boot_seconds=5), want(4), want(1, "train", spec=WITH_GPU), create(4), 20, still_waiting(4),
        create(1, "train"), LONG, rounds(1)), {"plain": 1, "gpu": 1}),
    Case("nodes that are ready before it is known who goes there stay held", (A, B), (
        behave("*", boot_seconds=5), want(4), 3, released_while_placed, held(1), create(4), LONG, rounds(1)), {"a": 1}),
    Case("nodes for pods that never come are not kept", (A,), (
        want(8), create(3), LATER, want(3), 120, phases(Phase.DONE)), {"a": 1}),
    Case("where their nodes may not be deleted they are released", (A,), (
        want(8), SOON, no_deletions, LATER, want(0), 120, none_held), {"a": 2}),
    Case("pods given up while planned are not ordered for", (A, B), (want(3), 0.5, meanwhile(want(0)), SOON), {}),
    Case("pods that come while they are planned are who the increment is for", (A, B), (
        want(3), 0.5, meanwhile(create(2)), SOON,
        of_increments({"uid-1", "uid-2", ExpectedPod("ReplicaSet/ns/web", 0)})), {"a": 1}, pending=2, done=False),
    Case("those of a failed increment are planned anew", (A, replace(B, price_usd_per_hour=0.5)), (
        want(4), create(2), SOON, withdraw, LONG, create(2), LONG), {"a": 1}),
    Case("room on standing nodes is kept for them", (A,), (
        add(), LONG, want(3), SOON, ordered(a=1), set_cluster(scheduling=False), add(2), SOON, ordered(a=2), create(3),
        set_cluster(scheduling=True), LONG), {"a": 2}),
    *(Case(f"after a restart at {at:g} s they go where they were planned", (A, B), (
        want(10), want(4, "batch", cpu=2500), create(3), at, World.restart, trickle(4, "batch"), trickle(7), LONG),
        {"b": 2}) for at in (0.5 * BOOT_SECONDS, 1.5 * BOOT_SECONDS, 2.5 * BOOT_SECONDS)),
]  # fmt: skip

WHILE_PLANNED = [
    Case("pods that are bound get no node", (A,), (
        add(2, cpu=4000), meanwhile(delete("uid-1")), SOON, of_increments({"uid-2"}), LONG), {"a": 1}),
    Case("a gang that loses a pod is planned anew", (GPUS, PLAIN), (gang(2, 2), meanwhile(delete("uid-4")), LONG),
         {"plain": 1, "gpu": 2}),
    Case("a node for placeholders is wanted whoever has gone", (A,), (
        add(cpu=4000), meanwhile(delete("uid-1")), LONG), {"a": 1}, settings={"slack": PLACEHOLDERS}),
    Case("a node that goes is made up for", (A,), (
        add(cpu=4000), LONG, delete("uid-1"), set_cluster(scheduling=False), add(cpu=4000), meanwhile(node_goes), 2,
        set_cluster(scheduling=True), LONG), {"a": 1}),
    Case("a size that changes is planned with at once", (replace(A, max_size=2), group("b", price=0.5)), (
        add(2, cpu=4000), meanwhile(lambda world: world.fleet.apply(IncrementSpec({"a": 1}))), 3,
        told("uid-1", "2 x a was refused: "), told("uid-2", "2 x a was refused: "), LONG), {"a": 2}),
    Case("a plan is thrown away when the cluster is lost", (A,), (
        add(), meanwhile(World.disconnect), 30), {}, pending=1),
    Case("nothing is planned after stop", (A,), (
        add(), meanwhile(lambda world: world.controller(PLANNER).stop()), 30), {}, pending=1),
    Case("it waits for the cluster to be known", (A,), (
        World.disconnect, add(), 10, waits_for("the API server does not answer"), World.reconnect, LONG), {"a": 1}),
    Case("with the journal out of reach nothing is ordered, and later all is", (A,), (
        journal(broken=True), add(), 60, no_machines, journal(broken=False), LONG), {"a": 1}),
    Case("what could not be journalled is planned again", (A, group("b", cpu=8000, price=0.15)), (
        add(cpu=3000), add(cpu=7000), breaks_at_its_first_increment, LONG), {"a": 1, "b": 1}),
]  # fmt: skip

SHORTAGES = [
    Case("what is short is left out, and pods go elsewhere", (CHEAP, DEAR), (
        behave("cheap", GONE), add(4), SOON, ordered(dear=1), shortages("cheap/z"), LONG, behave("cheap"), 300, add(4),
        LONG), {"dear": 1, "cheap": 1}),
    Case("in all groups of an offering", (
        *(group(name, price=price, **SPOT) for name, price in (("a", 0.1), ("b", 0.2))), group("c", price=0.3)),
        (behave("m", GONE), add(), LONG, rounds(2)), {"c": 1}),
    Case("a late one takes down its own group only", (GPUS, PLAIN), (
        behave("gpu", boot_seconds=BOOT_SECONDS, late_shortage=0), add(4), add(spec=WITH_GPU), LONG), {"plain": 1},
        pending=1),
    *(Case(f"a gang over two groups comes whole or not at all: {name}", (GPUS, PLAIN), (
        behave("gpu", short), gang(2, 2), add(cpu=4000), 200, ordered(plain=1), still_waiting(4), behave("gpu"), 600),
        {"plain": 3, "gpu": 2})
      for name, short in (("at once", GONE), ("late", Behaviour(late_shortage=1, boot_seconds=BOOT_SECONDS)))),
    Case("nothing is ordered twice across a restart", (A,), (
        add(8), 3, phases(Phase.CREATING), World.restart, add(), LONG), {"a": 3}),
    Case("one is known after a restart, an old one is not", (CHEAP, DEAR), (
        behave("cheap", GONE), add(), 3, World.restart, add(4), LONG, ordered(dear=2),
        phases(Phase.ROLLED_BACK, Phase.DONE), behave("cheap"), 300, World.restart, add(4), LONG),
        {"dear": 2, "cheap": 1}),
    Case("what is found short while planning is not asked for", (CHEAP, DEAR), (
        behave("cheap", late_shortage=0, fail_after_seconds=10.0), add(cpu=4000), 3, add(cpu=4000),
        meanwhile(lambda world: world.clock.advance(10), lambda world: world.fleet.reconcile()), LONG,
        phases(Phase.ROLLED_BACK, Phase.DONE)), {"dear": 2}),
    Case("a shortage lasts longer each time", (A,), (behave("a", GONE), add(), orders_at(0, 1, 3, 7, 13)), {},
         pending=1, settings={"planner": PlannerSettings(shortage_seconds=100.0)}),
]  # fmt: skip

BESIDE_REQUESTS = [
    Case("a node for a request is nobody's room before it is booked", (A,), (
        idle(RELEASING), lambda world: world.fleet.apply(FOR_A_REQUEST), add(cpu=4000), SOON, ordered(a=2), LATER,
        add(cpu=4000), SOON), {"a": 3}, pending=2, done=False),
    Case("an increment for a request that is taken back teaches no shortage", (replace(A, max_size=1),), (
        lambda world: world.fleet.apply(FOR_A_REQUEST), add(), SOON, ordered(a=1), withdraw, SOON,
        phases(Phase.ROLLED_BACK, Phase.CREATING), shortages()), {"a": 1}, pending=1, done=False),
]  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [*NODES_IN_USE, *STILL_TO_BE_CREATED, *WHILE_PLANNED, *SHORTAGES, *BESIDE_REQUESTS],
    ids=lambda case: case.name,
)
def test_what_is_ordered(case: Case, new_world: NewWorld) -> None:
    world = new_world(*case.groups, limits=case.limits, **case.settings)
    world.play(*case.story)
    assert (world.targets(), len(world.cluster.pending())) == (case.targets, case.pending)
    assert not case.done or not any(each.phase.in_flight for each in world.increments())


class _Lock:
    """The planning lock, for which somebody else has to be waited for, once."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.taken = 0

    def __enter__(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        pass


def test_a_round_waits_for_its_turn_and_knows_what_others_asked_for_in_theirs(new_world: NewWorld) -> None:
    lock = _Lock()
    with patch("cagrpc.controllers.assume_cache.cache.FairLock", lambda: lock):
        world = new_world(replace(A, max_size=1), group("b", price=0.5))
    lock.meanwhile = lambda: world.fleet.apply(FOR_A_REQUEST)
    world.cluster.add(cpu=4000)
    world.run(SOON)
    assert lock.taken == len(world.page("/plans")) == 1
    assert world.targets() == {"a": 1, "b": 1}
    assert [bool(each["id"]) for each in world.page("/plans")[0]["increments"]] == [True]
