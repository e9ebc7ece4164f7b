"""Random small problems that touch every kind of constraint the solver knows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from solver import Limit, NodeGroup, PodSet, PodSpec, Problem, Requirement, Toleration
from solver.model import (
    ATTACHABLE_VOLUMES,
    HOSTNAME,
    HostPort,
    Labels,
    Node,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    RunningPods,
    Taint,
    TaintEffect,
    TopologySpread,
    WhenUnsatisfiable,
)
from tests.support.solver.problems import TAINT, TOLERATION, previous, wants

ZONES = ("a", "b")


REACHES = (
    (wants("zone", "In", "a"),),
    (wants("zone", "In", "a"), wants("size", "Lt", "7")),
    (wants("zone", "In", "b"), (*wants("kind", "Exists"), *wants("size", "Gt", "4"))),
    ((NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, ("n0",)),)),),),
)
"""Conditions of volumes and allocated claims: all of a member's, one term of each."""


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
        node_terms=draw(st.sampled_from(((), (), (), (), *REACHES))),
        unschedulable="its volume is not there" if draw(st.integers(0, 15)) == 0 else "",
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


PORTS = (HostPort(80), HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), HostPort(80, "UDP"))
DISCOURAGED = Taint("busy", TaintEffect.PREFER_NO_SCHEDULE)
KEYS = ("zone", "zone", HOSTNAME)


@st.composite
def selectors(draw: st.DrawFn) -> PodSelector:
    wanted = draw(
        st.sampled_from(
            [
                (Requirement("app", Operator.IN, ("a",)),),
                (Requirement("app", Operator.IN, ("a",)),),
                (Requirement("app", Operator.IN, ("b",)),),
                (Requirement("app", Operator.IN, ("b",)),),
                (Requirement("app", Operator.EXISTS),),
                (Requirement("app", Operator.NOT_IN, ("a",)),),
                (),
                None,
            ]
        )
    )
    return PodSelector(wanted, draw(st.sampled_from([("x",), ("x",), ("x", "y"), None])))


@st.composite
def pod_terms(draw: st.DrawFn) -> PodAffinityTerm:
    return PodAffinityTerm(draw(st.sampled_from(KEYS)), draw(selectors()))


@st.composite
def spreads(draw: st.DrawFn) -> TopologySpread:
    hard = draw(st.integers(0, 2)) > 0
    return TopologySpread(
        draw(st.sampled_from(KEYS)),
        draw(st.sampled_from([1, 1, 2])),
        replace(draw(selectors()), namespaces=None),
        WhenUnsatisfiable.DO_NOT_SCHEDULE if hard else WhenUnsatisfiable.SCHEDULE_ANYWAY,
        draw(st.sampled_from([1, 1, 2, 3])) if hard else 1,
        draw(st.integers(0, 3)) > 0,
        draw(st.integers(0, 3)) == 0,
    )


@st.composite
def constrained_specs(draw: st.DrawFn) -> PodSpec:
    """Draw specs with one or two constraints of any kind."""
    preferred_nodes = PreferredNodes(draw(st.integers(1, 2)), draw(st.sampled_from(wants("zone", "In", "a"))))
    spec = PodSpec(
        (("cpu", draw(st.integers(1, 4)) * 500),),
        node_selector=(("zone", "a"),) if draw(st.integers(0, 5)) == 0 else (),
        tolerations=(Toleration("busy", "Exists"),) if draw(st.integers(0, 3)) == 0 else (),
        namespace=draw(st.sampled_from(["x", "x", "x", "y"])),
        labels=draw(st.sampled_from([(("app", "a"),), (("app", "a"),), (("app", "b"),), ()])),
        node_terms=REACHES[0] if draw(st.integers(0, 5)) == 0 else (),
    )
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.integers(0, 7)):
            case 0:
                spec = replace(spec, host_ports=(draw(st.sampled_from(PORTS)),))
            case 1:
                spec = replace(spec, pod_affinity=(*spec.pod_affinity, draw(pod_terms())))
            case 2:
                spec = replace(spec, pod_anti_affinity=(*spec.pod_anti_affinity, draw(pod_terms())))
            case 3 | 4:
                spec = replace(spec, topology_spread=(*spec.topology_spread, draw(spreads())))
            case 5:
                spec = replace(spec, preferred_nodes=(*spec.preferred_nodes, preferred_nodes))
            case _:
                wish = PreferredPods(draw(st.integers(1, 2)), draw(pod_terms()), draw(st.booleans()))
                spec = replace(spec, preferred_pods=(*spec.preferred_pods, wish))
    return spec


@st.composite
def nodes_with_constrained_pods(draw: st.DrawFn) -> list[Node]:
    """Draw some nodes with room for a few pods, and with pods that require something of others."""
    labels = st.sampled_from([{"zone": "a"}, {"zone": "a"}, {"zone": "b"}, {"zone": "b"}, {}])
    return [
        Node(
            f"n{number}",
            {"cpu": draw(st.integers(0, 4)) * 1000, "pods": draw(st.integers(2, 8))},
            draw(labels),
            running=tuple(RunningPods(each) for each in draw(st.lists(constrained_specs(), max_size=1))),
        )
        for number in range(draw(st.integers(3, 9)))
    ]


