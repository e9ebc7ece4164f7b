"""Which requests are served and what the others are told, of what is asked for at one time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.api.core.nodes import ZONE
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.model import IncrementSpec
from solver import solve
from solver.model import Budget, Limit, NodeGroup, Plan, Problem, Taint, TaintEffect
from tests.controllers.provisioning.conftest import Make
from tests.support.cluster import path_of
from tests.support.devices import CLASSES, SLICES, TEMPLATES, claim_spec, claim_template, device_class, gpus
from tests.support.fleet import group
from tests.support.requests import ATOMIC, CHECK, RequestWorld, path
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS
GPU = "nvidia.com/gpu"
TAINT = Taint("dedicated", TaintEffect.NO_SCHEDULE, "gpu")
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}

_gpus = group("gpu-b", cpu=8000, price=3.0, max_size=9, taints=(TAINT,))
GPUS = replace(_gpus, allocatable={**_gpus.allocatable, GPU: 1})
OTHER_GPUS = replace(GPUS, id="gpu-c", price_usd_per_hour=2.9, max_size=8)
CPUS = group("cpu-a", price=0.2, max_size=20)
SMALL = group("small", cpu=2000, price=0.1)
LARGE = group("large", cpu=8000, price=1.0)
POOL = replace(CPUS, id="pool", taints=(TAINT,), labels={"pool": "x"}, max_size=4)
FEW = replace(CPUS, max_size=4)

TWICE = claim_template("twice", spec={"devices": {"requests": claim_spec()["devices"]["requests"] * 2}}, namespace="ns")
"""What the API server would refuse, and only the planner notices."""
WRONG = "claim 0: request gpu: given 2 times, names must be unique"


def claims(template: str) -> Mapping[str, Any]:
    """Return what a pod says that has a claim of this ResourceClaimTemplate."""
    return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}]}


Asked = tuple[tuple[str, int], ...]
Do = Callable[[RequestWorld], object]
BIG, ONE, TWO = (("head", 8),), (("head", 1),), (("head", 2),)


@dataclass(frozen=True)
class Case:
    name: str
    groups: Sequence[NodeGroup]
    asks: Mapping[str, Asked]
    """What is asked for at one time, one a second older than the next; `other/name` in another namespace."""
    served: str = ""
    left: Mapping[str, str] = field(default_factory=dict)
    """Why others are not served now, and"""
    never: Mapping[str, str] = field(default_factory=dict)
    """why they can never be: what there is in the message."""
    bypassed: Mapping[str, int] = field(default_factory=dict)
    """How often a request has been bypassed when it is asked for; then others count one more each time."""
    bypassed_once: str = ""
    limits: Sequence[Limit] = ()
    stands: Asked = ()
    """What is reserved already,"""
    do: Do = lambda _: None
    """and what else has happened."""
    ordered: Mapping[str, int] | None = None
    largest_increment: int = 100_000


def short(name: str) -> Do:
    """An offering is left out after a shortage."""

    def do(world: RequestWorld) -> None:
        world.backend.set_behaviours({name: Behaviour(stock=0)})
        with suppress(errors.OrderRefused):
            world.fleet.apply(IncrementSpec({name: 1}))
        world.run(2)

    return do


def occupied(count: int) -> Do:
    """Pods of nobody's request run on so many nodes."""

    def do(world: RequestWorld) -> None:
        world.fleet.apply(IncrementSpec({"cpu-a": count}))
        world.run(LONG, step=5.0)
        for name in world.cluster.nodes():
            world.cluster.add(cpu=4000, node=name)

    return do


def on_their_way(requests: int, others: int) -> Do:
    """So many nodes are in flight for requests, and for others."""

    def do(world: RequestWorld) -> None:
        if others:
            world.fleet.apply(IncrementSpec({"cpu-a": others}))
        for number in range(requests):
            world.request(f"coming-{number}", *TWO)
        world.run(3)

    return do


