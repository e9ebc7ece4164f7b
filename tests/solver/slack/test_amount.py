"""How much slack, requirement by requirement of the specification. Where placeholders are: test_slack_placement; what
holds of any cluster: test_slack_properties; the examples of docs/reference/slack.md: test_documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from solver import NodeSelectorTerm, PodSpec, Toleration
from solver.slack.amount import needed, parts, wanted
from solver.slack.model import Base, Copies, NodeShape, PodCount, Role, SlackDemand, SlackShape, SlackTarget, Version
from tests.support.solver.problems import GIB, GPU, TAINT, TOLERATION, spec, wants

NODES = (NodeShape({"cpu": 4000, "memory": 16 * GIB, "pods": 110}, 10),)
WEB = PodCount(spec(1000, 2), 20, "shop")
CACHE = PodCount(spec(500, 8), 5, "shop")
PODS = (WEB, CACHE)
VERSIONS = pytest.mark.parametrize("version", list(Version))
BASES = pytest.mark.parametrize("base", list(Base))


def shape(cpu: int, gib: int, count: int = 5, gpu: int = 0, **other: object) -> NodeShape:
    return NodeShape({"cpu": cpu, "memory": gib * GIB, GPU: gpu, "pods": 110}, count, **other)  # type: ignore[arg-type]


def size(of: SlackShape) -> dict[str, int]:
    return dict(of.spec.requests)


def held(shapes: Sequence[SlackShape], name: str) -> int:
    return sum(size(each).get(name, 0) * each.count for each in shapes)


def of_role(found: SlackDemand, role: Role) -> list[SlackShape]:
    return [each for each in found.shapes if each.role is role]


def in_short(found: SlackDemand) -> list[tuple[str, int, dict[str, int]]]:
    return [(each.name, each.count, size(each)) for each in found.shapes]


def test_r1_the_work_is_by_classes_not_by_pods() -> None:
    """A thousand million pods are as quick as one, and the numbers are exact."""
    many = [PodCount(spec(1000, 2), 10**9)]
    nodes = [replace(NODES[0], count=10**9)]
    found = wanted(SlackTarget("t", 0.1), nodes, many)
    assert held(found.shapes, "cpu") >= 10**11


@VERSIONS
@BASES
def test_r2_the_rate_is_a_minimum(version: Version, base: Base) -> None:
    found = wanted(SlackTarget("t", 0.1, version, base), NODES, PODS)
    cpu, memory = (40_000, 160 * GIB) if base is Base.ALLOCATABLE else (22_500, 80 * GIB)
    assert held(found.shapes, "cpu") >= cpu // 10
    assert held(found.shapes, "memory") >= memory // 10


@VERSIONS
def test_r2_mirrors_count_towards_the_rate_and_may_exceed_it(version: Version) -> None:
    few = SlackTarget("t", 0.1, version, mirrors=(Copies("web", WEB.spec, 1),))
    without = wanted(replace(few, mirrors=()), NODES, PODS)
    found = wanted(few, NODES, PODS)
    assert held(of_role(found, Role.SHARE), "cpu") < held(of_role(without, Role.SHARE), "cpu")
    assert held(found.shapes, "cpu") >= 2250
    many = wanted(replace(few, mirrors=(Copies("web", WEB.spec, 30),)), NODES, PODS)
    assert of_role(many, Role.SHARE) == []
    assert held(many.shapes, "cpu") >= 30_000  # more than a tenth of 22,500


def test_r4_a_name_and_a_rate_are_all_that_is_needed() -> None:
    assert wanted(SlackTarget("t", 0.1), NODES, PODS).shapes
    assert wanted(SlackTarget("t"), NODES, PODS) == SlackDemand(())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"rate": -0.1}, "slack t: rate -0.1 is not between 0 and 10; write 0.1 for a tenth"),
        ({"rate": float("nan")}, "slack t: rate nan is not between"),
        ({"granularity": 0}, "slack t: granularity 0 is not at least 1"),
        ({"namespace": "shop", "base": Base.ALLOCATABLE}, "slack t: a namespace has no allocatable capacity"),
        ({"mirrors": (Copies("a", spec(), -1),)}, "slack t: fewer than 0 placeholders"),
        ({"mirrors": (Copies("a", spec()),), "fixed": (Copies("a", spec()),)}, "have unique names, found a, a"),
    ],
)
def test_r4_what_cannot_be_meant_is_told(fault: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SlackTarget("t", **fault)  # type: ignore[arg-type]


HIGH, WIDE, BOTH = shape(2000, 64), shape(16_000, 16), shape(16_000, 64, 0)
FAR_APART = (PodCount(spec(12_000, 1), 5), PodCount(spec(500, 48), 5))


def test_r5_no_unnecessarily_large_node() -> None:
    """All pods fit the two smaller shapes; a pod of the most of both would need the large one."""
    found = wanted(SlackTarget("t", 0.1), [HIGH, WIDE, BOTH], FAR_APART)
    assert in_short(found) == [
        ("t/biggest/cpu", 1, {"cpu": 12_000, "memory": GIB}),
        ("t/biggest/memory", 1, {"cpu": 500, "memory": 48 * GIB}),
    ]
    one_needs_it = (*FAR_APART, PodCount(spec(3000, 20), 1))
    (biggest,) = of_role(wanted(SlackTarget("t", 0.1), [HIGH, WIDE, BOTH], one_needs_it), Role.BIGGEST)
    assert size(biggest) == {"cpu": 12_000, "memory": 48 * GIB}


@VERSIONS
def test_r5_parts_do_not_ask_for_one_either(version: Version) -> None:
    pods = (PodCount(spec(12_000, 1), 500), PodCount(spec(500, 48), 500))
    found = wanted(SlackTarget("t", 0.5, version, granularity=1), [HIGH, WIDE, BOTH], pods)
    assert of_role(found, Role.SHARE)
    for each in found.shapes:
        assert any(
            size(each)["cpu"] <= r.allocatable["cpu"] and size(each)["memory"] <= r.allocatable["memory"]
            for r in (HIGH, WIDE)
        )


def test_r5_a_pod_that_fits_nowhere_needs_no_large_node() -> None:
    rooms = [{"cpu": 4, "pods": 1}, {"cpu": 16, "pods": 1}]
    assert needed(rooms, [{"cpu": 2}, {"cpu": 100}]) == rooms[:1]
    assert needed(rooms, [{"cpu": 2}, {"cpu": 8}]) == rooms


def test_r6_there_is_room_for_the_biggest_pods() -> None:
    for version in (Version.BIGGEST_PODS, Version.BIGGEST):
        biggest = of_role(wanted(SlackTarget("t", 0.01, version), NODES, PODS), Role.BIGGEST)
        for pod in PODS:
            asked = dict(pod.spec.requests)
            assert any(all(size(each)[name] >= amount for name, amount in asked.items()) for each in biggest)


def test_r6_a_pod_that_is_the_biggest_in_everything_is_kept_once() -> None:
    pods = (PodCount(spec(1000, 8), 3), PodCount(spec(100, 1), 3))
    found = wanted(SlackTarget("t", 0.1, Version.BIGGEST_PODS), NODES, pods)
    assert [(each.count, size(each)) for each in found.shapes] == [(1, {"cpu": 1000, "memory": 8 * GIB})]
    assert found.shapes[0].why == "room for the pod with the most cpu and memory"


@VERSIONS
def test_r6_no_room_for_the_size_of_databases(version: Version) -> None:
    database = PodCount(spec(3500, 14), 1, excluded=True)
    found = wanted(SlackTarget("t", 0.1, version), NODES, (*PODS, database))
    assert all(size(each)["cpu"] <= 1000 and size(each).get("memory", 0) <= 8 * GIB for each in found.shapes)
    assert held(found.shapes, "cpu") >= 2600  # they are requested all the same


def test_r6_databases_alone_are_held_in_parts() -> None:
    database = PodCount(spec(3500, 14), 10, excluded=True)
    found = wanted(SlackTarget("t", 0.1), NODES, [database])
    assert {each.role for each in found.shapes} == {Role.SHARE}
    assert held(found.shapes, "cpu") >= 3500


def test_r7_a_pod_that_is_the_biggest_in_nothing_has_room_too() -> None:
    """The specification's example: 1000m/1G and 10m/10G; 500m/5G is between them."""
    pods = [PodCount(spec(1000, 1), 10), PodCount(spec(10, 10), 10)]
    (biggest,) = of_role(wanted(SlackTarget("t", 0.1), NODES, pods), Role.BIGGEST)
    assert size(biggest)["cpu"] >= 500
    assert size(biggest)["memory"] >= 5 * GIB


