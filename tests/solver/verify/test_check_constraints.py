"""For every kind of constraint between pods a plan that breaks it, which the checker must reject for that reason, and a
neighbour that keeps it, which it must accept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from solver import (
    Certificate,
    NodeGroupIncrease,
    Plan,
    PlannedNodes,
    PodSpec,
    Problem,
    Requirement,
    Status,
    TierCost,
    Toleration,
)
from solver.model import (
    HOSTNAME,
    Goal,
    HostPort,
    NodeSelectorTerm,
    ObjectiveStage,
    Operator,
    PlacedOnNode,
    PodAffinityTerm,
    PodClass,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    Relaxed,
    RunningPods,
    StageValue,
    Taint,
    TaintEffect,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.verify.check import faults_of
from tests.support.solver.problems import group, node, pods, spec, wants

Placed = tuple[str, int, Mapping[int, int]]
"""Group or node, number of nodes, class -> pods per node."""


def app(name: str, **other: object) -> PodSpec:
    return replace(spec(10, labels=(("app", name),)), **other)  # type: ignore[arg-type]


def selects(name: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (name,)),))


def term(name: str, key: str = "zone") -> PodAffinityTerm:
    return PodAffinityTerm(key, selects(name))


def spread(key: str = "zone", **other: object) -> tuple[TopologySpread, ...]:
    return (replace(TopologySpread(key, 1, selects("a")), **other),)  # type: ignore[arg-type]


DISKS = "attachable-volumes-csi-disks.example.com"
SOFT = Taint("busy", TaintEffect.PREFER_NO_SCHEDULE)
GROUPS = (
    group("za", labels={"zone": "a"}),
    group("zb", labels={"zone": "b"}),
    group("none"),
    group("soft", labels={"zone": "a"}, taints=(SOFT,)),
    group("disks", extra={DISKS: 2}),
)
ANYWAY = WhenUnsatisfiable.SCHEDULE_ANYWAY


def faults(
    specs: Sequence[PodSpec],
    placed: Sequence[Placed],
    running: Mapping[str, Sequence[PodSpec]] | None = None,
    given_up: Mapping[int, tuple[int, int]] | None = None,
    **other: object,
) -> list[str]:
    """Faults of a plan that places pods so and is right in everything else. `running`: zone -> pods on a node there;
    the node is called by its zone. `given_up`: class -> (pods, preferences)."""
    counts: Counter[int] = Counter()
    for _, nodes, mine in placed:
        counts.update({index: count * nodes for index, count in mine.items()})
    standing = tuple(
        node(zone, 4000, labels={"zone": zone} if zone != "nowhere" else {}, running=tuple(map(RunningPods, mine)))
        for zone, mine in (running or {}).items()
    )
    names = {each.name for each in standing}
    new = tuple(PlannedNodes(*each) for each in placed if each[0] not in names)
    deltas: Counter[str] = Counter()
    for each in new:
        deltas[each.node_group] += each.count
    cost = float(sum(deltas.values()))
    relaxed = tuple(Relaxed(index, n, ("x",) * depth) for index, (n, depth) in (given_up or {}).items())
    lost = sum(each.count * len(each.preferences) for each in relaxed)
    problem = Problem(
        tuple(pods(f"p{index}", counts[index], each) for index, each in enumerate(specs)),
        GROUPS,
        standing,
        **other,  # type: ignore[arg-type]
    )
    plan = Plan(
        tuple(PodClass(index, each, counts[index], f"p{index}") for index, each in enumerate(specs)),
        tuple(NodeGroupIncrease(name, delta) for name, delta in sorted(deltas.items())),
        new,
        tuple(PlacedOnNode(name, mine) for name, _, mine in placed if name in names),
        (),
        Certificate(Status.FEASIBLE, cost, 0.0, (TierCost(0, cost, 0.0),), 0.0),
        0.0,
        (
            StageValue(ObjectiveStage(Goal.UNSERVED), 0.0, 0.0),
            StageValue(ObjectiveStage(Goal.WAITING), 0.0, 0.0),
            StageValue(ObjectiveStage(Goal.PREFERENCES), float(lost), 0.0),
            StageValue(ObjectiveStage(Goal.COST), cost, 0.0),
            StageValue(ObjectiveStage(Goal.NODES), cost, 0.0),
        ),
        relaxed,
    )
    return list(faults_of(problem, plan))


A, B = app("a"), app("b")
PORT = app("a", host_ports=(HostPort(80, ip="10.0.0.1"),))
APART = app("a", pod_anti_affinity=(term("a"),))
APART_B = app("a", pod_anti_affinity=(term("b"),))
APART_HOST = app("a", pod_anti_affinity=(term("a", HOSTNAME),))
TOGETHER = app("a", pod_affinity=(term("a"),))
TOGETHER_HOST = app("a", pod_affinity=(term("a", HOSTNAME),))
WITH_B = app("a", pod_affinity=(term("b"),))
WITH_B_HOST = app("a", pod_affinity=(term("b", HOSTNAME),))
WITH_A = app("b", pod_affinity=(term("a"),))
B_EMPTY: dict[str, object] = {"running": {"b": []}}
"""A node of another zone stands."""
SPREAD = app("a", topology_spread=spread())
SPREAD_HOST = app("a", topology_spread=spread(HOSTNAME))
THREE = app("a", topology_spread=spread(min_domains=3))
IN_A = app("a", topology_spread=spread(), node_selector=(("zone", "a"),))
IGNORING = replace(IN_A, topology_spread=spread(honor_node_affinity=False))
WISH_APART = app("a", preferred_pods=(PreferredPods(1, term("a", HOSTNAME), anti=True),))
WISH_TOGETHER = app("a", preferred_pods=(PreferredPods(1, term("a")),))
WISH_A = app("a", preferred_nodes=(PreferredNodes(1, wants("zone", "In", "a")[0]),))
WISH_SPREAD = app("a", topology_spread=spread(when_unsatisfiable=ANYWAY))
WISHES = replace(WISH_A, preferred_pods=WISH_APART.preferred_pods)

_NAMED_A = Requirement("metadata.name", Operator.IN, ("a",))
VOLUME_IN_A = app("a", node_terms=(wants("zone", "In", "a"),))
VOLUMES_IN_A_AND_B = app("a", node_terms=(wants("zone", "In", "a"), wants("zone", "In", "b")))
VOLUME_OF_NODE = app("a", node_terms=((NodeSelectorTerm(match_fields=(_NAMED_A,)),),))
DISK = replace(A, requests=(*A.requests, (DISKS, 1)))
SHARING = app("a", pod_affinity=(PodAffinityTerm(HOSTNAME, selects("a"), alone=True),))
"""Pods that share a claim or a volume: all on one node."""
AFTER = app("b", pod_affinity=(PodAffinityTerm(HOSTNAME, selects("a"), alone=True),))
"""Shares a claim that is planned with another pod."""

CASES = [
    (
        "volume-in-another-zone",
        [VOLUME_IN_A],
        [("zb", 1, {0: 1}), ("none", 1, {0: 1})],
        [("za", 2, {0: 1})],
        {},
        "cannot be reached",
    ),
    (
        "volumes-in-two-zones",
        [VOLUMES_IN_A_AND_B, VOLUME_IN_A],
        [("za", 1, {0: 1})],
        [("za", 1, {1: 1})],
        {},
        "1 of its volumes",
    ),
    (
        "volume-or-claim-of-another-node",
        [VOLUME_OF_NODE],
        [("b", 1, {0: 1})],
        [("a", 1, {0: 1})],
        {"running": {"a": [], "b": []}},
        "cannot be reached",
    ),
    ("more-volumes-than-a-node-attaches", [DISK, A], [("disks", 1, {0: 3})], [("disks", 1, {0: 2, 1: 5})], {}, DISKS),
    ("volumes-where-none-is-attached", [DISK, A], [("za", 1, {0: 1})], [("disks", 1, {0: 1})], {}, DISKS),
    ("shared-claim-on-two-nodes", [SHARING], [("za", 2, {0: 1})], [("za", 1, {0: 2})], {}, "affinity"),
    (
        "away-from-the-pod-of-its-claim",
        [A, AFTER],
        [("za", 1, {0: 1}), ("za", 1, {1: 1})],
        [("za", 1, {0: 1, 1: 1})],
        {},
        "affinity",
    ),
    ("without-the-pod-of-its-claim", [A, AFTER], [("za", 1, {1: 1})], [("za", 1, {0: 1, 1: 2})], {}, "affinity"),
    ("port", [PORT], [("za", 1, {0: 2})], [("za", 2, {0: 1})], {}, "both take host port 80/TCP"),
    (
        "port-of-another-address",
        [PORT, app("b", host_ports=(HostPort(80),)), app("c", host_ports=(HostPort(80, ip="10.0.0.2"),))],
        [("za", 1, {0: 1, 1: 1})],
        [("za", 1, {0: 1, 2: 1}), ("za", 1, {1: 1})],
        {},
        "both take host port",
    ),
    (
        "port-of-a-running-pod",
        [PORT],
        [("a", 1, {0: 1})],
        [("b", 1, {0: 1})],
        {"running": {"a": [PORT], "b": [A]}},
        "a running pod both take",
    ),
    (
        "port-of-a-daemon",
        [PORT, A],
        [("za", 1, {0: 1})],
        [("za", 1, {1: 1}), ("a", 1, {0: 1})],
        {"daemon_sets": (app("d", host_ports=(HostPort(80),)),), "running": {"a": []}},
        "a daemon both take",
    ),
    (
        "anti-of-a-daemon",
        [APART],
        [("za", 1, {0: 1})],
        [("a", 1, {0: 1})],
        {"daemon_sets": (A,), "running": {"a": []}},
        "beside a daemon that its anti-affinity counts",
    ),
    ("anti", [APART], [("za", 2, {0: 1})], [("za", 1, {0: 1}), ("zb", 1, {0: 1})], {}, "anti-affinity over zone"),
    ("anti-without-domain", [APART], [("za", 2, {0: 1})], [("none", 5, {0: 1})], {}, "anti-affinity over zone"),
    ("anti-both-ways", [APART_B, B], [("za", 1, {0: 1, 1: 1})], [("za", 1, {0: 2}), ("zb", 1, {1: 2})], {}, "anti"),
    ("anti-host", [APART_HOST], [("za", 1, {0: 2})], [("za", 2, {0: 1})], {}, f"anti-affinity over {HOSTNAME}"),
    ("anti-running", [APART], [("za", 1, {0: 1})], [("zb", 1, {0: 1})], {"running": {"a": [A]}}, "anti-affinity"),
    (
        "anti-of-a-running-pod",
        [A],
        [("za", 1, {0: 1})],
        [("zb", 1, {0: 3})],
        {"running": {"a": [APART]}},
        "does not allow it",
    ),
    (
        "affinity",
        [WITH_B, B],
        [("za", 1, {0: 1}), ("zb", 1, {1: 1})],
        [("za", 1, {0: 9}), ("za", 1, {1: 1})],
        {},
        "aff",
    ),
    (
        "affinity-host",
        [WITH_B_HOST, B],
        [("za", 1, {0: 1}), ("za", 1, {1: 1})],
        [("za", 1, {0: 1, 1: 1})],
        {},
        f"required affinity over {HOSTNAME}",
    ),
    (
        "affinity-running",
        [WITH_B],
        [("zb", 1, {0: 1})],
        [("za", 1, {0: 1})],
        {"running": {"a": [B]}},
        "required affinity over zone",
    ),
    (
        "affinity-in-a-circle",
        [WITH_B, WITH_A],
        [("za", 1, {0: 1, 1: 1})],
        [("b", 1, {0: 1, 1: 1})],
        {"running": {"b": [A]}},
        "required affinity over zone",
    ),
    (
        "affinity-without-domain",
        [WITH_B, B],
        [("none", 1, {0: 1, 1: 1})],
        [("za", 1, {0: 1, 1: 1})],
        {},
        "required aff",
    ),
    (
        "self",
        [TOGETHER],
        [("za", 1, {0: 1}), ("zb", 1, {0: 1})],
        [("zb", 2, {0: 2})],
        {},
        "required affinity over zone",
    ),
    ("self-host", [TOGETHER_HOST], [("za", 2, {0: 1})], [("za", 1, {0: 2})], {}, f"required affinity over {HOSTNAME}"),
    (
        "self-running",
        [TOGETHER],
        [("za", 1, {0: 2})],
        [("zb", 1, {0: 2}), ("c", 1, {0: 2})],
        {"running": {"b": [A], "c": [A]}},
        "required affinity over zone",
    ),
    (
        "self-opened-by-others",
        [TOGETHER, A],
        [("za", 1, {0: 1}), ("zb", 1, {0: 1, 1: 1})],
        [("zb", 1, {0: 2, 1: 1})],
        {},
        "required affinity over zone",
    ),
    (
        "spread",
        [SPREAD],
        [("za", 1, {0: 2})],
        [("za", 1, {0: 2}), ("zb", 1, {0: 1})],
        B_EMPTY,
        "topology spread over zone",
    ),
    ("spread-without-domain", [SPREAD], [("none", 1, {0: 1})], [("za", 1, {0: 1})], {}, "topology spread over zone"),
    (
        "spread-running",
        [SPREAD],
        [("za", 1, {0: 1})],
        [("za", 1, {0: 1}), ("zb", 1, {0: 1})],
        {"running": {"a": [A], "b": []}},
        "topology spread over zone",
    ),
    (
        "spread-counts-others",
        [SPREAD, A],
        [("za", 1, {0: 1, 1: 1})],
        [("za", 1, {1: 5}), ("zb", 1, {0: 1})],
        B_EMPTY,
        "spread",
    ),
    (
        "spread-own-namespace",
        [SPREAD, A, replace(A, namespace="other")],
        [("za", 1, {0: 1, 1: 1})],
        [("za", 1, {0: 1, 2: 9})],
        B_EMPTY,
        "spread",
    ),
    (
        "spread-min-domains",
        [THREE],
        [("za", 1, {0: 2}), ("zb", 1, {0: 2})],
        [("za", 1, {0: 1}), ("zb", 1, {0: 1})],
        {},
        "spread",
    ),
    ("spread-policy", [IGNORING, IN_A], [("za", 1, {0: 2})], [("za", 1, {1: 2})], B_EMPTY, "topology spread over zone"),
    (
        "spread-host",
        [SPREAD_HOST],
        [("za", 1, {0: 2})],
        [("za", 2, {0: 1})],
        B_EMPTY,
        f"topology spread over {HOSTNAME}",
    ),
    ("wish-nodes", [WISH_A], [("zb", 1, {0: 1})], [("za", 1, {0: 1})], {}, "preferred node affinity"),
    ("wish-spread", [WISH_SPREAD], [("za", 1, {0: 2})], [("za", 1, {0: 1})], {}, "preferred topology spread"),
    ("wish-apart", [WISH_APART], [("za", 1, {0: 2})], [("za", 2, {0: 1})], {}, "preferred anti-affinity"),
    (
        "wish-together",
        [WISH_TOGETHER],
        [("za", 1, {0: 1}), ("zb", 1, {0: 1})],
        [("za", 2, {0: 1})],
        {},
        "preferred aff",
    ),
    ("soft-taint", [A], [("soft", 1, {0: 1})], [("za", 1, {0: 1})], {}, "PreferNoSchedule"),
    (
        "soft-taint-tolerated",
        [A, app("a", tolerations=(Toleration("busy", "Exists"),))],
        [("soft", 1, {0: 1})],
        [("soft", 1, {1: 1})],
        {},
        "PreferNoSchedule",
    ),
]


@pytest.mark.parametrize(
    ("specs", "bad", "good", "other", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_what_breaks_a_constraint_and_what_keeps_it(
    specs: list[PodSpec], bad: list[Placed], good: list[Placed], other: dict[str, object], expected: str
) -> None:
    assert faults(specs, good, **other) == []  # type: ignore[arg-type]
    found = faults(specs, bad, **other)  # type: ignore[arg-type]
    assert found
    assert all(expected in fault for fault in found), found


@pytest.mark.parametrize(
    ("specs", "placed", "enough", "too_few"),
    [
        pytest.param([WISH_A], [("zb", 1, {0: 2}), ("za", 1, {0: 1})], (2, 1), (1, 1), id="nodes"),
        pytest.param([WISH_APART], [("za", 1, {0: 2}), ("za", 1, {0: 1})], (2, 1), (1, 1), id="apart"),
        pytest.param([WISH_TOGETHER], [("za", 2, {0: 1}), ("zb", 1, {0: 1})], (1, 1), None, id="together"),
        pytest.param([WISHES], [("zb", 2, {0: 1})], (2, 2), (2, 1), id="the-second-in-order"),
        pytest.param([A], [("soft", 1, {0: 2})], (2, 1), (1, 1), id="taints"),
    ],
)
def test_what_was_given_up_must_be_told(
    specs: list[PodSpec], placed: list[Placed], enough: tuple[int, int], too_few: tuple[int, int] | None
) -> None:
    assert faults(specs, placed, given_up={0: enough}) == []
    fewer = faults(specs, placed, given_up={} if too_few is None else {0: too_few})
    assert fewer
    assert all("cannot keep their preferred" in fault for fault in fewer), fewer


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param((3, 1), "more pods of class 0 than are placed", id="more-than-placed"),
        pytest.param((1, 3), "give up 3 of 2 preferences", id="more-than-it-has"),
        pytest.param((0, 1), "0 pods of class 0 give up", id="none"),
    ],
)
def test_what_is_told_must_make_sense(told: tuple[int, int], expected: str) -> None:
    assert any(expected in fault for fault in faults([WISH_A], [("za", 2, {0: 1})], given_up={0: told}))
