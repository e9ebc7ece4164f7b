"""Where room is sure for all pods, every order and every choice of nodes leaves room for the last."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down.choice import Crowd
from cagrpc.controllers.scale_down.relocation import Pods
from solver.model import Node, PodSpec
from solver.reduction.node_columns import NodeColumns


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