TOO_OFTEN = "what it needs is reserved for ns/big, which younger requests have bypassed 10 times"
CASES = [
    Case("the higher priority, then the older", [replace(CPUS, max_size=1)],
         {"low": TWO, "old": (("urgent", 2),), "young": (("urgent", 2),)}, "old", {"low": "", "young": ""}),
    Case("what stands is used first, beside another's booking", [CPUS], {"r": ONE, "next": TWO}, "r next",
         stands=ONE, ordered={"cpu-a": 1}),
    Case("one that does not fit holds up no other", [GPUS, CPUS],
         {"big": (("worker", 8), ("head", 5)), "b": ONE, "c": TWO}, "b c",
         {"big": "12 of 13 pods fit now (7 of 8 of ns/worker): node group gpu-b is at its maximum size 9"},
         bypassed_once="big", stands=(("worker", 2),)),
    Case("what would serve it", [replace(GPUS, max_size=2), CPUS], {"r": (("worker", 2),)},
         left={"r": "What would serve it: raise maxSize of gpu-b from 2 to 3"}, stands=(("worker", 1),)),
    Case("never", [GPUS, CPUS], {"large": (("huge", 1),), "many": (("worker", 10),), "costly": (("head", 20),)},
         never={"large": "needs 9 cpu, at most ",
                "many": "9 of 10 pods fit with all node groups empty and no limit used: node group gpu-b is at its"
                        " maximum size 9; needs 1 nvidia.com/gpu, none is free (node group cpu-a). What would"
                        " serve it: raise maxSize of gpu-b from 9 to 10",
                "costly": "raise the nodes of limit cpus from 8 to 10"},
         limits=[Limit("cpus", {"nodes": 8}, node_groups=frozenset({"cpu-a"}))], stands=(("worker", 1),)),
    Case("pods that are not valid", [CPUS], {"twice": (("twice", 1),), "b": ONE}, "b",
         never={"twice": WRONG}),
    Case("many nodes together", [SMALL], {"r": (("head", 5),)}, "r", ordered={"small": 5}),
    Case("more nodes than one increment may have", [SMALL, LARGE], {"r": (("head", 5),)},
         left={"r": "it takes 5 new nodes that must come together, and one increment has at most 4"},
         do=short("large"), largest_increment=4),
    Case("larger nodes instead of too many", [SMALL, LARGE], {"r": (("head", 5),)}, "r",
         ordered={"small": 1, "large": 1}, largest_increment=4),
    Case("a shortage decides", [GPUS, CPUS], {"r": (("worker", 2),), "heads": ONE}, "heads",
         {"r": "0 of 0 left); with it the whole request would fit"}, bypassed_once="r", do=short("gpu-b")),
    Case("a shortage does not decide", [replace(GPUS, max_size=1), OTHER_GPUS],
         {"r": (("worker", 9),)}, left={"r": "; even with it "}, limits=[Limit("gpus", {GPU: 9})],
         stands=(("worker", 5),), do=short("gpu-b")),
    Case("a limit beside a shortage", [replace(GPUS, max_size=1), OTHER_GPUS],
         {"r": (("worker", 9),)}, left={"r": "raise the nvidia.com/gpu of limit gpus from 9 to 14"},
         limits=[Limit("gpus", {GPU: 9})], stands=(("worker", 5),), do=short("gpu-b")),
    Case("what it cannot use is short", [GPUS, CPUS], {"r": (("head", 20),)},
         left={"r": "14 of 20 pods fit now: limit small"}, limits=[Limit("small", {"nodes": 12})],
         stands=(("head", 10),), do=short("gpu-b")),
    Case("reserved for one that was bypassed too often, not what others need", [FEW, GPUS],
         {"big": BIG, "small": ONE, "elsewhere": (("worker", 1),), "high": (("urgent", 2),)}, "elsewhere high",
         {"big": "", "small": TOO_OFTEN}, bypassed={"big": 10}, bypassed_once="small", stands=TWO),
    Case("reserved for one of a namespace at a time", [FEW, POOL],
         {"big": BIG, "next": (("pool", 8),), "small": (("pool", 1),)}, "small", {"big": "", "next": ""},
         bypassed={"big": 10, "next": 10}, stands=(("head", 2), ("pool", 2))),
    Case("reserved for one of each namespace", [FEW, POOL],
         {"big": BIG, "other/next": (("pool", 8),), "small": (("pool", 1),)}, "", {"small": "is reserved for"},
         bypassed={"big": 10, "other/next": 10}, stands=(("head", 2), ("pool", 2))),
    Case("not for one that can never be", [FEW], {"big": (("head", 100),), "small": ONE}, "small",
         never={"big": "8 of 100 pods fit with all"}, bypassed={"big": 50}),
    Case("not for one for which nobody gives nodes back", [FEW], {"big": BIG, "small": ONE}, "small", {"big": ""},
         bypassed={"big": 50}, do=occupied(2)),
    Case("nodes on their way for requests come back", [FEW], {"big": BIG, "small": ONE}, "", {"small": TOO_OFTEN},
         bypassed={"big": 10}, limits=[Limit("nodes", {"nodes": 4})], do=on_their_way(3, 0)),
    Case("nodes on their way for others do not", [FEW], {"big": BIG, "small": ONE}, "small", {"big": ""},
         bypassed={"big": 10}, limits=[Limit("nodes", {"nodes": 4})], do=on_their_way(2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_is_served_and_what_the_others_are_told(make: Make, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.decisions.LARGEST_INCREMENT", case.largest_increment)
    world = make(*case.groups, limits=case.limits)
    templates(world)
    if case.stands:
        world.request("stands", *case.stands)
        world.run(LONG, step=5.0)
    case.do(world)
    before = world.targets()
    for name, asked in case.asks.items():
        world.request(name, *asked)
        if name in case.bypassed:
            details = {"overtaken": str(case.bypassed[name])}
            world.api.change(path(name), status={"provisioningClassDetails": details})
        world.clock.advance(1.0)
    world.run(2)
    served = {each for each in case.asks if world.is_true(each, "Accepted") or world.is_true(each, "Provisioned")}
    assert served == set(case.served.split())
    assert {each for each in case.asks if world.is_true(each, "Failed")} == case.never.keys()
    for name, why in case.never.items():
        assert why in world.message(name, "Failed")
    for name, why in case.left.items():
        told = world.message(name, "Provisioned")
        assert why in told
        assert ("shortage" in told) == ("shortage" in case.name)
        times = case.bypassed.get(name, 0) + (name in case.bypassed_once.split())
        assert world.details(name)["overtaken"] == str(times)
    if case.ordered is not None:
        after = world.targets()
        assert {of: after[of] - before.get(of, 0) for of in after if after[of] != before.get(of)} == case.ordered


def templates(world: RequestWorld) -> None:
    world.priority_class("urgent", 5)
    world.template("head", cpu=2000)
    world.template("huge", cpu=9000)
    world.api.put(f"{CLASSES}/gpu", device_class())
    world.api.put(path_of(TEMPLATES, "twice"), TWICE)
    world.template("twice", **claims("twice"))
    world.template("urgent", cpu=2000, priorityClassName="urgent")
    world.template("pool", cpu=2000, nodeSelector={"pool": "x"}, tolerations=[TOLERATION])
    asks = {"requests": {"cpu": "4", GPU: "1"}, "limits": {GPU: "1"}}
    world.template("worker", containers=[{"name": "main", "resources": asks}], tolerations=[TOLERATION])


# ---- whose nodes are whose


def ordered(world: RequestWorld) -> list[tuple[dict[str, int], int]]:
    """Return what each increment has, and for how many requests."""
    found = [(dict(each.increment.deltas), len(each.increment.requests)) for each in world.increments()]
    return sorted(found, key=lambda each: str(each[0]))


def test_whole_nodes_are_for_one_request_and_only_those_that_share_a_node_wait_for_one_another(make: Make) -> None:
    world = make(group("g", cpu=2000), replace(POOL, max_size=9))
    templates(world)
    asks = {"a": ("web", 5), "b": ("web", 5), "c": ("pool", 4), "d": ("pool", 2)}
    uids = {name: world.request(name, asked) for name, asked in asks.items()}
    world.run(LONG, step=5.0)
    assert ordered(world) == [({"g": 5}, 2), ({"pool": 1}, 1), ({"pool": 2}, 1)]
    a, b, c, d = (world.labelled(uids[name]) for name in asks)
    assert [len(each) for each in (a, b, a & b, c, d, c & d)] == [3, 3, 1, 2, 1, 0]


@pytest.mark.parametrize(("one", "three"), [("a", "b"), ("b", "a")])
def test_nodes_for_many_pods_are_given_before_those_for_few(make: Make, one: str, three: str) -> None:
    """So that nobody shares a node who need not, whichever group the plan names first."""
    world = make(group(one, cpu=1000, price=0.1, max_size=1), group(three, cpu=3000, price=0.6))
    world.request("first", ("web", 3))
    world.request("second", ("web", 4))
    world.run(LONG, step=5.0)
    assert [(deltas, requests) for deltas, requests in ordered(world) if requests > 1] == []
    assert sum(deltas.get(three, 0) for deltas, _ in ordered(world)) == 2


def test_what_stands_is_for_the_first(make: Make) -> None:
    world = make(group("g", cpu=2000))
    world.request("keeps", ("web", 1))
    world.request("before", ("web", 3))
    world.run(LONG, step=5.0)
    world.delete("before")
    world.run(5)
    first, second = (world.request(name, ("web", count)) for name, count in (("first", 3), ("second", 1)))
    world.run(LONG, step=5.0)
    assert ordered(world)[0] == ({"g": 1}, 1)
    assert (len(world.labelled(first)), len(world.labelled(second))) == (2, 1)
    assert world.condition("first", "Provisioned")["reason"] == "CapacityIsFound"


# ---- checks


def node(cpu: int = 4000, **more: Any) -> NodeGroup:
    return group("stranger", cpu=cpu, **more)


IN_B = {"nodeSelector": {ZONE: "b"}}
CLAIMS = claims("t")
MEMORY = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3", "memory": "10Gi"}}}]}
ZONES = [node(11_000, labels={ZONE: "b" if number < 4 else "a"}) for number in range(6)]


@pytest.mark.parametrize(
    ("nodes", "pod", "count", "told"),
    [
        pytest.param(ZONES, IN_B, 16, "12 of 16 fit: the free room of 4 existing nodes that it fits is taken by other"
                     f" pods; node selector {ZONE}=b not met (2 of 6 nodes)", id="what is short, and where"),
        pytest.param(ZONES, IN_B, 12, "12 of 12 fit", id="enough"),
        pytest.param([node(100)], CLAIMS, 1, "0 of 1 fit: needs 3500m cpu, at most 100m is free (node n0); no"
                     " devices for its resource claims (node n0)", id="bare"),
        pytest.param([node(100)] * 2, CLAIMS, 1, "0 of 1 fit: needs 3500m cpu, at most 100m is free (2 of 2"
                     " nodes); no devices for its resource claims (node n0)", id="of a node with devices alone"),
        pytest.param([node(taints=(TAINT,))], {}, 1,
                     "0 of 1 fit: taint dedicated=gpu:NoSchedule not tolerated (node n0)", id="a taint"),
        pytest.param([], {}, 1, "0 of 1 fit: there are no nodes, and no node groups to open", id="no node"),
        pytest.param([node()], claims("twice"), 1, f"pod set ns/checked: {WRONG}", id="pods that are not valid"),
        pytest.param([node(9000)], MEMORY, 3, "1 of 3 fit: the free room of 1 existing node that it fits is taken"
                     " by other pods", id="of memory most is short"),
    ],
)  # fmt: skip
def test_a_check_says_what_is_short_and_where(
    make: Make, nodes: Sequence[NodeGroup], pod: Mapping[str, Any], count: int, told: str
) -> None:
    world = make()
    for at, template in (
        (CLASSES, device_class()),
        (TEMPLATES, claim_template(namespace="ns")),
        (TEMPLATES, TWICE),
    ):
        name = template["metadata"]["name"]
        world.api.put(path_of(at, name) if at == TEMPLATES else f"{at}/{name}", template)
    for number, each in enumerate(nodes):
        world.cluster.node(f"n{number}", each)
    if len(nodes) == 2:
        world.api.put(f"{SLICES}/n1", gpus(8, on="n1"))
    world.template("checked", cpu=3500, **pod)
    world.request("r", ("checked", count), of=CHECK)
    world.run(2)
    assert world.message("r", "CapacityAvailable") == told
    assert world.is_true("r", "CapacityAvailable") == (f"{count} of {count}" in told)


# ---- what breaks planning


@pytest.mark.parametrize(
    ("of", "told"),
    [(ATOMIC, ("Provisioned", "it cannot be decided: ")), (CHECK, ("CapacityAvailable", "it cannot be checked: "))],
)
def test_one_that_breaks_planning_is_told_so_and_holds_up_no_other(
    make: Make, of: str, told: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(problem: Problem, budget: Budget) -> Plan:
        if any(dict(each.spec.requests)["cpu"] == 2000 for each in problem.pod_sets):
            raise ZeroDivisionError("division by zero")
        return solve(problem, budget)

    monkeypatch.setattr("cagrpc.controllers.provisioning.decisions.solve", breaks)
    world = make()
    world.template("broken", cpu=2000)
    world.cluster.node("n", node())
    for name, template in (("bad", "broken"), ("good", "web")):
        world.request(name, (template, 1), of=of)
        world.clock.advance(1.0)
    world.run(LONG)
    condition, why = told
    assert world.message("bad", condition).startswith(f"{why}ZeroDivisionError: division by zero")
    assert world.is_true("good", condition)
