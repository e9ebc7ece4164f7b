"""From cluster state to the input of `solver.slack`."""

from __future__ import annotations

from collections import Counter
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.state import ClusterState, Mirror, SlackSeen
from cagrpc.controllers.slack.demand import ShapesOfNodes, over_share, targets
from cagrpc.controllers.slack.model import SlackSettings, TargetSettings, Window
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.runtime.schedules import Schedule, parse_cron
from solver.model import (
    ATTACHABLE_VOLUMES,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodSpec,
    Requirement,
    Taint,
    TaintEffect,
)
from solver.slack.model import NodeShape, PodCount

POOL = ((NODEPOOL_LABEL, "web"),)
ALLOCATABLE = {"cpu": 4000, "pods": 110}
EIGHT = 8 * 3600.0


def seen(*mirrors: Mirror) -> SlackSeen:
    return SlackSeen(mirrors=mirrors)


def test_of_each_namespace_so_many_pods_are_mirrored_and_the_rest_is_reported() -> None:
    few = SlackSettings(mirrors_per_namespace=5)

    def mirror(name: str, count: int) -> Mirror:
        return Mirror(f"deployment/{name}", name.partition("/")[0], PodSpec((("cpu", 100),)), count)

    asked = seen(mirror("greedy/a", 3), mirror("greedy/b", 4), mirror("greedy/c", 1000), mirror("modest/a", 5))
    (found,) = targets(few, asked, 0.0)
    kept = {each.name: each.count for each in found.mirrors}
    assert kept == {"deployment/greedy/a": 3, "deployment/greedy/b": 2, "deployment/modest/a": 5}
    (reported,) = over_share(few, asked)
    assert reported == (
        "namespace greedy: capacity is reserved for 5 of the 1007 more pods that its workloads ask for"
        " (slack.mirrors_per_namespace); deployment/greedy/b is the first of which it is not for all"
    )
    assert over_share(SlackSettings(), seen(mirror("modest/a", 5))) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12), st.integers(0, 20), st.integers(0, 9)
)
def test_what_others_mirror_takes_nothing_of_a_namespace(others: list[tuple[str, int]], most: int, count: int) -> None:
    spec = PodSpec((("cpu", 100),))
    found = [Mirror(f"pod/{of}/{n:02}", of, spec, pods) for n, (of, pods) in enumerate(others)]
    mine = Mirror("pod/modest/x", "modest", spec, count)
    asked = seen(*sorted([*found, mine], key=lambda each: each.name))
    kept = Counter[str]()
    for target in targets(SlackSettings(mirrors_per_namespace=most), asked, 0.0):
        for each in target.mirrors:
            kept[each.name.split("/")[1]] += each.count
    assert kept["modest"] == min(count, most)
    assert all(pods <= most for pods in kept.values())


def test_windows_change_what_is_asked_for() -> None:
    day = Window(Schedule(parse_cron("0 8 * * *"), ZoneInfo("UTC"), EIGHT), rate=0.5)
    night = Window(Schedule(parse_cron("0 15 * * *"), ZoneInfo("UTC"), EIGHT), rate=0.2)
    settings = SlackSettings(targets=(TargetSettings("t", 0.1, windows=(day, night)),))
    rates = [targets(settings, seen(), hour * 3600.0)[0].rate for hour in (7, 8, 15.5, 16, 23)]
    assert rates == [0.1, 0.5, 0.5, 0.2, 0.1]


def state(*pods: PodSpec, daemons: tuple[PodSpec, ...] = ()) -> ClusterState:
    counts = tuple(PodCount(spec, 1) for spec in pods)
    return ClusterState((), (), daemons, slack=SlackSeen(pods=counts))


def node(name: str, **labels: str) -> Node:
    return Node(name, {}, {"kubernetes.io/hostname": name, **labels}, allocatable=ALLOCATABLE)


def test_nodes_that_no_pod_distinguishes_are_one_shape() -> None:
    shapes = ShapesOfNodes()
    nodes = [node(f"n{i}", rack=str(i), zone=f"z{i % 2}") for i in range(6)]
    group = NodeGroup("g", ALLOCATABLE, 1.0)
    (shape,) = shapes.of(nodes, [group], state(), ())
    assert shape == NodeShape(ALLOCATABLE, 6, {}, (), ALLOCATABLE)
    in_zone = PodSpec(node_selector=(("zone", "z0"),))
    found = shapes.of(nodes, [group], state(in_zone), ())
    assert {(each.labels.get("zone"), each.count) for each in found} == {("z0", 3), ("z1", 3), (None, 0)}


def test_what_a_target_or_a_daemon_set_asks_for_distinguishes_nodes() -> None:
    shapes = ShapesOfNodes()
    nodes = [node("a", **dict(POOL)), node("b")]
    daemon = PodSpec((("cpu", 500),), node_selector=POOL)
    found = shapes.of(nodes, (), state(daemons=(daemon,)), ())
    assert {(each.count, each.room["cpu"], each.room["pods"]) for each in found} == {(1, 3500, 109), (1, 4000, 110)}
    asks = targets(SlackSettings(targets=(TargetSettings("t", 0.1, node_selector=POOL),)), seen(), 0.0)
    assert len(shapes.of(nodes, (), state(), asks)) == 2
    assert len(shapes.of(nodes, (), state(), ())) == 1  # nobody asks any more


def test_taints_and_sizes_are_kept_apart_and_looked_at_anew() -> None:
    shapes = ShapesOfNodes()
    taint = Taint("gpu", TaintEffect.NO_SCHEDULE)
    group = NodeGroup("g", {"cpu": 8000, "pods": 10}, 1.0, taints=(taint,))
    found = shapes.of([node("a")], [group], state(), ())
    assert {(each.count, each.taints, each.room["cpu"]) for each in found} == {(1, (), 4000), (0, (taint,), 8000)}
    grown = NodeGroup("g", {"cpu": 16000, "pods": 10}, 1.0, group.labels, (taint,))
    found = shapes.of([node("a")], [grown], state(), ())
    assert {each.room["cpu"] for each in found} == {4000, 16000}


def test_attachments_of_volumes_tell_no_nodes_apart() -> None:
    """The catalogue says how many volumes a new node attaches; a Node does not."""
    attaches = f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com"
    daemon = PodSpec(((attaches, 1), ("cpu", 500)))
    group = NodeGroup("g", {**ALLOCATABLE, attaches: 25}, 1.0)
    (shape,) = ShapesOfNodes().of([node("a")], [group], state(daemons=(daemon,)), ())
    assert shape == NodeShape(ALLOCATABLE, 1, {}, (), {"cpu": 3500, "pods": 109})


def test_labels_that_a_cloud_sets_on_every_node_of_a_group_count() -> None:
    """Selectors may ask for the instance type of a group that has no node yet."""
    term = NodeSelectorTerm((Requirement("node.kubernetes.io/instance-type", Operator.IN, ("m7i.large",)),))
    asks = PodSpec(affinity=(term,))
    group = NodeGroup("g", ALLOCATABLE, 1.0, instance_type="m7i.large")
    (shape,) = ShapesOfNodes().of((), [group], state(asks), ())
    assert shape.labels == {"node.kubernetes.io/instance-type": "m7i.large"}
