"""What provisioners expand to: requirements with Karpenter's semantics, labels, limits, and warnings with reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.fleet.catalogue import Catalogue, InstanceType, Offering, embedded_catalogue
from cagrpc.fleet.provisioners import (
    PROVISIONER_NAME_LABEL,
    Provisioner,
    expand,
    group_of,
    limit_of,
    startup_taints,
    storage_of_disk,
    widened,
)
from solver import solve
from solver.explanation.explain import explain
from solver.explanation.waiting import ways_of
from solver.model import (
    UNLIMITED_SIZE,
    Budget,
    Limit,
    NodeGroup,
    Operator,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Taint,
    TaintEffect,
)
from solver.model.capacity import most_nodes
from solver.verify.check import faults_of

GIB = 2**30
ARCH, TYPE, ZONE = "kubernetes.io/arch", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"
CAPACITY, CPU_LABEL = "karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-cpu"
GENERATION, GPU_NAME = "karpenter.k8s.aws/instance-generation", "karpenter.k8s.aws/instance-gpu-name"


def instance_type(name: str, cores: int, *, arch: str = "amd64", **labels: str) -> InstanceType:
    have = {"cpu": cores * 1000, "memory": cores * 4 * GIB, "pods": 110}
    own = {TYPE: name, ARCH: arch, "kubernetes.io/os": "linux", CPU_LABEL: str(cores)}
    return InstanceType(name, arch, have, have, own | labels)


SMALL = instance_type("m5.large", 2, **{GENERATION: "5"})
BIG = instance_type("m6i.4xlarge", 16, **{GENERATION: "6"})
ARM = instance_type("m7g.xlarge", 4, arch="arm64", **{GENERATION: "7"})
GPU = instance_type("g5.xlarge", 4, **{GENERATION: "5", GPU_NAME: "a10g"})
CATALOGUE = Catalogue(
    (
        Offering(SMALL, 0.1, "zone-a"),
        Offering(SMALL, 0.1, "zone-b"),
        Offering(SMALL, 0.03, "zone-b", "spot", available=7),
        Offering(BIG, 0.8, "zone-a"),
        Offering(ARM, 0.16, "zone-a"),
        Offering(GPU, 1.0, "zone-a", "reserved", available=3),
    ),
    {each.name: each for each in (SMALL, BIG, ARM, GPU)},
)
SMALL_A, SMALL_B, SMALL_SPOT = "m5.large/zone-a/on-demand", "m5.large/zone-b/on-demand", "m5.large/zone-b/spot"
BIG_A, ARM_A, GPU_A = "m6i.4xlarge/zone-a/on-demand", "m7g.xlarge/zone-a/on-demand", "g5.xlarge/zone-a/reserved"
EVERY = {SMALL_A, SMALL_B, SMALL_SPOT, BIG_A, ARM_A, GPU_A}


def needs(key: str, operator: Operator, *values: str) -> Requirement:
    return Requirement(key, operator, values)


def offered(*requirements: Requirement, **fields: object) -> tuple[set[str], tuple[str, ...]]:
    provisioner = replace(Provisioner("p", requirements=requirements), **fields)  # type: ignore[arg-type]
    groups, warnings = expand(provisioner, CATALOGUE)
    assert all(group.id.startswith("p/") for group in groups)
    return {group.id.removeprefix("p/") for group in groups}, warnings


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        pytest.param([], EVERY, id="none: everything"),
        pytest.param([needs(ARCH, Operator.IN, "arm64")], {ARM_A}, id="In"),
        pytest.param([needs(TYPE, Operator.IN, "m5.large", "m7g.xlarge")], {SMALL_A, SMALL_B, SMALL_SPOT, ARM_A},
                     id="In, several values"),
        pytest.param([needs(ARCH, Operator.NOT_IN, "amd64")], {ARM_A}, id="NotIn"),
        pytest.param([needs(GPU_NAME, Operator.NOT_IN, "h100")], EVERY, id="NotIn holds for an absent label"),
        pytest.param([needs(GPU_NAME, Operator.EXISTS)], {GPU_A}, id="Exists"),
        pytest.param([needs(GPU_NAME, Operator.DOES_NOT_EXIST)], EVERY - {GPU_A}, id="DoesNotExist"),
        pytest.param([needs(CPU_LABEL, Operator.GT, "4")], {BIG_A}, id="Gt"),
        pytest.param([needs(CPU_LABEL, Operator.GTE, "4")], {BIG_A, ARM_A, GPU_A}, id="Gte"),
        pytest.param([needs(CPU_LABEL, Operator.LT, "4")], {SMALL_A, SMALL_B, SMALL_SPOT}, id="Lt"),
        pytest.param([needs(GENERATION, Operator.LTE, "6")], EVERY - {ARM_A}, id="Lte"),
        pytest.param([needs(CAPACITY, Operator.IN, "spot")], {SMALL_SPOT}, id="capacity type"),
        pytest.param([needs(ZONE, Operator.IN, "zone-b")], {SMALL_B, SMALL_SPOT}, id="zone"),
        pytest.param([needs("beta.kubernetes.io/arch", Operator.IN, "arm64")], {ARM_A}, id="a key's old name"),
        pytest.param(
            [needs(ARCH, Operator.IN, "amd64"), needs(GENERATION, Operator.GT, "5")],
            {BIG_A},
            id="all must hold",
        ),
    ],
)  # fmt: skip
def test_requirements(requirements: list[Requirement], expected: set[str]) -> None:
    ids, warnings = offered(*requirements)
    assert ids == expected
    assert not warnings


@pytest.mark.parametrize(
    ("requirements", "warning"),
    [
        pytest.param(
            [needs(TYPE, Operator.IN, "p3.8xlarge")],
            'provisioner "p": requirements[0] (node.kubernetes.io/instance-type In [p3.8xlarge]) matches no instance '
            "type of the catalogue; nearest: g5.xlarge, m7g.xlarge, m6i.4xlarge",
            id="unknown value, with the nearest",
        ),
        pytest.param(
            [needs(ZONE, Operator.IN, "eu-west-1c")],
            'provisioner "p": requirements[0] (topology.kubernetes.io/zone In [eu-west-1c]) matches no instance type '
            "of the catalogue; there is zone-a, zone-b",
            id="unknown value, with what there is",
        ),
        pytest.param(
            [needs(CPU_LABEL, Operator.GT, "64")],
            'provisioner "p": requirements[0] (karpenter.k8s.aws/instance-cpu Gt [64]) matches no instance type of the '
            "catalogue; values go from 2 to 16",
            id="out of range, with the range",
        ),
        pytest.param(
            [needs(GPU_NAME, Operator.IN, "h100"), needs(ARCH, Operator.IN, "arm64")],
            'provisioner "p": requirements[0] (karpenter.k8s.aws/instance-gpu-name In [h100]) matches no instance type '
            "of the catalogue; nearest: a10g",
            id="the first requirement that leaves nothing",
        ),
        pytest.param(
            [needs(ARCH, Operator.IN, "arm64"), needs(TYPE, Operator.IN, "m5.large")],
            'provisioner "p": requirements[1] (node.kubernetes.io/instance-type In [m5.large]) matches none of the 1 '
            "offerings that meet the conditions before it; nearest: m7g.xlarge",
            id="each fits, together none",
        ),
        pytest.param(
            [needs("team", Operator.EXISTS)],
            'provisioner "p": requirements[0] (team Exists) matches nothing: no instance type has the label team; give '
            "its value under labels",
            id="a label nobody has",
        ),
        pytest.param(
            [needs("team", Operator.IN, "a"), needs("team", Operator.NOT_IN, "a")],
            'provisioner "p": no value of team meets requirements[0] (team In [a]) and '
            "requirements[1] (team NotIn [a])",
            id="a custom label that contradicts itself",
        ),
    ],
)
def test_a_requirement_that_matches_nothing_is_a_warning_with_the_reason(
    requirements: list[Requirement], warning: str
) -> None:
    assert offered(*requirements) == (set(), (warning,))


def test_one_unknown_value_among_known_ones_is_named() -> None:
    ids, (warning,) = offered(needs(TYPE, Operator.IN, "m6i.4xlarge", "m6i.4xlrge"))
    assert ids == {BIG_A}
    assert "m6i.4xlrge matches no instance type; nearest: m6i.4xlarge" in warning


def test_a_group_carries_what_it_needs_to_be_planned_with() -> None:
    taint = Taint("dedicated", TaintEffect.NO_SCHEDULE, "x")
    provisioner = Provisioner(
        "p", 40, (needs(CAPACITY, Operator.IN, "spot"),), {"team": "a"}, (taint,),
        startup_taints=(Taint("booting", TaintEffect.NO_EXECUTE),),
    )  # fmt: skip
    ((group,), _) = expand(provisioner, CATALOGUE)
    assert group.id == "p/m5.large/zone-b/spot"
    assert (group.provisioner, group.weight, group.price_usd_per_hour) == ("p", 40, 0.03)
    assert (group.instance_type, group.zone, group.capacity_type) == ("m5.large", "zone-b", "spot")
    added = {ZONE: "zone-b", CAPACITY: "spot", "team": "a", "karpenter.sh/nodepool": "p"}
    assert group.labels == {**SMALL.labels, **added}
    assert group.taints == (taint,), "start-up taints are gone before a pod needs to tolerate them"
    assert group.max_size == 7, "no more than are available"


def test_nodes_name_their_provisioner_as_the_documents_version_does() -> None:
    groups, _ = expand(Provisioner("p", name_label=PROVISIONER_NAME_LABEL), CATALOGUE)
    assert {group.labels[PROVISIONER_NAME_LABEL] for group in groups} == {"p"}


@pytest.mark.parametrize(
    ("requirements", "labels", "team", "warning"),
    [
        pytest.param([needs("team", Operator.IN, "a")], {}, "a", "", id="In with one value"),
        pytest.param([], {"team": "b"}, "b", "", id="a label"),
        pytest.param([needs("team", Operator.EXISTS)], {"team": "b"}, "b", "", id="a label that is asked for"),
        pytest.param([needs("team", Operator.IN, "a", "b"), needs("team", Operator.NOT_IN, "a")], {}, "b", "",
                     id="the one value left"),
        pytest.param([needs("team", Operator.NOT_IN, "a")], {}, None, "", id="NotIn holds without the label"),
        pytest.param([needs("team", Operator.IN, "a", "b")], {}, "a",
                     "nodes get the first value, a; write a provisioner for each value", id="several values"),
    ],
)  # fmt: skip
def test_a_label_that_instance_types_do_not_define(
    requirements: list[Requirement], labels: dict[str, str], team: str | None, warning: str
) -> None:
    groups, warnings = expand(Provisioner("p", requirements=tuple(requirements), labels=labels), CATALOGUE)
    assert len(groups) == len(EVERY)
    assert {group.labels.get("team") for group in groups} == {team}
    assert bool(warnings) == bool(warning)
    assert warning in "".join(warnings)


def test_a_well_known_key_that_no_type_of_the_catalogue_has_is_no_custom_label() -> None:
    without_gpus = Catalogue(CATALOGUE.offerings[:5], CATALOGUE.instance_types)
    groups, (warning,) = expand(Provisioner("p", requirements=(needs(GPU_NAME, Operator.IN, "a10g"),)), without_gpus)
    assert not groups
    assert "none has this label" in warning


def test_a_key_of_the_cloud_that_the_catalogue_does_not_know_is_said_to_be_unchecked() -> None:
    ids, (warning,) = offered(needs("karpenter.k8s.aws/instance-hypervisor", Operator.IN, "nitro"))
    assert ids == EVERY
    assert "the catalogue does not know karpenter.k8s.aws/instance-hypervisor" in warning


def test_a_label_that_offerings_define_chooses_among_them() -> None:
    assert offered(labels={ZONE: "zone-b"}) == ({SMALL_B, SMALL_SPOT}, ())


@pytest.mark.parametrize(
    ("own", "cluster", "sizes"),
    [
        pytest.param({}, {}, {SMALL_A: UNLIMITED_SIZE, SMALL_SPOT: 7, BIG_A: UNLIMITED_SIZE, GPU_A: 3}, id="no limits"),
        pytest.param({"cpu": 33_000}, {}, {SMALL_A: 16, SMALL_SPOT: 7, BIG_A: 2}, id="rounded down"),
        pytest.param({"memory": 64 * GIB, "cpu": 33_000}, {}, {SMALL_A: 8, BIG_A: 1}, id="the tightest resource"),
        pytest.param({"nodes": 5}, {}, {SMALL_A: 5, SMALL_SPOT: 5, BIG_A: 5}, id="nodes"),
        pytest.param({"nodes": 5}, {"nodes": 3, "cpu": 40_000}, {SMALL_A: 3, BIG_A: 2}, id="the cluster's too"),
        pytest.param({"nvidia.com/gpu": 0}, {}, {SMALL_A: UNLIMITED_SIZE}, id="a resource it does not have"),
        pytest.param({"cpu": 3000}, {}, {SMALL_A: 1, BIG_A: 0}, id="too small for some"),
    ],
)
def test_what_limits_allow_of_a_group(own: dict[str, int], cluster: dict[str, int], sizes: dict[str, int]) -> None:
    provisioner = Provisioner("p", limits=own)
    groups, _ = expand(provisioner, CATALOGUE, cluster)
    limits = [each for each in (limit_of(provisioner, groups), Limit("cluster", cluster)) if each is not None]
    found = {group.id.removeprefix("p/"): most_nodes(group, limits) for group in groups}
    assert found == found | sizes
    assert {group.max_size for group in groups} == {UNLIMITED_SIZE, 7, 3}, "a limit is no maximum of a group"


NO_ROOM = 'provisioner "p": its limits and what is available leave no room for a single node'


def test_limits_without_room_for_a_node_are_said() -> None:
    _, warnings = expand(Provisioner("p", limits={"cpu": 500}), CATALOGUE)
    assert warnings == (NO_ROOM,)


def test_an_offering_of_which_none_is_available_stays_a_group_of_maximum_0() -> None:
    sold_out = Catalogue((Offering(SMALL, 0.1, available=0),), {SMALL.name: SMALL})
    ((group,), warnings) = expand(Provisioner("p"), sold_out)
    assert group.max_size == 0
    assert warnings == (NO_ROOM,)


def test_a_provisioners_limit_is_over_its_groups() -> None:
    provisioner = Provisioner("p", requirements=(needs(ARCH, Operator.IN, "arm64"),), limits={"cpu": 8000})
    groups, _ = expand(provisioner, CATALOGUE)
    limit = limit_of(provisioner, groups)
    assert limit is not None
    assert limit == Limit("provisioner p", {"cpu": 8000}, node_groups=frozenset({f"p/{ARM_A}"}))
    assert limit_of(Provisioner("q"), ()) is None


def test_explicit_groups_stay_whatever_the_requirements_and_the_contradiction_is_reported() -> None:
    explicit = replace(group_of("mine", CATALOGUE.offerings[4]), min_size=2, labels={**ARM.labels, "team": "z"})
    provisioner = Provisioner(
        "p", 9, (needs(ARCH, Operator.IN, "amd64"),), {"team": "a"}, limits={"cpu": 4000}, node_groups=(explicit,)
    )
    ((group,), warnings) = expand(provisioner, CATALOGUE)
    assert (group.id, group.weight, group.provisioner) == ("mine", 9, "p")
    assert group.max_size == UNLIMITED_SIZE, "as nobody has given it a maximum"
    assert group.labels["team"] == "z", "its own label comes first"
    assert any("has kubernetes.io/arch=arm64, which violates requirements[0]" in warning for warning in warnings)


def test_ids_stay_the_same_when_the_catalogue_grows() -> None:
    before, _ = expand(Provisioner("p"), Catalogue(CATALOGUE.offerings[:1], CATALOGUE.instance_types))
    after, _ = expand(Provisioner("p"), CATALOGUE)
    assert {group.id for group in before} <= {group.id for group in after}


def test_the_embedded_catalogue_expands() -> None:
    groups, warnings = expand(Provisioner("p", requirements=(needs(ARCH, Operator.IN, "amd64"),)), embedded_catalogue())
    assert len(groups) == len({group.id for group in groups}) == 949
    assert not warnings


def test_every_group_has_ephemeral_storage_the_most_special_statement_counts() -> None:
    def of(provisioner: Provisioner) -> int:
        ((group, *_), _) = expand(provisioner, CATALOGUE)
        return group.allocatable["ephemeral-storage"]

    by_hand = NodeGroup("mine", {"cpu": 1000, "memory": GIB, "pods": 10, "ephemeral-storage": 3 * GIB}, 0.1)
    assert of(Provisioner("p")) == 17 * GIB, "what a kubelet gives of a disk of 20 GiB"
    assert of(Provisioner("p", allocatable={"ephemeral-storage": 89 * GIB})) == 89 * GIB
    assert of(Provisioner("p", allocatable={"ephemeral-storage": GIB}, node_groups=(by_hand,))) == 3 * GIB
    assert of(Provisioner("p", node_groups=(replace(by_hand, allocatable={"ephemeral-storage": 0}),))) == 0


def test_a_kubelet_evicts_at_a_tenth_and_reserves_a_gibibyte() -> None:
    assert [storage_of_disk(gib * GIB) // GIB for gib in (1, 20, 100)] == [0, 17, 89]


def test_huge_pages_of_a_provisioner_are_taken_off_the_memory_of_a_type_but_not_of_a_shape_by_hand() -> None:
    pages = {"hugepages-2Mi": GIB, "example.com/fuse": 9}
    ((of_type, *_), _) = expand(Provisioner("p", allocatable=pages), CATALOGUE)
    assert {name: of_type.allocatable[name] for name in ("memory", *pages)} == {"memory": 7 * GIB, **pages}
    by_hand = NodeGroup("mine", {"cpu": 1000, "memory": 7 * GIB, "pods": 10}, 0.1)
    ((of_shape,), _) = expand(Provisioner("p", allocatable=pages, node_groups=(by_hand,)), CATALOGUE)
    assert {name: of_shape.allocatable[name] for name in ("memory", *pages)} == {"memory": 7 * GIB, **pages}


def test_a_pod_that_needs_more_than_a_disk_is_not_planned() -> None:
    groups, _ = expand(Provisioner("p"), CATALOGUE)
    for asked, unserved in ((17 * GIB, 0), (17 * GIB + 1, 1)):
        pods = (PodSet("ns/a", PodSpec((("cpu", 100), ("ephemeral-storage", asked))), 1),)
        plan = solve(Problem(pods, groups), Budget(deterministic_seconds=0.1))
        assert len(plan.unplaced) == unserved


def test_a_pod_that_requires_a_late_label_is_planned_onto_groups_that_declare_it_and_no_other() -> None:
    label = "nvidia.com/gpu.product"
    declared, _ = expand(Provisioner("p", post_registration_labels={label: "A10G"}), CATALOGUE)
    others, _ = expand(Provisioner("q"), CATALOGUE)
    assert {group.labels[label] for group in declared} == {"A10G"}
    assert {group.post_registration_labels for group in declared} == {frozenset({label})}
    pods = (PodSet("ns/a", PodSpec((("cpu", 100),), node_selector=((label, "A10G"),)), 3),)
    problem = Problem(pods, (*others, *declared))
    plan = solve(problem, Budget(deterministic_seconds=0.1))
    assert not plan.unplaced
    (increase,) = plan.increments
    assert increase.node_group.startswith("p/")
    cheaper = f"q/{increase.node_group.removeprefix('p/')}"
    onto_others = replace(
        plan,
        increments=(replace(increase, node_group=cheaper),),
        nodes=tuple(replace(each, node_group=cheaper) for each in plan.nodes),
    )
    assert not list(faults_of(problem, plan))
    assert any(label in fault for fault in faults_of(problem, onto_others)), (
        "the checker refuses a group that never has the label"
    )


def test_a_label_that_a_group_has_from_the_start_is_not_late() -> None:
    groups, _ = expand(
        Provisioner("p", post_registration_labels={ARCH: "amd64", "x": "y"}, labels={"x": "z"}), CATALOGUE
    )
    assert {group.post_registration_labels for group in groups} == {frozenset()}
    assert {group.labels["x"] for group in groups} == {"z"}


def said_of(pod: PodSpec, *provisioners: Provisioner) -> list[tuple[str, ...]]:
    """What would serve the pod, of what provisioners could have; each is planned."""
    groups = [group for each in provisioners for group in expand(each, CATALOGUE)[0]]
    limits = tuple(limit for each in provisioners if (limit := limit_of(each, groups)) is not None)
    problem = Problem((PodSet("ns/web", pod, 1),), tuple(groups), limits=limits)
    budget = Budget(deterministic_seconds=5.0)
    plan = solve(problem, budget)
    found = explain(widened(provisioners, CATALOGUE, problem, plan), plan, budget).unserved
    return [ways_of(why) for why in found]


IN_A = Requirement(ZONE, Operator.IN, ("zone-a",))
OF_SMALL = Requirement(TYPE, Operator.IN, ("m5.large",))
LARGER_TYPE = f"let requirements[0] ({TYPE} In [m5.large]) allow m6i.4xlarge in provisioner p"
WIDER_ZONE = f"let requirements[0] ({ZONE} In [zone-a]) allow zone-b in provisioner p"


@pytest.mark.parametrize(
    ("pod", "provisioner", "ways"),
    [
        pytest.param(
            PodSpec((("cpu", 1000),), node_selector=((ZONE, "zone-b"),)),
            Provisioner("p", requirements=(IN_A,)),
            [(WIDER_ZONE,)],
            id="another zone, and not the selector",
        ),
        pytest.param(
            PodSpec((("cpu", 8000),)),
            Provisioner("p", requirements=(OF_SMALL,)),
            [(LARGER_TYPE,)],
            id="a larger type",
        ),
        pytest.param(
            PodSpec((("cpu", 3000),), node_selector=((ARCH, "arm64"),)),
            Provisioner("p", requirements=(Requirement(ARCH, Operator.NOT_IN, ("arm64",)),)),
            [(f"let requirements[0] ({ARCH} NotIn [arm64]) allow arm64 in provisioner p",)],
            id="what is excluded",
        ),
        pytest.param(
            PodSpec((("cpu", 8000),)),
            Provisioner("p", requirements=(OF_SMALL,), limits={"cpu": 4000}),
            [(f"{LARGER_TYPE}, and raise the cpu of limit provisioner p from 4 to 16",)],
            id="with its limit",
        ),
        pytest.param(
            PodSpec((("cpu", 8000),)),
            Provisioner("p", node_groups=(group_of("own", CATALOGUE.offerings[0]),)),
            [("lower the cpu request of pods like ns/web from 8 to 2",)],
            id="explicit groups have no others",
        ),
    ],
)
def test_what_a_provisioner_could_have_is_tried_before_it_is_said(
    pod: PodSpec, provisioner: Provisioner, ways: list[tuple[str, ...]]
) -> None:
    found = said_of(pod, provisioner)
    assert [each[:1] for each in found] == ways
    assert not any("node selector" in way for each in found for way in each)


def test_startup_taints_are_those_of_all_provisioners_that_no_node_keeps() -> None:
    agent, slow = Taint("agent", TaintEffect.NO_EXECUTE, "true"), Taint("slow", TaintEffect.NO_SCHEDULE)
    starting = Provisioner("a", startup_taints=(agent, slow))
    assert startup_taints([starting]) == {agent, slow}
    assert startup_taints([starting, Provisioner("b", taints=(slow,))]) == {agent}
    assert startup_taints([starting, Provisioner("b", taints=(replace(slow, value="x"),))]) == {agent, slow}
