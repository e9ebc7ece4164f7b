"""Room that is kept for pods whose increment was let go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cagrpc.controllers.planner.room import Room
from cagrpc.controllers.planner.serving import serving
from cagrpc.controllers.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.fleet.model import (
    FleetSnapshot,
    GroupState,
    Increment,
    IncrementStatus,
    Instance,
    InstanceState,
    Phase,
    Placement,
)
from solver.model import CPU, PODS, Node, PodSet, PodSpec
from tests.fleet.support import group

NODES = 300


class Counted(dict[str, int]):
    """What is free on a node, with how often it was asked for."""

    asked = 0

    def get(self, key: str, default: int = 0) -> int:  # type: ignore[override]
        Counted.asked += 1
        return super().get(key, default)


def test_many_pods_that_have_lost_their_room_are_not_looked_for_everywhere_each() -> None:
    def nodes() -> Iterator[ClusterNode]:
        for number in range(NODES):
            node = Node(f"n{number}", {}, {}, ())
            object.__setattr__(node, "free", Counted({CPU: 500, PODS: 10}))
            yield ClusterNode(node, f"x{number}", ready=True, held=False)

    pods = tuple(PodRef(f"u{number}", "ns", f"p{number}") for number in range(NODES))
    waiting = WaitingPods(PodSet("ns/p0", PodSpec(((CPU, 1000),)), NODES), pods)
    placements = tuple(Placement("g", (pod.uid,)) for pod in pods)
    done = IncrementStatus("i", Increment({"g": NODES}, placements=placements), Phase.DONE, finished_at_seconds=0.0)
    of_g = replace(group("g"), max_size=NODES)
    instances = tuple(Instance(f"x{number}", "g", InstanceState.RUNNING) for number in range(NODES))
    group_of = {instance.id: "g" for instance in instances}
    snapshot = FleetSnapshot(1, {"g": GroupState(of_g, NODES, instances)}, ("g",), group_of, (done,))
    Counted.asked = 0
    room = Room(ClusterState((waiting,), tuple(nodes()), ()), snapshot, serving(snapshot, 15.0), (of_g,))
    assert room.served == frozenset()
    assert Counted.asked < 10 * NODES
