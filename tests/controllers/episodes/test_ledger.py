"""From what is seen of a cluster to episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.cluster.node_groups import group_of
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.ledger import (
    LONGEST_SECONDS,
    MOST_PODS,
    MOST_WAVES,
    QUIET_SECONDS,
    SETTLED_SECONDS,
)
from cagrpc.controllers.episodes.model import Ended, GroupNodes, KnownGroups, ScaleUp
from cagrpc.controllers.episodes.planning import finished
from solver.model import Budget
from tests.controllers.episodes.told import BIG, SMALL, START, Told, node_group
from tests.support.solver.problems import spec

BUDGET = Budget(deterministic_seconds=0.5)


@pytest.fixture
def told() -> Told:
    return Told()


def test_an_episode_goes_from_pods_that_wait_to_nodes_for_all_of_them(told: Told) -> None:
    pods = told.add(8)
    assert told.run(10) is None
    assert told.ledger.opened_at_seconds == START + 4  # seen at 2, and nothing more came until 4
    for _ in range(4):
        told.node(SMALL)
    told.bind(pods)
    closed = told.end()
    episode = closed.episode
    assert (episode.ended, episode.pods, episode.waves) == (Ended.SERVED, 8, 1)
    assert episode.came.nodes == (GroupNodes("small", 4, 1.0),)
    assert (episode.came.unserved, episode.came.waited_seconds) == (0, 12.0)
    assert episode.closed_at_seconds == START + 12 + SETTLED_SECONDS
    assert told.ledger.opened_at_seconds is None


def test_pods_that_are_bound_at_once_are_no_episode(told: Told) -> None:
    for _ in range(30):
        pods = told.add(3)
        told.now += 1
        told.see()
        told.bind(pods)
        told.see()
    assert told.ledger.opened_at_seconds is None


def test_several_choices_for_the_same_pods_are_one_episode_and_later_pods_a_wave_of_it(told: Told) -> None:
    first = told.add(4)
    told.run(10)
    told.node(SMALL)
    told.bind(first[:2])
    told.run(10)
    second = told.add(2)
    told.run(10)
    for _ in range(2):
        told.node(SMALL)
    told.bind(first[2:] + second)
    closed = told.end()
    assert (closed.episode.pods, closed.episode.waves) == (6, 2)
    assert [each.pods for each in closed.state.waves] == [4, 2]
    assert closed.episode.came.node_count == 3
    assert any("there were 2, each planned as it came" in each for each in closed.episode.unknown)


def test_nodes_that_stood_before_are_not_counted_and_those_that_were_coming_are(told: Told) -> None:
    told.node(BIG)
    old = told.node(SMALL, ready=False)
    told.nodes[old] = replace(told.nodes[old], created_at_seconds=int(START - LONGEST_SECONDS))
    told.node(SMALL, ready=False)  # ordered a moment ago, for pods that wait
    pods = told.add(2)
    told.run(10)
    told.bind(pods)
    closed = told.end()
    assert closed.episode.came.nodes == (GroupNodes("small", 1, 0.25),)
    assert [each.name for each in closed.state.cluster.nodes] == ["big-0"]


def test_a_node_that_came_in_one_episode_is_not_the_next_ones(told: Told) -> None:
    pods = told.add(2)
    told.run(10)
    told.node(SMALL, ready=False)
    told.bind(pods)
    assert told.end().episode.came.node_count == 1
    more = told.add(1)
    told.run(10)
    told.bind(more)
    assert told.end().episode.came.node_count == 0


def test_pods_that_nothing_serves_do_not_hold_it_open_for_ever_and_open_no_other_one(told: Told) -> None:
    told.add(1, spec(cpu=64_000))
    closed = told.end()
    assert closed.episode.ended is Ended.QUIET
    assert closed.episode.came.unserved == 1
    assert closed.episode.closed_at_seconds - closed.episode.opened_at_seconds == QUIET_SECONDS
    assert told.run(2_000) is None
    pods = told.add(1)
    told.run(10)
    told.bind(pods)
    assert told.end().episode.pods == 1


def test_one_that_lasts_long_leaves_what_has_just_begun_to_wait_to_the_next(told: Told) -> None:
    told.add(1, spec(cpu=64_000))
    closed, waiting = None, list[str]()
    while closed is None:
        pods = told.add(1)
        closed = told.run(20)
        told.bind(waiting)
        waiting = pods
    assert closed.episode.ended is Ended.LONG
    assert closed.episode.came.unserved == 1
    assert (closed.why_not, closed.episode.waves) == ("", MOST_WAVES - 2)
    assert any("2 pods that still waited: these are the next episode's" in each for each in closed.episode.unknown)
    told.run(10)
    assert told.ledger.awaited == set(waiting)
    told.bind(waiting)
    assert told.end().episode.pods == 2


def test_pods_that_go_before_they_have_a_node_are_said(told: Told) -> None:
    pods = told.add(3)
    told.run(10)
    told.node(SMALL)
    told.bind(pods[:2])
    del told.waiting[pods[2]]
    closed = told.end()
    assert (closed.episode.pods, closed.episode.came.unserved) == (3, 0)
    assert "what 1 pod that went before getting a node would have got" in closed.episode.unknown


def test_groups_that_were_backed_off_from_and_nodes_that_went_are_not_planned_with(told: Told) -> None:
    told.node(BIG, free=4000)
    told.sizes = {"big": GroupSize(1, 5), "small": GroupSize(0, 5)}
    pods = told.add(2, spec(cpu=1900))
    told.run(10)
    told.sizes = {"big": GroupSize(1, 5), "small": GroupSize(1, 5, "no stock")}
    del told.nodes["big-0"]
    told.run(4)
    told.sizes["small"] = GroupSize(0, 5)
    told.node(BIG)
    told.bind(pods)
    closed = told.end()
    assert [each.id for each in closed.state.cluster.node_groups] == ["big"]
    assert closed.state.cluster.nodes == ()
    assert "what was free on 1 node that went: the plan does without" in closed.episode.unknown
    assert any(each.startswith("what small could have had: the plan does without") for each in closed.episode.unknown)


def test_what_the_autoscaler_did_is_told_by_its_events_and_its_status(told: Told) -> None:
    told.sizes = {"big": GroupSize(0, 5), "small": GroupSize(2, 5)}
    pods = told.add(8)
    told.run(6)
    told.scale_ups.append(ScaleUp(told.now, "big", 1))
    told.sizes = {"big": GroupSize(1, 5), "small": GroupSize(2, 5)}
    told.run(40)
    told.node(BIG)
    told.bind(pods)
    closed = told.end()
    assert closed.episode.scale_ups == (ScaleUp(START + 6, "big", 1),)
    assert closed.episode.targets == {"big": (0, 1)}
    assert closed.episode.node_seconds == 40.0


def test_without_groups_or_with_more_pods_than_are_looked_at_nothing_is_planned(told: Told) -> None:
    told.known = KnownGroups()
    told.add(1)
    episode = finished(told.end(), BUDGET)
    assert episode is not None
    assert (episode.planned, episode.unknown[0]) == (None, "no node group is known to plan with")
    told = Told()
    told.add(MOST_PODS + 7)
    episode = finished(told.end(), BUDGET)
    assert episode is not None
    assert (episode.planned, episode.unknown[0]) == (None, "it has 7 pods more than are looked at")


def test_what_became_known_of_groups_first_counts(told: Told) -> None:
    told.known = KnownGroups()
    pods = told.add(2)
    told.run(10)
    told.known = KnownGroups((SMALL,), frozenset({"small"}))
    told.run(4)
    told.known = KnownGroups((replace(SMALL, target_size=3),))
    told.node(SMALL)
    told.bind(pods)
    closed = told.end()
    assert [each.target_size for each in closed.state.cluster.node_groups] == [0]
    assert closed.episode.came.nodes == (GroupNodes("small", 1, 0.25, estimated=True),)


def test_a_node_is_of_the_group_whose_place_pool_and_labels_it_has(told: Told) -> None:
    node = told.nodes[told.node(BIG)]
    other_pool = replace(BIG, id="other", labels={**BIG.labels, "agentpool": "other"})
    tainted = replace(BIG, id="gpu", labels={**BIG.labels, "accelerator": "a100"})
    assert group_of(node, [SMALL, other_pool, tainted, BIG]) == BIG
    assert group_of(node, [SMALL, other_pool]) is None
    less = replace(BIG, allocatable={**BIG.allocatable, "cpu": 7_000})
    assert group_of(node, [less]) == less, "a template knows less exactly what is reserved"
    unlabelled = [replace(each, labels={"zone": "z"}, instance_type="", zone="") for each in (BIG, less)]
    plain = replace(node, node=replace(node.node, labels={"zone": "z"}))
    assert group_of(plain, unlabelled) == unlabelled[0]
    assert group_of(plain, unlabelled[1:]) is None


def test_a_node_of_no_known_group_costs_what_its_type_does(told: Told) -> None:
    pods = told.add(1)
    told.run(10)
    told.node(node_group("m7i.large", 1930, 0.0))
    told.bind(pods)
    closed = told.end()
    (nodes,) = closed.episode.came.nodes
    assert nodes.node_group == "m7i.large"
    assert nodes.usd_per_hour > 0
    assert "the node group of 1 node that came" in closed.episode.unknown
