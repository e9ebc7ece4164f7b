"""Which nodes consolidation would replace, and why the others stay: what its page shows of one cluster, in which each
case has a node, and of some that take a story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.provisioning.objects import POD_TEMPLATES, REQUESTS
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import (
    ConsolidationMode,
    ConsolidationPolicy,
    ProvisionerDisruption,
    RepairRule,
    RequestSettings,
)
from cagrpc.controllers.slack.model import Carrier, SlackSettings, TargetSettings
from cagrpc.fleet.model import IncrementSpec
from cagrpc.fleet.records import Contents
from solver.model import (
    HostPort,
    Limit,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    PreferredNodes,
    Requirement,
    Taint,
    TaintEffect,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.slack.model import Copies
from tests.controllers.consolidation.scene import Scene
from tests.support.cluster import NAMESPACE, NODES, path_of
from tests.support.fleet import group

DRY_RUN = ConsolidationMode.DRY_RUN
CHEAPER, EMPTY, INTERRUPTED, UNHEALTHY = "Underutilized", "Empty", "Interrupted", "Unhealthy"
HALF_AN_HOUR = 1800.0
ATOMIC = "atomic-scale-up.kubernetes.io"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
ORDINARY: Mapping[str, Any] = {"owner": "ReplicaSet/ns/web", "cpu": 100}
PREFERS = PreferredNodes(1, NodeSelectorTerm((Requirement("zone", Operator.EXISTS),)))
SAID = {
    "never": ProvisionerDisruption(consolidate_after_seconds=None),
    "when-empty": ProvisionerDisruption(ConsolidationPolicy.WHEN_EMPTY),
}


def of(name: str, **more: Any) -> NodeGroup:
    return group(name, cpu=8000, price=0.8, **{"max_size": 99, "provisioner": name, **more})


GROUPS = (
    of("least", min_size=1),
    of("taken", min_size=1),
    of("old"),
    of("when-empty"),
    replace(of("never"), price_usd_per_hour=0.1),
)


@dataclass(frozen=True)
class Case:
    """A node of a group, what is done to it, and for which reason it goes, or why it stays."""

    goes: str = ""
    stays: str = ""
    group: str = "old"
    node: Mapping[str, Any] | None = None
    """What is merged into the Node."""
    pod: Mapping[str, Any] | None = None
    """What its only pod has; None without a pod."""
    do: Callable[[Scene, str], object] = lambda _, __: None


def tainted(*keys: str) -> Mapping[str, Any]:
    return {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}}


def annotated(key: str, value: str) -> Mapping[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def said(condition: str, status: str) -> Mapping[str, Any]:
    return {"status": {"conditions": [{"type": condition, "status": status, "lastTransitionTime": 1}]}}


def unready(scene: Scene, name: str) -> None:
    scene.cluster.unready.add(name)


def ends(scene: Scene, name: str) -> None:
    (uid,) = (each for each in scene.cluster.pods() if scene.cluster.node_of(each) == name)
    scene.api.change(scene.cluster.paths[uid], metadata={"deletionTimestamp": int(scene.clock())})


SPOT = "aws-node-termination-handler/spot-itn"
BY_CA = "ToBeDeletedByClusterAutoscaler"
ASKS_TO_STAY = {**ORDINARY, "annotations": {SAFE_TO_EVICT: "false"}}
DO_NOT_DISRUPT = annotated("karpenter.sh/do-not-disrupt", "true")
INDIFFERENT = {**ORDINARY, "spec": PodSpec((("cpu", 100),), preferred_nodes=(PREFERS,))}
HELD = "an increment in flight counts on it"
ONLY_EMPTY = "provisioner when-empty is consolidated only where nodes are empty (WhenEmpty)"
CASES = {
    "an ordinary one": Case(CHEAPER, pod=ORDINARY),
    "empty": Case(EMPTY),
    "a pod that prefers others": Case(CHEAPER, pod=INDIFFERENT),
    "cordoned": Case(CHEAPER, pod=ORDINARY, node={"spec": {"unschedulable": True}}),
    "CA drains it": Case(stays="it is being removed", node=tainted(BY_CA)),
    "Karpenter drains it": Case(
        stays="it has the taint karpenter.sh/disrupted", node=tainted("karpenter.sh/disrupted")
    ),
    "not Ready": Case(stays="it is not Ready", pod=ORDINARY, do=unready),
    "Karpenter's annotation": Case(
        stays="the annotation karpenter.sh/do-not-disrupt", pod=ORDINARY, node=DO_NOT_DISRUPT
    ),
    "CA's": Case(stays="which cagrpc did not set", pod=ORDINARY, node=annotated(SCALE_DOWN_DISABLED, "true")),
    "CA's, taken back": Case(CHEAPER, pod=ORDINARY, node=annotated(SCALE_DOWN_DISABLED, "false")),
    "a pod that asks to stay": Case(stays=f'has the annotation {SAFE_TO_EVICT}: "false"', pod=ASKS_TO_STAY),
    "a pod of a Job": Case(stays="runs until it ends", pod={"owner": "Job/ns/job", "cpu": 100}),
    "a pod that ends": Case(stays="is still being deleted", pod=ORDINARY, do=ends),
    "its group is at its minimum": Case(stays="its node group would be below its minimum size", group="least"),
    "never": Case(stays="provisioner never is never consolidated: consolidateAfter is Never", group="never"),
    "not empty": Case(stays=ONLY_EMPTY, group="when-empty", pod=ORDINARY),
    "when empty, and it is": Case(EMPTY, group="when-empty"),
    "held": Case(stays=HELD, node=tainted(START_UP_TAINT)),
    "taken, and held": Case(stays=HELD, node=tainted(START_UP_TAINT, SPOT)),
    "rebalanced": Case(
        INTERRUPTED, pod=ORDINARY, node=tainted("aws-node-termination-handler/rebalance-recommendation")
    ),
    "maintained": Case(INTERRUPTED, pod=ORDINARY, node=tainted("aws-node-termination-handler/scheduled-maintenance")),
    "taken by GCP": Case(INTERRUPTED, pod=ORDINARY, node=tainted("cloud.google.com/impending-node-termination")),
    "shut down": Case(INTERRUPTED, pod=ORDINARY, node=tainted("node.cloudprovider.kubernetes.io/shutdown")),
    "preempted": Case(INTERRUPTED, pod=ORDINARY, node=said("PreemptionScheduled", "True")),
    "terminated": Case(INTERRUPTED, pod=ORDINARY, node=said("Terminating", "True")),
    "not terminated": Case(CHEAPER, pod=ORDINARY, node=said("Terminating", "False")),
    "taken, and asked to stay": Case(INTERRUPTED, pod=ASKS_TO_STAY, node={**tainted(SPOT), **DO_NOT_DISRUPT}),
    "taken, and its group is at its minimum": Case(INTERRUPTED, group="taken", pod=ORDINARY, node=tainted(SPOT)),
    "taken, and CA drains it": Case(stays="it is being removed", node=tainted(BY_CA, SPOT)),
}


@pytest.fixture(scope="module")
def looked() -> Iterator[tuple[Scene, Mapping[str, str]]]:
    """A cluster with a node for each case, at which consolidation has looked, and the nodes by case."""
    with Scene(*GROUPS, mode=DRY_RUN, disruption=SAID) as scene:
        scene.idle.add("what the autoscaler may scale down")
        nodes: dict[str, str] = {}
        for name in (each.id for each in GROUPS):
            ids = [key for key, each in CASES.items() if each.group == name]
            nodes |= dict(zip(ids, scene.stand(name, len(ids)), strict=True))
        scene.idle.add("releasing nodes")
        for key, case in CASES.items():
            if case.pod is not None:
                scene.cluster.add(node=nodes[key], **case.pod)
            if case.node is not None:
                scene.change_node(nodes[key], **case.node)
            case.do(scene, nodes[key])
        scene.cluster.node("foreign", GROUPS[0])
        scene.begin()
        scene.run(3)
        yield scene, nodes


@pytest.mark.parametrize("case", CASES)
def test_a_node_goes_or_stays(looked: tuple[Scene, Mapping[str, str]], case: str) -> None:
    scene, nodes = looked
    assert scene.goes().get(nodes[case], "") == CASES[case].goes, scene.stays().get(nodes[case])
    if not CASES[case].goes:
        assert scene.stays()[nodes[case]].endswith(CASES[case].stays)


def test_a_node_of_others_stays(looked: tuple[Scene, Mapping[str, str]]) -> None:
    scene, _ = looked
    assert "foreign" not in scene.goes()


Scenes = Callable[..., Scene]


@pytest.fixture
def scenes() -> Iterator[Scenes]:
    """Make worlds of a test: with nodes at 0.8 $/h that have 8 cores, and a dry run."""
    with ExitStack() as made:
        yield lambda *groups, **more: made.enter_context(Scene(*(groups or (of("old"),)), **{"mode": DRY_RUN, **more}))


def test_young_nodes_and_those_to_which_a_pod_has_just_come_stay(scenes: Scenes) -> None:
    said = {"old": ProvisionerDisruption(consolidate_after_seconds=1200.0)}
    scene = scenes(minimum_node_age_seconds=600.0, disruption=said)
    scene.cluster.tells_ages = True
    scene.begin()
    empty, used = scene.stand("old", 2)
    scene.stand("old")
    registered = scene.clock() - 125
    assert "it is younger than the minimum age, until" in scene.stays()[empty]
    scene.run(registered + 590 - scene.clock(), 10)
    assert "it is younger than the minimum age" in scene.stays()[empty]
    scene.cluster.add(node=used, **ORDINARY)
    scene.run(70, 10)
    assert "its last pod came less than consolidateAfter ago, until" in scene.stays()[empty], "without pods it counts"
    scene.run(registered + 1300 - scene.clock(), 10)
    assert scene.goes()[empty] == EMPTY
    assert "its last pod came less than consolidateAfter ago, until" in scene.stays()[used]
    scene.run(600, 10)
    assert "consolidateAfter" not in scene.stays().get(used, "")


@pytest.mark.parametrize(
    ("conditions", "repair", "goes"),
    [
        pytest.param({0: ("Ready", "False", HALF_AN_HOUR)}, None, {0}, id="not Ready for half an hour"),
        pytest.param({0: ("Ready", "Unknown", HALF_AN_HOUR)}, None, {0}, id="not heard of for as long"),
        pytest.param({0: ("Ready", "False", HALF_AN_HOUR - 1)}, None, set(), id="a second less"),
        pytest.param({0: ("Ready", "False", None)}, None, {0}, id="since it is there, if it does not say since when"),
        pytest.param({0: ("DiskPressure", "False", HALF_AN_HOUR)}, None, set(), id="of no other condition"),
        pytest.param({0: ("Gpu", "False", 600.0), 1: ("Ready", "False", HALF_AN_HOUR)},
                     (RepairRule("Gpu", "False", 600.0),), {0}, id="which and how long is configured"),
        pytest.param({0: ("Ready", "False", HALF_AN_HOUR), 1: ("Ready", "False", HALF_AN_HOUR)}, None, set(),
                     id="more than a fifth"),
        pytest.param({0: ("Ready", "False", HALF_AN_HOUR), 1: ("Ready", "False", 0.0)}, None, set(),
                     id="more than a fifth, with one that is bad only now"),
        pytest.param(dict.fromkeys((0, 1, 2), ("Terminating", "True", 0.0)), None, {0, 1, 2},
                     id="the cloud asks nobody"),
    ],
)  # fmt: skip
def test_bad_nodes_go(
    scenes: Scenes, conditions: Mapping[int, tuple[str, str, float]], repair: Any, goes: set[int]
) -> None:
    scene = scenes(of("old"), of("other"), **({} if repair is None else {"repair": repair}))
    scene.cluster.tells_ages = True
    scene.stand("other")
    nodes = scene.stand("old", 5)
    scene.run(HALF_AN_HOUR, HALF_AN_HOUR)
    for number, each in enumerate(nodes):
        scene.cluster.add(node=each, **{**ORDINARY, "cpu": 3000})
        if number in conditions:
            kind, status, seconds = conditions[number]
            since = {} if seconds is None else {"lastTransitionTime": int(scene.clock() - seconds)}
            scene.cluster.broken[each] = {"type": kind, "status": status, **since}
    scene.begin()
    scene.run(1)
    forceful = {each for each, reason in scene.goes().items() if reason in (INTERRUPTED, UNHEALTHY)}
    assert forceful == {nodes[number] for number in goes}
    if len(conditions) == 2 and not goes:
        assert scene.stays()[nodes[0]].endswith("but 2 of the 5 nodes of provisioner old are bad, more than 20 %")


@pytest.mark.parametrize("settings", [{"interruption_conditions": frozenset({"VMEventScheduled"})},
                                      {"interruption_taints": frozenset({"cloud/going"})}])  # fmt: skip
def test_what_says_that_a_node_is_taken_is_configured(scenes: Scenes, settings: Mapping[str, Any]) -> None:
    scene = scenes(**settings)
    configured, usual = scene.stand("old", 2)
    if "interruption_taints" in settings:
        scene.change_node(configured, **tainted("cloud/going"))
        scene.change_node(usual, **tainted(SPOT))
    else:
        scene.change_node(configured, **said("VMEventScheduled", "True"))
        scene.change_node(usual, **said("Terminating", "True"))
    scene.begin()
    scene.run(1)
    assert scene.goes()[configured] == INTERRUPTED
    assert scene.goes()[usual] == EMPTY


def test_of_a_node_that_must_go_all_pods_are_planned_that_somebody_makes_again(scenes: Scenes) -> None:
    scene = scenes(of("old", max_size=2))
    node, other = scene.stand("old", 2)
    scene.cluster.workload("held", 1, on=[node], budget=0)
    scene.cluster.add(node=node, **ORDINARY)
    scene.cluster.add(node=node, owner="Job/ns/job")
    scene.cluster.add(node=node, owner="ReplicaSet/ns/web", annotations={SAFE_TO_EVICT: "false"})
    scene.cluster.add(node=node)
    scene.cluster.add(node=other, owner="ReplicaSet/ns/web", annotations={SAFE_TO_EVICT: "false"})
    scene.change_node(node, **tainted(SPOT))
    scene.begin()
    scene.run(1)
    (step,) = scene.plan["steps"]
    assert (step["nodes"], step["pods_moved"], step["new_nodes"]) == ([node], 4, {}), "nobody makes the last one again"


HOST = "kubernetes.io/hostname"
WEB = PodSelector((Requirement("app", Operator.IN, ("web",)),), ("ns",))
LABELS = (("app", "web"),)
APART = PodAffinityTerm(HOST, WEB)
WISH = TopologySpread(HOST, 1, WEB, when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY)


@pytest.mark.parametrize(
    ("spec", "daemon", "moves"),
    [
        pytest.param({}, {"host_ports": (HostPort(80),)}, True, id="nobody has rules about others"),
        pytest.param({"host_ports": (HostPort(80),)}, {}, False, id="a port"),
        pytest.param({"pod_anti_affinity": (APART,)}, {}, False, id="apart"),
        pytest.param({}, {"pod_anti_affinity": (APART,)}, False, id="a DaemonSet's that keeps others out"),
        pytest.param({"topology_spread": (TopologySpread(HOST, 1, WEB),)}, {}, False, id="spread"),
        pytest.param({"topology_spread": (WISH,)}, {}, True, id="a wish"),
    ],
)
def test_pods_see_each_other_where_constraints_look(
    scenes: Scenes, spec: Mapping[str, Any], daemon: Mapping[str, Any], moves: bool
) -> None:
    scene = scenes(of("old", max_size=2))
    for node in scene.stand("old", 2):
        asks = PodSpec((("cpu", 100),), labels=LABELS, **spec)
        scene.cluster.add(node=node, owner="ReplicaSet/ns/web", spec=asks)
        scene.cluster.add(node=node, owner="DaemonSet/ns/agent", spec=PodSpec((("cpu", 100),), **daemon))
    scene.begin()
    scene.run(1)
    assert bool(scene.goes()) == moves


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param(tainted(BY_CA), id="CA drains it"),
        pytest.param(None, id="not Ready"),
    ],
)
def test_nobody_moves_to_a_node_that_takes_no_pods(scenes: Scenes, change: Mapping[str, Any] | None) -> None:
    scene = scenes(of("old"), of("here", max_size=1), disruption=SAID | {"here": SAID["never"]})
    (node,), (target,) = scene.stand("old"), scene.stand("here")
    scene.cluster.add(node=node, **ORDINARY)
    scene.begin()
    if change is None:
        unready(scene, target)
    else:
        scene.change_node(target, **change)
    scene.run(1)
    assert not scene.goes()


@pytest.mark.parametrize(
    ("new", "more", "goes"),
    [
        pytest.param({}, {}, True, id="cheaper"),
        pytest.param({}, {"least_saving_usd_per_hour_per_pod": 0.61}, False, id="saves too little for its pods"),
        pytest.param(
            {},
            {"world": {"limits": (Limit("new", {"cpu": 1000}, node_groups=frozenset({"new"})),)}},
            False,
            id="over a limit",
        ),
        pytest.param({"taints": (Taint("dedicated", TaintEffect.NO_SCHEDULE),)}, {}, False, id="not tolerated"),
    ],
)
def test_a_cheaper_node_takes_its_place(
    scenes: Scenes, new: Mapping[str, Any], more: Mapping[str, Any], goes: bool
) -> None:
    scene = scenes(of("old"), group("new", cpu=2000, price=0.2, provisioner="new", **new), **more)
    (node,) = scene.stand("old")
    scene.cluster.add(node=node, **ORDINARY)
    scene.begin()
    scene.run(1)
    assert scene.goes() == ({node: CHEAPER} if goes else {})
    if goes:
        (step,) = scene.plan["steps"]
        assert (step["new_nodes"], step["saving_usd_per_hour"]) == ({"new": 1}, pytest.approx(0.6))


def test_no_node_is_opened_where_there_was_a_shortage(scenes: Scenes) -> None:
    scene = scenes(of("old"), group("new", cpu=2000, price=0.2))
    (node,) = scene.stand("old")
    scene.cluster.add(node=node, **ORDINARY)
    scene.backend.set_behaviours({"new": Behaviour(stock=0)})
    with suppress(errors.OutOfCapacity):
        scene.fleet.apply(IncrementSpec({"new": 1}))
    scene.begin()
    scene.run(30)
    assert not scene.goes()
    scene.run(600, 10)
    assert scene.goes() == {node: CHEAPER}


def test_a_step_takes_no_more_nodes_than_that(scenes: Scenes) -> None:
    scene = scenes(most_nodes_per_step=2)
    scene.stand("old", 5)
    scene.begin()
    scene.run(1)
    assert [len(each["nodes"]) for each in scene.plan["steps"]] == [2, 2, 1]


def test_a_node_of_a_group_that_is_not_served_any_more_stays(scenes: Scenes) -> None:
    scene = scenes(of("old"), of("gone"))
    (node,) = scene.stand("gone")
    scene.settings = replace(scene.settings, groups=scene.settings.groups[:1])
    scene.journal.shelf[0] = Contents()
    scene.restart()
    scene.stand("old")
    scene.begin()
    scene.run(10)
    assert EMPTY in scene.goes().values()
    assert node not in scene.goes()


def test_what_a_request_booked_stays(scenes: Scenes) -> None:
    scene = scenes(world={"requests": RequestSettings()})
    template = {"spec": pod_body(PodSpec((("cpu", 1000),)), "example.com/idle", NAMESPACE)}
    scene.api.put(path_of(POD_TEMPLATES, "one"), {"metadata": {"namespace": NAMESPACE}, "template": template})
    scene.api.put(
        path_of(REQUESTS, "train"),
        {
            "metadata": {"namespace": NAMESPACE, "generation": 1, "creationTimestamp": timestamp(scene.clock())},
            "spec": {"provisioningClassName": ATOMIC, "podSets": [{"podTemplateRef": {"name": "one"}, "count": 1}]},
        },
    )
    scene.run(60)
    (node,) = scene.cluster.nodes()
    scene.stand("old")
    scene.begin()
    scene.run(1)
    assert scene.stays()[node] == "booked for ProvisioningRequest ns/train"


def test_placeholders_move_with_their_node_and_are_no_pods(scenes: Scenes) -> None:
    shape = Copies("x", PodSpec((("cpu", 1000),)), 2)
    slack = SlackSettings(targets=(TargetSettings("t", fixed=(shape,)),), carrier=Carrier.VIRTUAL)
    small, three = group("small", cpu=1000, price=0.1), group("three", cpu=3000, price=0.31)
    scene = scenes(of("old"), small, three, world={"slack": slack})
    (node,) = scene.stand("old")
    scene.cluster.add(node=node, owner="ReplicaSet/ns/web", cpu=1000)
    scene.run(30, 5)
    assert scene.targets() == {"old": 1}
    scene.begin()
    scene.run(1)
    (step,) = scene.plan["steps"]
    assert (step["pods_moved"], step["new_nodes"]) == (1, {"small": 3})


def test_nodes_of_others_take_pods_and_keep_gangs(scenes: Scenes) -> None:
    scene = scenes()
    with_gang, free = scene.stand("old", 2)
    scene.cluster.node("foreign", of("old"))
    for node in (with_gang, "foreign"):
        scene.cluster.add(node=node, gang="red", **ORDINARY)
    scene.cluster.add(node=free, **ORDINARY)
    scene.begin()
    scene.run(1)
    assert scene.goes() == {free: CHEAPER}
    assert scene.stays()[with_gang].endswith("ns/red with pods on a node that stays")


def test_a_node_that_the_fleet_deletes_is_none_of_its_group_any_more_and_takes_no_pods(scenes: Scenes) -> None:
    scene = scenes(of("old", min_size=1))
    going, used = scene.stand("old", 2)
    scene.cluster.add(node=used, **ORDINARY)
    node = scene.cluster.nodes()[going]
    scene.fleet.delete_instances("old", [f"simulated://{going}"])
    scene.step()
    scene.api.put(f"{NODES}/{going}", node)  # nobody has removed it yet
    scene.begin()
    scene.step()
    assert (scene.goes(), scene.shown["plan"]["cost_usd_per_hour"]) == ({}, 0.8)
    assert scene.stays() == {used: "its node group would be below its minimum size"}


def test_a_node_to_which_the_scheduler_has_nominated_a_pod_stays(scenes: Scenes) -> None:
    scene = scenes(of("old", max_size=1))
    (node,) = scene.stand("old")
    scene.cluster.scheduling = False
    (uid,) = scene.cluster.add(cpu=64_000)
    scene.cluster.nominate(uid, node)
    scene.begin()
    scene.run(1000, 20)
    assert scene.stays() == {node: "the scheduler has nominated ns/pod-1 to it"}
