"""Which nodes of a reserve are let go for pods that are left over."""

from __future__ import annotations

from cagrpc.controllers.planner.reserve import needed_of_reserve
from cagrpc.controllers.state import ClusterState, PodRef, WaitingPods
from solver.model import Budget
from tests.solver.build import group, pods, spec

BUDGET = Budget(deterministic_seconds=0.5)
GROUPS = (group("small", 4000, 0.2), group("large", 16000, 0.7), group("huge", 64000, 3.0))


def state(**counts: int) -> ClusterState:
    """So many pods of 3, 14 and 60 cores: `a`, `b` and `c`, with their numbers as UIDs."""
    cores = {"a": 3000, "b": 14000, "c": 60000}
    return ClusterState(
        tuple(
            WaitingPods(
                pods(name, count, spec(cores[name])), tuple(PodRef(f"{name}{n}", "ns", name) for n in range(count))
            )
            for name, count in counts.items()
        ),
        (),
        (),
    )


def needed(there: ClusterState, waiting: set[str], held: dict[str, int], reserve: dict[str, int]) -> dict[str, int]:
    return dict(needed_of_reserve(there, GROUPS, waiting, held, reserve, BUDGET))


def test_only_what_the_plans_pods_lack() -> None:
    reserve = {"small": 9, "large": 9}
    assert needed(state(a=3, b=2), {"a0", "b0", "b1"}, {}, reserve) == {"small": 1, "large": 2}
    assert needed(state(a=3), set(), {}, reserve) == {}
    assert needed(state(a=3), {"gone"}, {}, reserve) == {}


def test_nodes_that_are_held_still_come_first_and_more_of_their_groups_later() -> None:
    there = state(b=2, c=1)
    waiting = {"b0", "b1", "c0"}
    assert needed(there, waiting, {"huge": 1}, {"large": 9, "huge": 9}) == {"large": 2}
    assert needed(there, waiting, {"huge": 2}, {"large": 9, "huge": 9}) == {}
    assert needed(there, waiting, {}, {"huge": 1}) == {"huge": 1}


def test_no_more_than_there_are() -> None:
    assert needed(state(b=5), {f"b{n}" for n in range(5)}, {}, {"large": 3}) == {"large": 3}
    assert needed(state(b=1), {"b0"}, {}, {"gone": 3}) == {}
