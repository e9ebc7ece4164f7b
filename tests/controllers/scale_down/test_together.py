"""What may go may go together, wherever the scheduler puts the pods, and as far as the planner finds room for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.settings import Drive
from solver import solve
from solver.model import (
    HOSTNAME,
    Budget,
    Node,
    NodeGroup,
    Plan,
    PodSet,
    PodSpec,
    Problem,
    RunningPods,
    WhenUnsatisfiable,
)
from tests.controllers.scale_down.standing import MAY_GO, TIERS, Standing, apart, pod, tier
from tests.support.examples import examples
from tests.support.solver.strategies import constrained_specs

BUDGET = Budget(deterministic_seconds=1.0)
CPU = 4000


def as_read(spec: PodSpec) -> PodSpec:
    """Return the spec as it is read from a pod: terms of volumes are on volumes, and a spread with an empty selector
    counts nobody."""
    spreads = []
    for spread in spec.topology_spread:
        selector = replace(spread.selector, match_expressions=spread.selector.match_expressions or None)
        spreads.append(replace(spread, selector=selector))
    return replace(spec, node_terms=(), topology_spread=tuple(spreads))


SPECS = constrained_specs().map(as_read)


def nodes_of(world: Standing, room: Callable[[str], Mapping[str, str] | None]) -> tuple[Node, ...]:
    """Return the nodes with what runs there and what is free, and these labels beside theirs; `room` returns None for
    nodes that take nobody."""
    pods: dict[str, list[PodSpec]] = {name: [] for name in world.names.values()}
    for uid, spec in world.specs.items():
        if node := world.cluster.node_of(uid):
            pods[node].append(spec)
    found = []
    for name, real in world.names.items():
        group, more = world.cluster.groups[name.partition(" ")[0]], room(name)
        free = Counter(group.allocatable)
        for each in pods[real]:
            free.subtract({**dict(each.requests), "pods": 1})
        labels = {**group.labels, HOSTNAME: real, **(more or {})}
        running = tuple(RunningPods(each) for each in pods[real])
        found.append(Node(real, {} if more is None else dict(free), labels, running=running))
    return tuple(found)


def planned(pods: Collection[PodSpec], nodes: tuple[Node, ...]) -> Plan:
    sets = tuple(PodSet(f"{number}", _required(each), 1) for number, each in enumerate(pods))
    return solve(Problem(sets, nodes=nodes), BUDGET)


def placed(pods: Collection[PodSpec], nodes: tuple[Node, ...]) -> int:
    """Return how many of them the planner places."""
    return len(pods) - sum(each.count for each in planned(pods, nodes).unplaced)


def placeable(pods: Collection[PodSpec], nodes: tuple[Node, ...]) -> int:
    """Return how many of them may have a place: those that the planner places, and those that it leaves out though the
    scheduler takes them in some orders, in others of which another pod gets stuck."""
    plan = planned(pods, nodes)
    left = sum(each.count for each in plan.unplaced)
    return len(pods) - left + min(left, plan.certificate.unserved_unproven)


def _required(spec: PodSpec) -> PodSpec:
    hard = [each for each in spec.topology_spread if each.when_unsatisfiable is WhenUnsatisfiable.DO_NOT_SCHEDULE]
    return replace(spec, topology_spread=tuple(hard), preferred_nodes=(), preferred_pods=())


WIDE = tuple(
    tier(f"{name}-{zone}", weight, cpu=100_000, labels={"zone": zone})
    for name, weight in (("gone", 50), ("in", 100), ("below", 10))
    for zone in "ab"
)


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from(["in-a", "in-b", "below-a", "below-b"]), st.lists(SPECS, max_size=1)),
             min_size=2, max_size=8),
    st.lists(SPECS, min_size=1, max_size=4),
)  # fmt: skip
def test_a_node_may_go_where_the_planner_places_its_pods(
    others: list[tuple[str, list[PodSpec]]], pods: list[PodSpec]
) -> None:
    """Nobody moves below, but who runs there counts."""
    with Standing(*WIDE) as world:
        names = [f"{name} {number}" for number, (name, _) in enumerate(others)]
        world.stand({**dict(zip(names, (each for _, each in others), strict=True)), "gone-a": pods})
        for name in names:
            world.annotate(name, theirs="true")
        goes = world.review()["gone-a"] == MAY_GO
        left = nodes_of(world, lambda name: {} if name.startswith("in") else None)[:-1]
    assert goes == (placed(pods, left) == len(pods))


ZONED = tuple(tier(f"low-{zone}", 10, labels={"zone": zone}) for zone in "ab")


@examples(40)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(SPECS, max_size=2)), min_size=2, max_size=7),
    st.lists(SPECS, max_size=3),
)
def test_pods_with_constraints_may_all_go_together(
    drawn: list[tuple[str, list[PodSpec]]], waiting: list[PodSpec]
) -> None:
    with Standing(*ZONED) as world:
        on = {f"low-{zone} {number}": pods for number, (zone, pods) in enumerate(drawn)}
        world.stand(on)
        world.bind("", *waiting)
        had_room = placed(waiting, nodes_of(world, lambda _: {}))
        decided = world.review()
        displaced = [spec for name, pods in on.items() if decided[name] == MAY_GO for spec in pods]
        kept = nodes_of(world, lambda _: {})
        left = tuple(each for each, why in zip(kept, decided.values(), strict=True) if why)
    assert placeable([*displaced, *waiting], left) >= len(displaced) + had_room


FEW_PODS = tuple(tier(each.id, each.weight, each.price_usd_per_hour, resources={"pods": 4}) for each in TIERS)
SIZED = st.sampled_from([PodSpec((("cpu", cpu), ("memory", gib * 2**30)))
                         for cpu, gib in ((300, 1), (700, 5), (1100, 1), (1900, 3), (200, 7))])  # fmt: skip


def fits(spec: PodSpec, free: Mapping[str, int]) -> bool:
    return all(free[resource] >= amount for resource, amount in (*spec.requests, ("pods", 1)))


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from(FEW_PODS), st.lists(SIZED, max_size=4)), min_size=1, max_size=9),
    st.lists(SIZED, max_size=4),
    st.randoms(use_true_random=False),
)
def test_all_that_may_go_may_go_together(
    drawn: list[tuple[NodeGroup, list[PodSpec]]], waiting: list[PodSpec], chance: random.Random
) -> None:
    """No pod goes below, and none is left without room, whichever nodes the scheduler chooses."""
    on: dict[str, list[PodSpec]] = {}
    used: dict[str, float] = {}
    for number, (group, specs) in enumerate(drawn):
        free = Counter(group.allocatable)
        here = on[f"{group.id} {number}"] = list[PodSpec]()
        for spec in specs:
            if fits(spec, free):
                free.subtract({**dict(spec.requests), "pods": 1})
                here.append(spec)
        used[f"{group.id} {number}"] = max(1 - free[name] / group.allocatable[name] for name in ("cpu", "memory"))
    with Standing(*FEW_PODS) as world:
        world.stand(on)
        world.bind("", *waiting)
        had_room = placed(waiting, nodes_of(world, lambda _: {}))
        decided = world.review()
        weights = {name: world.cluster.groups[name.partition(" ")[0]].weight for name in on}
        going = [name for name, why in decided.items() if why == MAY_GO]
        kept = nodes_of(
            world, lambda name: None if name in going
            else {f"from-{each}": "" for each in (10, 50, 100) if each <= weights[name]}
        )  # fmt: skip
    assert all(used[name] < 0.5 for name in going)
    homeless = [replace(spec, node_selector=((f"from-{weights[name]}", ""),)) for name in going for spec in on[name]]
    assert placed([*homeless, *waiting], kept) >= len(homeless) + had_room
    if going and had_room == len(waiting):  # where none goes, those that wait may be in each other's way as they are
        left = [dict(each.free) for each in kept if each.free]
        for spec in chance.sample(comers := [*waiting, *homeless], len(comers)):
            open_ = [free for free in left if fits(spec, free)]
            assert open_
            taken = chance.choice(open_)
            taken.update({name: taken[name] - amount for name, amount in (*spec.requests, ("pods", 1))})


def unready(world: Standing, name: str) -> None:
    world.cluster.unready ^= {world.names[name]}


def end(world: Standing, name: str) -> None:
    world.cluster.delete(world.pods_on(name)[-1])


@pytest.mark.parametrize(
    ("do", "undo"),
    [
        (lambda world, name: world.bind(name, 1900), end),
        (lambda world, name: world.bind(name, apart(300, "zone")), end),
        (Standing.leave, lambda world, name: world.change(name, spec={"taints": []})),
        (unready, unready),
        (lambda world, name: world.annotate(name, theirs="true", ours=None),
         lambda world, name: world.annotate(name, theirs=None)),
        (lambda world, name: world.annotate(name, theirs="true", ours="other"), lambda *_: None),
        (lambda world, name: world.order(f"{name}, more", released=False),
         lambda world, name: world.change(f"{name}, more", spec={"taints": []})),
        (lambda world, name: world.take(name), lambda *_: None),
    ],
    ids=["in use", "keeps others out", "drained", "not Ready", "theirs", "ours", "held", "gone"],
)  # fmt: skip
def test_what_changes_is_decided_as_another_process_decides_it(
    do: Callable[[Standing, str], object], undo: Callable[[Standing, str], object], standing: Callable[..., Standing]
) -> None:
    world = standing(
        *(tier(f"{each.id}-{zone}", each.weight, labels={"zone": zone}) for each in TIERS for zone in "ab")
    )
    near = pod(700, "db", node_selector=(("zone", "a"),))
    world.stand(
        {"high-a 1": [1000], "high-a 2": [near], "high-b 1": [3000], "middle-b 1": [1100], "low-a 1": [near, 300]}
    )
    world.review()
    for name in list(world.names):
        for change in (do, undo):
            change(world, name)
            decided = world.review()
            world.restart()
            assert world.review() == decided


@pytest.mark.parametrize("seed", range(4))
def test_in_twenty_loops_nothing_goes_down_only_to_come_up_again(seed: int) -> None:
    """The autoscaler takes what may go, the scheduler binds the pods to the nodes with most room, and the planner never
    has to open a node for them. Meanwhile workloads end, so that there is always something to take."""
    chance = random.Random(seed)
    free: dict[str, int] = {}
    with Standing(drive=Drive.PLAN) as world:
        names = [f"{chance.choice(TIERS).id} {number}" for number in range(40)]
        on: dict[str, list[int]] = {name: [] for name in names}
        for here in on.values():
            while sum(here) < 0.8 * CPU and chance.random() < 0.9:
                here += [size for size in [chance.choice([250, 500, 750, 1000])] if sum(here) + size <= CPU]
        world.stand(on)
        world.idle.discard("the planner loop")
        began, taken = len(world.increments()), 0
        for _ in range(20):
            pods = world.cluster.pods()
            ended = {uid for uid in pods if chance.random() < 0.03}
            world.cluster.delete(*ended)
            free = dict.fromkeys(world.names, CPU)
            back = {real: name for name, real in world.names.items()}
            for uid in pods.keys() - ended:
                free[back[pods[uid].node]] -= dict(pods[uid].pod.spec.requests)["cpu"]
            world.review()
            low = [name for name in world.may_go() if free[name] > CPU / 2]
            now = chance.sample(low, min(len(low), 5))
            taken += len(now)
            homeless = [spec for name in now for spec in world.take(name) if free.pop(name, None) or True]
            for spec in chance.sample(homeless, len(homeless)):
                size = dict(spec.requests)["cpu"]
                open_ = [name for name in free if name not in now and free[name] >= size]
                best = max(open_, key=lambda name: (free[name], chance.random()), default="")
                world.bind(best, spec)
                if best:
                    free[best] -= size
            world.run(3.0)
            assert len(world.increments()) == began, (now, world.page("/plans"))
    assert taken >= 10
