"""A property of the question of consolidation: no pod is forgotten, and none that is kept moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.movability import Kept, StaysBecause
from cagrpc.api.core.pods import NOWHERE
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, PodsOnNode, ReschedulablePod
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.question import ForcefulDisruption, ForcefulDisruptions, question
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver.consolidation.model import DisruptionReason, validate_consolidation
from solver.model import HostPort, Node, NodeGroup, PodSpec, Taint, TaintEffect
from tests.support.examples import examples

NODES = ("n", "m", "o")
GROUP = NodeGroup("g", {"cpu": 4000, "pods": 10}, 1.0, max_size=9)
CPU = (("cpu", 1000),)
SPECS = (
    PodSpec(CPU),
    PodSpec(),
    NOWHERE,
    PodSpec(CPU, host_ports=(HostPort(80),)),
    PodSpec(CPU, unschedulable="a claim is gone"),
)


REASONS = (StaysBecause.NO_CONTROLLER, StaysBecause.NOT_SAFE, StaysBecause.ENDS, StaysBecause.BUDGET)
"""One of each way to be kept."""


@st.composite
def _pods(draw: st.DrawFn, name: str) -> ReschedulablePod:
    because = draw(st.sampled_from((None, *REASONS)))
    ref = PodRef(f"uid-{name}", "shop", name, 100, "ReplicaSet/shop/web")
    priority, gang = draw(st.integers(0, 1)), draw(st.sampled_from((None, "x")))
    why = "" if because is None else "why"
    return ReschedulablePod(ref, draw(st.sampled_from(SPECS)), priority, gang, why, because)


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[ClusterState, FleetSnapshot, ForcefulDisruptions]:
    nodes, bound = [], {}
    for name in NODES:
        count = draw(st.integers(0, 5))
        bound[name] = PodsOnNode(tuple(draw(_pods(f"{name}{number}")) for number in range(count)))
        taint = Taint("ToBeDeletedByClusterAutoscaler", TaintEffect.NO_SCHEDULE)
        node = Node(name, {"cpu": 2000, "pods": 5}, taints=draw(st.sampled_from(((), (taint,)))))
        nodes.append(ClusterNode(node, f"id-{name}", draw(st.booleans()), draw(st.booleans()), created_at_seconds=1000))
    ours = [Instance(f"id-{name}", "g", InstanceState.RUNNING) for name in NODES if draw(st.booleans())]
    groups = {"g": GroupState(GROUP, len(ours), tuple(ours))}
    going = {name: ForcefulDisruption(DisruptionReason.UNHEALTHY, "why") for name in NODES if draw(st.booleans())}
    fleet = FleetSnapshot(1, groups, ("g",), {each.id: "g" for each in ours})
    return ClusterState((), tuple(nodes), (), bound=bound), fleet, ForcefulDisruptions(going)


@examples(300)
@given(_clusters())
def test_every_pod_is_asked_about_once(cluster: tuple[ClusterState, FleetSnapshot, ForcefulDisruptions]) -> None:
    state, fleet, going = cluster
    found = question(Snapshot(fleet, state), ConsolidationSettings(), 1_000_000.0, going=going)
    validate_consolidation(found.problem)
    for each in found.problem.nodes:
        name = each.node.name
        here, alike = state.bound[name].reschedulable, found.pods[name]
        counts = {(of.spec, of.priority, of.gang, of.placeholder): of.count for of in each.pods}
        assert counts == {key: len(pods) for key, pods in alike.items()}
        left = [pod for pod in here if each.must_go is not None and pod.kept_by is Kept.WITHOUT_SUCCESSOR]
        pods = [pod for of in alike.values() for pod in of] + left
        assert sorted(pod.ref.uid for pod in pods) == sorted(pod.ref.uid for pod in here)
        if each.must_go is not None:
            assert not each.kept
            assert not each.takes_pods
        else:
            assert each.kept or not any(pod.kept for pod in here), "nothing that is kept is moved"
