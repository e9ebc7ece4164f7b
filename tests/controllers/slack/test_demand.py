"""What the slack of a cluster comes to: of which sizes its placeholders are, by the nodes that there are or may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.controllers.settings import Drive
from cagrpc.controllers.slack.model import Carrier, SlackSettings, TargetSettings, Window
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.runtime.schedules import parse_cron
from solver.model import ATTACHABLE_VOLUMES, NodeGroup, PodSpec, Taint, TaintEffect
from solver.slack.model import Base, Copies, Version
from tests.controllers.slack.test_holding import mirror
from tests.support.cluster import NAMESPACE, NODES, path_of
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.world import World

POOL = ((NODEPOOL_LABEL, "web"),)
DAY, HOUR = 86_400.0, 3600.0
SMALL, WEB = group("small", cpu=4000), group("web", cpu=4000, labels=dict(POOL))
GUARDED = replace(group("guarded", cpu=8000), taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),))
TYPE = "node.kubernetes.io/instance-type"
LARGE = replace(group("large", cpu=4000), instance_type="m7i.large")
WITH_DISKS = replace(SMALL, allocatable={**SMALL.allocatable, f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com": 25})
HALF = TargetSettings("t", 0.5, version=Version.EVEN, base=Base.ALLOCATABLE, granularity=4)


def fixed(cpu: int, **more: object) -> TargetSettings:
    return TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", cpu),)), 1),), **more)  # type: ignore[arg-type]


def daemon(world: World) -> None:
    """500 mCPU on each node of the pool."""
    spec = pod_body(PodSpec((("cpu", 500),), node_selector=POOL), "example.com/idle", NAMESPACE)
    document = {"metadata": {"namespace": NAMESPACE}, "spec": {"template": {"metadata": {}, "spec": spec}}}
    world.api.put(path_of("/apis/apps/v1/daemonsets", "d"), document)


def grows(world: World) -> None:
    world.step()
    world.api.change(f"{NODES}/n0", status={"allocatable": {"cpu": "16", "memory": "16Gi", "pods": "110"}})


def mirrored(**selector: str) -> Callable[[World], object]:
    spec = PodSpec((("cpu", 500),), node_selector=tuple(selector.items()))
    return lambda world: mirror(world, "y", 1, spec, NAMESPACE)


@dataclass(frozen=True)
class Case:
    name: str
    sizes: Sequence[tuple[str, int]]
    """Cpu and number of placeholders."""
    target: TargetSettings | None = None
    groups: Sequence[NodeGroup] = (SMALL,)
    nodes: Sequence[NodeGroup] = ()
    do: Callable[[World], object] = lambda _: None
    warns: str = ""


CASES = [
    Case("it fits a node that may be opened", [("3800m", 1)], fixed(3800)),
    Case("it fits none, and is cut", [("4", 2)], fixed(8000)),
    Case("beside DaemonSets", [("1900m", 2)], fixed(3800, node_selector=POOL), [WEB], do=daemon),
    Case("beside those of other nodes", [("3800m", 1)], fixed(3800), [WEB, SMALL], do=daemon),
    Case("no node that is selected", [], fixed(100, node_selector=POOL), warns="has what fixed size x asks for"),
    Case("a taint keeps it out", [("4", 2)], fixed(8000), [GUARDED, SMALL]),
    Case("and without the taint", [("8", 1)], fixed(8000), [replace(GUARDED, taints=()), SMALL]),
    Case("a node that has grown", [("8", 1)], fixed(8000), nodes=[SMALL], do=grows),
    Case("a rate of what stands", [("1", 6)], HALF, nodes=[SMALL] * 3),
    Case("of nodes that are selected", [("1", 2)], replace(HALF, node_selector=POOL), nodes=[SMALL, WEB, SMALL]),
    Case("attachments of volumes are no part of it", [("1", 4)], HALF, [WITH_DISKS], nodes=[SMALL, WITH_DISKS]),
    Case("labels that nobody selects make no difference", [("1", 4)], HALF,
         nodes=[replace(SMALL, labels={"rack": each}) for each in "ab"]),
    Case("labels that pods select by do", [("500m", 1)], None, [SMALL, replace(LARGE, labels={"zone": "b"})],
         do=mirrored(zone="b")),
    Case("no node has them", [], None, do=mirrored(zone="b"), warns="no node that a pod of deployment/ns/y fits"),
    Case("labels that a cloud sets on every node of a group", [("500m", 1)], None, [LARGE],
         do=mirrored(**{TYPE: "m7i.large"})),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_placeholders_have_sizes_that_nodes_take(case: Case) -> None:
    settings = SlackSettings(Carrier.VIRTUAL, () if case.target is None else (case.target,))
    with World(*case.groups, drive=Drive.ASSIST, slack=settings) as world:
        for number, of in enumerate(case.nodes):
            world.cluster.node(f"n{number}", of)
        case.do(world)
        world.run(3)
        page = world.page("/slack")
        assert [(each["requests"]["cpu"], each["wanted"]) for each in page["shapes"]] == case.sizes
        assert all(set(each["requests"]) <= {"cpu", "memory"} for each in page["shapes"])
        assert [case.warns in each for each in page["warnings"]] == [True] * bool(case.warns)


def test_of_windows_that_are_open_the_highest_rate_holds() -> None:
    day, night = (
        Window(parse_cron(f"0 {hour} * * *"), ZoneInfo("UTC"), 8 * HOUR, rate=rate)
        for hour, rate in ((8, 0.5), (15, 0.2))
    )
    target = replace(HALF, rate=0.1, granularity=10, schedules=(night, day))
    with World(SMALL, drive=Drive.ASSIST, slack=SlackSettings(Carrier.VIRTUAL, (target,))) as world:
        world.cluster.node("n", SMALL)
        found = []
        for hour in (7, 8, 15.5, 16, 23):
            world.clock.advance((hour * HOUR - world.clock()) % DAY)
            world.run(1)
            found.append(world.page("/slack")["targets"][0]["wanted"])
        assert found == [1, 5, 5, 2, 1]


@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=8), st.integers(0, 20), st.integers(1, 9)
)
def test_what_others_mirror_takes_nothing_of_a_namespace(others: list[tuple[str, int]], most: int, count: int) -> None:
    with World(SMALL, drive=Drive.ASSIST, slack=SlackSettings(Carrier.VIRTUAL, mirrors_per_namespace=most)) as world:
        for number, (namespace, pods) in enumerate(others):
            mirror(world, f"y{number}", pods, PodSpec((("cpu", 100),)), namespace)
        mirror(world, "x", count, PodSpec((("cpu", 100),)), "modest")
        world.run(1)
        kept = Counter[str]()
        for each in world.page("/slack")["shapes"]:
            kept[each["name"].split("/")[-2]] += each["wanted"]
    assert kept["modest"] == min(count, most)
    assert all(pods <= most for pods in kept.values())
