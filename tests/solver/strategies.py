"""Random small problems that touch every kind of constraint the solver knows."""

from __future__ import annotations

from hypothesis import strategies as st

from solver import Limit, NodeGroup, PodSet, PodSpec, Problem
from solver.model import Node
from tests.solver.build import TAINT, TOLERATION, wants

ZONES = ("a", "b")


@st.composite
def pod_specs(draw: st.DrawFn) -> PodSpec:
    requests = {"cpu": draw(st.integers(1, 9)) * 500, "memory": draw(st.integers(0, 6)), "gpu": draw(st.integers(0, 1))}
    affinity = draw(
        st.sampled_from(
            [None, None, None, wants("zone", "NotIn", "a"), wants("size", "Gt", "4"), wants("kind", "Exists")]
        )
    )
    return PodSpec(
        tuple(sorted((name, amount) for name, amount in requests.items() if amount)),
        node_selector=(("zone", draw(st.sampled_from(ZONES))),) if draw(st.integers(0, 3)) == 0 else (),
        affinity=affinity,
        tolerations=(TOLERATION,) if draw(st.booleans()) else (),
    )


@st.composite
def node_groups(draw: st.DrawFn, number: int) -> NodeGroup:
    cpu = draw(st.integers(1, 10))
    labels = {"zone": draw(st.sampled_from(ZONES)), "size": str(cpu)}
    if draw(st.booleans()):
        labels["kind"] = "x"
    most = draw(st.integers(0, 4))
    return NodeGroup(
        f"g{number}",
        {
            "cpu": cpu * 1000,
            "memory": draw(st.integers(2, 12)),
            "gpu": draw(st.integers(0, 2)),
            "pods": draw(st.integers(1, 5)),
        },
        draw(st.integers(1, 20)) / 8,
        labels=labels,
        taints=(TAINT,) if draw(st.integers(0, 3)) == 0 else (),
        min_size=draw(st.integers(0, min(1, most))),
        max_size=most,
        target_size=draw(st.integers(0, most)),
        weight=draw(st.sampled_from([0, 0, 10, 50])),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    gangs = [None, None, None, "red", "blue"]
    pod_sets = []
    for number in range(draw(st.integers(1, 5))):
        placeholder = draw(st.integers(0, 5)) == 0
        pod_sets.append(
            PodSet(
                f"ns/p{number}",
                draw(pod_specs()),
                draw(st.integers(1, 3)),
                priority=draw(st.sampled_from([0, 0, 0, 1000])),
                waiting_seconds=draw(st.sampled_from([0, 0, 60, 3600])),
                gang=None if placeholder else draw(st.sampled_from(gangs)),
                placeholder=placeholder,
            )
        )
    groups: tuple[NodeGroup, ...] = tuple(draw(node_groups(number)) for number in range(draw(st.integers(0, 4))))
    nodes = tuple(
        Node(
            f"n{number}",
            {
                "cpu": draw(st.integers(0, 6)) * 1000,
                "memory": draw(st.integers(0, 8)),
                "gpu": draw(st.integers(0, 1)),
                "pods": draw(st.integers(0, 4)),
            },
            labels={"zone": draw(st.sampled_from(ZONES)), "size": "5"},
        )
        for number in range(draw(st.integers(0, 2)))
    )
    limits = []
    obliged = {g.id: max(0, g.min_size - g.target_size) for g in groups}
    cluster_limit: bool = draw(st.booleans())
    if groups and cluster_limit:
        # Limits leave room for what minimum sizes oblige to.
        limits.append(Limit("cluster", {"nodes": sum(obliged.values()) + draw(st.integers(0, 4))}))
    if groups and draw(st.integers(0, 2)) == 0:
        ids = [g.id for g in groups]
        chosen = frozenset(draw(st.sets(st.sampled_from(ids), min_size=1)))
        cpu = sum(obliged[g.id] * g.allocatable["cpu"] for g in groups if g.id in chosen)
        limits.append(Limit("some", {"cpu": cpu + draw(st.integers(0, 20)) * 1000 + 5}, {"cpu": 5}, chosen))
    daemons: tuple[PodSpec, ...] = ()
    if draw(st.integers(0, 3)) == 0:
        daemons = (PodSpec((("cpu", draw(st.sampled_from([250, 2500]))),)), PodSpec((("gpu", 1),)))
    return Problem(tuple(pod_sets), groups, nodes, tuple(limits), daemons)
