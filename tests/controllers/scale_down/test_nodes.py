"""Which nodes the autoscaler may take: what is written on each node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from cagrpc.controllers.slack.model import Carrier, SlackSettings, TargetSettings
from cagrpc.kube.journal.objects import pack
from solver import solve
from solver.model import HOSTNAME, Budget, HostPort, Plan, PodAffinityTerm, PodSpec, Problem, TopologySpread
from solver.slack.model import Copies
from tests.controllers.scale_down.standing import (
    AT_MINIMUM,
    BOOKED,
    BUDGET,
    IN_FLIGHT,
    IN_USE,
    TIERS,
    ZONE,
    Do,
    Standing,
    apart,
    no_room,
    no_room_with_slack,
    of_app,
    pod,
    tier,
)
from tests.support.cluster import path_of
from tests.support.devices import CLASSES, SLICES, TEMPLATES, claim_template, device_class, gpus

GPU = "nvidia.com/gpu"
GROUPS = (
    *TIERS,
    tier("dear", 10, 5.0),
    tier("kept", 10, min_size=1),
    tier("gone", 100, 9.0, cpu=100_000),
    tier("ten", 100, cpu=10_000),
    tier("ssd", 100, cpu=10_000, labels={"disk": "ssd"}),
    tier("two", 100, cpu=10_000, resources={"pods": 2}),
    tier("gpus", 10, resources={GPU: 4}),
    *(tier(f"{name}-{zone}", weight, labels={ZONE: zone})
      for name, weight in (("in", 100), ("below", 10)) for zone in "ab"),
    tier("leaves-a", 100, 9.0, cpu=100_000, labels={ZONE: "a"}),
)  # fmt: skip
BY_NAME = {each.id: each for each in GROUPS}
STRANGER = replace(TIERS[-1], id="stranger", allocatable={"cpu": 1000, "memory": 2**30, "pods": 10})

SMALL = PodSpec((("cpu", 1000),))
ON_TEN: Mapping[str, Any] = {"node_selector": (("tier", "ten"),)}


@dataclass(frozen=True)
class Case:
    """All nodes may go but those that have to `stay`."""

    name: str
    nodes: Mapping[str, Sequence[int | PodSpec]]
    stay: Mapping[str, str]
    theirs: Sequence[str] = ()
    """Nodes that others have annotated: nobody's but room."""
    waiting: Sequence[int | PodSpec] = ()
    slack: Mapping[str, int] = field(default_factory=dict)
    """How many placeholders are on nodes."""
    placeholder: PodSpec = SMALL
    do: Sequence[Do] = ()
    planned: int | None = None
    """How often the planner is asked, where that matters."""


def node_is(name: str, what: str) -> Do:
    def do(world: Standing) -> None:
        if what == "drained":
            world.leave(name)
        elif what == "not Ready":
            world.cluster.unready.add(world.names[name])
        else:
            identity = world.cluster.nodes()[world.names[name]]["spec"]["providerID"]
            world.step()
            world.late |= {"nodes", "pods"}  # what was seen of them is what counts
            world.fleet.delete_instances(name.partition(" ")[0], [identity])

    return do


def comes(name: str, *, released: bool) -> Do:
    return lambda world: world.order(name, released=released)


def of_priority(name: str, priority: int, *pods: int) -> Do:
    """Pods of a priority are bound to a node."""

    def do(world: Standing) -> None:
        for uid in world.bind(name, *pods):
            world.api.change(world.cluster.paths[uid], spec={"priority": priority})

    return do


def booked(name: str, count: int, *more: int) -> Do:
    """A request books room on a node, to which then more pods come."""

    def do(world: Standing) -> None:
        world.book(name, count)
        world.bind(name, *more)

    return do


def budget(*names: str) -> Do:
    """Pods of a workload whose budget lets none go."""
    return lambda world: world.cluster.workload("web", len(names), on=[world.names[each] for each in names], budget=0)


def marked(name: str) -> Do:
    return lambda world: world.mark(name, no_room(10))


def stranger(world: Standing) -> None:
    world.cluster.node("stranger", STRANGER)


def with_devices(world: Standing) -> None:
    """Each node "ten" has 8 GPUs; pods of `wants` ask for one each, of `WANTS_NINE` for nine."""
    for path, each in (
        (CLASSES, device_class()),
        (TEMPLATES, claim_template(namespace="ns")),
        (TEMPLATES, claim_template("nine", 9, namespace="ns")),
    ):
        name = each["metadata"]["name"]
        world.api.put(path_of(path, name) if path == TEMPLATES else f"{path}/{name}", each)
    for name, real in world.names.items():
        if name.startswith("ten"):
            world.api.put(f"{SLICES}/{real}", gpus(8, on=real))


