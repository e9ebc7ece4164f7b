"""The question of consolidation, from a cluster and a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.movability import Kept
from cagrpc.api.core.pods import NOWHERE
from cagrpc.cluster.node_info import PlaceholderOwner, PodOwner, RequestOwner, Reservation
from cagrpc.cluster.shortages import offering
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, PodsOnNode, ReschedulablePod, WaitingPods
from cagrpc.controllers.consolidation.must_go import GoingNode, GoingNodes
from cagrpc.controllers.consolidation.question import (
    BEING_REMOVED,
    DO_NOT_DISRUPT_NODE,
    NOT_OURS,
    NOT_READY,
    NOT_SERVED,
    ROOM_KEPT,
    SCALE_DOWN_DISABLED_BY_OTHERS,
    ConsolidationQuestion,
    question,
    why_not_now,
)
from cagrpc.controllers.scale_down.choice import AT_MINIMUM, IN_FLIGHT, Bookings
from cagrpc.controllers.settings import ConsolidationPolicy, ConsolidationSettings, ProvisionerDisruption
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    ExpectedPod,
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
    Limit,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    PreferredNodes,
    Requirement,
    RunningPods,
    Taint,
    TaintEffect,
    TopologySpread,
    WhenUnsatisfiable,
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


def test_groups_keep_their_minimum_and_limits_and_rules_are_passed_on() -> None:
    limit, daemon = Limit("p", {"cpu": 9000}, {"cpu": 4000}), PodSpec((("cpu", 1),))
    fleet = replace(_fleet("n", "m", group=replace(GROUP, min_size=1)), limits=(limit,))
    problem = _asked(replace(_state(_node("n"), _node("m")), daemon_sets=(daemon,)), fleet).problem
    (group,) = problem.node_groups
    assert (group.min_size, group.target_size, group.max_size) == (1, 2, 9)
    assert group.labels["kubernetes.io/os"] == "linux", "as its nodes will have them"
    assert (problem.limits, problem.daemon_sets) == ((limit,), (daemon,))
    assert (problem.least_saving_usd_per_hour_per_pod, problem.most_nodes_per_step) == (0.01, 7)
    (short,) = _asked(_state(), short={offering(GROUP)}).problem.node_groups
    assert short.max_size == short.target_size == 1, "no node is opened where there was a shortage"


AGE = "it is younger than the minimum age, until 1970-01-12T13:46:41Z"
KEPT = _pod("kept", kept="shop/kept asks to stay", kept_by=Kept.BY_OWNER)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        pytest.param(_node(), "", id="an ordinary one"),
        pytest.param(_node(held=True), IN_FLIGHT, id="held until its increment is released"),
        pytest.param(_node("n", "ToBeDeletedByClusterAutoscaler"), BEING_REMOVED, id="CA drains it"),
        pytest.param(_node("n", "karpenter.sh/disrupted"), f"{BEING_REMOVED}: it has the taint karpenter.sh/disrupted",
                     id="Karpenter drains it"),
        pytest.param(_node("n", "node.kubernetes.io/unschedulable"), "", id="a cordoned one may go"),
        pytest.param(_node(ready=False), NOT_READY, id="not Ready"),
        pytest.param(_node(do_not_disrupt=True), DO_NOT_DISRUPT_NODE, id="Karpenter's annotation"),
        pytest.param(_node(scale_down_disabled="true"), SCALE_DOWN_DISABLED_BY_OTHERS, id="CA's annotation"),
        pytest.param(_node(scale_down_disabled="true", scale_down_disabled_by_us=True), "", id="our own"),
        pytest.param(_node(scale_down_disabled="false"), "", id="CA's annotation, taken back"),
        pytest.param(_node(created_at_seconds=int(NOW) - 599), AGE, id="young"),
        pytest.param(_node(created_at_seconds=int(NOW) - 600), "", id="just old enough"),
    ],
)  # fmt: skip
def test_what_keeps_a_node(node: ClusterNode, why: str) -> None:
    assert _only(_state(node, n=[_pod("a")])).kept == why


@pytest.mark.parametrize(
    ("here", "why"),
    [
        pytest.param([_pod("a"), KEPT], "shop/kept asks to stay", id="a pod that is kept"),
        pytest.param(PodsOnNode(ending="shop/x"), "shop/x is being deleted, and has its time", id="one that ends"),
        pytest.param(PodsOnNode(coming="shop/x"), "the scheduler has nominated shop/x to it", id="one that comes"),
        pytest.param([], "", id="empty"),
    ],
)
def test_what_its_pods_keep_it_by(here: Any, why: str) -> None:
    assert _only(_state(n=here)).kept == why


def test_nodes_of_others_take_pods_and_stay_and_their_pods_are_known() -> None:
    node = _only(_state(n=[_pod("a", gang="x")]), _fleet("other"))
    assert (node.node_group, node.kept, node.takes_pods) == ("", NOT_OURS, True)
    assert [each.gang for each in node.pods] == ["x"], "a gang with a pod there does not move"
    orphan = _fleet("other", orphans=(Instance("id-n", "gone", InstanceState.RUNNING),))
    assert _only(_state(), orphan).kept == NOT_SERVED


def test_a_node_whose_instance_is_being_deleted_is_in_no_group() -> None:
    node = _only(_state(n=[_pod("a")]), _fleet(state=InstanceState.DELETING))
    assert (node.node_group, node.kept, node.takes_pods) == ("", BEING_REMOVED, False)


def test_a_group_at_its_minimum_keeps_its_nodes_but_those_that_must_go() -> None:
    fleet = _fleet(group=replace(GROUP, min_size=1))
    assert _only(_state(), fleet).kept == AT_MINIMUM
    assert not _only(_state(), fleet, going=_must()).kept
    assert not _only(_state(), _fleet(group=replace(GROUP, min_size=0))).kept


def test_a_node_of_an_increment_in_flight_stays() -> None:
    assert _only(_state(), replace(_fleet(), held_instances=frozenset(("id-n",)))).kept == IN_FLIGHT
    assert not _only(_state(), replace(_fleet(), held_instances=frozenset(("id-m",)))).kept


def test_consolidate_after_counts_from_the_start_of_a_node_without_pods() -> None:
    settings = replace(SETTINGS, disruption={"p": ProvisionerDisruption(consolidate_after_seconds=3600.0)})
    young = _node(created_at_seconds=int(NOW) - 3599)
    assert "consolidateAfter" in _only(_state(young), settings=settings).kept
    assert not _only(_state(_node(created_at_seconds=int(NOW) - 3600)), settings=settings).kept


@pytest.mark.parametrize("taint", ["node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler"])
def test_nobody_moves_to_a_node_that_takes_no_pods(taint: str) -> None:
    assert not _only(_state(_node("n", taint))).takes_pods
    assert not _only(_state(_node(ready=False))).takes_pods
    assert not _only(_state(_node(held=True))).takes_pods
    assert _only(_state(_node("n", "dedicated"))).takes_pods


@pytest.mark.parametrize(
    ("said", "pods", "why"),
    [
        pytest.param(ProvisionerDisruption(consolidate_after_seconds=None), [],
                     "provisioner p is never consolidated: consolidateAfter is Never", id="never"),
        pytest.param(ProvisionerDisruption(ConsolidationPolicy.WHEN_EMPTY), [_pod("a")],
                     "provisioner p is consolidated only where nodes are empty (WhenEmpty)", id="when empty"),
        pytest.param(ProvisionerDisruption(ConsolidationPolicy.WHEN_EMPTY), [], "", id="and it is"),
        pytest.param(ProvisionerDisruption(consolidate_after_seconds=60.0), [_pod("a", created_at=int(NOW) - 59)],
                     "its last pod came less than consolidateAfter ago, until 1970-01-12T13:46:41Z", id="a pod came"),
        pytest.param(ProvisionerDisruption(consolidate_after_seconds=60.0), [_pod("a", created_at=int(NOW) - 60)], "",
                     id="long ago"),
    ],
)  # fmt: skip
def test_what_a_provisioner_says_counts(said: ProvisionerDisruption, pods: list[ReschedulablePod], why: str) -> None:
    assert _only(_state(n=pods), settings=replace(SETTINGS, disruption={"p": said})).kept == why
    assert not _only(_state(n=pods), settings=replace(SETTINGS, disruption={"q": said})).kept


def test_of_a_node_that_must_go_all_pods_are_planned_that_somebody_makes_again() -> None:
    pods = [
        _pod("a"),
        _pod("alone", kept="why", kept_by=Kept.WITHOUT_SUCCESSOR),
        _pod("asks", kept="why", kept_by=Kept.BY_OWNER),
        _pod("budget", kept="why", kept_by=Kept.FOR_NOW),
        _pod("job", kept="why", kept_by=Kept.UNTIL_IT_ENDS),
    ]
    young = _node(created_at_seconds=int(NOW), do_not_disrupt=True)
    found = _asked(_state(young, n=pods), going=_must())
    (node,) = found.problem.nodes
    assert (node.must_go, node.kept, node.takes_pods) == (DisruptionReason.INTERRUPTED, "", False)
    assert [(each.name, each.count) for each in node.pods] == [("shop/a", 4)]
    assert [pod.ref.name for pod in found.left["n"]] == ["alone"]


@pytest.mark.parametrize(
    ("node", "fleet"),
    [
        pytest.param(_node("n", "ToBeDeletedByClusterAutoscaler"), _fleet(), id="CA drains it"),
        pytest.param(_node(held=True), _fleet(), id="in flight"),
        pytest.param(_node(), _fleet("other"), id="of others"),
    ],
)
def test_what_is_not_ours_to_replace_is_not_replaced(node: ClusterNode, fleet: FleetSnapshot) -> None:
    found = _only(_state(node), fleet, going=_must())
    assert found.must_go is None
    assert found.kept


def test_nodes_that_are_spared_say_why() -> None:
    assert _only(_state(), going=GoingNodes(spared={"n": "many are bad"})).kept == "many are bad"


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


WEB = PodSelector((Requirement("app", Operator.IN, ("web",)),), ("shop",))
APART = PodAffinityTerm("kubernetes.io/hostname", WEB)
SPREAD = TopologySpread("zone", 1, WEB)


@pytest.mark.parametrize(
    ("spec", "others", "seen"),
    [
        pytest.param(SPEC, PodSpec(host_ports=(HostPort(80),)), False, id="nobody has rules about others"),
        pytest.param(replace(SPEC, host_ports=(HostPort(80),)), PodSpec(), True, id="a port"),
        pytest.param(replace(SPEC, pod_anti_affinity=(APART,)), PodSpec(), True, id="apart"),
        pytest.param(SPEC, PodSpec(pod_anti_affinity=(APART,)), True, id="a DaemonSet's that keeps others out"),
        pytest.param(replace(SPEC, topology_spread=(SPREAD,)), PodSpec(), True, id="spread"),
        pytest.param(replace(SPEC, topology_spread=(
            replace(SPREAD, when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY),)), PodSpec(), False, id="a wish"),
    ],
)  # fmt: skip
def test_pods_are_seen_by_each_other_where_constraints_look(spec: PodSpec, others: PodSpec, seen: bool) -> None:
    here = PodsOnNode((_pod("a", spec), _pod("b", spec)), (RunningPods(others, 3),))
    running = _only(_state(n=here)).node.running
    assert running == ((RunningPods(spec, 2), RunningPods(others, 3)) if seen else ())


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


EXPECTED = PodRef(ExpectedPod("ReplicaSet/shop/web", 0), "shop", "web")
INCREMENT = IncrementStatus("i1", IncrementSpec({"g": 1}), Phase.CREATING)
STEP = Disruption("d1", "Empty", DisruptionPhase.MOVING, (), 0.0, 1.0, increment_id="i1")


def test_something_may_be_begun_where_nothing_is_under_way() -> None:
    done = replace(INCREMENT, phase=Phase.DONE)
    ended = replace(STEP, phase=DisruptionPhase.DONE)
    assert why_not_now(_state(n=[_pod("a")]), _fleet(increments=(done,), disruptions=(ended,))) == ()


@pytest.mark.parametrize(
    ("state", "fleet", "more", "why"),
    [
        pytest.param({}, {}, {"problem": "the watch is down"}, ["the cluster is not known: the watch is down"],
                     id="unknown"),
        pytest.param({"waiting": _waiting(_pod("a").ref)}, {}, {}, ["pods wait: 1"], id="pods wait"),
        pytest.param({"waiting": _waiting(_pod("a").ref)}, {}, {"unservable": {"uid-a"}}, [],
                     id="that no node would serve"),
        pytest.param({"waiting": _waiting(EXPECTED)}, {}, {}, ["pods are to be created by their workloads: 1"],
                     id="pods are expected"),
        pytest.param({}, {}, {"requests_due": 2}, ["ProvisioningRequests need room: 2"], id="requests are due"),
        pytest.param({}, {"increments": (INCREMENT,)}, {}, ["increment i1 is in flight"], id="an increment"),
        pytest.param({}, {"increments": (INCREMENT,), "disruptions": (STEP,)}, {}, ["disruption d1 is under way"],
                     id="our own step, with its increment"),
    ],
)  # fmt: skip
def test_why_nothing_is_begun(state: dict[str, Any], fleet: dict[str, Any], more: Any, why: list[str]) -> None:
    assert list(why_not_now(replace(_state(), **state), _fleet(**fleet), **more)) == why


def test_nothing_is_begun_while_others_take_away_nodes_with_pods() -> None:
    node = _node("n", "ToBeDeletedByClusterAutoscaler", movable=(RunningPods(SPEC, 1),))
    assert why_not_now(_state(node), _fleet()) == ("node n is being removed, and has pods",)
    assert why_not_now(_state(replace(node, movable=())), _fleet()) == ()
    own = replace(STEP, nodes=(DisruptedNode("n", "id-n", "g"),))
    assert why_not_now(_state(node), _fleet(disruptions=(own,))) == ("disruption d1 is under way",)
