"""Which nodes of a plan come together, as one increment, and which pods each of them is for."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS, NewWorld, World

SOON = BOOT_SECONDS / 2
GROUPS = [group(name, cpu=4000, labels={"pool": name}, max_size=100) for name in "abc"]


def add(world: World, pool: str, *, gang: str | None = None, cpu: int = 4000) -> str:
    """Create a pod that takes a node of its own in a group."""
    return world.cluster.add(cpu=cpu, gang=gang, node_selector={"pool": pool})[0]


def deltas(world: World) -> list[dict[str, int]]:
    return sorted((dict(each.increment.deltas) for each in world.increments()), key=str)


def test_nodes_of_groups_without_a_common_gang_are_increments_of_their_own(new_world: NewWorld) -> None:
    world = new_world(*GROUPS)
    for pool in "aba":
        add(world, pool)
    world.run(3)
    assert deltas(world) == [{"a": 2}, {"b": 1}]


def test_gangs_over_several_groups_and_on_shared_nodes_tie_nodes_together_and_no_others(new_world: NewWorld) -> None:
    world = new_world(*GROUPS)
    for pool, gang, cpu in [("a", "g", 4000), ("b", "g", 2000), ("b", "h", 2000), ("c", "h", 4000)]:
        add(world, pool, gang=gang, cpu=cpu)
    for pool, alone in [("a", None), ("b", None), ("c", "alone")]:
        add(world, pool, gang=alone)
    world.run(3)
    assert deltas(world) == [{"a": 1, "b": 1, "c": 1}, {"a": 1}, {"b": 1}, {"c": 1}]


def test_the_oldest_pods_go_to_standing_nodes_then_to_coming_and_new_ones_and_the_youngest_wait(
    new_world: NewWorld,
) -> None:
    world = new_world(group("a", cpu=4000, max_size=3))
    world.play(lambda _: world.cluster.add(cpu=2500), 60)
    world.cluster.scheduling = False
    world.play(lambda _: world.cluster.add(cpu=2500), 5)
    (stands,) = world.cluster.nodes()
    uids = []
    for _ in range(5):
        uids += world.cluster.add(cpu=1500)
        world.clock.advance(1)
    world.run(5)
    assert [each.increment.deltas for each in world.increments()] == [{"a": 1}] * 3
    assert world.increments()[-1].increment.pods == set(uids[2:4])
    assert world.api.objects[world.cluster.paths[uids[0]]]["status"]["nominatedNodeName"] == stands
    assert {each.uid for each in world.events("Planned")} >= {uids[1]}, "there is room on a node that is coming"
    assert {each.uid for each in world.events("NotPlanned")} == {uids[4]}


@pytest.mark.parametrize(("most", "expected"), [("MOST_NODES", [2, 2, 2, 1]), ("MOST_PODS", [1] * 7)])
def test_very_many_are_ordered_in_parts_that_split_no_gang(
    most: str, expected: list[int], new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"cagrpc.controllers.planning.increments.{most}", 2)
    world = new_world(*GROUPS)
    for _ in range(7):
        add(world, "a", cpu=3000)
        add(world, "a", cpu=1000)
    for _ in range(5):
        add(world, "b", gang="g")
    world.run(3)
    of_groups: defaultdict[str, list[int]] = defaultdict(list)
    for each in world.increments():
        ((name, count),) = each.increment.deltas.items()
        of_groups[name].append(count)
    assert of_groups["b"] == [5]
    assert sorted(of_groups["a"], reverse=True) == expected


@examples(10)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "g", "h", "i"])), min_size=1, max_size=9))
def test_increments_are_a_partition_and_every_gang_is_in_one(shape: list[tuple[str, str]]) -> None:
    with World(*GROUPS) as world:
        pods = {add(world, pool, gang=gang or None): (pool, gang) for pool, gang in shape}
        world.run(3)
        ordered = [each.increment for each in world.increments()]
        assert Counter(uid for each in ordered for uid in each.pods) == Counter(pods.keys())
        for gang in "ghi":
            assert sum(any(pods[str(uid)][1] == gang for uid in each.pods) for each in ordered) <= 1
        for each in ordered:
            assert Counter(of.node_group for of in each.placements) == Counter(dict(each.deltas))
            assert each.cost_usd_per_hour == pytest.approx(0.1 * len(each.placements))
            assert len(each.deltas) == 1 or all(pods[str(uid)][1] for uid in each.pods)
            for of in each.placements:
                assert [pods[str(uid)][0] for uid in of.pods] == [of.node_group]