def test_r10_numbers_of_a_large_cluster() -> None:
    """5,000 nodes and 150,000 pods in 1,000 classes."""
    pods = [PodCount(spec(100 + number % 400, 1 + number % 7), 150) for number in range(1000)]
    found = wanted(SlackTarget("t", 0.1), [replace(NODES[0], count=5000)], pods)
    assert sum(each.count for each in found.shapes) == 25_001
    asked = sum(pod.count * dict(pod.spec.requests)["cpu"] for pod in pods)
    assert asked / 10 <= held(found.shapes, "cpu") <= asked / 10 * 1.02


@VERSIONS
def test_s3_every_placeholder_fits_a_node(version: Version) -> None:
    """The nodes that stand are larger than those that could hold something, beside their DaemonSets."""
    nodes = [replace(NODES[0], room={"cpu": 900, "memory": 3 * GIB, "pods": 2})]
    found = wanted(SlackTarget("t", 0.1, version, Base.ALLOCATABLE), nodes, PODS)
    assert all(size(each)["cpu"] <= 900 and size(each)["memory"] <= 3 * GIB for each in found.shapes)
    assert held(found.shapes, "cpu") >= 4000
    assert held(found.shapes, "memory") >= 16 * GIB


def test_s3_a_pod_of_the_most_of_everything_that_fits_no_node_becomes_the_two_biggest() -> None:
    found = wanted(SlackTarget("t", 0.1), [HIGH, WIDE], FAR_APART)
    assert [name for name, _, _ in in_short(found)] == ["t/biggest/cpu", "t/biggest/memory"]


