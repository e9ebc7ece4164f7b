"""Relocation: where the pods of a removed node go. What is found on few nodes is never found where all nodes would not
have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.scale_down import relocation as module
from cagrpc.controllers.scale_down.constraints import required
from cagrpc.controllers.scale_down.relocation import Relocated
from solver import solve
from solver.model import (
    Budget,
    Node,
    PodSet,
    PodSpec,
    Problem,
)
from tests.support.controllers.scale_down import relocation_in, room_of
from tests.support.examples import examples
from tests.support.solver.strategies import constrained_specs, nodes_with_constrained_pods

BUDGET = Budget(deterministic_seconds=0.5)


def _place(
    pods: Mapping[PodSpec, int], nodes: Sequence[Node], onto: Sequence[bool] | None = None, budget: Budget = BUDGET
) -> Relocated:
    where = np.array([True] * len(nodes) if onto is None else onto, dtype=bool)
    return relocation_in(room_of(*nodes)).place(pods, where, budget)


_PODS = st.lists(st.tuples(constrained_specs(), st.integers(1, 2)), min_size=1, max_size=3)


def _on_all(pods: Counter[PodSpec], nodes: Sequence[Node], onto: Sequence[bool]) -> bool:
    """Whether the planner places all pods where it is given all nodes, those that they may not go to without room."""
    sets = tuple(PodSet(f"{number}", required(each), count) for number, (each, count) in enumerate(pods.items()))
    given_nodes = tuple(each if may else replace(each, free={}) for each, may in zip(nodes, onto, strict=True))
    return not solve(Problem(sets, nodes=given_nodes), BUDGET).unplaced


@examples(200)
@given(
    nodes_with_constrained_pods(), _PODS, st.lists(st.booleans(), min_size=9, max_size=9), st.sampled_from([1, 2, 64])
)
def test_what_finds_places_finds_them_among_all_nodes_too(
    nodes: list[Node], drawn: list[tuple[PodSpec, int]], drawn_onto: list[bool], targets: int
) -> None:
    pods: Counter[PodSpec] = Counter()
    for each, count in drawn:
        pods[each] += count
    onto = [may or all(drawn_onto[:3]) for may in drawn_onto[: len(nodes)]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TARGETS", targets)
        patch.setattr(module, "_LEAST_TARGETS", min(targets, module._LEAST_TARGETS))
        patch.setattr(module, "_MOST_REFUSED", targets)
        found = _place(pods, nodes, onto)
    on_all = _on_all(pods, nodes, onto)
    assert on_all or not found.all
    assert found.all or not on_all or targets < len(nodes), "where no node is left out, nothing else is found"
