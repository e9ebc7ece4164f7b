"""What the cluster and the autoscaler's estimate add to the templates of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from cagrpc.api.autoscaler.expander import Option, decode
from cagrpc.api.core.gangs import GangCount
from cagrpc.api.core.nodes import template
from cagrpc.api.core.pods import Pod
from cagrpc.cluster.state import ClusterNode, ClusterState, PendingPod, PodRef, WaitingPods
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.errors import Unavailable
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.fleet.prices import NodePlace, PriceList
from cagrpc.services.grpc.surroundings import surroundings
from cagrpc.services.grpc.template_groups import TemplateGroups, as_estimated
from solver.model import CPU, HOSTNAME, PODS, Budget, HostPort, Node, NodeGroup, PodSet, PodSpec, Problem
from solver.model.plan import ScaleUpCandidate, Score
from solver.planning.rank import rank
from tests.support.fleet import FleetHarness
from tests.support.grpc_servers import House, asking, option, pod

GIB = 2**30
OFFERED = [pod(str(index)) for index in range(4)]
DAEMON, ONE_CORE = PodSpec(((CPU, 500),)), PodSpec(((CPU, 1000),))


def node(name: str, cpu: int, running: int = 0) -> ClusterNode:
    """Of so many cores, of which some are in use."""
    free = {CPU: 1000 * (cpu - running), "memory": 64 * GIB, PODS: 100}
    return ClusterNode(Node(name, free, {HOSTNAME: name}, ()), f"kwok:{name}", ready=True, held=False)


def waiting(name: str, cpu: int, count: int = 1) -> WaitingPods:
    """Pods with the UIDs that `pod` gives."""
    pods = tuple(PodRef(f"uid-{name}{number}", "ns", f"{name}{number}") for number in range(count))
    return WaitingPods(PodSet(f"ns/{name}", PodSpec(((CPU, 1000 * cpu),)), count), pods)


@dataclass
class View:
    """Of a cluster without gangs."""

    found: ClusterState | None
    gangs: Mapping[str, GangCount] = field(default_factory=dict)

    def state(self) -> ClusterState:
        if self.found is None:
            raise Unavailable("nodes are not listed yet")
        return self.found

    def gang(self, name: str) -> GangCount | None:
        return self.gangs.get(name)

    def nominated_by_us(self) -> Mapping[str, PendingPod]:
        return {}


class Asked:
    """Ranks, and keeps what it was asked."""

    problem: Problem

    def __call__(self, problem: Problem, candidates: Sequence[ScaleUpCandidate], budget: Budget) -> Sequence[Score]:
        self.problem = problem
        return rank(problem, candidates, budget)


def found_in(state: ClusterState) -> tuple[dict[str, int], tuple[PodSpec, ...]]:
    """The free cores of nodes, and the DaemonSets, for pods of which `OFFERED` are offered."""
    found = surroundings(
        Snapshot(FleetSnapshot(0, {}, (), {}), state), {f"uid-{index}": ONE_CORE for index in range(4)}
    )
    assert not found.unknown
    return {each.name: each.free[CPU] // 1000 for each in found.nodes}, found.daemon_sets


def test_pods_that_are_not_offered_have_their_room_on_nodes_that_stand() -> None:
    pods = (waiting("", 1, 4), waiting("other", 2, 2))
    assert found_in(ClusterState(pods, (node("a", 8, 3), node("b", 4)), (DAEMON,))) == ({"a": 1, "b": 4}, (DAEMON,))


def test_those_without_room_there_have_it_on_nodes_that_are_coming() -> None:
    assert found_in(ClusterState((waiting("other", 2, 5),), (node("a", 3),), ())) == ({"a": 1}, ())


def test_nodes_without_room_for_any_pod_are_left_out() -> None:
    assert found_in(ClusterState((), (node("a", 3, 3), node("b", 1)), ())) == ({"b": 1}, ())


def test_nodes_that_are_not_ready_have_no_room() -> None:
    assert found_in(ClusterState((), (replace(node("a", 3), ready=False), node("b", 1)), ())) == ({"b": 1}, ())


def test_what_is_invalid_is_in_nobodys_way() -> None:
    bad = replace(node("bad", 3), node=Node("bad", {CPU: -1}, {}, ()))
    assert found_in(ClusterState((), (bad, node("a", 1)), (PodSpec((("cpu", -5),)), DAEMON)))[1] == (DAEMON,)


TEMPLATES = {
    name: template(NodeGroup("t", {CPU: cpu * 1000, "memory": cpu * 4 * GIB, PODS: 110}, 0.0, instance_type=name))
    for name, cpu in (("two", 2), ("four", 4))
}


PRICES = PriceList(Catalogue((), {}), {NodePlace("two"): 1.0, NodePlace("four"): 1.5})


def beside(view: View | None, asked: Asked) -> House:
    return House(
        FleetHarness(groups=[]), rank=asked, cluster=view, expander_options={"templates": TemplateGroups(prices=PRICES)}
    )


def choice(view: View | None, asked: Asked) -> tuple[str, str]:
    """Return the group that is chosen, and why: `two` serves two of the pods, and `four` all of them."""
    request = asking(option("two", 1, OFFERED[:2]), option("four", 1, OFFERED))
    request.nodeBytesMap.update(TEMPLATES)
    with beside(view, asked) as house:
        (answered,) = house.advice.ok("BestOptions", request).options
        (decision,) = house.decisions.latest()
    assert decision.ranked_by == "objective"
    return answered.nodeGroupId, decision.reason


@pytest.mark.parametrize(
    ("nodes", "best"), [((), "four"), ((node("a", 2),), "two"), ((node("a", 2, 1),), "four")], ids=["none", "2", "1"]
)
def test_the_rest_may_go_to_nodes_that_stand(nodes: tuple[ClusterNode, ...], best: str) -> None:
    assert choice(View(ClusterState((waiting("", 1, 4),), nodes, ())), Asked())[0] == best


def test_daemon_sets_take_their_part_of_new_nodes() -> None:
    asked = Asked()
    choice(View(ClusterState((), (), (DAEMON,))), asked)
    assert asked.problem.daemon_sets == (DAEMON,)


UNREAD = "DaemonSets and room on standing nodes"


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (None, f"(not known: sizes of two, four; {UNREAD})"),
        (View(None), f"(not known: sizes of two, four; {UNREAD}, as nodes are not listed yet)"),
        (View(ClusterState((), (), ())), "(not known: sizes of two, four)"),
    ],
    ids=["no cluster", "not listed", "known"],
)
def test_what_is_not_known_is_said(view: View | None, said: str) -> None:
    assert said in choice(view, Asked())[1]


# ---- what templates lack


GROUP = NodeGroup("eks", {CPU: 8000, "memory": 32 * GIB, PODS: 110}, 1.0)


def estimated(nodes: int, pods: Sequence[bytes], daemon_sets: Sequence[PodSpec] = ()) -> tuple[int, str]:
    """Return the cores that a node of GROUP is planned with, and what is said, where CA takes so many nodes."""
    request = decode(asking(option("eks", nodes, pods)).SerializeToString(), lambda: False)
    found, said = as_estimated(GROUP, request.options[0], daemon_sets)
    assert {**found.allocatable, CPU: 0} == {**GROUP.allocatable, CPU: 0}
    return found.allocatable[CPU], said


def alike(count: int) -> list[bytes]:
    """Pods of two cores, of which four fill a node."""
    return [pod(str(index), "2") for index in range(count)]


@pytest.mark.parametrize(
    ("nodes", "pods", "cores"),
    [
        pytest.param(2, 8, 8000, id="as the template says"),
        pytest.param(3, 9, 8000, id="the last one is not full"),
        pytest.param(3, 8, 7999, id="three on a node"),
        pytest.param(4, 7, 5999, id="two on a node"),
        pytest.param(4, 8, 5999, id="two on a node, exactly"),
        pytest.param(1, 1, 8000, id="one node says nothing"),
        pytest.param(8, 8, 8000, id="one on a node: no estimate by packing"),
        pytest.param(9, 4, 8000, id="more nodes than pods"),
    ],
)
def test_an_estimate_for_equal_pods_proves_what_a_node_takes(nodes: int, pods: int, cores: int) -> None:
    found, said = estimated(nodes, alike(pods))
    assert found == cores
    assert bool(said) == (cores < 8000)


def test_it_says_what_is_inferred() -> None:
    assert estimated(3, alike(8))[1] == (
        "by its estimate eks has room for 3 such pods on a node, not 4: 1m of cpu is taken to be in use"
    )


def test_what_daemon_sets_take_is_not_taken_twice() -> None:
    assert estimated(3, alike(8), [DAEMON]) == (8000, "")


def test_pods_that_differ_or_mind_each_other_prove_nothing() -> None:
    assert estimated(4, [*alike(7), pod("large", "7")]) == (8000, "")
    on_port = [replace(each, spec=replace(each.spec, host_ports=(HostPort(80),))) for each in decoded(7)]
    assert as_estimated(GROUP, Option("eks", 4, pods=tuple(on_port)), ()) == (GROUP, "")


def decoded(count: int) -> tuple[Pod, ...]:
    return decode(asking(option("eks", 1, alike(count))).SerializeToString(), lambda: False).options[0].pods