def test_s3_a_biggest_pod_that_fits_no_node_becomes_smaller_ones() -> None:
    found = wanted(SlackTarget("t", 0.1), NODES, [PodCount(spec(10_000, 4), 3)])
    assert in_short(found)[0] == ("t/biggest/cpu", 3, {"cpu": 3334, "memory": -(-4 * GIB // 3)})


def test_s3_what_fits_no_node_is_left_out_and_told() -> None:
    target = SlackTarget("t", mirrors=(Copies("big", spec(5000)),), fixed=(Copies("gpu", spec(100, gpu=1), 2),))
    found = wanted(target, NODES, PODS)
    assert found.shapes == ()
    assert found.warnings == (
        "slack t: no node that a pod of big fits, so no capacity is reserved for it",
        "slack t: no node has what fixed size gpu asks for",
    )


def test_s3_a_fixed_size_that_fits_no_node_becomes_smaller_ones() -> None:
    found = wanted(SlackTarget("t", fixed=(Copies("big", spec(6000, 6), 2),)), NODES, PODS)
    assert in_short(found) == [("t/fixed/big", 3, {"cpu": 4000, "memory": 4 * GIB})]


def test_s4_names_stay_while_sizes_and_numbers_change() -> None:
    """Our reading of "one replica set that looks like managing all": a target owns its shapes, and names them."""
    target = SlackTarget("t", 0.3, mirrors=(Copies("web", WEB.spec),), fixed=(Copies("build", spec()),))
    names = [each.name for each in wanted(target, NODES, PODS).shapes]
    assert names == ["t/mirror/web", "t/biggest", "t/fixed/build", "t/share"]
    more = (replace(WEB, count=77), replace(CACHE, spec=spec(600, 9)))
    assert [each.name for each in wanted(target, NODES, more).shapes] == names


def test_s5_the_rate_is_of_what_is_requested_unless_told_otherwise() -> None:
    target = SlackTarget("t", 0.2, Version.BIGGEST_PODS)
    assert held(wanted(target, NODES, PODS).shapes, "cpu") == 4500
    assert held(wanted(replace(target, base=Base.ALLOCATABLE), NODES, PODS).shapes, "cpu") == 8000


@VERSIONS
def test_s6_no_placeholder_is_bigger_than_the_biggest_pod(version: Version) -> None:
    pods = [PodCount(spec(200, 1), 50), PodCount(spec(100, 2), 50)]
    found = wanted(SlackTarget("t", 0.5, version, Base.ALLOCATABLE, granularity=1), NODES, pods)
    assert all(size(each)["cpu"] <= 200 and size(each)["memory"] <= 2 * GIB for each in found.shapes)
    assert held(found.shapes, "cpu") >= 20_000
    assert held(found.shapes, "memory") >= 80 * GIB


def test_s7_mirrors_are_the_pods_with_all_that_they_ask_for() -> None:
    pod = spec(3000, 4, node_selector={"disk": "ssd"}, affinity=wants("zone", "In", "a"), tolerations=(TOLERATION,))
    nodes = [*NODES, shape(4000, 16, labels={"disk": "ssd", "zone": "a"}, taints=(TAINT,))]
    (mirror,) = wanted(SlackTarget("t", mirrors=(Copies("search", pod, 2),)), nodes, PODS).shapes
    assert (mirror.name, mirror.role, mirror.spec, mirror.count) == ("t/mirror/search", Role.MIRROR, pod, 2)
    assert wanted(SlackTarget("t", mirrors=(Copies("search", pod, 2),)), NODES, PODS).shapes == ()


def test_gpus_are_held_on_nodes_with_gpus_only() -> None:
    nodes = [*NODES, shape(32_000, 256, 5, 8, taints=(TAINT,))]
    pods = [*PODS, PodCount(spec(4000, 32, 1, tolerations=(TOLERATION,)), 20)]
    found = wanted(SlackTarget("t", 0.1), nodes, pods)
    assert sum(size(each).get(GPU, 0) * each.count for each in found.shapes) == 2
    for each in found.shapes:
        with_gpu = GPU in size(each)
        assert with_gpu == each.name.endswith(GPU)
        assert each.spec.tolerations == ((Toleration("dedicated", "Equal", "gpu", "NoSchedule"),) if with_gpu else ())
    without = [each for each in found.shapes if GPU not in size(each)]
    assert [(each.count, size(each)) for each in without] == [
        (each.count, size(each)) for each in wanted(SlackTarget("t", 0.1), NODES, PODS).shapes
    ]


def test_pods_for_which_no_node_has_gpus_are_told() -> None:
    found = wanted(SlackTarget("t", 0.1), NODES, [*PODS, PodCount(spec(gpu=1), 4)])
    assert found.warnings == (f"slack t: no node offers {GPU}, so none is held for pods with it",)
    assert found.shapes == wanted(SlackTarget("t", 0.1), NODES, PODS).shapes


def test_the_biggest_pod_may_need_a_node_with_gpus() -> None:
    """It asks for none; but only the nodes that have them are large enough."""
    nodes = [*NODES, shape(32_000, 256, 5, 8)]
    pods = [*PODS, PodCount(spec(12_000, 2), 1), PodCount(spec(1000, 2, 1), 1)]
    biggest = wanted(SlackTarget("t", 0.1), nodes, pods).shapes[0]
    assert size(biggest) == {"cpu": 12_000, "memory": 8 * GIB}


def test_a_target_of_a_provisioner_is_of_its_nodes_and_of_pods_that_may_run_there() -> None:
    nodes = [*NODES, shape(8000, 32, 4, labels={"pool": "batch"}, taints=(TAINT,))]
    batch = PodCount(spec(2000, 4, tolerations=(TOLERATION,)), 10)
    target = SlackTarget("t", 0.1, node_selector=(("pool", "batch"),))
    found = wanted(target, nodes, [*PODS, batch])
    assert found.shapes == wanted(target, nodes, [batch]).shapes
    assert {each.spec.node_selector for each in found.shapes} == {(("pool", "batch"),)}
    assert {each.spec.tolerations for each in found.shapes} == {(TOLERATION,)}
    assert sum(each.count for each in of_role(found, Role.SHARE)) == 0  # the biggest pod is a tenth already
    of_nodes = wanted(replace(target, base=Base.ALLOCATABLE, version=Version.EVEN), nodes, [batch])
    assert (of_nodes.shapes[0].count, size(of_nodes.shapes[0])) == (
        4,
        {"cpu": 800, "memory": 3435973837},
    )  # [S6]: 2 x 6.4 GiB would be too big
    none = wanted(replace(target, node_selector=(("pool", "none"),)), nodes, PODS)
    assert none == SlackDemand((), ("slack t: no node, and no node group, that its placeholders may run on",))


def test_a_target_of_a_namespace_is_of_its_pods() -> None:
    other = PodCount(spec(3000, 12), 10, "other")
    target = SlackTarget("t", 0.2, namespace="shop")
    found = wanted(target, NODES, [*PODS, other])
    assert found.shapes == wanted(target, NODES, PODS).shapes
    assert held(found.shapes, "cpu") >= 4500
    (share,) = of_role(found, Role.SHARE)
    assert share.count == 30  # 22,500m would fill 6 nodes


def test_without_nodes_the_shapes_that_could_be_opened_count() -> None:
    found = wanted(SlackTarget("t", 0.1, Version.EVEN), [replace(NODES[0], count=0)], PODS)
    assert [(each.count, size(each)["cpu"]) for each in found.shapes] == [(3, 800)]
    assert of_role(wanted(SlackTarget("t", 0.1), [replace(NODES[0], count=0)], PODS), Role.SHARE)[0].count == 30


def test_without_pods_the_rate_of_nodes_is_held_all_the_same() -> None:
    target = SlackTarget("t", 0.1, Version.EVEN, Base.ALLOCATABLE)
    assert held(wanted(target, NODES, ()).shapes, "cpu") == 4000
    assert wanted(replace(target, base=Base.REQUESTED), NODES, ()) == SlackDemand(())


def test_what_only_excluded_pods_ask_for_is_not_held() -> None:
    database = PodCount(spec(0, 1, 1), 10, excluded=True)
    found = wanted(SlackTarget("t", 0.1), [shape(4000, 16, 10, 8)], [*PODS, database])
    assert all(GPU not in size(each) for each in found.shapes)


def test_an_affinity_that_matches_no_node_keeps_a_mirror_out() -> None:
    nowhere = PodSpec((("cpu", 100),), affinity=(NodeSelectorTerm(),))
    assert wanted(SlackTarget("t", mirrors=(Copies("a", nowhere),)), NODES, ()).shapes == ()


def test_sizes_stay_while_they_are_about_right() -> None:
    target = SlackTarget("t", 0.2)
    first = wanted(target, NODES, PODS)
    (before,) = of_role(first, Role.SHARE)
    assert (before.count, size(before)["cpu"]) == (50, 70)
    grown = (replace(WEB, count=21), CACHE)
    (now,) = of_role(wanted(target, NODES, grown, first.shapes), Role.SHARE)
    assert size(now) == size(before)
    assert now.count == 53  # 200m more, in parts of 70m
    (formula,) = of_role(wanted(target, NODES, grown), Role.SHARE)
    assert (formula.count, size(formula)["cpu"]) == (50, 74)
    (far,) = of_role(wanted(target, NODES, (replace(WEB, count=200), CACHE), first.shapes), Role.SHARE)
    assert far.count == 50  # as if there had been none before
    assert size(far)["cpu"] > 70


def test_sizes_that_fit_no_node_any_more_do_not_stay() -> None:
    target = SlackTarget("t", 0.1, Version.EVEN, Base.ALLOCATABLE)
    first = wanted(target, NODES, PODS)
    tight = [replace(NODES[0], room={"cpu": 700, "memory": 16 * GIB, "pods": 9})]
    assert wanted(target, tight, PODS, first.shapes).shapes == wanted(target, tight, PODS).shapes


def test_sizes_of_several_parts_stay_only_as_they_are() -> None:
    """7 GPUs in 5 parts are two sizes."""
    nodes = [shape(8000, 64, 10, 7)]
    pods = [PodCount(spec(1600, 16, 2), 35)]
    target = SlackTarget("t", 0.1, Version.EVEN)
    first = wanted(target, nodes, pods)
    assert [(each.name, each.count, size(each)[GPU]) for each in first.shapes] == [
        ("t/share", 2, 2),
        ("t/share/2", 3, 1),
    ]
    less = [shape(8000, 63, 10, 7)]
    assert wanted(target, less, pods, first.shapes).shapes == first.shapes != wanted(target, less, pods).shapes
    many = [replace(pods[0], count=60)]
    assert wanted(target, nodes, many, first.shapes).shapes == wanted(target, nodes, many).shapes


def test_parts_are_even() -> None:
    room = {"cpu": 10_000, GPU: 8, "pods": 9}
    assert parts({"cpu": 1000, GPU: 7}, 5, [room]) == [({"cpu": 200, GPU: 2}, 2), ({"cpu": 200, GPU: 1}, 3)]
    assert parts({"cpu": 1000}, 3, [room]) == [({"cpu": 334}, 3)]
    assert parts({"cpu": 99}, 7, [room]) == [({"cpu": 15}, 1), ({"cpu": 14}, 6)]
    assert parts({"cpu": 1000, GPU: 2}, 5, [room]) == [({"cpu": 500, GPU: 1}, 2)]
    assert parts({"cpu": 30_000, GPU: 2}, 1, [room]) == [({"cpu": 10_000, GPU: 1}, 2), ({"cpu": 10_000}, 1)]
    assert parts({"cpu": 1000, "other": 1}, 1, [room]) == []
    assert parts({"cpu": 0}, 1, [room]) == []


def test_the_rate_is_what_is_written() -> None:
    """0.1 x 3 x 10 is 3, where floating point has a little more."""
    found = wanted(SlackTarget("t", 0.1, Version.EVEN, Base.ALLOCATABLE, 10), [replace(NODES[0], count=3)], PODS)
    assert [each.count for each in found.shapes] == [3]
    assert Fraction("0.1") * 3 * 10 == 3
