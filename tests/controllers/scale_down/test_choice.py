"""Which nodes may go: in the order of weights, all of them together, and without a new node in their place."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver import solve
from solver.model import (
    Budget,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
)
from tests.support.controllers.scale_down import Play, Played, spec, tier
from tests.support.examples import examples

HIGH, MIDDLE, LOW = tier("high", 100, price=3.0), tier("middle", 50, price=2.0), tier("low", 10)
TIERS = (HIGH, MIDDLE, LOW)


def _with(pods: int, cpu: int = 1000) -> Counter[PodSpec]:
    return Counter({spec(cpu): pods})


_PODS = st.lists(st.sampled_from([300, 700, 1100, 1900]), max_size=5)
_NODES = st.lists(st.tuples(st.sampled_from(TIERS), _PODS), min_size=1, max_size=9)


def _placed_now(play: Play) -> int:
    """How many of those that wait fit on what stands."""
    sets = tuple(PodSet(f"w{i}", each, count) for i, (each, count) in enumerate(play.waiting.items()))
    plan = solve(Problem(sets, nodes=tuple(each.node for each in play.nodes)), Budget(deterministic_seconds=1.0))
    return sum(play.waiting.values()) - sum(each.count for each in plan.unplaced)


@examples(60)
@given(_NODES, st.lists(st.sampled_from([500, 1500]), max_size=4))
def test_all_that_may_go_may_go_together(drawn: list[tuple[object, list[int]]], waiting: list[int]) -> None:
    nodes = []
    for number, (group, sizes) in enumerate(drawn):
        pods: Counter[PodSpec] = Counter()
        for size in sizes:
            if sum(dict(s.requests)["cpu"] * n for s, n in pods.items()) + size <= 4000:
                pods[spec(size)] += 1
        nodes.append(Played(f"n{number}", group, pods))  # type: ignore[arg-type]
    play = Play(nodes, TIERS, waiting=Counter(spec(size) for size in waiting))
    placed_before = _placed_now(play)
    verdicts = play.verdicts()
    assert set(verdicts.go) | set(verdicts.stay) == {each.name for each in nodes}
    gone = [play.named(name) for name in verdicts.go]
    assert all(each.used < 0.5 for each in gone)
    # One problem for all pods that lose their node, on what stays; labels say from which weights a node takes pods.
    sets = [PodSet(f"w{i}", each, count) for i, (each, count) in enumerate(play.waiting.items())]
    for each in gone:
        for moved, count in each.pods.items():
            sets.append(PodSet(each.name, replace(moved, node_selector=((f"from-{_weight(each)}", ""),)), count))
    left = [
        replace(each.node, labels={f"from-{weight}": "" for weight in (10, 50, 100) if weight <= _weight(each)})
        for each in nodes
        if each.name in verdicts.stay
    ]
    plan = solve(Problem(tuple(sets), nodes=tuple(left)), Budget(deterministic_seconds=1.0))
    assert sum(each.count for each in plan.unplaced) <= sum(play.waiting.values()) - placed_before


def _weight(each: Played) -> int:
    return each.group.weight if each.group else 0


@pytest.mark.parametrize("seed", range(4))
def test_in_twenty_loops_nothing_goes_down_only_to_come_up_again(seed: int) -> None:
    """The autoscaler takes what may go and is little used, the scheduler places their pods as it likes, and the planner
    never has to open a node for them. Meanwhile workloads end, so that there is always something to take."""
    chance = random.Random(seed)
    nodes = [Played(f"n{number:02}", chance.choice(TIERS)) for number in range(40)]
    for each in nodes:
        while each.used < 0.8 and chance.random() < 0.9:
            size = chance.choice([250, 500, 750, 1000])
            if each.node.free["cpu"] >= size:
                each.pods[spec(size)] += 1
    play = Play(nodes, TIERS)
    taken = 0
    for _ in range(20):
        for each in play.nodes:
            for running, count in list(each.pods.items()):
                each.pods[running] -= sum(chance.random() < 0.03 for _ in range(count))
            each.pods += Counter()
        verdicts = play.verdicts()
        low = [name for name in verdicts.go if play.named(name).used < 0.5]
        now = chance.sample(low, min(len(low), 5))
        taken += len(now)
        play.remove(now)
        play.schedule(chance)
        plan = play.planned()
        assert not plan.increments, f"{now} went, and {plan.increments} would come"
    assert taken >= 10
    assert not play.waiting


_KEEPING_APART = st.sampled_from(
    [
        spec(cpu, namespace="ns", labels=(("app", app),), pod_anti_affinity=terms)
        for cpu in (300, 1100)
        for app in ("a", "b")
        for terms in (
            (),
            *(
                (PodAffinityTerm(key, PodSelector((Requirement("app", Operator.IN, ("a",)),), ("ns",))),)
                for key in ("kubernetes.io/hostname", "zone")
            ),
        )
    ]
)


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(_KEEPING_APART, max_size=2)), min_size=2, max_size=7),
    st.lists(_KEEPING_APART, max_size=2),
)
def test_pods_that_keep_apart_may_all_go_together_too(
    drawn: list[tuple[str, list[PodSpec]]], waiting: list[PodSpec]
) -> None:
    groups = {zone: replace(LOW, id=f"low-{zone}", labels={"zone": zone}) for zone in "ab"}
    nodes = [Played(f"n{i}", groups[zone], Counter(pods)) for i, (zone, pods) in enumerate(drawn)]
    play = Play(nodes, tuple(groups.values()), waiting=Counter(waiting))

    def placed(pods: Counter[PodSpec], names: Iterable[str]) -> int:
        """How many of them the planner places on these nodes beside what runs there."""
        sets = tuple(PodSet(f"{i}", each, count) for i, (each, count) in enumerate(pods.items()))
        there = [play.named(name) for name in names]
        on = tuple(replace(node.node, running=node.running) for node in there)
        plan = solve(Problem(sets, nodes=on), Budget(deterministic_seconds=1.0))
        return pods.total() - sum(each.count for each in plan.unplaced)

    verdicts = play.verdicts()
    displaced = sum((play.named(name).pods for name in verdicts.go), Counter[PodSpec]())
    had_room = placed(play.waiting, [each.name for each in nodes])
    assert placed(displaced + play.waiting, verdicts.stay) >= displaced.total() + had_room