def asks(name: str, count: int, template: str = "t") -> Do:
    def do(world: Standing) -> None:
        for uid in world.bind(name, *[100] * count):
            claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
            world.api.change(world.cluster.paths[uid], spec={"resourceClaims": claims})

    return do


PORT = pod(100, host_ports=(HostPort(80),))
SPREAD = pod(100, "web", topology_spread=(TopologySpread(HOSTNAME, 2, of_app("web")),))
SPREAD_OVER_ZONES = pod(100, "web", topology_spread=(TopologySpread(ZONE, 1, of_app("web")),))
BESIDE = pod(100, pod_affinity=(PodAffinityTerm(HOSTNAME, of_app("db")),))
DB = pod(100, "db")
WEB = pod(100, "web")
ON_LOW = pod(1000, node_selector=(("tier", "low"),))
ON_SSD = pod(6000, node_selector=(("disk", "ssd"),))
ON_HDD = pod(6000, node_selector=(("disk", "hdd"),))
HUGE = PodSpec((("example.com/x", 10**30),))
FULL = (4000,)
TENS = ("ten 1", "ten 2")
MANY = [f"ten {number:02}" for number in range(70)]
CASES = [
    # ---- in the order of weights, and no tier's pods below it
    Case("up or within the tier, never down", {"high": [1000], "middle": [1000], "low": [1000]},
         {"high": no_room(100)}),
    Case("where its own tier has room", {"high 1": [1000], "high 2": [1000] * 3, "low": [1000] * 3},
         {"high 2": IN_USE, "low": IN_USE}),
    Case("where its own tier has none", {"high 1": [1000], "high 2": [1000] * 4, "low": [1000] * 3},
         {"high 1": no_room(100), "high 2": IN_USE, "low": IN_USE}),
    Case("room for one: the lowest tier's", {"middle": [1500], "low": [1500], "high": [2500]},
         {"middle": no_room(50), "high": IN_USE}),
    Case("of equal nodes the first", {"low 1": [1000], "low 2": [1000]}, {"low 2": no_room(10)}),
    Case("of equal nodes the one that may go already", {"low 1": [1000], "low 2": [1000]}, {"low 1": no_room(10)},
         do=[marked("low 1")]),
    Case("of one tier what costs most for nothing", {"low": [1000], "dear": [1000]}, {"low": no_room(10)}),
    Case("empty ones down to the minimum", {"kept 1": [], "kept 2": [], "kept 3": []}, {"kept 3": AT_MINIMUM}),
    Case("one that leaves counts for the minimum", {"kept 1": [], "kept 2": [], "kept 3": []}, {"kept 2": AT_MINIMUM},
         do=[node_is("kept 3", "drained")]),
    Case("only where a selector lets them", {"low": [ON_LOW], "high": [1000]},
         {"low": no_room(10), "high": no_room(100)}),
    Case("used as the autoscaler counts", {"gpus": [PodSpec((("cpu", 3000), (GPU, 1)))], "low": [3000], "high": []},
         {"gpus": no_room(10), "low": IN_USE}),
    Case("nodes of others are room, and not annotated", {"low 1": [1000], "high": [1000], "low 2": []},
         {"low 2": "theirs: true"}, theirs=["low 2"], do=[stranger]),
    # ---- beside pods that wait, and on nodes that come and go
    Case("room for pods that wait", {"low 1": [], "low 2": []}, {"low 2": no_room(10)}, waiting=[1000] * 3),
    Case("room for more of them", {"low 1": [], "low 2": []}, {"low 1": no_room(10), "low 2": no_room(10)},
         waiting=[1000] * 5),
    Case("they fit on no node that stands", {"low 1": [], "low 2": []}, {}, waiting=[5000] * 3),
    Case("one is invalid, and stops nobody", {"low 1": [], "low 2": []}, {"low 1": no_room(10), "low 2": no_room(10)},
         waiting=[HUGE, 3000, 3000]),
    Case("what is found for them takes no planner", {name: [] for name in MANY} | {"gone": [500]},
         {"gone": no_room(100)},
         theirs=MANY, waiting=[6000] * 70 + [11_000] * 5, planned=0),
    Case("the planner finds more for all together", {"ten 1": [], "ten 2": [3000], "gone": [100]},
         {"gone": no_room(100)}, theirs=TENS, waiting=[pod(each, **ON_TEN) for each in (6000, 5000, 5000)], planned=1),
    Case("nor does it where one is left over", {"ten 1": [], "ten 2": [], "gone": [apart(100)]}, {"gone": no_room(100)},
         theirs=TENS, waiting=[apart(100)] * 3),
    Case("those with few nodes come first", {"ssd": [5000], "ten": [5000], "gone": [100]}, {"gone": no_room(100)},
         theirs=["ssd", "ten"], waiting=[5000, replace(ON_SSD, requests=(("cpu", 5000),))], planned=0),
    Case("a node that comes is no room", {"low 1": [1000]}, {"low 1": no_room(10), "low 2": IN_FLIGHT},
         do=[comes("low 2", released=False)]),
    Case("nor is one that is released before its increment is done", {"low 1": [1000]},
         {"low 1": no_room(10), "low 2": IN_FLIGHT}, do=[comes("low 2", released=True)]),
    *(Case(f"one that is {how} is no room, and its pods need some",
           {"low 1": [1000], "low 2": [1000], "low 3": [1000] * 3},
           {"low 1": no_room(10), "low 2": no_room(10)}, do=[node_is("low 3", how)])
      for how in ("drained", "not Ready", "deleted")),
    # ---- what is booked, and what is held by the slack
    Case("a booked one stays", {"low 1": [], "low 2": [], "low 3": [4000]},
         {"low 1": f"{BOOKED} ns/train", "low 3": IN_USE},
         do=[booked("low 1", 1)]),
    Case("booked room is none", {"high": [1000] * 2, "low": [1000]}, {"high": f"{BOOKED} ns/train", "low": no_room(10)},
         do=[booked("high", 2)]),
    Case("there is more than is booked", {"high": [1000] * 2, "low": [1000]}, {"high": f"{BOOKED} ns/train"},
         do=[booked("high", 1)]),
    Case("a booking that has lost its room", {"high": [1000], "low": [1000]},
         {"high": f"{BOOKED} ns/train", "low": no_room(10)}, do=[booked("high", 3, 1000, 1000)]),
    Case("slack without room elsewhere", {"high": [1000] * 2, "low": []},
         {"low": no_room_with_slack(10), "high": IN_USE},
         slack={"low": 3}),
    Case("slack with room elsewhere", {"high": [1000] * 2, "low": []}, {"high": IN_USE}, slack={"low": 2}),
    Case("the room of the slack is none", {"high": [1000] * 2, "low": [1000]}, {"high": IN_USE, "low": no_room(10)},
         slack={"high": 2}),
    Case("there is more than the slack's", {"high": [1000] * 2, "low": [1000]}, {"high": IN_USE}, slack={"high": 1}),
    Case("the slack of two has room for one", {"high": [1000] * 2, "low 1": [], "low 2": []},
         {"high": IN_USE, "low 2": no_room_with_slack(10)}, slack={"low 1": 2, "low 2": 2}),
    Case("the slack of two has room for both", {"high": [1000] * 2, "low 1": [], "low 2": []}, {"high": IN_USE},
         slack={"low 1": 1, "low 2": 1}),
    Case("placeholders that keep apart", {"high": [1000] * 2, "low": []},
         {"high": IN_USE, "low": no_room_with_slack(10)},
         slack={"high": 1, "low": 1}, placeholder=apart(1000)),
    Case("placeholders that keep apart, with room", {"high": [1000] * 2, "low": []}, {"high": IN_USE}, slack={"low": 1},
         placeholder=apart(1000)),
    # ---- one that cannot be drained stays, and no other one for it
    Case("budgets", {"low 1": [], "low 2": [1000], "low 3": [3000]}, {"low 1": BUDGET, "low 3": IN_USE},
         do=[budget("low 1", "low 3")]),
    # ---- all at once, wherever the scheduler puts them
    Case("alike pods are counted exactly", {"ten 1": [], "ten 2": [], "gone": [5000] * 4},
         {}, theirs=TENS),
    Case("one too many", {"ten 1": [], "ten 2": [], "gone": [5000] * 5}, {"gone": no_room(100)}, theirs=TENS),
    Case("with those that wait", {"ten 1": [], "ten 2": [], "gone": [5000] * 3}, {}, theirs=TENS, waiting=[5000]),
    Case("one too many with those", {"ten 1": [], "ten 2": [], "gone": [5000] * 4}, {"gone": no_room(100)}, theirs=TENS,
         waiting=[5000]),
    Case("with those of another one that goes", {"ten 1": [], "ten 2": [], "gone 1": [5000] * 3, "gone 2": [5000] * 2},
         {"gone 1": no_room(100)}, theirs=TENS),
    Case("small ones can shut out a large one", {"ten 1": [], "ten 2": [], "gone": [9000, 2000, 2000]},
         {"gone": no_room(100)}, theirs=TENS),
    Case("one small one cannot", {"ten 1": [], "ten 2": [], "gone": [9000, 2000]}, {}, theirs=TENS),
    Case("on the node that they select", {"ssd": [], "ten 1": [], "gone": [ON_SSD]}, {},
         theirs=["ssd", "ten 1"]),
    Case("that node has room for one", {"ssd": [], "ten 1": [], "gone": [ON_SSD] * 2}, {"gone": no_room(100)},
         theirs=["ssd", "ten 1"]),
    Case("no node is as they ask", {"ssd": [], "ten 1": [], "gone": [ON_HDD]}, {"gone": no_room(100)},
         theirs=["ssd", "ten 1"]),
    Case("one of the node's pods is a resource", {"two": [], "gone": [PodSpec()] * 2}, {}, theirs=["two"]),
    Case("and runs out", {"two": [], "gone": [PodSpec()] * 3}, {"gone": no_room(100)}, theirs=["two"]),
    Case("devices", {"ten 1": [], "ten 2": [], "low": [], "gone": []}, {}, theirs=[*TENS, "low"],
         do=[with_devices, asks("gone", 2)]),
    Case("devices go to whichever pod is bound first", {"ten 1": [], "ten 2": [], "low": [], "gone": []},
         {"gone": no_room(100)}, theirs=[*TENS, "low"], do=[with_devices, asks("gone", 3)]),
    Case("more devices than any node has", {"ten 1": [], "low": [], "gone": []}, {"gone": no_room(100)},
         theirs=["ten 1", "low"], do=[with_devices, asks("gone", 1, "nine")]),
    # ---- constraints over hostnames: each node decides by itself
    Case("apart, and one on each", {"low 1": [apart(500)], "low 2": [apart(500)], "low 3": [apart(500)]},
         dict.fromkeys(("low 1", "low 2", "low 3"), no_room(10))),
    Case("apart, and one node without",
         {"low 1": [apart(500)], "low 2": [apart(500)], "low 3": [apart(500)], "high": [1000] * 2},
         {"low 2": no_room(10), "low 3": no_room(10), "high": IN_USE}),
    Case("apart, and the one node without is beyond many",
         {name: [apart(100)] for name in MANY[:-1]} | {MANY[-1]: [5000], "gone": [apart(100)]}, {},
         theirs=MANY, planned=0),
    Case("apart, and many nodes have one", {name: [apart(100)] for name in MANY} | {"gone": [apart(100)]},
         {"gone": no_room(100)}, theirs=MANY),
    Case("two apart, and one node without", {"ten 1": [], "ten 2": [apart(100)], "gone": [apart(100)] * 2},
         {"gone": no_room(100)}, theirs=TENS),
    Case("who keeps nobody out is kept out", {"ten 1": [apart(100)], "gone": [DB]}, {"gone": no_room(100)},
         theirs=["ten 1"]),
    Case("and keeps out", {"ten 1": [DB], "gone": [apart(100)]}, {"gone": no_room(100)}, theirs=["ten 1"]),
    Case("a port is free once", {"ten 1": [PORT], "ten 2": [], "gone": [PORT]}, {}, theirs=TENS),
    Case("and no second time", {"ten 1": [PORT], "ten 2": [], "gone": [PORT] * 2}, {"gone": no_room(100)}, theirs=TENS),
    Case("a spread lets so many onto a node", {"ten 1": [SPREAD], "ten 2": [], "gone": [SPREAD] * 3}, {}, theirs=TENS,
         planned=0),
    Case("and no more", {"ten 1": [SPREAD], "ten 2": [], "gone": [SPREAD] * 4}, {"gone": no_room(100)}, theirs=TENS),
    Case("the one node with room is beyond many that are full",
         {name: [SPREAD] * 2 for name in MANY[:-1]} | {MANY[-1]: [5000], "gone": [SPREAD]}, {}, theirs=MANY, planned=0),
    Case("it counts others, and none like it", {"ten 1": [WEB] * 3, "gone": [replace(SPREAD, labels=())]},
         {"gone": no_room(100)}, theirs=["ten 1"]),
    Case("those that would move there count others too", {"ten 1": [], "gone 1": [SPREAD] * 2, "gone 2": [WEB] * 3},
         {"gone 2": no_room(100)}, theirs=["ten 1"]),
    Case("company", {name: [] for name in MANY[:-1]} | {MANY[-1]: [DB]} | {"gone": [BESIDE]}, {}, theirs=MANY),
    Case("no company", {"ten 1": [], "gone": [BESIDE]}, {"gone": no_room(100)}, theirs=["ten 1"]),
    # ---- constraints over zones: the planner decides, and sees who runs on nodes that are no room
    Case("who is alone in another zone", {"in-a": [], "below-b": [apart(100, ZONE)], "leaves-a": [apart(100, ZONE)]},
         {},
         theirs=["in-a", "below-b"]),
    Case("pods below keep out of their zone",
         {"in-b": [], "below-b": [apart(100, ZONE)], "leaves-a": [apart(100, ZONE)]},
         {"leaves-a": no_room(100)}, theirs=["in-b", "below-b"]),
    Case("those that avoid nobody too", {"in-b": [], "below-b": [apart(100, ZONE)], "leaves-a": [DB]},
         {"leaves-a": no_room(100)}, theirs=["in-b", "below-b"]),
    Case("and there is another zone", {"in-b": [], "in-a": [], "below-b": [apart(100, ZONE)], "leaves-a": [DB]}, {},
         theirs=["in-a", "in-b", "below-b"]),
    Case("expendable pods need no room elsewhere and do not count in what is used", {"low": [], "high": [1000]}, {},
         theirs=["high"], do=[of_priority("low", -11, 3000)]),
    Case("beside them other pods count", {"low": [1000], "high": [1000]}, {"low": no_room(10)},
         theirs=["high"], do=[of_priority("low", -11, 2000), of_priority("high", 0, 2500)]),
    Case("pods at the cutoff are not expendable", {"low": [], "high": [1000]}, {"low": IN_USE},
         theirs=["high"], do=[of_priority("low", -10, 3000)]),
    Case("a spread over zones",
         {"in-a": [SPREAD_OVER_ZONES], "in-b": [SPREAD_OVER_ZONES], "leaves-a": [SPREAD_OVER_ZONES]},
         {}, theirs=["in-a", "in-b"]),
    Case("and one zone has more", {"below-a": [], "in-b": [SPREAD_OVER_ZONES], "leaves-a": [SPREAD_OVER_ZONES]},
         {"leaves-a": no_room(100)}, theirs=["below-a", "in-b"]),
    Case("an empty zone counts though nobody can go there",
         {"in-a": [SPREAD_OVER_ZONES], "below-b": [], "leaves-a": [SPREAD_OVER_ZONES]},
         {"leaves-a": no_room(100)}, theirs=["in-a", "below-b"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_node_may_go_or_stays(case: Case, standing: Callable[..., Standing]) -> None:
    groups = tuple({name.partition(" ")[0]: BY_NAME[name.partition(" ")[0]] for name in case.nodes}.values())
    copies = Copies("x", case.placeholder, sum(case.slack.values()))
    targets = SlackSettings(Carrier.VIRTUAL, (TargetSettings("t", fixed=(copies,)),)) if case.slack else None
    world = standing(*groups, slack=targets)
    world.stand(case.nodes)
    for name in case.theirs:
        world.annotate(name, theirs="true")
    for do in case.do:
        do(world)
    world.bind("", *case.waiting)
    if case.slack:
        held = {"t/fixed/x": {world.names[name]: count for name, count in case.slack.items()}}
        metadata = {"namespace": "cagrpc"}
        path = path_of("/apis/cagrpc.io/v1alpha1/slacks", "cagrpc", "cagrpc")
        world.api.put(path, {"metadata": metadata, "status": {"placements": pack(held)}})
        world.idle.discard("the slack")
        world.step()
    problems: list[Problem] = []

    def noted(problem: Problem, budget: Budget) -> Plan:
        problems.append(problem)
        return solve(problem, budget)

    with patch("solver.solve", noted):
        found = world.review()
    theirs = dict.fromkeys(case.theirs, "theirs: true")
    assert {name: why for name, why in found.items() if why} == {**theirs, **case.stay}
    if case.planned is not None:
        assert len(problems) == case.planned
    assert all(len(problem.nodes) < 70 for problem in problems), "few nodes stand for all"