@st.composite
def constrained_problems(draw: st.DrawFn) -> Problem:
    """Draw small problems with constraints of every kind between few pods, few zones and little room."""
    pod_sets = []
    for number in range(draw(st.integers(1, 4))):
        placeholder = draw(st.integers(0, 9)) == 0
        pod_sets.append(
            PodSet(
                f"ns/p{number}",
                draw(constrained_specs()),
                draw(st.integers(1, 3)),
                priority=draw(st.sampled_from([0, 0, 0, 1000])),
                waiting_seconds=draw(st.sampled_from([0, 0, 60])),
                gang=None if placeholder else draw(st.sampled_from([None, None, None, "red"])),
                placeholder=placeholder,
            )
        )
    soft = st.sampled_from([(), (), (DISCOURAGED,)])
    labels = st.sampled_from([{"zone": "a"}, {"zone": "a"}, {"zone": "b"}, {"zone": "b"}, {}])
    groups = tuple(
        NodeGroup(
            f"g{number}",
            {"cpu": draw(st.integers(1, 4)) * 1000, "pods": draw(st.integers(1, 5))},
            draw(st.integers(1, 8)) / 8,
            draw(labels),
            draw(soft),
            max_size=draw(st.integers(0, 3)),
            weight=draw(st.sampled_from([0, 0, 10])),
        )
        for number in range(draw(st.integers(1, 3)))
    )
    nodes = tuple(
        Node(
            f"n{number}",
            {"cpu": draw(st.integers(0, 4)) * 1000, "pods": draw(st.integers(0, 4))},
            draw(labels),
            draw(soft),
            tuple(
                RunningPods(spec, draw(st.integers(1, 2)))
                for spec in draw(st.lists(constrained_specs(), min_size=0, max_size=2))
            ),
        )
        for number in range(draw(st.integers(0, 2)))
    )
    limits = (Limit("nodes", {"nodes": draw(st.integers(0, 4))}),) if draw(st.integers(0, 3)) == 0 else ()
    daemons: tuple[PodSpec, ...] = ()
    if draw(st.integers(0, 4)) == 0:
        asked = (("cpu", draw(st.sampled_from([250, 250, 1500]))),)
        app = draw(st.sampled_from([(), (("app", "a"),)]))
        daemons = (PodSpec(asked, namespace="x" if app else "", labels=app, host_ports=PORTS[1:2]),)
    before = None
    if draw(st.integers(0, 3)) == 0:
        before = previous({f"g{number}": draw(st.integers(0, 3)) for number in range(3)})
    return Problem(tuple(pod_sets), groups, nodes, limits, daemons, before)


@st.composite
def with_volumes(draw: st.DrawFn, problem: Problem) -> Problem:
    """Draw the problem with pods that have volumes, some in zones or on a node, and places that attach a few."""
    attached = f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com"

    def volumes_of(pod_set: PodSet) -> PodSet:
        spec, count = pod_set.spec, draw(st.integers(0, 2))
        zones = draw(st.sampled_from([(), ("a",), ("b",), ("a", "b")]))
        terms = [(NodeSelectorTerm((Requirement("disk-zone", Operator.IN, zones),)),)] if zones else []
        if draw(st.integers(0, 5)) == 0:
            terms.append((NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, ("n",)),)),))
        missing = draw(st.sampled_from(["", "", "", "", 'persistentvolumeclaim "x" not found']))
        requests = tuple(sorted({**dict(spec.requests), attached: count}.items())) if count else spec.requests
        return replace(pod_set, spec=replace(spec, requests=requests, node_terms=tuple(terms), unschedulable=missing))

    def zoned(labels: Labels) -> Labels:
        return {**labels, "disk-zone": draw(st.sampled_from(["a", "b"]))}

    groups = tuple(
        replace(g, labels=zoned(g.labels), allocatable={**g.allocatable, attached: draw(st.integers(0, 3))})
        for g in problem.node_groups
    )
    nodes = tuple(
        replace(n, labels=zoned(n.labels), free={**n.free, attached: draw(st.integers(0, 3))}) for n in problem.nodes
    )
    return replace(
        problem, pod_sets=tuple(map(volumes_of, problem.pod_sets)), node_groups=groups, nodes=nodes, previous=None
    )


@st.composite
def with_shared_volumes(draw: st.DrawFn, problem: Problem) -> Problem:
    """Draw the problem with pods of which some have volumes of their own, some those of others as well, and places that
    attach a few and have some attached."""
    attached = f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com"
    volumes = [(attached, name) for name in ("one", "two", "three")]

    def of_pods(pod_set: PodSet) -> PodSet:
        shared = tuple(sorted(draw(st.sets(st.sampled_from(volumes), max_size=2))))
        count = len(shared) + draw(st.sampled_from([0, 0, 0, 1]))
        if not count:
            return pod_set
        requests = tuple(sorted({**dict(pod_set.spec.requests), attached: count}.items()))
        return replace(pod_set, spec=replace(pod_set.spec, requests=requests, shared_volumes=shared))

    def of_node(node: Node) -> Node:
        there = draw(st.frozensets(st.sampled_from(volumes), max_size=2))
        return replace(node, free={**node.free, attached: draw(st.integers(0, 2))}, volumes=there)

    groups = tuple(
        replace(g, allocatable={**g.allocatable, attached: draw(st.sampled_from([0, 1, 1, 2, 3, 10**6]))})
        for g in problem.node_groups
    )
    return replace(
        problem,
        pod_sets=tuple(map(of_pods, problem.pod_sets)),
        node_groups=groups,
        nodes=tuple(map(of_node, problem.nodes)),
    )
