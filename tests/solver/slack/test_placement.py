"""Where placeholders are: what stays, what is pushed out, and where it goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.slack import NODES, Cluster
from bench.slack import PODS as BENCH_PODS
from solver import (
    HOSTNAME,
    HostPort,
    Node,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    RunningPods,
    TopologySpread,
)
from solver.model import Operator
from solver.slack.amount import wanted
from solver.slack.model import Placement, Role, Settled, SlackShape, SlackTarget
from solver.slack.placement import settle
from tests.support.solver.device_examples import GPUS, claim, devices
from tests.support.solver.problems import GIB, TAINT, TOLERATION, spec, wants

ZONE = "topology.kubernetes.io/zone"


def shape(name: str, count: int, of: PodSpec | None = None) -> SlackShape:
    return SlackShape(name, Role.SHARE, of or spec(), count, "")


def node(name: str, free: int, **other: object) -> Node:
    """A node of 4 cpu with so much free."""
    allocatable = {"cpu": 4000, "memory": 16 * GIB, "pods": 110}
    return Node(name, {**allocatable, "cpu": free}, allocatable=allocatable, **other)  # type: ignore[arg-type]


def total(placement: Placement) -> int:
    return sum(sum(there.values()) for there in placement.values())


def app(name: str, **other: object) -> PodSpec:
    return spec(namespace="shop", labels=(("app", name),), **other)  # type: ignore[arg-type]


def apps(name: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (name,)),), ("shop",))


def apart(name: str, key: str = HOSTNAME) -> PodSpec:
    """Pods of one app that keep apart from each other."""
    return app(name, pod_anti_affinity=(PodAffinityTerm(key, apps(name)),))


def test_mirrors_with_claims_hold_devices_of_their_nodes() -> None:
    some = (devices("gpu", count=3, taken=5),)
    nodes = (node("a", 4000, devices=GPUS), node("b", 4000, devices=some), node("c", 4000))
    wanted = (shape("m", 4, spec(10, claims=claim(count=3))),)
    first = settle(wanted, nodes, {})
    assert first.held == {"m": {"a": 2, "b": 1}}
    assert first.left == {"m": 1}
    fewer = (nodes[0], replace(nodes[1], devices=(devices("gpu", count=2, taken=6),)), nodes[2])
    second = settle(wanted, fewer, first.held)
    assert (second.held, second.pushed_out) == ({"m": {"a": 2}}, {"m": {"b": 1}})


class _CountingCalls(dict[str, str]):
    """Labels that count how often they are looked at."""

    looks = 0

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        self.looks += 1
        return super().get(key, default)


def test_r1_1_one_loop_over_nodes() -> None:
    """What does not fit a node is not tried there again, however many there are."""
    labels = [_CountingCalls({"disk": "hdd", "host": str(number)}) for number in range(50)]
    nodes = [node(f"n{number}", 4000, labels=each, taints=()) for number, each in enumerate(labels)]
    settled = settle([shape("ssd", 10_000, spec(node_selector={"disk": "ssd"}))], nodes, {})
    assert settled.left == {"ssd": 10_000}
    assert max(each.looks for each in labels) <= 3


def test_r1_2_placements_are_the_same_over_100_loops() -> None:
    """The same nodes in any order: nothing moves."""
    chance = random.Random(1)
    shapes = [shape("big", 20, spec(2500)), shape("small", 100, spec(300))]
    free = {f"n{number:02}": chance.randrange(0, 4000, 50) for number in range(60)}
    first = settle(shapes, [node(*each) for each in free.items()], {})
    held = first.held
    assert total(held) > 100
    for _ in range(100):
        nodes = [node(*each) for each in free.items()]
        chance.shuffle(nodes)
        settled = settle(shapes, nodes, held)
        assert settled == Settled(held, held, {}, {}, {}, first.left)
        held = settled.held


def test_r1_2_unchanged_nodes_keep_theirs_over_100_loops() -> None:
    """One node in a hundred changes in each loop. From the others nothing goes, and no more comes than was pushed out
    or had no place."""
    chance = random.Random(2)
    shapes = [shape("big", 30, spec(1500)), shape("small", 200, spec(200))]
    free = {f"n{number:03}": chance.randrange(0, 4000, 50) for number in range(200)}
    settled = settle(shapes, [node(*each) for each in free.items()], {})
    moved = 0
    for _ in range(100):
        changed = chance.sample(sorted(free), 2)
        for name in changed:
            free[name] = chance.randrange(-500, 4000, 50)
        before, left = settled.held, sum(settled.left.values())
        settled = settle(shapes, [node(*each) for each in free.items()], before)
        assert settled.removed == {}
        assert all(name in changed for there in settled.pushed_out.values() for name in there)
        for of, there in before.items():
            for name, count in there.items():
                assert name in changed or settled.held[of][name] >= count
        assert total(settled.placed) == total(settled.pushed_out) + left - sum(settled.left.values())
        moved += total(settled.placed)
    assert moved > 50


def test_r2_what_has_no_place_is_asked_for() -> None:
    settled = settle([shape("a", 7)], [node("n", 3500)], {})
    assert (settled.held, settled.left) == ({"a": {"n": 3}}, {"a": 4})


def test_r3_a_node_that_goes_takes_its_placeholders_to_others_or_leaves_them() -> None:
    """As in scale-down: where no other node has room, the slack would be below what is wanted."""
    nodes = [node("a", 1000), node("b", 2000), node("c", 1000)]
    held = settle([shape("s", 3)], nodes, {}).held
    assert held == {"s": {"a": 1, "b": 1, "c": 1}}  # the fullest first
    gone = settle([shape("s", 3)], nodes[:2], held)
    assert (gone.pushed_out, gone.placed, gone.left) == ({"s": {"c": 1}}, {"s": {"b": 1}}, {})
    both = settle([shape("s", 3)], nodes[:1], gone.held)
    assert (both.pushed_out, both.placed, both.left) == ({"s": {"b": 2}}, {}, {"s": 2})


def test_r3_empty_nodes_stay_empty() -> None:
    """So that they can go: new placeholders come to used nodes, removed ones leave the emptiest."""
    nodes = [node("empty", 4000), node("half", 2000), node("used", 1000)]
    five = settle([shape("s", 5)], nodes, {})
    assert five.held == {"s": {"used": 1, "half": 2, "empty": 2}}
    three = settle([shape("s", 3)], nodes, five.held)
    assert (three.held, three.removed) == ({"s": {"used": 1, "half": 2}}, {"s": {"empty": 2}})


def test_r8_room_for_pods_that_keep_apart() -> None:
    nodes = [node("a", 4000), node("b", 4000), node("c", 4000, running=(RunningPods(app("db")),))]
    settled = settle([shape("db", 4, apart("db"))], nodes, {})
    assert (settled.held, settled.left) == ({"db": {"a": 1, "b": 1}}, {"db": 2})
    joined = replace(nodes[0], running=(RunningPods(app("db")),))
    after = settle([shape("db", 2, apart("db"))], [joined, nodes[1], node("d", 4000)], settled.held)
    assert (after.pushed_out, after.placed) == ({"db": {"a": 1}}, {"db": {"d": 1}})


def test_r8_over_zones_and_by_the_terms_of_running_pods() -> None:
    zones = [node(f"{zone}{number}", 4000, labels={ZONE: zone}) for zone in "ab" for number in (1, 2)]
    settled = settle([shape("db", 3, apart("db", ZONE))], [*zones, node("nowhere", 500)], {})
    assert (settled.held, settled.left) == ({"db": {"a1": 1, "b1": 1}}, {"db": 1})
    loner = app("loner", pod_anti_affinity=(PodAffinityTerm(ZONE, apps("web")),))
    guarded = [replace(zones[0], running=(RunningPods(loner),)), *zones[1:]]
    web = settle([shape("web", 2, app("web"))], guarded, {"web": {"a2": 1}})
    assert (web.pushed_out, web.held) == ({"web": {"a2": 1}}, {"web": {"b1": 2}})


def test_r8_placeholders_keep_apart_from_each_other() -> None:
    shapes = [
        shape("db", 1, apart("db")),
        shape("other", 1, replace(apart("other"), pod_anti_affinity=apart("db").pod_anti_affinity)),
    ]
    settled = settle(shapes, [node("a", 4000), node("b", 4000)], {})
    assert settled.held == {"db": {"a": 1}, "other": {"b": 1}}
    assert settle(shapes, [node("a", 4000)], {}).left == {"other": 1}


def test_r8_host_ports() -> None:
    web = replace(app("web"), host_ports=(HostPort(80),))
    nodes = [
        node("a", 4000),
        node("b", 4000, running=(RunningPods(PodSpec(host_ports=(HostPort(80, ip="10.0.0.1"),))),)),
    ]
    settled = settle([shape("web", 3, web)], nodes, {})
    assert (settled.held, settled.left) == ({"web": {"a": 1}}, {"web": 2})


def test_r9_selectors_affinity_and_taints() -> None:
    asks = spec(node_selector={"disk": "ssd"}, affinity=wants("zone", "In", "a"))
    labels = {"disk": "ssd", "zone": "a"}
    nodes = [
        node("hdd", 3000, labels={"zone": "a"}),
        node("other", 3000, labels={**labels, "zone": "b"}),
        node("tainted", 3000, labels=labels, taints=(TAINT,)),
        node("right", 1500, labels=labels),
    ]
    assert settle([shape("m", 2, asks)], nodes, {}).held == {"m": {"right": 1}}
    tolerant = settle([shape("m", 2, replace(asks, tolerations=(TOLERATION,)))], nodes, {})
    assert tolerant.held == {"m": {"right": 1, "tainted": 1}}
    pushed = settle([shape("m", 1, asks)], [*nodes[:3], replace(nodes[3], labels={})], {"m": {"right": 1}})
    assert pushed.left == {"m": 1}


def test_r9_a_node_by_its_name() -> None:
    term = replace(
        wants("unused", "Exists")[0],
        match_expressions=(),
        match_fields=(Requirement("metadata.name", Operator.IN, ("b",)),),
    )
    settled = settle([shape("m", 2, spec(affinity=(term,)))], [node("a", 4000), node("b", 1000)], {})
    assert (settled.held, settled.left) == ({"m": {"b": 1}}, {"m": 1})


def test_r9_affinity_to_pods() -> None:
    """To others, which may be placeholders that find a place later; to their own, of which the first may choose."""
    near = app("web", pod_affinity=(PodAffinityTerm(ZONE, apps("db")),))
    zones = [node(zone, 2500, labels={ZONE: zone}) for zone in "ab"]
    shapes = [shape("web", 2, near), shape("db", 1, replace(app("db"), node_selector=((ZONE, "b"),)))]
    settled = settle(shapes, zones, {})
    assert (settled.held, settled.left) == ({"db": {"b": 1}, "web": {"b": 1}}, {"web": 1})
    assert settle(shapes[:1], zones, settled.held).left == {"web": 2}  # without db there is no place for web
    together = app("web", pod_affinity=(PodAffinityTerm(ZONE, apps("web")),))
    assert settle([shape("web", 4, together)], zones, {}).held == {"web": {"a": 2}}
    homeless = settle([shape("web", 1, together)], [node("n", 4000)], {})
    assert homeless.left == {"web": 1}


def test_r9_spread_over_zones_and_hosts() -> None:
    over = app("web", topology_spread=(TopologySpread(ZONE, 1, apps("web")),))
    zones = [node(f"{zone}{number}", 4000, labels={ZONE: zone}) for zone in "abc" for number in (1, 2)]
    running = [replace(zones[0], running=(RunningPods(app("web"), 2),)), *zones[1:]]
    settled = settle([shape("web", 5, over)], running, {})
    by_zone = {zone: sum(n for name, n in settled.held["web"].items() if name[0] == zone) for zone in "abc"}
    assert (by_zone, settled.left) == ({"a": 0, "b": 3, "c": 2}, {})  # with the two that run, 2, 3 and 2
    hosts = app("web", topology_spread=(TopologySpread(HOSTNAME, 2, apps("web")),))
    assert settle([shape("web", 9, hosts)], zones[:2], {}).held == {"web": {"a1": 2, "a2": 2}}
    one = [node("a", 4000, labels={ZONE: "a"})]
    assert settle([shape("web", 3, over)], one, {}).held == {"web": {"a": 3}}
    three = app("web", topology_spread=(TopologySpread(ZONE, 1, apps("web"), min_domains=3),))
    assert settle([shape("web", 4, three)], zones[:4], {}).left == {"web": 2}  # one in each of two zones
    apart_from = app("other", topology_spread=(TopologySpread(ZONE, 1, apps("web")),))
    assert settle([shape("o", 3, apart_from)], running[:3], {}).held == {"o": {"b1": 3}}


def test_r10_a_large_cluster() -> None:
    """5,000 nodes, 150,000 pods, 25,000 placeholders; 1 % of the pods change. `bench.slack` says how long it takes."""
    cluster = Cluster()
    target = SlackTarget("t", 0.1, mirrors=cluster.mirrors(5))
    shapes = wanted(target, cluster.shapes(), cluster.pods()).shapes
    first = settle(shapes, cluster.nodes, {})
    assert total(first.held) > 25_000
    assert first.left == {}
    before = list(cluster.nodes)
    cluster.change(BENCH_PODS // 100)
    unchanged = {old.name for old, new in zip(before, cluster.nodes, strict=True) if old is new}
    assert NODES * 0.98 < len(unchanged) < NODES
    shapes = wanted(target, cluster.shapes(), cluster.pods(), shapes).shapes
    second = settle(shapes, cluster.nodes, first.held)
    assert all(name not in unchanged for there in second.pushed_out.values() for name in there)
    assert total(second.placed) + total(second.removed) < 500
    assert total(second.held) == sum(each.count for each in shapes)


def test_s2_step_1_as_many_are_pushed_out_as_real_pods_need() -> None:
    held = {"s": {"n": 4}}
    for free, stay in ((4000, 4), (3999, 3), (1000, 1), (999, 0), (-2000, 0)):
        settled = settle([shape("s", 4)], [node("n", free)], held)
        assert settled.held.get("s", {}).get("n", 0) == stay
        assert total(settled.pushed_out) == 4 - stay


def test_s2_step_1_the_hardest_to_place_stay() -> None:
    shapes = [shape("big", 1, spec(2000)), shape("small", 4, spec(500))]
    settled = settle(shapes, [node("n", 3000)], {"small": {"n": 4}, "big": {"n": 1}})
    assert settled.kept == {"big": {"n": 1}, "small": {"n": 2}}


def test_s2_steps_2_to_4_only_the_difference_moves() -> None:
    nodes = [node(f"n{number}", 2000 + number) for number in range(5)]
    first = settle([shape("s", 4)], nodes, {})
    assert first.held == {"s": {"n0": 2, "n1": 2}}
    more = settle([shape("s", 7)], nodes, first.held)
    assert (more.kept, more.placed) == (first.held, {"s": {"n2": 2, "n3": 1}})
    fewer = settle([shape("s", 5)], nodes, more.held)
    assert (fewer.placed, fewer.removed) == ({}, {"s": {"n2": 1, "n3": 1}})
    none = settle([], nodes, fewer.held)
    assert (none.held, none.removed) == ({}, fewer.held)


def test_s2_a_size_that_changes_keeps_its_place() -> None:
    held = {"s": {"a": 2, "b": 2}}
    settled = settle([shape("s", 4, spec(1100))], [node("a", 2000), node("b", 4000)], held)
    assert (settled.kept, settled.pushed_out) == ({"s": {"a": 1, "b": 2}}, {"s": {"a": 1}})
    assert settled.held == {"s": {"a": 1, "b": 3}}


@pytest.mark.parametrize("nodes", [(), (Node("bare", {}),), (Node("no-pods", {"cpu": 9000}),)])
def test_nodes_without_room(nodes: Sequence[Node]) -> None:
    settled = settle([shape("s", 2)], nodes, {"s": {"gone": 1}})
    assert settled == Settled({}, {}, {}, {"s": {"gone": 1}}, {}, {"s": 2})
