"""The report and a server's consolidation ask the same of the same cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import DO_NOT_DISRUPT, SAFE_TO_EVICT, MovingRules, StaysBecause
from cagrpc.api.encoding.messages import plain
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.budgets import POD_DISRUPTION_BUDGETS
from cagrpc.controllers.consolidation.must_go import must_go
from cagrpc.controllers.consolidation.question import question as question_of_server
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.report.moving import SETTINGS, moving_question
from cagrpc.report.prices import price_list
from cagrpc.report.problem import Offered, first_kept, question, reader_of
from cagrpc.report.sources import Objects
from cagrpc.report.standing import StandingShape, shapes, standing_nodes, texts_of
from solver.consolidation.model import ConsolidationProblem
from tests.support.controllers.cluster_objects import DAEMON_SETS, NOW, Fed, apart, node, pod, spread
from tests.support.examples import examples

_PRICES = price_list(embedded_catalogue(), None)
_NODES = ("n1", "n2", "n3")
_KINDS = ("m7i.xlarge", "m7i.4xlarge")
_HOST_PORT = kubernetes_pb2.Container(ports=[kubernetes_pb2.ContainerPort(hostPort=80, containerPort=80)])
_EMPTY = kubernetes_pb2.Volume(name="scratch", volumeSource={"emptyDir": {}})
_SPECS: tuple[dict[str, Any], ...] = (
    {},
    {},
    spread("web"),
    apart("db"),
    apart("web"),
    {"containers": [_HOST_PORT]},
    {"volumes": [_EMPTY]},
    {"restartPolicy": "OnFailure"},
    {"schedulerName": "theirs"},
)
_ANNOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {SAFE_TO_EVICT: "false"},
    {DO_NOT_DISRUPT: "true"},
    {CONSUME_KEYS[0]: "train", CLASS_KEYS[0]: "c"},
    {CONSUME_KEYS[0]: "train"},
    {"kubernetes.io/config.mirror": "x"},
)
_NAMESPACES = ("default", "default", "kube-system")


def daemon_set(namespace: str) -> kubernetes_pb2.DaemonSet:
    found = kubernetes_pb2.DaemonSet(metadata={"name": "owner", "namespace": namespace})
    found.spec.template.spec.containers.add().resources.requests["cpu"].string = "1"
    return found


_DAEMON_SETS = tuple(map(daemon_set, sorted(set(_NAMESPACES))))


@st.composite
def standing(draw: st.DrawFn, name: str) -> kubernetes_pb2.Node:
    spec: dict[str, Any] = {"unschedulable": True} if draw(st.integers(0, 5)) == 0 else {}
    found = node(name, "4", ready=draw(st.integers(0, 4)) > 0, **spec)
    kind = draw(st.sampled_from(_KINDS))
    found.metadata.labels.update({"node.kubernetes.io/instance-type": kind, "karpenter.sh/nodepool": "general"})
    found.metadata.annotations.update(draw(st.sampled_from(({}, {}, {}, {DO_NOT_DISRUPT: "true"}))))
    found.status.conditions[0].lastTransitionTime.seconds = draw(st.sampled_from((1, int(NOW) - 60)))
    for key in draw(st.sampled_from(((), (), (), ("ToBeDeletedByClusterAutoscaler",), ("theirs",)))):
        found.spec.taints.add(key=key, effect="NoSchedule")
    return found


@st.composite
def running(draw: st.DrawFn, number: int) -> kubernetes_pb2.Pod:
    labels = {"app": draw(st.sampled_from(("web", "db")))}
    if draw(st.integers(0, 3)) == 0:
        labels[DEFAULT_GANG_LABEL] = draw(st.sampled_from("gh"))
    owner = draw(st.sampled_from(("ReplicaSet", "ReplicaSet", "ReplicaSet", "Job", "DaemonSet", "")))
    return pod(
        f"p{number}",
        draw(st.sampled_from(("100m", "500m"))),
        node=draw(st.sampled_from(_NODES)),
        labels=labels,
        annotations=draw(st.sampled_from(_ANNOTATIONS)),
        namespace=draw(st.sampled_from(_NAMESPACES)),
        created=draw(st.sampled_from((1, 2, int(NOW) - 60))),
        priority=draw(st.sampled_from((0, 0, 5))),
        owner=owner,
        deleting=draw(st.integers(0, 9)) == 0,
        **draw(st.sampled_from(_SPECS)),
    )


@st.composite
def budgets(draw: st.DrawFn, name: str) -> kubernetes_pb2.PodDisruptionBudget:
    found = kubernetes_pb2.PodDisruptionBudget(metadata={"name": name, "namespace": "default"})
    found.spec.selector.matchLabels["app"] = draw(st.sampled_from(("web", "db")))
    found.status.disruptionsAllowed = draw(st.sampled_from((0, 1)))
    return found


@dataclass(frozen=True)
class DrawnCluster:
    nodes: Sequence[kubernetes_pb2.Node]
    pods: Sequence[kubernetes_pb2.Pod]
    budgets: Sequence[kubernetes_pb2.PodDisruptionBudget]


@st.composite
def clusters(draw: st.DrawFn) -> DrawnCluster:
    nodes = [draw(standing(name)) for name in _NODES]
    pods = [draw(running(number)) for number in range(draw(st.integers(1, 9)))]
    return DrawnCluster(nodes, pods, [draw(budgets(f"b{number}")) for number in range(draw(st.integers(0, 2)))])


def document(message: Message) -> ManifestDocument:
    """Return an object as kubectl prints it."""
    body = {"kind": message.DESCRIPTOR.name, **plain(message)}
    for each in body["spec"].get("volumes", ()):
        each.update(each.pop("volumeSource"))
    return ManifestDocument(f"{body['kind']} {body['metadata']['name']}", body)


def watched(cluster: DrawnCluster) -> Fed:
    fed = Fed(moving=MovingRules())
    fed.nodes(*cluster.nodes)
    fed.put(*_DAEMON_SETS, path=DAEMON_SETS)
    fed.put(*cluster.budgets, path=POD_DISRUPTION_BUDGETS)
    fed.put(*cluster.pods)
    return fed


def fleet(found: Sequence[StandingShape], out: Mapping[str, object]) -> FleetSnapshot:
    """Return the fleet of a server whose node groups are these shapes, of which all nodes that are compared stand."""
    groups = {}
    group_of: dict[str, str] = {}
    for shape in found:
        names = [each.name for each in shape.nodes if each.name not in out]
        groups[shape.group.id] = GroupState(replace(shape.group, target_size=len(names)), len(names))
        group_of |= {f"id-{name}": shape.group.id for name in names}
    return FleetSnapshot(0, groups, (), group_of)


def comparable(problem: ConsolidationProblem, out: Mapping[str, object]) -> Any:
    """Return the problem with what is in no order as counts; of nodes that are out of the comparison only their
    pods."""
    nodes = {}
    for each in problem.nodes:
        bare = replace(each.node, running=())
        counts = Counter({of.spec: of.count for of in each.node.running})
        said = () if each.node.name in out else (each.kept, each.takes_pods, each.must_go, each.node_group)
        nodes[each.node.name] = bare, counts, frozenset(each.pods), said
    return nodes, replace(problem, nodes=())


@examples(300)
@given(clusters())
def test_the_report_asks_what_a_server_asks(cluster: DrawnCluster) -> None:
    objects = Objects()
    for each in (*cluster.nodes, *cluster.pods, *cluster.budgets, *_DAEMON_SETS):
        objects.add(document(each))
    offered = Offered(None, _PRICES, gang_label=DEFAULT_GANG_LABEL, now_seconds=NOW)
    reader = reader_of(objects, offered)
    described = reader.read()
    assert not reader.problems
    nodes = standing_nodes(described, _PRICES)
    found = shapes(nodes, texts_of(objects))
    kept = first_kept(nodes)
    asked = moving_question(described, nodes, found, offered, question(reader, objects, nodes, found, offered, kept))

    state = watched(cluster).model.state(frozenset(), with_bound=True)
    snapshot = fleet(found, kept)
    going = must_go(state.nodes, snapshot, SETTINGS, NOW)
    theirs = question_of_server(state, snapshot, SETTINGS, NOW, going=going).problem

    assert {name: here.reschedulable for name, here in described.state.bound.items()} == {
        name: here.reschedulable for name, here in state.bound.items()
    }
    assert comparable(asked.problem, kept) == comparable(theirs, kept)
    stays = {each.node.name for each in theirs.nodes if each.kept} - kept.keys()
    said = {name for name, of in asked.obstacles.items() if {each.because for each in of} != {StaysBecause.GANG}}
    assert said == stays
