"""What is known of nodes is the same however they came to be as they are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.scale_down.choice import TO_BE_DELETED, ReviewedNodes
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver.model import (
    HOSTNAME,
    Node,
    NodeGroup,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    RunningPods,
    Taint,
    TaintEffect,
)
from tests.support.examples import examples

NAMES = "abcd"
GROUPS = [
    NodeGroup("cpus", {"cpu": 4000, "memory": 100, "pods": 10}, 1.0),
    NodeGroup("gpus", {"cpu": 4000, "memory": 100, "nvidia.com/gpu": 4}, 1.0),
]


def _keeping_out(key: str) -> PodSpec:
    return PodSpec(pod_anti_affinity=(PodAffinityTerm(key, PodSelector()),))


_PODS = st.sampled_from([(), (RunningPods(PodSpec()),), *((RunningPods(_keeping_out(k)),) for k in ("zone", HOSTNAME))])


@st.composite
def _nodes(draw: st.DrawFn) -> dict[str, ClusterNode]:
    """Nodes by name."""
    return {
        name: ClusterNode(
            Node(
                name,
                {
                    "cpu": draw(st.sampled_from([0, 1000, 3000])),
                    "memory": 90,
                    "nvidia.com/gpu": draw(st.integers(0, 4)),
                },
                taints=draw(st.sampled_from([(), (Taint(TO_BE_DELETED, TaintEffect.NO_SCHEDULE),)])),
            ),
            f"{name}{draw(st.integers(0, 1))}",
            ready=draw(st.booleans()),
            held=draw(st.booleans()),
            movable=draw(_PODS),
            scale_down_disabled=(annotation := draw(st.sampled_from(["", "true"]))),
            scale_down_disabled_by_us=bool(annotation) and draw(st.booleans()),
        )
        for name in draw(st.sets(st.sampled_from(NAMES)))
    }


@st.composite
def _fleets(draw: st.DrawFn) -> FleetSnapshot:
    groups = [
        replace(each, allocatable={**each.allocatable, "cpu": draw(st.sampled_from([2000, 4000]))}) for each in GROUPS
    ]
    groups = groups[: draw(st.integers(0, 2))]
    of = {f"{name}{n}": draw(st.sampled_from(GROUPS)).id for name in NAMES for n in range(2) if draw(st.booleans())}
    states = {}
    for each in groups:
        mine = [
            Instance(i, each.id, draw(st.sampled_from(InstanceState))) for i, group in of.items() if group == each.id
        ]
        states[each.id] = GroupState(each, len(mine), tuple(mine))
    return FleetSnapshot(1, states, (), of)


@examples(200)
@given(st.lists(st.tuples(_nodes(), _fleets(), st.sets(st.sampled_from(NAMES))), min_size=1, max_size=4))
def test_what_is_known_is_what_is_found_anew(
    states: list[tuple[dict[str, ClusterNode], FleetSnapshot, set[str]]],
) -> None:
    known = ReviewedNodes(0.5)
    before: dict[str, ClusterNode] = {}
    for nodes, fleet, same in states:
        now = {**nodes, **{name: before[name] for name in same if name in before}}
        gone = known.update(tuple(now[name] for name in sorted(now)), fleet)
        assert gone == before.keys() - now.keys()
        fresh = ReviewedNodes(0.5)
        fresh.update(tuple(now[name] for name in sorted(now)), fleet)
        for what in ("of", "ours", "low", "leaving", "held", "foreign", "marked", "keeping_out"):
            assert getattr(known, what) == getattr(fresh, what), what
        assert known.update(known.nodes, fleet) == frozenset()
        before = now
