"""The question of consolidation, from a cluster and a fleet: what no page shows of it. Which nodes go and why others
stay is in `test_nodes`, why nothing is begun in `test_whole`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.movability import Kept
from cagrpc.api.core.pods import NOWHERE
from cagrpc.cluster.node_info import PlaceholderOwner, PodOwner, RequestOwner, Reservation
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, PodsOnNode, ReschedulablePod, WaitingPods
from cagrpc.controllers.consolidation.must_go import GoingNode, GoingNodes
from cagrpc.controllers.consolidation.question import (
    BEING_REMOVED,
    NOT_OURS,
    NOT_SERVED,
    ROOM_KEPT,
    ConsolidationQuestion,
    in_flight,
    question,
    why_nothing,
)
from cagrpc.controllers.scale_down.choice import IN_FLIGHT, Bookings
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    FleetSnapshot,
    GroupState,
    IncrementSpec,
    IncrementStatus,
    Instance,
    InstanceState,
    Phase,
)
from solver.consolidation.model import DisruptionReason, StandingNode
from solver.consolidation.validation import validate_consolidation
from solver.model import (
    HostPort,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodSet,
    PodSpec,
    PreferredNodes,
    Requirement,
    RunningPods,
    Taint,
    TaintEffect,
)
from tests.support.examples import examples

NOW = 1_000_000.0
OLD = 1000
SETTINGS = ConsolidationSettings(least_saving_usd_per_hour_per_pod=0.01, most_nodes_per_step=7)
SPEC = PodSpec((("cpu", 1000),))
GROUP = NodeGroup("g", {"cpu": 4000, "pods": 10}, 1.0, provisioner="p", max_size=9)


def _pod(name: str, spec: PodSpec = SPEC, created_at: int = 100, **more: Any) -> ReschedulablePod:
    return ReschedulablePod(PodRef(f"uid-{name}", "shop", name, created_at, "ReplicaSet/shop/web"), spec, **more)


def _node(name: str = "n", *taints: str, ready: bool = True, held: bool = False, **more: Any) -> ClusterNode:
    found = Node(
        name, {"cpu": 2000, "pods": 5}, {"zone": "a"}, tuple(Taint(t, TaintEffect.NO_SCHEDULE) for t in taints)
    )
    return ClusterNode(found, f"id-{name}", ready, held, **{"created_at_seconds": OLD, **more})


def _state(*nodes: ClusterNode, **bound: PodsOnNode | list[ReschedulablePod]) -> ClusterState:
    pods = {name: PodsOnNode(tuple(each)) if isinstance(each, list) else each for name, each in bound.items()}
    return ClusterState((), nodes or (_node(),), (), bound=pods)


def _fleet(
    *names: str, group: NodeGroup = GROUP, state: InstanceState = InstanceState.RUNNING, **more: Any
) -> FleetSnapshot:
    instances = tuple(Instance(f"id-{name}", group.id, state) for name in names or ("n",))
    groups = {group.id: GroupState(group, len(instances), instances)}
    return FleetSnapshot(1, groups, (group.id,), {each.id: group.id for each in instances}, **more)


def _asked(
    state: ClusterState,
    fleet: FleetSnapshot | None = None,
    settings: ConsolidationSettings = SETTINGS,
    **more: Any,
) -> ConsolidationQuestion:
    return question(state, fleet or _fleet(*(each.node.name for each in state.nodes)), settings, NOW, **more)


def _only(
    state: ClusterState,
    fleet: FleetSnapshot | None = None,
    settings: ConsolidationSettings = SETTINGS,
    **more: Any,
) -> StandingNode:
    (found,) = _asked(state, fleet, settings, **more).problem.nodes
    return found


def _must(reason: DisruptionReason = DisruptionReason.INTERRUPTED) -> GoingNodes:
    return GoingNodes({"n": GoingNode(reason, "why")})


def test_equal_pods_of_a_node_are_one_pod_set_and_come_back_as_pods() -> None:
    preferred = PreferredNodes(1, NodeSelectorTerm((Requirement("zone", Operator.EXISTS),)))
    same = replace(SPEC, preferred_nodes=(preferred,))
    pods = [_pod("a"), _pod("b", same), _pod("c", priority=5), _pod("d", gang="x"), _pod("e", PodSpec())]
    found = _asked(_state(n=pods))
    (node,) = found.problem.nodes
    assert (node.node_group, node.kept, node.takes_pods, node.must_go) == ("g", "", True, None)
    assert node.pods == (
        PodSet("shop/a", SPEC, 2),
        PodSet("shop/c", SPEC, 1, priority=5),
        PodSet("shop/d", SPEC, 1, gang="x"),
        PodSet("shop/e", PodSpec(), 1),
    ), "preferences never prevent a move"
    names = {key: [pod.ref.name for pod in pods] for key, pods in found.pods["n"].items()}
    assert names == {
        (SPEC, 0, None, False): ["a", "b"],
        (SPEC, 5, None, False): ["c"],
        (SPEC, 0, "x", False): ["d"],
        (PodSpec(), 0, None, False): ["e"],
    }
    assert not found.left
    assert found.nodes == {"n": DisruptedNode("n", "id-n", "g")}


def test_nodes_of_others_take_pods_and_stay_and_their_pods_are_known() -> None:
    node = _only(_state(n=[_pod("a", gang="x")]), _fleet("other"))
    assert (node.node_group, node.kept, node.takes_pods) == ("", NOT_OURS, True)
    assert [each.gang for each in node.pods] == ["x"], "a gang with a pod there does not move"
    orphan = _fleet("other", orphans=(Instance("id-n", "gone", InstanceState.RUNNING),))
    assert _only(_state(), orphan).kept == NOT_SERVED


def test_a_node_whose_instance_is_being_deleted_is_in_no_group() -> None:
    node = _only(_state(n=[_pod("a")]), _fleet(state=InstanceState.DELETING))
    assert (node.node_group, node.kept, node.takes_pods) == ("", BEING_REMOVED, False)


def test_a_node_of_an_increment_in_flight_stays() -> None:
    assert _only(_state(), replace(_fleet(), held_instances=frozenset(("id-n",)))).kept == IN_FLIGHT
    assert not _only(_state(), replace(_fleet(), held_instances=frozenset(("id-m",)))).kept


def test_what_others_hold_is_taken_off_and_placeholders_move_with_their_node() -> None:
    slack = {"n": (Reservation(PlaceholderOwner("s"), SPEC, 1),)}
    node = _only(_state(), bookings=Bookings(slack=slack))
    assert (node.node.free, node.kept) == ({"cpu": 1000, "pods": 4}, "")
    assert node.pods == (PodSet("placeholders 0 of n", SPEC, 1, placeholder=True),)
    request = Bookings({"n": (Reservation(RequestOwner("r"), SPEC, 1),)}, {"n": "shop/r"})
    node = _only(_state(), bookings=request)
    assert (node.node.free["cpu"], node.kept, node.pods) == (1000, "booked for ProvisioningRequest shop/r", ())
    coming = Bookings({"n": (Reservation(PodOwner("uid"), SPEC, 1),)})
    node = _only(_state(), bookings=coming)
    assert (node.node.free["cpu"], node.kept) == (1000, ROOM_KEPT)


def test_a_gang_or_a_class_over_several_nodes_is_told_by_node() -> None:
    found = _asked(_state(_node("n"), _node("m"), n=[_pod("a", gang="x")], m=[_pod("b", gang="x")]))
    key = (SPEC, 0, "x", False)
    assert {name: [pod.ref.name for pod in of[key]] for name, of in found.pods.items()} == {"n": ["a"], "m": ["b"]}


specs = st.sampled_from(
    (
        SPEC,
        PodSpec(),
        NOWHERE,
        replace(SPEC, host_ports=(HostPort(80),)),
        replace(SPEC, unschedulable="a claim is gone"),
    )
)
kept = st.sampled_from(tuple(Kept))


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[ClusterState, FleetSnapshot, GoingNodes]:
    nodes, bound, number = [], {}, 0
    for name in ("n", "m", "o"):
        pods = []
        for _ in range(draw(st.integers(0, 5))):
            by = draw(kept)
            gang = draw(st.sampled_from((None, "x")))
            why = "why" if by is not Kept.NOTHING else ""
            pods.append(
                _pod(f"p{number}", draw(specs), priority=draw(st.integers(0, 1)), gang=gang, kept=why, kept_by=by)
            )
            number += 1
        bound[name] = PodsOnNode(tuple(pods))
        taint = draw(st.sampled_from(((), ("ToBeDeletedByClusterAutoscaler",))))
        nodes.append(_node(name, *taint, ready=draw(st.booleans()), held=draw(st.booleans())))
    ours = draw(st.sets(st.sampled_from(("n", "m", "o")), min_size=1))
    going = draw(st.sets(st.sampled_from(("n", "m", "o"))))
    named = {name: GoingNode(DisruptionReason.UNHEALTHY, "why") for name in sorted(going)}
    return replace(_state(*nodes), bound=bound), _fleet(*sorted(ours)), GoingNodes(named)


@examples(300)
@given(_clusters())
def test_every_pod_is_asked_about_once(cluster: tuple[ClusterState, FleetSnapshot, GoingNodes]) -> None:
    state, fleet, going = cluster
    found = _asked(state, fleet, going=going)
    validate_consolidation(found.problem)
    for each in found.problem.nodes:
        name = each.node.name
        mapped: Mapping[Any, tuple[ReschedulablePod, ...]] = found.pods[name]
        of_sets = {(s.spec, s.priority, s.gang, s.placeholder): s.count for s in each.pods}
        assert of_sets == {key: len(alike) for key, alike in mapped.items()}
        pods = [pod for alike in mapped.values() for pod in alike] + list(found.left.get(name, ()))
        assert sorted(pod.ref.uid for pod in pods) == sorted(pod.ref.uid for pod in state.bound[name].reschedulable)
        assert each.must_go is None or not each.kept
        assert each.must_go is None or not each.takes_pods
        if not each.kept and each.must_go is None:
            assert not any(pod.kept for pod in state.bound[name].reschedulable), "nothing that is kept is moved"
        if each.must_go is None:
            assert name not in found.left


def _waiting(*refs: PodRef) -> tuple[WaitingPods, ...]:
    return (WaitingPods(PodSet("w", SPEC, len(refs)), refs),)


INCREMENT = IncrementStatus("i1", IncrementSpec({"g": 1}), Phase.CREATING)
STEP = Disruption("d1", "Empty", DisruptionPhase.MOVING, (), 0.0, 1.0, increment_id="i1")


def test_something_may_be_begun_where_nothing_is_under_way() -> None:
    done = replace(INCREMENT, phase=Phase.DONE)
    ended = replace(STEP, phase=DisruptionPhase.DONE)
    assert why_nothing(_state(n=[_pod("a")]), _fleet(increments=(done,), disruptions=(ended,))) == ()
    assert in_flight(_fleet(increments=(done,), disruptions=(ended,))) == ()


def test_a_pod_that_the_scheduler_nominated_and_a_node_that_is_held_keep_it() -> None:
    assert _only(_state(n=PodsOnNode(coming="shop/x"))).kept == "the scheduler has nominated shop/x to it"
    held = _only(_state(_node(held=True)), going=_must())
    assert (held.kept, held.takes_pods, held.must_go) == (IN_FLIGHT, False, None)


def test_our_own_step_keeps_it_but_neither_its_increment_nor_its_nodes_do() -> None:
    going = replace(STEP, nodes=(DisruptedNode("n", "id-n", "g"),))
    state = _state(_node("n", "ToBeDeletedByClusterAutoscaler", movable=(RunningPods(SPEC, 1),)))
    fleet = _fleet(increments=(INCREMENT,), disruptions=(going,))
    assert why_nothing(state, fleet) == ("disruption d1 is under way",)
    assert in_flight(fleet) == ()
