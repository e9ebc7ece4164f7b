"""Where room is sure for all pods, every order and every choice of nodes leaves room for the last."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down.crowd import Crowd
from cagrpc.controllers.scale_down.relocation import Pods
from solver.model import Node, PodSpec
from solver.reduction.node_columns import NodeColumns
from tests.support.solver.device_examples import GPUS, claim

_RESOURCES = ("cpu", "memory")


def _node(name: str, cpu: int, memory: int = 100, pods: int = 10, **labels: str) -> Node:
    return Node(name, {"cpu": cpu, "memory": memory, "pods": pods}, labels)


def _pod(cpu: int, memory: int = 1, **selector: str) -> PodSpec:
    return PodSpec((("cpu", cpu), ("memory", memory)), node_selector=tuple(sorted(selector.items())))


class _Named(Crowd):
    """A crowd on nodes by name."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(NodeColumns(nodes))
        self._at = {node.name: position for position, node in enumerate(nodes)}

    def has_room_without(self, name: str, pods: Pods) -> bool:
        return self.has_room(pods, self._at[name])

    def remove_named(self, name: str) -> None:
        self.remove(self._at[name])


def test_alike_pods_are_counted_exactly() -> None:
    crowd = _Named(_node("a", 10), _node("b", 10), _node("gone", 0))
    assert crowd.has_room_without("gone", {_pod(5): 4})
    assert not crowd.has_room_without("gone", {_pod(5): 5})
    assert not crowd.has_room_without("b", {_pod(5): 3})
    crowd.remove_named("b")
    assert crowd.has_room_without("gone", {_pod(5): 2})
    crowd.add({_pod(5): 1})
    assert not crowd.has_room_without("gone", {_pod(5): 2})
    assert crowd.has_room_without("gone", {_pod(5): 1})


def test_small_pods_can_shut_out_a_large_one() -> None:
    crowd = _Named(_node("a", 10), _node("b", 10), _node("gone", 0))
    assert not crowd.has_room_without("gone", {_pod(9): 1, _pod(2): 2})  # one small one on each shuts it out
    assert crowd.has_room_without("gone", {_pod(9): 1, _pod(2): 1})


def test_a_node_counts_for_those_that_may_be_there() -> None:
    crowd = _Named(_node("a", 10, disk="ssd"), _node("b", 10), _node("gone", 0))
    assert crowd.has_room_without("gone", {_pod(6, disk="ssd"): 1})
    assert not crowd.has_room_without("gone", {_pod(6, disk="ssd"): 2})
    assert not crowd.has_room_without("gone", {_pod(6, disk="hdd"): 1})


def test_devices_go_to_whichever_pod_is_bound_first() -> None:
    gpus = {"a": GPUS, "b": GPUS, "none": (), "gone": ()}
    crowd = _Named(*(replace(_node(name, 10), devices=found) for name, found in gpus.items()))
    assert crowd.has_room_without("gone", {replace(_pod(1), claims=claim()): 2})
    assert not crowd.has_room_without("gone", {replace(_pod(1), claims=claim()): 3})
    assert not crowd.has_room_without("gone", {replace(_pod(1), claims=claim(count=9)): 1})
    assert crowd.has_room_without("gone", {_pod(1): 3})


def test_one_of_the_nodes_pods_is_a_resource_too() -> None:
    crowd = _Named(_node("a", 10, pods=2), _node("gone", 0))
    assert crowd.has_room_without("gone", {PodSpec(): 2})
    assert not crowd.has_room_without("gone", {PodSpec(): 3})


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
    crowd = _Named(*standing, _node("gone", 99, 99, 99))
    if not crowd.has_room_without("gone", Counter(_pod(*each) for each in pods)):
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
