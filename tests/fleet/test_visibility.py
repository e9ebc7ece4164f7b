"""Which groups CA is shown: always those that it must see, then those that help most; the same ones every time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.provisioners import Provisioner, expand
from cagrpc.fleet.visibility import ShownGroups
from solver.model import NodeGroup, Operator, Requirement, Taint, TaintEffect

GIB = 2**30


def group(name: str, cores: int = 4, price: float = 1.0, **fields: object) -> NodeGroup:
    allocatable = {"cpu": cores * 1000, "memory": cores * 4 * GIB, "pods": 110}
    return replace(NodeGroup(name, allocatable, price, zone="zone-a"), **fields)  # type: ignore[arg-type]


def with_gpu(base: NodeGroup, name: str) -> NodeGroup:
    return replace(
        base,
        allocatable={**base.allocatable, "nvidia.com/gpu": 1},
        labels={"karpenter.k8s.aws/instance-gpu-name": name},
    )


def of_architecture(arch: str) -> tuple[NodeGroup, ...]:
    requirement = Requirement("kubernetes.io/arch", Operator.IN, (arch,))
    return expand(Provisioner(arch, {"amd64": 100, "arm64": 50}[arch], (requirement,)), embedded_catalogue())[0]


CATALOGUE_GROUPS = of_architecture("amd64") + of_architecture("arm64")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param([], [], id="nothing to show"),
        pytest.param([group("a"), group("b", price=2)], ["a"], id="dearer for the same"),
        pytest.param([group("a"), group("b", cores=2)], ["a"], id="smaller for the same price"),
        pytest.param([group("b"), group("a")], ["b"], id="of two alike the first"),
        pytest.param([group("a"), group("b", cores=8, price=2)], ["a", "b"], id="larger and dearer"),
        pytest.param([group("a"), group("b", price=2, weight=9)], ["a", "b"], id="another tier"),
        pytest.param([group("a"), group("b", price=2, zone="zone-b")], ["a", "b"], id="another zone"),
        pytest.param([group("a"), with_gpu(group("b", price=9), "l4")], ["a", "b"], id="with GPUs"),
        pytest.param(
            [with_gpu(group("a"), "l4"), with_gpu(group("b", price=9), "h100")], ["a", "b"], id="another kind of GPU"
        ),
        pytest.param([group("a"), group("b", price=2, provisioner="q")], ["a", "b"], id="another provisioner's limits"),
        pytest.param([group("a"), group("b", price=2, capacity_type="spot")], ["a", "b"], id="another capacity type"),
        pytest.param(
            [group("a", taints=(Taint("x", TaintEffect.NO_SCHEDULE),)), group("b", price=2)], ["a", "b"], id="taints"
        ),
        pytest.param(
            [group("a", labels={"kubernetes.io/arch": "arm64"}), group("b", price=2)], ["a", "b"], id="labels"
        ),
        pytest.param([group("a", max_size=0), group("b", price=2)], ["b"], id="no room in the cheaper one"),
    ],
)
def test_groups_that_another_one_dominates_are_left_out(groups: list[NodeGroup], expected: list[str]) -> None:
    assert list(ShownGroups()(groups, {})) == expected


def test_at_most_as_many_as_asked_for() -> None:
    assert len(ShownGroups(50)(CATALOGUE_GROUPS, {})) == 50
    assert len(ShownGroups(120)(CATALOGUE_GROUPS, {})) == 120


def test_every_tier_zone_and_kind_of_gpu_is_there_even_beyond_the_count() -> None:
    shown = set(ShownGroups(1)(CATALOGUE_GROUPS, {}))
    label = "karpenter.k8s.aws/instance-gpu-name"

    def kinds(groups: list[NodeGroup]) -> set[tuple[int, bool, str]]:
        return {(g.weight, "nvidia.com/gpu" in g.allocatable, g.labels.get(label, "")) for g in groups}

    assert kinds([g for g in CATALOGUE_GROUPS if g.id in shown]) == kinds(list(CATALOGUE_GROUPS))
    assert len(shown) == len(kinds(list(CATALOGUE_GROUPS)))


def test_small_and_large_groups_are_among_the_chosen() -> None:
    shown = set(ShownGroups()(CATALOGUE_GROUPS, {}))
    plain = [g for g in CATALOGUE_GROUPS if g.id in shown and g.weight == 100 and "g" not in g.id.split("/")[1][:1]]
    cores = sorted(g.allocatable["cpu"] // 1000 for g in plain)
    assert cores[0] < 4, "a single small pod needs no large node"
    assert cores[-1] > 90, "a large pod has somewhere to go"


def test_a_group_with_nodes_never_disappears() -> None:
    groups = [group("a"), group("b", price=2), group("c", price=3, max_size=0)]
    assert ShownGroups(1)(groups, {"b": 1, "c": 2, "unknown": 4}) == ("a", "b", "c")


def test_an_explicit_group_is_always_shown() -> None:
    groups = [group("a"), group("b", price=2)]
    assert ShownGroups(1, frozenset({"b"}))(groups, {}) == ("a", "b")


def test_groups_with_nodes_take_the_last_places() -> None:
    rule = ShownGroups(50)
    before = rule(CATALOGUE_GROUPS, {})
    hidden = next(g.id for g in CATALOGUE_GROUPS if g.id not in before)
    after = rule(CATALOGUE_GROUPS, {hidden: 1})
    assert len(after) == 50
    assert set(after) - set(before) == {hidden}
    assert rule(CATALOGUE_GROUPS, {}) == before, "and leave them again"


def test_the_choice_is_the_same_every_time_and_follows_the_groups() -> None:
    rule = ShownGroups(50)
    assert rule(CATALOGUE_GROUPS, {}) == ShownGroups(50)(tuple(CATALOGUE_GROUPS), {})
    mixed = list(CATALOGUE_GROUPS)
    random.Random(7).shuffle(mixed)
    order = {g.id: i for i, g in enumerate(mixed)}
    shown = rule(mixed, {})
    assert list(shown) == sorted(shown, key=order.__getitem__), "in the groups' own order"
    assert rule([group("a")], {}) == ("a",), "another list of groups, another choice"
