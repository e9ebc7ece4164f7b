"""Where room is sure for all pods, every order and every choice of nodes leaves room for the last."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down.crowd import Crowd
from solver.model import Node, PodSpec
from tests.support.solver.device_examples import GPUS, claim

_RESOURCES = ("cpu", "memory")


def _node(name: str, cpu: int, memory: int = 100, pods: int = 10, **labels: str) -> Node:
    return Node(name, {"cpu": cpu, "memory": memory, "pods": pods}, labels)


def _pod(cpu: int, memory: int = 1, **selector: str) -> PodSpec:
    return PodSpec((("cpu", cpu), ("memory", memory)), node_selector=tuple(sorted(selector.items())))


def test_alike_pods_are_counted_exactly() -> None:
    crowd = Crowd([_node("a", 10), _node("b", 10), _node("gone", 0)])
    assert crowd.has_room({_pod(5): 4}, "gone")
    assert not crowd.has_room({_pod(5): 5}, "gone")
    assert not crowd.has_room({_pod(5): 3}, "b")
    crowd.remove("b")
    assert crowd.has_room({_pod(5): 2}, "gone")
    crowd.add({_pod(5): 1})
    assert not crowd.has_room({_pod(5): 2}, "gone")
    assert crowd.has_room({_pod(5): 1}, "gone")


def test_small_pods_can_shut_out_a_large_one() -> None:
    crowd = Crowd([_node("a", 10), _node("b", 10), _node("gone", 0)])
    assert not crowd.has_room({_pod(9): 1, _pod(2): 2}, "gone")  # one small one on each shuts it out
    assert crowd.has_room({_pod(9): 1, _pod(2): 1}, "gone")


def test_a_node_counts_for_those_that_may_be_there() -> None:
    crowd = Crowd([_node("a", 10, disk="ssd"), _node("b", 10), _node("gone", 0)])
    assert crowd.has_room({_pod(6, disk="ssd"): 1}, "gone")
    assert not crowd.has_room({_pod(6, disk="ssd"): 2}, "gone")
    assert not crowd.has_room({_pod(6, disk="hdd"): 1}, "gone")


def test_devices_go_to_whichever_pod_is_bound_first() -> None:
    gpus = {"a": GPUS, "b": GPUS, "none": (), "gone": ()}
    crowd = Crowd([replace(_node(name, 10), devices=found) for name, found in gpus.items()])
    assert crowd.has_room({replace(_pod(1), claims=claim()): 2}, "gone")
    assert not crowd.has_room({replace(_pod(1), claims=claim()): 3}, "gone")
    assert not crowd.has_room({replace(_pod(1), claims=claim(count=9)): 1}, "gone")
    assert crowd.has_room({_pod(1): 3}, "gone")


def test_one_of_the_nodes_pods_is_a_resource_too() -> None:
    crowd = Crowd([_node("a", 10, pods=2), _node("gone", 0)])
    assert crowd.has_room({PodSpec(): 2}, "gone")
    assert not crowd.has_room({PodSpec(): 3}, "gone")


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=7),
    st.integers(0, 10**6),
)
def test_wherever_they_go_everybody_finds_room(
    nodes: list[tuple[int, int, int]], pods: list[tuple[int, int]], seed: int
) -> None:
    chance = random.Random(seed)
    standing = [_node(f"n{i}", *each) for i, each in enumerate(nodes)]
    crowd = Crowd([*standing, _node("gone", 99, 99, 99)])
    if not crowd.has_room(Counter(_pod(*each) for each in pods), "gone"):
        return
    for _ in range(5):
        free = [dict(node.free) for node in standing]
        for cpu, memory in chance.sample(pods, len(pods)):
            asked = {"cpu": cpu, "memory": memory, "pods": 1}
            open_ = [each for each in free if all(each[name] >= amount for name, amount in asked.items())]
            assert open_
            taken = chance.choice(open_)
            for name, amount in asked.items():
                taken[name] -= amount
