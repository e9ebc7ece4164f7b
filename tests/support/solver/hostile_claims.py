"""Pods whose claims on devices are as much work as can be, beside honest ones with usual claims."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from solver import DeviceAlternative, DeviceClaim, DeviceRequest, Devices, Node, NodeGroup, PodSet, PodSpec, Problem
from solver.model.devices import Claims
from tests.support.solver.hostile import HONEST, HOSTILE
from tests.support.solver.problems import group, node, spec

ENTRIES = 8
"""Devices of a node that selectors tell apart."""
BLOCK = ((frozenset[str](), "numa"),)


def _request(selector: int | str, count: int = 1, name: str = "r") -> DeviceRequest:
    return DeviceRequest(name, (DeviceAlternative(_key(selector), count),))


def _key(selector: int | str) -> str:
    return selector if isinstance(selector, str) else f"s{selector}"


def _alternatives(number: int, size: int) -> Claims:
    ways = (DeviceAlternative(_key(number + each), 9, name=f"a{each}") for each in range(size))
    return (DeviceClaim((DeviceRequest("r", (*ways, DeviceAlternative("any", 1, name="last"))),)),)


def _several(number: int, size: int) -> Claims:
    named = (_request("any", 1 + (number >> each) % 2, f"{number}-{each}") for each in range(min(size, 6)))
    return (DeviceClaim(tuple(named)),)


def _searched(number: int, size: int) -> Claims:
    """Many ways of which none leads to an end."""
    return (
        DeviceClaim(tuple(_request(number + each, 2, f"r{each}") for each in range(min(size, 4))), BLOCK),
        DeviceClaim((_request("rare", 1 + number % 3),)),
    )


MADE: Mapping[str, Callable[[int, int], Claims]] = {
    "selectors": lambda number, _: (DeviceClaim((_request(number),)),),
    "overlapping": lambda number, size: (
        DeviceClaim(tuple(_request(7 * number + 3 * each, name=f"r{each}") for each in range(min(size, 4)))),
    ),
    "several": _several,
    "blocks": lambda number, _: (DeviceClaim((_request(number, 2),), BLOCK),),
    "alternatives": _alternatives,
    "searched": _searched,
    "claims": lambda number, size: tuple(DeviceClaim((_request(number + each),)) for each in range(size)),
}
"""By number of the pod, and how much it asks for."""


class AskedClaims(NamedTuple):
    kinds: Sequence[str]
    pods: int
    size: int
    nodes: int

    @property
    def alternatives(self) -> int:
        """All that is asked for."""
        return len(self.kinds) * self.pods * (self.size + 1)


asked_claims = st.builds(
    AskedClaims,
    st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=2, unique=True),
    st.integers(5, 60),
    st.integers(1, 12),
    st.integers(1, 12),
)


def claiming_problem(asked: AskedClaims, honest: int = 2) -> Problem:
    """Return hostile pods whose claims all differ, and honest ones of a few kinds. Nodes all have other devices, those
    of honest pods among them."""
    selectors = asked.pods + asked.size
    chance = random.Random(asked.pods)
    nodes = tuple(_node(number, selectors, chance) for number in range(asked.nodes))
    sets = [
        PodSet(f"{kind}{number}", spec(100, namespace=HOSTILE, claims=MADE[kind](number, asked.size)), 1)
        for kind in asked.kinds
        for number in range(asked.pods)
    ]
    usual = [PodSet(f"{HONEST}{each}", honest_pod(each), 2) for each in range(honest)]
    return Problem((*sets, *usual), (_group(),), nodes)


def honest_pod(number: int, namespace: str = HONEST) -> PodSpec:
    """Return the spec of a pod with one to four GPUs."""
    return spec(100, namespace=namespace, claims=(DeviceClaim((_request("gpu", 1 + number % 4, "gpus"),)),))


def _node(number: int, selectors: int, chance: random.Random) -> Node:
    there = tuple(
        Devices(
            chance.randint(1, 3),
            frozenset({"any", *(_key(each) for each in range(selectors) if chance.random() < 0.5)}),
            (("numa", f"{entry % 3}"),),
        )
        for entry in range(ENTRIES)
    )
    rare = Devices(1, frozenset({"rare"}))
    return replace(node(f"n{number}", 64_000), devices=(*there, rare, Devices(number % 3, frozenset({"gpu", "any"}))))


def _group() -> NodeGroup:
    return replace(group("g", 64_000, max_size=1000), devices=(Devices(8, frozenset({"gpu", "any"})),))
