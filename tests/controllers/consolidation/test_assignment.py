"""From a step of a plan to pods and nodes of the cluster."""

from __future__ import annotations

import pytest

from cagrpc.cluster.state import PodRef, ReschedulablePod
from cagrpc.controllers.consolidation.assignment import assigned
from cagrpc.controllers.consolidation.question import ConsolidationQuestion
from cagrpc.fleet.model import DisruptedNode
from solver.consolidation.model import ConsolidationProblem, ConsolidationStep, DisruptionReason
from solver.model import (
    Certificate,
    NodeGroup,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    PodSpec,
    Status,
)

SMALL, LARGE = PodSpec((("cpu", 1),)), PodSpec((("cpu", 2),))
CERTIFICATE = Certificate(Status.OPTIMAL, 0.0, 0.0, (), 0.0)


def _pod(name: str, created_at: int, spec: PodSpec = SMALL, gang: str | None = None) -> ReschedulablePod:
    return ReschedulablePod(PodRef(f"uid-{name}", "shop", name, created_at, "ReplicaSet/shop/web"), spec, 0, gang)


ASKED = ConsolidationQuestion(
    ConsolidationProblem((), (NodeGroup("big", {}, 2.0), NodeGroup("small", {}, 0.5))),
    pods={
        "a": {
            (SMALL, 0, None, False): (_pod("a1", 10), _pod("a2", 40)),
            (LARGE, 0, None, False): (_pod("a3", 5, LARGE),),
            (SMALL, 0, "g", False): (_pod("g1", 1, gang="g"),),
        },
        "b": {(SMALL, 0, None, False): (_pod("b1", 20), _pod("b2", 30))},
        "stays": {(SMALL, 0, None, False): (_pod("s", 1),), (SMALL, 0, "g", False): (_pod("g2", 2, gang="g"),)},
    },
    nodes={name: DisruptedNode(name, f"id-{name}", "old") for name in ("a", "b", "stays")},
)


def _step(plan: Plan, *nodes: str) -> ConsolidationStep:
    return ConsolidationStep(DisruptionReason.UNDERUTILIZED, nodes, plan, 1.5)


def _plan(
    classes: tuple[PodClass, ...], existing: tuple[PlacedOnNode, ...], nodes: tuple[PlannedNodes, ...] = ()
) -> Plan:
    increases = tuple(NodeGroupIncrease(each.node_group, each.count) for each in nodes)
    return Plan(classes, increases, nodes, existing, (), CERTIFICATE, 0.0)


def test_the_oldest_pods_of_all_nodes_that_go_take_the_places_that_stand() -> None:
    classes = (PodClass(0, SMALL, 4, "shop/a1"), PodClass(1, LARGE, 1, "shop/a3"))
    nodes = (PlannedNodes("big", 1, {0: 1, 1: 1}), PlannedNodes("small", 1, {0: 1}), PlannedNodes("big", 1, {}))
    found = assigned(_step(_plan(classes, (PlacedOnNode("x", {0: 2}),), nodes), "a", "b"), ASKED)
    assert [(each.pod.ref.name, each.target) for each in found.pods] == [
        ("a1", "x"),
        ("b1", "x"),
        ("b2", "big/0"),
        ("a3", "big/0"),
        ("a2", "small/0"),
    ]
    assert found.new_nodes == {"big": 2, "small": 1}
    assert found.cost_usd_per_hour == pytest.approx(4.5)
    assert (found.reason, found.saving_usd_per_hour) == (DisruptionReason.UNDERUTILIZED, 1.5)
    assert found.nodes == (DisruptedNode("a", "id-a", "old"), DisruptedNode("b", "id-b", "old"))


def test_a_gang_moves_whole_also_from_nodes_that_stay() -> None:
    classes = (PodClass(0, SMALL, 2, "shop/g1", gang="g"), PodClass(1, SMALL, 2, "shop/a1"))
    found = assigned(_step(_plan(classes, (PlacedOnNode("x", {0: 2, 1: 2}),)), "a"), ASKED)
    assert sorted(each.pod.ref.name for each in found.pods) == ["a1", "a2", "g1", "g2"]
    assert found.cost_usd_per_hour is None, "no node comes"


def test_placeholders_are_nobody() -> None:
    classes = (PodClass(0, SMALL, 1, "placeholders 0 of a", placeholder=True),)
    found = assigned(_step(_plan(classes, (PlacedOnNode("x", {0: 1}),)), "a"), ASKED)
    assert found.pods == ()
